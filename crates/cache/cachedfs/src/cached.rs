//! An open file of the cache, in one process.
//!
//! *Pass-through*: calls bypass the cache and go to the backing file. Before the first write, the cached pages of the file are dropped.
//! When pass-through ends, each process waits until such calls of all processes have ended. Then it compares the backing file with its
//! record, as after a change by another program. Only then it uses the cache.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use datapath::engine::{Advice, BackingFile, CacheEngine, Open, OpenFileError, OpenOptions};
use pagecache::Pin;
use parking_lot::Mutex;
use rustix::fs::{OFlags, fstat};
use rustix::io::Errno;
use ssdcache::{FileKey, Mode, PAGE_BYTES};

use crate::attach::Attachment;
use crate::below::{CacheEnvironment, Local};
use crate::descriptor::{is_removed, lost_path_of, path_of};
use crate::watch::Watched;

/// An open file of the cache in this process.
pub struct Cached {
    /// The file in the cache engine.
    pub open: Open,
    /// The backing file, open for reading and, if the process may write it, for writing.
    pub local: Arc<Local>,
    /// The generation of the process that opened it.
    pub generation: u32,
    /// The last change of the mode that was noticed, and bits above it: [`BYPASSES`], [`DROPPED`], [`REFUSES_WRITES`], [`IS_NEW`].
    settled: AtomicU64,
    settling: Mutex<()>,
    age: Option<(Duration, Mutex<Instant>)>,
    watched: OnceLock<i32>,
    /// In a group's cache: the watched directories on the file's path, and its permissions when they were last checked.
    shared: Option<Mutex<Shared>>,
    /// Pages that stay in memory while the file is open.
    pins: Mutex<Vec<Pin>>,
    part: Arc<Attachment>,
    /// Dropped last.
    _counted: Counted,
}

/// What [`Cached::check_shared`] remembers.
struct Shared {
    rights: (u32, u32, u32),
    directories: Vec<i32>,
}

/// Returns mode, owner and group.
fn rights_of(stat: &rustix::fs::Stat) -> (u32, u32, u32) {
    (stat.st_mode, stat.st_uid, stat.st_gid)
}

/// Calls bypass the cache.
const BYPASSES: u64 = 1 << 33;
/// The cached pages of the file were dropped since it bypasses the cache.
const DROPPED: u64 = 1 << 32;
/// It bypasses the cache, and the instance or the file is read-only.
const REFUSES_WRITES: u64 = 1 << 34;
/// It was just opened, and compared with the backing file.
const IS_NEW: u64 = 1 << 35;

/// Counts an open file of this process, and offers its descriptor to the leader, until it is dropped.
struct Counted {
    count: Arc<AtomicUsize>,
    around: Arc<CacheEnvironment>,
    key: FileKey,
    local: Arc<Local>,
}

impl Counted {
    fn new(count: &Arc<AtomicUsize>, to: &Attachment, key: FileKey, local: &Arc<Local>) -> Counted {
        count.fetch_add(1, Ordering::AcqRel);
        to.around.opened.add(key, local);
        Counted { count: Arc::clone(count), around: Arc::clone(&to.around), key, local: Arc::clone(local) }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.around.opened.remove(self.key, &self.local);
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}

impl std::fmt::Debug for Cached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cached({:?}, {:?})", self.open.key(), self.open.mode())
    }
}

/// A file to be opened, and how.
#[derive(Debug)]
pub struct Opening {
    /// The backing file, which is open already.
    pub local: Arc<Local>,
    /// Mode and admission, from the rules and the options.
    pub how: OpenOptions,
    /// The expected pattern of reads.
    pub advice: Advice,
    /// Whether its pages are pinned in memory, as far as the limit for pinned pages allows.
    pub pin: bool,
    /// Whether a conflict is resolved by discarding the dirty pages.
    pub discard: bool,
    /// How long its writes may stay dirty.
    pub dirty_age: Option<Duration>,
}

