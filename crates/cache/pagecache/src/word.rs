//! The word of a frame: who may access the bytes, and the version and kind of their content.
//!
//! ```text
//!  63                      16 15   14 13        8 7       5 4     3   2    1    0
//! +--------------------------+-------+-----------+---------+-------+---+----+----+
//! |         version          | zero  |   owner   |  zero   | marks | N | L  | C  |
//! +--------------------------+-------+-----------+---------+-------+---+----+----+
//! ```
//!
//! C: a process, the *owner* (a process slot), is changing the frame; no other may read or change it. L: the page is about to be evicted,
//! so a pin comes too late. N: the frame has a name, that is a page. The version never goes back: every change of the bytes or of the
//! name increments it, a change of the marks does not.

use shm::ProcessSlot;

use super::types::Marks;

pub(super) const CHANGING: u64 = 1;
pub(super) const LEAVING: u64 = 2;
pub(super) const NAMED: u64 = 4;
const MARKS_SHIFT: u32 = 3;
pub(super) const MARKS: u64 = 3 << MARKS_SHIFT;
const OWNER_SHIFT: u32 = 8;
const OWNER: u64 = 63 << OWNER_SHIFT;
const VERSION: u64 = !0 << 16;
const VERSION_ONE: u64 = 1 << 16;

/// A value of a frame's word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Word(pub u64);

impl Word {
    /// Returns whether a process is changing the frame.
    #[inline]
    pub fn is_changing(self) -> bool {
        self.0 & CHANGING != 0
    }

    /// Returns whether the page is about to be evicted.
    #[inline]
    pub fn is_leaving(self) -> bool {
        self.0 & LEAVING != 0
    }

    /// Returns whether the frame has a page.
    #[inline]
    pub fn is_named(self) -> bool {
        self.0 & NAMED != 0
    }

    /// Returns the marks of the page.
    #[inline]
    pub fn marks(self) -> Marks {
        Marks(((self.0 & MARKS) >> MARKS_SHIFT) as u8)
    }

    /// Returns the process slot that changes the frame.
    pub fn owner(self) -> ProcessSlot {
        ProcessSlot(((self.0 & OWNER) >> OWNER_SHIFT) as u8)
    }

    /// Returns the version of the bytes.
    #[inline]
    pub fn version(self) -> u64 {
        self.0 >> 16
    }

    /// Returns whether a copy is consistent that was made between this word and `after`: only marks may have changed.
    #[inline]
    pub fn is_same_version(self, after: Word) -> bool {
        (self.0 ^ after.0) & !(MARKS | OWNER) == 0
    }

    /// Returns the word of a frame that `owner` has taken.
    #[inline]
    pub fn taken_by(self, owner: ProcessSlot) -> Word {
        Word(self.0 & !OWNER | CHANGING | u64::from(owner.0 & 63) << OWNER_SHIFT)
    }

    /// Returns the word of a page that is about to be evicted.
    pub fn leaving(self) -> Word {
        Word(self.0 | LEAVING)
    }

    /// Returns the word of the same page with other bytes.
    #[inline]
    pub fn changed(self) -> Word {
        Word((self.0 & VERSION).wrapping_add(VERSION_ONE) | self.0 & (NAMED | MARKS))
    }

    /// Returns the word of a frame that has no page any more.
    pub fn unnamed(self) -> Word {
        Word(self.changed().0 & VERSION)
    }

    /// Returns the word of a frame that has another page.
    pub fn named(self, marks: Marks) -> Word {
        Word(self.unnamed().0 | NAMED).with(marks)
    }

    /// Returns the word with these marks set.
    #[inline]
    pub fn with(self, marks: Marks) -> Word {
        Word(self.0 | u64::from(marks.0) << MARKS_SHIFT & MARKS)
    }

    /// Returns the word with these marks cleared.
    pub fn without(self, marks: Marks) -> Word {
        Word(self.0 & !(u64::from(marks.0) << MARKS_SHIFT & MARKS))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn fields_do_not_touch() {
        let word = Word(0).named(Marks(255)).taken_by(ProcessSlot(255)).leaving();
        assert!(word.is_changing() && word.is_leaving() && word.is_named());
        assert_eq!((word.marks(), word.owner(), word.version()), (Marks(3), ProcessSlot(63), 1));
        let given_back = Word(word.0 & !(CHANGING | LEAVING | OWNER));
        assert_eq!(given_back, Word(1 << 16 | NAMED | MARKS));
        let other = word.changed().without(Marks::DIRTY);
        assert_eq!((other.marks(), other.version(), other.is_changing()), (Marks::SSD_STALE, 2, false));
        assert_eq!(other.unnamed(), Word(3 << 16));
        assert!(given_back.is_same_version(Word(1 << 16 | NAMED)) && !given_back.is_same_version(other));
        assert!(!given_back.is_same_version(word));
        assert_eq!(Word(!0).unnamed(), Word(0), "versions go around");
    }
}
