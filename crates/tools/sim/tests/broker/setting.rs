//! A broker that owns a software controller.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::broker::client::Admin;
use block::broker::{BrokerDevice, BrokerError, ConnectOptions, GrantSpec, Journal, Refusal, Server, ServerOptions, Who};
use block::{Completion, Queue};
use nvme::{Controller, Options};
use sim::nvme::{ControllerConfig, NamespaceConfig, SoftController};

/// Serialises tests: they count the resources of the process.
pub static ALONE: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

pub const BLOCKS: u64 = 4096;
pub const DEVICE: &str = "nvme";
/// Number of queues of the controller.
pub const QUEUES: u16 = 8;

pub fn controller() -> (SoftController, Controller) {
    let namespaces = vec![NamespaceConfig::plain(512, BLOCKS)];
    let device =
        SoftController::real(ControllerConfig { namespaces, queues: QUEUES, shared_memory_only: true, ..ControllerConfig::default() }, 1);
    let controller = Controller::open(device.function(), Options::default()).expect("ready");
    (device, controller)
}

pub struct Broker {
    pub dir: tempfile::TempDir,
    pub device: SoftController,
    pub server: Option<Server>,
}

impl Broker {
    pub fn new() -> Broker {
        let dir = tempfile::tempdir().expect("a directory");
        let (device, controller) = controller();
        let server = Some(serve(dir.path(), &controller));
        Broker { dir, device, server }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    pub fn admin(&self) -> Admin {
        Admin::connect(&self.socket()).expect("connected")
    }

    pub fn grant(&self, terms: GrantSpec) {
        self.admin().grant(terms).expect("granted");
    }
}

impl Drop for Broker {
    /// Verifies that the driver made no error and released everything.
    fn drop(&mut self) {
        drop(self.server.take());
        if !std::thread::panicking() {
            assert_eq!(self.device.violations(), Vec::<String>::new());
            assert_eq!(self.device.held(), sim::nvme::HeldResources::default());
        }
    }
}

pub fn serve(dir: &Path, controller: &Controller) -> Server {
    let journal = Journal::open(&dir.join("grants")).expect("a journal");
    let namespace = controller.namespace(1).expect("a namespace");
    let devices = vec![(DEVICE.to_owned(), Arc::new(namespace) as Arc<dyn block::Device>)];
    let (spin, reset_timeout) = (Duration::from_micros(20), Duration::from_millis(20));
    Server::start(ServerOptions { socket: dir.join("socket"), journal, devices, spin, reset_timeout }).expect("started")
}

/// Blocks 1000 to 1999, four queues of depth 8.
pub fn terms() -> GrantSpec {
    GrantSpec {
        who: Who::User(rustix::process::geteuid().as_raw()),
        device: DEVICE.into(),
        queues: 4,
        depth: 8,
        first: 1000,
        blocks: Some(1000),
        read_only: false,
        memory_bytes: 4 << 20,
        bytes_per_s: None,
        requests_per_s: None,
    }
}

pub fn connect(socket: &Path, range: Option<(u64, u64)>) -> Result<BrokerDevice, BrokerError> {
    let socket = socket.to_owned();
    BrokerDevice::connect(&ConnectOptions {
        socket,
        device: DEVICE.into(),
        range,
        read_only: false,
        arena_bytes: 1 << 20,
        reply_timeout: None,
    })
}

pub fn refusal<T>(result: Result<T, BrokerError>) -> Refusal {
    match result {
        Err(BrokerError::Refused(refusal)) => refusal,
        Err(other) => panic!("no refusal: {other}"),
        Ok(_) => panic!("it was allowed"),
    }
}

pub fn is_within_a_minute(mut done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        if Instant::now() > end {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

pub fn wait_until(what: &str, done: impl FnMut() -> bool) {
    assert!(is_within_a_minute(done), "not within a minute: {what}");
}

/// Waits for `count` completions.
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
