//! A software NVMe controller: admin and I/O commands, namespaces, a volatile write cache, faults by rule, in virtual or real time.
//! Deterministic: the same seed and calls give the same completions.
//!
//! [`SoftController::function`] connects it to a driver in this process. It advances when a doorbell is written, when a caller waits for
//! an interrupt, and by [`SoftController::step`]. Every address that the driver passes is looked up in the mappings: an access to unmapped
//! memory is refused and counted in [`SoftController::violations`].
//!
//! [`served`] connects the same controller to other processes over a vfio-user socket.
//!
//! - `registers`: CC, CSTS, doorbells. `admin`, `commands`: the commands. `memory`: host memory.
//! - [`faults`]: fault injection. `content`: blocks of namespaces. [`replay`]: replay of a flight recording.

mod admin;
mod commands;
mod content;
pub mod faults;
mod function;
mod memory;
mod registers;
mod remote;
pub mod replay;
mod rings;
pub mod served;

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use block::clock::Monotonic;
use block::{Clock, Time};
use parking_lot::{Mutex, MutexGuard};
use pci::Function;
use rustix::event::{EventfdFlags, eventfd};

use crate::device::clock::VirtualClock;
use crate::device::crash::Medium;
use crate::device::model::ReservationModel;
use commands::PendingCommand;
pub use content::NamespaceConfig;
use content::NamespaceContent;
use faults::Faults;
use memory::HostMemory;
use remote::RemoteHost;
use rings::{Completions, Submissions};

/// The latency model of commands.
#[derive(Clone)]
pub enum CommandTiming {
    /// No latency: commands complete when the doorbell is written.
    Instant,
    /// A random latency between these bounds, in nanoseconds: completions come out of order.
    Between(u64, u64),
    /// The latency of a drive by its data sheet ([`crate::device::model`]).
    Drive(Arc<Mutex<dyn ReservationModel>>),
}

impl fmt::Debug for CommandTiming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommandTiming::Instant => f.write_str("Instant"),
            CommandTiming::Between(least, most) => write!(f, "Between({least}, {most})"),
            CommandTiming::Drive(_) => f.write_str("Drive"),
        }
    }
}

/// The configuration of a controller.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// Namespaces; the first has number 1.
    pub namespaces: Vec<NamespaceConfig>,
    /// Maximum number of entries of a queue.
    pub entries_max: u32,
    /// Maximum transfer size as a power of two of 4 KiB pages (MDTS); 0: no limit.
    pub transfer_pages_shift: u8,
    /// Number of I/O queue pairs.
    pub queues: u16,
    /// Number of interrupt vectors; 0: none.
    pub vectors: u16,
    /// Doorbell stride as a power of two of 4 bytes (CAP.DSTRD).
    pub stride_shift: u8,
    /// Supports Doorbell Buffer Config (shadow doorbells).
    pub doorbell_buffer: bool,
    /// Has a volatile write cache.
    pub volatile_cache: bool,
    /// Tracks durability for [`SoftController::medium`]. Costs a copy of each write.
    pub tracks_durability: bool,
    /// Maximum ranges of a deallocate; 0: 256.
    pub ranges_max: u8,
    /// The latency model of commands.
    pub timing: CommandTiming,
    /// Executes commands when a doorbell is written; otherwise only in [`SoftController::step`] and in waits.
    pub eager: bool,
    /// Memory without a descriptor cannot be mapped, as over a socket.
    pub shared_memory_only: bool,
}

impl Default for ControllerConfig {
    fn default() -> Self {
        ControllerConfig {
            namespaces: vec![NamespaceConfig { block_bytes: 4096, blocks: 2048, metadata_bytes: 0, write_protected: false }],
            entries_max: 1024,
            transfer_pages_shift: 0,
            queues: 8,
            vectors: 9,
            stride_shift: 0,
            doorbell_buffer: true,
            volatile_cache: true,
            tracks_durability: false,
            ranges_max: 0,
            timing: CommandTiming::Instant,
            eager: true,
            shared_memory_only: false,
        }
    }
}

/// The clock of the controller.
#[derive(Clone, Debug)]
enum ClockSource {
    Virtual(VirtualClock),
    Real(Monotonic),
}

impl ClockSource {
    fn now(&self) -> Time {
        match self {
            ClockSource::Virtual(clock) => clock.now(),
            ClockSource::Real(clock) => clock.now(),
        }
    }
}

/// Counters of a controller's activity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ControllerStats {
    /// Total number of commands fetched.
    pub fetched: u64,
    /// Total number of completions posted.
    pub answered: u64,
    /// Number of register writes by the driver, including doorbells.
    pub register_writes: u64,
    /// Number of resets (CC.EN from 1 to 0).
    pub resets: u64,
    /// Total number of normal shutdowns.
    pub shutdowns: u64,
    /// Total number of faults injected.
    pub faults: u64,
}

