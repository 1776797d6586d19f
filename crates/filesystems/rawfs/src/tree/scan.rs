//! Entries in key order.

use super::node::{Content, Link};
use super::{DamagedNodeError, Nodes, Tree};

/// What a scan does after an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ScanStep {
    /// Goes on.
    Go,
    /// Ends.
    Stop,
    /// Goes on at this key, or the first one behind it; it must lie behind the present one.
    Seek(Vec<u8>),
}

impl Tree {
    /// Gives `each` all entries from `from` on and before `to` (None: to the end).
    pub fn scan<N: Nodes>(
        &self,
        nodes: &N,
        from: &[u8],
        to: Option<&[u8]>,
        mut each: impl FnMut(&[u8], &[u8]) -> ScanStep,
    ) -> Result<(), N::Error> {
        let mut from = from.to_vec();
        loop {
            let mut key = Vec::new();
            let mut walk = Walk { nodes, key: &mut key, each: &mut each, nodes_left: nodes.most() };
            match walk.node(&self.root, self.level, Some(&from), to)? {
                ScanStep::Seek(next) if next > key && next > from => from = next,
                _ => return Ok(()),
            }
        }
    }
}

impl Tree {
    /// Gives the last entry that is not behind a key to `found`, if there is one.
    pub fn floor<N: Nodes, T>(&self, nodes: &N, key: &[u8], found: impl FnOnce(&[u8], &[u8]) -> T) -> Result<Option<T>, N::Error> {
        let (mut found, mut before) = (Some(found), Vec::new());
        floor(nodes, (&self.root, self.level), Some(key), &mut before, &mut |key, value| {
            found.take().expect("one entry is the last")(key, value)
        })
    }
}

/// `key` as the node's keys are (None: behind all of them), `before` what lies before them.
fn floor<N: Nodes, T>(
    nodes: &N,
    (link, level): (&Link, u8),
    key: Option<&[u8]>,
    before: &mut Vec<u8>,
    found: &mut dyn FnMut(&[u8], &[u8]) -> T,
) -> Result<Option<T>, N::Error> {
    let (node, base) = (link.get(nodes, level)?, before.len());
    match &node.content {
        Content::Leaf(leaf) => {
            let end = key.map_or(leaf.len(), |key| leaf.find(key).map_or_else(|index| index, |index| index + 1));
            let Some(index) = end.checked_sub(1) else { return Ok(None) };
            before.extend_from_slice(leaf.key(index));
            let last = found(before, leaf.value(index));
            Ok(Some(last))
        }
        Content::Inner(inner) => {
            let last = key.map_or(inner.children.len() - 1, |key| inner.find(key));
            for child in inner.children[..=last].iter().rev() {
                let key = match limit(key, &child.prefix) {
                    // It lies before all keys of this child.
                    LimitSide::Some(None) if key.is_some() => continue,
                    LimitSide::Some(key) => key,
                    LimitSide::Behind => None,
                };
                before.truncate(base);
                before.extend_from_slice(&child.prefix);
                if let Some(last) = floor(nodes, (&child.link, level - 1), key, before, found)? {
                    return Ok(Some(last));
                }
            }
            Ok(None)
        }
    }
}

struct Walk<'a, N, F> {
    nodes: &'a N,
    /// The bytes before the node's keys; when a scan ends, the key it ended at.
    key: &'a mut Vec<u8>,
    each: &'a mut F,
    nodes_left: u64,
}

impl<N: Nodes, F: FnMut(&[u8], &[u8]) -> ScanStep> Walk<'_, N, F> {
    /// `from` and `to` as the node's keys are; None: no limit.
    fn node(&mut self, link: &Link, level: u8, from: Option<&[u8]>, to: Option<&[u8]>) -> Result<ScanStep, N::Error> {
        let node = link.get(self.nodes, level)?;
        self.nodes_left = self.nodes_left.checked_sub(1).ok_or(DamagedNodeError("a tree has more nodes than there are"))?;
        let base = self.key.len();
        match &node.content {
            Content::Leaf(leaf) => {
                let first = from.map_or(0, |from| leaf.find(from).unwrap_or_else(|index| index));
                for index in first..leaf.len() {
                    if to.is_some_and(|to| leaf.key(index) >= to) {
                        return Ok(ScanStep::Stop);
                    }
                    self.key.truncate(base);
                    self.key.extend_from_slice(leaf.key(index));
                    match (self.each)(self.key, leaf.value(index)) {
                        ScanStep::Go => {}
                        ended => return Ok(ended),
                    }
                }
            }
            Content::Inner(inner) => {
                let first = from.map_or(0, |from| inner.find(from));
                for child in &inner.children[first..] {
                    let LimitSide::Some(from) = limit(from, &child.prefix) else { continue };
                    let to = match to.map(|to| (to, limit(Some(to), &child.prefix))) {
                        None => None,
                        // It ends before all of this child's keys, or behind them.
                        Some((_, LimitSide::Some(None) | LimitSide::Some(Some([])))) => return Ok(ScanStep::Stop),
                        Some((_, LimitSide::Some(to))) => to,
                        Some((_, LimitSide::Behind)) => None,
                    };
                    self.key.truncate(base);
                    self.key.extend_from_slice(&child.prefix);
                    match self.node(&child.link, level - 1, from, to)? {
                        ScanStep::Go => {}
                        ended => return Ok(ended),
                    }
                }
            }
        }
        self.key.truncate(base);
        Ok(ScanStep::Go)
    }
}

/// Where a limit lies, seen from a child.
enum LimitSide<'a> {
    /// Among its keys, or (None) before all of them.
    Some(Option<&'a [u8]>),
    /// Behind all of them.
    Behind,
}

fn limit<'a>(key: Option<&'a [u8]>, prefix: &[u8]) -> LimitSide<'a> {
    match key {
        None => LimitSide::Some(None),
        Some(key) => match key.strip_prefix(prefix) {
            Some(suffix) => LimitSide::Some(Some(suffix)),
            None if key < prefix => LimitSide::Some(None),
            None => LimitSide::Behind,
        },
    }
}
