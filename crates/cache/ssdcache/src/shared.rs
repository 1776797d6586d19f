//! The map in memory that other processes see: layout and gate. Drawn in docs/formats.md, "The SSD cache's map".
//!
//! The leader alone changes it (but for marks of use). It uses the map as its own metadata, and so trusts nothing that is in it
//! without a check: every number is compared with the sizes, which the leader and every reader keep privately.
//!
//! *The gate* counts up by two before an entry of the index is overwritten by a removal, and is odd while the map is exchanged.
//! A removal moves an entry in two steps, copy and overwrite; who found nothing at the new place and then nothing at the old
//! one has passed the first before the copy and the second after the overwriting, so that the gate was counted up between.
//! Therefore a leader who stops or dies at any step leaves a map in which nothing is hidden; some entries may be twice in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use shm::{PageSize, Region, SharedRef, SharedSlice};

use crate::open_error::CacheOpenError;
use crate::superblock::Shape;
use crate::units::SsdSlot;

const MAGIC: u64 = u64::from_le_bytes(*b"hs-ssdm1");
const HEADER: usize = 64;
const SHAPE: usize = 8;
const GATE: usize = 16;
const HEAD: usize = 24;
/// The number of the cache's own file, plus 1.
const OWN: usize = 32;

/// Where things are, from the map's begin.
#[derive(Clone, Copy, Debug)]
struct MapLayout {
    entries: u32,
    seqs: usize,
    index: usize,
    sums: usize,
    bytes: usize,
}

impl MapLayout {
    fn of(shape: Shape) -> MapLayout {
        let (slots, entries) = (shape.slots() as usize, entries(shape.slots()));
        let seqs = HEADER + 8 * slots;
        let index = seqs + 8 * shape.segments as usize;
        let sums = index + 4 * entries as usize;
        MapLayout { entries, seqs, index, sums, bytes: (sums + 3 * slots).next_multiple_of(64) }
    }
}

/// Entries of the index for so many slots: a tenth is always empty.
fn entries(slots: u32) -> u32 {
    slots + slots / 9 + 2
}

/// Bytes that the map of a cache of this shape takes in the segment.
pub fn shared_bytes(shape: Shape) -> usize {
    MapLayout::of(shape).bytes
}

/// Makes the map in a new segment, once: unsure of everything until [`crate::recover`] has published. `at`: a multiple of 8.
pub fn format_shared(region: &Region, at: usize, shape: Shape) {
    region.fill(at..at + shared_bytes(shape), 0);
    region.u32(at + SHAPE).store(shape.segment_pages, Ordering::Relaxed);
    region.u32(at + SHAPE + 4).store(shape.segments, Ordering::Relaxed);
    region.u64(at + GATE).store(1, Ordering::Relaxed);
    region.u64(at).store(MAGIC, Ordering::Release);
}

/// A leader may die here: before each change that others see.
fn step() {
    #[cfg(test)]
    death::step();
}

#[cfg(test)]
pub(crate) mod death {
    use std::cell::Cell;

    /// What a leader's thread ends with.
    pub(crate) struct LeaderDied;

    thread_local!(static STEPS: Cell<u32> = const { Cell::new(0) });

    /// This thread dies at the step after so many; 0: at none.
    pub(crate) fn after(steps: u32) {
        STEPS.set(steps);
    }

    pub(super) fn step() {
        let left = STEPS.get();
        STEPS.set(left.saturating_sub(1));
        if left == 1 {
            std::panic::resume_unwind(Box::new(LeaderDied));
        }
    }
}

/// Between two looks at the map others may change it.
pub(crate) fn pause() {
    #[cfg(test)]
    meanwhile::happens();
}

#[cfg(test)]
pub(crate) mod meanwhile {
    use std::cell::RefCell;

