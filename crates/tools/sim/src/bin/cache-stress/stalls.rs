//! Stalls of the surviving processes around a kill, by kind of call.

use std::sync::atomic::Ordering::SeqCst;

use crate::version_table::{KINDS, VersionTable};

/// The process that was killed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum KillTarget {
    Leader,
    Another,
    None,
}

/// The targets with their printed names.
const KILLED: [(KillTarget, &str); 3] =
    [(KillTarget::Leader, "the leader"), (KillTarget::Another, "another"), (KillTarget::None, "nobody")];

/// The longest call of each kind around each kill, ms.
#[derive(Default)]
pub struct Stalls {
    lists: [[Vec<f64>; KINDS.len()]; KILLED.len()],
}

impl Stalls {
    /// Resets the times before a kill.
    pub fn begin(&mut self, table: &VersionTable, others: &[u32]) {
        for (slot, (kind, _)) in others.iter().flat_map(|slot| KINDS.map(|kind| (*slot, kind))) {
            table.longest(slot, kind).store(0, SeqCst);
        }
    }

    /// Collects the times some time after a kill.
    pub fn end(&mut self, table: &VersionTable, others: &[u32], killed: KillTarget) {
        for (kind, _) in KINDS {
            let longest = others.iter().map(|slot| table.longest(*slot, kind).load(SeqCst)).max().unwrap_or(0);
            if longest > 0 {
                self.lists[killed as usize][kind as usize].push(longest as f64 / 1e6);
            }
        }
    }

    /// Prints the statistics of the stalls.
    pub fn print(&mut self) {
        for (killed, who) in KILLED {
            for (kind, what) in KINDS {
                let list = &mut self.lists[killed as usize][kind as usize];
                list.sort_by(f64::total_cmp);
                let Some(last) = list.last().copied() else { continue };
                let at = |share: f64| list[((list.len() as f64 * share) as usize).min(list.len() - 1)];
                let over = list.iter().filter(|stall| **stall > 50.0).count();
                let (half, most, len) = (at(0.5), at(0.9), list.len());
                println!(
                    "  {who} killed, {what}: longest: median {half:.1} ms, 9 of 10 {most:.1}, all {last:.1}; over 50 ms: {over} of {len}"
                );
            }
        }
    }
}
