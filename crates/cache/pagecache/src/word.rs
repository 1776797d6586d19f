//! The word of a frame: who may touch the bytes, and which version of what they are.
//!
//! ```text
//!  63                      16 15   14 13        8 7       5 4     3   2    1    0
//! +--------------------------+-------+-----------+---------+-------+---+----+----+
//! |         version          | zero  |   owner   |  zero   | marks | N | L  | C  |
//! +--------------------------+-------+-----------+---------+-------+---+----+----+
//! ```
//!
//! C: somebody, the *owner* (a process slot), is changing the frame: nobody reads, nobody else changes. L: it is about to leave, so a pin
//! comes too late. N: it has a name, that is a page. The version never goes back; it is counted up by every change of the
//! bytes or of the name, not by a change of the marks.

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

/// A value of the word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Word(pub u64);

impl Word {
    #[inline]
    pub fn is_changing(self) -> bool {
        self.0 & CHANGING != 0
    }

    #[inline]
    pub fn is_leaving(self) -> bool {
        self.0 & LEAVING != 0
    }

    #[inline]
    pub fn is_named(self) -> bool {
        self.0 & NAMED != 0
    }

    #[inline]
    pub fn marks(self) -> Marks {
        Marks(((self.0 & MARKS) >> MARKS_SHIFT) as u8)
    }

    pub fn owner(self) -> ProcessSlot {
        ProcessSlot(((self.0 & OWNER) >> OWNER_SHIFT) as u8)
    }

    #[inline]
    pub fn version(self) -> u64 {
        self.0 >> 16
    }

    /// What was copied while this word was seen before, and `after` after, is whole: only marks changed.
    #[inline]
    pub fn is_same_version(self, after: Word) -> bool {
        (self.0 ^ after.0) & !(MARKS | OWNER) == 0
    }

    /// Ours to change.
    #[inline]
    pub fn taken_by(self, owner: ProcessSlot) -> Word {
        Word(self.0 & !OWNER | CHANGING | u64::from(owner.0 & 63) << OWNER_SHIFT)
    }

    pub fn leaving(self) -> Word {
        Word(self.0 | LEAVING)
    }

    /// The same page, and other bytes.
    #[inline]
    pub fn changed(self) -> Word {
        Word((self.0 & VERSION).wrapping_add(VERSION_ONE) | self.0 & (NAMED | MARKS))
    }

    /// No page any more.
    pub fn unnamed(self) -> Word {
        Word(self.changed().0 & VERSION)
    }

    /// Another page.
    pub fn named(self, marks: Marks) -> Word {
        Word(self.unnamed().0 | NAMED).with(marks)
    }

    #[inline]
    pub fn with(self, marks: Marks) -> Word {
        Word(self.0 | u64::from(marks.0) << MARKS_SHIFT & MARKS)
    }

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
