//! An ordered map in nodes of 16 KiB, copied when written: the metadata of the file system.
//!
//! A B+ tree whose keys are paths (NVMeDFS, section III.C, uses an HB+trie; docs/decisions/29 has why not). What
//! all keys below a node share is not in the node: it is its parent's `prefix` for it, so a node knows nothing of what its keys begin
//! with. That is the compression, and it is what makes the rename of a directory cheap: the range of all keys below it is cut out, one
//! prefix is exchanged, and the range is put in again elsewhere ([`Tree::move_range`]). Only nodes on the edges of the range are
//! written anew, however many are in it.
//!
//! A tree is a value: `clone` is a snapshot, at once. Changes copy what a snapshot or the device has ([`node::Link::own`]). A checkpoint
//! freezes ([`Tree::freeze`]) and writes a snapshot while the tree goes on; then the tree lets go of what was written ([`Tree::settle`]).
//!
//! What is read from the device is hostile: every node is checked when it is parsed, its level when it is followed; a wrong tree gives
//! wrong answers or [`DamagedNodeError`], and no panic.

mod change;
pub mod check;
mod inner;
mod leaf;
pub mod node;
mod pack;
mod persist;
mod range;
pub mod salvage;
mod scan;
#[cfg(test)]
mod test;

use std::cmp::Ordering;
use std::sync::Arc;

use leaf::Leaf;
use node::{Child, Content, Link, Node};
use pack::{FillTarget, PrefixChange};

pub use persist::NodeStamp;
pub use range::MoveError;
pub use scan::ScanStep;

/// Bytes of a node on the device.
pub const NODE_BYTES: usize = 16 << 10;
/// What the header takes of it.
const HEADER: usize = 32;
/// The longest key, in bytes. A third of a node holds the largest entry, so that a full leaf can always be halved.
pub const KEY_MAX: usize = 2048;
/// The longest value, in bytes.
pub const VALUE_MAX: usize = 3328;
/// No tree is higher: it would hold more than the addresses allow.
const LEVELS: u8 = 16;

const _: () = assert!(3 * (6 + KEY_MAX + VALUE_MAX) <= NODE_BYTES - HEADER && 3 * (14 + 2 * KEY_MAX) <= NODE_BYTES - HEADER);

/// Where a node is: its place among the nodes of the metadata region, and the crc32c of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NodeAt {
    /// Counted from the first node of the region.
    pub slot: u32,
    /// crc32c of all but its own four bytes.
    pub sum: u32,
}

/// The tree is not what it should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("damaged: {0}")]
pub struct DamagedNodeError(pub &'static str);

/// Gets nodes from the device or a cache.
pub trait Nodes {
    /// What loading ends with.
    type Error: From<DamagedNodeError>;

    /// The node at a place ([`Node::parse`] makes it from its bytes).
    fn load(&self, at: NodeAt) -> Result<Arc<Node>, Self::Error>;

    /// More nodes than this are in no tree: who walks past so many walks in a forged one, where many ways lead to one node.
    fn most(&self) -> u64 {
        u64::MAX
    }
}

/// What a change needs, and leaves behind.
pub(crate) struct ChangeContext<'a, N: Nodes> {
    nodes: &'a N,
    freed: &'a mut Vec<u32>,
    dirty: usize,
}

/// An ordered map of keys to values.
#[derive(Clone)]
pub struct Tree {
    root: Link,
    /// Of the root; leaves are 0.
    level: u8,
    dirty: usize,
}

/// Bytes that two strings begin with alike.
fn shared(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// A key that is looked for, with its first bytes as a number: most comparisons end there.
struct SearchKey<'k> {
    head: u64,
    key: &'k [u8],
}

/// As many bytes as a number has, as a number that is ordered as they are; zeros behind those that are fewer.
fn head(bytes: &[u8]) -> u64 {
    if let Some(first) = bytes.first_chunk() {
        return u64::from_be_bytes(*first);
    }
    // In pieces that may overlap, as a copy of so many bytes is a call.
    let (len, byte) = (bytes.len(), |at: usize| u64::from(bytes[at]) << (56 - 8 * at));
    match (bytes.first_chunk(), bytes.last_chunk()) {
        (Some(first), Some(last)) => u64::from(u32::from_be_bytes(*first)) << 32 | u64::from(u32::from_be_bytes(*last)) << (64 - 8 * len),
        _ if len > 0 => byte(0) | byte(len / 2) | byte(len - 1),
        _ => 0,
    }
}

impl<'k> SearchKey<'k> {
    fn new(key: &'k [u8]) -> SearchKey<'k> {
        SearchKey { head: head(key), key }
    }

    /// How the other one compares to it.
    fn order_of(&self, other: &[u8]) -> Ordering {
        const HEAD: usize = size_of::<u64>();
        head(other).cmp(&self.head).then_with(|| match (other.get(HEAD..), self.key.get(HEAD..)) {
            (Some(other), Some(key)) => other.cmp(key),
            // What one has more than the other is zeros, or behind them.
            _ => other.len().cmp(&self.key.len()),
        })
    }
}

impl Default for Tree {
    fn default() -> Tree {
        Tree { root: Link::new(Content::Leaf(Leaf::new())), level: 0, dirty: 1 }
    }
}

impl Tree {
    /// The tree whose root was written there.
    pub fn at(root: NodeAt, level: u8) -> Result<Tree, DamagedNodeError> {
        if level > LEVELS {
            return Err(DamagedNodeError("a tree is too high"));
        }
        Ok(Tree { root: Link::Disk(root), level, dirty: 0 })
    }

    /// Of the root; what [`Tree::at`] wants to know.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Loads the root if it is not in memory.
    pub fn load_root<N: Nodes>(&self, nodes: &N) -> Result<(), N::Error> {
        self.root.get(nodes, self.level).map(drop)
    }

    /// Nodes changed since the last [`Tree::freeze`], about: what they take of memory, and of the next checkpoint.
    pub fn dirty(&self) -> usize {
        self.dirty
    }

    /// The value of a key, given to `found`.
    pub fn get<N: Nodes, T>(&self, nodes: &N, key: &[u8], found: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, N::Error> {
        let mut node = self.root.get(nodes, self.level)?;
        let mut rest = key;
        for level in (0..self.level).rev() {
            let Content::Inner(inner) = &node.content else { unreachable!("the level was checked") };
            let child = &inner.children[inner.find(rest)];
            let Some(suffix) = rest.strip_prefix(&*child.prefix) else { return Ok(None) };
            rest = suffix;
            node = child.link.get(nodes, level)?;
        }
        let Content::Leaf(leaf) = &node.content else { unreachable!("the level was checked") };
        Ok(leaf.find(rest).ok().map(|index| found(leaf.value(index))))
    }

    /// A root above the nodes it was divided into.
    fn grow(&mut self, mut pieces: Vec<Child>) -> Result<(), DamagedNodeError> {
        loop {
            self.level = self.level.checked_add(1).filter(|level| *level <= LEVELS).ok_or(DamagedNodeError("a tree grew too high"))?;
            pieces = pack::inners(pieces, FillTarget::Even, PrefixChange::None);
            self.dirty += pieces.len();
            if pieces.len() == 1 {
                self.root = pieces.swap_remove(0).link;
                return Ok(());
            }
        }
    }
}
