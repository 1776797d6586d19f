//! All keys that begin alike, moved at once.

use super::change::{behind, divide, join, side_by_side};
use super::node::{Child, Content, InnerNode, Link};
use super::pack::{self, FillTarget, PrefixChange};
use super::{ChangeContext, DamagedNodeError, NODE_BYTES, Nodes, ScanStep, Tree};

/// A range was not moved; nothing changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MoveError<E> {
    /// There are keys where it was to go.
    #[error("the place a range was to be moved to is taken")]
    Taken,
    /// One prefix begins with the other.
    #[error("a range cannot be moved into itself")]
    Within,
    /// A node could not be had.
    #[error(transparent)]
    Node(#[from] E),
}

/// The first string after all that begin with this one. None: it is empty or all ones.
fn after(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut next = prefix[..=last].to_vec();
    next[last] += 1;
    Some(next)
}

/// What lies before a key, and what from it on: nodes of one level.
type SplitTree = (Option<Child>, Option<Child>);

impl Tree {
    /// Whether any key begins so.
    pub fn any_below<N: Nodes>(&self, nodes: &N, prefix: &[u8]) -> Result<bool, N::Error> {
        let mut any = false;
        self.scan(nodes, prefix, after(prefix).as_deref(), |_, _| {
            any = true;
            ScanStep::Stop
        })?;
        Ok(any)
    }

    /// All keys that begin with `from` begin with `to` instead. The work and the nodes written go with the height of the tree, not
    /// with how many there are. False: there are none. The new keys must be no longer than [`super::KEY_MAX`].
    pub fn move_range<N: Nodes>(&mut self, nodes: &N, freed: &mut Vec<u32>, from: &[u8], to: &[u8]) -> Result<bool, MoveError<N::Error>> {
        if from.starts_with(to) || to.starts_with(from) {
            return Err(MoveError::Within);
        }
        if self.any_below(nodes, to)? {
            return Err(MoveError::Taken);
        }
        if !self.any_below(nodes, from)? {
            return Ok(false);
        }
        // On a snapshot: what fails half-way changes nothing.
        let before = freed.len();
        let mut cx = ChangeContext { nodes, freed, dirty: self.dirty };
        match moved(&mut cx, self, from, to) {
            Ok(tree) => *self = tree,
            Err(error) => {
                freed.truncate(before);
                return Err(error.into());
            }
        }
        self.shrink(nodes, freed)?;
        Ok(true)
    }
}

fn moved<N: Nodes>(cx: &mut ChangeContext<'_, N>, tree: &Tree, from: &[u8], to: &[u8]) -> Result<Tree, N::Error> {
    let (before, rest) = cut(cx, tree.root.clone(), tree.level, from)?;
    let (range, behind_it) = cut_child(cx, rest, tree.level, after(from).as_deref())?;
    let mut range = range.ok_or(DamagedNodeError("a range is empty that was not"))?;
    strip(cx, &mut range, tree.level, from)?;
    range.prefix.insert_from_slice(0, to);
    let left = side(before, tree.level, &[]);
    let without = concatenated(cx, [left, side(behind_it, tree.level, &after(from).unwrap_or_default())])?;
    let (low, high) = cut(cx, without.root.clone(), without.level, to)?;
    let parts =
        [side(low, without.level, &[]), side(Some(range), tree.level, to), side(high, without.level, &after(to).unwrap_or_default())];
    concatenated(cx, parts)
}

/// A part of a tree, its level, and the separator before it.
type TreePart = Option<(Child, u8)>;

fn side(child: Option<Child>, level: u8, separator: &[u8]) -> TreePart {
    child.map(|child| (Child { separator: separator.into(), ..child }, level))
}

