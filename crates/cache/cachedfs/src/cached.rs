//! An open file that goes through the cache, in one process.
//!
//! *Pass-through*: while it is in force, calls go to the file as they are, past the engine. Before the first of them that writes,
//! what is cached of the file is dropped; when the mode changes while one is under way, what it wrote is dropped once more;
//! and when it is over, the file is looked at as if others had written it.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use datapath::shelf::{Advice, How, Open, OpenFailed, Shelf};
use pagecache::shared::Pin;
use parking_lot::Mutex;
use rustix::fs::{OFlags, fstat};
use rustix::io::Errno;
use ssdcache::{Mode, PAGE_BYTES};

use crate::attach::Attachment;
use crate::below::{Local, is_removed, path_of};
use crate::watch::Watched;

/// See the module.
pub struct Cached {
    /// The engine's.
    pub open: Open,
    /// The file below, to read and, if we may, to write.
    pub local: Arc<Local>,
    /// Of the process that took it in.
    pub generation: u32,
    /// The last change of the mode that was noticed, and bits above it: [`BARE`], [`DROPPED`], [`REFUSES_WRITES`], [`IS_NEW`].
    settled: AtomicU64,
    settling: Mutex<()>,
    age: Option<(Duration, Mutex<Instant>)>,
    watched: OnceLock<i32>,
    /// Of a group's cache: the directories on its path, and what the file said of its rights when it was last looked at.
    shared: Option<Mutex<Shared>>,
    /// Pages that stay.
    pins: Mutex<Vec<Pin>>,
    part: Arc<Attachment>,
    /// Dropped last.
    _counted: Counted,
}

/// See [`Cached::check_shared`].
struct Shared {
    rights: (u32, u32, u32),
    directories: Vec<i32>,
}

/// Mode, owner and group.
fn rights_of(stat: &rustix::fs::Stat) -> (u32, u32, u32) {
    (stat.st_mode, stat.st_uid, stat.st_gid)
}

/// Calls go to the file as they are.
const BARE: u64 = 1 << 33;
/// What was cached of it has been dropped since.
const DROPPED: u64 = 1 << 32;
/// It is bare, in read-only mode.
const REFUSES_WRITES: u64 = 1 << 34;
/// It was opened a moment ago, and compared with the backing file then.
const IS_NEW: u64 = 1 << 35;

/// One of those that are open in this process.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl std::fmt::Debug for Cached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cached({:?}, {:?})", self.open.key(), self.open.mode())
    }
}

/// What is opened.
#[derive(Debug)]
pub struct Opening {
    /// The file below.
    pub local: Arc<Local>,
    /// As the rules have it.
    pub how: How,
    /// How it will be read.
    pub advice: Advice,
    /// Its pages stay in memory, as far as there is room for such.
    pub pin: bool,
    /// After a conflict, what is below counts.
    pub discard: bool,
    /// What it writes is below after so long.
    pub dirty_age: Option<Duration>,
}

