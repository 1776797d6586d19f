//! Calls of the leader on file systems that may not reply: one such file system must not stop the leader, which serves all files.
//!
//! A helper thread makes the call. When it takes long, another one asks the same file system something simple (fstatfs(2)). If that does
//! not return either, the call is abandoned with EHOSTDOWN. Until it ends, other calls on that file system fail at once. So an abandoned
//! change of a file comes before all later ones of the leader; its error is kept for the next sync.
//!
//! Truncations and holes are not abandoned: writers do not wait for one that is late.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use datapath::engine::{BackingFile, Stamp};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::key::FileSystem;

/// How long a call takes before the file system is asked for a sign of life, and how long between two of them.
const QUIET: Duration = Duration::from_secs(2);
/// How long there may be no sign of life before a call that changes nothing is abandoned.
const READ_SILENCE: Duration = Duration::from_secs(2);
/// The same for a call that changes a file: its error reaches programs. Longer than the disks of a sleeping NAS take to start.
const CHANGE_SILENCE: Duration = Duration::from_secs(30);
/// The error of an abandoned call. ETIMEDOUT would say that the leader may still carry out a request.
const SILENT: Errno = Errno::HOSTDOWN;
/// Searches for files that may be abandoned and not have ended at a time.
const SEARCHES_MAX: usize = 16;
/// How long a search may take, whatever signs of life there are: it may wait for a file system that is not asked for them.
const SEARCH_MAX: Duration = Duration::from_secs(30);

type Job = Box<dyn FnOnce() + Send>;

/// A thread that makes calls, one after the other.
#[derive(Debug)]
struct Helper(Sender<Job>);

impl Helper {
    fn start(name: &str) -> io::Result<Helper> {
        let (send, jobs) = channel::<Job>();
        std::thread::Builder::new().name(name.into()).spawn(move || jobs.into_iter().for_each(|job| job()))?;
        Ok(Helper(send))
    }
}

/// The result of a call, and whether somebody waits for it.
enum CallState<T> {
    UnderWay,
    /// None: it has panicked.
    Done(Option<T>),
    Abandoned,
}

/// One file system that may not reply.
#[derive(Debug)]
pub struct SlowFileSystem {
    calls: Helper,
    probes: Helper,
    /// How long a call takes before the file system is asked for a sign of life.
    quiet: Duration,
    /// An abandoned call has not ended.
    is_stuck: Arc<AtomicBool>,
    /// The mount point by which it was found.
    mount: Option<PathBuf>,
    /// The mount points of searches that were abandoned and have not ended.
    stuck_searches: Arc<Mutex<Vec<PathBuf>>>,
}

impl SlowFileSystem {
    fn start(mount: Option<PathBuf>, stuck_searches: Arc<Mutex<Vec<PathBuf>>>) -> io::Result<SlowFileSystem> {
        let (calls, probes) = (Helper::start("hotshelf-slow")?, Helper::start("hotshelf-probe")?);
        Ok(SlowFileSystem { calls, probes, quiet: QUIET, is_stuck: Arc::default(), mount, stuck_searches })
    }

    /// Returns whether an abandoned call or search there has not ended.
    fn is_silent(&self) -> bool {
        let has_stuck_search = || self.mount.as_ref().is_some_and(|mount| self.stuck_searches.lock().contains(mount));
        self.is_stuck.load(SeqCst) || has_stuck_search()
    }

