//! Finds the requests that have blocks in common with a new one: all unfinished requests, sorted by their first block.

use crate::request::Request;

/// Block intervals in a sorted array. At the few hundred entries of a stage, moving the tail of an array is cheaper than any tree.
#[derive(Debug)]
pub(super) struct Overlap {
    entries: Vec<Entry>,
    /// An upper bound of the entries' lengths.
    longest: u64,
    writers: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    first: u64,
    end: u64,
    slot: u32,
    writes: bool,
}

impl Overlap {
    pub(super) fn new(depth: u32) -> Overlap {
        Overlap { entries: Vec::with_capacity(depth as usize), longest: 0, writers: 0 }
    }

    /// Returns the requests that must not be reordered with `request`: they have blocks in common, and at least one of the two is a
    /// write.
    #[inline]
    pub(super) fn conflicts(&self, request: &Request) -> impl Iterator<Item = u32> {
        let (first, writes) = (request.lba.0, request.op.writes());
        let end = first + u64::from(request.blocks);
        let searched = if writes || self.writers > 0 { self.entries.as_slice() } else { &[] };
        let longest = self.longest;
        let from = searched.partition_point(|entry| entry.first.saturating_add(longest) <= first);
        let found = searched[from..].iter().take_while(move |entry| entry.first < end);
        found.filter(move |entry| entry.end > first && (writes || entry.writes)).map(|entry| entry.slot)
    }

    #[inline]
    pub(super) fn insert(&mut self, slot: u32, request: &Request) {
        let (first, blocks, writes) = (request.lba.0, u64::from(request.blocks), request.op.writes());
        if blocks == 0 {
            return;
        }
        let at = self.entries.partition_point(|entry| entry.first < first);
        self.entries.insert(at, Entry { first, end: first + blocks, slot, writes });
        self.longest = self.longest.max(blocks);
        self.writers += usize::from(writes);
    }

    #[inline]
    pub(super) fn remove(&mut self, slot: u32, request: &Request) {
        if request.blocks == 0 {
            return;
        }
        let from = self.entries.partition_point(|entry| entry.first < request.lba.0);
        let at = self.entries[from..].iter().position(|entry| entry.slot == slot).expect("it was inserted");
        let entry = self.entries.remove(from + at);
        self.writers -= usize::from(entry.writes);
        if self.entries.is_empty() {
            self.longest = 0;
        }
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.longest = 0;
        self.writers = 0;
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::units::{Lba, Tag};

    #[test]
    fn finds_what_a_plain_search_finds() {
        let mut random = fastrand::Rng::with_seed(11);
        let mut overlap = Overlap::new(64);
        let mut plain: Vec<(u32, Request)> = Vec::new();
        for round in 0..if cfg!(miri) { 200 } else { 5_000 } {
            let blocks = if random.u8(..20) == 0 { 90 } else { random.u32(1..6) };
            let mut request = Request::read(Tag(0), Lba(random.u64(..100)), blocks);
            if random.bool() {
                request = Request::write(Tag(0), request.lba, blocks);
            }
            let mut found: Vec<u32> = overlap.conflicts(&request).collect();
            found.sort_unstable();
            let mut expected: Vec<u32> = plain.iter().filter(|(_, other)| conflict(other, &request)).map(|(slot, _)| *slot).collect();
            expected.sort_unstable();
            assert_eq!(found, expected, "round {round}: {request:?}");
            if plain.len() < 64 && random.bool() {
                overlap.insert(round, &request);
                plain.push((round, request));
            } else if !plain.is_empty() {
                let (slot, request) = plain.swap_remove(random.usize(..plain.len()));
                overlap.remove(slot, &request);
            }
        }
    }

    fn conflict(one: &Request, other: &Request) -> bool {
        let common = (one.lba.0..one.lba.0 + u64::from(one.blocks))
            .any(|block| (other.lba.0..other.lba.0 + u64::from(other.blocks)).contains(&block));
        common && (one.op.writes() || other.op.writes())
    }
}
