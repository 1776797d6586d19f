//! Tests queues with a descriptor: no thread polls without need, and the device's thread wakes sleeping threads.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use block::handle::{Io, Selector};
use block::tracked::{Timeouts, Tracked};
use block::{Arena, Armed, Completion, Error, Geometry, Handle, Params, Queue, Request, SharedHandle, SharedQueue, Span, Submit, Tag};
use rustix::event::{EventfdFlags, eventfd};

/// A device whose thread completes each request after some time.
struct Evented {
    geometry: Geometry,
    submitted: Vec<Tag>,
    to_device: mpsc::Sender<Tag>,
    ended: Arc<Mutex<Vec<Tag>>>,
    event: Arc<OwnedFd>,
    in_flight: u32,
}

fn open() -> Evented {
    let (to_device, tags) = mpsc::channel::<Tag>();
    let ended = Arc::new(Mutex::new(Vec::new()));
    let event = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("a descriptor"));
    let (list, signal) = (Arc::clone(&ended), Arc::clone(&event));
    std::thread::spawn(move || {
        for tag in tags {
            std::thread::yield_now();
            list.lock().expect("no panic").push(tag);
            rustix::io::write(&signal, &1_u64.to_ne_bytes()).expect("room");
        }
    });
    Evented { geometry: Geometry::plain(512, 8), submitted: Vec::new(), to_device, ended, event, in_flight: 0 }
}

impl Queue for Evented {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }
    fn depth(&self) -> u32 {
        8
    }
    fn register(&mut self, _: &Arena) -> Result<(), Error> {
        Ok(())
    }
    fn submit(&mut self, request: &Request, _: &[Span]) -> Submit {
        self.submitted.push(request.tag);
        self.in_flight += 1;
        Submit::Queued
    }
    fn ring(&mut self) {
        self.submitted.drain(..).for_each(|tag| self.to_device.send(tag).expect("it lives as long as we"));
    }
    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let mut ended = self.ended.lock().expect("no panic");
        let count = completions.len().min(ended.len());
        for (place, tag) in completions.iter_mut().zip(ended.drain(..count)) {
            *place = Completion { tag, status: Ok(()) };
        }
        self.in_flight -= count as u32;
        count
    }
    fn in_flight(&self) -> u32 {
        self.in_flight
    }
    fn wait(&mut self, _: Duration) {
        self.ring();
    }
    fn event(&self) -> Option<BorrowedFd<'_>> {
        Some(self.event.as_fd())
    }
    fn arm(&mut self) -> Armed {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        if self.ended.lock().expect("no panic").is_empty() { Armed::Waiting } else { Armed::Ready }
    }
    fn cancel(&mut self, _: Tag) {}
    fn reset(&mut self) -> Result<(), Error> {
        Err(Error::Gone)
    }

    fn owns_buffer(&self, _: Tag) -> bool {
        false
    }

    fn take_released(&mut self) -> Option<Tag> {
        None
    }
}

const ROUNDS: u64 = 300;

#[test]
fn several_queues_are_waited_for_together() {
    let queues = (0..3).map(|_| Tracked::new(open(), Timeouts::default())).collect();
    let mut handle = Handle::over(queues, Selector::RoundRobin, Params::default()).expect("a handle");
    for round in 0..ROUNDS {
        for n in 0..round % 9 {
            handle.submit(Io::flush().user(n)).expect("room");
        }
        let mut users: Vec<u64> = std::iter::from_fn(|| handle.wait(Duration::MAX)).map(|done| done.user).collect();
        users.sort_unstable();
        assert_eq!(users, (0..round % 9).collect::<Vec<_>>());
    }
}

#[test]
fn threads_that_share_a_queue_lead_and_follow() {
    let queue = SharedQueue::new(open(), &Params::default()).expect("a queue");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let queue = &queue;
            scope.spawn(move || {
                let handle = SharedHandle::new(queue, Params::default()).expect("a handle");
                for round in 0..ROUNDS {
                    let ticket = handle.submit(Io::flush().user(round)).expect("room");
                    assert_eq!(handle.run(Io::flush()).status, Ok(()));
                    assert_eq!(handle.wait_for(ticket, Duration::MAX).map(|done| done.user), Some(round));
                }
            });
        }
    });
}
