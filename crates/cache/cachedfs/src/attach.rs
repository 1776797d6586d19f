//! Attaches a process: opens or creates the segment, takes a process slot, runs the thread that may lead; and detaches it.

mod create;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::JoinHandle;

use datapath::engine::{CacheEngine, EngineAttachError, EngineStatus, Environment, FileStatus, Layout, Parts};
use parking_lot::Mutex;
use rustix::fs::{CWD, fstat, statat};
use rustix::io::Errno;
use shm::{AttachError, ProcessSlots, Region};
use ssdcache::Shape;

use crate::below::{CacheEnvironment, ClockOffset, OpenLocals};
use crate::config::Config;
use crate::error::{Error, Kind};
use crate::find::Listed;
use crate::note::NoteContent;
use crate::place::InstancePaths;
use crate::rules::Rules;
use crate::ssd::{Ssd, Take};
use crate::watch::Watch;
pub use create::machine_memory_bytes;
use create::{limits, make, note_of, private};

/// Maximum memory that is used by default, in bytes.
const MEMORY_DEFAULT_MAX: u64 = 1 << 30;
/// Minimum number of frames of a cache.
const FRAMES_MIN: u64 = 64;

/// How often the last process tries again to write back the dirty pages of the others.
const COMES_BACK: u32 = 5;

/// The attachment of one process to an instance.
pub struct Attachment {
    /// The cache engine of this process.
    pub engine: Arc<CacheEngine>,
    /// Messages of the engine to the user, and its access to files.
    pub around: Arc<CacheEnvironment>,
    /// The configuration that the instance was created with; that of this process may differ.
    pub running: Config,
    /// The compiled rules of `running`.
    pub rules: Rules,
    /// The SSD of the instance.
    pub ssd: Option<Ssd>,
    /// The reason why it uses no SSD, though one is configured.
    pub without: Option<Error>,
    /// Watches open files for changes by other programs.
    pub watch: Watch,
    /// The paths of the segment; none if it is private.
    pub place: Option<InstancePaths>,
    /// The number of files that are open in this process.
    pub open_files: Arc<AtomicUsize>,
    /// The number of pages that files of this process keep in memory.
    pub pinned: AtomicUsize,
    region: Arc<Region>,
    processes: Arc<ProcessSlots>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Attachment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Attachment({:?}, {:?})", self.running.name, self.processes)
    }
}

/// The parts that are opened before a process slot is taken.
struct Found {
    region: Arc<Region>,
    processes: Arc<ProcessSlots>,
    ssd: Option<Ssd>,
    /// The reason why it uses no SSD.
    without: Option<Error>,
    running: Config,
    place: Option<InstancePaths>,
}

impl Attachment {
    /// Attaches to the instance, and creates it if there is none.
    ///
    /// # Errors
    /// See [`crate::Instance::open`].
    pub fn open(config: &Config) -> Result<Attachment, Error> {
        if config.private {
            return private(config)?.attach();
        }
        let place = InstancePaths::of(config)?;
        // A new segment may need that memory.
        forget_removed();
        let held = place.hold()?;
        let found = find_or_make(config, place.clone()).inspect_err(|_| {
            // No segment was created: the directory must not keep the other files.
            if !place.segment.exists() {
                let _ = place.remove(&held);
            }
        });
        found?.attach()
    }

    /// Attaches a forked child to the instance of its parent, with another process slot.
    ///
    /// # Errors
    /// As `open`.
    pub fn again(&self) -> Result<Attachment, Error> {
        let _held = match &self.place {
            None => None,
            Some(place) => {
                let held = place.hold()?;
                if !is_there(&self.region, &place.segment) {
                    // The last process has detached meanwhile.
                    return find_or_make(&self.running, place.clone())?.attach();
                }
                Some(held)
            }
        };
        let (ssd, without) = match &self.ssd {
            None => (None, None),
            Some(ssd) => {
                let status = self.engine.status().map_err(|why| Error::new(Kind::Segment, Errno::PROTO, why.to_string()))?;
                joined_ssd(&ssd.path, ssd.shape, &self.running, &status, false)?
            }
        };
        let (region, processes) = (Arc::clone(&self.region), Arc::clone(&self.processes));
        Found { region, processes, ssd, without, running: self.running.clone(), place: self.place.clone() }.attach()
    }

    /// Returns whether another process seems to be attached.
    fn is_alone(&self) -> bool {
        let others = (0..ProcessSlots::COUNT as u8).map(shm::ProcessSlot).filter(|process| self.processes.is_alive(*process)).count();
        others <= 1
    }

