//! One thread that notices completions of many queues, the one due next first.
//!
//! It sleeps until shortly before the next completion is due, looks without pause when it is, blocks on the queues' events when
//! none comes, and when nothing is in flight anywhere it waits to be told. Who submits tells it by [`Waker::submitted`]: two
//! loads and a fence unless it has to be woken.
//!
//! ```text
//!   submitters --- requests ---> queues <--- reap, due next first --- this thread
//!        '---------- Waker::submitted, when it sleeps too long ----------^
//! ```

use std::io;
use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use super::bell::{Bell, SystemBell};
use super::calibrate::Floor;
use super::counters::{Counters, Published};
use super::mode::{Mode, cores};
use super::parking::Parking;
use super::serve::Server;
use super::sleeper::System;
use crate::clock::{Clock, Time};
use crate::queue::Armed;

/// What has completions to be noticed: a queue that several threads may use.
///
/// Whoever submits to it makes the request visible in `expected`, rings the queue's bell, and then calls
/// [`Waker::submitted`].
pub trait Reap: Send + Sync {
    /// Takes what has ended and hands it on; how many. Called by the completion thread; others may at the same time.
    fn reap(&self) -> usize;

    /// When the next completion is worth a look, by the clock of [`Reaper::start`]; a moment in the past if nothing is known, none
    /// only if nothing is in flight. Should not wait for a lock.
    fn expected(&self) -> Option<Time>;

    /// As [`crate::Queue::event`]: the same descriptor each time, open as long as this lives.
    fn event(&self) -> Option<BorrowedFd<'_>>;

    /// As [`crate::Queue::arm`].
    fn arm(&self) -> Armed;
}

/// A queue of the thread, by number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QueueId(u64);

/// How the thread shall be.
#[derive(Clone, Copy, Debug)]
pub struct ReaperOptions {
    /// How it waits while something is in flight.
    pub mode: Mode,
    /// What waking costs.
    pub floor: Floor,
}

impl Default for ReaperOptions {
    /// As is right for this machine.
    fn default() -> Self {
        ReaperOptions { mode: Mode::default_for(cores()), floor: Floor::of_machine() }
    }
}

/// What the thread left behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Leftover {
    /// Nothing was in flight any more.
    Nothing,
    /// So many queues still had requests in flight: their owners have to poll them.
    Queues(usize),
}

/// The thread. Stops when dropped, without waiting for what is in flight.
pub struct Reaper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Tells the thread of requests. Clones are the same.
#[derive(Clone)]
pub struct Waker(Arc<Shared>);

pub(super) struct Shared {
    pub parking: Parking,
    pub bell: SystemBell,
    pub published: Published,
    /// `orders` is worth a look.
    pub ordered: AtomicBool,
    orders: Mutex<Orders>,
    obeyed: Condvar,
}

#[derive(Default)]
pub(super) struct Orders {
    pub queues: Vec<(QueueId, Arc<dyn Reap>)>,
    /// Stop when nothing is in flight, and at this moment at the latest.
    pub stop_by: Option<Time>,
    given: u64,
    /// The thread knows all orders up to this one.
    obeyed: u64,
    ended: bool,
    leftover: usize,
}

impl Waker {
    /// A request that is due then can be seen in the `expected` of its queue.
    #[inline]
    pub fn submitted(&self, due: Time) {
        // 0 is for orders.
        if self.0.parking.must_ring(due.max(Time(1))) {
            self.0.bell.ring();
        }
    }
}

impl Reaper {
    /// Starts the thread. Its queues tell the time by the same clock.
    ///
    /// # Errors
    /// No thread, or no descriptors.
    pub fn start<C: Clock + 'static>(options: ReaperOptions, clock: C) -> io::Result<Reaper> {
        let shared = Arc::new(Shared {
            parking: Parking::default(),
            bell: SystemBell::new()?,
            published: Published::default(),
            ordered: AtomicBool::new(false),
            orders: Mutex::default(),
            obeyed: Condvar::new(),
        });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("hotshelf-reaper".into()).spawn(move || theirs.run(options, clock))?;
        Ok(Reaper { shared, thread: Some(thread) })
    }

    /// To be handed to whoever submits.
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.shared))
    }

    /// Serves one more queue from now on.
    ///
    /// # Errors
    /// Its event cannot be waited for.
    pub fn add(&self, queue: Arc<dyn Reap>) -> io::Result<QueueId> {
        if let Some(event) = queue.event() {
            self.shared.bell.watch(event)?;
        }
        Ok(self.shared.order(|orders| {
            let id = QueueId(orders.given);
            orders.queues.push((id, queue));
            id
        }))
    }

    /// Does not serve it any more. Returns when the thread does not use it; what had ended by then was reaped, what is in flight
    /// its owner has to poll.
    pub fn remove(&self, id: QueueId) -> Option<Arc<dyn Reap>> {
        let removed = self.shared.order(|orders| {
            let at = orders.queues.iter().position(|(other, _)| *other == id)?;
            Some(orders.queues.swap_remove(at).1)
        })?;
        if let Some(event) = removed.event() {
            self.shared.bell.forget(event);
        }
        removed.reap();
        Some(removed)
    }

    /// What it cost so far.
    pub fn counters(&self) -> Counters {
        self.shared.published.read()
    }

    /// Ends the thread when nothing is in flight, or at this moment.
    pub fn stop(mut self, by: Time) -> Leftover {
        if let Err(panic) = self.end(by) {
            std::panic::resume_unwind(panic);
        }
        match self.shared.orders.lock().leftover {
            0 => Leftover::Nothing,
            queues => Leftover::Queues(queues),
        }
    }

    fn end(&mut self, by: Time) -> std::thread::Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.shared.order(|orders| orders.stop_by = Some(by));
        thread.join()
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        // If it has panicked, it has said so.
        let _ = self.end(Time(0));
    }
}

impl Shared {
    /// Gives an order, and waits until the thread knows it.
    fn order<T>(&self, order: impl FnOnce(&mut Orders) -> T) -> T {
        let mut orders = self.orders.lock();
        let answer = order(&mut orders);
        orders.given += 1;
        let given = orders.given;
        self.ordered.store(true, Ordering::Relaxed);
        if self.parking.must_ring(Time(0)) {
            self.bell.ring();
        }
        while orders.obeyed < given && !orders.ended {
            self.obeyed.wait(&mut orders);
        }
        answer
    }

    fn run(&self, options: ReaperOptions, clock: impl Clock) {
        let _ended = Ended(self);
        // Without it sleeps are later.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut server = Server::new(options, clock, System::default());
        loop {
            if self.ordered.swap(false, Ordering::Relaxed) {
                let mut orders = self.orders.lock();
                server.queues.clone_from(&orders.queues);
                server.stop_by = orders.stop_by;
                orders.obeyed = orders.given;
                drop(orders);
                self.obeyed.notify_all();
            }
            server.serve(&self.parking, &self.bell, &|| self.ordered.load(Ordering::Relaxed));
            self.published.publish(&server.counters);
            if server.is_over() {
                self.orders.lock().leftover = server.in_flight();
                return;
            }
        }
    }
}

/// Whoever waits for the thread goes on, also when it has panicked.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.orders.lock().ended = true;
        self.0.obeyed.notify_all();
    }
}
