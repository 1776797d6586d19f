//! An instance: the cache that processes share.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use datapath::engine::{Advice, Count, OpenFileError, OpenOptions};
use parking_lot::{Mutex, RwLock};
use rustix::fs::{AtFlags, FileType, OFlags, Stat, fstat, openat};
use rustix::io::Errno;
use ssdcache::{FileKey, Mode};

use crate::attach::Attachment;
use crate::below::Local;
use crate::cached::{Cached, Opening};
use crate::config::Config;
use crate::descriptor::{is_shortage, lost_path_of, path_of, reopen};
use crate::error::{Error, Kind};
use crate::forks::PerProcess;
use crate::key::{FileSystem, key_of};
use crate::options::Options;
use crate::place::InstancePaths;
use crate::plain;
use crate::status::{Met, Status};

/// The instances that this process has attached to.
static HERE: Mutex<Vec<Weak<Instance>>> = Mutex::new(Vec::new());

/// File systems whose files do not keep what is written to them: proc, sysfs, cgroup, cgroup2, debugfs, tracefs, securityfs, configfs, bpf,
/// pstore, selinux, efivarfs, binfmt_misc (statfs(2)).
const SPECIAL: [u64; 13] = [
    0x9fa0,
    0x6265_6572,
    0x0027_e0eb,
    0x6367_7270,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0x6265_6570,
    0xcafe_4a11,
    0x6165_676c,
    0xf97c_ff8c,
    0xde5e_81e4,
    0x4249_4e4d,
];

/// Number of attempts to read the state of a file that changes meanwhile.
const STATS: usize = 10;

/// A cache that processes share. A process that opens it twice gets the same attachment. A forked child attaches with another process slot
/// at its first call.
#[derive(Debug)]
pub struct Instance {
    config: Config,
    part: PerProcess<Arc<Attachment>>,
    is_detached: RwLock<bool>,
}

/// The versions of what a cache keeps, which decide whether one program can go on with the cache of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheVersions {
    /// The version of the shared memory, which is the same in all programs that use it.
    pub segment: u32,
    /// The version of the pages in the shared memory, likewise.
    pub pages: u32,
    /// The newest version of caches on an SSD that a program opens.
    pub ssd: u32,
}

impl CacheVersions {
    /// The versions of this program.
    pub const OWN: CacheVersions =
        CacheVersions { segment: datapath::engine::SEGMENT_VERSION, pages: pagecache::VERSION, ssd: ssdcache::VERSION };

    /// Returns whether a program with these versions can go on with the cache of one with `other`.
    pub fn can_follow(&self, other: &CacheVersions) -> bool {
        self.segment == other.segment && self.pages == other.pages && self.ssd >= other.ssd
    }
}

impl Instance {
    /// Attaches to the instance of the configured name, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`Kind::Invalid`], [`Kind::Segment`], [`Kind::Device`], [`Kind::Full`], or an error of the kernel.
    pub fn open(config: &Config) -> Result<Arc<Instance>, Error> {
        config.check()?;
        let place = identity(config)?;
        let mut here = HERE.lock();
        here.retain(|instance| instance.strong_count() > 0);
        for instance in here.iter().filter_map(Weak::upgrade) {
            if !*instance.is_detached.read() && identity(&instance.config)? == place {
                return Ok(instance);
            }
        }
        let part = PerProcess::new(Arc::new(Attachment::open(config)?))?;
        let instance = Arc::new(Instance { part, config: config.clone(), is_detached: RwLock::new(false) });
        here.push(Arc::downgrade(&instance));
        Ok(instance)
    }

    /// Returns this process's attachment.
    pub(crate) fn part(&self) -> Result<&Arc<Attachment>, Error> {
        if let Some(part) = self.part.get() {
            return Ok(part);
        }
        let before = self.part.parent().ok_or_else(|| Error::new(Kind::Forked, Errno::CHILD, "the parent had left the cache"))?;
        self.part.get_or(|| Ok(Arc::new(before.again()?)))
    }

    /// Runs a call with this process's attachment, which does not detach meanwhile. None: it has detached, or the call returned none.
    pub(crate) fn while_attached<T>(&self, call: impl FnOnce(&Arc<Attachment>) -> Option<T>) -> Option<T> {
        let is_detached = self.is_detached.read();
        if *is_detached { None } else { call(self.part().ok()?) }
    }