    /// Detaches. The last process writes all dirty pages to the backing files and removes the segment, unless it is to be kept or a write
    /// failed. Files have to be closed.
    ///
    /// # Errors
    /// An error of write-back: the segment stays, with the dirty pages.
    pub fn close(&self) -> Result<(), Error> {
        self.close_again(COMES_BACK)
    }

    fn close_again(&self, comes_back: u32) -> Result<(), Error> {
        self.watch.stop();
        let clean = || self.engine.clean_all(&mut |_| ()).map_err(|errno| self.unwritten(errno));
        // Long work is not done while other processes wait to attach or detach.
        let written = if self.is_alone() { clean() } else { Ok(()) };
        self.stop_work();
        let Some(place) = &self.place else {
            self.free_process_slot();
            return written;
        };
        let held = place.hold();
        let is_last = self.is_alone();
        let is_dirty = is_last && self.is_dirty();
        self.free_process_slot();
        let held = held?;
        written?;
        if !is_last || !is_there(&self.region, &place.segment) {
            return Ok(());
        }
        if is_dirty && comes_back > 0 {
            // The others detached while this process seemed to stay: it has to try again.
            let again = find_or_make(&self.running, place.clone())?.attach()?;
            drop(held);
            return again.close_again(comes_back - 1);
        }
        if is_dirty {
            return Ok(());
        }
        if let Some(note) = self.around.note.as_ref().filter(|_| self.ssd.is_some() && self.engine.ssd_state().failed.is_none()) {
            // If this fails, the note still says `dirty`, which is safe.
            let _ = note.write(Some(NoteContent::Clean));
        }
        if self.running.keep { Ok(()) } else { place.remove(&held) }
    }

    /// Detaches as a process that dies does, in order: the segment stays, with the dirty pages, until a process attaches again.
    ///
    /// # Errors
    /// The lock of the instance cannot be taken; the process has left nevertheless.
    pub fn leave_segment(&self) -> Result<(), Error> {
        self.watch.stop();
        self.stop_work();
        let held = self.place.as_ref().map(InstancePaths::hold).transpose();
        self.free_process_slot();
        held.map(drop)
    }

    fn stop_work(&self) {
        self.engine.detach();
        if let Some(worker) = self.worker.lock().take() {
            let _ = worker.join();
        }
    }

    fn free_process_slot(&self) {
        self.engine.free_process_slot();
        if let Some(ssd) = &self.ssd {
            ssd.let_go();
        }
    }

    fn is_dirty(&self) -> bool {
        self.engine.pages().marked_count() > 0 || self.engine.ssd_state().dirty > 0
    }

    /// Returns a message about pages that could not be written.
    pub fn unwritten(&self, errno: Errno) -> Error {
        let stranded = self.engine.status().map(|status| status.files()).unwrap_or_default();
        unwritten(errno, &self.around, &stranded)
    }

    /// Returns the group that shares the cache, or none if one user has it.
    pub fn group(&self) -> Option<u32> {
        self.place.as_ref().and_then(|place| place.sharing.group)
    }

    /// Returns whether all users of the instance may read the file and its name.
    pub fn may_share(&self, fd: BorrowedFd<'_>) -> bool {
        self.group().is_none_or(|group| crate::group::can_reach(fd, group, false))
    }

    /// Returns whether all users of the instance may write the file, since the leader writes for all.
    pub fn may_write(&self, fd: BorrowedFd<'_>) -> bool {
        self.group().is_none_or(|group| crate::group::can_write(fd, group))
    }

    /// Removes a file from the segment, if it is there: not all members may see it any more.
    ///
    /// # Errors
    /// An error of write-back: the dirty pages stay.
    pub fn withdraw(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        let key = crate::key::key_of(fd)?;
        self.engine.withdraw(key)
    }

    /// Returns whether the file is that of the segment.
    pub fn is_segment(&self, stat: &rustix::fs::Stat) -> bool {
        self.region.fd().and_then(|fd| fstat(fd).ok()).is_some_and(|own| (own.st_dev, own.st_ino) == (stat.st_dev, stat.st_ino))
    }

    /// Returns the size of the segment.
    pub fn segment_bytes(&self) -> u64 {
        self.region.len() as u64
    }
}

