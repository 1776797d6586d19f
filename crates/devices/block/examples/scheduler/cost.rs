//! The software cost of schedulers, measured with a device that does nothing.

use std::time::Instant;

use block::driver::NullDevice;
use block::scheduler::{self, Options};
use block::{Arena, Completion, Geometry, Lba, Queue, Request, Scheduler, Submit, Tag};

/// The order of the blocks that are read.
#[derive(Clone, Copy, Debug)]
pub enum Pattern {
    Random,
    Sequential,
}

const BLOCKS: u64 = 1 << 30;

/// Returns the nanoseconds per request: batches of 4 KiB reads, each submitted, rung and polled until it is done.
pub fn run(scheduler: Scheduler, batch: u64, pattern: Pattern, requests: u64) -> f64 {
    let device = NullDevice::new(Geometry::plain(512, BLOCKS));
    let options = Options { dispatch_depth: Some(32), ..Options::of(scheduler) };
    let mut queue = scheduler::open(device.open_queue(128), &options);
    let arena = Arena::private(1 << 20).expect("memory");
    queue.register(&arena).expect("registered");
    let spans: Vec<_> = (0..batch).map(|slot| arena.span(usize::try_from(slot).expect("small") * 8192, 4096)).collect();
    let mut random = fastrand::Rng::with_seed(5);
    let lbas: Vec<u64> = (0..1024).map(|at| if matches!(pattern, Pattern::Random) { random.u64(..BLOCKS - 8) } else { at * 8 }).collect();
    let mut ended = [Completion::EMPTY; 64];
    let begin = Instant::now();
    let mut done = 0;
    while done < requests {
        for slot in 0..batch {
            let lba = lbas[usize::try_from((done + slot) % 1024).expect("small")];
            let data = &spans[usize::try_from(slot).expect("small")..][..1];
            assert_eq!(queue.submit(&Request::read(Tag(slot), Lba(lba), 8), data), Submit::Queued);
        }
        queue.ring();
        while queue.in_flight() > 0 {
            let count = queue.poll(&mut ended);
            std::hint::black_box(&ended[..count]);
        }
        done += batch;
    }
    begin.elapsed().as_secs_f64() * 1e9 / done as f64
}

/// Prints the cost of each scheduler and its difference to `none`.
pub fn compare() {
    println!("ns per request above a null device, medians of 9 (and what each adds to none)");
    for (batch, pattern) in [(32, Pattern::Random), (32, Pattern::Sequential), (1, Pattern::Random)] {
        let mut seen: Vec<(Scheduler, Vec<f64>)> = Scheduler::ALL.map(|scheduler| (scheduler, Vec::new())).into();
        for _ in 0..9 {
            for (scheduler, figures) in &mut seen {
                figures.push(run(*scheduler, batch, pattern, 400_000));
            }
        }
        let mut none = 0.0;
        for (scheduler, mut figures) in seen {
            figures.sort_by(f64::total_cmp);
            let median = figures[figures.len() / 2];
            if scheduler == Scheduler::None {
                none = median;
            }
            println!("  {pattern:?} batch {batch:<2} {:<9} {median:6.1}  +{:.1}", scheduler.name(), median - none);
        }
    }
}
