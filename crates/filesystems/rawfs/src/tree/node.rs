//! A node in memory, its children, and the links between nodes.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::leaf::Leaf;
use super::{ChangeContext, DamagedNodeError, HEADER, NodeAt, Nodes, shared};

/// The entries of a leaf, or the children of an inner node.
#[derive(Clone)]
pub enum Content {
    /// Level 0.
    Leaf(Leaf),
    /// Any level above.
    Inner(InnerNode),
}

/// A node. Once it has a home it is as on the device (or as it will be, when the checkpoint that gave it the home has written it):
/// whoever changes it makes it homeless first.
#[derive(Clone)]
pub struct Node {
    pub(super) content: Content,
    pub(super) home: OnceLock<u32>,
    /// Set when its bytes are known, children first.
    pub(super) sum: OnceLock<u32>,
}

impl Node {
    pub(super) fn new(content: Content) -> Node {
        Node { content, home: OnceLock::new(), sum: OnceLock::new() }
    }

    /// Makes a leaf without any entries.
    #[cfg(test)]
    pub fn empty() -> Node {
        Node::new(Content::Leaf(Leaf::new()))
    }

    /// Where it is, if it was written.
    pub fn at(&self) -> Option<NodeAt> {
        Some(NodeAt { slot: *self.home.get()?, sum: *self.sum.get()? })
    }

    /// Bytes it takes of its page.
    pub(super) fn bytes(&self) -> usize {
        match &self.content {
            Content::Leaf(leaf) => leaf.bytes(),
            Content::Inner(inner) => inner.bytes(),
        }
    }
}

/// An inner node: one child or more, in key order.
#[derive(Clone)]
pub struct InnerNode {
    /// The children, in key order.
    pub children: Vec<Child>,
}

impl InnerNode {
    /// Returns the bytes it takes of a page.
    pub fn bytes(&self) -> usize {
        HEADER + self.children.iter().map(Child::bytes).sum::<usize>()
    }
}

/// Bytes of a child beside its keys: the lengths of separator, prefix and what the two share; slot and checksum.
pub(super) const CHILD_HEAD: usize = 2 + 2 + 2 + 4 + 4;

/// A child. Its keys are not below `separator`, and all begin with `prefix`; both are suffixes as the keys of this node are.
#[derive(Clone)]
pub struct Child {
    /// The first child's is empty and says nothing.
    pub separator: Suffix,
    /// What all keys of the child share.
    pub prefix: Suffix,
    /// The link to the child node.
    pub link: Link,
}

/// The suffix of a key. Most are short, so they are stored in the node itself: a search compares many.
pub type Suffix = SmallVec<[u8; 24]>;

impl Child {
    /// A child whose node has whole keys.
    pub fn bare(link: Link) -> Child {
        Child { separator: Suffix::new(), prefix: Suffix::new(), link }
    }

    /// Returns the bytes it takes of a page.
    pub fn bytes(&self) -> usize {
        CHILD_HEAD + self.separator.len() + self.prefix.len() - shared(&self.separator, &self.prefix)
    }
}

/// A reference to a node: on the device, or in memory.
#[derive(Clone)]
pub enum Link {
    /// Not in the tree's own memory; perhaps in the cache of nodes.
    Disk(NodeAt),
    /// Changed since the last checkpoint, or not yet let go after it.
    Memory(Arc<Node>),
}

impl Link {
    pub(super) fn new(content: Content) -> Link {
        Link::Memory(Arc::new(Node::new(content)))
    }

    /// The node, to be read; it has to be of this level.
    pub(super) fn get<N: Nodes>(&self, nodes: &N, level: u8) -> Result<Arc<Node>, N::Error> {
        let node = match self {
            Link::Disk(at) => nodes.load(*at)?,
            Link::Memory(node) => Arc::clone(node),
        };
        let leaf = matches!(node.content, Content::Leaf(_));
        if leaf == (level == 0) { Ok(node) } else { Err(DamagedNodeError("a node is of the wrong level").into()) }
    }

    /// The node, to be changed: what is on the device, or belongs to a snapshot, is copied; a home it had is given up.
    pub(super) fn own<N: Nodes>(&mut self, cx: &mut ChangeContext<'_, N>, level: u8) -> Result<&mut Content, N::Error> {
        let node = self.get(cx.nodes, level)?;
        if let Some(slot) = node.home.get() {
            cx.freed.push(*slot);
            cx.dirty += 1;
        }
        *self = Link::Memory(node);
        let Link::Memory(node) = self else { unreachable!("it was just made") };
        let node = Arc::make_mut(node);
        (node.home, node.sum) = (OnceLock::new(), OnceLock::new());
        Ok(&mut node.content)
    }

    /// The node leaves the tree; its home too.
    pub(super) fn give_up<N: Nodes>(&self, cx: &mut ChangeContext<'_, N>) {
        match self {
            Link::Disk(at) => cx.freed.push(at.slot),
            Link::Memory(node) => cx.freed.extend(node.home.get()),
        }
    }
}
