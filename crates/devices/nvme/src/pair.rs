//! A submission and a completion queue in memory that the device reads and writes, and their doorbells.
//!
//! The memory consists of atomic words. A completion entry is copied out once its phase bit is seen; the receiver checks it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use shm::SharedSlice;

use crate::doorbell::tell;
use crate::entry::{CompletionEntry, Entry};
use crate::mapping::{Mapping, PAGE_BYTES};
use crate::registers::{completion_doorbell, submission_doorbell};
use pci::{DmaError, DmaSpace, Mmio};

/// Shadow doorbells: doorbells in memory that the controller polls, and its event indexes (Doorbell Buffer Config).
#[derive(Clone)]
pub(crate) struct Shadow {
    /// The two pages that the device reaches.
    pub memory: Arc<Mapping>,
}

impl Shadow {
    /// Allocates one page of doorbells and one page of event indexes.
    pub(crate) fn new(dma: &Arc<dyn DmaSpace>) -> Result<Shadow, DmaError> {
        Ok(Shadow { memory: Arc::new(Mapping::new(dma, 2 * PAGE_BYTES)?) })
    }

    pub(crate) fn addresses(&self) -> (u64, u64) {
        (self.memory.address(0), self.memory.address(PAGE_BYTES))
    }

    /// Sets all doorbells and event indexes to zero, as after a reset.
    pub(crate) fn clear(&self) {
        self.memory.region().fill(0..2 * PAGE_BYTES, 0);
    }

    /// The two words of a doorbell; none if it has no place in a page.
    fn words(&self, doorbell: usize) -> Option<ShadowWords> {
        let at = doorbell - crate::registers::DOORBELLS;
        if at + 4 > PAGE_BYTES {
            return None;
        }
        let word = |at| SharedSlice::new(self.memory.region(), at, 1);
        Some(ShadowWords { value: word(at), mark: word(PAGE_BYTES + at), last: 0, _memory: Arc::clone(&self.memory) })
    }
}

struct ShadowWords {
    value: SharedSlice<AtomicU32>,
    mark: SharedSlice<AtomicU32>,
    last: u16,
    _memory: Arc<Mapping>,
}

impl ShadowWords {
    /// Whether the register has to be written, too.
    fn tell(&mut self, value: u16) -> bool {
        let before = std::mem::replace(&mut self.last, value);
        tell(&self.value[0], &self.mark[0], before, value)
    }
}

/// One doorbell: a register, perhaps with its shadow.
struct Doorbell {
    at: usize,
    shadow: Option<ShadowWords>,
}

impl Doorbell {
    /// True: the register was written.
    #[inline]
    fn ring(&mut self, mmio: &dyn Mmio, value: u16) -> bool {
        let written = self.shadow.as_mut().is_none_or(|shadow| shadow.tell(value));
        if written {
            mmio.write32(self.at, value.into());
        }
        written
    }
}

/// A submission and a completion queue of one number, with one owner.
pub(crate) struct Pair {
    number: u16,
    mmio: Arc<dyn Mmio>,
    memory: Mapping,
    submission: SharedSlice<[AtomicU64; 8]>,
    completion: SharedSlice<[AtomicU64; 2]>,
    entries: u32,
    tail: u32,
    /// The tail that the device was last notified of.
    tail_written: u32,
    head: u32,
    head_written: u32,
    phase: bool,
    tail_bell: Doorbell,
    head_bell: Doorbell,
}

fn completions_at(entries: u32) -> usize {
    (entries as usize * 64).next_multiple_of(PAGE_BYTES)
}

