//! The directory that is served.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use fusedev::Caller;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, StatVfs};
use rustix::io::Errno;

use crate::cache::FileCache;
use crate::descriptors::{Descriptors, RemovedName};
use crate::nodes::{KeptData, Node, Nodes};
use crate::remembered::{RECORDS_MAX, Remembered};
use crate::{Result, Stat};

/// Names a file without opening it: no data, no permission, no link followed.
pub(crate) const NAME_ONLY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The reason why a directory cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("the directory {path}: {}", std::io::Error::from(*source))]
pub struct OpenError {
    /// The path as the caller gave it.
    pub path: PathBuf,
    /// The error of the system call.
    pub source: Errno,
}

/// A directory and its descendants, by inode number.
pub struct DirectoryFs<C> {
    pub(crate) nodes: Nodes,
    pub(crate) cache: C,
    /// Whether the mount gives effect to set-ID bits and file capabilities.
    pub(crate) honours_set_id: bool,
    /// Whether the daemon may act for other users.
    pub(crate) is_privileged: bool,
    pub(crate) set_id: Mutex<SetIdState>,
    /// Names and attributes that are answered without the file system, if that is wanted.
    pub(crate) remembered: Option<Arc<Remembered>>,
    /// Whether the file system does not reply.
    is_away: Arc<AtomicBool>,
}

/// What decides about set-ID bits beside the files themselves.
#[derive(Debug, Default)]
pub struct SetIdState {
    /// How many open files may be written, by inode number.
    pub(crate) writers: HashMap<u64, u32>,
    /// Files whose capabilities the kernel has just removed in the name of a process of root: a write or a change of the owner follows.
    pub(crate) capabilities_removed: HashMap<u64, u32>,
}

impl<C: FileCache> DirectoryFs<C> {
    /// Opens a directory. `honours_set_id`: the mount gives effect to set-ID bits and file capabilities (`-o suid`).
    ///
    /// # Errors
    /// It does not exist, is not a directory, or may not be entered.
    pub fn open(path: &Path, cache: C, honours_set_id: bool) -> std::result::Result<DirectoryFs<C>, OpenError> {
        let opened = rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .and_then(|root| Stat::of(root.as_fd()).map(|stat| (root, stat)));
        let (root, stat) = opened.map_err(|source| OpenError { path: path.to_owned(), source })?;
        Ok(DirectoryFs::with_root(root, &stat, cache, honours_set_id))
    }

