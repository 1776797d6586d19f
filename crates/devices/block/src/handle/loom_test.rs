//! Tests every interleaving of two or three threads on a shared queue: each request is returned exactly once, and no thread sleeps
//! forever.
//!
//! Loom has no time, so it reports a lost wakeup as a deadlock. The test device completes requests when the test calls `go`, and at
//! once from then on. It signals like an interrupt if it is armed.

use std::collections::VecDeque;
use std::time::Duration;

use loom::sync::Arc;
use loom::thread;

use super::io::{Io, Ticket};
use super::params::Params;
use super::shared::{SharedHandle, SharedQueue};
use crate::buffer::{Arena, Span};
use crate::clock::{Clock, Time};
use crate::error::Error;
use crate::geometry::Geometry;
use crate::queue::{Armed, Doorbell, Queue, Submit};
use crate::request::{Completion, Request};
use crate::sync::{Mutex, Signal};
use crate::tracked::{Timeouts, Tracked};
use crate::units::Tag;

#[derive(Default)]
struct DeviceState {
    going: bool,
    armed: bool,
    /// Submitted, but not rung.
    submitted: Vec<Tag>,
    /// Rung, but not completed.
    rung: Vec<Tag>,
    ended: VecDeque<Completion>,
}

#[derive(Clone)]
struct Device {
    state: Arc<Mutex<DeviceState>>,
    signal: Arc<Signal>,
}

impl Device {
    /// Completes all requests that were rung, and from now on every request at once.
    fn go(&self) {
        let mut state = self.state.lock();
        state.going = true;
        self.end(&mut state, |_| true, Ok(()));
    }

    /// Completes the first request that was rung.
    fn go_one(&self) {
        let mut state = self.state.lock();
        if let Some(&first) = state.rung.first() {
            self.end(&mut state, |tag| tag == first, Ok(()));
        }
    }

    fn take_submitted(&self) {
        let mut state = self.state.lock();
        let mut submitted = std::mem::take(&mut state.submitted);
        state.rung.append(&mut submitted);
        if state.going {
            self.end(&mut state, |_| true, Ok(()));
        }
    }

    fn end(&self, state: &mut DeviceState, which: impl Fn(Tag) -> bool, status: Result<(), Error>) {
        let DeviceState { rung, ended, armed, .. } = state;
        rung.retain(|tag| {
            if which(*tag) {
                ended.push_back(Completion { tag: *tag, status });
            }
            !which(*tag)
        });
        if !ended.is_empty() && std::mem::take(armed) {
            self.signal.set();
        }
    }
}

impl Doorbell for Device {
    fn ring(&self) -> bool {
        self.take_submitted();
        true
    }
}

struct DeviceQueue {
    device: Device,
    geometry: Geometry,
    in_flight: u32,
    /// Whether a thread that does not hold the queue can ring.
    has_bell: bool,
}

impl Queue for DeviceQueue {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }
    fn depth(&self) -> u32 {
        4
    }
    fn register(&mut self, _: &Arena) -> Result<(), Error> {
        Ok(())
    }
    fn submit(&mut self, request: &Request, _: &[Span]) -> Submit {
        self.device.state.lock().submitted.push(request.tag);
        self.in_flight += 1;
        Submit::Queued
    }
    fn ring(&mut self) {
        self.device.take_submitted();
    }
    fn doorbell(&mut self) -> Option<std::sync::Arc<dyn Doorbell>> {
        self.has_bell.then(|| std::sync::Arc::new(self.device.clone()) as _)
    }
    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let mut state = self.device.state.lock();
        let mut count = 0;
        while count < completions.len()
            && let Some(ended) = state.ended.pop_front()
        {
            completions[count] = ended;
            count += 1;
        }
        self.in_flight -= count as u32;
        count
    }
    fn in_flight(&self) -> u32 {
        self.in_flight
    }
    fn wait(&mut self, _: Duration) {}
    fn arm(&mut self) -> Armed {
        let mut state = self.device.state.lock();
        state.armed = state.ended.is_empty();
        if state.armed { Armed::Waiting } else { Armed::Ready }
    }
    fn cancel(&mut self, tag: Tag) {
        self.ring();
        let mut state = self.device.state.lock();
        self.device.end(&mut state, |known| known == tag, Err(Error::Cancelled));
    }
    fn reset(&mut self) -> Result<(), Error> {
        let mut state = self.device.state.lock();
        state.submitted.clear();
        state.rung.clear();
        state.ended.clear();
        self.in_flight = 0;
        Ok(())
    }

    fn owns_buffer(&self, _: Tag) -> bool {
        false
    }

    fn take_released(&mut self) -> Option<Tag> {
        None
    }
}

/// A clock that stands still.
struct Still;

impl Clock for Still {
    fn now(&self) -> Time {
        Time(0)
    }
}

type Shared = Arc<SharedQueue<DeviceQueue, Still>>;
type Handle = SharedHandle<DeviceQueue, Still>;

fn open(has_bell: bool) -> (Device, Shared) {
    let signal = Arc::new(Signal::new().expect("no system call is made"));
    let device = Device { state: Arc::default(), signal: Arc::clone(&signal) };
    let queue = DeviceQueue { device: device.clone(), geometry: Geometry::plain(512, 8), in_flight: 0, has_bell };
    let timeouts = Timeouts { timeout: None, reset_after: None, ..Timeouts::default() };
    let queue = SharedQueue::with_signal(Tracked::with_clock(queue, timeouts, Still), signal).expect("no descriptors");
    (device, queue)
}

fn handle(queue: &Shared, requests_max: u32) -> Handle {
    SharedHandle::new(queue, Params { requests_max, timeout: None, ..Params::default() }).expect("a handle")
}