    /// Returns how a file is opened in the cache, or none if it is not cached.
    pub(crate) fn opening(&self, fd: &OwnedFd, flags: OFlags, options: &Options) -> Result<Option<Opening>, Errno> {
        let stat = fstat(fd)?;
        let Ok(part) = self.part() else { return Ok(None) };
        let is_ours = part.ssd.as_ref().is_some_and(|ssd| ssd.file == Some((stat.st_dev, stat.st_ino))) || part.is_segment(&stat);
        if options.is_uncached || !is_regular(&stat) || is_ours || SPECIAL.contains(&FileSystem::of(fd.as_fd())?.kind) {
            return Ok(None);
        }
        // The engine reads and writes any range, which such a descriptor does not allow. On a network file system another open waits for
        // the server.
        let is_plain = flags & OFlags::RWMODE != OFlags::WRONLY && !flags.intersects(OFlags::APPEND | OFlags::DIRECT);
        let below = if is_plain {
            rustix::io::fcntl_dupfd_cloexec(fd, 0)
        } else {
            let access = if flags & OFlags::RWMODE == OFlags::RDONLY { OFlags::RDONLY } else { OFlags::RDWR };
            // Whoever opened it so may do so again.
            reopen(fd.as_fd(), access | flags & OFlags::NOATIME)
        };
        let below = match below {
            Err(errno) if is_shortage(errno) => return Err(errno),
            // A process that may only write or append bypasses the cache; others notice its writes as changes by another program.
            Err(_) => return Ok(None),
            Ok(below) => below,
        };
        // A file that has lost its name is cached while others use it by the cache: a call past that would miss their writes.
        let known = || part.engine.known_path(key_of(fd.as_fd()).ok()?);
        let Some(path) = path_of(fd.as_fd()).or_else(known).or_else(|| lost_path_of(fd.as_fd())) else { return Ok(None) };
        if !part.may_share(fd.as_fd()) {
            // The file may have been shared before. The next flush reports pages that could not be written back.
            let _ = part.withdraw(fd.as_fd());
            return Ok(None);
        }
        let mut holds = part.rules.of(&path, options);
        let is_written = flags & OFlags::RWMODE != OFlags::RDONLY || flags.contains(OFlags::TRUNC);
        crate::limits::own();
        if stat.st_size as u64 > crate::limits::FILE_BYTES_MAX
            || flags.contains(OFlags::DIRECT)
            || (is_written && !part.may_write(fd.as_fd()))
        {
            holds.mode = holds.mode.within(Mode::PassThrough);
        }
        let how = OpenOptions { mode: holds.mode, rule: holds.admit, keeps_mode: false };
        let direct = part.running.direct;
        let local = Arc::new(if is_plain { Local::duplicate(below, direct) } else { Local::new(below, direct) });
        let Options { advice, discard, dirty_age, .. } = *options;
        Ok(Some(Opening { local, how, advice, pin: holds.pin, discard, dirty_age }))
    }

    /// Registers an open file in the cache of this process.
    pub(crate) fn take_in(&self, opening: &Opening, path: &Arc<Path>) -> Result<Arc<Cached>, Error> {
        let is_detached = self.is_detached.read();
        if *is_detached {
            return Err(detached());
        }
        let part = self.part()?;
        Cached::open(part, opening, &part.open_files).map_err(|failed| {
            let to_error = |errno| Error::system(errno, "opening", path);
            match failed {
                OpenFileError::NoRecord | OpenFileError::LongPath => to_error(Errno::NFILE).because(Kind::Full, &failed.to_string()),
                OpenFileError::Conflict => to_error(Errno::STALE).because(Kind::Conflict, crate::advice::CONFLICT),
                OpenFileError::Unsure => to_error(Errno::IO).because(
                    Kind::Device,
                    "the cache's SSD cannot be read, and may hold newer pages of this file: bring the SSD back and start the programs \
                     anew, or give up what only it has with `hotshelf cache flush --discard-lost`",
                ),
                OpenFileError::Failed(errno) => to_error(errno),
            }
        })
    }