impl Cached {
    /// Takes it in.
    ///
    /// # Errors
    /// As [`OpenFailed`] says.
    pub fn open(to: &Arc<Attachment>, opening: &Opening, count: &Arc<AtomicUsize>) -> Result<Arc<Cached>, OpenFailed> {
        let Opening { local, how, advice, pin, discard, dirty_age } = opening;
        let key = crate::key::key_of(local.fd()).map_err(OpenFailed::Failed)?;
        let path = path_of(local.fd()).ok_or(OpenFailed::Failed(Errno::NOENT))?;
        let mut how = *how;
        if to.shelf.has_ssd() && !crate::key::is_lasting(local.fd()).map_err(OpenFailed::Failed)? {
            how.mode = how.mode.within(Mode::WriteThrough);
        }
        let open = || to.shelf.open(key, &path, how, Arc::clone(local) as Arc<dyn datapath::shelf::Below>);
        let open = match open() {
            Err(OpenFailed::Conflict) if *discard => {
                to.shelf.discard(key, &**local).map_err(OpenFailed::Failed)?;
                open()?
            }
            opened => opened?,
        };
        count.fetch_add(1, Ordering::AcqRel);
        let counted = Counted(Arc::clone(count));
        let made = Arc::new(Cached {
            settled: AtomicU64::new(u64::from(to.shelf.mode_changes().wrapping_sub(1)) | IS_NEW),
            settling: Mutex::new(()),
            local: Arc::clone(local),
            generation: crate::forks::now(),
            age: dirty_age.map(|age| (age, Mutex::new(Instant::now()))),
            watched: OnceLock::new(),
            shared: to.group().map(|_| Mutex::new(Shared { rights: (0, 0, 0), directories: Vec::new() })),
            pins: Mutex::default(),
            part: Arc::clone(to),
            _counted: counted,
            open,
        });
        let watched: Weak<dyn Watched> = Arc::downgrade(&made) as _;
        if let Some(number) = to.watch.add(local.fd(), &watched) {
            let _ = made.watched.set(number);
        }
        if dirty_age.is_some() {
            to.watch.add_timed(&watched);
        }
        if let Some(shared) = &made.shared {
            // Watched first, then looked at: what changes in between is noticed.
            shared.lock().directories = made.watch_directories(&watched);
            made.check_shared(true);
            let is_writable = rustix::fs::fcntl_getfl(local.fd()).is_ok_and(|flags| flags & OFlags::RWMODE != OFlags::RDONLY);
            if is_writable && made.open.mode().keeps_dirty() {
                // If it cannot, the first sync says so.
                let _ = made.open.prepare_to_write();
            }
        }
        made.open.advise(*advice);
        let is_bare = made.is_bare().map_err(OpenFailed::Failed)?;
        if *pin && !is_bare {
            made.keep_pages();
        }
        Ok(made)
    }

    /// The engine.
    #[inline]
    pub fn shelf(&self) -> &Arc<Shelf> {
        self.open.shelf()
    }

    /// The time, of the coarse clock.
    #[inline]
    pub fn now_ms(&self) -> u32 {
        datapath::shelf::World::now_ms(&*self.part.around)
    }

    /// As `is_bare`. None: the mode changed since the last call, which is to be looked at.
    #[inline(always)]
    pub fn is_settled_bare(&self) -> Option<bool> {
        let (now, settled) = (u64::from(self.shelf().mode_changes()), self.settled.load(Ordering::Acquire));
        if settled == now {
            return Some(false);
        }
        std::hint::cold_path();
        (settled & !(DROPPED | REFUSES_WRITES) == now | BARE).then_some(true)
    }

    /// Whether calls go to the file as they are.
    #[inline(always)]
    pub fn is_bare(&self) -> Result<bool, Errno> {
        match self.is_settled_bare() {
            Some(is_bare) => Ok(is_bare),
            None => self.settle(),
        }
    }

    /// The mode changed since the last call.
    #[cold]
    #[inline(never)]
    fn settle(&self) -> Result<bool, Errno> {
        let _settling = self.settling.lock();
        loop {
            let change = self.shelf().mode_changes();
            let is_bare = self.open.bypasses_cache();
            let refuses_writes = is_bare && self.open.mode() == Mode::ReadOnly;
            // All others come here, too, until it is done.
            let before = self.settled.swap(u64::from(change.wrapping_sub(1)), Ordering::AcqRel);
            let was_bare = before & BARE != 0;
            if is_bare != was_bare && self.watched.get().is_some() {
                self.part.watch.mind_writes(self.fd(), !is_bare);
            }
            if !is_bare && before & IS_NEW == 0 {
                // It may have been bare for other processes, without a call of this one meanwhile.
                match self.look_below() {
                    // The cache's pages are read in a conflict, unless this process itself has just read the file without them.
                    Err(Errno::STALE) if !was_bare => {}
                    looked => looked?,
                }
            }
            let bits = if is_bare { BARE } else { 0 } | if refuses_writes { REFUSES_WRITES } else { 0 };
            self.settled.store(u64::from(change) | bits, Ordering::Release);
            // Somebody else who has the file open may have settled meanwhile, as it is now.
            if self.shelf().mode_changes() == change {
                return Ok(is_bare);
            }
        }
    }

