//! The workloads of data sheets, and what a device makes of them.

use std::time::Duration;

use block::{Arena, Clock, Completion, Lba, Op, Queue, Request, Submit, Tag};

/// One kind of request, at one depth.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// What.
    pub op: Op,
    /// At random places, else one after the other from the first block on.
    pub random: bool,
    /// Bytes of one request.
    pub bytes: u32,
    /// Requests in flight.
    pub depth: u32,
    /// How many; the first tenth is not counted, but at least the first `depth`.
    pub requests: u32,
}

impl Workload {
    /// Random requests of 4 KiB.
    pub fn random(op: Op, depth: u32, requests: u32) -> Workload {
        Workload { op, random: true, bytes: 4096, depth, requests }
    }

    /// Sequential requests of 128 KiB.
    pub fn sequential(op: Op, depth: u32, requests: u32) -> Workload {
        Workload { op, random: false, bytes: 128 << 10, depth, requests }
    }
}

/// What came out.
#[derive(Clone, Copy, Debug)]
pub struct Measurement {
    /// Requests per second.
    pub iops: f64,
    /// 10^6 bytes per second.
    pub mb_s: f64,
    /// Mean time of a request.
    pub mean: Duration,
    /// The longest.
    pub longest: Duration,
}

/// Runs a workload. A request that fails or a queue that takes none is our own mistake. Allocates its memory at the begin.
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
