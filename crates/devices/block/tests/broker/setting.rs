//! A broker over devices in memory, with helpers for the tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use block::broker::client::Admin;
use block::broker::{BrokerDevice, BrokerError, ConnectOptions, GrantId, GrantSpec, Journal, Refusal, Server, ServerOptions, Who};
use block::driver::MemoryDevice;
use block::{Completion, Device, Error, Geometry, OpenError, Queue, QueueOptions, Request, Span, Submit, Tag};

/// The size of the device in blocks.
pub const BLOCKS: u64 = 4096;
/// The name of the device at the broker.
pub const DEVICE: &str = "memory";

/// Returns the user ID of this process.
pub fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A device whose queues hold requests back while `hold` is set; they can still be cancelled. With `stuck`, a cancel has no effect
/// and
/// a reset fails.
#[derive(Clone)]
pub struct Holding {
    /// The device that executes the requests.
    pub memory: MemoryDevice,
    /// Whether the queues hold requests back.
    pub hold: Arc<AtomicBool>,
    /// Whether cancel has no effect and reset fails.
    pub stuck: Arc<AtomicBool>,
    /// The number of requests that it has accepted.
    pub taken: Arc<AtomicU64>,
}

struct HoldingQueue {
    device: Holding,
    below: block::driver::memory::MemoryQueue,
    held: Vec<(Request, Vec<Span>)>,
    ended: Vec<Completion>,
}

impl Holding {
    /// Makes a device that holds nothing back.
    pub fn new() -> Holding {
        let memory = MemoryDevice::new(512, BLOCKS * 512).expect("memory");
        Holding { memory, hold: Arc::default(), stuck: Arc::default(), taken: Arc::default() }
    }
}

impl Device for Holding {
    fn geometry(&self) -> &Geometry {
        self.memory.geometry()
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>, OpenError> {
        let below = self.memory.open_queue(options.depth);
        Ok(Box::new(HoldingQueue { device: self.clone(), below, held: Vec::new(), ended: Vec::new() }))
    }
}

impl block::QueueWrapper for HoldingQueue {
    type Inner = block::driver::memory::MemoryQueue;
    const CHANGES_POLLING: bool = true;

    fn inner(&self) -> &block::driver::memory::MemoryQueue {
        &self.below
    }

    fn inner_mut(&mut self) -> &mut block::driver::memory::MemoryQueue {
        &mut self.below
    }

    fn geometry(&self) -> &Geometry {
        self.device.geometry()
    }

    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        if Queue::in_flight(self) >= Queue::depth(self) {
            return Submit::Full;
        }
        self.held.push((*request, data.to_vec()));
        self.device.taken.fetch_add(1, Ordering::AcqRel);
        Submit::Queued
    }

    fn ring(&mut self) {}
    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        if !self.device.hold.load(Ordering::Acquire) {
            for (request, data) in self.held.drain(..) {
                assert_eq!(self.below.submit(&request, &data), Submit::Queued);
            }
        }
        let own = self.ended.len().min(completions.len());
        self.ended.drain(..own).zip(&mut *completions).for_each(|(ended, to)| *to = ended);
        own + self.below.poll(&mut completions[own..])
    }

    fn in_flight(&self) -> u32 {
        u32::try_from(self.held.len() + self.ended.len()).expect("small") + self.below.in_flight()
    }

    fn wait(&mut self, _: Duration) {}
    fn cancel(&mut self, tag: Tag) {
        if self.device.stuck.load(Ordering::Acquire) {
            return;
        }
        if let Some(at) = self.held.iter().position(|(request, _)| request.tag == tag) {
            self.held.remove(at);
            self.ended.push(Completion { tag, status: Err(Error::Cancelled) });
        }
    }

    fn reset(&mut self) -> Result<(), Error> {
        if self.device.stuck.load(Ordering::Acquire) {
            return Err(Error::Gone);
        }
        self.held.clear();
        self.ended.clear();
        self.below.reset()
    }

    fn owns_buffer(&self, _: Tag) -> bool {
        false
    }

    fn take_released(&mut self) -> Option<Tag> {
        None
    }

    fn event(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    fn arm(&mut self) -> block::Armed {
        block::Armed::Ready
    }

    fn expected(&self) -> Option<block::Time> {
        None
    }
}

