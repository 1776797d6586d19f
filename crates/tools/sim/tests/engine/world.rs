// long: the simulated machine: its devices, clock and processes refer to each other.
//! The environment of the engine: an SSD and backing files that lose unflushed data, and hooks at each change.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use block::driver::MemoryDevice;
use block::{Arena, Completion, Device, Error, Geometry, OpenError, Queue, QueueOptions, Request, Span, Submit, Tag};
use datapath::engine::{BackingFile, Environment, Stamp};
use nvme::Namespace;
use parking_lot::Mutex;
use rustix::io::Errno;
use sim::device::crash::{Medium, VolatileQueue};
use sim::nvme::{ControllerConfig, NamespaceConfig, SoftController};
use ssdcache::FileKey;

pub const SECTOR: usize = 512;
/// The panic value of a dead process's thread.
pub struct Died;

/// Called before each change of the SSD or of a backing file: may capture the machine, or die.
pub type Moment = Box<dyn FnMut() + Send>;

/// Returns whether calls and changes are printed: SIM_TRACE.
pub fn is_traced() -> bool {
    static TRACED: OnceLock<bool> = OnceLock::new();
    *TRACED.get_or_init(|| std::env::var_os("SIM_TRACE").is_some())
}

/// The kind of SSD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Memory, with durability tracking above it.
    Memory,
    /// A software NVMe controller with a volatile write cache, under the NVMe driver.
    Nvme,
}

enum Drive {
    Memory(MemoryDevice),
    Nvme(SoftController, Namespace),
}

impl Drive {
    fn new(kind: Kind, content: Vec<u8>) -> (Drive, Medium) {
        match kind {
            Kind::Memory => {
                let memory = MemoryDevice::new(SECTOR as u32, content.len() as u64).expect("memory");
                memory.region().write(0, &content);
                (Drive::Memory(memory), Medium::new(content, SECTOR))
            }
            Kind::Nvme => {
                let namespaces = vec![NamespaceConfig::plain(SECTOR as u32, (content.len() / SECTOR) as u64)];
                // Queues of dead processes stay until the run ends.
                let shape = ControllerConfig {
                    namespaces,
                    tracks_durability: true,
                    transfer_pages_shift: 3,
                    queues: 250,
                    vectors: 0,
                    ..ControllerConfig::default()
                };
                let controller = SoftController::real(shape, 1);
                controller.set_content(1, content);
                let options = nvme::Options { queues: 250, records: 0, ..nvme::Options::default() };
                let opened = nvme::Controller::open(controller.function(), options).expect("ready");
                let medium = controller.medium(1).expect("durability is tracked");
                (Drive::Nvme(controller, opened.namespace(1).expect("one")), medium)
            }
        }
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        if let Drive::Nvme(controller, _) = self
            && !std::thread::panicking()
        {
            assert_eq!(controller.violations(), Vec::<String>::new());
        }
    }
}

/// Everything that survives a process, and part of which survives a power cut.
pub struct Machine {
    /// In traces: 0 is the running machine, others are those left by a cut.
    label: u32,
    pub medium: Medium,
    below: Drive,
    files: Mutex<BTreeMap<u64, SimFile>>,
    clock_ms: AtomicU32,
    /// The time of day, ns; every reading advances it.
    clock_ns: AtomicU64,
    moment: Mutex<Option<Moment>>,
    pub reports: Mutex<Vec<String>>,
    /// Number of failing writes to files, and of failing pages.
    pub failing: AtomicU32,
    /// Which SSD requests fail: bit 0 reads, bit 1 writes and flushes.
    pub ssd_failing: AtomicU32,
    pub hang: Mutex<Hang>,
    /// Checks of files fail from this one on.
    pub stamps_fail_from: AtomicU32,
    /// Whether no file is found by its name.
    pub is_missing: AtomicBool,
}

/// How reads of the SSD hang.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Hang {
    #[default]
    No,
    /// They end when they are cancelled.
    UntilCancelled,
    /// They end with a reset of their queue; until then the SSD may write into their memory.
    UntilReset,
    /// They never end.
    ForEver,
}

#[derive(Clone, Default)]
struct SimFile {
    durable: FileContent,
    now: FileContent,
    /// Changes since the last sync, in order.
    pending: Vec<Change>,
}

#[derive(Clone, Default)]
struct FileContent {
    bytes: Vec<u8>,
    mtime: u64,
    ctime: u64,
}

