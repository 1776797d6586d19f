//! Runs: blocks of a file that lie in a row on the device, each with its checksum.
//!
//! A run is at most [`RUN_MAX`] blocks, so that its value is small and the run that covers a block begins near it: a lookup of
//! one reads the runs that begin in the `RUN_MAX` blocks before it.

use std::ops::Range;

use super::error::MalformedRecordError;
use crate::{Block, Extent};

/// Blocks of a run at most.
pub const RUN_MAX: u32 = 128;
const HEAD: usize = 20;
const WRITTEN: u16 = 1;

/// Blocks in a row, in the file and on the device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first, counted in the file.
    pub at: u64,
    /// The first, on the device.
    pub start: Block,
    /// The number of blocks in the run.
    pub blocks: u32,
    /// crc32c of each; `None`: never written, reads as zeros.
    pub sums: Option<Vec<u32>>,
}

impl Run {
    /// Makes a run of blocks that hold data.
    pub fn written(at: u64, start: Block, sums: Vec<u32>) -> Run {
        Run { at, start, blocks: u32::try_from(sums.len()).expect("few"), sums: Some(sums) }
    }

    /// Makes a run of reserved blocks that read as zeros.
    pub fn reserved(at: u64, start: Block, blocks: u32) -> Run {
        Run { at, start, blocks, sums: None }
    }

    /// The block of the file behind it.
    pub fn end(&self) -> u64 {
        self.at + u64::from(self.blocks)
    }

    /// Where it is on the device.
    pub fn extent(&self) -> Extent {
        Extent::new(self.start, self.blocks)
    }

    /// Where a block of the file is, with its checksum; `None` if it reads as zeros.
    pub fn find(&self, at: u64) -> Option<(Block, u32)> {
        let index = at.checked_sub(self.at).filter(|index| *index < u64::from(self.blocks))?;
        let sum = self.sums.as_ref()?[usize::try_from(index).expect("below RUN_MAX")];
        Some((self.start.after(index), sum))
    }

    /// Takes over what another one says of blocks that both have in the same place.
    pub fn set_sums(&mut self, new: &Run) {
        let (Some(sums), Some(more)) = (&mut self.sums, &new.sums) else { return };
        for (at, sum) in (new.at..).zip(more) {
            if let Some(own) = at.checked_sub(self.at).and_then(|index| sums.get_mut(index as usize)) {
                *own = *sum;
            }
        }
    }

    /// Whether it has the same blocks, written as those.
    pub fn is_at(&self, other: &Run) -> bool {
        (self.at, self.start, self.blocks, self.sums.is_some()) == (other.at, other.start, other.blocks, other.sums.is_some())
    }

    /// Gives sums that differ from those of a run which [`Run::is_at`] the same place to `each`, as they are stored: where, and a row
    /// of them.
    pub fn each_changed(&self, old: &Run, mut each: impl FnMut(u16, &[u8])) {
        let (Some(sums), Some(old)) = (&self.sums, &old.sums) else { return };
        let mut from = 0;
        for same in sums.iter().zip(old).map(|(new, old)| new == old).collect::<Vec<_>>().chunk_by(|a, b| a == b) {
            let to = from + same.len();
            if !same[0] {
                let row: Vec<u8> = sums[from..to].iter().flat_map(|sum| sum.to_le_bytes()).collect();
                each((HEAD + 4 * from) as u16, &row);
            }
            from = to;
        }
    }

    /// The part of it in a range; `None` if there is none.
    pub fn part(&self, range: &Range<u64>) -> Option<Run> {
        let (from, to) = (self.at.max(range.start), self.end().min(range.end));
        if from >= to {
            return None;
        }
        let (skip, blocks) = (from - self.at, to - from);
        let sums = self.sums.as_ref().map(|sums| sums[skip as usize..(skip + blocks) as usize].to_vec());
        Some(Run { at: from, start: self.start.after(skip), blocks: u32::try_from(blocks).expect("below RUN_MAX"), sums })
    }

    /// Takes up the run behind it, if they are one.
    fn absorb(&mut self, next: &Run) -> bool {
        let joins = self.end() == next.at && self.start.after(u64::from(self.blocks)) == next.start;
        if !joins || self.blocks + next.blocks > RUN_MAX || self.sums.is_some() != next.sums.is_some() {
            return false;
        }
        self.blocks += next.blocks;
        if let (Some(sums), Some(more)) = (&mut self.sums, &next.sums) {
            sums.extend_from_slice(more);
        }
        true
    }

    /// Bytes it takes when stored.
    pub fn stored_len(&self) -> usize {
        HEAD + self.sums.as_ref().map_or(0, |sums| 4 * sums.len())
    }

