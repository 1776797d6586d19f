//! Whether this process was forked since something was made: a child has its parent's memory, but not its process slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::SharedRef;
use crate::region::{PageSize, Region};

/// Counts the forks between the first process and this one, as far as anybody asked. To ask costs a load and no system call: the
/// kernel sets the word to zero in a child (`MADV_WIPEONFORK`).
#[derive(Debug)]
pub struct ForkCounter {
    /// None: the kernel cannot wipe it.
    word: Option<SharedRef<AtomicU32>>,
    last: AtomicU32,
}

impl ForkCounter {
    /// One for a process and all that come from it.
    ///
    /// # Errors
    /// No memory.
    pub fn new() -> std::io::Result<ForkCounter> {
        let word = Region::private(4, PageSize::Small)?;
        let is_wiped = word.wiped_by_fork();
        let word = is_wiped.then(|| SharedRef::new(&Arc::new(word), 0));
        Ok(ForkCounter { word, last: AtomicU32::new(0) })
    }

    /// The same number for as long as no fork lies between.
    #[inline]
    pub fn now(&self) -> u32 {
        match self.word.as_ref().map(|word| word.load(Ordering::Acquire)) {
            Some(now) if now != 0 => now,
            _ => self.begin(),
        }
    }

    /// What [`ForkCounter::now`] says, or zero: nobody has asked in this process yet. None where a load does not tell.
    pub fn live(&self) -> Option<&AtomicU32> {
        self.word.as_deref()
    }

    #[cold]
    #[inline(never)]
    fn begin(&self) -> u32 {
        let Some(word) = &self.word else { return std::process::id() };
        // Counted first: whoever is forked in between counts on from here.
        let next = self.last.fetch_add(1, Ordering::SeqCst).wrapping_add(1).max(1);
        word.compare_exchange(0, next, Ordering::SeqCst, Ordering::Acquire).map_or_else(|now| now, |_| next)
    }
}

#[cfg(test)]
mod test {
    #[test]
    fn without_a_fork_it_stays() {
        let generations = super::ForkCounter::new().expect("memory");
        let first = generations.now();
        assert_ne!(first, 0);
        assert_eq!(generations.now(), first);
    }
}
