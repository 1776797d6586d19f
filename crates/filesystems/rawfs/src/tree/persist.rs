//! Nodes as bytes, and the checkpoint.
//!
//! A page: crc32c of what follows (4 bytes), magic (4), the node's slot (4), a tag of the image (4), generation (8), level (1), which tree
//! (1), count (2), zero (4); then the entries or children (docs/formats.md).

use std::sync::Arc;

use super::leaf::Leaf;
use super::node::{Content, InnerNode, Link, Node};
use super::{DamagedNodeError, HEADER, LEVELS, NODE_BYTES, NodeAt, Tree};

const MAGIC: [u8; 4] = *b"HSnd";

/// What all nodes of a tree say of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeStamp {
    /// Of the image: nodes of an older one are not taken for ours.
    pub tag: u32,
    /// Of the checkpoint that writes; older nodes have older ones.
    pub generation: u64,
    /// Which of the image's trees.
    pub tree: u8,
}

fn number<const N: usize>(page: &[u8], at: usize) -> [u8; N] {
    page[at..at + N].try_into().expect("as long as it is wide")
}

impl Node {
    /// The node in these bytes, which were read from its place. Every offset and length is checked.
    pub fn parse(page: Box<[u8]>, at: NodeAt, stamp: NodeStamp) -> Result<Node, DamagedNodeError> {
        if page.len() != NODE_BYTES || crc32c::crc32c(&page[4..]) != at.sum || u32::from_le_bytes(number(&page, 0)) != at.sum {
            return Err(DamagedNodeError("a node's bytes do not match its checksum"));
        }
        let known = page[4..8] == MAGIC && number(&page, 8) == at.slot.to_le_bytes() && number(&page, 12) == stamp.tag.to_le_bytes();
        if !known || page[25] != stamp.tree || u64::from_le_bytes(number(&page, 16)) > stamp.generation {
            return Err(DamagedNodeError("a node is not the one that belongs there"));
        }
        let count = usize::from(u16::from_le_bytes(number(&page, 26)));
        let content = match page[24] {
            0 => Content::Leaf(Leaf::parse(page, count)?),
            level if level <= LEVELS => Content::Inner(InnerNode::parse(&page, count)?),
            _ => return Err(DamagedNodeError("a node's level is too high")),
        };
        let node = Node::new(content);
        let fresh = "a new node has no home";
        node.home.set(at.slot).expect(fresh);
        node.sum.set(at.sum).expect(fresh);
        Ok(node)
    }

    /// The bytes of a node at its home; the homes and sums of its children are known.
    fn page(&self, slot: u32, level: u8, stamp: NodeStamp) -> Result<Box<[u8]>, DamagedNodeError> {
        let (mut page, count) = match &self.content {
            Content::Leaf(leaf) => (leaf.page(), leaf.len()),
            Content::Inner(inner) => (inner.page().ok_or(DamagedNodeError("a node is larger than its page"))?, inner.children.len()),
        };
        page[4..8].copy_from_slice(&MAGIC);
        page[8..12].copy_from_slice(&slot.to_le_bytes());
        page[12..16].copy_from_slice(&stamp.tag.to_le_bytes());
        page[16..24].copy_from_slice(&stamp.generation.to_le_bytes());
        (page[24], page[25]) = (level, stamp.tree);
        page[26..28].copy_from_slice(&u16::try_from(count).map_err(|_| DamagedNodeError("a node has too many entries"))?.to_le_bytes());
        page[28..HEADER].fill(0);
        let sum = crc32c::crc32c(&page[4..]);
        page[..4].copy_from_slice(&sum.to_le_bytes());
        Ok(page)
    }
}

impl Tree {
    /// How many nodes the next [`Tree::freeze`] wants homes for.
    pub fn homeless(&self) -> usize {
        count_homeless(&self.root)
    }

    /// A snapshot to be written, whose nodes get these homes (as many as [`Tree::homeless`] says). The tree may change from now on.
    ///
    /// # Panics
    /// If there are too few.
    pub fn freeze(&mut self, slots: Vec<u32>) -> Tree {
        give_homes(&self.root, &mut slots.into_iter());
        self.dirty = 0;
        self.clone()
    }

    /// Writes a frozen tree's new nodes, children first, and says where its root is.
    pub fn write_out<E: From<DamagedNodeError>>(
        &self,
        stamp: NodeStamp,
        mut write: impl FnMut(u32, Box<[u8]>) -> Result<(), E>,
    ) -> Result<NodeAt, E> {
        write_out(&self.root, self.level, stamp, &mut write)
    }

    /// Lets go of all nodes that are on the device, but for the root: `keep` gets each, for the cache.
    pub fn settle(&mut self, mut keep: impl FnMut(NodeAt, Arc<Node>)) {
        if let Link::Memory(root) = &mut self.root
            && let Content::Inner(_) = root.content
            && let Content::Inner(inner) = &mut Arc::make_mut(root).content
        {
            inner.children.iter_mut().for_each(|child| settle(&mut child.link, &mut keep));
        }
    }
}

fn count_homeless(link: &Link) -> usize {
    match link {
        Link::Memory(node) if node.home.get().is_none() => match &node.content {
            Content::Leaf(_) => 1,
            Content::Inner(inner) => 1 + inner.children.iter().map(|child| count_homeless(&child.link)).sum::<usize>(),
        },
        _ => 0,
    }
}

fn give_homes(link: &Link, slots: &mut impl Iterator<Item = u32>) {
    let Link::Memory(node) = link else { return };
    if node.home.get().is_none() {
        node.home.set(slots.next().expect("as many homes as nodes")).expect("it had none");
        if let Content::Inner(inner) = &node.content {
            inner.children.iter().for_each(|child| give_homes(&child.link, slots));
        }
    }
}

fn write_out<E: From<DamagedNodeError>>(
    link: &Link,
    level: u8,
    stamp: NodeStamp,
    write: &mut impl FnMut(u32, Box<[u8]>) -> Result<(), E>,
) -> Result<NodeAt, E> {
    let node = match link {
        Link::Disk(at) => return Ok(*at),
        Link::Memory(node) => node,
    };
    if let Some(at) = node.at() {
        return Ok(at);
    }
    let slot = *node.home.get().ok_or(DamagedNodeError("a node has no home to be written to"))?;
    if let Content::Inner(inner) = &node.content {
        for child in &inner.children {
            write_out(&child.link, level.checked_sub(1).ok_or(DamagedNodeError("a node is of the wrong level"))?, stamp, write)?;
        }
    }
    let page = node.page(slot, level, stamp)?;
    let sum = u32::from_le_bytes(number(&page, 0));
    write(slot, page)?;
    node.sum.set(sum).expect("one checkpoint writes a node");
    Ok(NodeAt { slot, sum })
}

fn settle(link: &mut Link, keep: &mut impl FnMut(NodeAt, Arc<Node>)) {
    let Link::Memory(node) = link else { return };
    if matches!(node.content, Content::Inner(_))
        && let Content::Inner(inner) = &mut Arc::make_mut(node).content
    {
        inner.children.iter_mut().for_each(|child| settle(&mut child.link, keep));
    }
    if let Some(at) = node.at() {
        keep(at, Arc::clone(node));
        *link = Link::Disk(at);
    }
}