    fn watch_directories(&self, watched: &Weak<dyn Watched>) -> Vec<i32> {
        let directories = path_of(self.fd()).and_then(|path| crate::group::directories(&path).ok()).unwrap_or_default();
        directories.iter().filter_map(|dir| self.part.watch.add_directory(dir.as_fd(), watched)).collect()
    }

    /// Of a group's cache: whether every member may still see the file. If not, nothing of it stays in the segment, and from then on it is
    /// used
    /// past the cache by all. Without `anyway`, its path is looked at only if its rights have changed.
    pub fn check_shared(&self, anyway: bool) {
        let Some(shared) = &self.shared else { return };
        let Ok(stat) = fstat(self.fd()) else { return };
        // Held to the end: who looks meanwhile finds it done.
        let mut shared = shared.lock();
        let before = std::mem::replace(&mut shared.rights, rights_of(&stat));
        if (anyway || before != rights_of(&stat)) && !self.part.may_share(self.fd()) {
            // What could not be written below is told by the next flush.
            let _ = self.part.withdraw(self.fd());
        }
    }

    /// Looks whether somebody else changed the file.
    ///
    /// # Errors
    /// ESTALE: and there were changes of ours.
    pub fn look_below(&self) -> Result<(), Errno> {
        self.check_shared(false);
        self.open.look_below().map_err(|failed| match failed {
            OpenFailed::Conflict => Errno::STALE,
            OpenFailed::Failed(errno) => errno,
            _ => Errno::IO,
        })?;
        // Somebody else made it longer than pages have names.
        let is_too_long = self.open.size() >= crate::limits::FILE_BYTES_MAX && !self.open.bypasses_cache();
        if is_too_long { self.open.set_mode(Mode::PassThrough) } else { Ok(()) }
    }

    /// A call that changes the file past the cache: in pass-through. `range`: of bytes.
    ///
    /// # Errors
    /// EROFS in read-only mode; what was cached could not be dropped; or the call's own.
    #[inline(always)]
    pub fn past<T>(&self, range: Range<u64>, call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        let settled = self.settled.load(Ordering::Acquire);
        if settled & REFUSES_WRITES != 0 {
            return Err(Errno::ROFS);
        }
        if settled & (BARE | DROPPED) != BARE | DROPPED {
            self.drop_all(settled)?;
        }
        let result = call();
        // Compared with what was before the call: others may have settled since, and have read what it wrote over.
        if settled & !DROPPED != u64::from(self.shelf().mode_changes()) | BARE {
            // First: until the change is known to be ours, whoever looks drops what is older.
            self.drop_range(range)?;
            self.open.was_changed_past();
        }
        result
    }

    /// Likewise where nothing is to be dropped before. None: something is, or afterwards: `past` does all of it, once more.
    #[inline(always)]
    pub fn past_at_once<T>(&self, call: impl FnOnce() -> Result<T, Errno>) -> Option<Result<T, Errno>> {
        let settled = self.settled.load(Ordering::Acquire);
        if settled & (BARE | DROPPED | REFUSES_WRITES) != BARE | DROPPED {
            return None;
        }
        let result = call();
        (settled & !DROPPED == u64::from(self.shelf().mode_changes()) | BARE).then_some(result)
    }