    /// Appends it in its stored form.
    pub fn put(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.at.to_le_bytes());
        bytes.extend_from_slice(&self.start.0.to_le_bytes());
        bytes.extend_from_slice(&(self.blocks as u16).to_le_bytes());
        bytes.extend_from_slice(&if self.sums.is_some() { WRITTEN } else { 0 }.to_le_bytes());
        self.sums.iter().flatten().for_each(|sum| bytes.extend_from_slice(&sum.to_le_bytes()));
    }

    /// As it is stored in Files.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.stored_len());
        self.put(&mut bytes);
        bytes
    }

    /// Takes one off the begin of stored bytes.
    fn take(bytes: &mut &[u8]) -> Result<Run, MalformedRecordError> {
        let head: &[u8; HEAD] = bytes.first_chunk().ok_or(MalformedRecordError("a run cut off"))?;
        let u64_at = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let u16_at = |at: usize| u16::from_le_bytes(head[at..at + 2].try_into().expect("2 bytes"));
        let (at, start, blocks, flags) = (u64_at(0), u64_at(8), u32::from(u16_at(16)), u16_at(18));
        let last = at.checked_add(u64::from(blocks)).is_some_and(|end| end <= super::BLOCKS_MAX);
        let on_device = start.checked_add(u64::from(blocks)).is_some_and(|end| end <= crate::layout::shape::BLOCKS_MAX);
        if blocks == 0 || blocks > RUN_MAX || flags > WRITTEN || !last || !on_device {
            return Err(MalformedRecordError("a run out of its range"));
        }
        let sums = if flags == WRITTEN { 4 * blocks as usize } else { 0 };
        let body = bytes.get(HEAD..HEAD + sums).ok_or(MalformedRecordError("sums of a run cut off"))?;
        let read = body.chunks_exact(4).map(|sum| u32::from_le_bytes(sum.try_into().expect("4 bytes"))).collect();
        *bytes = &bytes[HEAD + sums..];
        Ok(Run { at, start: Block(start), blocks, sums: (flags == WRITTEN).then_some(read) })
    }

    /// Reads an item of Files.
    pub fn parse(mut bytes: &[u8]) -> Result<Run, MalformedRecordError> {
        let run = Run::take(&mut bytes)?;
        if bytes.is_empty() { Ok(run) } else { Err(MalformedRecordError("bytes behind a run")) }
    }
}

/// Reads the runs of a record: in order, none over another.
pub fn parse_all(mut bytes: &[u8]) -> Result<Vec<Run>, MalformedRecordError> {
    let mut runs: Vec<Run> = Vec::new();
    while !bytes.is_empty() {
        let run = Run::take(&mut bytes)?;
        if runs.last().is_some_and(|last| last.end() > run.at) {
            return Err(MalformedRecordError("runs out of order"));
        }
        runs.push(run);
    }
    Ok(runs)
}

/// As [`parse_all`], up to the first that is wrong.
pub fn parse_some(mut bytes: &[u8]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    while let Ok(run) = Run::take(&mut bytes)
        && runs.last().is_none_or(|last| last.end() <= run.at)
    {
        runs.push(run);
    }
    runs
}

/// Returns the number of blocks in some runs.
pub fn blocks(runs: &[Run]) -> u64 {
    runs.iter().map(|run| u64::from(run.blocks)).sum()
}

/// Where to cut a row of blocks so that no run is too long.
pub fn pieces(extent: Extent, at: u64) -> impl Iterator<Item = (u64, Extent)> {
    (0..extent.blocks.div_ceil(RUN_MAX)).map(move |n| {
        let skip = n * RUN_MAX;
        let blocks = (extent.blocks - skip).min(RUN_MAX);
        (at + u64::from(skip), Extent::new(extent.start.after(u64::from(skip)), blocks))
    })
}

/// Blocks that are free now, behind the others.
fn free(freed: &mut Vec<Extent>, gone: Extent) {
    match freed.last_mut() {
        Some(last) if last.end() == Some(gone.start) => last.blocks += gone.blocks,
        _ => freed.push(gone),
    }
}

/// What is left and what is new, in order; neighbours become one where they can.
fn join(runs: &mut Vec<Run>, mut all: Vec<Run>, new: Vec<Run>) {
    all.extend(new);
    all.sort_unstable_by_key(|run| run.at);
    for run in all {
        if !runs.last_mut().is_some_and(|last| last.absorb(&run)) {
            runs.push(run);
        }
    }
}

/// Puts new runs into a range in place of what was there; returns the blocks that are free now. `runs` are those that touch the
/// range, or more; neighbours become one where they can.
pub fn replace(runs: &mut Vec<Run>, range: &Range<u64>, new: Vec<Run>) -> Vec<Extent> {
    let mut freed: Vec<Extent> = Vec::new();
    let mut all: Vec<Run> = Vec::with_capacity(runs.len() + new.len() + 1);
    for run in runs.drain(..) {
        if let Some(gone) = run.part(range) {
            free(&mut freed, gone.extent());
            all.extend(run.part(&(run.at..range.start)));
            all.extend(run.part(&(range.end..run.end())));
        } else {
            all.push(run);
        }
    }
    join(runs, all, new);
    freed
}

