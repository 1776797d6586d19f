//! A damaged tree: what can still be read of it is kept, what cannot is taken out.

use std::sync::Arc;

use super::leaf::Leaf;
use super::node::{Content, InnerNode, Link, Node};
use super::{DamagedNodeError, Nodes, Tree};

/// What could not be kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostNode<E> {
    /// Where the lost node is on the device.
    pub slot: u32,
    /// Its level in the tree; leaves are 0.
    pub level: u8,
    /// The first key that was lost.
    pub from: Vec<u8>,
    /// Up to here, without it; `None`: to the end.
    pub to: Option<Vec<u8>>,
    /// What is wrong with it.
    pub why: E,
    /// Entries of a readable leaf that do not lie where they should: only those are lost.
    pub entries: usize,
}

/// Receives what a salvage of a tree lost.
pub trait SalvageObserver<E> {
    /// A node is used; false: it was before.
    fn used(&mut self, slot: u32) -> bool;
    /// A node is replaced by one without what is lost.
    fn replaced(&mut self, slot: u32);
    /// Something is lost. An error ends it all: it was not damage.
    fn lost(&mut self, lost: LostNode<E>) -> Result<(), E>;
}

impl Tree {
    /// Takes out all that cannot be read, or is not where it should be: keys ascend, and each node is there once.
    ///
    /// # Errors
    /// What [`SalvageObserver::lost`] says; the tree is as it was.
    pub fn prune<N: Nodes, W: SalvageObserver<N::Error>>(&mut self, nodes: &N, watch: &mut W) -> Result<(), N::Error> {
        let mut walk = Pruner { nodes, watch, key: Vec::new(), last: None };
        match walk.link(&self.root, self.level, None, None)? {
            PruneResult::Same => {}
            PruneResult::Other(link, dirty) => (self.root, self.dirty) = (link, self.dirty + dirty),
            PruneResult::Nothing => *self = Tree::default(),
        }
        Ok(())
    }
}

enum PruneResult {
    Same,
    /// With how many nodes that differ from the device.
    Other(Link, usize),
    Nothing,
}

struct Pruner<'a, N, W> {
    nodes: &'a N,
    watch: &'a mut W,
    key: Vec<u8>,
    last: Option<Vec<u8>>,
}

type Bound<'b> = Option<&'b [u8]>;

impl<N: Nodes, W: SalvageObserver<N::Error>> Pruner<'_, N, W> {
    fn link(&mut self, link: &Link, level: u8, low: Bound<'_>, high: Bound<'_>) -> Result<PruneResult, N::Error> {
        let slot = match link {
            Link::Disk(at) => Some(at.slot),
            Link::Memory(node) => node.home.get().copied(),
        };
        let node = match link.get(self.nodes, level) {
            Ok(_) if self.key.len() > super::KEY_MAX => {
                return self.lost(slot, level, low, high, DamagedNodeError("keys are too long").into());
            }
            Ok(node) if slot.is_none_or(|slot| self.watch.used(slot)) => node,
            Ok(_) => return self.lost(slot, level, low, high, DamagedNodeError("a node is in the trees twice").into()),
            Err(why) => return self.lost(slot, level, low, high, why),
        };
        let kept = match &node.content {
            Content::Leaf(leaf) => self.leaf(leaf, slot, low, high)?,
            Content::Inner(inner) => self.inner(inner, level, low, high)?,
        };
        if let (PruneResult::Other(..) | PruneResult::Nothing, Some(slot)) = (&kept, slot) {
            self.watch.replaced(slot);
        }
        Ok(kept)
    }

    fn lost(&mut self, slot: Option<u32>, level: u8, low: Bound<'_>, high: Bound<'_>, why: N::Error) -> Result<PruneResult, N::Error> {
        let from = low.unwrap_or_default().max(&self.key).to_vec();
        let lost = LostNode { slot: slot.unwrap_or(u32::MAX), level, from, to: high.map(<[u8]>::to_vec), why, entries: 0 };
        self.watch.lost(lost).map(|()| PruneResult::Nothing)
    }

    fn leaf(&mut self, leaf: &Leaf, slot: Option<u32>, low: Bound<'_>, high: Bound<'_>) -> Result<PruneResult, N::Error> {
        let base = self.key.len();
        let mut right = Vec::with_capacity(leaf.len());
        for (index, (key, _)) in leaf.entries().enumerate() {
            self.key.truncate(base);
            self.key.extend_from_slice(key);
            let outside = low.is_some_and(|low| &*self.key < low) || high.is_some_and(|high| &*self.key >= high);
            let back = self.last.as_ref().is_some_and(|last| *last >= self.key);
            if !outside && !back && self.key.len() <= super::KEY_MAX {
                self.last = Some(self.key.clone());
                right.push(index);
            }
        }
        self.key.truncate(base);
        let entries = leaf.len() - right.len();
        if entries == 0 {
            return Ok(PruneResult::Same);
        }
        let why = DamagedNodeError("keys lie in the wrong node").into();
        let (from, to) = (low.unwrap_or_default().to_vec(), high.map(<[u8]>::to_vec));
        self.watch.lost(LostNode { slot: slot.unwrap_or(u32::MAX), level: 0, from, to, why, entries })?;
        if right.is_empty() {
            return Ok(PruneResult::Nothing);
        }
        let mut fresh = Leaf::new();
        for (at, index) in right.into_iter().enumerate() {
            fresh.insert(at, leaf.key(index), leaf.value(index));
        }
        Ok(PruneResult::Other(Link::new(Content::Leaf(fresh)), 1))
    }

    fn inner(&mut self, inner: &InnerNode, level: u8, low: Bound<'_>, high: Bound<'_>) -> Result<PruneResult, N::Error> {
        let base = self.key.len();
        let bounds: Vec<Vec<u8>> = inner.children.iter().map(|child| [&self.key[..base], &child.separator].concat()).collect();
        let (mut children, mut dirty, mut same) = (Vec::with_capacity(bounds.len()), 0, true);
        for (index, child) in inner.children.iter().enumerate() {
            let low = if index == 0 { low } else { low.max(Some(&bounds[index])) };
            let own = bounds.get(index + 1).map(|bound| &**bound);
            let high = match (own, high) {
                (Some(own), Some(high)) => Some(own.min(high)),
                (own, high) => own.or(high),
            };
            self.key.truncate(base);
            self.key.extend_from_slice(&child.prefix);
            let kept = self.link(&child.link, level - 1, low, high);
            self.key.truncate(base);
            let mut child = child.clone();
            match kept? {
                PruneResult::Same => {}
                PruneResult::Other(link, more) => (child.link, dirty, same) = (link, dirty + more, false),
                PruneResult::Nothing => {
                    same = false;
                    continue;
                }
            }
            children.push(child);
        }
        if same {
            return Ok(PruneResult::Same);
        }
        let Some(first) = children.first_mut() else { return Ok(PruneResult::Nothing) };
        // The first child's says nothing.
        first.separator.clear();
        Ok(PruneResult::Other(Link::Memory(Arc::new(Node::new(Content::Inner(InnerNode { children })))), dirty + 1))
    }
}