    /// Before the first change past the cache.
    #[cold]
    #[inline(never)]
    fn drop_all(&self, settled: u64) -> Result<(), Errno> {
        self.open.clean()?;
        self.open.discard()?;
        if settled & BARE != 0 {
            // Unless the mode has changed meanwhile: what was cached since is not dropped.
            let _ = self.settled.compare_exchange(settled, settled | DROPPED, Ordering::AcqRel, Ordering::Relaxed);
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn drop_range(&self, range: Range<u64>) -> Result<(), Errno> {
        self.open.drop_pages(range.start / PAGE_BYTES as u64..range.end.div_ceil(PAGE_BYTES as u64))
    }

    /// Reads all its pages and pins them, until a quarter of the memory is pinned by this process.
    fn keep_pages(&self) {
        let most = self.shelf().sizes().frames.frames as usize / 4;
        let mut pins = self.pins.lock();
        for page in 0..self.open.size().div_ceil(PAGE_BYTES as u64) {
            if self.part.pinned.fetch_add(1, Ordering::AcqRel) >= most {
                self.part.pinned.fetch_sub(1, Ordering::AcqRel);
                return;
            }
            match self.open.pin(page * PAGE_BYTES as u64, PAGE_BYTES) {
                Ok((pin, ..)) => pins.push(pin),
                // No room, or it cannot be read: whoever reads it is told.
                Err(_) => {
                    self.part.pinned.fetch_sub(1, Ordering::AcqRel);
                    return;
                }
            }
        }
    }

    /// Its name may be another, or gone.
    pub fn look_for_name(&self) {
        match path_of(self.fd()) {
            // Not even its name stays where not all may see it.
            Some(_) if !self.part.may_share(self.fd()) => self.check_shared(true),
            Some(path) => self.open.renamed(&path),
            None if is_removed(self.fd()) => self.open.unlinked(),
            None => {}
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.local.fd()
    }
}

impl Watched for Cached {
    fn touched(&self) {
        // A conflict stays marked, and is told by the next sync.
        let _ = self.look_below();
        self.check_shared(true);
        self.look_for_name();
    }

    fn tick(&self, now: Instant) -> bool {
        let Some((age, last)) = &self.age else { return false };
        let mut last = last.lock();
        if now.duration_since(*last) >= *age / 2 {
            *last = now;
            // What fails is told by the next sync.
            let _ = self.open.clean();
        }
        true
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        if is_removed(self.fd()) {
            self.open.unlinked();
        }
        if let Some(number) = self.watched.get() {
            self.part.watch.remove(*number);
        }
        if let Some(shared) = &mut self.shared {
            shared.get_mut().directories.drain(..).for_each(|number| self.part.watch.remove(number));
        }
        for pin in self.pins.get_mut().drain(..) {
            self.open.unpin(pin);
            self.part.pinned.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    use rustix::fs::CWD;

    use super::*;
    use crate::{Config, Instance, Options, Size};

    #[test]
    fn what_was_cached_while_a_call_went_past_is_dropped() {
        let dir = tempfile::tempdir().expect("a directory");
        let config = Config { memory: Some(Size::Bytes(1 << 20)), runtime_dir: dir.path().to_owned(), files: 64, ..Config::default() };
        let instance = Instance::open(&config).expect("an instance");
        let path = dir.path().join("file");
        std::fs::write(&path, "before").expect("written");
        let below = std::fs::File::options().write(true).open(&path).expect("opened");
        let file = instance.open_file(CWD, &path, OFlags::RDWR | OFlags::CLOEXEC, rustix::fs::Mode::empty(), &Options::default());
        let file = file.expect("opened");
        let cached = Arc::clone(file.to_read().expect("through the cache"));
        file.set_mode(Mode::PassThrough).expect("switched");
        assert_eq!(cached.is_bare(), Ok(true));
        let call = || {
            // Another thread's, between the look at the mode and the write.
            file.set_mode(Mode::WriteBack).expect("switched");
            assert_eq!(&*file.view(0..100).expect("read"), b"before");
            below.write_all_at(b"later!", 0).map_err(|_| Errno::IO)
        };
        cached.past(0..6, call).expect("written");
        assert_eq!(&*file.view(0..100).expect("read"), b"later!");
        file.set_mode(Mode::PassThrough).expect("switched");
        assert_eq!(cached.is_bare(), Ok(true));
        assert!(cached.past_at_once(|| Ok(())).is_none(), "what was read is to be dropped");
        cached.past(0..6, || Ok(())).expect("dropped");
        assert!(cached.past_at_once(|| Ok(())).is_some());
        let call = || {
            file.set_mode(Mode::WriteBack).expect("switched");
            Ok(())
        };
        assert!(cached.past_at_once(call).is_none(), "what others have read meanwhile is to be dropped");
    }

    fn instance_with_file(dir: &Path) -> (Arc<Instance>, crate::File, Arc<Cached>) {
        let config = Config { memory: Some(Size::Bytes(1 << 20)), runtime_dir: dir.to_owned(), files: 64, ..Config::default() };
        let instance = Instance::open(&config).expect("an instance");
        std::fs::write(dir.join("file"), "before").expect("written");
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = instance.open_file(CWD, &dir.join("file"), flags, rustix::fs::Mode::empty(), &Options::default()).expect("opened");
        let cached = Arc::clone(file.to_read().expect("through the cache"));
        (instance, file, cached)
    }

    #[test]
    fn a_file_has_the_length_that_a_call_past_the_cache_gave_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let (_instance, file, cached) = instance_with_file(dir.path());
        for len in [100, 3] {
            file.set_mode(Mode::PassThrough).expect("switched");
            assert_eq!(cached.is_bare(), Ok(true));
            let call = || {
                file.set_mode(Mode::WriteBack).expect("switched");
                assert!(file.len().is_ok());
                rustix::fs::ftruncate(file.fd(), len)
            };
            cached.past(0..u64::MAX, call).expect("truncated");
            assert_eq!(file.len().expect("a length"), len);
        }
    }

    #[test]
    fn a_file_that_bypasses_the_cache_does_so_in_read_only_mode() {
        let dir = tempfile::tempdir().expect("a directory");
        let (instance, file, cached) = instance_with_file(dir.path());
        assert_eq!(&*file.view(0..100).expect("read"), b"before");
        file.set_mode(Mode::PassThrough).expect("switched");
        instance.set_mode(Mode::ReadOnly).expect("switched");
        // A mapping would write so, and change neither size nor times.
        let mtime = rustix::fs::fstat(file.fd()).expect("stat");
        std::fs::File::options().write(true).open(dir.path().join("file")).expect("opened").write_all_at(b"later!", 0).expect("written");
        let time = rustix::fs::Timespec { tv_sec: mtime.st_mtime, tv_nsec: mtime.st_mtime_nsec as _ };
        rustix::fs::futimens(file.fd(), &rustix::fs::Timestamps { last_access: time, last_modification: time }).expect("times");
        assert_eq!(&*file.view(0..100).expect("read"), b"later!");
        assert_eq!(cached.is_bare(), Ok(true));
        let read_only = Errno::ROFS.raw_os_error();
        let errno = |result: Result<(), crate::Error>| result.expect_err("read-only").errno();
        assert_eq!(errno(file.write_at(0, b"x").map(drop)), read_only);
        assert_eq!(errno(file.append(b"x").map(drop)), read_only);
        assert_eq!(errno(file.set_len(3)), read_only);
        assert_eq!(errno(file.punch_hole(0..3)), read_only);
        assert_eq!(errno(file.allocate(0..9000, false)), read_only);
        assert_eq!(errno(file.prepare_mapping(true)), read_only);
        assert!(cached.past_at_once(|| Ok(())).is_none());
        instance.set_mode(Mode::WriteBack).expect("switched");
        assert_eq!(file.write_at(0, b"x").map_err(|error| error.errno()), Ok(1));
    }
}
