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

/// What a file handle of the kernel stands for.
pub struct OpenHandle<T> {
    opened: OnceLock<Arc<T>>,
    /// One thread at a time opens the file.
    promised: Mutex<Option<PromisedOpen>>,
}

impl<T> OpenHandle<T> {
    /// Creates the handle of a file that is open.
    pub fn of(file: T) -> OpenHandle<T> {
        OpenHandle { opened: OnceLock::from(Arc::new(file)), promised: Mutex::new(None) }
    }

    /// Creates the handle of a file that is opened when something needs it.
    pub fn promised(open: PromisedOpen) -> OpenHandle<T> {
        OpenHandle { opened: OnceLock::new(), promised: Mutex::new(Some(open)) }
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
        let handle = OpenHandle::promised(promised());
        assert!(handle.get().is_none());
        assert_eq!(handle.open(|_| Err::<u32, _>(Errno::STALE)).err(), Some(Errno::STALE));
        assert_eq!(*handle.open(|open| Ok(open.number as u32)).expect("opened"), 7);
        assert_eq!(*handle.open(|_| Err(Errno::IO)).expect("open already"), 7);
        assert_eq!(handle.get().as_deref(), Some(&7));
    }
}