    /// Makes a call on the helper thread. `probe` returns whether the file system shows a sign of life; `late` gets the result of an
    /// abandoned call. Only one thread makes calls: the first abandoned call that ends lets the next ones pass.
    ///
    /// # Errors
    /// EHOSTDOWN: the file system shows no sign of life for `silence`, or the call takes longer than `longest`, or an abandoned call has
    /// not ended. EIO: the call has panicked.
    fn call<T: Send + 'static>(
        &self,
        (silence, longest): (Duration, Duration),
        work: impl FnOnce() -> T + Send + 'static,
        probe: impl Fn() -> bool + Send + Sync + Clone + 'static,
        late: impl FnOnce(T) + Send + 'static,
    ) -> Result<T, Errno> {
        if self.is_silent() {
            return Err(SILENT);
        }
        let state = Arc::new(Mutex::new(CallState::UnderWay));
        let (send, ended) = channel();
        let (theirs, is_stuck) = (Arc::clone(&state), Arc::clone(&self.is_stuck));
        let job = move || {
            // The helper goes on after a panic, of which the process has written a message.
            let result = catch_unwind(AssertUnwindSafe(work)).ok();
            let mut state = theirs.lock();
            if matches!(*state, CallState::Abandoned) {
                result.map(late);
                is_stuck.store(false, SeqCst);
            } else {
                *state = CallState::Done(result);
                let _ = send.send(());
            }
        };
        self.calls.0.send(Box::new(job)).map_err(|_| Errno::NOMEM)?;
        let begun = Instant::now();
        let mut asked: Option<(Instant, Arc<AtomicBool>)> = None;
        loop {
            let wait = asked.as_ref().map_or(self.quiet, |_| self.quiet.min(silence) / 8);
            if ended.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                break;
            }
            match asked.take() {
                Some((_, replied)) if replied.load(SeqCst) && begun.elapsed() < longest => {}
                Some((since, _)) if since.elapsed() >= silence || begun.elapsed() >= longest => {
                    let mut state = state.lock();
                    if matches!(*state, CallState::UnderWay) {
                        self.is_stuck.store(true, SeqCst);
                        *state = CallState::Abandoned;
                        return Err(SILENT);
                    }
                    break;
                }
                Some(still) => asked = Some(still),
                None => {
                    let (replied, ask) = (Arc::new(AtomicBool::new(false)), probe.clone());
                    let theirs = Arc::clone(&replied);
                    let job = move || {
                        theirs.store(ask(), SeqCst);
                    };
                    self.probes.0.send(Box::new(job)).map_err(|_| Errno::NOMEM)?;
                    asked = Some((Instant::now(), replied));
                }
            }
        }
        match std::mem::replace(&mut *state.lock(), CallState::Abandoned) {
            CallState::Done(Some(result)) => Ok(result),
            CallState::Done(None) | CallState::UnderWay | CallState::Abandoned => Err(Errno::IO),
        }
    }
}

/// A backing file on a file system that may not reply, for the leader.
pub struct GuardedFile<F: Send + Sync + 'static> {
    /// Taken when the file is closed.
    file: Option<Arc<F>>,
    side: Arc<SlowFileSystem>,
    /// The error of an abandoned change, which the file system tells once.
    late_error: Arc<Mutex<Option<io::Error>>>,
}

impl<F: Send + Sync + 'static> Drop for GuardedFile<F> {
    fn drop(&mut self) {
        // close(2) writes what a network file system has not written yet. After calls that are under way.
        if let Some(file) = self.file.take() {
            let _ = self.side.calls.0.send(Box::new(move || drop(file)));
        }
    }
}

impl<F: BackingFile + AsFd + 'static> GuardedFile<F> {
    fn file(&self) -> io::Result<Arc<F>> {
        self.file.clone().ok_or_else(|| Errno::BADF.into())
    }

    /// Makes a call that changes nothing.
    fn query<T: Send + 'static>(&self, query: impl FnOnce(&F) -> T + Send + 'static) -> io::Result<T> {
        let file = self.file()?;
        let probed = Arc::clone(&file);
        Ok(self.side.call((READ_SILENCE, Duration::MAX), move || query(&file), move || replies(&*probed), drop)?)
    }

    fn change(&self, change: impl FnOnce(&F) -> io::Result<()> + Send + 'static) -> io::Result<()> {
        let (file, late_error) = (self.file()?, Arc::clone(&self.late_error));
        let probed = Arc::clone(&file);
        let late = move |result: io::Result<()>| {
            if let Err(error) = result {
                *late_error.lock() = Some(error);
            }
        };
        self.side.call((CHANGE_SILENCE, Duration::MAX), move || change(&file), move || replies(&*probed), late)?.map_err(not_stalled)
    }

    /// Fails if an abandoned call has not ended.
    fn is_free(&self) -> io::Result<()> {
        if self.side.is_silent() { Err(SILENT.into()) } else { Ok(()) }
    }
}

/// Asks the file system of a file something. Any reply is one, an error too.
fn replies(file: impl AsFd) -> bool {
    let _ = rustix::fs::fstatfs(file);
    true
}

/// Replaces a network file system's own ETIMEDOUT: see [`SILENT`].
fn not_stalled(error: io::Error) -> io::Error {
    if error.raw_os_error() == Some(Errno::TIMEDOUT.raw_os_error()) { SILENT.into() } else { error }
}