/// Splits a node in two. A child that lies on one side whole is not changed.
fn cut<N: Nodes>(cx: &mut ChangeContext<'_, N>, link: Link, level: u8, key: &[u8]) -> Result<SplitTree, N::Error> {
    let node = link.get(cx.nodes, level)?;
    match &node.content {
        Content::Leaf(leaf) => {
            let (Ok(index) | Err(index)) = leaf.find(key);
            if index == 0 || index == leaf.len() {
                let whole = Some(Child::bare(link));
                return Ok(if index == 0 { (None, whole) } else { (whole, None) });
            }
            let entries: Vec<_> = leaf.entries().map(|(key, value)| (key.to_vec(), value)).collect();
            let mut half = |entries: &[(Vec<u8>, &[u8])]| {
                cx.dirty += 1;
                pack::leaves(entries, FillTarget::Front, PrefixChange::None).pop()
            };
            let halves = (half(&entries[..index]), half(&entries[index..]));
            link.give_up(cx);
            Ok(halves)
        }
        Content::Inner(inner) => {
            let index = inner.find(key);
            let (left, right) = cut_child_at(cx, inner.children[index].clone(), level - 1, key)?;
            let left: Vec<Child> = inner.children[..index].iter().cloned().chain(left).collect();
            let right: Vec<Child> = right.into_iter().chain(inner.children[index + 1..].iter().cloned()).collect();
            if left.is_empty() || right.is_empty() {
                let whole = Some(Child::bare(link));
                return Ok(if left.is_empty() { (None, whole) } else { (whole, None) });
            }
            link.give_up(cx);
            cx.dirty += 2;
            Ok((pack::one_inner(left, PrefixChange::None), pack::one_inner(right, PrefixChange::None)))
        }
    }
}

/// Cuts a child; both halves have its prefix, the left one its separator.
fn cut_child_at<N: Nodes>(cx: &mut ChangeContext<'_, N>, child: Child, level: u8, key: &[u8]) -> Result<SplitTree, N::Error> {
    let Some(suffix) = key.strip_prefix(&*child.prefix) else {
        return Ok(if *key < *child.prefix { (None, Some(child)) } else { (Some(child), None) });
    };
    let (left, right) = cut(cx, child.link, level, suffix)?;
    let left = left.map(|left| Child { separator: child.separator.clone(), ..behind(&child.prefix, left) });
    Ok((left, right.map(|right| behind(&child.prefix, right))))
}

fn cut_child<N: Nodes>(cx: &mut ChangeContext<'_, N>, child: Option<Child>, level: u8, key: Option<&[u8]>) -> Result<SplitTree, N::Error> {
    match (child, key) {
        (Some(child), Some(key)) => cut_child_at(cx, child, level, key),
        (child, _) => Ok((child, None)),
    }
}

/// Takes bytes off the front of all keys of a child, which all begin with them. Where the child's prefix has them, that is all.
fn strip<N: Nodes>(cx: &mut ChangeContext<'_, N>, child: &mut Child, level: u8, bytes: &[u8]) -> Result<(), N::Error> {
    const WRONG: DamagedNodeError = DamagedNodeError("a key is not in the range of its node");
    if child.prefix.starts_with(bytes) {
        child.prefix.drain(..bytes.len());
        return Ok(());
    }
    let bytes = bytes.strip_prefix(&*child.prefix).ok_or(WRONG)?;
    child.prefix.clear();
    match child.link.own(cx, level)? {
        Content::Leaf(leaf) => {
            let stripped = |(key, value): (_, _)| Some((<[u8]>::strip_prefix(key, bytes)?.to_vec(), value));
            let entries: Vec<(Vec<u8>, &[u8])> = leaf.entries().map(stripped).collect::<Option<_>>().ok_or(WRONG)?;
            if let Some(made) = pack::leaves(&entries, FillTarget::Front, PrefixChange::None).pop() {
                child.link = made.link;
            }
        }
        Content::Inner(inner) => {
            for (index, child) in inner.children.iter_mut().enumerate() {
                if index > 0 {
                    child.separator = child.separator.strip_prefix(bytes).ok_or(WRONG)?.into();
                }
                strip(cx, child, level - 1, bytes)?;
            }
        }
    }
    Ok(())
}