/// Puts new runs, in order and not over each other, in the place of what was there; returns the blocks that are free now. As
/// [`replace`] with each of them, in one go.
pub fn replace_all(runs: &mut Vec<Run>, new: Vec<Run>) -> Vec<Extent> {
    let mut freed: Vec<Extent> = Vec::new();
    let mut all: Vec<Run> = Vec::with_capacity(runs.len() + 2 * new.len());
    let mut first = 0;
    for run in runs.drain(..) {
        first += new[first..].iter().take_while(|new| new.end() <= run.at).count();
        if new.get(first).is_none_or(|new| new.at >= run.end()) {
            all.push(run);
            continue;
        }
        let mut at = run.at;
        for over in new[first..].iter().take_while(|new| new.at < run.end()) {
            all.extend(run.part(&(at..over.at)));
            at = over.end();
            let (from, to) = (run.at.max(over.at), run.end().min(over.end()));
            let gone = Extent::new(run.start.after(from - run.at), (to - from) as u32);
            free(&mut freed, gone);
        }
        all.extend(run.part(&(at..run.end())));
    }
    join(runs, all, new);
    freed
}

#[cfg(test)]
mod test {
    use std::collections::BTreeMap;

    use super::*;

    /// Every block of the file, by itself.
    fn spread(runs: &[Run]) -> BTreeMap<u64, (Block, Option<u32>)> {
        let one = |run: &Run, n: u32| (run.at + u64::from(n), (run.start.after(u64::from(n)), run.sums.as_ref().map(|s| s[n as usize])));
        runs.iter().flat_map(|run| (0..run.blocks).map(move |n| one(run, n))).collect()
    }

    #[test]
    fn replace_does_what_a_map_of_blocks_does() {
        let mut rng = crate::testing::rng();
        let (mut runs, mut model, mut next) = (Vec::new(), BTreeMap::new(), 1000);
        for _ in 0..3000 {
            let from = rng.u64(0..600);
            let range = from..from + rng.u64(1..150);
            let mut new = Vec::new();
            if rng.u8(0..4) > 0 {
                let blocks = (range.end - range.start) as u32;
                next += rng.u64(0..2);
                for (at, extent) in pieces(Extent::new(Block(next), blocks), range.start) {
                    let sums = (0..extent.blocks).map(|_| rng.u32(..)).collect();
                    new.push(if rng.bool() {
                        Run::written(at, extent.start, sums)
                    } else {
                        Run::reserved(at, extent.start, extent.blocks)
                    });
                }
                next += u64::from(blocks);
            }
            let mut gone: Vec<u64> = range.clone().filter_map(|at| model.remove(&at)).map(|(block, _): (Block, _)| block.0).collect();
            model.extend(spread(&new));
            let freed = replace(&mut runs, &range, new);
            let mut freed: Vec<u64> = freed.iter().flat_map(|extent| extent.start.0..extent.end().expect("small").0).collect();
            gone.sort_unstable();
            freed.sort_unstable();
            assert_eq!((freed, spread(&runs)), (gone, model.clone()));
            assert!(runs.iter().all(|run| run.blocks <= RUN_MAX) && runs.is_sorted_by(|a, b| a.end() <= b.at));
            let bytes: Vec<u8> = runs.iter().flat_map(Run::bytes).collect();
            assert_eq!(parse_all(&bytes).as_ref(), Ok(&runs));
        }
    }

    #[test]
    fn all_at_once_is_one_after_the_other() {
        let mut rng = crate::testing::rng();
        let (mut one, mut next) = (Vec::new(), 1000);
        for _ in 0..1000 {
            let (mut new, mut at) = (Vec::new(), rng.u64(0..300));
            for _ in 0..rng.u8(1..12) {
                let blocks = rng.u32(1..40);
                new.push(Run::written(at, Block(next), (0..blocks).map(|_| rng.u32(..)).collect()));
                next += u64::from(blocks) + rng.u64(0..2);
                at += u64::from(blocks) + rng.u64(0..40);
            }
            let mut all = one.clone();
            let mut freed = replace_all(&mut all, new.clone());
            let mut expected: Vec<Extent> = new.into_iter().flat_map(|run| replace(&mut one, &(run.at..run.end()), vec![run])).collect();
            let blocks = |extents: &mut Vec<Extent>| {
                let mut all: Vec<u64> = extents.iter().flat_map(|extent| extent.start.0..extent.end().expect("small").0).collect();
                all.sort_unstable();
                all
            };
            assert_eq!((blocks(&mut freed), spread(&all)), (blocks(&mut expected), spread(&one)));
            assert!(all.iter().all(|run| run.blocks <= RUN_MAX) && all.is_sorted_by(|a, b| a.end() <= b.at));
        }
    }

    #[test]
    fn appended_blocks_become_one_run() {
        let mut runs = Vec::new();
        for n in 0..200 {
            replace(&mut runs, &(n..n + 1), vec![Run::written(n, Block(50 + n), vec![9])]);
        }
        assert_eq!(runs.iter().map(|run| run.blocks).collect::<Vec<_>>(), [128, 72]);
        assert_eq!(runs[1].find(130), Some((Block(180), 9)));
        assert_eq!(runs[1].find(127), None);
    }
}
