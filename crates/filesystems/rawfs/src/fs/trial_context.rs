//! The effects of changes that are tried first ([`super::trial`]).

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use super::name::Trail;
use super::record::Record;
use super::table::InodeTable;

/// What a core that tries changes has beside its own state.
pub struct TrialContext {
    /// The files that are really in use.
    used: Arc<InodeTable>,
    effects: Mutex<Vec<TrialEffect>>,
}

/// What was done to something that may be in use.
pub enum TrialEffect {
    /// A name of anything but a directory went.
    Removed { dir: Trail, name: Vec<u8> },
    /// A directory went, and this is what is left of it.
    RemovedDir { name: Trail, record: Record },
    /// A name, and below it what there is, came elsewhere, over nothing, or in exchange; and which directories became zones.
    Renamed { from: Trail, to: Trail, zones: [Option<u64>; 2], exchanged: bool },
    /// A file has another count of names, and was changed now. `in_files`: its record is not with its name any more. `attributes`:
    /// owner, permissions, times and extended attributes, too.
    Changed { record: Record, in_files: bool, attributes: bool },
    /// A file without names is used by nobody, unless it is really in use.
    Left(Record),
    /// Blocks of a file that are there no more.
    Freed { ino: u64, blocks: Range<u64> },
}

impl TrialContext {
    /// For a core beside one that has these files in use.
    pub fn beside(table: &Arc<InodeTable>) -> TrialContext {
        TrialContext { used: Arc::clone(table), effects: Mutex::default() }
    }

    /// Records an effect for the time after the batch.
    pub fn note(&self, effect: TrialEffect) {
        self.effects.lock().push(effect);
    }

    /// Reports whether a file is really in use.
    pub fn is_used(&self, ino: u64) -> bool {
        self.used.is_used(ino)
    }

    /// Takes the effects recorded so far.
    pub fn take_effects(&self) -> Vec<TrialEffect> {
        std::mem::take(&mut *self.effects.lock())
    }
}