/// One tree of parts in key order; where they meet, nodes are joined.
fn concatenated<N: Nodes>(cx: &mut ChangeContext<'_, N>, parts: impl IntoIterator<Item = TreePart>) -> Result<Tree, N::Error> {
    let parts: Vec<(Child, u8)> = parts.into_iter().flatten().collect();
    let Some(level) = parts.iter().map(|(_, level)| *level).max() else { return Ok(Tree::default()) };
    let mut root = InnerNode { children: parts.into_iter().map(|(child, from)| lifted(cx, child, from, level)).collect() };
    for index in (0..root.children.len() - 1).rev() {
        mend(cx, &mut root, level + 1, index)?;
    }
    let mut tree = Tree { root: Link::new(Content::Leaf(super::Leaf::new())), level, dirty: cx.dirty };
    tree.grow(root.children)?;
    cx.dirty = tree.dirty;
    Ok(tree)
}

/// The child below as many nodes as bring it to this level.
fn lifted<N: Nodes>(cx: &mut ChangeContext<'_, N>, mut child: Child, from: u8, to: u8) -> Child {
    for _ in from..to {
        let Child { separator, prefix, link } = child;
        let only = Child::bare(link);
        child = Child { separator, prefix, link: Link::new(Content::Inner(InnerNode { children: vec![only] })) };
        cx.dirty += 1;
    }
    child
}

/// Where two parts meet: nodes that fit become one, a node of few children gets some of its neighbour's; and so on below.
fn mend<N: Nodes>(cx: &mut ChangeContext<'_, N>, inner: &mut InnerNode, level: u8, index: usize) -> Result<(), N::Error> {
    let seam = children(cx, &inner.children[index], level - 1)?;
    let (place, within) = if join(cx, inner, level, index)? {
        (index, seam)
    } else if let Some(place) = balance(cx, inner, level, index)? {
        place
    } else {
        return Ok(());
    };
    let child = &mut inner.children[place];
    let pieces = match child.link.own(cx, level - 1)? {
        Content::Leaf(_) => None,
        Content::Inner(below) => {
            mend(cx, below, level - 1, within - 1)?;
            divide(cx, below, FillTarget::Even)
        }
    };
    if let Some(pieces) = pieces {
        super::change::splice(inner, place, pieces);
    }
    Ok(())
}

/// How many children a child has; 0 for a leaf.
fn children<N: Nodes>(cx: &ChangeContext<'_, N>, child: &Child, level: u8) -> Result<usize, N::Error> {
    Ok(match &child.link.get(cx.nodes, level)?.content {
        Content::Leaf(_) => 0,
        Content::Inner(inner) => inner.children.len(),
    })
}

/// Shares the children of two neighbours out if one has few. Some: in which of them both sides of the seam are now, and where.
fn balance<N: Nodes>(
    cx: &mut ChangeContext<'_, N>,
    inner: &mut InnerNode,
    level: u8,
    index: usize,
) -> Result<Option<(usize, usize)>, N::Error> {
    let (left, right) = (&inner.children[index], &inner.children[index + 1]);
    let (one, other) = (left.link.get(cx.nodes, level - 1)?, right.link.get(cx.nodes, level - 1)?);
    let (Content::Inner(first), Content::Inner(second)) = (&one.content, &other.content) else { return Ok(None) };
    if one.bytes().min(other.bytes()) > NODE_BYTES / 4 {
        return Ok(None);
    }
    let (all, seam) = side_by_side((left, first), (right, second));
    left.link.give_up(cx);
    right.link.give_up(cx);
    let mut pieces = pack::inners(all, FillTarget::Even, PrefixChange::Longest);
    pieces[0].separator = left.separator.clone();
    cx.dirty += pieces.len();
    let counts = pieces.iter().map(|piece| children(cx, piece, level - 1)).collect::<Result<Vec<_>, _>>()?;
    inner.children.splice(index..index + 2, pieces);
    let mut from = 0;
    for (place, count) in counts.into_iter().enumerate() {
        if from < seam && seam < from + count {
            return Ok(Some((index + place, seam - from)));
        }
        from += count;
    }
    Ok(None)
}
