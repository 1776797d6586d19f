//! An open file. In pass-through mode each call goes to the kernel.

mod pinned;
mod position;
mod read;
mod residency;
mod write;

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, OFlags, Stat, Timestamps};
use rustix::io::Errno;
use ssdcache::Mode;

pub use pinned::{Pinned, PinnedPage};
pub use position::Whence;

use crate::cached::{Cached, Opening};
use crate::error::{Error, Kind};
use crate::forks::PerProcess;
use crate::instance::Instance;
use crate::{limits, plain};

/// An open file of an [`Instance`]. Threads may share it; calls that use its position (`read`, `write`, `seek`) run one after the other, as
/// POSIX demands.
///
/// A forked child may use it, and attaches at its first call. The child then has its own position, which the kernel's descriptors share.
#[derive(Debug)]
pub struct File {
    instance: Arc<Instance>,
    fd: OwnedFd,
    path: Arc<Path>,
    flags: OFlags,
    appends: AtomicBool,
    position: Mutex<u64>,
    cached: Option<(Opening, PerProcess<Arc<Cached>>)>,
    /// Returns whether it is a regular file, open for writing.
    is_regular: bool,
}

/// The path of a call.
pub(crate) enum IoPath<'a> {
    Cached(&'a Arc<Cached>),
    /// To the backing file of a cached file, in pass-through mode.
    Bypass(&'a Cached),
    /// To a file that is never cached.
    Uncached,
}

/// Returns the meaning of an errno of the cache engine.
fn sentence(errno: Errno) -> Option<(Kind, &'static str)> {
    match errno {
        Errno::STALE => Some((Kind::Conflict, crate::advice::CONFLICT)),
        Errno::SHUTDOWN => Some((Kind::Detached, "this process has left the cache")),
        _ => None,
    }
}

impl File {
    pub(crate) fn plain(instance: Arc<Instance>, fd: OwnedFd, path: Arc<Path>, flags: OFlags) -> File {
        let kind = rustix::fs::fstat(&fd).map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode));
        let is_regular = kind == Ok(rustix::fs::FileType::RegularFile) && flags & OFlags::RWMODE != OFlags::RDONLY;
        File { instance, fd, path, flags, appends: appends(flags), position: Mutex::new(0), cached: None, is_regular }
    }

    pub(crate) fn cached(instance: Arc<Instance>, fd: OwnedFd, path: Arc<Path>, flags: OFlags, opening: Opening) -> Result<File, Error> {
        let cached = instance.take_in(&opening, &path)?;
        if flags.contains(OFlags::APPEND) {
            // A separate open file description, so that `set_appends` works in pass-through mode, too.
            let to_error = rustix::fs::fcntl_getfl(&fd).and_then(|flags| rustix::fs::fcntl_setfl(&fd, flags - OFlags::APPEND));
            to_error.map_err(|errno| Error::system(errno, "opening", &path))?;
        }
        let cached = Some((opening, PerProcess::new(cached)?));
        Ok(File { instance, fd, path, flags, appends: appends(flags), position: Mutex::new(0), cached, is_regular: true })
    }

    /// Converts an errno of a call on this file to an error with a message for the user.
    #[cold]
    #[inline(never)]
    pub fn to_error(&self, doing: &'static str, errno: Errno) -> Error {
        match sentence(errno) {
            Some((kind, sentence)) => Error::system(errno, doing, &self.path).because(kind, sentence),
            None if errno == Errno::ROFS && self.is_cached() => Error::system(errno, doing, &self.path)
                .because(Kind::ReadOnly, "the mode of the cache, or of this file in it, is read-only"),
            None if errno == Errno::IO && self.has_lost() => Error::system(errno, doing, &self.path).because(
                Kind::Lost,
                "the SSD failed with pages that were not written below yet; what else is in the file can be read. `hotshelf cache status` \
                 has the list",
            ),
            None => Error::system(errno, doing, &self.path),
        }
    }

    /// Returns whether dirty pages of the instance are lost.
    fn has_lost(&self) -> bool {
        let here = self.cached.as_ref().and_then(|(_, here)| here.get());
        here.is_some_and(|cached| cached.engine().ssd_state().lost > 0)
    }

    /// Returns the path of the last call, or none if this process has not opened the file yet or a mode has changed since.
    #[inline(always)]
    pub(crate) fn settled_path(&self) -> Option<IoPath<'_>> {
        let Some((_, here)) = &self.cached else { return Some(IoPath::Uncached) };
        let cached = here.get()?;
        if cached.is_settled_bypass()? {
            std::hint::cold_path();
            return Some(IoPath::Bypass(cached));
        }
        Some(IoPath::Cached(cached))
    }

    /// Returns the path of calls in this process.
    #[inline(always)]
    fn io_path(&self, doing: &'static str) -> Result<IoPath<'_>, Error> {
        let Some((opening, here)) = &self.cached else { return Ok(IoPath::Uncached) };
        let cached = here.get_or(|| self.instance.take_in(opening, &self.path))?;
        match cached.bypasses() {
            Ok(false) => Ok(IoPath::Cached(cached)),
            Ok(true) => Ok(IoPath::Bypass(cached)),
            Err(errno) => Err(self.to_error(doing, errno)),
        }
    }

    /// Returns the cached file, or none if calls bypass the cache.
    #[inline(always)]
    fn cached_path(&self, doing: &'static str) -> Result<Option<&Arc<Cached>>, Error> {
        Ok(if let IoPath::Cached(cached) = self.io_path(doing)? { Some(cached) } else { None })
    }

    /// Checks that an uncached file may be changed: in read-only mode every write is refused.
    #[inline]
    pub(crate) fn may_change(&self) -> Result<(), Errno> {
        let is_refused = self.is_regular && self.instance.part().is_ok_and(|part| part.engine.mode() == Mode::ReadOnly);
        if is_refused { Err(Errno::ROFS) } else { Ok(()) }
    }

    /// Runs a call that changes the backing file directly. Returns none as [`Cached::bypass`] does.
    #[inline]
    fn bypass<T>(&self, doing: &'static str, call: impl FnOnce() -> Result<T, Errno>) -> Result<Option<T>, Error> {
        let here = self.cached.as_ref().and_then(|(_, here)| here.get());
        let result = match here {
            Some(cached) => cached.bypass(call),
            None => Some(self.may_change().and_then(|()| call())),
        };
        result.transpose().map_err(|errno| self.to_error(doing, errno))
    }

    /// Returns whether it was opened for reading.
    #[inline]
    pub(crate) fn is_readable(&self) -> bool {
        self.flags & OFlags::RWMODE != OFlags::WRONLY
    }

    /// Returns whether it was opened for writing.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.flags & OFlags::RWMODE != OFlags::RDONLY
    }

    #[inline]
    fn may_read(&self) -> Result<(), Error> {
        if self.is_readable() { Ok(()) } else { Err(self.to_error("reading", Errno::BADF)) }
    }

    /// Checks the range before anything else, as the kernel does.
    #[inline]
    fn is_range(&self, doing: &'static str, at: u64, len: usize) -> Result<(), Error> {
        let is_one = at.checked_add(len as u64).is_some_and(|end| end <= limits::END);
        if is_one { Ok(()) } else { Err(self.to_error(doing, Errno::INVAL)) }
    }

    /// Returns how many bytes of a write are within the limits of the file size ([`crate::limits`]).
    fn bounded(&self, cached: &Cached, at: u64, len: usize) -> Result<usize, Error> {
        let within = |own: u64| limits::within(at, len, own, || cached.local.largest());
        // Refuse only by the present limit: it may have been raised a moment ago.
        match within(limits::own_lately(cached.now_ms())).or_else(|_| within(limits::own())) {
            Ok(len) => Ok(len),
            Err((errno, is_own)) => {
                // The kernel refuses it, with its signal.
                let refused = if is_own { plain::write_at(self.fd(), at, &[0]).err() } else { None };
                Err(self.to_error("writing", refused.unwrap_or(errno)))
            }
        }
    }

    /// Makes all processes bypass the cache for a file that becomes longer than the cache can index.
    fn leave_cache(&self, cached: &Cached, doing: &'static str) -> Result<(), Error> {
        cached.open.set_mode(Mode::PassThrough).map_err(|errno| self.to_error(doing, errno))
    }

    #[inline]
    fn may_write(&self) -> Result<(), Error> {
        if self.is_writable() { Ok(()) } else { Err(self.to_error("writing", Errno::BADF)) }
    }

    /// Returns the size in bytes, as all users of the instance see it.
    ///
    /// # Errors
    /// As fstat(2).
    pub fn len(&self) -> Result<u64, Error> {
        match self.cached_path("stat")? {
            Some(cached) => Ok(cached.open.size()),
            None => Ok(self.stat_below()?.st_size as u64),
        }
    }

    /// Returns whether the size is 0.
    ///
    /// # Errors
    /// As `len`.
    pub fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.len()? == 0)
    }

    fn stat_below(&self) -> Result<Stat, Error> {
        rustix::fs::fstat(self.fd()).map_err(|errno| self.to_error("stat", errno))
    }

    /// Returns a copy of a range, which is shorter at the end of the file. Unlike a mapping, it does not change with the file and never
    /// raises SIGBUS.
    ///
    /// # Errors
    /// As `read_at`.
    pub fn view(&self, range: Range<u64>) -> Result<Box<[u8]>, Error> {
        let whole = range.end.min(self.len()?).saturating_sub(range.start);
        let whole = usize::try_from(whole).map_err(|_| self.to_error("reading", Errno::NOMEM))?;
        let mut bytes = vec![0; whole];
        let mut done = 0;
        while done < whole {
            match self.read_at(range.start + done as u64, &mut bytes[done..])? {
                0 => break,
                got => done += got,
            }
        }
        bytes.truncate(done);
        Ok(bytes.into())
    }

    /// Makes the leader open the backing file for writing now.
    ///
    /// # Errors
    /// The leader may not write the file, so that written data could not reach it.
    pub fn prepare_to_write(&self) -> Result<(), Error> {
        match self.cached_path("opening")? {
            Some(cached) => cached.open.prepare_to_write().map_err(|errno| self.to_error("opening for the cache", errno)),
            None => Ok(()),
        }
    }

    /// Returns the descriptor that data of this process is written by.
    pub fn written_fd(&self) -> BorrowedFd<'_> {
        self.cached_here().map_or_else(|| self.fd(), |cached| cached.local.fd())
    }

    /// Makes all writes to the file durable, on the SSD or in the backing file.
    ///
    /// # Errors
    /// As fsync(2); each open file reports a failed write-back once. [`Kind::Conflict`]: another program changed the file meanwhile.
    pub fn sync(&self, data_only: bool) -> Result<(), Error> {
        let to_error = |errno| self.to_error("syncing", errno);
        let Some(cached) = self.cached_path("syncing")? else {
            // What could not be written when the file went past the cache.
            if let Some(cached) = self.cached_here()
                && cached.open.is_dirty().map_err(to_error)?
            {
                cached.open.clean().map_err(to_error)?;
            }
            return plain::sync(self.fd(), data_only).map_err(to_error);
        };
        cached.look_below().map_err(to_error)?;
        cached.open.sync().map_err(to_error)
    }

    /// Writes all dirty pages to the backing file, durably. (`sync` may leave them on the SSD.)
    ///
    /// # Errors
    /// As `sync`.
    pub fn clean(&self) -> Result<(), Error> {
        match self.cached_path("writing below")? {
            Some(cached) => cached.open.clean().map_err(|errno| self.to_error("writing below", errno)),
            None => self.sync(false),
        }
    }

    /// Resolves a conflict in favor of the backing file: discards the cache's dirty pages.
    ///
    /// # Errors
    /// As fstat(2).
    pub fn discard(&self) -> Result<(), Error> {
        match self.cached_path("discarding")? {
            Some(cached) => cached.open.discard().map_err(|errno| self.to_error("discarding", errno)),
            None => Ok(()),
        }
    }

    /// Sets the times after writing all dirty pages back, since a later write-back would change them again.
    ///
    /// # Errors
    /// As futimens(3).
    pub fn set_times(&self, times: &Timestamps) -> Result<(), Error> {
        let to_error = |errno| self.to_error("setting times", errno);
        let set = || rustix::fs::futimens(self.fd(), times);
        loop {
            if let Some(cached) = self.cached_path("setting times")? {
                let written = cached.open.written_ns();
                cached.open.clean().map_err(to_error)?;
                cached.open.ours_timed(set).map_err(to_error)?;
                cached.open.times_were_set(written);
                return Ok(());
            }
            // In read-only mode, too, as for a file in the cache: times are an attribute, as the mode and the owner.
            if let Some(result) = self.cached_here().map_or_else(|| Some(set()), |cached| cached.set_times_past(set)) {
                return result.map_err(to_error);
            }
        }
    }

    /// Runs a call that changes attributes of the file (mode, owner, extended attributes) on the kernel's descriptor. The cache does not
    /// treat it as a change by another program.
    ///
    /// # Errors
    /// Those of the call.
    pub fn set_attributes<T>(&self, call: impl FnOnce(BorrowedFd<'_>) -> Result<T, Errno>) -> Result<T, Error> {
        let to_error = |errno| self.to_error("changing its attributes", errno);
        match self.cached_path("changing its attributes")? {
            Some(cached) => cached.open.ours(|| call(self.fd())).map_err(to_error),
            None => call(self.fd()).map_err(to_error),
        }
    }

    /// Prepares the file for a mapping by the kernel: writes dirty pages back, and makes all processes write through from now on.
    /// `is_written`: the mapping is shared and writable, so all processes bypass the cache.
    ///
    /// # Errors
    /// As `clean`; EROFS if the mapping is to be written to in read-only mode.
    pub fn prepare_mapping(&self, is_written: bool) -> Result<(), Error> {
        if is_written {
            self.may_change().map_err(|errno| self.to_error("mapping", errno))?;
        }
        let Some((opening, here)) = &self.cached else { return Ok(()) };
        let cached = here.get_or(|| self.instance.take_in(opening, &self.path))?;
        cached.open.map(is_written).map_err(|errno| self.to_error("mapping", errno))
    }

    /// Returns the attributes as fstat(2) does, with the cache's size and times.
    ///
    /// # Errors
    /// As fstat(2).
    pub fn stat(&self) -> Result<Stat, Error> {
        if self.flags.contains(OFlags::PATH) {
            // Other processes may have the file open, and have written beyond the end of the backing file.
            return self.instance.stat(self.fd(), Path::new(""), AtFlags::EMPTY_PATH);
        }
        let mut stat = self.stat_below()?;
        if let Some(cached) = self.cached_path("stat")? {
            cached.check_shared(false);
            if cached.open.is_changed(crate::below::stamp_of(&stat)) {
                // The next sync reports a conflict.
                let _ = cached.look_below();
                stat = self.stat_below()?;
            }
            let written_ns = cached.open.newer_write_ns(crate::below::stamp_of(&stat));
            plain::as_cached(&mut stat, cached.open.size(), written_ns);
        }
        Ok(stat)
    }

    /// Returns the cached file of this process.
    fn cached_here(&self) -> Option<&Arc<Cached>> {
        self.cached.as_ref().and_then(|(_, here)| here.get())
    }

    /// Returns the kernel's descriptor of the backing file. The cache treats a write through it as a change by another program.
    #[inline]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Separates the cache's open file description from that of [`File::fd`], before a flock(2) on the latter. The cache may keep its
    /// descriptor longer than the caller keeps the file, and the lock would last as long. `replace` does what dup3(2) does: it makes the
    /// second descriptor refer to the description of the first.
    ///
    /// # Errors
    /// Those of openat(2), if this process may not open the file once more, and of `replace`.
    pub fn leave_description(&self, replace: impl FnOnce(OwnedFd, BorrowedFd<'_>) -> Result<(), Errno>) -> Result<(), Error> {
        let Some((opening, _)) = &self.cached else { return Ok(()) };
        opening.local.leave_description(replace).map_err(|errno| self.to_error("locking", errno))
    }

    /// Returns the flags that it was opened with.
    pub fn flags(&self) -> OFlags {
        self.flags
    }

    /// Returns whether writes go to the end of the file, because of `O_APPEND` or `set_appends`.
    #[inline]
    pub fn appends(&self) -> bool {
        self.appends.load(Ordering::Relaxed)
    }

    /// Sets or clears O_APPEND as F_SETFL does. For an uncached file, the caller also has to set it on the kernel's descriptor.
    pub fn set_appends(&self, appends: bool) {
        self.appends.store(appends, Ordering::Relaxed);
    }

    /// Returns the path that it was opened with.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the file can be cached: it is a regular file of a file system that keeps written data.
    #[inline]
    pub fn is_cached(&self) -> bool {
        self.cached.is_some()
    }

    /// Returns the file in the cache, if this process has it open there.
    pub(crate) fn cached_open(&self) -> Option<&datapath::engine::Open> {
        self.cached.as_ref().and_then(|(_, here)| here.get()).map(|cached| &cached.open)
    }

    /// Returns the mode that is in force.
    pub fn mode(&self) -> Mode {
        let here = self.cached.as_ref().and_then(|(_, here)| here.get());
        here.map_or(Mode::PassThrough, |cached| cached.open.mode())
    }

    /// Returns the instance that it belongs to.
    pub fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    /// Sets the mode of this file, within the instance's, for all processes that have it open.
    ///
    /// # Errors
    /// A dirty page could not be written.
    pub fn set_mode(&self, mode: Mode) -> Result<(), Error> {
        let Some((opening, here)) = &self.cached else { return Ok(()) };
        let cached = here.get_or(|| self.instance.take_in(opening, &self.path))?;
        cached.open.set_mode(mode).map_err(|errno| self.to_error("changing its mode", errno))
    }

    /// Closes the file and returns an error of write-back that was not reported yet. Does not sync.
    ///
    /// # Errors
    /// As close(2).
    pub fn close(self) -> Result<(), Error> {
        self.take_unreported()
    }

    /// Returns the error that `close` would return, and marks it as reported.
    ///
    /// # Errors
    /// As close(2).
    pub fn take_unreported(&self) -> Result<(), Error> {
        let here = self.cached.as_ref().and_then(|(_, here)| here.get());
        match here.and_then(|cached| cached.open.take_unreported()) {
            Some(errno) => Err(self.to_error("closing", errno)),
            None => Ok(()),
        }
    }
}

fn appends(flags: OFlags) -> AtomicBool {
    AtomicBool::new(flags.contains(OFlags::APPEND))
}
