//! The backing inodes of a file.

use crate::report::TierName;
use crate::stat::{InodeId, Stat};

/// The backing inodes of a file on the SSD and on the HDD; 0: not there. Indexed by side they are the inodes' numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backing {
    inos: [u64; 2],
    /// Births: a file system gives the number of a removed file to a new one. 0: not known.
    born: [u64; 2],
}

impl Backing {
    /// Adds what a look at one side has seen.
    pub fn and(mut self, tier: TierName, stat: &Stat) -> Backing {
        self.inos[tier as usize] = stat.ino;
        self.born[tier as usize] = stat.id().birth;
        self
    }

    /// Returns the backing inodes of a file that is only on this side.
    pub fn only(tier: TierName, id: InodeId) -> Backing {
        let mut backing = Backing::default();
        backing.inos[tier as usize] = id.ino;
        backing.born[tier as usize] = id.birth;
        backing
    }

    /// Returns whether both may name the same inodes. A birth that is not known fits every inode of the number.
    pub(crate) fn fits(&self, other: &Backing) -> bool {
        let births = self.born.iter().zip(&other.born);
        self.inos == other.inos && births.into_iter().all(|(one, other)| one == other || *one == 0 || *other == 0)
    }

    /// The numbers of both inodes.
    pub fn inos(&self) -> [u64; 2] {
        self.inos
    }

    /// Returns the backing inodes without the one of this side.
    pub fn without(mut self, tier: TierName) -> Backing {
        self.inos[tier as usize] = 0;
        self.born[tier as usize] = 0;
        self
    }

    /// Whether a look at a side has seen the same inode, not only one of the same number.
    pub fn is(&self, tier: TierName, stat: &Stat) -> bool {
        let known = self.born[tier as usize];
        self.inos[tier as usize] == stat.ino && (known == 0 || known == stat.id().birth)
    }
}

impl std::ops::Index<usize> for Backing {
    type Output = u64;

    fn index(&self, side: usize) -> &u64 {
        &self.inos[side]
    }
}

impl From<[u64; 2]> for Backing {
    fn from(inos: [u64; 2]) -> Backing {
        Backing { inos, born: [0, 0] }
    }
}