impl Drop for HoldingQueue {
    fn drop(&mut self) {
        assert!(self.held.is_empty() || std::thread::panicking(), "the memory of a request in flight was given back");
    }
}

/// A broker that runs in this process.
pub struct Broker {
    /// The directory of the socket and the journal.
    pub dir: tempfile::TempDir,
    /// The device that the broker serves.
    pub device: Holding,
    /// The running server, until a test stops it.
    pub server: Option<Server>,
}

impl Broker {
    /// Starts a broker in a temporary directory.
    pub fn new() -> Broker {
        let dir = tempfile::tempdir().expect("a directory");
        // Other users must be able to reach the socket.
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("mode");
        let device = Holding::new();
        let server = Some(serve(dir.path(), Arc::new(device.clone())));
        Broker { dir, device, server }
    }

    /// Returns the path of the broker's socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// Connects to the broker as administrator.
    pub fn admin(&self) -> Admin {
        Admin::connect(&self.socket()).expect("connected")
    }

    /// Adds a grant and returns its ID.
    pub fn grant(&self, terms: GrantSpec) -> GrantId {
        self.admin().grant(terms).expect("granted").0
    }

    /// Returns the number of open queues.
    pub fn open(&self) -> usize {
        self.admin().stat().expect("stat").len()
    }

    /// Waits until this number of queues is open.
    pub fn wait_for(&self, count: usize) {
        wait_until(&format!("{count} queues are open"), || self.open() == count);
    }

    /// Connects to the broker as a client.
    pub fn connect(&self, range: Option<(u64, u64)>) -> Result<BrokerDevice, BrokerError> {
        connect(&self.socket(), range)
    }
}

/// Starts a server for a device in a directory.
pub fn serve(dir: &Path, device: Arc<dyn Device>) -> Server {
    let journal = Journal::open(&dir.join("grants")).expect("a journal");
    let devices = vec![(DEVICE.to_owned(), device)];
    let (spin, reset_timeout) = (Duration::from_micros(20), Duration::from_millis(50));
    Server::start(ServerOptions { socket: dir.join("socket"), journal, devices, spin, reset_timeout }).expect("started")
}

/// Waits until `done` returns true; panics after a minute.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "not within a minute: {what}");
        std::thread::yield_now();
    }
}

/// Returns a grant of blocks 1000 to 1999, with two queues of depth 8.
pub fn terms(user: u32) -> GrantSpec {
    GrantSpec {
        who: Who::User(user),
        device: DEVICE.into(),
        queues: 2,
        depth: 8,
        first: 1000,
        blocks: Some(1000),
        read_only: false,
        memory_bytes: 4 << 20,
        bytes_per_s: None,
        requests_per_s: None,
    }
}

/// Returns the options of a client's connection.
pub fn options(socket: &Path, range: Option<(u64, u64)>) -> ConnectOptions {
    ConnectOptions { socket: socket.to_owned(), device: DEVICE.into(), range, read_only: false, arena_bytes: 1 << 20, reply_timeout: None }
}

/// Connects a client to the broker at a socket.
pub fn connect(socket: &Path, range: Option<(u64, u64)>) -> Result<BrokerDevice, BrokerError> {
    BrokerDevice::connect(&options(socket, range))
}

/// Returns the refusal of a call that must fail with one.
pub fn refusal<T>(result: Result<T, BrokerError>) -> Refusal {
    match result {
        Err(BrokerError::Refused(refusal)) => refusal,
        Err(other) => panic!("no refusal: {other}"),
        Ok(_) => panic!("it was allowed"),
    }
}

/// Waits for and returns `count` completions.
pub fn reap(queue: &mut dyn Queue, count: usize) -> Vec<Completion> {
    let mut all = Vec::new();
    wait_until(&format!("{count} completions"), || {
        let mut ended = [Completion::EMPTY; 16];
        let got = queue.poll(&mut ended);
        all.extend_from_slice(&ended[..got]);
        if all.len() < count {
            queue.wait(Duration::from_secs(1));
        }
        all.len() >= count
    });
    assert_eq!(all.len(), count, "{all:?}");
    all
}
