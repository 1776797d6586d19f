//! Entries and children into as few nodes as hold them.

use super::leaf::{self, Leaf};
use super::node::{Child, Content, InnerNode, Link, Suffix};
use super::{HEADER, NODE_BYTES, shared};

/// How full the nodes become.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum FillTarget {
    /// All alike: more will come anywhere.
    Even,
    /// The first ones to the brim: what comes next comes at the end.
    Front,
}

const ROOM: usize = NODE_BYTES - HEADER;

/// Where each group ends; none holds more than a node.
fn groups(sizes: impl ExactSizeIterator<Item = usize> + Clone, fill: FillTarget) -> Vec<usize> {
    let total: usize = sizes.clone().sum();
    let target = match fill {
        FillTarget::Even => total.div_ceil(total.div_ceil(ROOM).max(1)),
        FillTarget::Front => ROOM,
    };
    let (mut ends, mut bytes, count) = (Vec::new(), 0, sizes.len());
    for (index, size) in sizes.enumerate() {
        if index > 0 && bytes > 0 && (bytes + size > ROOM || bytes >= target) {
            ends.push(index);
            bytes = 0;
        }
        bytes += size;
    }
    ends.push(count);
    ends
}

/// What becomes of what all keys of a new node share.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PrefixChange {
    /// It is the node's prefix: the rule.
    Longest,
    /// It stays in the keys: a key that does not share it is about to come.
    None,
}

/// Leaves for entries in key order, as children for a parent. The first one's separator is empty. No entries, no leaves.
pub fn leaves(entries: &[(Vec<u8>, &[u8])], fill: FillTarget, strip: PrefixChange) -> Vec<Child> {
    let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return Vec::new() };
    let base = if entries.len() > 1 && strip == PrefixChange::Longest { shared(&first.0, &last.0) } else { 0 };
    let mut made = Vec::new();
    let mut from = 0_usize;
    for to in groups(entries.iter().map(|(key, value)| leaf::cost(key.len() - base, value.len())), fill) {
        let before = from.checked_sub(1).map(|index| &*entries[index].0);
        made.push(one_leaf(before, &entries[from..to], strip));
        from = to;
    }
    made
}

fn one_leaf(before: Option<&[u8]>, entries: &[(Vec<u8>, &[u8])], strip: PrefixChange) -> Child {
    let first = &entries[0].0;
    let differs = before.map(|before| shared(before, first));
    let prefix = match strip {
        PrefixChange::None => 0,
        // One key alone shares everything with itself; the next one will not.
        PrefixChange::Longest if entries.len() == 1 => differs.unwrap_or(0),
        PrefixChange::Longest => shared(first, &entries[entries.len() - 1].0),
    };
    let mut leaf = Leaf::new();
    for (index, (key, value)) in entries.iter().enumerate() {
        leaf.insert(index, &key[prefix..], value);
    }
    let separator = differs.map_or(&[][..], |differs| &first[..=differs]);
    Child { separator: separator.into(), prefix: first[..prefix].into(), link: Link::new(Content::Leaf(leaf)) }
}

/// Inner nodes for children in key order, as children for a parent. Each has the separator of its first child.
pub fn inners(children: Vec<Child>, fill: FillTarget, strip: PrefixChange) -> Vec<Child> {
    let ends = groups(children.iter().map(Child::bytes).collect::<Vec<_>>().into_iter(), fill);
    let mut children = children.into_iter();
    let mut from = 0;
    let mut made = Vec::with_capacity(ends.len());
    for to in ends {
        made.extend(one_inner(children.by_ref().take(to - from).collect(), strip));
        from = to;
    }
    made
}

/// One node, whatever its size. No children, no node.
pub fn one_inner(mut children: Vec<Child>, strip: PrefixChange) -> Option<Child> {
    let separator = std::mem::take(&mut children.first_mut()?.separator);
    let prefix = if strip == PrefixChange::Longest { common(&children) } else { Suffix::new() };
    for child in &mut children {
        child.prefix.drain(..prefix.len());
    }
    for child in children.iter_mut().skip(1) {
        child.separator.drain(..prefix.len());
    }
    Some(Child { separator, prefix, link: Link::new(Content::Inner(InnerNode { children })) })
}

/// What all keys below share, and all separators.
fn common(children: &[Child]) -> Suffix {
    let first = &children[0].prefix;
    let strings = children[1..].iter().flat_map(|child| [&child.separator, &child.prefix]);
    let bytes = strings.map(|string| shared(first, string)).min().unwrap_or(first.len());
    first[..bytes].into()
}