fn unwritten(errno: Errno, around: &CacheEnvironment, files: &[FileStatus]) -> Error {
    let why = std::io::Error::from(errno);
    let is_it = |file: &&FileStatus| match errno {
        Errno::STALE => file.is_conflict,
        Errno::NOENT => file.is_missing,
        _ => !file.is_over && file.failures.1 == Some(errno),
    };
    let named: Vec<String> = files.iter().filter(is_it).take(NAMED_MAX).map(|file| file.path.display().to_string()).collect();
    let which = match (&named[..], errno) {
        ([], _) => around.notes.lock().last().cloned().unwrap_or_default(),
        (named, Errno::STALE | Errno::NOENT) => format!("{}: {}", named.join(", "), crate::advice::sentence(errno)),
        (named, _) => named.join(", "),
    };
    let kind = if errno == Errno::STALE { Kind::Conflict } else { Kind::System };
    Error::new(kind, errno, format!("not everything could be written below ({why}); it stays in the cache. {which}"))
}

/// Maximum number of files that a message names.
const NAMED_MAX: usize = 3;

/// Returns whether the file of that name is the mapped one.
fn is_there(region: &Region, path: &Path) -> bool {
    let Some(Ok(mapped)) = region.fd().map(fstat) else { return false };
    statat(CWD, path, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|named| (named.st_dev, named.st_ino) == (mapped.st_dev, mapped.st_ino))
}

/// Opens or creates a segment; the caller holds the lock of the directory.
fn find_or_make(config: &Config, place: InstancePaths) -> Result<Found, Error> {
    match Region::open_file(&place.segment, place.sharing.group) {
        Ok(region) => join(place, region),
        Err(AttachError::System(error)) if error.kind() == std::io::ErrorKind::NotFound => make(config, place),
        Err(error) => Err(refused(&place.segment, &error)),
    }
}

/// Returns the error for an unusable segment, with advice.
pub fn refused(segment: &Path, why: &dyn std::fmt::Display) -> Error {
    let what = format!(
        "{}: {why}. It may hold what no file has yet: end the programs that use it cleanly, and see `hotshelf cache destroy --help`",
        segment.display()
    );
    Error::new(Kind::Segment, Errno::PROTO, what)
}

fn join(place: InstancePaths, region: Region) -> Result<Found, Error> {
    let layout = Layout::read(&region).map_err(|why| refused(&place.segment, &why))?;
    let running = Config::parse(&Layout::settings(&region)).map_err(|why| refused(&place.segment, &why))?;
    let (region, processes) = match kept(&place.segment) {
        Some(kept) => kept,
        None => {
            let locks = ProcessSlots::open_lock_file(&place.locks, place.sharing).map_err(|why| refused(&place.locks, &why))?;
            let region = Arc::new(region);
            let processes = processes(&region, &layout, locks)?;
            (region, processes)
        }
    };
    let is_first = !(0..ProcessSlots::COUNT as u8).any(|process| processes.is_alive(shm::ProcessSlot(process)));
    let (ssd, without) = match layout.sizes().ssd.zip(running.ssd.as_deref()) {
        None => (None, None),
        Some((shape, path)) => {
            let status = EngineStatus::at(&region, &processes).map_err(|why| refused(&place.segment, &why))?;
            joined_ssd(path, shape, &running, &status, is_first)?
        }
    };
    if ssd.as_ref().is_some_and(|ssd| Some(ssd.shape) != layout.sizes().ssd) {
        return Err(refused(&place.segment, &"the SSD is not the one it was made with"));
    }
    Ok(Found { region, processes, ssd, without, running, place: Some(place) })
}

/// Opens the SSD of an existing instance. A process that cannot open it goes on without it in three cases: it failed already, no process is
/// left that can use it, or it has nothing that the files lack. The segment knows what only the SSD has.
fn joined_ssd(
    path: &Path,
    shape: Shape,
    running: &Config,
    status: &EngineStatus,
    is_first: bool,
) -> Result<(Option<Ssd>, Option<Error>), Error> {
    let take = if is_first { Take::First(None) } else { Take::Join(shape) };
    let error = match Ssd::open(path, take, running) {
        Ok(ssd) => return Ok((Some(ssd), None)),
        Err(error) => error,
    };
    let state = status.ssd_state();
    let has_nothing = !status.mode().keeps_dirty() && state.dirty == 0;
    let is_there = error.errno() == Errno::BUSY.raw_os_error() || !is_first;
    if state.failed.is_some() || has_nothing || !is_there { Ok((None, Some(error))) } else { Err(error) }
}

/// The segments of this process, also after it detached. The lock file of an existing segment must not be closed while the process may be
/// attached to it: record locks end with any close.
static KEPT: Mutex<Vec<(Arc<Region>, Arc<ProcessSlots>)>> = Mutex::new(Vec::new());

