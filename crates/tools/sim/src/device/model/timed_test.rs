//! Tests the queue contract of a model in virtual and in real time.

use std::time::Duration;

use block::driver::MemoryDevice;
use block::driver::memory::MemoryQueue;
use block::{Arena, Armed, Clock, Completion, Error, Lba, Queue, Request, Submit, Tag, Time};
use rustix::event::{PollFd, PollFlags, poll};

use super::fixed::Reservations;
use super::{FixedLatency, TimedQueue};
use crate::device::clock::{Real, Virtual, VirtualClock};

const US: Duration = Duration::from_micros(1);

fn memory() -> (MemoryDevice, Arena) {
    (MemoryDevice::new(512, 1 << 16).expect("memory"), Arena::private(1 << 16).expect("memory"))
}

fn simulated(
    device: &MemoryDevice,
    clock: &VirtualClock,
    latency: Duration,
) -> TimedQueue<MemoryQueue, Reservations<FixedLatency>, Virtual> {
    TimedQueue::simulated(device.open_queue(4), FixedLatency(latency), clock)
}

fn submit(queue: &mut dyn Queue, request: Request, arena: &Arena) -> Submit {
    let span = [arena.span(0, 512 * request.blocks)];
    queue.submit(&request, if request.op.has_data() { &span } else { &[] })
}

fn one(queue: &mut dyn Queue) -> Option<Completion> {
    let mut one = [Completion::EMPTY; 1];
    (queue.poll(&mut one) == 1).then_some(one[0])
}

#[test]
fn nothing_happens_before_its_time() {
    let (device, arena) = memory();
    let clock = VirtualClock::default();
    let mut queue = simulated(&device, &clock, 10 * US);
    queue.register(&arena).expect("registered");
    arena.region().fill(0..512, 7);
    assert_eq!(submit(&mut queue, Request::write(Tag(1), Lba(3), 1), &arena), Submit::Queued);
    clock.advance(9 * US);
    assert_eq!((one(&mut queue), device.region().u32(3 * 512).load(std::sync::atomic::Ordering::Relaxed)), (None, 0));
    queue.wait(Duration::from_secs(1));
    assert_eq!(clock.now(), Time(10_000));
    assert_eq!(one(&mut queue), Some(Completion { tag: Tag(1), status: Ok(()) }));
    assert_eq!(device.region().u32(3 * 512).load(std::sync::atomic::Ordering::Relaxed), 0x0707_0707);
    assert_eq!(submit(&mut queue, Request::read(Tag(2), Lba(128), 1), &arena), Submit::Queued);
    assert_eq!(one(&mut queue), Some(Completion { tag: Tag(2), status: Err(Error::OutOfRange) }), "refused at once");
}

#[test]
fn full_cancelled_and_reset_as_the_contract_says() {
    let (device, arena) = memory();
    let clock = VirtualClock::default();
    let mut queue = simulated(&device, &clock, 10 * US);
    queue.register(&arena).expect("registered");
    for tag in 0..4 {
        assert_eq!(submit(&mut queue, Request::write(Tag(tag), Lba(tag), 1), &arena), Submit::Queued);
    }
    queue.cancel(Tag(2));
    queue.cancel(Tag(9));
    assert_eq!(submit(&mut queue, Request::write(Tag(4), Lba(4), 1), &arena), Submit::Full, "the cancelled one is not reported yet");
    assert_eq!(one(&mut queue), Some(Completion { tag: Tag(2), status: Err(Error::Cancelled) }));
    assert_eq!((submit(&mut queue, Request::flush(Tag(5)), &arena), queue.in_flight()), (Submit::Queued, 4));
    assert_eq!(queue.reset(), Ok(()));
    clock.advance(100 * US);
    assert_eq!((one(&mut queue), queue.in_flight()), (None, 0));
    queue.wait(Duration::MAX);
    assert_eq!(clock.now(), Time(100_000), "there is nothing to wait for");
}

#[test]
fn queues_on_one_clock_take_turns() {
    let (device, arena) = memory();
    let clock = VirtualClock::default();
    let mut slow = simulated(&device, &clock, 100 * US);
    let mut fast = simulated(&device, &clock, 30 * US);
    assert_eq!(submit(&mut slow, Request::flush(Tag(1)), &arena), Submit::Queued);
    assert_eq!(submit(&mut fast, Request::flush(Tag(2)), &arena), Submit::Queued);
    slow.wait(Duration::from_secs(1));
    assert_eq!((clock.now(), one(&mut slow)), (Time(30_000), None), "something ends on the other queue");
    assert!(one(&mut fast).is_some());
    slow.wait(Duration::from_secs(1));
    assert_eq!((clock.now(), one(&mut slow).is_some()), (Time(100_000), true));
}

#[test]
fn the_event_of_real_time_comes_for_what_was_submitted_before_and_after_arming() {
    let (device, arena) = memory();
    let mut queue = TimedQueue::new(device.open_queue(4), Reservations::new(FixedLatency(200 * US), 4), Real::new().expect("a timer"));
    let wait = |queue: &TimedQueue<MemoryQueue, Reservations<FixedLatency>, Real>| {
        let event = queue.event().expect("real time has one");
        assert_eq!(poll(&mut [PollFd::new(&event, PollFlags::IN)], None), Ok(1));
    };
    assert_eq!(submit(&mut queue, Request::flush(Tag(1)), &arena), Submit::Queued);
    if queue.arm() == Armed::Waiting {
        wait(&queue);
    }
    assert!(one(&mut queue).is_some());
    assert_eq!(queue.arm(), Armed::Waiting, "nothing is in flight");
    assert_eq!(submit(&mut queue, Request::flush(Tag(2)), &arena), Submit::Queued);
    queue.ring();
    wait(&queue);
    assert_eq!(one(&mut queue).map(|completion| completion.tag), Some(Tag(2)));
    let begun = queue.timing().now();
    assert_eq!(submit(&mut queue, Request::flush(Tag(3)), &arena), Submit::Queued);
    while one(&mut queue).is_none() {
        queue.wait(Duration::from_secs(10));
    }
    assert!(queue.timing().now().since(begun) >= 200 * US, "never too early");
}
