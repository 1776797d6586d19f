//! A whole tree looked over.

use super::node::{Content, Link};
use super::{DamagedNodeError, Nodes, Tree};

/// What is in a tree.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TreeCounts {
    /// The number of leaves and inner nodes.
    pub nodes: u64,
    /// The number of keys in the tree.
    pub entries: u64,
    /// Of keys as callers see them.
    pub key_bytes: u64,
    /// The bytes of all values together.
    pub value_bytes: u64,
}

impl Tree {
    /// Reads every node: keys ascend and lie where their parents say. `visit` gets the home of each node that has one.
    pub fn check<N: Nodes>(&self, nodes: &N, mut visit: impl FnMut(u32)) -> Result<TreeCounts, N::Error> {
        let mut walk = Walk { nodes, key: Vec::new(), last: None, counts: TreeCounts::default(), visit: &mut visit };
        walk.node(&self.root, self.level, None, None)?;
        Ok(walk.counts)
    }
}

struct Walk<'a, N, F> {
    nodes: &'a N,
    key: Vec<u8>,
    last: Option<Vec<u8>>,
    counts: TreeCounts,
    visit: &'a mut F,
}

impl<N: Nodes, F: FnMut(u32)> Walk<'_, N, F> {
    fn node(&mut self, link: &Link, level: u8, low: Option<&[u8]>, high: Option<&[u8]>) -> Result<(), N::Error> {
        let node = link.get(self.nodes, level)?;
        if let Some(slot) = node.home.get() {
            (self.visit)(*slot);
        }
        self.counts.nodes += 1;
        if self.counts.nodes > self.nodes.most() {
            return Err(DamagedNodeError("a tree has more nodes than there are").into());
        }
        let base = self.key.len();
        if base > super::KEY_MAX {
            return Err(DamagedNodeError("keys are too long").into());
        }
        match &node.content {
            Content::Leaf(leaf) => {
                for (key, value) in leaf.entries() {
                    self.key.truncate(base);
                    self.key.extend_from_slice(key);
                    self.entry(value.len(), low, high)?;
                }
            }
            Content::Inner(inner) => {
                let whole = |child: &super::node::Child| [&self.key[..base], &child.separator].concat();
                let bounds: Vec<Vec<u8>> = inner.children.iter().map(whole).collect();
                for (index, child) in inner.children.iter().enumerate() {
                    let low = if index == 0 { low } else { Some(&*bounds[index]) };
                    let high = bounds.get(index + 1).map(|bound| &**bound).or(high);
                    self.key.truncate(base);
                    self.key.extend_from_slice(&child.prefix);
                    self.node(&child.link, level - 1, low, high)?;
                }
            }
        }
        self.key.truncate(base);
        Ok(())
    }

    fn entry(&mut self, value: usize, low: Option<&[u8]>, high: Option<&[u8]>) -> Result<(), DamagedNodeError> {
        if low.is_some_and(|low| &*self.key < low) || high.is_some_and(|high| &*self.key >= high) {
            return Err(DamagedNodeError("a key lies in the wrong node"));
        }
        if self.last.as_ref().is_some_and(|last| *last >= self.key) {
            return Err(DamagedNodeError("the keys of a tree do not ascend"));
        }
        self.last = Some(self.key.clone());
        self.counts.entries += 1;
        self.counts.key_bytes += self.key.len() as u64;
        self.counts.value_bytes += value as u64;
        Ok(())
    }
}