impl Cached {
    /// Opens a file in the cache engine and watches it.
    ///
    /// # Errors
    /// Those of [`OpenFileError`].
    pub fn open(to: &Arc<Attachment>, opening: &Opening, count: &Arc<AtomicUsize>) -> Result<Arc<Cached>, OpenFileError> {
        let Opening { local, how, advice, pin, discard, dirty_age } = opening;
        let key = crate::key::key_of(local.fd()).map_err(OpenFileError::Failed)?;
        // A file that has no name any more is cached while it is open. One that has another name is written back at its last close.
        let path = path_of(local.fd()).or_else(|| to.engine.known_path(key)).or_else(|| lost_path_of(local.fd()));
        let path = path.ok_or(OpenFileError::Failed(Errno::NOENT))?;
        let mut how = *how;
        if to.engine.has_ssd() && !crate::key::is_lasting(local.fd()).map_err(OpenFileError::Failed)? {
            how.mode = how.mode.within(Mode::WriteThrough);
        }
        let changes = to.engine.mode_changes();
        let counted = Counted::new(count, to, key, local);
        let open = || to.engine.open(key, &path, how, Arc::clone(local) as Arc<dyn BackingFile>);
        let open = match open() {
            Err(OpenFileError::Conflict) if *discard => {
                to.engine.discard(key, &**local).map_err(OpenFileError::Failed)?;
                open()?
            }
            opened => opened?,
        };
        let made = Arc::new(Cached {
            settled: AtomicU64::new(u64::from(changes.wrapping_sub(1)) | IS_NEW),
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
        let bypasses = made.bypasses().map_err(OpenFileError::Failed)?;
        if *pin && !bypasses {
            made.keep_pages();
        }
        Ok(made)
    }

    /// Returns the cache engine of the file.
    #[inline]
    pub fn engine(&self) -> &Arc<CacheEngine> {
        self.open.engine()
    }

    /// Returns the time of the coarse clock in milliseconds.
    #[inline]
    pub fn now_ms(&self) -> u32 {
        datapath::engine::Environment::now_ms(&*self.part.around)
    }

    /// Returns what `bypasses` does, or none if the mode changed since the last call.
    #[inline(always)]
    pub fn is_settled_bypass(&self) -> Option<bool> {
        let (now, settled) = (u64::from(self.engine().mode_changes()), self.settled.load(Ordering::Acquire));
        if settled == now {
            return Some(false);
        }
        std::hint::cold_path();
        // A leader that dies after it has set a mode does not count that: others may use the cache by then.
        (settled & !(DROPPED | REFUSES_WRITES) == now | BYPASSES && self.open.bypasses_cache()).then_some(true)
    }

    /// Returns whether calls bypass the cache.
    #[inline(always)]
    pub fn bypasses(&self) -> Result<bool, Errno> {
        match self.is_settled_bypass() {
            Some(bypasses) => Ok(bypasses),
            None => self.settle(),
        }
    }

    /// Finds out, after a change of the mode, whether calls bypass the cache.
    #[cold]
    #[inline(never)]
    fn settle(&self) -> Result<bool, Errno> {
        let _settling = self.settling.lock();
        loop {
            let change = self.engine().mode_changes();
            let bypasses = self.open.bypasses_cache();
            let refuses_writes = bypasses && self.open.mode() == Mode::ReadOnly;
            // The mode may have changed before the change is counted.
            let unchanged = u64::from(self.engine().mode_changes().wrapping_sub(1)) | IS_NEW;
            if bypasses && self.open.is_dirty().unwrap_or(false) {
                // The backing file is read from now on. The next flush reports what could not be written.
                let _ = self.open.clean();
            }
            let has_waited = !bypasses && self.open.wait_for_past()?;
            // Until this is done, the calls of other threads come here, too.
            let before = self.settled.swap(u64::from(change.wrapping_sub(1)), Ordering::AcqRel);
            let has_bypassed = before & BYPASSES != 0;
            if bypasses != has_bypassed && self.watched.get().is_some() {
                self.part.watch.mind_writes(self.fd(), !bypasses);
            }
            if !bypasses && (has_waited || before != unchanged) {
                // Other processes may have bypassed the cache while this one made no call, or since it opened the file.
                match self.look_below() {
                    // In a conflict the cached pages are read, unless this process has just read the backing file.
                    Err(Errno::STALE) if !has_bypassed => {}
                    looked => looked?,
                }
            }
            let bits = if bypasses { BYPASSES } else { 0 } | if refuses_writes { REFUSES_WRITES } else { 0 };
            self.settled.store(u64::from(change) | bits, Ordering::Release);
            if self.engine().mode_changes() == change {
                return Ok(bypasses);
            }
        }
    }

    fn watch_directories(&self, watched: &Weak<dyn Watched>) -> Vec<i32> {
        let directories = path_of(self.fd()).and_then(|path| crate::group::directories(&path).ok()).unwrap_or_default();
        directories.iter().filter_map(|dir| self.part.watch.add_directory(dir.as_fd(), watched)).collect()
    }

    /// Checks, in a group's cache, whether every member may still read the file. If not, its pages are removed from the segment, and all
    /// processes bypass the cache for it from then on. Without `anyway`, its path is checked only if its permissions have changed.
    pub fn check_shared(&self, anyway: bool) {
        let Some(shared) = &self.shared else { return };
        let Ok(stat) = fstat(self.fd()) else { return };
        // Held to the end, so that a concurrent check waits for the result.
        let mut shared = shared.lock();
        let before = std::mem::replace(&mut shared.rights, rights_of(&stat));
        if (anyway || before != rights_of(&stat)) && !self.part.may_share(self.fd()) {
            // The next flush reports what could not be written back.
            let _ = self.part.withdraw(self.fd());
        }
    }

    /// Checks whether another program changed the file.
    ///
    /// # Errors
    /// ESTALE: another program changed it, and it has dirty pages.
    pub fn look_below(&self) -> Result<(), Errno> {
        self.check_shared(false);
        self.open.look_below().map_err(|failed| match failed {
            OpenFileError::Conflict => Errno::STALE,
            OpenFileError::Failed(errno) => errno,
            _ => Errno::IO,
        })?;
        // Another program made it longer than the cache can index.
        let is_too_long = self.open.size() >= crate::limits::FILE_BYTES_MAX && !self.open.bypasses_cache();
        if is_too_long { self.open.set_mode(Mode::PassThrough) } else { Ok(()) }
    }

    /// Runs a call that changes the backing file, bypassing the cache. Returns none if it was not run, because the mode has changed: the
    /// caller has to find out again whether calls bypass the cache.
    ///
    /// # Errors
    /// EROFS in read-only mode; what was cached could not be dropped; or the call's own.
    #[inline(always)]
    pub fn bypass<T>(&self, call: impl FnOnce() -> Result<T, Errno>) -> Option<Result<T, Errno>> {
        let settled = self.settled.load(Ordering::Acquire);
        if settled & REFUSES_WRITES != 0 {
            return Some(Err(Errno::ROFS));
        }
        if settled & DROPPED == 0 {
            match self.drop_all(settled) {
                Ok(true) => {}
                Ok(false) => return self.settle_instead(),
                Err(errno) => return Some(Err(errno)),
            }
        }
        self.run_past(settled, call)
    }

    /// Runs a call past the cache if the file still bypasses it.
    #[inline(always)]
    fn run_past<T>(&self, settled: u64, call: impl FnOnce() -> Result<T, Errno>) -> Option<Result<T, Errno>> {
        let past = self.open.begin_past();
        if self.has_mode(settled) {
            return Some(call());
        }
        drop(past);
        // Others may use the cache by now: what they make dirty would overwrite what the call changes.
        self.settle_instead()
    }

    /// Finds out the mode again, so that a call that was not run takes the other path next. Returns none, or why that failed.
    #[cold]
    #[inline(never)]
    fn settle_instead<T>(&self) -> Option<Result<T, Errno>> {
        self.settle().err().map(Err)
    }

    /// Runs such a call if no page has to be dropped. Returns none if it was not run: the caller has to use `bypass`.
    #[inline(always)]
    pub fn bypass_at_once<T>(&self, call: impl FnOnce() -> Result<T, Errno>) -> Option<Result<T, Errno>> {
        let settled = self.settled.load(Ordering::Acquire);
        if settled & (BYPASSES | DROPPED | REFUSES_WRITES) != BYPASSES | DROPPED {
            return None;
        }
        let _past = self.open.begin_past();
        self.has_mode(settled).then(call)
    }

    /// Runs a call that changes the times of a file that bypasses the cache. Read-only mode allows that. Returns none if the mode has
    /// changed, as [`Cached::bypass`] does.
    ///
    /// # Errors
    /// Those of the call.
    pub fn set_times_past<T>(&self, call: impl FnOnce() -> Result<T, Errno>) -> Option<Result<T, Errno>> {
        self.run_past(self.settled.load(Ordering::Acquire), call)
    }

    /// Returns whether the file still bypasses the cache, as `settled` says.
    #[inline(always)]
    fn has_mode(&self, settled: u64) -> bool {
        settled & !(DROPPED | REFUSES_WRITES) == u64::from(self.engine().mode_changes()) | BYPASSES && self.open.bypasses_cache()
    }

    /// Drops all cached pages of the file, before the first write that bypasses the cache. Returns false if the mode has changed.
    #[cold]
    #[inline(never)]
    fn drop_all(&self, settled: u64) -> Result<bool, Errno> {
        let is_dropped = self.has_mode(settled) && self.open.drop_before_past(|| self.has_mode(settled))?;
        if is_dropped {
            // Not if the mode has changed: pages may have been cached since.
            let _ = self.settled.compare_exchange(settled, settled | DROPPED, Ordering::AcqRel, Ordering::Relaxed);
        }
        Ok(is_dropped)
    }

    /// Reads and pins its pages, until this process has pinned a quarter of the memory.
    fn keep_pages(&self) {
        let most = self.engine().sizes().frames.frames as usize / 4;
        let mut pins = self.pins.lock();
        for page in 0..self.open.size().div_ceil(PAGE_BYTES as u64) {
            if self.part.pinned.fetch_add(1, Ordering::AcqRel) >= most {
                self.part.pinned.fetch_sub(1, Ordering::AcqRel);
                return;
            }
            match self.open.pin(page * PAGE_BYTES as u64, PAGE_BYTES) {
                Ok((pin, ..)) => pins.push(pin),
                // No room, or an error that a read will report.
                Err(_) => {
                    self.part.pinned.fetch_sub(1, Ordering::AcqRel);
                    return;
                }
            }
        }
    }

    /// Records the new name of the file, or that it was removed.
    pub fn look_for_name(&self) {
        match path_of(self.fd()) {
            // Where not all members may read it, not even its name stays.
            Some(_) if !self.part.may_share(self.fd()) => self.check_shared(true),
            Some(_) => self.open.renamed(),
            None if is_removed(self.fd()) => self.open.unlinked(),
            None => {}
        }
    }

    /// Returns the descriptor by which this process has the file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.local.fd()
    }
}

impl Watched for Cached {
    fn touched(&self) {
        // A conflict stays marked: the next sync reports it.
        let _ = self.look_below();
        self.check_shared(true);
        self.look_for_name();
    }