/// Resources of a controller that a driver holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeldResources {
    /// Number of I/O completion queues.
    pub queues: usize,
    /// Number of these with an interrupt vector.
    pub vectors: usize,
    /// Number of mapped memory regions.
    pub mappings: usize,
}

pub(crate) struct ControllerState {
    shape: ControllerConfig,
    random: fastrand::Rng,
    faults: Faults,
    memory: HostMemory,
    configuration: u32,
    status: u32,
    admin_queues: (u32, u64, u64),
    /// When the ready state changes, and to what.
    changes_at: Option<(Time, u32)>,
    submissions: BTreeMap<u16, Submissions>,
    completions: BTreeMap<u16, Completions>,
    pending: BTreeMap<(Time, u64), PendingCommand>,
    serial: u64,
    /// Write buffers for reuse.
    spare: Vec<Vec<u8>>,
    shadow: Option<(u64, u64)>,
    raised: Vec<bool>,
    events: Arc<[OwnedFd]>,
    remote: RemoteHost,
    requests_for_events: Vec<u16>,
    /// Event type, information and log page; masked until the log page is read.
    waiting_events: Vec<(u8, u8, u8)>,
    masked_logs: Vec<u8>,
    changed_namespaces: Vec<u32>,
    critical: u8,
    namespaces: BTreeMap<u32, NamespaceContent>,
    removed: bool,
    /// A fault completed a command twice: a full ring is not the driver's error.
    doubled: bool,
    done: ControllerStats,
}

/// A software NVMe controller. Clones share the controller; see the module documentation.
#[derive(Clone)]
pub struct SoftController {
    state: Arc<Mutex<ControllerState>>,
    events: Arc<[OwnedFd]>,
    times: ClockSource,
}

impl fmt::Debug for SoftController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SoftController({:?})", self.state.lock().done)
    }
}

impl SoftController {
    /// Creates a controller in virtual time.
    pub fn new(shape: ControllerConfig, clock: &VirtualClock, seed: u64) -> SoftController {
        SoftController::make(shape, ClockSource::Virtual(clock.clone()), seed)
    }

    /// Creates a controller in real time, with event descriptors. Commands have no latency.
    pub fn real(shape: ControllerConfig, seed: u64) -> SoftController {
        SoftController::make(ControllerConfig { timing: CommandTiming::Instant, ..shape }, ClockSource::Real(Monotonic::default()), seed)
    }

    fn make(shape: ControllerConfig, times: ClockSource, seed: u64) -> SoftController {
        let namespaces =
            (1..).zip(&shape.namespaces).map(|(id, namespace)| (id, NamespaceContent::new(*namespace, shape.tracks_durability))).collect();
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let event = |_| eventfd(0, flags).expect("a descriptor");
        let count = if matches!(times, ClockSource::Real(_)) { shape.vectors } else { 0 };
        let events: Arc<[OwnedFd]> = (0..count).map(event).collect();
        let state = ControllerState {
            random: fastrand::Rng::with_seed(seed),
            faults: Faults::default(),
            memory: HostMemory::new(shape.shared_memory_only),
            configuration: 0,
            status: 0,
            admin_queues: (0, 0, 0),
            changes_at: None,
            submissions: BTreeMap::new(),
            completions: BTreeMap::new(),
            pending: BTreeMap::new(),
            serial: 0,
            spare: Vec::new(),
            shadow: None,
            raised: vec![false; shape.vectors.into()],
            events: Arc::clone(&events),
            remote: RemoteHost::default(),
            requests_for_events: Vec::new(),
            waiting_events: Vec::new(),
            masked_logs: Vec::new(),
            changed_namespaces: Vec::new(),
            critical: 0,
            namespaces,
            removed: false,
            doubled: false,
            done: ControllerStats::default(),
            shape,
        };
        SoftController { state: Arc::new(Mutex::new(state)), events, times }
    }

    /// Returns the PCI function that a driver opens.
    pub fn function(&self) -> Function {
        let below = Arc::new(self.clone());
        Function { name: "software controller".to_owned(), mmio: below.clone(), dma: below.clone(), irq: below }
    }