    /// Serves an open directory.
    pub(crate) fn with_root(root: OwnedFd, stat: &Stat, cache: C, honours_set_id: bool) -> DirectoryFs<C> {
        let is_privileged = rustix::process::geteuid().is_root();
        let readable = || rustix::fs::openat(&root, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let descriptors = Descriptors::new(if is_privileged { readable().ok() } else { None });
        DirectoryFs {
            nodes: Nodes::new(root, stat, descriptors),
            cache,
            honours_set_id,
            is_privileged,
            set_id: Mutex::default(),
            remembered: None,
            is_away: Arc::default(),
        }
    }

    /// Remembers names and attributes from now on, and answers with them. What is older than `ttl` is answered, too, and read again:
    /// [`DirectoryFs::check_next`].
    pub fn remember_names(&mut self, ttl: Duration) {
        let remembered = Arc::new(Remembered::new(ttl, RECORDS_MAX));
        self.nodes.remembered = Some(Arc::clone(&remembered));
        self.remembered = Some(remembered);
    }

    /// Asks the file system nothing while `is_away` is set, as it does not reply: what is not in memory fails with ETIMEDOUT.
    pub fn fail_while(&mut self, is_away: Arc<AtomicBool>) {
        self.is_away = is_away;
    }

    /// Returns whether names are remembered.
    pub fn remembers_names(&self) -> bool {
        self.remembered.is_some()
    }

    /// Returns what is remembered as bytes, for [`DirectoryFs::load_names`] at a later mount. `directory` says which directory it is.
    pub fn save_names(&self, directory: &str) -> Option<Vec<u8>> {
        self.remembered.as_ref()?.to_bytes(self.nodes.root_id(), directory)
    }

    /// Remembers what an earlier mount has saved. All of it counts as old. Returns false if it is damaged, of another version or of another
    /// directory, so that nothing of it is used.
    pub fn load_names(&self, bytes: &[u8], directory: &str) -> bool {
        self.remembered.as_ref().is_some_and(|remembered| remembered.load(bytes, self.nodes.root_id(), directory))
    }

    /// Returns the node of an inode number. If its descriptor was closed, the file is opened again, in a directory that perhaps only the
    /// caller may search.
    ///
    /// # Errors
    /// ESTALE: the kernel does not know the number, or the file was removed. ETIMEDOUT: see [`DirectoryFs::fail_while`]. Otherwise as
    /// openat(2).
    pub fn node(&self, caller: Caller, number: u64) -> Result<Node> {
        if self.is_away.load(Relaxed) {
            return Err(Errno::TIMEDOUT);
        }
        self.also_as_caller(caller, || self.nodes.get(number))
    }

    /// Subtracts `times` from the kernel's lookup count of an inode. Returns what keeps the data of the file, if it was removed and the
    /// kernel has forgotten it.
    pub fn forget(&self, number: u64, times: u64) -> Option<KeptData> {
        self.nodes.forget(number, times)
    }

    /// Looks at up to `count` of the known files that nobody has open, other ones at each call, and frees the blocks of those that other
    /// programs have removed. Returns the names that the kernel should drop.
    pub fn close_removed(&self, count: usize) -> Vec<RemovedName> {
        self.nodes.close_removed(count)
    }

    /// Runs a call that opens files. If the process has no descriptor left, closes those of known files that nobody uses and runs the call
    /// again: it must not have changed anything by then.
    ///
    /// # Errors
    /// Those of the call.
    pub fn with_descriptors<T>(&self, call: impl FnMut() -> Result<T>) -> Result<T> {
        self.nodes.with_descriptors(call)
    }

    /// Closes descriptors of known files that nobody uses, if `newest`, which was just opened, shows that the process has few left.
    pub fn keep_reserve(&self, newest: impl AsFd) {
        self.nodes.keep_reserve(newest);
    }

    /// Drops all nodes when the mount ends.
    pub fn close(&self) {
        self.nodes.clear();
    }

    /// Runs a call; if the daemon is refused where the kernel has let the caller pass, runs it once more as the caller. The server of a
    /// network file system may give root less rights than the user has (`root_squash` of NFS).
    pub fn also_as_caller<T>(&self, caller: Caller, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        match call() {
            Err(Errno::ACCESS | Errno::PERM) if self.is_privileged && !caller.is_root() => caller.identity().act(call)?,
            other => other,
        }
    }

    /// Runs a call in the name of the caller, who owns what it creates, pays for the space that it uses, and does not get the blocks that
    /// are kept for root.
    pub fn as_caller<T>(&self, caller: Caller, call: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.is_privileged { caller.identity().act(call)? } else { call() }
    }

    /// Returns the cache of file data.
    pub fn cache(&self) -> &C {
        &self.cache
    }

    /// Returns the present path of the directory, if it has one.
    pub fn path(&self) -> Option<PathBuf> {
        let target = rustix::fs::readlink(proc_path(self.nodes.get(crate::ROOT).ok()?.as_fd()), Vec::new()).ok()?;
        Some(PathBuf::from(OsString::from_vec(target.into_bytes()))).filter(|path| path.is_absolute())
    }

    /// Returns the device number of the directory's file system.
    ///
    /// # Errors
    /// As fstat(2).
    pub fn device(&self) -> Result<u64> {
        Ok(rustix::fs::fstat(self.nodes.get(crate::ROOT)?.as_fd())?.st_dev)
    }

    /// Returns the space of the file system.
    ///
    /// # Errors
    /// As fstatvfs(3).
    pub fn statfs(&self) -> Result<StatVfs> {
        rustix::fs::fstatvfs(self.nodes.get(crate::ROOT)?.as_fd())
    }
}

/// Returns the path by which the kernel opens what a descriptor stands for.
pub(crate) fn proc_path(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Opens a name of a directory as a name only.
pub(crate) fn open_name(dir: BorrowedFd<'_>, name: &std::ffi::OsStr) -> Result<OwnedFd> {
    rustix::fs::openat(dir, name, NAME_ONLY, Mode::empty())
}
