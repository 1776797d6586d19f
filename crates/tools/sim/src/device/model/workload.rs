//! The workloads of data sheets, and their measurement.

use std::time::Duration;

use block::{Arena, Clock, Completion, Lba, Op, Queue, Request, Submit, Tag};

/// One kind of request, at one depth.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// The operation of every request.
    pub op: Op,
    /// Random positions; otherwise sequential from the first block on.
    pub random: bool,
    /// Size of one request, in bytes.
    pub bytes: u32,
    /// Number of requests in flight.
    pub depth: u32,
    /// Number of requests; the first tenth, but at least `depth`, is not counted.
    pub requests: u32,
}

impl Workload {
    /// Creates a workload of random 4 KiB requests.
    pub fn random(op: Op, depth: u32, requests: u32) -> Workload {
        Workload { op, random: true, bytes: 4096, depth, requests }
    }

    /// Creates a workload of sequential 128 KiB requests.
    pub fn sequential(op: Op, depth: u32, requests: u32) -> Workload {
        Workload { op, random: false, bytes: 128 << 10, depth, requests }
    }
}

/// The result of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Measurement {
    /// Number of completed requests per second.
    pub iops: f64,
    /// Bandwidth, in 10^6 bytes per second.
    pub mb_s: f64,
    /// Mean latency of a request.
    pub mean: Duration,
    /// Longest latency of a request.
    pub longest: Duration,
}

/// Runs a workload and returns its figures. Allocates at the start.
///
/// # Panics
/// If a request fails or the queue is full.
pub fn measure(queue: &mut dyn Queue, clock: &dyn Clock, workload: Workload, seed: u64) -> Measurement {
    let arena = Arena::private(workload.bytes as usize).expect("memory");
    queue.register(&arena).expect("registered");
    let buffer = arena.allocate(workload.bytes as usize).expect("the arena is ours");
    let geometry = queue.geometry().clone();
    let blocks = workload.bytes / geometry.block_bytes;
    let places = geometry.blocks / u64::from(blocks);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut begun = vec![clock.now(); workload.requests as usize];
    let uncounted = (workload.requests / 10).max(workload.depth);
    let (mut submitted, mut ended) = (0, 0);
    let (mut total, mut longest, mut since) = (Duration::ZERO, Duration::ZERO, clock.now());
    let mut completions = [Completion::EMPTY; 64];
    while ended < workload.requests {
        while submitted < workload.requests && submitted - ended < workload.depth {
            let place = if workload.random { random.u64(..places) } else { u64::from(submitted) % places };
            let lba = Lba(place * u64::from(blocks));
            let request = Request { op: workload.op, ..Request::read(Tag(u64::from(submitted)), lba, blocks) };
            let data = if workload.op.has_data() { &[buffer.span()][..] } else { &[] };
            begun[submitted as usize] = clock.now();
            assert_eq!(queue.submit(&request, data), Submit::Queued, "the queue is less deep than the workload");
            submitted += 1;
        }
        queue.ring();
        let count = queue.poll(&mut completions);
        for completion in &completions[..count] {
            completion.status.expect("a device without faults");
            let took = clock.now().since(begun[completion.tag.0 as usize]);
            ended += 1;
            if ended > uncounted {
                total += took;
                longest = longest.max(took);
            } else if ended == uncounted {
                since = clock.now();
            }
        }
        if count == 0 {
            queue.wait(Duration::from_secs(3600));
        }
    }
    let counted = f64::from(workload.requests - uncounted);
    let iops = counted / clock.now().since(since).as_secs_f64();
    Measurement { iops, mb_s: iops * f64::from(workload.bytes) / 1e6, mean: total.div_f64(counted), longest }
}