#[derive(Clone)]
enum Change {
    Write { at: usize, bytes: Vec<u8>, time: u64 },
    Length { len: usize, time: u64 },
    Times { mtime: u64, time: u64 },
}

impl FileContent {
    fn changed(&mut self, time: u64) {
        (self.mtime, self.ctime) = (time, time);
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[at..end].copy_from_slice(bytes);
    }
}

impl SimFile {
    /// Returns the pending lengths and times up to some moment, and any pending sectors within the length.
    fn cut(&self, rng: &mut fastrand::Rng) -> FileContent {
        let mut state = self.durable.clone();
        let until = rng.usize(..=self.pending.len());
        let share = [0.0, 1.0, 0.5][rng.usize(..3)];
        for (n, change) in self.pending.iter().enumerate() {
            match change {
                Change::Length { len, time } if n < until => {
                    state.bytes.resize(*len, 0);
                    state.changed(*time);
                }
                Change::Times { mtime, time } if n < until => (state.mtime, state.ctime) = (*mtime, *time),
                Change::Length { .. } | Change::Times { .. } => {}
                Change::Write { at, bytes, time } => {
                    if n < until {
                        let end = at + bytes.len();
                        state.bytes.resize(state.bytes.len().max(end), 0);
                        state.changed(*time);
                    }
                    for (sector, from) in bytes.chunks(SECTOR).enumerate() {
                        let to = at + sector * SECTOR;
                        if to + from.len() <= state.bytes.len() && rng.f64() < share {
                            state.bytes[to..to + from.len()].copy_from_slice(from);
                        }
                    }
                }
            }
        }
        state
    }
}

/// The state left by a power cut.
pub struct Remains {
    pub ssd: Vec<u8>,
    files: BTreeMap<u64, FileContent>,
}

impl Machine {
    /// Creates a machine with this SSD content and no files, or with the state of another one.
    pub fn new(kind: Kind, label: u32, remains: Remains) -> Arc<Machine> {
        let (below, medium) = Drive::new(kind, remains.ssd);
        let file = |state: FileContent| SimFile { durable: state.clone(), now: state, pending: Vec::new() };
        let last = remains.files.values().map(|state| state.ctime).max().unwrap_or(0);
        Arc::new(Machine {
            label,
            medium,
            below,
            files: Mutex::new(remains.files.into_iter().map(|(key, state)| (key, file(state))).collect()),
            clock_ms: AtomicU32::new(1),
            clock_ns: AtomicU64::new(last + 1),
            moment: Mutex::new(None),
            reports: Mutex::default(),
            failing: AtomicU32::new(0),
            ssd_failing: AtomicU32::new(0),
            hang: Mutex::default(),
            stamps_fail_from: AtomicU32::new(u32::MAX),
            is_missing: AtomicBool::new(false),
        })
    }

    pub fn empty(ssd: Vec<u8>, keys: impl Iterator<Item = u64>) -> Remains {
        Remains { ssd, files: keys.map(|key| (key, FileContent::default())).collect() }
    }

    pub fn cut(&self, seed: u64) -> Remains {
        let mut rng = fastrand::Rng::with_seed(seed);
        let files = self.files.lock().iter().map(|(key, file)| (*key, file.cut(&mut rng))).collect();
        Remains { ssd: self.medium.power_cut(rng.u64(..)), files }
    }

    pub fn set_moment(&self, moment: Option<Moment>) {
        *self.moment.lock() = moment;
    }

    pub fn tick(&self, ms: u32) {
        self.clock_ms.fetch_add(ms, Ordering::Relaxed);
    }

    /// Returns the time of day, ns.
    fn time(&self) -> u64 {
        self.clock_ns.fetch_add(1, Ordering::Relaxed)
    }

    /// Calls the hook before a change.
    fn moment(&self) {
        let moment = self.moment.lock().take();
        if let Some(mut moment) = moment {
            moment();
            *self.moment.lock() = Some(moment);
        }
    }

    /// Prints a trace line if tracing is on.
    pub fn trace(&self, words: impl FnOnce() -> String) {
        if is_traced() {
            eprintln!("{} {}", self.label, words());
        }
    }

    /// Another program writes to a backing file, and syncs.
    pub fn foreign_write(&self, key: u64, at: usize, bytes: &[u8]) {
        self.foreign(key, |now| now.write(at, bytes));
    }

    /// Changes the times of a backing file.
    pub fn touch(&self, key: u64) {
        self.foreign(key, |_| ());
    }

