//! A thread for each device: it owns the device's queues, and serves the rings of all clients round robin.
//!
//! The thread polls while there is work and for a short time after. Then it arms the notifiers of every ring and every device
//! queue, checks once more, and sleeps in epoll until one is signalled.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::net::RecvFlags;

use super::entry::Ended;
use super::grant::{GrantId, GrantSpec};
use super::pace::Pace;
use super::served::{Drain, Drained, Seed, Served, Turn};
use crate::buffer::Arena;
use crate::clock::{Clock, Monotonic, Time};
use crate::device::{Device, QueueOptions};
use crate::error::Error;

/// The poll interval for a device queue that has requests in flight but no event to wait for.
const BLIND_POLL: Duration = Duration::from_millis(1);

/// An order that another thread sends to a device thread.
pub(super) enum Order {
    /// Opens a queue; the reply is the reason if that failed.
    Open { seed: Box<Seed>, terms: GrantSpec, answer: SyncSender<Result<(), String>> },
    /// Registers memory with open queues.
    Register { queues: Vec<u64>, arena: Arena, answer: SyncSender<Result<(), Error>> },
    /// Drains a queue. An unknown queue counts as drained.
    Drain { queue: u64, why: Drain, answer: Drained },
    /// Drains all queues, then ends the thread.
    End,
}

/// The handle through which other threads reach a device thread.
pub(super) struct DeviceThread {
    mailbox: Arc<Mailbox>,
    thread: Mutex<Option<JoinHandle<()>>>,
    device: Arc<dyn Device>,
}

struct Mailbox {
    /// `None` after the thread has ended: orders are then dropped, and their senders see a closed channel.
    orders: Mutex<Option<Vec<Order>>>,
    some: AtomicBool,
    /// Private to this process: a client has no copy.
    wake: OwnedFd,
}

