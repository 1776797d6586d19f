//! Open files as the kernel knows them, some of which are opened on the slow side only when something needs them.

use std::sync::{Arc, OnceLock};

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
    opened: OnceLock<Arc<T>>,
    /// One thread at a time opens the file.
    promised: Mutex<Option<PromisedOpen>>,
    /// What the cache has of the file; none if it has nothing of it.
    version: OnceLock<Option<V>>,
}

impl<T, V> OpenHandle<T, V> {
    /// Creates the handle of a file that is open.
    pub fn of(file: T) -> OpenHandle<T, V> {
        OpenHandle { opened: OnceLock::from(Arc::new(file)), promised: Mutex::new(None), version: OnceLock::new() }
    }

    /// Creates the handle of a file that is opened when something needs it.
    pub fn promised(open: PromisedOpen) -> OpenHandle<T, V> {
        OpenHandle { opened: OnceLock::new(), promised: Mutex::new(Some(open)), version: OnceLock::new() }
    }

    /// Returns what the cache has of the file, if somebody has looked for it ([`OpenHandle::find_version`]) and the file is not open.
    pub fn version(&self) -> Option<&V> {
        if self.opened.get().is_some() { None } else { self.version.get()?.as_ref() }
    }

    /// Returns what the cache has of the file, if the file is not open; `find` looks for it, once.
    pub fn find_version(&self, find: impl FnOnce(&PromisedOpen) -> Option<V>) -> Option<&V> {
        if self.opened.get().is_some() {
            return None;
        }
        let version = match self.version.get() {
            Some(version) => version,
            None => {
                let promised = self.promised.lock().clone()?;
                let found = find(&promised);
                self.version.get_or_init(|| found)
            }
        };
        version.as_ref()
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
    fn what_the_cache_has_is_looked_for_once_and_ends_with_the_open() {
        let handle: OpenHandle<u32, u32> = OpenHandle::promised(promised());
        assert_eq!(handle.version(), None);
        assert_eq!(handle.find_version(|open| Some(open.number as u32)), Some(&7));
        assert_eq!(handle.find_version(|_| None), Some(&7));
        assert_eq!(handle.version(), Some(&7));
        handle.open(|_| Ok(1)).expect("opened");
        assert_eq!((handle.version(), handle.find_version(|_| Some(2))), (None, None));
        assert_eq!(OpenHandle::<u32, u32>::of(5).find_version(|_| Some(2)), None);
    }
}