    fn tick(&self, now: Instant) -> bool {
        let Some((age, last)) = &self.age else { return false };
        let mut last = last.lock();
        if now.duration_since(*last) >= *age / 2 {
            *last = now;
            // The next sync reports an error.
            let _ = self.open.clean();
        }
        true
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        if is_removed(self.fd()) {
            self.open.unlinked();
        } else if self.open.written_ns() != 0 && self.local.has_lost_name() {
            // It has another name, which nobody knows: written now, it need not be found later. The next flush reports an error.
            let _ = self.open.clean();
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

    /// The mode changes during a call past the cache: others use the cache only when it has ended.
    #[test]
    fn a_call_past_the_cache_is_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let (_instance, file, cached) = instance_with_file(dir.path());
        for is_at_once in [false, true] {
            file.set_mode(Mode::PassThrough).expect("switched");
            assert_eq!(cached.bypasses(), Ok(true));
            cached.bypass(|| Ok(())).expect("run").expect("dropped");
            std::thread::scope(|scope| {
                let (tell, begun) = std::sync::mpsc::channel();
                let other = scope.spawn(|| {
                    begun.into_iter().next().expect("it begins");
                    file.set_mode(Mode::WriteBack).expect("switched");
                    // To the same page.
                    file.write_at(3, b"ours")
                });
                let call = || {
                    tell.send(()).expect("it waits");
                    std::thread::sleep(Duration::from_millis(100));
                    assert!(!other.is_finished(), "it uses the cache beside a call past it");
                    rustix::io::pwrite(file.fd(), b"theirs and more", 0)
                };
                let written = if is_at_once { cached.bypass_at_once(call) } else { cached.bypass(call) }.expect("run");
                assert_eq!(written, Ok(15));
                assert_eq!(other.join().expect("it ends").expect("written"), 4);
            });
            // Neither a conflict nor a lost byte.
            file.sync(false).expect("synced");
            assert_eq!(cached.look_below(), Ok(()));
            assert_eq!(&*file.view(0..100).expect("read"), b"theoursand more");
        }
    }

    /// The mode changes between the decision to bypass the cache and the call: others may use the cache by then.
    #[test]
    fn a_call_past_the_cache_that_begins_late_is_not_run() {
        let dir = tempfile::tempdir().expect("a directory");
        let (_instance, file, cached) = instance_with_file(dir.path());
        file.set_mode(Mode::PassThrough).expect("switched");
        assert_eq!(cached.bypasses(), Ok(true));
        cached.bypass(|| Ok(())).expect("run").expect("dropped");
        let settled = cached.settled.load(Ordering::Acquire);
        file.set_mode(Mode::WriteBack).expect("switched");
        file.write_at(6, b" dirty").expect("written");
        let never = || -> Result<(), Errno> { unreachable!("the mode has changed") };
        // As in a thread that was stopped after it had found the file in pass-through, before or after it dropped the pages.
        for settled in [settled, settled & !DROPPED] {
            let runs = [Cached::bypass_at_once, Cached::bypass, Cached::set_times_past];
            for run in runs {
                cached.settled.store(settled, Ordering::Release);
                assert_eq!(run(&cached, never), None);
            }
            assert_eq!(cached.bypasses(), Ok(false));
        }
        cached.settled.store(settled, Ordering::Release);
        file.write_at(0, b"BE").expect("written");
        assert_eq!(&*file.view(0..100).expect("read"), b"BEfore dirty");
        file.write_at(0, b"X").expect("written");
        file.sync(false).expect("no conflict");
        assert_eq!(&*file.view(0..100).expect("read"), b"XEfore dirty");
    }

    /// The leader died after it had ended pass-through, before it counted that, and another process has written to the cache.
    #[test]
    fn a_mode_that_was_set_and_not_counted_is_in_force() {
        let dir = tempfile::tempdir().expect("a directory");
        let (_instance, file, cached) = instance_with_file(dir.path());
        file.set_mode(Mode::PassThrough).expect("switched");
        assert_eq!(cached.bypasses(), Ok(true));
        file.set_mode(Mode::WriteBack).expect("switched");
        file.write_at(0, b"dirty").expect("written");
        cached.settled.store(u64::from(cached.engine().mode_changes()) | BYPASSES, Ordering::Release);
        assert_eq!(&*file.view(0..100).expect("read"), b"dirtye");
        assert_eq!(cached.bypasses(), Ok(false));
    }

    /// Another program changes the file after pass-through has ended: that is found.
    #[test]
    fn a_change_by_another_program_after_pass_through_is_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let (_instance, file, cached) = instance_with_file(dir.path());
        let other = std::fs::File::options().write(true).open(dir.path().join("file")).expect("opened");
        file.set_mode(Mode::PassThrough).expect("switched");
        file.write_at(0, b"passed").expect("written");
        file.set_mode(Mode::WriteBack).expect("switched");
        assert_eq!(&*file.view(0..100).expect("read"), b"passed");
        other.write_all_at(b"others", 0).expect("written");
        assert_eq!(cached.look_below(), Ok(()));
        assert_eq!(&*file.view(0..100).expect("read"), b"others");
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

    /// A file that was opened by a name that is gone is the same file in the cache, with another name or without one.
    #[test]
    fn a_file_that_has_lost_a_name_is_cached() {
        let dir = tempfile::tempdir().expect("a directory");
        let (instance, file, _cached) = instance_with_file(dir.path());
        let name_only = OFlags::PATH | OFlags::CLOEXEC;
        let node = rustix::fs::open(dir.path().join("file"), name_only, rustix::fs::Mode::empty()).expect("opened");
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&node));
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        std::fs::hard_link(dir.path().join("file"), dir.path().join("other")).expect("linked");
        for name in ["file", "other"] {
            instance.unlink(CWD, &dir.path().join(name), rustix::fs::AtFlags::empty()).expect("removed");
            let again = instance.open_file(CWD, Path::new(&path), flags, rustix::fs::Mode::empty(), &Options::default()).expect("opened");
            assert!(again.is_cached(), "without the name `{name}`");
            file.write_at(0, name.as_bytes()).expect("written");
            assert!(again.view(0..100).expect("read").starts_with(name.as_bytes()));
        }
        drop(file);
        // Without a record of it, too, as long as it has a name.
        std::fs::write(dir.path().join("new"), "content").expect("written");
        let node = rustix::fs::open(dir.path().join("new"), name_only, rustix::fs::Mode::empty()).expect("opened");
        std::fs::rename(dir.path().join("new"), dir.path().join("moved")).expect("renamed");
        std::fs::hard_link(dir.path().join("moved"), dir.path().join("kept")).expect("linked");
        std::fs::remove_file(dir.path().join("moved")).expect("removed");
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&node));
        let open = || instance.open_file(CWD, Path::new(&path), flags, rustix::fs::Mode::empty(), &Options::default()).expect("opened");
        let lost = open();
        assert!(lost.is_cached());
        lost.write_at(0, b"CONTENT").expect("written");
        drop(lost);
        assert_eq!(std::fs::read(dir.path().join("kept")).expect("read"), b"CONTENT");
        assert_eq!(&*open().view(0..100).expect("read"), b"CONTENT");
    }

    #[test]
    fn a_file_has_the_length_that_a_call_past_the_cache_gave_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let (_instance, file, cached) = instance_with_file(dir.path());
        for len in [100, 3] {
            file.set_mode(Mode::PassThrough).expect("switched");
            assert_eq!(cached.bypasses(), Ok(true));
            let call = || {
                file.set_mode(Mode::WriteBack).expect("switched");
                rustix::fs::ftruncate(file.fd(), len)
            };
            cached.bypass(call).expect("run").expect("truncated");
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
        assert_eq!(cached.bypasses(), Ok(true));
        let read_only = Errno::ROFS.raw_os_error();
        let errno = |result: Result<(), crate::Error>| result.expect_err("read-only").errno();
        assert_eq!(errno(file.write_at(0, b"x").map(drop)), read_only);
        assert_eq!(errno(file.append(b"x").map(drop)), read_only);
        assert_eq!(errno(file.set_len(3)), read_only);
        assert_eq!(errno(file.punch_hole(0..3)), read_only);
        assert_eq!(errno(file.allocate(0..9000, false)), read_only);
        assert_eq!(errno(file.prepare_mapping(true)), read_only);
        assert!(cached.bypass_at_once(|| Ok(())).is_none());
        instance.set_mode(Mode::WriteBack).expect("switched");
        assert_eq!(file.write_at(0, b"x").map_err(|error| error.errno()), Ok(1));
    }
}