impl<F: BackingFile + AsFd + 'static> BackingFile for GuardedFile<F> {
    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<usize> {
        let mut buffer = vec![0; to.len()];
        let (read, buffer) = self.query(move |file| {
            let read = file.read_at(at, &mut buffer);
            (read, buffer)
        })?;
        let read = read.map_err(not_stalled)?;
        to[..read].copy_from_slice(&buffer[..read]);
        Ok(read)
    }

    fn write_at(&self, at: u64, from: &[u8]) -> io::Result<()> {
        let bytes = from.to_vec();
        self.change(move |file| file.write_at(at, &bytes))
    }

    fn sync(&self) -> io::Result<()> {
        self.is_free()?;
        self.late_error.lock().take().map_or(Ok(()), Err)?;
        self.change(BackingFile::sync)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.is_free()?;
        self.file()?.set_len(len).map_err(not_stalled)
    }

    fn punch(&self, at: u64, len: u64) -> io::Result<()> {
        self.is_free()?;
        self.file()?.punch(at, len).map_err(not_stalled)
    }

    fn set_mtime(&self, ns: u64) -> io::Result<()> {
        self.change(move |file| file.set_mtime(ns))
    }

    fn stamp(&self) -> io::Result<Stamp> {
        self.query(BackingFile::stamp)?.map_err(not_stalled)
    }

    fn is_removed(&self) -> bool {
        self.query(BackingFile::is_removed).unwrap_or(false)
    }

    fn has_lost_name(&self) -> bool {
        self.query(BackingFile::has_lost_name).unwrap_or(false)
    }

    fn path(&self) -> Option<PathBuf> {
        self.query(BackingFile::path).ok()?
    }
}

/// The slow file systems that the leader has used.
#[derive(Debug, Default)]
pub struct SlowFileSystems {
    by_device: Mutex<HashMap<u64, Arc<SlowFileSystem>>>,
    search: Mutex<Option<Arc<SlowFileSystem>>>,
    /// The mount points of searches that were abandoned and have not ended.
    stuck: Arc<Mutex<Vec<PathBuf>>>,
    /// The number of searches that were abandoned and have not ended, also those whose mount point is unknown.
    abandoned: Arc<AtomicUsize>,
}

impl SlowFileSystems {
    /// Returns a backing file on this file system as the leader uses it: guarded, if the file system is in another process or on a
    /// network. Asks the file system nothing.
    ///
    /// # Errors
    /// No thread can be started for it.
    pub fn guard<F: BackingFile + AsFd + 'static>(&self, file: Arc<F>, system: FileSystem) -> io::Result<Arc<dyn BackingFile>> {
        if !is_remote(system.kind) {
            return Ok(file);
        }
        let mut all = self.by_device.lock();
        // Those whose files are all closed, and that have no call under way.
        all.retain(|_, side| Arc::strong_count(side) > 1 || side.is_stuck.load(SeqCst));
        let side = match all.get(&system.device) {
            Some(side) => Arc::clone(side),
            None => {
                let mount = crate::descriptor::path_of(file.as_fd()).and_then(|path| mount_point_of(&path));
                let side = Arc::new(SlowFileSystem::start(mount, Arc::clone(&self.stuck))?);
                all.insert(system.device, Arc::clone(&side));
                side
            }
        };
        Ok(Arc::new(GuardedFile { file: Some(file), side, late_error: Arc::default() }))
    }

    /// Runs a search that begins at a path. The result of a search that is late is dropped.
    ///
    /// # Errors
    /// EHOSTDOWN: the file system of the path does not reply.
    pub fn search<T: Send + 'static>(&self, path: &Path, search: impl FnOnce() -> T + Send + 'static) -> Result<T, Errno> {
        {
            let stuck = self.stuck.lock();
            if stuck.iter().any(|mount| path.starts_with(mount)) || self.abandoned.load(SeqCst) >= SEARCHES_MAX {
                return Err(SILENT);
            }
        }
        let is_there = |side: &Arc<SlowFileSystem>| side.mount.as_ref().is_some_and(|mount| path.starts_with(mount));
        if self.by_device.lock().values().any(|side| side.is_stuck.load(SeqCst) && is_there(side)) {
            return Err(SILENT);
        }
        let helper = {
            let mut helper = self.search.lock();
            match &*helper {
                Some(free) if !free.is_stuck.load(SeqCst) => Arc::clone(free),
                _ => {
                    let started = SlowFileSystem::start(None, Arc::default())
                        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
                    Arc::clone(helper.insert(Arc::new(started)))
                }
            }
        };
        let mount = Arc::new(Mutex::new(None::<PathBuf>));
        let (probed, ended, stuck) = (path.to_owned(), Arc::clone(&mount), Arc::clone(&self.stuck));
        // Where nobody can be asked, there is no sign of life.
        let probe = move || mount_point_of(&probed).map(|mount| rustix::fs::statfs(&mount)).is_some();
        let abandoned = Arc::clone(&self.abandoned);
        let late = move |_| {
            abandoned.fetch_sub(1, SeqCst);
            if let Some(mount) = ended.lock().take() {
                stuck.lock().retain(|other| *other != mount);
            }
        };
        // Counted before it can end.
        self.abandoned.fetch_add(1, SeqCst);
        let found = helper.call((READ_SILENCE, SEARCH_MAX), search, probe, late);
        let is_abandoned = matches!(found, Err(SILENT));
        if !is_abandoned {
            self.abandoned.fetch_sub(1, SeqCst);
        }
        if is_abandoned
            && helper.is_stuck.load(SeqCst)
            && let Some(point) = mount_point_of(path)
        {
            let mut mount = mount.lock();
            self.stuck.lock().push(point.clone());
            *mount = Some(point);
            // It may have ended meanwhile.
            if !helper.is_stuck.load(SeqCst)
                && let Some(point) = mount.take()
            {
                self.stuck.lock().retain(|other| *other != point);
            }
        }
        found
    }
}

