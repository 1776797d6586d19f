//! Entries put, changed in place and taken out.

use super::leaf::{self, Leaf};
use super::node::{Child, Content, InnerNode, Link};
use super::pack::{self, FillTarget, PrefixChange};
use super::{ChangeContext, NODE_BYTES, Nodes, Tree, shared};

/// A node this empty looks for a neighbour to join.
const SPARSE: usize = NODE_BYTES / 4;
/// Joined nodes leave room for what comes next.
const JOINED: usize = NODE_BYTES * 7 / 8;

impl Tree {
    /// Puts an entry, in place of the one with this key. True: there was one. Homes that were given up come to `freed`.
    ///
    /// # Panics
    /// If key or value are longer than [`super::KEY_MAX`] and [`super::VALUE_MAX`].
    pub fn insert<N: Nodes>(&mut self, nodes: &N, freed: &mut Vec<u32>, key: &[u8], value: &[u8]) -> Result<bool, N::Error> {
        assert!(key.len() <= super::KEY_MAX && value.len() <= super::VALUE_MAX, "an entry is larger than promised");
        let mut cx = ChangeContext { nodes, freed, dirty: self.dirty };
        let ended = insert(&mut cx, &mut self.root, self.level, key, value);
        self.dirty = cx.dirty;
        let (was_there, pieces) = ended?;
        if let Some(pieces) = pieces {
            self.grow(pieces)?;
        }
        Ok(was_there)
    }

