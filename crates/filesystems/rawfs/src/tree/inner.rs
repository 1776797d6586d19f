//! The stored form of an inner node, and the search in one.

use super::node::{CHILD_HEAD, Child, InnerNode, Link, Suffix};
use super::{DamagedNodeError, HEADER, NODE_BYTES, NodeAt, SearchKey, shared};

impl InnerNode {
    /// The child that a key belongs to.
    pub fn find(&self, key: &[u8]) -> usize {
        let sought = SearchKey::new(key);
        self.children.get(1..).unwrap_or_default().partition_point(|child| sought.order_of(&child.separator).is_le())
    }

    /// Reads the children of a page.
    pub fn parse(page: &[u8], count: usize) -> Result<InnerNode, DamagedNodeError> {
        let mut rest = &page[HEADER..NODE_BYTES];
        if count == 0 || count * CHILD_HEAD > rest.len() {
            return Err(DamagedNodeError("an inner node has no children, or more than fit"));
        }
        let mut children: Vec<Child> = Vec::with_capacity(count);
        for index in 0..count {
            let child = parse_child(&mut rest).ok_or(DamagedNodeError("a child ends outside its node"))?;
            if index > 1 && children[index - 1].separator >= child.separator {
                return Err(DamagedNodeError("the separators of a node do not ascend"));
            }
            children.push(child);
        }
        Ok(InnerNode { children })
    }

    /// The page; its header is the caller's. All children have homes with sums.
    pub fn page(&self) -> Option<Box<[u8]>> {
        let mut page = Vec::with_capacity(NODE_BYTES);
        page.resize(HEADER, 0);
        for child in &self.children {
            let at = match &child.link {
                Link::Disk(at) => *at,
                Link::Memory(node) => node.at()?,
            };
            let both = shared(&child.separator, &child.prefix);
            for length in [child.separator.len(), child.prefix.len(), both] {
                page.extend_from_slice(&u16::try_from(length).ok()?.to_le_bytes());
            }
            page.extend_from_slice(&at.slot.to_le_bytes());
            page.extend_from_slice(&at.sum.to_le_bytes());
            page.extend_from_slice(&child.separator);
            page.extend_from_slice(&child.prefix[both..]);
        }
        page.resize(NODE_BYTES.max(page.len()), 0);
        (page.len() == NODE_BYTES).then(|| page.into_boxed_slice())
    }
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(count)?;
    *rest = left;
    Some(taken)
}

fn take_u16(rest: &mut &[u8]) -> Option<usize> {
    Some(usize::from(u16::from_le_bytes(take(rest, 2)?.try_into().ok()?)))
}

fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(take(rest, 4)?.try_into().ok()?))
}

fn parse_child(rest: &mut &[u8]) -> Option<Child> {
    let (separator, prefix, both) = (take_u16(rest)?, take_u16(rest)?, take_u16(rest)?);
    let at = NodeAt { slot: take_u32(rest)?, sum: take_u32(rest)? };
    let separator = take(rest, separator)?;
    let own = take(rest, prefix.checked_sub(both)?)?;
    let mut prefix = Suffix::from(separator.get(..both)?);
    prefix.extend_from_slice(own);
    Some(Child { separator: separator.into(), prefix, link: Link::Disk(at) })
}