impl Pair {
    /// Creates both queues with 2 to 4096 entries each.
    pub(crate) fn new(
        mmio: &Arc<dyn Mmio>,
        dma: &Arc<dyn DmaSpace>,
        (number, entries): (u16, u32),
        stride: usize,
        shadow: Option<&Shadow>,
    ) -> Result<Pair, DmaError> {
        let memory = Mapping::new(dma, completions_at(entries) + (entries as usize * 16).next_multiple_of(PAGE_BYTES))?;
        let words = |at| shadow.and_then(|shadow| shadow.words(at));
        let (tail_at, head_at) = (submission_doorbell(number, stride), completion_doorbell(number, stride));
        Ok(Pair {
            number,
            mmio: Arc::clone(mmio),
            submission: SharedSlice::new(memory.region(), 0, entries as usize),
            completion: SharedSlice::new(memory.region(), completions_at(entries), entries as usize),
            memory,
            entries,
            tail: 0,
            tail_written: 0,
            head: 0,
            head_written: 0,
            phase: true,
            tail_bell: Doorbell { at: tail_at, shadow: words(tail_at) },
            head_bell: Doorbell { at: head_at, shadow: words(head_at) },
        })
    }

    /// Resets both queues to empty. The device must have no queue of this number.
    pub(crate) fn clear(&mut self) {
        (self.tail, self.tail_written, self.head, self.head_written, self.phase) = (0, 0, 0, 0, true);
        let region = self.memory.region();
        region.fill(0..region.len(), 0);
        for shadow in [&mut self.tail_bell.shadow, &mut self.head_bell.shadow].into_iter().flatten() {
            shadow.last = 0;
            shadow.value[0].store(0, Ordering::Relaxed);
            shadow.mark[0].store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    /// Addresses of the submission and the completion queue.
    pub(crate) fn addresses(&self) -> (u64, u64) {
        (self.memory.address(0), self.memory.address(completions_at(self.entries)))
    }

    /// Adds a command to the submission queue and returns its index. The caller ensures that at most `entries - 1` are in flight.
    #[inline]
    pub(crate) fn push(&mut self, entry: &Entry) -> u32 {
        let at = self.tail;
        let place = &self.submission[at as usize];
        for (word, value) in place.iter().zip(entry.0) {
            word.store(value, Ordering::Relaxed);
        }
        self.tail = if at + 1 == self.entries { 0 } else { at + 1 };
        at
    }

    /// Returns whether the device was notified of all commands.
    #[inline]
    pub(crate) fn is_tail_written(&self) -> bool {
        self.tail == self.tail_written
    }

    /// Notifies the device of all pushed commands. Returns the tail, and whether the register was written.
    pub(crate) fn ring(&mut self) -> (u16, bool) {
        self.tail_written = self.tail;
        let value = self.tail as u16;
        (value, self.tail_bell.ring(&*self.mmio, value))
    }

    /// Takes the next completion entry: its index and a copy.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(u32, CompletionEntry)> {
        let at = self.head;
        let place = &self.completion[at as usize];
        let upper = place[1].load(Ordering::Acquire);
        if CompletionEntry::phase(upper) != self.phase {
            return None;
        }
        let answer = CompletionEntry([place[0].load(Ordering::Relaxed), upper]);
        self.head += 1;
        if self.head == self.entries {
            self.head = 0;
            self.phase = !self.phase;
        }
        Some((at, answer))
    }

    /// Returns whether a completion entry is available.
    #[inline]
    pub(crate) fn has_answer(&self) -> bool {
        CompletionEntry::phase(self.completion[self.head as usize][1].load(Ordering::Acquire)) == self.phase
    }

    /// Returns the entries of taken completions to the device. `None`: there were none; else the new head, and whether the register was
    /// written.
    #[inline]
    pub(crate) fn give_back(&mut self) -> Option<(u16, bool)> {
        if self.head == self.head_written {
            return None;
        }
        self.give_back_now()
    }

    /// Works as [`Self::give_back`], but only once a quarter of the ring is owed. A polling owner needs no interrupt, and a register write
    /// costs more than the rest of a command. The caller ensures that commands in flight and owed entries together fit the ring.
    #[inline]
    pub(crate) fn give_back_many(&mut self) -> Option<(u16, bool)> {
        let owed = self.owed();
        if owed == 0 || owed < self.entries / 4 { None } else { self.give_back_now() }
    }

    /// Returns the number of taken completion entries that the device was not notified of.
    #[inline]
    pub(crate) fn owed(&self) -> u32 {
        if self.head >= self.head_written { self.head - self.head_written } else { self.head + self.entries - self.head_written }
    }

    fn give_back_now(&mut self) -> Option<(u16, bool)> {
        self.head_written = self.head;
        let value = self.head as u16;
        Some((value, self.head_bell.ring(&*self.mmio, value)))
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::entry::nvm;
    use crate::status::Status;
    use pci::DeviceAddress;
    use shm::{PageSize, Region};

    /// Registers that only remember, and memory that is its own address: enough for rings.
    #[derive(Default)]
    struct Fake([AtomicU32; 16]);

    impl Mmio for Fake {
        fn bytes(&self) -> usize {
            0x1000 + 64
        }
        fn read32(&self, at: usize) -> u32 {
            self.0[(at - 0x1000) / 4].load(Ordering::Acquire)
        }
        fn write32(&self, at: usize, value: u32) {
            self.0[(at - 0x1000) / 4].store(value, Ordering::Release);
        }
    }

    impl DmaSpace for Fake {
        fn allocate(&self, bytes: usize) -> Result<Arc<Region>, DmaError> {
            Ok(Arc::new(Region::private(bytes, PageSize::Small)?))
        }
        fn map(&self, _: &Arc<Region>) -> Result<DeviceAddress, DmaError> {
            Ok(DeviceAddress(1 << 20))
        }
        fn unmap(&self, _: &Arc<Region>, _: DeviceAddress) {}
        fn cut_off(&self) -> bool {
            true
        }
    }

    /// The device's side by hand, in another thread: takes commands behind the doorbell, answers each.
    fn device(mmio: &dyn Mmio, rings: &Region, entries: u32, commands: u32) {
        let (mut head, mut tail, mut phase) = (0, 0, true);
        for _ in 0..commands {
            while mmio.read32(submission_doorbell(1, 4)) == head {
                std::thread::yield_now();
            }
            let entry = Entry(std::array::from_fn(|word| rings.u64(head as usize * 64 + 8 * word).load(Ordering::Relaxed)));
            head = (head + 1) % entries;
            let answer = CompletionEntry::new(entry.dw(10), head as u16, 1, entry.cid(), Status::OK, phase);
            while (tail + 1) % entries == mmio.read32(completion_doorbell(1, 4)) {
                std::thread::yield_now();
            }
            let at = completions_at(entries) + tail as usize * 16;
            rings.u64(at).store(answer.0[0], Ordering::Relaxed);
            rings.u64(at + 8).store(answer.0[1], Ordering::Release);
            tail = (tail + 1) % entries;
            phase ^= tail == 0;
        }
    }

    #[test]
    fn rings_go_round_between_two_threads() {
        const COMMANDS: u32 = if cfg!(miri) { 20 } else { 2000 };
        for (entries, many) in [(2, false), (4, false), (16, false), (2, true), (4, true), (16, true)] {
            let fake = Arc::new(Fake::default());
            let (mmio, dma): (Arc<dyn Mmio>, Arc<dyn DmaSpace>) = (fake.clone(), fake);
            let mut pair = Pair::new(&mmio, &dma, (1, entries), 4, None).expect("memory");
            let rings = Arc::clone(pair.memory.region());
            std::thread::scope(|scope| {
                scope.spawn(|| device(&*mmio, &rings, entries, COMMANDS));
                let (mut sent, mut ended) = (0, 0);
                while ended < COMMANDS {
                    while sent < COMMANDS && sent - ended < entries - 1 - pair.owed() {
                        let entry = Entry::new(nvm::READ, 1).with_cid(sent as u16).with_dw(10, sent * 3);
                        assert_eq!(pair.push(&entry), sent % entries);
                        sent += 1;
                    }
                    if !pair.is_tail_written() {
                        assert_eq!(pair.ring(), ((sent % entries) as u16, true));
                    }
                    while let Some((place, answer)) = pair.pop() {
                        assert_eq!((place, answer.cid(), answer.result()), (ended % entries, ended as u16, ended * 3));
                        ended += 1;
                    }
                    if many {
                        pair.give_back_many();
                    } else {
                        pair.give_back();
                        assert_eq!(pair.head, pair.head_written);
                    }
                    std::thread::yield_now();
                }
            });
            assert!(!pair.has_answer());
        }
    }
}