fn submit(handle: &Handle) -> Ticket {
    handle.submit(Io::flush()).expect("room")
}

/// Explores every interleaving with this many preemptions, for a queue with a doorbell and for one without.
fn explore(switches: usize, test: impl Fn(bool) + Copy + Sync + Send + 'static) {
    for has_bell in [false, true] {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(switches);
        model.check(move || test(has_bell));
    }
}

const EVER: Duration = Duration::MAX;

#[test]
fn loom_two_threads_with_handles_of_their_own() {
    explore(3, |has_bell| {
        let (device, queue) = open(has_bell);
        let (first, second) = (handle(&queue, 1), handle(&queue, 1));
        let thread = thread::spawn(move || {
            let ticket = submit(&first);
            assert_eq!(first.wait(EVER).map(|done| done.ticket), Some(ticket));
            assert!(first.wait(EVER).is_none(), "once, and then there is nothing");
        });
        let ticket = submit(&second);
        device.go();
        assert_eq!(second.wait_for(ticket, EVER).map(|done| done.status), Some(Ok(())));
        thread.join().expect("no panic");
    });
}

#[test]
fn loom_who_sleeps_is_woken_though_another_reaped() {
    explore(2, |has_bell| {
        let (device, queue) = open(has_bell);
        let threads = [(); 2].map(|()| {
            let handle = handle(&queue, 1);
            thread::spawn(move || assert_eq!(handle.run(Io::flush()).status, Ok(())))
        });
        device.go();
        for thread in threads {
            thread.join().expect("no panic");
        }
    });
}

#[test]
fn loom_the_lead_is_passed_on_by_who_leaves() {
    explore(2, |has_bell| {
        let (device, queue) = open(has_bell);
        let other = handle(&queue, 1);
        submit(&other);
        let first = handle(&queue, 1);
        let ticket = submit(&first);
        first.ring();
        let threads = [
            thread::spawn(move || assert_eq!(first.wait_for(ticket, EVER).map(|done| done.status), Some(Ok(())))),
            thread::spawn(move || assert_eq!(other.wait(EVER).map(|done| done.status), Some(Ok(())))),
        ];
        device.go_one();
        device.go();
        for thread in threads {
            thread.join().expect("no panic");
        }
    });
}

#[test]
fn loom_polling_hands_out_what_others_wait_for() {
    explore(3, |has_bell| {
        let (device, queue) = open(has_bell);
        let (waits, polls) = (handle(&queue, 1), handle(&queue, 1));
        device.go();
        let thread = thread::spawn(move || assert_eq!(waits.run(Io::flush()).status, Ok(())));
        assert!(polls.poll().is_none());
        polls.ring();
        submit(&polls);
        assert!(polls.wait(EVER).is_some());
        thread.join().expect("no panic");
    });
}

#[test]
fn loom_one_handle_of_two_threads_gives_each_completion_once() {
    explore(3, |has_bell| {
        let (device, queue) = open(has_bell);
        let common = Arc::new(handle(&queue, 2));
        let mut tickets = vec![submit(&common), submit(&common)];
        let other = Arc::clone(&common);
        let thread = thread::spawn(move || other.wait(EVER).map(|done| done.ticket));
        device.go();
        let mut seen: Vec<_> = common.wait(EVER).map(|done| done.ticket).into_iter().collect();
        seen.extend(thread.join().expect("no panic"));
        seen.extend(std::iter::from_fn(|| common.wait(EVER)).map(|done| done.ticket));
        seen.sort();
        tickets.sort();
        assert_eq!(seen, tickets);
    });
}

#[test]
fn loom_synchronous_calls_take_turns_at_the_last_place() {
    explore(2, |has_bell| {
        let (device, queue) = open(has_bell);
        device.go();
        let common = Arc::new(handle(&queue, 1));
        submit(&common);
        let other = Arc::clone(&common);
        let thread = thread::spawn(move || assert_eq!(other.run(Io::flush()).status, Ok(())));
        assert_eq!(common.run(Io::flush()).status, Ok(()));
        thread.join().expect("no panic");
        assert!(common.wait(EVER).is_some());
    });
}

#[test]
fn loom_cancel_ends_what_another_waits_for() {
    explore(3, |has_bell| {
        let (_device, queue) = open(has_bell);
        let common = Arc::new(handle(&queue, 1));
        let ticket = submit(&common);
        let other = Arc::clone(&common);
        let thread = thread::spawn(move || other.wait_for(ticket, EVER).expect("cancelled").status);
        assert!(common.cancel(ticket));
        assert_eq!(thread.join().expect("no panic"), Err(Error::Cancelled));
    });
}

#[test]
fn loom_reset_ends_what_others_wait_for() {
    explore(3, |has_bell| {
        let (device, queue) = open(has_bell);
        let handle = handle(&queue, 1);
        let thread = thread::spawn(move || {
            submit(&handle);
            handle.wait(EVER).expect("it ends").status
        });
        queue.reset().expect("it can");
        device.go();
        assert!(matches!(thread.join().expect("no panic"), Err(Error::Reset) | Ok(())));
    });
}

#[test]
fn loom_a_dropped_handle_leaves_its_requests_to_who_polls() {
    explore(3, |has_bell| {
        let (device, queue) = open(has_bell);
        let (dropped, stays) = (handle(&queue, 1), handle(&queue, 1));
        let thread = thread::spawn(move || {
            submit(&dropped);
            dropped.ring();
        });
        device.go();
        assert_eq!(stays.run(Io::flush()).status, Ok(()));
        thread.join().expect("no panic");
        drop(stays);
        assert_eq!(Arc::strong_count(&queue), 1);
    });
}
