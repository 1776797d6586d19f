//! What a process has for itself and a child forked from it makes anew: a process slot, an open file.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use shm::ForkCounter;

use crate::error::{Error, Kind};

static GENERATIONS: OnceLock<ForkCounter> = OnceLock::new();
/// No generation.
static NONE: AtomicU32 = AtomicU32::new(0);

/// The generation of this process: constant, another one in a child.
#[inline]
pub fn now() -> u32 {
    GENERATIONS.get().map_or(0, ForkCounter::now)
}

/// A value that each process has separately: the one that made it and each process forked since.
#[derive(Debug)]
pub struct PerProcess<T> {
    generation: u32,
    /// What this process's generation is, where a load tells; else [`NONE`].
    live: &'static AtomicU32,
    here: Option<T>,
    /// One thread at a time makes it anew.
    making: Mutex<()>,
    after: OnceLock<Box<PerProcess<T>>>,
}

impl<T> PerProcess<T> {
    /// Of this process.
    ///
    /// # Errors
    /// No memory.
    pub fn new(here: T) -> Result<PerProcess<T>, Error> {
        if GENERATIONS.get().is_none() {
            let made =
                ForkCounter::new().map_err(|error| Error::new(Kind::System, rustix::io::Errno::NOMEM, format!("memory: {error}")))?;
            let _ = GENERATIONS.set(made);
        }
        let live = GENERATIONS.get().and_then(ForkCounter::live).unwrap_or(&NONE);
        Ok(PerProcess { generation: now(), live, here: Some(here), making: Mutex::new(()), after: OnceLock::new() })
    }

    /// This process's, if it has one.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        if self.live.load(Ordering::Acquire) == self.generation { self.here.as_ref() } else { self.get_slowly() }
    }

    #[cold]
    #[inline(never)]
    fn get_slowly(&self) -> Option<&T> {
        if self.generation == now() { self.here.as_ref() } else { self.after.get()?.get() }
    }

    /// That of the nearest process before this one.
    pub fn parent(&self) -> Option<&T> {
        self.after.get().and_then(|after| after.parent()).or(self.here.as_ref())
    }

    /// This process's; made if it has none.
    ///
    /// # Errors
    /// What `make` says.
    #[inline]
    pub fn get_or(&self, make: impl FnOnce() -> Result<T, Error>) -> Result<&T, Error> {
        match self.get() {
            Some(here) => Ok(here),
            None => self.make(make),
        }
    }

    #[cold]
    fn make(&self, make: impl FnOnce() -> Result<T, Error>) -> Result<&T, Error> {
        let _held = self.making.lock();
        let mut last = self;
        while let Some(after) = last.after.get() {
            last = after;
        }
        if last.generation != now() {
            let made = PerProcess::new(make()?)?;
            last = last.after.get_or_init(|| Box::new(made));
        }
        last.here.as_ref().ok_or_else(|| Error::new(Kind::Forked, rustix::io::Errno::CHILD, "it was closed in this process"))
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        // What is another process's is not ours to give back.
        if self.generation != now() {
            let _ = std::mem::ManuallyDrop::new(self.here.take());
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn in_one_process_there_is_one() {
        let one = PerProcess::new(Box::new(7)).expect("memory");
        assert_eq!(one.get().map(|seven| **seven), Some(7));
        assert_eq!(**one.get_or(|| unreachable!("made twice")).expect("there"), 7);
    }
}