    fn foreign(&self, key: u64, change: impl FnOnce(&mut FileContent)) {
        let mut files = self.files.lock();
        let file = files.get_mut(&key).expect("a file");
        change(&mut file.now);
        file.now.changed(self.time());
        file.durable = file.now.clone();
        file.pending.clear();
    }

    pub fn bytes(&self, key: u64) -> Vec<u8> {
        self.files.lock()[&key].now.bytes.clone()
    }
}

/// The SSD as a device.
pub struct Ssd(pub Arc<Machine>);

impl Device for Ssd {
    fn geometry(&self) -> &Geometry {
        match &self.0.below {
            Drive::Memory(memory) => memory.geometry(),
            Drive::Nvme(_, namespace) => namespace.geometry(),
        }
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>, OpenError> {
        let queue: Box<dyn Queue> = match &self.0.below {
            Drive::Memory(memory) => Box::new(VolatileQueue::new(memory.queue(options)?, &self.0.medium, true)),
            Drive::Nvme(_, namespace) => namespace.queue(options)?,
        };
        Ok(Box::new(Watched { queue, machine: Arc::clone(&self.0), arenas: Vec::new(), failed: Vec::new(), hanging: Vec::new() }))
    }
}

struct Watched {
    queue: Box<dyn Queue>,
    machine: Arc<Machine>,
    arenas: Vec<Arena>,
    /// Failed requests that are not reported yet.
    failed: Vec<Completion>,
    hanging: Vec<Hanging>,
}

/// A hanging request with its memory.
struct Hanging {
    tag: Tag,
    how: Hang,
    memory: Vec<Span>,
}

impl Watched {
    /// Overwrites the memory of hanging requests.
    fn spoil(&self) {
        for span in self.hanging.iter().flat_map(|hanging| &hanging.memory) {
            let arena = self.arenas.iter().find(|arena| arena.id() == span.arena).expect("registered");
            arena.region().write(span.at as usize, &vec![0xaa; span.bytes as usize]);
        }
    }
}

impl block::QueueWrapper for Watched {
    type Inner = dyn Queue;
    const CHANGES_POLLING: bool = true;

    fn inner(&self) -> &Self::Inner {
        &*self.queue
    }

    fn inner_mut(&mut self) -> &mut Self::Inner {
        &mut *self.queue
    }