/// Returns the mount point that a path leads through last, and its device number, by the kernel's table: nothing on the way is looked at.
fn mount_of(path: &Path) -> Option<(PathBuf, u64)> {
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    let mounts = table.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let (major, minor) = std::str::from_utf8(fields.nth(2)?).ok()?.split_once(':')?;
        let device = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        Some((PathBuf::from(OsString::from_vec(unescape_octal(fields.nth(1)?))), device))
    });
    // Of two at one place, the later one hides the other.
    mounts.filter(|(point, _)| path.starts_with(point)).max_by_key(|(point, _)| point.as_os_str().len())
}

fn mount_point_of(path: &Path) -> Option<PathBuf> {
    Some(mount_of(path)?.0)
}

/// Returns whether a path is on a network file system or one in another process, as far as this process has opened files there. Asks the
/// file system nothing.
pub fn is_known_remote(path: &Path) -> bool {
    mount_of(path).and_then(|(_, device)| FileSystem::known(device)).is_some_and(|system| is_remote(system.kind))
}

/// Undoes the escapes of proc(5), mountinfo: `\040` for space and its like.
pub fn unescape_octal(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut at = 0;
    while at < field.len() {
        let digits =
            field.get(at + 1..at + 4).filter(|digits| field[at] == b'\\' && digits.iter().all(|digit| (b'0'..b'8').contains(digit)));
        match digits {
            Some(digits) => {
                out.push(digits.iter().fold(0u8, |value, digit| value.wrapping_mul(8).wrapping_add(digit - b'0')));
                at += 4;
            }
            None => {
                out.push(field[at]);
                at += 1;
            }
        }
    }
    out
}

/// File systems that send data over a network or to another process (statfs(2)): NFS, three of SMB, Ceph, FUSE, 9P, two of AFS, Coda,
/// OCFS2, Lustre and GPFS.
const REMOTE: [u64; 13] = [
    0x6969,
    0x517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x00c3_6400,
    0x6573_5546,
    0x0102_1997,
    0x5346_414f,
    0x6b41_4653,
    0x7375_7245,
    0x7461_636f,
    0x0bd0_0bd0,
    0x4750_4653,
];

/// Returns whether a file system of this type (statfs(2)) sends data over a network or to another process.
pub fn is_remote(kind: u64) -> bool {
    // Some of the numbers have their highest bit set, and the field is signed.
    REMOTE.contains(&(kind & 0xffff_ffff))
}

#[cfg(test)]
mod test {
    use super::*;
    use std::sync::mpsc;

    const SOON: Duration = Duration::from_millis(50);

    fn guarded(dir: &tempfile::TempDir) -> GuardedFile<crate::below::Local> {
        let path = dir.path().join("file");
        std::fs::write(&path, b"content").expect("written");
        let file = std::fs::File::options().read(true).write(true).open(path).expect("opened");
        let side = Arc::new(SlowFileSystem::start(None, Arc::default()).expect("threads"));
        GuardedFile { file: Some(Arc::new(crate::below::Local::new(file.into(), false))), side, late_error: Arc::default() }
    }