/// Returns the segment at that path, if this process had it before.
fn kept(segment: &Path) -> Option<(Arc<Region>, Arc<ProcessSlots>)> {
    KEPT.lock().iter().find(|(region, _)| is_there(region, segment)).cloned()
}

/// Gives the memory of segments back that this process has left: `is_over` says of which.
fn forget(is_over: impl Fn(&Region) -> bool) {
    // An attachment has the process slots, too.
    KEPT.lock().retain(|(region, processes)| Arc::strong_count(processes) > 1 || !is_over(region));
}

/// Gives the memory back of the segment at that path, if this process has left it.
pub fn forget_left(segment: &Path) {
    forget(|region| is_there(region, segment));
}

/// Gives the memory back of segments that were removed.
pub fn forget_removed() {
    forget(|region| region.fd().is_some_and(|fd| fstat(fd).is_ok_and(|stat| stat.st_nlink == 0)));
}

fn keep(place: &InstancePaths, region: &Arc<Region>, processes: &Arc<ProcessSlots>) {
    let mut kept = KEPT.lock();
    if !kept.iter().any(|(known, _)| Arc::ptr_eq(known, region)) {
        // Entries of removed segments have no locks to lose.
        kept.retain(|(known, _)| !known.fd().is_some_and(|fd| fstat(fd).is_ok_and(|stat| stat.st_nlink == 0)));
        if is_there(region, &place.segment) {
            kept.push((Arc::clone(region), Arc::clone(processes)));
        }
    }
}

fn processes(region: &Arc<Region>, layout: &Layout, locks: OwnedFd) -> Result<Arc<ProcessSlots>, Error> {
    let no_memory = |error| Error::new(Kind::System, Errno::NOMEM, format!("memory for the process slots: {error}"));
    Ok(Arc::new(ProcessSlots::open(Arc::clone(region), layout.processes_at(), locks).map_err(no_memory)?))
}

impl Found {
    fn attach(self) -> Result<Attachment, Error> {
        let Found { region, processes, ssd, without, running, place } = self;
        if let Some(place) = &place {
            keep(place, &region, &processes);
        }
        let group = place.as_ref().and_then(|place| place.sharing.group);
        let (note, listed) = (note_of(&running), Arc::new(Listed::default()));
        let opened = OpenLocals::default();
        let around = Arc::new(CacheEnvironment {
            direct: running.direct,
            notes: Mutex::default(),
            note,
            group,
            listed,
            opened,
            slow: Default::default(),
            clock: ClockOffset::now(),
        });
        if let Some(error) = &without {
            around.report(&format!("the cache goes on without its SSD: {error}"));
        }
        let sizes = Layout::read(&region).map_err(|why| Error::new(Kind::Segment, Errno::PROTO, why.to_string()))?.sizes();
        let parts = Parts {
            region: Arc::clone(&region),
            processes: Arc::clone(&processes),
            device: ssd.as_ref().map(|ssd| Arc::clone(&ssd.device)),
            plain: ssd.as_ref().map(|ssd| Arc::clone(&ssd.plain)),
            world: Arc::clone(&around) as Arc<dyn datapath::engine::Environment>,
            limits: limits(&running, &sizes, u64::from(sizes.frames.frames) * 4096),
        };
        let engine = CacheEngine::attach(parts).map_err(|failed| match failed {
            EngineAttachError::NoProcessSlot(why) => Error::new(Kind::Full, Errno::NFILE, format!("the cache `{}`: {why}", running.name)),
            other => Error::new(Kind::Segment, Errno::PROTO, format!("the cache `{}`: {other}", running.name)),
        })?;
        let leads = Arc::clone(&engine);
        let worker = std::thread::Builder::new().name("hotshelf-lead".into()).spawn(move || leads.work());
        let worker = worker.map_err(|error| {
            engine.detach();
            engine.free_process_slot();
            Error::new(Kind::System, Errno::from_io_error(&error).unwrap_or(Errno::AGAIN), format!("a thread for the cache: {error}"))
        })?;
        let rules = Rules::new(&running.rules)?;
        let watch = Watch::new();
        Ok(Attachment {
            engine,
            around,
            rules,
            ssd,
            without,
            watch,
            place,
            region,
            processes,
            running,
            open_files: Arc::default(),
            pinned: AtomicUsize::new(0),
            worker: Mutex::new(Some(worker)),
        })
    }
}
