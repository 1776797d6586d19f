//! Precision and cost of models in real time: `cargo run --release -p sim --example real_time`.
//!
//! For each latency: the delay until polling, `wait` and the event report a request; then the cost of an empty poll, of a whole request,
//! and of simulated requests in virtual time.

use std::time::{Duration, Instant};

use block::driver::null::{NullDevice, NullQueue};
use block::{Armed, Completion, Geometry, Op, Queue, Request, Submit, Tag};
use rustix::event::{PollFd, PollFlags, poll};
use sim::device::clock::{Real, VirtualClock};
use sim::device::model::fixed::Reservations;
use sim::device::model::presets::{LATENCIES, NYTRO_5000_400GB};
use sim::device::model::workload::{Workload, measure};
use sim::device::model::{FixedLatency, SsdModel, TimedQueue};

type RealQueue = TimedQueue<NullQueue, Reservations<FixedLatency>, Real>;

fn main() {
    println!("latency   seen by   late: median      p99      max, us");
    for latency in LATENCIES {
        for (name, until) in [("polling", polling as fn(&mut RealQueue)), ("wait", waiting), ("event", event)] {
            let mut late = lateness(latency, until, 2000);
            late.sort_unstable();
            let us = |part: f64| late[(late.len() as f64 * part) as usize].as_nanos() as f64 / 1000.0;
            let latency = latency.as_micros();
            println!("{latency:>4} us   {name:<9} {:>13.2} {:>8.2} {:>8.2}", us(0.5), us(0.99), us(0.9999));
        }
    }
    cost();
}

fn queue(latency: Duration) -> RealQueue {
    TimedQueue::real(NullDevice::new(Geometry::plain(512, 1 << 20)).open_queue(32), FixedLatency(latency)).expect("a timer")
}

fn lateness(latency: Duration, until: fn(&mut RealQueue), count: usize) -> Vec<Duration> {
    let mut queue = queue(latency);
    let one = |tag| {
        let begun = Instant::now();
        assert_eq!(queue.submit(&Request::flush(Tag(tag)), &[]), Submit::Queued);
        until(&mut queue);
        begun.elapsed().saturating_sub(latency)
    };
    (0..count as u64).map(one).collect()
}

fn ended(queue: &mut RealQueue) -> bool {
    queue.poll(&mut [Completion::EMPTY; 4]) > 0
}

fn polling(queue: &mut RealQueue) {
    while !ended(queue) {}
}

fn waiting(queue: &mut RealQueue) {
    while !ended(queue) {
        queue.wait(Duration::from_secs(1));
    }
}

fn event(queue: &mut RealQueue) {
    while !ended(queue) {
        if queue.arm() == Armed::Waiting {
            let event = queue.event().expect("real time has one");
            let _ = poll(&mut [PollFd::new(&event, PollFlags::IN)], None);
        }
    }
}

fn cost() {
    let each = |took: Duration, count: u32| took.as_nanos() as f64 / f64::from(count);
    let median = |name: &str, count: u32, run: &mut dyn FnMut(u32)| {
        let mut runs: Vec<f64> = (0..7)
            .map(|_| {
                let begun = Instant::now();
                run(count);
                each(begun.elapsed(), count)
            })
            .collect();
        runs.sort_by(f64::total_cmp);
        println!("{name}: {:.1} ns (median of 7)", runs[3]);
    };
    let mut idle = queue(Duration::from_secs(3600));
    median("a poll with nothing in flight", 1 << 20, &mut |count| (0..count).for_each(|_| assert!(!ended(&mut idle))));
    assert_eq!(idle.submit(&Request::flush(Tag(1)), &[]), Submit::Queued);
    median("a poll with nothing due", 1 << 20, &mut |count| (0..count).for_each(|_| assert!(!ended(&mut idle))));
    let mut quick = queue(Duration::ZERO);
    median("submit, ring and poll of a request that is due", 1 << 18, &mut |count| {
        for tag in 0..count {
            assert_eq!(quick.submit(&Request::flush(Tag(tag.into())), &[]), Submit::Queued);
            quick.ring();
            assert!(ended(&mut quick));
        }
    });
    median("a random read of the Nytro 5000 at depth 32 in virtual time", 1 << 18, &mut |count| {
        let clock = VirtualClock::default();
        let geometry = NYTRO_5000_400GB.geometry();
        let device = SsdModel::new(NYTRO_5000_400GB.params, &geometry);
        let mut queue = TimedQueue::simulated(NullDevice::new(geometry).open_queue(32), device, &clock);
        measure(&mut queue, &clock, Workload::random(Op::Read, 32, count), 1);
    });
}