impl DeviceThread {
    /// Starts the thread of a device. The thread polls for `spin` before it sleeps, and gives the device `reset_timeout` to cancel
    /// requests.
    pub(super) fn start(name: &str, device: Arc<dyn Device>, spin: Duration, reset_timeout: Duration) -> std::io::Result<DeviceThread> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let mailbox = Arc::new(Mailbox { orders: Mutex::new(Some(Vec::new())), some: AtomicBool::new(false), wake });
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &mailbox.wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        let mut served = Serving {
            device: device.clone(),
            mailbox: mailbox.clone(),
            epoll,
            spin,
            reset_timeout,
            clock: Monotonic::default(),
            queues: Vec::new(),
            paces: Vec::new(),
            lost: Vec::new(),
            ending: false,
        };
        let label = format!("device {}", name.rsplit('/').next().unwrap_or(name));
        let thread = std::thread::Builder::new().name(label).spawn(move || {
            let _abort = AbortOnPanic;
            served.run();
        })?;
        Ok(DeviceThread { mailbox, thread: Mutex::new(Some(thread)), device })
    }

    pub(super) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    pub(super) fn order(&self, order: Order) {
        match &mut *self.mailbox.orders.lock() {
            Some(orders) => orders.push(order),
            None => return,
        }
        self.mailbox.some.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.mailbox.wake, &1_u64.to_ne_bytes());
    }

    /// Drains a queue, and waits until it is drained.
    pub(super) fn drain(&self, queue: u64, why: Drain) -> Result<(), Error> {
        let (answer, drained) = sync_channel(1);
        self.order(Order::Drain { queue, why, answer });
        drained.recv().unwrap_or(Err(Error::Gone))
    }

    /// Drains all queues, and waits until the thread has ended.
    pub(super) fn end(&self) {
        self.order(Order::End);
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

/// Aborts the process if a device thread panics: its clients would wait for ever. The kernel then closes their sockets.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// The epoll data of the mailbox. Other values hold a queue ID, and in the lowest bit whether the event is the device's or the client's.
const WAKE: u64 = u64::MAX;

struct Serving {
    device: Arc<dyn Device>,
    mailbox: Arc<Mailbox>,
    epoll: OwnedFd,
    spin: Duration,
    reset_timeout: Duration,
    clock: Monotonic,
    queues: Vec<Served>,
    /// Rate limits by grant, with the number of queues that use each.
    paces: Vec<(GrantId, Pace, u32)>,
    /// Closed queues whose memory the device may still access.
    lost: Vec<Served>,
    ending: bool,
}

impl Serving {
    fn run(&mut self) {
        let mut idle_since = None;
        loop {
            self.take_orders();
            if self.ending && self.queues.is_empty() {
                self.mailbox.orders.lock().take();
                // The memory of lost queues stays mapped until the process ends.
                let _ = std::mem::take(&mut self.lost).leak();
                return;
            }
            let now = self.clock.now();
            if self.turn_all(now) {
                idle_since = None;
                continue;
            }
            let since = *idle_since.get_or_insert(now);
            if now.since(since) < self.spin && !self.queues.is_empty() {
                std::hint::spin_loop();
                continue;
            }
            self.sleep();
        }
    }

    fn turn_all(&mut self, now: Time) -> bool {
        let mut moved = false;
        let mut index = 0;
        while index < self.queues.len() {
            let queue = &mut self.queues[index];
            let grant = queue.place().info.grant;
            let pace = self.paces.iter_mut().find(|(id, ..)| *id == grant).map(|(_, pace, _)| pace);
            match queue.turn(now, pace.expect("a pace for each queue's grant")) {
                Turn::Idle => index += 1,
                Turn::Moved => {
                    moved = true;
                    index += 1;
                }
                turn @ (Turn::Over | Turn::Lost) => {
                    moved = true;
                    self.remove(index, turn);
                }
            }
        }
        moved
    }

    fn remove(&mut self, index: usize, turn: Turn) {
        let mut queue = self.queues.swap_remove(index);
        let (id, grant) = (queue.place().info.id, queue.place().info.grant);
        let _ = epoll::delete(&self.epoll, queue.bell());
        if let Some(event) = queue.queue().event() {
            let _ = epoll::delete(&self.epoll, event);
        }
        if let Some(at) = self.paces.iter().position(|(id, ..)| *id == grant) {
            self.paces[at].2 -= 1;
        }
        if turn == Turn::Lost {
            tracing::error!(queue = id, "the device does not let go of a queue's memory: it is kept, and its place in the quota too");
            self.lost.push(queue);
        }
    }

    fn sleep(&mut self) {
        // All queues are armed, also those after one that is ready.
        let ready = self.queues.iter_mut().filter_map(|queue| (!queue.sleep()).then_some(())).count() > 0;
        if !ready && !self.mailbox.some.load(Ordering::Acquire) {
            self.wait();
        }
        self.queues.iter_mut().for_each(Served::wake);
    }

    fn wait(&mut self) {
        let now = self.clock.now();
        let mut limit = self.queues.iter().map(Served::due).min().filter(|due| due.0 != u64::MAX).map(|due| due.since(now));
        if self.queues.iter_mut().any(|queue| queue.is_in_flight() && queue.queue().event().is_none()) {
            limit = Some(limit.map_or(BLIND_POLL, |limit| limit.min(BLIND_POLL)));
        }
        let limit = limit.map(|limit| Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) });
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 32];
        let count = epoll::wait(&self.epoll, &mut events, limit.as_ref()).unwrap_or(0);
        for event in &events[..count] {
            let id = event.data.u64();
            if id == WAKE {
                let _ = rustix::io::read(&self.mailbox.wake, &mut [0; 8]);
            } else if id & 1 == 0 {
                self.hear(id >> 1);
            }
        }
    }

    /// Drains a client's notifier. If the client closed it, the client is gone or wants no notifications; its connection shows
    /// which.
    fn hear(&mut self, id: u64) {
        let Some(queue) = self.queues.iter().find(|queue| queue.place().info.id == id) else { return };
        let heard = rustix::net::recv(queue.bell(), &mut [0; 64], RecvFlags::DONTWAIT);
        if matches!(heard, Ok((_, 0))) || heard.is_err_and(|error| error != rustix::io::Errno::AGAIN) {
            let _ = epoll::delete(&self.epoll, queue.bell());
            self.drain(id, Drain::End(Ended::Closed), None);
        }
    }

    fn drain(&mut self, id: u64, why: Drain, answer: Option<Drained>) {
        let now = self.clock.now();
        match self.queues.iter_mut().find(|queue| queue.place().info.id == id) {
            Some(queue) => queue.drain(now, why, answer),
            None => {
                let lost = self.lost.iter().any(|queue| queue.place().info.id == id);
                answer.and_then(|answer| answer.try_send(if lost { Err(Error::Gone) } else { Ok(()) }).ok());
            }
        }
    }

    fn take_orders(&mut self) {
        if !self.mailbox.some.swap(false, Ordering::AcqRel) {
            return;
        }
        let orders = self.mailbox.orders.lock().as_mut().map(std::mem::take);
        for order in orders.into_iter().flatten() {
            match order {
                Order::Open { seed, terms, answer } => {
                    let _ = answer.try_send(self.open(*seed, &terms));
                }
                Order::Register { queues, arena, answer } => {
                    let mut known = self.queues.iter_mut().filter(|queue| queues.contains(&queue.place().info.id));
                    let _ = answer.try_send(known.try_for_each(|queue| queue.register(&arena)));
                }
                Order::Drain { queue, why, answer } => self.drain(queue, why, Some(answer)),
                Order::End => {
                    self.ending = true;
                    let now = self.clock.now();
                    self.queues.iter_mut().for_each(|queue| queue.drain(now, Drain::End(Ended::BrokerEnds), None));
                }
            }
        }
    }

    fn open(&mut self, seed: Seed, terms: &GrantSpec) -> Result<(), String> {
        if self.ending {
            return Err(Ended::BrokerEnds.to_string());
        }
        // The queue is opened, used and dropped on this thread.
        let options = QueueOptions { depth: seed.layout.depth, single_issuer: true, ..QueueOptions::default() };
        let queue = self.device.queue(&options).map_err(|error| error.to_string())?;
        let mut served = Served::new(queue, seed, self.reset_timeout).map_err(|error| format!("registering memory: {error}"))?;
        let (id, grant) = (served.place().info.id, served.place().info.grant);
        let listen = |fd: BorrowedFd<'_>, data| epoll::add(&self.epoll, fd, EventData::new_u64(data), EventFlags::IN);
        listen(served.bell().as_fd(), id << 1).map_err(|error| format!("listening to the notifier: {error}"))?;
        if let Some(event) = served.queue().event() {
            listen(event, id << 1 | 1).map_err(|error| format!("listening to the device: {error}"))?;
        }
        // Limits are dropped only now: closing and reopening a queue must not raise its rate.
        let now = self.clock.now();
        self.paces.retain(|(_, pace, users)| *users > 0 || !pace.is_paid(now));
        match self.paces.iter_mut().find(|(id, ..)| *id == grant) {
            Some((_, _, users)) => *users += 1,
            None => self.paces.push((grant, Pace::new(terms), 1)),
        }
        self.queues.push(served);
        Ok(())
    }
}
