//! Measures the software cost of a request: submit and poll through a handle, with a device that does nothing.
//!
//! `handle_cost` prints a table, medians of many alternating runs. `handle_cost CASE BATCH REQUESTS` only executes that many requests,
//! for counting instructions (bench/handle-cost.sh).

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Duration;

use block::driver::NullDevice;
use block::handle::{Data, Done, Io};
use block::tracked::{Timeouts, Tracked};
use block::{Arena, Buf, Completion, Geometry, Handle, Lba, Params, Queue, QueueOptions, Request, SharedHandle, SharedQueue, Submit, Tag};

const DEPTH: u32 = 32;
const BLOCKS: u64 = 1 << 20;
/// The number of requests per measurement, and of measurements.
const REQUESTS: u32 = 64_000;
const RUNS: usize = 41;

/// Executes a number of requests, in batches; the arguments are batch size and number.
type Case = Box<dyn FnMut(u32, u32)>;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let mut cases = cases();
    if let [case, batch, requests] = args.as_slice() {
        let (_, run) = cases.iter_mut().find(|(name, _)| name == case).expect("a case of the table");
        return run(batch.parse().expect("a number"), requests.parse().expect("a number"));
    }
    println!("{:<22} {:>12} {:>12}   ns of CPU time per request, medians of {RUNS} runs", "", "batch of 32", "depth 1");
    let mut seen = vec![[Vec::new(), Vec::new()]; cases.len()];
    for _ in 0..RUNS {
        for ((_, run), seen) in cases.iter_mut().zip(&mut seen) {
            for (batch, seen) in [DEPTH, 1].into_iter().zip(seen) {
                let begin = cpu_ns();
                run(batch, REQUESTS);
                seen.push((cpu_ns() - begin) as f64 / f64::from(REQUESTS));
            }
        }
    }
    for ((name, _), seen) in cases.iter().zip(&mut seen) {
        let [batch, single] = seen.each_mut().map(|values| median(values));
        println!("{name:<22} {batch:>12.1} {single:>12.1}");
    }
}

/// Returns the CPU time of this thread, which other threads do not influence.
fn cpu_ns() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn null() -> NullDevice {
    NullDevice::new(Geometry::plain(4096, BLOCKS))
}

fn cases() -> Vec<(&'static str, Case)> {
    let boxed = || block::Device::queue(&null(), &QueueOptions { depth: DEPTH, ..QueueOptions::default() }).expect("a queue");
    let never = Params { timeout: None, ..Params::default() };
    vec![
        ("tracked", tracked()),
        ("dedicated", dedicated(null().open_queue(DEPTH), Params::default())),
        ("dedicated-no-deadline", dedicated(null().open_queue(DEPTH), never)),
        ("dedicated-dyn", dedicated(boxed(), Params::default())),
        ("shared", shared()),
        ("shared-batch", shared_batch()),
        ("synchronous", synchronous()),
    ]
}

fn buffers() -> (Arena, Vec<Buf>) {
    let arena = Arena::private(4096 * DEPTH as usize).expect("memory");
    let buffers = (0..DEPTH).map(|_| arena.allocate(4096).expect("room")).collect();
    (arena, buffers)
}

/// Returns pseudorandom blocks across the device.
#[inline]
fn next(lba: &mut u64) -> Lba {
    *lba = lba.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    Lba(*lba >> 44)
}

#[inline]
fn give(done: Done, to: &mut Vec<Buf>) {
    assert!(done.status.is_ok());
    if let Data::Buf(buf) = done.data {
        to.push(buf);
    }
}

/// Measures the tracked queue without a handle.
fn tracked() -> Case {
    let mut queue = Tracked::new(null().open_queue(DEPTH), Timeouts::default());
    let (_, buffers) = buffers();
    let mut lba = 1;
    let mut ended = [Completion::EMPTY; DEPTH as usize];
    Box::new(move |batch, requests| {
        for _ in 0..requests / batch {
            for n in 0..batch {
                let request = Request::read(Tag(u64::from(n)), next(&mut lba), 1);
                assert_eq!(queue.submit(&request, &[buffers[n as usize].span()]), Submit::Queued);
            }
            queue.ring();
            assert_eq!(queue.poll(&mut ended), batch as usize);
            black_box(&ended);
        }
    })
}

fn dedicated<Q: Queue + 'static>(queue: Q, params: Params) -> Case {
    let mut handle = Handle::new(queue, params).expect("a handle");
    let (arena, mut buffers) = buffers();
    handle.register(&arena).expect("registered");
    let mut lba = 1;
    Box::new(move |batch, requests| {
        for _ in 0..requests / batch {
            for _ in 0..batch {
                let buf = buffers.pop().expect("enough");
                handle.submit(Io::read(next(&mut lba), buf)).expect("room");
            }
            for _ in 0..batch {
                give(handle.poll().expect("done at once"), &mut buffers);
            }
        }
    })
}

fn shared() -> Case {
    let queue = SharedQueue::new(null().open_queue(DEPTH), &Params::default()).expect("a queue");
    let handle = SharedHandle::new(&queue, Params::default()).expect("a handle");
    let (_, mut buffers) = buffers();
    let mut lba = 1;
    Box::new(move |batch, requests| {
        for _ in 0..requests / batch {
            for _ in 0..batch {
                let buf = buffers.pop().expect("enough");
                handle.submit(Io::read(next(&mut lba), buf)).expect("room");
            }
            for _ in 0..batch {
                give(handle.poll().expect("done at once"), &mut buffers);
            }
        }
    })
}

fn shared_batch() -> Case {
    let queue = SharedQueue::new(null().open_queue(DEPTH), &Params::default()).expect("a queue");
    let handle = SharedHandle::new(&queue, Params::default()).expect("a handle");
    let (_, mut buffers) = buffers();
    let mut lba = 1;
    let mut ios = VecDeque::with_capacity(DEPTH as usize);
    let (mut tickets, mut done) = (Vec::with_capacity(DEPTH as usize), Vec::with_capacity(DEPTH as usize));
    Box::new(move |batch, requests| {
        for _ in 0..requests / batch {
            ios.extend((0..batch).map(|_| Io::read(next(&mut lba), buffers.pop().expect("enough"))));
            handle.submit_batch(&mut ios, &mut tickets);
            handle.poll_batch(&mut done);
            assert_eq!(done.len(), batch as usize);
            tickets.clear();
            for done in done.drain(..) {
                give(done, &mut buffers);
            }
        }
    })
}

/// Executes one request at a time, whatever the batch size.
fn synchronous() -> Case {
    let mut handle = Handle::new(null().open_queue(DEPTH), Params::default()).expect("a handle");
    let (_, mut buffers) = buffers();
    let mut lba = 1;
    Box::new(move |_, requests| {
        for _ in 0..requests {
            let buf = buffers.pop().expect("enough");
            let done = handle.run(Io::read(next(&mut lba), buf));
            give(done, &mut buffers);
        }
        black_box(handle.wait(Duration::ZERO));
    })
}