    fn lock(&self) -> MutexGuard<'_, ControllerState> {
        self.state.lock()
    }

    /// Executes what is due. Returns whether there was anything.
    pub fn step(&self) -> bool {
        let now = self.times.now();
        self.lock().step(now)
    }

    /// Sets whether doorbell writes execute commands; otherwise only steps and waits do.
    pub fn set_eager(&self, eager: bool) {
        self.lock().shape.eager = eager;
    }

    /// Writes garbage into reachable memory: an unrequested completion, or random bytes.
    pub fn scribble(&self) {
        self.lock().scribble();
    }

    /// Returns the counters of the controller.
    pub fn done(&self) -> ControllerStats {
        self.lock().done
    }

    /// Returns the resources that the driver holds.
    pub fn held(&self) -> HeldResources {
        let state = self.lock();
        let vectors = state.completions.iter().filter(|(number, ring)| **number > 0 && ring.vector.is_some()).count();
        HeldResources { queues: state.completions.keys().filter(|number| **number > 0).count(), vectors, mappings: state.memory.mappings() }
    }

    /// Returns accesses to unmapped memory and other driver errors.
    pub fn violations(&self) -> Vec<String> {
        self.lock().memory.violations.clone()
    }

    /// Changes the injected faults with a closure.
    pub fn with_faults<T>(&self, change: impl FnOnce(&mut Faults) -> T) -> T {
        change(&mut self.lock().faults)
    }

    /// Removes the controller: registers read as all ones, no command completes, no memory is touched.
    pub fn remove(&self) {
        let mut state = self.lock();
        state.removed = true;
        state.drop_everything();
    }

    /// Raises a fatal controller status (CSTS.CFS); the controller stops until it is reset.
    pub fn break_down(&self) {
        let mut state = self.lock();
        state.status |= nvme::registers::CSTS_FATAL;
    }

    /// Returns the durability state of a namespace if [`ControllerConfig::tracks_durability`] is set.
    pub fn medium(&self, namespace: u32) -> Option<Medium> {
        self.lock().namespaces.get(&namespace)?.medium.clone()
    }

    /// Returns the content that reads of a namespace see.
    pub fn content(&self, namespace: u32) -> Vec<u8> {
        self.lock().namespaces.get(&namespace).and_then(|content| content.whole().ok()).unwrap_or_default()
    }

    /// Sets the durable content of a namespace.
    pub fn set_content(&self, namespace: u32, bytes: Vec<u8>) {
        let mut state = self.lock();
        let tracks_durability = state.shape.tracks_durability;
        if let Some(content) = state.namespaces.get_mut(&namespace) {
            content.replace(bytes, tracks_durability).expect("memory");
        }
    }

    /// Adds or resizes a namespace and reports an asynchronous event.
    pub fn set_namespace(&self, id: u32, shape: NamespaceConfig) {
        let now = self.times.now();
        let mut state = self.lock();
        let tracks_durability = state.shape.tracks_durability;
        state.namespaces.insert(id, NamespaceContent::new(shape, tracks_durability));
        state.changed_namespaces.push(id);
        state.tell_host((2, 0, nvme::entry::log::CHANGED_NAMESPACES));
        state.step(now);
    }

    /// Sets the critical warning of the health log and reports an asynchronous event.
    pub fn set_critical(&self, bits: u8) {
        let now = self.times.now();
        let mut state = self.lock();
        state.critical = bits;
        state.tell_host((1, 0, nvme::entry::log::SMART));
        state.step(now);
    }

    /// Returns when the next command is due.
    pub fn next_due(&self) -> Time {
        self.lock().next_due()
    }

    fn pass_until(&self, vector: Option<u16>, until: Time) {
        let ClockSource::Virtual(clock) = &self.times else { return };
        loop {
            let next = {
                let mut state = self.lock();
                state.step(clock.now());
                if vector.is_some_and(|vector| state.raised.get(usize::from(vector)) == Some(&true)) || clock.now() >= until {
                    return;
                }
                state.next_due()
            };
            let next = next.min(clock.next_alarm()).min(until);
            if next == Time::NEVER {
                return;
            }
            clock.advance_to(next);
        }
    }
}

impl ControllerState {
    fn next_due(&self) -> Time {
        // A stopped controller completes nothing.
        let command = self.pending.keys().next().filter(|_| self.is_running()).map_or(Time::NEVER, |(time, _)| *time);
        self.changes_at.map_or(Time::NEVER, |(time, _)| time).min(command)
    }

    /// Returns whether anything was done.
    fn step(&mut self, now: Time) -> bool {
        let mut did = self.change_status(now);
        while !self.removed && self.is_running() {
            let fetched = self.fetch(now);
            let ended = self.end_due(now);
            if !fetched && !ended {
                break;
            }
            did = true;
        }
        self.remote.signal();
        did
    }

    fn is_running(&self) -> bool {
        use nvme::registers::{CSTS_FATAL, CSTS_READY};
        self.status & (CSTS_READY | CSTS_FATAL) == CSTS_READY && !self.faults.frozen
    }

    fn raise(&mut self, vector: u16) {
        let Some(raised) = self.raised.get_mut(usize::from(vector)) else { return };
        *raised = true;
        self.remote.raise(vector);
        if let Some(event) = self.events.get(usize::from(vector)) {
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
    }
}