    /// Changes bytes of a value in place, as `change` wants, which gets the value. None: no such key; then nodes on the way to it may
    /// count as changed, and are not.
    pub fn update<N: Nodes, T>(
        &mut self,
        nodes: &N,
        freed: &mut Vec<u32>,
        key: &[u8],
        change: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<Option<T>, N::Error> {
        let mut cx = ChangeContext { nodes, freed, dirty: self.dirty };
        let ended = update(&mut cx, &mut self.root, self.level, key, change);
        self.dirty = cx.dirty;
        ended
    }

    /// Takes an entry out. True: there was one.
    pub fn remove<N: Nodes>(&mut self, nodes: &N, freed: &mut Vec<u32>, key: &[u8]) -> Result<bool, N::Error> {
        if self.get(nodes, key, |_| ())?.is_none() {
            return Ok(false);
        }
        let mut cx = ChangeContext { nodes, freed, dirty: self.dirty };
        let ended = remove(&mut cx, &mut self.root, self.level, key);
        self.dirty = cx.dirty;
        ended?;
        self.shrink(nodes, freed)?;
        Ok(true)
    }

    /// A root with one child gives way to it.
    pub(super) fn shrink<N: Nodes>(&mut self, nodes: &N, freed: &mut Vec<u32>) -> Result<(), N::Error> {
        while self.level > 0 {
            let root = self.root.get(nodes, self.level)?;
            let Content::Inner(inner) = &root.content else { unreachable!("the level was checked") };
            let [only] = &*inner.children else { break };
            if only.prefix.is_empty() {
                self.root = only.link.clone();
            } else if self.level == 1 {
                break;
            } else {
                // The prefix goes to the children below, if they have room for it.
                let below = only.link.get(nodes, self.level - 1)?;
                let Content::Inner(inner) = &below.content else { unreachable!("the level was checked") };
                let children = inner.children.iter().map(|child| behind(&only.prefix, child.clone())).collect();
                let Some(made) = pack::one_inner(children, PrefixChange::None) else { break };
                let Link::Memory(node) = &made.link else { unreachable!("it was just made") };
                if node.bytes() > NODE_BYTES {
                    break;
                }
                freed.extend(below.home.get());
                self.dirty += 1;
                self.root = made.link;
            }
            freed.extend(root.home.get());
            self.level -= 1;
        }
        Ok(())
    }
}

/// What a node was divided into, to be put in its place.
type Pieces = Option<Vec<Child>>;

fn insert<N: Nodes>(
    cx: &mut ChangeContext<'_, N>,
    link: &mut Link,
    level: u8,
    key: &[u8],
    value: &[u8],
) -> Result<(bool, Pieces), N::Error> {
    let inner = match link.own(cx, level)? {
        Content::Leaf(leaf) => return Ok(insert_here(cx, leaf, key, value)),
        Content::Inner(inner) => inner,
    };
    let mut index = inner.find(key);
    let keep = shared(key, &inner.children[index].prefix);
    let changed = keep < inner.children[index].prefix.len();
    if changed {
        lengthen(cx, inner, level, index, keep)?;
        index = inner.find(key);
    }
    let last = index + 1 == inner.children.len();
    let child = &mut inner.children[index];
    let (was_there, pieces) = insert(cx, &mut child.link, level - 1, &key[child.prefix.len()..], value)?;
    if pieces.is_none() && !changed {
        return Ok((was_there, None));
    }
    if let Some(pieces) = pieces {
        splice(inner, index, pieces);
    }
    Ok((was_there, divide(cx, inner, if last { FillTarget::Front } else { FillTarget::Even })))
}

fn insert_here<N: Nodes>(cx: &mut ChangeContext<'_, N>, leaf: &mut Leaf, key: &[u8], value: &[u8]) -> (bool, Pieces) {
    let place = leaf.find(key);
    if let Ok(index) = place {
        if leaf.value(index).len() == value.len() {
            leaf.value_mut(index).copy_from_slice(value);
            return (true, None);
        }
        leaf.remove(index);
    }
    let (Ok(index) | Err(index)) = place;
    if leaf.has_room(leaf::cost(key.len(), value.len())) {
        leaf.insert(index, key, value);
        return (place.is_ok(), None);
    }
    let mut entries: Vec<(Vec<u8>, &[u8])> = leaf.entries().map(|(key, value)| (key.to_vec(), value)).collect();
    entries.insert(index, (key.to_vec(), value));
    let fill = if index + 1 == entries.len() { FillTarget::Front } else { FillTarget::Even };
    let pieces = pack::leaves(&entries, fill, PrefixChange::Longest);
    cx.dirty += pieces.len() - 1;
    (place.is_ok(), Some(pieces))
}

/// Puts what a child was divided into in its place.
pub(super) fn splice(inner: &mut InnerNode, index: usize, pieces: Vec<Child>) {
    let (separator, prefix) = (inner.children[index].separator.clone(), inner.children[index].prefix.clone());
    let mut pieces: Vec<Child> = pieces.into_iter().map(|piece| behind(&prefix, piece)).collect();
    if let Some(first) = pieces.first_mut() {
        first.separator = separator;
    }
    inner.children.splice(index..=index, pieces);
}

/// The child as a node sees it whose keys have these bytes before them.
pub(super) fn behind(bytes: &[u8], mut child: Child) -> Child {
    child.separator.insert_from_slice(0, bytes);
    child.prefix.insert_from_slice(0, bytes);
    child
}

/// A child's prefix is cut to `keep` bytes, and its keys get the rest of it: more than fits makes it several.
fn lengthen<N: Nodes>(cx: &mut ChangeContext<'_, N>, inner: &mut InnerNode, level: u8, index: usize, keep: usize) -> Result<(), N::Error> {
    let child = &mut inner.children[index];
    let pieces = with_prefix(cx, &mut child.link, level - 1, &child.prefix[keep..])?;
    child.prefix.truncate(keep);
    splice(inner, index, pieces);
    Ok(())
}

/// The node's content with these bytes before all keys: in one node or more, which have no prefixes.
fn with_prefix<N: Nodes>(cx: &mut ChangeContext<'_, N>, link: &mut Link, level: u8, bytes: &[u8]) -> Result<Vec<Child>, N::Error> {
    let content = link.own(cx, level)?;
    let mut pieces = match content {
        Content::Leaf(leaf) => {
            let entries: Vec<_> = leaf.entries().map(|(key, value)| ([bytes, key].concat(), value)).collect();
            // Ranges of a hostile image may have been moved until this is so.
            if entries.iter().any(|(key, value)| leaf::cost(key.len(), value.len()) > NODE_BYTES - super::HEADER) {
                return Err(super::DamagedNodeError("a key is longer than a node holds").into());
            }
            pack::leaves(&entries, FillTarget::Even, PrefixChange::None)
        }
        Content::Inner(inner) => {
            let children = std::mem::take(&mut inner.children).into_iter().map(|child| behind(bytes, child)).collect();
            pack::inners(children, FillTarget::Even, PrefixChange::None)
        }
    };
    if pieces.is_empty() {
        pieces.push(Child::bare(Link::new(Content::Leaf(Leaf::new()))));
    }
    cx.dirty += pieces.len() - 1;
    Ok(pieces)
}

pub(super) fn divide<N: Nodes>(cx: &mut ChangeContext<'_, N>, inner: &mut InnerNode, fill: FillTarget) -> Pieces {
    if inner.bytes() <= NODE_BYTES {
        return None;
    }
    let pieces = pack::inners(std::mem::take(&mut inner.children), fill, PrefixChange::Longest);
    cx.dirty += pieces.len() - 1;
    Some(pieces)
}

fn update<N: Nodes, T>(
    cx: &mut ChangeContext<'_, N>,
    link: &mut Link,
    level: u8,
    key: &[u8],
    change: impl FnOnce(&mut [u8]) -> T,
) -> Result<Option<T>, N::Error> {
    match link.own(cx, level)? {
        Content::Leaf(leaf) => Ok(leaf.find(key).ok().map(|index| change(leaf.value_mut(index)))),
        Content::Inner(inner) => {
            let index = inner.find(key);
            let child = &mut inner.children[index];
            let Some(suffix) = key.strip_prefix(&*child.prefix) else { return Ok(None) };
            update(cx, &mut child.link, level - 1, suffix, change)
        }
    }
}

/// Returns the bytes the node takes now; an inner one that has as many children as before is full.
fn remove<N: Nodes>(cx: &mut ChangeContext<'_, N>, link: &mut Link, level: u8, key: &[u8]) -> Result<usize, N::Error> {
    match link.own(cx, level)? {
        Content::Leaf(leaf) => {
            let index = leaf.find(key).map_err(|_| super::DamagedNodeError("an entry is gone"))?;
            leaf.remove(index);
            Ok(leaf.bytes())
        }
        Content::Inner(inner) => {
            let index = inner.find(key);
            let child = &mut inner.children[index];
            let suffix = key.strip_prefix(&*child.prefix).ok_or(super::DamagedNodeError("an entry is gone"))?;
            if remove(cx, &mut child.link, level - 1, suffix)? < SPARSE && inner.children.len() > 1 {
                // Emptier nodes are all that comes of a neighbour that cannot be read.
                let _ = join(cx, inner, level, index.min(inner.children.len() - 2));
                return Ok(inner.bytes());
            }
            Ok(NODE_BYTES)
        }
    }
}

/// Makes one of children `index` and the next, if they fit. True: they did.
pub(super) fn join<N: Nodes>(cx: &mut ChangeContext<'_, N>, inner: &mut InnerNode, level: u8, index: usize) -> Result<bool, N::Error> {
    let (left, right) = (&inner.children[index], &inner.children[index + 1]);
    let (one, other) = (left.link.get(cx.nodes, level - 1)?, right.link.get(cx.nodes, level - 1)?);
    let joined = match (&one.content, &other.content) {
        (Content::Leaf(one), Content::Leaf(other)) => join_leaves((left, one), (right, other)),
        (Content::Inner(one), Content::Inner(other)) => join_inners((left, one), (right, other)),
        _ => unreachable!("the levels were checked"),
    };
    let Some(mut joined) = joined else { return Ok(false) };
    left.link.give_up(cx);
    right.link.give_up(cx);
    joined.separator = left.separator.clone();
    inner.children.splice(index..index + 2, [joined]);
    Ok(true)
}

fn join_leaves(left: (&Child, &Leaf), right: (&Child, &Leaf)) -> Option<Child> {
    let common = shared(&left.0.prefix, &right.0.prefix);
    let grown = |(child, leaf): (&Child, &Leaf)| leaf.bytes() + leaf.len() * (child.prefix.len() - common);
    if right.1.len() > 0 && left.1.len() > 0 && grown(left) + grown(right) > JOINED {
        return None;
    }
    let whole = |(child, leaf): (&Child, &Leaf)| {
        leaf.entries().map(|(key, value)| ([&*child.prefix, key].concat(), value.to_vec())).collect::<Vec<_>>()
    };
    let entries = [whole(left), whole(right)].concat();
    let entries: Vec<(Vec<u8>, &[u8])> = entries.iter().map(|(key, value)| (key.clone(), &**value)).collect();
    let mut made = pack::leaves(&entries, FillTarget::Front, PrefixChange::Longest);
    (made.len() <= 1).then(|| made.pop().unwrap_or_else(|| Child::bare(Link::new(Content::Leaf(Leaf::new())))))
}

fn join_inners(left: (&Child, &InnerNode), right: (&Child, &InnerNode)) -> Option<Child> {
    let (children, _) = side_by_side(left, right);
    let made = pack::one_inner(children, PrefixChange::Longest)?;
    let Link::Memory(node) = &made.link else { unreachable!("it was just made") };
    (node.bytes() <= JOINED).then_some(made)
}

/// The children of both as one node would have them, and how many are the left one's.
pub(super) fn side_by_side(left: (&Child, &InnerNode), right: (&Child, &InnerNode)) -> (Vec<Child>, usize) {
    let whole =
        |(child, inner): (&Child, &InnerNode)| inner.children.iter().map(|each| behind(&child.prefix, each.clone())).collect::<Vec<_>>();
    let mut children = whole(left);
    let seam = children.len();
    children.extend(whole(right));
    children[seam].separator = right.0.separator.clone();
    (children, seam)
}
