//! Open files as the kernel knows them, some of which are opened on the slow side only when something needs them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use directoryfs::{Node, Stat};
use fusedev::Caller;
use parking_lot::Mutex;
use rustix::io::Errno;

/// An open(2) for reading whose reply needed no call to the slow side: its attributes were fresh in memory.
#[derive(Clone, Debug)]
pub struct PromisedOpen {
    /// The process that opened the file.
    pub caller: Caller,
    /// The inode number that the kernel knows.
    pub number: u64,
    /// The flags that open(2) was called with.
    pub flags: i32,
    /// The attributes that the reply relied on.
    pub stat: Stat,
    /// The file, if it was open below: it stays open, also when it is removed.
    pub _held: Option<Node>,
}

/// What a file handle of the kernel stands for: an open file, or one that is opened when something needs it. Until then it may be read from
/// the cache alone, by a `V`.
pub struct OpenHandle<T, V> {
    /// What the cache has of the file, since when it has been read, and what the reply to open(2) relied on. Dropped before the open file,
    /// whose close decides what becomes of the data of a removed one.
    version: OnceLock<(V, Instant, PromisedOpen)>,
    opened: OnceLock<Arc<T>>,
    /// One thread at a time opens the file.
    promised: Mutex<Option<PromisedOpen>>,
    was_due: AtomicBool,
}

impl<T, V> OpenHandle<T, V> {
    /// Creates the handle of a file that is open.
    pub fn of(file: T) -> OpenHandle<T, V> {
        OpenHandle { opened: OnceLock::from(Arc::new(file)), ..OpenHandle::with(None) }
    }

    fn with(promised: Option<PromisedOpen>) -> OpenHandle<T, V> {
        OpenHandle { version: OnceLock::new(), opened: OnceLock::new(), promised: Mutex::new(promised), was_due: AtomicBool::new(false) }
    }

    /// Creates the handle of a file that is opened when something needs it.
    pub fn promised(open: PromisedOpen) -> OpenHandle<T, V> {
        OpenHandle::with(Some(open))
    }

    /// Returns what the cache has of the file, and what the reply to open(2) relied on; `find` looks for it, at each call until it finds
    /// something. None: the file is open or being opened, or the cache has nothing of it.
    pub fn find_version(&self, find: impl FnOnce(&PromisedOpen) -> Option<V>) -> Option<(&V, &PromisedOpen)> {
        if self.opened.get().is_some() {
            return None;
        }
        if self.version.get().is_none() {
            // An open may wait for the slow side.
            let promised = self.promised.try_lock()?.clone()?;
            let found = find(&promised)?;
            self.version.get_or_init(|| (found, Instant::now(), promised));
        }
        let (version, _, promised) = self.version.get()?;
        Some((version, promised))
    }

    /// Returns what the cache has of the file, if it is read from that without being open.
    pub fn version(&self) -> Option<(&V, &PromisedOpen)> {
        self.version.get().filter(|_| self.opened.get().is_none()).map(|(version, _, promised)| (version, promised))
    }

    /// Returns whether the file has been read for this long without being open, at the first call of which that is true.
    pub fn is_due_to_open(&self, time: Duration) -> bool {
        let is_due = self.opened.get().is_none() && self.version.get().is_some_and(|(_, since, _)| since.elapsed() >= time);
        is_due && !self.was_due.swap(true, Ordering::Relaxed)
    }

    /// Returns the open file, if it is open already.
    pub fn get(&self) -> Option<Arc<T>> {
        self.opened.get().map(Arc::clone)
    }

    /// Returns the open file; if it is not open, `open` opens it.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn open(&self, open: impl FnOnce(&PromisedOpen) -> Result<T, Errno>) -> Result<Arc<T>, Errno> {
        if let Some(file) = self.get() {
            return Ok(file);
        }
        let promised = self.promised.lock();
        if let Some(file) = self.get() {
            return Ok(file);
        }
        let file = Arc::new(open(promised.as_ref().ok_or(Errno::BADF)?)?);
        Ok(Arc::clone(self.opened.get_or_init(|| file)))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn promised() -> PromisedOpen {
        PromisedOpen { caller: Caller { uid: 0, gid: 0, pid: 1 }, number: 7, flags: 0, stat: Stat::default(), _held: None }
    }

    #[test]
    fn a_promised_file_is_opened_once_and_again_after_an_error() {
        let handle: OpenHandle<u32, u32> = OpenHandle::promised(promised());
        assert!(handle.get().is_none());
        assert_eq!(handle.open(|_| Err::<u32, _>(Errno::STALE)).err(), Some(Errno::STALE));
        assert_eq!(*handle.open(|open| Ok(open.number as u32)).expect("opened"), 7);
        assert_eq!(*handle.open(|_| Err(Errno::IO)).expect("open already"), 7);
        assert_eq!(handle.get().as_deref(), Some(&7));
    }

    #[test]
    fn what_the_cache_has_is_looked_for_until_it_is_found_and_ends_with_the_open() {
        let handle: OpenHandle<u32, u32> = OpenHandle::promised(promised());
        let version =
            |found: Option<u32>| handle.find_version(|open| found.map(|found| found + open.number as u32)).map(|(found, _)| *found);
        assert_eq!(version(None), None);
        assert!(!handle.is_due_to_open(Duration::ZERO));
        assert_eq!((version(Some(1)), version(None), version(Some(2))), (Some(8), Some(8), Some(8)));
        assert!(!handle.is_due_to_open(Duration::from_secs(3600)) && handle.is_due_to_open(Duration::ZERO), "it has been read");
        assert!(!handle.is_due_to_open(Duration::ZERO), "once");
        assert_eq!(handle.open(|_| Ok(version(None).unwrap_or_default())).ok().as_deref(), Some(&8), "nobody waits for an open");
        assert_eq!(version(Some(1)), None);
        assert!(OpenHandle::<u32, u32>::of(5).find_version(|_| Some(2)).is_none());
    }
}
