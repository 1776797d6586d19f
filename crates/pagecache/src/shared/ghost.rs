//! Pages that left the small queue not long ago, by hash: who comes back is no newcomer (S3-FIFO's ghost queue).
//!
//! A table of cache lines of eight entries, each a piece of the hash and the number of the departure. One is a ghost until as many
//! pages as there may be ghosts have left after it. Nothing links entries, so there is nothing to repair. A line that
//! is full forgets its oldest.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::find::Key;
use super::probe::step;
use super::shape::WAYS;
use super::shard::{GHOSTS, Shard};

impl Shard<'_> {
    fn ghost_line(&self, key: &Key) -> Option<&[AtomicU64; WAYS]> {
        let lines = self.pages.plan.ghost_lines;
        let line = ((key.hash & 0xffff_ffff) * lines as u64) >> 32;
        self.pages.ghosts.get(self.no * lines..(self.no + 1) * lines)?.get(line as usize)
    }

    /// Departures since that of an entry.
    fn age(&self, entry: u64) -> u32 {
        (self.get(GHOSTS) as u32).wrapping_sub(entry as u32)
    }

    /// A page leaves.
    pub fn remember(&self, key: &Key) {
        let Some(line) = self.ghost_line(key) else { return };
        self.add(GHOSTS, 1);
        let worst = |entry: &&AtomicU64| match entry.load(Relaxed) {
            0 => u32::MAX,
            known if known >> 32 == key.hash >> 32 => u32::MAX,
            other => self.age(other),
        };
        if let Some(entry) = line.iter().max_by_key(worst) {
            step();
            entry.store(key.hash >> 32 << 32 | self.get(GHOSTS) & 0xffff_ffff, Relaxed);
        }
    }

    /// A page comes: whether it was here. It is forgotten then.
    pub fn was_here(&self, key: &Key) -> bool {
        let Some(line) = self.ghost_line(key) else { return false };
        let known = |entry: &&AtomicU64| {
            let entry = entry.load(Relaxed);
            entry != 0 && entry >> 32 == key.hash >> 32 && self.age(entry) < self.pages.plan.ghosts
        };
        let Some(entry) = line.iter().find(known) else { return false };
        step();
        entry.store(0, Relaxed);
        true
    }
}