    /// Returns the attributes of a file as fstatat(2) does, with the cache's size and times.
    ///
    /// # Errors
    /// As fstatat(2).
    pub fn stat(&self, at: BorrowedFd<'_>, path: &Path, flags: AtFlags) -> Result<Stat, Error> {
        let mut stat = rustix::fs::statat(at, path, flags).map_err(|errno| Error::system(errno, "stat", &path.into()))?;
        if is_regular(&stat)
            && let Ok(key) = key_at(at, path, flags)
        {
            let engine = &self.part()?.engine;
            let failed = |errno| Error::system(errno, "stat", &path.into());
            for _ in 0..if engine.knows(key).map_err(failed)? { STATS } else { 0 } {
                if let Some((size, written_ns)) = engine.peek(key, crate::below::stamp_of(&stat)) {
                    plain::as_cached(&mut stat, size, written_ns);
                    break;
                }
                // Another program changed the file, or a process of the instance wrote back dirty pages meanwhile, and the file is newer
                // now.
                let again = rustix::fs::statat(at, path, flags).map_err(failed)?;
                let is_same = crate::below::stamp_of(&again) == crate::below::stamp_of(&stat);
                stat = again;
                if is_same {
                    break;
                }
            }
        }
        Ok(stat)
    }

    /// Makes the cache compare a file that it may know from before a restart.
    pub(crate) fn learn_of(&self, path: &Path) {
        let Ok(fd) = openat(rustix::fs::CWD, path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, rustix::fs::Mode::empty()) else {
            return;
        };
        let opened = self.opening(&fd, OFlags::RDONLY, &Options::default());
        if let Ok(Some(opening)) = opened {
            // This marks a conflict if there is one.
            drop(self.take_in(&opening, &path.into()));
        }
    }

    /// Registers a file, for one call, if the cache has a record of it. `file` may be an `O_PATH` descriptor: the call needs the stamp and
    /// the path only, and the process may not be allowed to open the file.
    ///
    /// # Errors
    /// The process has no descriptor left. The leader of the cache makes no progress, and the cache may have newer data of the file.
    pub(crate) fn known_file(&self, file: BorrowedFd<'_>) -> Result<Option<Arc<Cached>>, Errno> {
        let (Ok(part), Ok(key)) = (self.part(), key_of(file)) else { return Ok(None) };
        if !part.engine.knows(key)? {
            return Ok(None);
        }
        let below = rustix::io::fcntl_dupfd_cloexec(file, 0)?;
        let path = path_of(file).unwrap_or_default();
        let local = Arc::new(Local::new(below, false));
        let how = OpenOptions { keeps_mode: true, ..OpenOptions::default() };
        let opening = Opening { local, how, advice: Advice::Normal, pin: false, discard: false, dirty_age: None };
        match self.take_in(&opening, &path.into()) {
            Ok(cached) => Ok(Some(cached)),
            // The leader makes no progress, and a call past the cache could hide what it has.
            Err(error) if error.errno() == Errno::TIMEDOUT.raw_os_error() => Err(Errno::TIMEDOUT),
            Err(_) => Ok(None),
        }
    }

    /// Returns the mode of the instance; pass-through if this process is not attached.
    pub fn mode(&self) -> Mode {
        self.part().map_or(Mode::PassThrough, |part| part.engine.mode())
    }

    /// Returns the state of the instance.
    pub fn status(&self) -> Status {
        match self.part() {
            Ok(part) => crate::report::of(part, &self.config),
            Err(error) => Status { name: self.config.name.clone(), notes: vec![error.to_string()], ..Status::default() },
        }
    }

    /// Returns counters of the calls of this process. If they do not change during a call, it was a hit in memory.
    pub fn met(&self) -> Met {
        let own = |what| self.part().map_or(0, |part| part.engine.counters().own(what));
        Met { misses: own(Count::SsdHits) + own(Count::Misses), waits: own(Count::Throttled) }
    }

    /// Returns the state of a running instance without attaching to it, or none if no instance runs.
    ///
    /// # Errors
    /// [`Kind::Segment`]: the file is not the segment of an instance.
    pub fn look(config: &Config) -> Result<Option<Status>, Error> {
        Instance::here_or_else(config, |instance| Some(instance.status()), || crate::report::status(config))
    }

    /// Looks at an instance by this process's attachment, if there is one: an attached process may not open the lock file again. `or_else`
    /// looks at it without.
    pub(crate) fn here_or_else<T>(
        config: &Config,
        look: impl FnOnce(&Instance) -> T,
        or_else: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let here = HERE.lock();
        let place = identity(config)?;
        for instance in here.iter().filter_map(Weak::upgrade) {
            if !*instance.is_detached.read() && identity(&instance.config)? == place {
                return Ok(look(&instance));
            }
        }
        or_else()
    }

    /// Sets the mode of the instance, after writing back the pages that may not be dirty in it.
    ///
    /// # Errors
    /// A dirty page could not be written: the old mode stays.
    pub fn set_mode(&self, mode: Mode) -> Result<(), Error> {
        let part = self.part()?;
        part.engine.set_mode(mode).map_err(|errno| part.unwritten(errno))
    }

