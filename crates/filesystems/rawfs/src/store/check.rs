//! Compares the allocators with the trees.

use std::collections::HashSet;

use super::batch;
use super::inner::StoreCore;
use crate::error::Error;
use crate::tree::check::TreeCounts;
use crate::units::Extent;

/// What a check of the store found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StoreCheck {
    /// The counts of each tree, by tree.
    pub trees: [TreeCounts; 2],
    /// Nodes that the bitmap has in use and no tree has.
    pub leaked: Vec<u32>,
    /// Nodes that a tree has and the bitmap has not, or that are in the trees twice.
    pub wrong: Vec<u32>,
}

impl StoreCore {
    /// Reads all nodes of both trees. Other calls wait meanwhile.
    pub(super) fn check(&self) -> Result<StoreCheck, Error> {
        let state = self.state.write();
        state.check()?;
        let mut checked = StoreCheck::default();
        let mut seen = HashSet::new();
        for tree in batch::TreeId::ALL {
            let counts = state.trees[tree as usize].check(&self.loader(tree), |slot| {
                if !seen.insert(slot) {
                    checked.wrong.push(slot);
                }
            });
            checked.trees[tree as usize] = counts?;
        }
        // Until the next checkpoint the bitmap has what the trees have left.
        seen.extend(&state.left);
        let nodes = self.nodes.lock();
        let used: HashSet<u32> = nodes.used_bits().rows().flatten().map(|slot| slot as u32).collect();
        checked.leaked = used.difference(&seen).copied().collect();
        checked.wrong.extend(seen.difference(&used));
        checked.leaked.sort_unstable();
        checked.wrong.sort_unstable();
        Ok(checked)
    }

    /// Each row of data blocks in use.
    pub(super) fn each_used(&self, each: &mut dyn FnMut(Extent)) {
        let state = self.state.read();
        let start = self.shape.data_start();
        for row in state.used.rows() {
            let mut from = row.start;
            while from < row.end {
                let blocks = (row.end - from).min(u64::from(u32::MAX));
                each(Extent::new(start.after(from), blocks as u32));
                from += blocks;
            }
        }
    }
}