    thread_local!(static WHAT: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) });

    /// This happens between any two looks of this thread.
    pub(crate) fn set(what: Option<Box<dyn FnMut()>>) {
        WHAT.set(what);
    }

    pub(super) fn happens() {
        // What looks itself is not disturbed.
        if let Some(mut what) = WHAT.take() {
            what();
            WHAT.set(Some(what));
        }
    }
}

/// The map, ours or everybody's.
#[derive(Clone, Debug)]
pub(crate) struct SharedMap {
    region: Arc<Region>,
    at: usize,
    shape: Shape,
    slots: u32,
    slot_bits: u32,
    places: MapLayout,
    header: SharedRef<[AtomicU64; HEADER / 8]>,
    words: SharedSlice<AtomicU64>,
    seqs: SharedSlice<AtomicU64>,
    index: SharedSlice<AtomicU32>,
}

impl SharedMap {
    /// A map of our own, empty.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn private(shape: Shape) -> Result<SharedMap, CacheOpenError> {
        let region = Region::private(shared_bytes(shape), PageSize::HugeIfFree).map_err(|_| CacheOpenError::Memory)?;
        region.u32(SHAPE).store(shape.segment_pages, Ordering::Relaxed);
        region.u32(SHAPE + 4).store(shape.segments, Ordering::Relaxed);
        region.u64(0).store(MAGIC, Ordering::Relaxed);
        Ok(SharedMap::over(Arc::new(region), 0, shape))
    }

    fn over(region: Arc<Region>, at: usize, shape: Shape) -> SharedMap {
        let (slots, places) = (shape.slots(), MapLayout::of(shape));
        SharedMap {
            shape,
            slots,
            slot_bits: 32 - slots.leading_zeros(),
            header: SharedRef::new(&region, at),
            words: SharedSlice::new(&region, at + HEADER, slots as usize),
            seqs: SharedSlice::new(&region, at + places.seqs, shape.segments as usize),
            index: SharedSlice::new(&region, at + places.index, places.entries as usize),
            region,
            at,
            places,
        }
    }

    /// # Errors
    /// Nothing was formatted there, or it does not fit.
    pub(crate) fn attach(region: &Arc<Region>, at: usize, bytes: usize) -> Result<SharedMap, CacheOpenError> {
        let fits = at.is_multiple_of(8) && bytes >= HEADER && at <= region.len() && bytes <= region.len() - at;
        if !fits || region.u64(at).load(Ordering::Acquire) != MAGIC {
            return Err(CacheOpenError::Segment);
        }
        let word = |n: usize| region.u32(at + SHAPE + 4 * n).load(Ordering::Relaxed);
        let shape = Shape { segment_pages: word(0), segments: word(1) };
        if shape.check(u64::MAX).is_err() || shared_bytes(shape) > bytes {
            return Err(CacheOpenError::Segment);
        }
        Ok(SharedMap::over(Arc::clone(region), at, shape))
    }

    #[inline]
    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    #[inline]
    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    #[inline]
    pub(crate) fn slot_bits(&self) -> u32 {
        self.slot_bits
    }

    #[inline]
    pub(crate) fn entries(&self) -> usize {
        self.places.entries as usize
    }

    /// A slot's word.
    #[inline]
    pub(crate) fn word(&self, slot: SsdSlot) -> &AtomicU64 {
        &self.words[slot.0 as usize]
    }

    #[inline]
    pub(crate) fn entry(&self, n: usize) -> &AtomicU32 {
        &self.index[n]
    }

    #[inline]
    pub(crate) fn prefetch_entry(&self, n: usize) {
        self.index.prefetch(n);
    }

    /// A slot's word and checksum.
    #[inline]
    pub(crate) fn prefetch_held(&self, slot: SsdSlot) {
        self.words.prefetch(slot.0 as usize);
        self.prefetch_checksum(slot);
    }

    #[inline]
    pub(crate) fn prefetch_checksum(&self, slot: SsdSlot) {
        self.region.prefetch(self.at + self.places.sums + 3 * slot.0 as usize);
    }

    /// The sequence number of the segment at a place.
    #[inline]
    pub(crate) fn seq(&self, place: usize) -> &AtomicU64 {
        &self.seqs[place]
    }

    /// Lower 24 bits of a slot's checksum.
    #[inline]
    pub(crate) fn low_checksum(&self, slot: SsdSlot) -> [u8; 3] {
        let mut checksum = [0; 3];
        self.region.read(self.at + self.places.sums + 3 * slot.0 as usize, &mut checksum);
        checksum
    }

    pub(crate) fn set_low_checksum(&self, slot: SsdSlot, checksum: [u8; 3]) {
        step();
        self.region.write(self.at + self.places.sums + 3 * slot.0 as usize, &checksum);
    }

    /// The head segment's sequence number, and up to which position it is written.
    #[inline]
    pub(crate) fn head(&self) -> (u64, u32) {
        let word = self.header[HEAD / 8].load(Ordering::Acquire);
        (word >> 16, (word & 0xffff) as u32)
    }

    pub(crate) fn set_head(&self, seq: u64, written: u32) {
        step();
        self.header[HEAD / 8].store(seq << 16 | u64::from(written), Ordering::Release);
    }

    /// The number of the cache's own file, whose pages are dirty for ever.
    pub(crate) fn own(&self) -> Option<u32> {
        self.region.u32(self.at + OWN).load(Ordering::Acquire).checked_sub(1)
    }

    pub(crate) fn set_own(&self, number: Option<u32>) {
        self.region.u32(self.at + OWN).store(number.map_or(0, |number| number + 1), Ordering::Release);
    }

    /// The number of the segment at a place, told before there is any page in it.
    pub(crate) fn set_seq(&self, place: usize, seq: u64) {
        step();
        self.seq(place).store(seq, Ordering::Release);
    }

    #[inline]
    fn gate_word(&self) -> &AtomicU64 {
        &self.header[GATE / 8]
    }

    /// The gate is even again, if somebody made it odd who exchanges nothing.
    pub(crate) fn end_exchange(&self) {
        let gate = self.gate_word();
        let now = gate.load(Ordering::Relaxed);
        if !now.is_multiple_of(2) {
            let _ = gate.compare_exchange(now, now.wrapping_add(1), Ordering::Release, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn gate(&self) -> u64 {
        self.gate_word().load(Ordering::Acquire)
    }

    /// Whether nothing was overwritten since the gate was so.
    #[inline]
    pub(crate) fn is_still(&self, gate: u64) -> bool {
        fence(Ordering::Acquire);
        gate.is_multiple_of(2) && self.gate_word().load(Ordering::Relaxed) == gate
    }

    pub(crate) fn store_word(&self, slot: SsdSlot, word: u64) {
        step();
        self.word(slot).store(word, Ordering::Release);
    }

    pub(crate) fn store_entry(&self, n: usize, entry: u32) {
        step();
        self.entry(n).store(entry, Ordering::Release);
    }

    /// Before an entry is overwritten.
    pub(crate) fn count_up(&self) {
        step();
        let gate = self.gate_word();
        gate.store(gate.load(Ordering::Relaxed).wrapping_add(2), Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Puts all of this map in the place of another of the same shape, which others look at.
    ///
    /// # Errors
    /// It is of another shape.
    pub(crate) fn publish(&self, to: &SharedMap) -> Result<(), CacheOpenError> {
        if to.shape != self.shape {
            return Err(CacheOpenError::Segment);
        }
        let gate = to.gate_word();
        let odd = gate.load(Ordering::Relaxed) | 1;
        step();
        gate.store(odd, Ordering::Relaxed);
        fence(Ordering::Release);
        step();
        self.region.copy(self.at + HEADER, &to.region, to.at + HEADER, self.places.bytes - HEADER);
        step();
        let (seq, written) = self.head();
        to.set_head(seq, written);
        to.set_own(self.own());
        gate.store(odd.wrapping_add(1), Ordering::Release);
        Ok(())
    }
}