    #[test]
    fn calls_have_the_results_of_the_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = guarded(&dir);
        file.write_at(3, b"TENT!").expect("written");
        let mut bytes = [0; 20];
        assert_eq!(file.read_at(0, &mut bytes).expect("read"), 8);
        assert_eq!(&bytes[..8], b"conTENT!");
        file.set_len(2).expect("truncated");
        assert_eq!(file.stamp().expect("there").size, 2);
        assert!(file.sync().is_ok() && !file.is_removed() && file.path() == Some(dir.path().join("file")));
    }

    #[test]
    fn an_abandoned_call_ends_before_the_next_one_and_its_error_is_told_by_a_sync() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = guarded(&dir);
        let (go, wait) = mpsc::channel::<()>();
        let late_error = Arc::clone(&file.late_error);
        let late = move |error: io::Error| *late_error.lock() = Some(error);
        let hang = move || {
            let _ = wait.recv();
            io::Error::from(Errno::IO)
        };
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let probe = move || released.lock().recv().is_ok();
        let begun = Instant::now();
        assert!(matches!(file.side.call((SOON, Duration::MAX), hang, probe, late), Err(SILENT)));
        assert!(begun.elapsed() >= SOON);
        for failed in [file.stamp().err(), file.write_at(0, b"x").err(), file.sync().err(), file.set_len(0).err()] {
            assert_eq!(failed.and_then(|error| Errno::from_io_error(&error)), Some(SILENT));
        }
        drop((go, release));
        wait_until(|| file.stamp().is_ok());
        file.write_at(0, b"x").expect("written");
        assert_eq!(file.sync().err().and_then(|error| Errno::from_io_error(&error)), Some(Errno::IO));
        file.sync().expect("told once");
    }

    #[test]
    fn a_slow_call_with_signs_of_life_is_waited_for() {
        let mut side = SlowFileSystem::start(None, Arc::default()).expect("threads");
        side.quiet = Duration::from_millis(1);
        let (alive, signs) = mpsc::channel();
        // It ends after three signs.
        let slow = move || signs.iter().take(3).count();
        let sign = move || alive.send(()).is_ok();
        assert_eq!(side.call((SOON, Duration::MAX), slow, sign, |_| {}), Ok(3));
    }

    #[test]
    fn a_call_that_panics_fails_and_the_next_one_does_not() {
        let side = SlowFileSystem::start(None, Arc::default()).expect("threads");
        let limits = (SOON, Duration::MAX);
        assert_eq!(side.call(limits, || -> u32 { panic!("on purpose") }, || true, |_| {}), Err(Errno::IO));
        assert_eq!(side.call(limits, || 7, || true, |_| {}), Ok(7));
    }

    /// Its end waits.
    struct ClosesSlowly(Mutex<mpsc::Receiver<()>>);

    impl Drop for ClosesSlowly {
        fn drop(&mut self) {
            let _ = self.0.lock().recv();
        }
    }

    #[test]
    fn a_close_that_waits_holds_nobody() {
        let side = Arc::new(SlowFileSystem::start(None, Arc::default()).expect("threads"));
        let (go, wait) = mpsc::channel::<()>();
        let slow = Arc::new(ClosesSlowly(Mutex::new(wait)));
        let left = Arc::downgrade(&slow);
        drop(GuardedFile { file: Some(slow), side, late_error: Arc::default() });
        drop(go);
        wait_until(|| left.upgrade().is_none());
    }

    #[test]
    fn a_search_ends_although_its_mount_shows_signs_of_life() {
        let side = SlowFileSystem { quiet: Duration::from_millis(1), ..SlowFileSystem::start(None, Arc::default()).expect("threads") };
        let (go, wait) = mpsc::channel::<()>();
        let found = side.call((SOON, 2 * SOON), move || _ = wait.recv(), || true, |()| {});
        assert_eq!(found, Err(SILENT));
        drop(go);
        wait_until(|| !side.is_silent());
    }

    fn wait_until(is_so: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(10);
        while !is_so() {
            assert!(Instant::now() < end, "not within 10 s");
            std::thread::yield_now();
        }
    }

    #[test]
    fn only_searches_below_a_mount_that_does_not_reply_fail() {
        let sides = SlowFileSystems::default();
        assert_eq!(sides.search(Path::new("/proc/self/status"), || 5), Ok(5));
        sides.stuck.lock().push(mount_point_of(Path::new("/proc/self/status")).expect("mounted"));
        assert_eq!(sides.search(Path::new("/proc/other"), || 5), Err(SILENT));
        assert_eq!(sides.search(Path::new("/dev/null"), || 5), Ok(5));
        assert_eq!(mount_point_of(Path::new("/proc/1")), Some("/proc".into()));
        assert_eq!(unescape_octal(b"/a\\040b\xff\\9"), b"/a b\xff\\9");
        assert!(is_remote(0x6969) && is_remote(0xffff_ffff_ff53_4d42) && !is_remote(0xef53));
    }
}