    /// Writes all pages that are dirty now to the backing files; pages dirtied later do not delay it. `progress` receives the number of
    /// written pages and the total.
    ///
    /// # Errors
    /// The first failed write; all other pages are written.
    pub fn flush(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<(), Error> {
        let part = self.part()?;
        let mut most = 0;
        let cleaned = part.engine.clean_all(&mut |left| {
            most = most.max(left);
            progress(most - left, most);
        });
        cleaned.map_err(|errno| part.unwritten(errno))
    }

    /// Discards the dirty pages that only a failed SSD had: from then on the backing files are valid. Returns the number of these pages.
    ///
    /// # Errors
    /// This process has detached.
    pub fn discard_lost(&self) -> Result<u64, Error> {
        let part = self.part()?;
        part.engine.accept_losses().map(u64::from).map_err(|errno| part.unwritten(errno))
    }

    /// Returns why this process uses the cache without its SSD, if it does.
    pub fn without_ssd(&self) -> Option<String> {
        self.part().ok()?.without.as_ref().map(Error::to_string)
    }

    /// Checks the metadata of the page cache for consistency. Takes its locks one after the other; for tests.
    ///
    /// # Errors
    /// [`Kind::Segment`]: the metadata are inconsistent.
    pub fn check(&self) -> Result<(), Error> {
        let checked = self.part()?.engine.pages().check();
        checked.map_err(|damaged| Error::new(Kind::Segment, Errno::PROTO, format!("the page cache: {damaged}")))
    }

    /// Detaches this process. The last process writes all dirty pages back and removes the segment, unless it is to be kept.
    /// Files have to be closed before.
    ///
    /// # Errors
    /// EBUSY: files are open; the process stays attached. A failed write-back: the process has detached, and the segment stays with the
    /// dirty pages.
    pub fn detach(&self) -> Result<(), Error> {
        self.detach_by(Attachment::close)
    }

    /// Detaches this process, which attaches again at once, perhaps with another program: nothing is written back, and the segment stays
    /// also if no other process is attached. Files have to be closed before.
    ///
    /// # Errors
    /// EBUSY: files are open; the process stays attached. EINVAL: the cache is private to this process, so that it would be lost.
    pub fn detach_for_restart(&self) -> Result<(), Error> {
        if self.config.private {
            return Err(Error::new(Kind::Invalid, Errno::INVAL, "the cache is private to this process: nobody could attach to it again"));
        }
        self.detach_by(Attachment::leave_segment)
    }

    fn detach_by(&self, leave: impl FnOnce(&Attachment) -> Result<(), Error>) -> Result<(), Error> {
        let part = self.part()?;
        let mut is_detached = self.is_detached.write();
        if *is_detached {
            return Ok(());
        }
        // Its thread may be checking a file that was just closed.
        part.watch.stop();
        let open = part.open_files.load(Ordering::Acquire);
        if open > 0 {
            part.watch.go_on();
            return Err(Error::new(Kind::Invalid, Errno::BUSY, format!("{open} files are open: close them before leaving the cache")));
        }
        *is_detached = true;
        leave(part)
    }

    /// Returns the configuration that it was opened with; the running instance may have another, see [`Status::notes`].
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the path of the segment of a configuration, whether or not it exists.
    pub fn segment_path(config: &Config) -> PathBuf {
        InstancePaths::of(config).map_or_else(|_| config.runtime_dir.clone(), |place| place.segment)
    }

    /// Returns whether a process is attached to the instance.
    pub fn is_running(config: &Config) -> bool {
        Instance::look(config).is_ok_and(|status| status.is_some_and(|status| status.processes.iter().any(|process| process.alive)))
    }

    /// Gives back the memory of a segment that this process has left. It is kept for the case that the process attaches again.
    pub fn forget_left(config: &Config) {
        crate::attach::forget_left(&Instance::segment_path(config));
    }

    /// Removes the segment of an instance without attached processes. Its SSD stays.
    ///
    /// # Errors
    /// [`Kind::Device`], EBUSY: a process is attached, or pages in it are newer than the backing files and `lose_dirty` is not set.
    pub fn destroy(config: &Config, lose_dirty: bool) -> Result<(), Error> {
        let Some(status) = Instance::look(config).or_else(|error| if lose_dirty { Ok(Some(Status::default())) } else { Err(error) })?
        else {
            return Ok(());
        };
        let busy = |sentence: String| Err(Error::new(Kind::Device, Errno::BUSY, sentence));
        if let Some(process) = status.processes.iter().find(|process| process.alive) {
            return busy(format!("process {} uses the cache `{}`: end it first", process.pid, config.name));
        }
        if status.dirty_bytes > 0 && !lose_dirty {
            let what = "bytes in its memory are not written below: open it once more to write them, or say that they may be lost";
            return busy(format!("the cache `{}`: {} {what}", config.name, status.dirty_bytes));
        }
        let place = InstancePaths::of(config)?;
        let held = place.hold()?;
        place.remove(&held)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // The caller forgot to detach. The other processes would treat this one as dead.
        if !*self.is_detached.get_mut()
            && let Some(part) = self.part.get()
            // A pinned page may still be in use.
            && part.open_files.load(Ordering::Acquire) == 0
        {
            let _ = part.close();
        }
    }
}

fn detached() -> Error {
    Error::new(Kind::Detached, Errno::NXIO, "this process has left the cache")
}

/// Returns the identity of an instance.
fn identity(config: &Config) -> Result<(bool, PathBuf), Error> {
    if config.private { Ok((true, PathBuf::from(&config.name))) } else { Ok((false, InstancePaths::of(config)?.segment)) }
}

pub(crate) fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// Returns the key of a file by its name; with AT_EMPTY_PATH and an empty name, of the descriptor.
fn key_at(at: BorrowedFd<'_>, path: &Path, flags: AtFlags) -> Result<FileKey, Errno> {
    if path.as_os_str().is_empty() && flags.contains(AtFlags::EMPTY_PATH) {
        return key_of(at);
    }
    key_of(named(at, path, flags.contains(AtFlags::SYMLINK_NOFOLLOW))?.as_fd())
}

/// Opens a directory by its name with O_PATH, and returns it with its path. None: it is no directory.
///
/// # Errors
/// The process has no descriptor left.
pub(crate) fn directory(at: BorrowedFd<'_>, path: &Path) -> Result<Option<(OwnedFd, PathBuf)>, Errno> {
    let fd = match named(at, path, true) {
        Err(errno) if is_shortage(errno) => return Err(errno),
        Err(_) => return Ok(None),
        Ok(fd) => fd,
    };
    let is_one = fstat(&fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
    Ok(path_of(fd.as_fd()).filter(|_| is_one).map(|path| (fd, path)))
}

/// Opens a file by its name with O_PATH.
pub(crate) fn named(at: BorrowedFd<'_>, path: &Path, no_follow: bool) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | if no_follow { OFlags::NOFOLLOW } else { OFlags::empty() };
    openat(at, path, flags, rustix::fs::Mode::empty())
}

#[cfg(test)]
mod test {
    use rustix::fs::{CWD, RenameFlags};

    use super::*;

    /// Of many renames at the same time, by several threads, the segment has the last name.
    #[test]
    fn of_renames_at_the_same_time_the_last_one_is_recorded() {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
        let config = Config { runtime_dir: dir.path().to_owned(), memory: Some(crate::Size::Bytes(1 << 20)), ..Config::default() };
        let instance = Instance::open(&config).expect("an instance");
        let names: Vec<PathBuf> = (0..4).map(|n| dir.path().join(format!("{n}/name"))).collect();
        (0..4).for_each(|n| std::fs::create_dir(dir.path().join(n.to_string())).expect("made"));
        let recorded = || instance.part().expect("attached").engine.status().expect("sound").files().into_iter().map(|file| file.path);
        for round in 0..300 {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
            let file = instance.open_file(CWD, &names[0], flags, rustix::fs::Mode::RWXU, &Options::default()).expect("opened");
            file.write_at(0, b"bytes").expect("written");
            std::thread::scope(|scope| {
                for thread in 0..2 {
                    let (instance, names) = (&instance, &names);
                    scope.spawn(move || {
                        for step in 0..12 {
                            let (from, to) = (&names[(step + thread) % 4], &names[(step * 3 + thread + 1) % 4]);
                            let _ = instance.rename(CWD, from, CWD, to, RenameFlags::NOREPLACE);
                        }
                    });
                }
            });
            let now = names.iter().find(|name| name.exists()).expect("it has a name");
            assert!(
                recorded().any(|path| path == *now),
                "round {round}: {} is recorded as {:?}",
                now.display(),
                recorded().collect::<Vec<_>>()
            );
            drop(file);
            instance.unlink(CWD, now, AtFlags::empty()).expect("removed");
        }
        instance.detach().expect("left");
    }
}