    fn register(&mut self, arena: &Arena) -> Result<(), Error> {
        self.arenas.push(arena.clone());
        self.inner_mut().register(arena)
    }

    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        if request.op != block::Op::Read {
            self.machine.trace(|| format!("  ssd: {:?} {:?}+{}", request.op, request.lba, request.blocks));
            self.machine.moment();
        }
        let bit = if request.op == block::Op::Read { 1 } else { 2 };
        if self.machine.ssd_failing.load(Ordering::Relaxed) & bit != 0 {
            self.failed.push(Completion { tag: request.tag, status: Err(Error::Media) });
            return Submit::Queued;
        }
        let how = *self.machine.hang.lock();
        if request.op == block::Op::Read && how != Hang::No {
            self.hanging.push(Hanging { tag: request.tag, how, memory: data.to_vec() });
            return Submit::Queued;
        }
        self.inner_mut().submit(request, data)
    }

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        self.spoil();
        let count = self.failed.len().min(completions.len());
        completions.iter_mut().zip(self.failed.drain(..count)).for_each(|(to, failed)| *to = failed);
        count + self.inner_mut().poll(&mut completions[count..])
    }

    fn in_flight(&self) -> u32 {
        self.inner().in_flight() + (self.failed.len() + self.hanging.len()) as u32
    }

    fn wait(&mut self, at_most: std::time::Duration) {
        if self.failed.is_empty() && self.hanging.is_empty() {
            self.inner_mut().wait(at_most);
        }
    }

    fn cancel(&mut self, tag: Tag) {
        let ends = |hanging: &Hanging| hanging.tag == tag && hanging.how == Hang::UntilCancelled;
        if let Some(at) = self.hanging.iter().position(ends) {
            self.hanging.remove(at);
            self.failed.push(Completion { tag, status: Err(Error::Cancelled) });
        }
        self.inner_mut().cancel(tag);
    }

    fn reset(&mut self) -> Result<(), Error> {
        self.spoil();
        if *self.machine.hang.lock() == Hang::ForEver {
            return Err(Error::Timeout);
        }
        self.hanging.clear();
        self.inner_mut().reset()
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

/// An open backing file.
pub struct Handle {
    pub machine: Arc<Machine>,
    pub key: u64,
}

impl Handle {
    fn change(&self, change: impl FnOnce(&mut SimFile, u64)) -> io::Result<()> {
        self.machine.moment();
        if self.machine.failing.load(Ordering::Relaxed) > 0 {
            self.machine.failing.fetch_sub(1, Ordering::Relaxed);
            return Err(Errno::IO.into());
        }
        let time = self.machine.time();
        let mut files = self.machine.files.lock();
        change(files.get_mut(&self.key).ok_or(Errno::NOENT)?, time);
        Ok(())
    }
}

impl BackingFile for Handle {
    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<usize> {
        let files = self.machine.files.lock();
        let bytes = &files[&self.key].now.bytes;
        let from = bytes.get(at as usize..).unwrap_or(&[]);
        let count = from.len().min(to.len());
        to[..count].copy_from_slice(&from[..count]);
        Ok(count)
    }

    fn write_at(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.machine.trace(|| {
            let versions = from.chunks(SECTOR).map(|cell| u64::from_le_bytes(cell[..8].try_into().expect("eight")));
            format!("  below {}: write cell {}: {:?}", self.key, at as usize / SECTOR, versions.collect::<Vec<_>>())
        });
        self.change(|file, time| {
            file.now.write(at as usize, from);
            file.now.changed(time);
            file.pending.push(Change::Write { at: at as usize, bytes: from.to_vec(), time });
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.machine.trace(|| format!("  below {}: sync", self.key));
        self.change(|file, _| {
            for change in file.pending.drain(..) {
                match change {
                    Change::Write { at, bytes, .. } => file.durable.write(at, &bytes),
                    Change::Length { len, .. } => file.durable.bytes.resize(len, 0),
                    Change::Times { .. } => {}
                }
            }
            (file.durable.mtime, file.durable.ctime) = (file.now.mtime, file.now.ctime);
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.machine.trace(|| format!("  below {}: length {}", self.key, len as usize / SECTOR));
        self.change(|file, time| {
            file.now.bytes.resize(len as usize, 0);
            file.now.changed(time);
            file.pending.push(Change::Length { len: len as usize, time });
        })
    }

    fn punch(&self, at: u64, len: u64) -> io::Result<()> {
        let end = {
            let files = self.machine.files.lock();
            (files[&self.key].now.bytes.len() as u64).min(at + len)
        };
        if at < end { self.write_at(at, &vec![0; (end - at) as usize]) } else { Ok(()) }
    }

    fn set_mtime(&self, ns: u64) -> io::Result<()> {
        self.machine.trace(|| format!("  below {}: time {ns}", self.key));
        self.machine.moment();
        let time = self.machine.time();
        let mut files = self.machine.files.lock();
        let file = files.get_mut(&self.key).ok_or(Errno::NOENT)?;
        (file.now.mtime, file.now.ctime) = (ns, time);
        file.pending.push(Change::Times { mtime: ns, time });
        Ok(())
    }

    fn stamp(&self) -> io::Result<Stamp> {
        match self.machine.stamps_fail_from.load(Ordering::Relaxed) {
            u32::MAX => {}
            0 => return Err(Errno::IO.into()),
            left => self.machine.stamps_fail_from.store(left - 1, Ordering::Relaxed),
        }
        let files = self.machine.files.lock();
        let now = &files[&self.key].now;
        Ok(Stamp { size: now.bytes.len() as u64, mtime: now.mtime as i64, ctime: now.ctime as i64 })
    }
}

/// A process's view of the machine.
pub struct Outside(pub Arc<Machine>);

impl Environment for Outside {
    fn open(&self, key: FileKey, _: &Path, _: &[u32], _: bool) -> io::Result<Arc<dyn BackingFile>> {
        if self.0.is_missing.load(Ordering::Relaxed) {
            return Err(Errno::NOENT.into());
        }
        Ok(Arc::new(Handle { machine: Arc::clone(&self.0), key: key.0 }))
    }

    fn now_ms(&self) -> u32 {
        self.0.clock_ms.load(Ordering::Relaxed)
    }

    fn realtime_ns(&self) -> u64 {
        self.0.time()
    }

    fn report(&self, words: &str) {
        self.0.reports.lock().push(words.to_owned());
    }
}
