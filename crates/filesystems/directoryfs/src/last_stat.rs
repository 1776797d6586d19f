//! The attributes of a file that were read last, for when the file system does not reply.

use crate::Stat;

/// The attributes of a file that were read last, and how often it was changed by then.
#[derive(Debug, Default)]
pub(crate) struct LastStat {
    stat: Option<Stat>,
    changes: u64,
}

impl LastStat {
    /// Returns the attributes, if they were read since the last change that was not a write: a write only makes the size grow.
    pub fn get(&self) -> Option<Stat> {
        self.stat
    }

    /// Returns how often the file was changed.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Remembers attributes that were read after `changes` was, unless the file was changed meanwhile: they may be older than that.
    pub fn set(&mut self, stat: &Stat, changes: u64) {
        if self.changes == changes {
            self.stat = Some(*stat);
        }
    }

    /// Notes that the file was written up to this offset.
    pub fn note_written(&mut self, end: u64) {
        self.changes += 1;
        if let Some(stat) = &mut self.stat {
            stat.size = stat.size.max(end);
        }
    }

    /// Notes a change: what was read is old.
    pub fn note_changed(&mut self) {
        *self = LastStat { stat: None, changes: self.changes + 1 };
    }
}
