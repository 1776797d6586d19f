//! A ring of fixed-width entries between two processes: one puts in, one takes out (single producer, single consumer).
//!
//! Neither trusts the other. Each keeps its own index in its own memory and only shows it to the other; what the other shows
//! is checked each time, and an entry is copied out once before anybody looks at it. A lie is [`RingError`], never more.
//!
//! Indexes run free (modulo 2^32) and are reduced to a slot by the power of two that is the ring's size:
//!
//! ```text
//!            head (consumer shows it)      tail (producer shows it)
//!              v                             v
//!    | free  | taken in order ------------> | free |          tail - head <= entries
//! ```
//!
//! *Sleeping.* A consumer that will sleep needs a wake-up. It raises its flag, then reads the tail once more; the
//! producer shows its tail, then looks at the flag. Both have a sequentially consistent fence in between, so at least one of
//! them sees what the other wrote: either the consumer finds the entry and stays awake, or the producer finds the flag and
//! rings. A wake-up is never lost; one that was not needed may happen. (Tested in every order of events, by loom.)

use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::region::Region;

/// Memory that both sides see. Something to test with can stand in for a [`Region`].
pub trait Memory {
    /// Four bytes that are read and written whole.
    type Word: Word;
    /// The word at a byte position, a multiple of four.
    fn word(&self, at: usize) -> &Self::Word;
    /// Copies out, each byte once. Position and length are multiples of eight in a [`Region`].
    fn read(&self, at: usize, to: &mut [u8]);
    /// Copies in.
    fn write(&self, at: usize, from: &[u8]);
    /// A sequentially consistent fence.
    fn fence();
}

/// An atomic of 32 bits.
pub trait Word {
    /// Reads it.
    fn load(&self, order: Ordering) -> u32;
    /// Writes it.
    fn store(&self, value: u32, order: Ordering);
}

impl Memory for Region {
    type Word = AtomicU32;
    #[inline]
    fn word(&self, at: usize) -> &AtomicU32 {
        self.u32(at)
    }
    /// By atomics of eight bytes, each read exactly once: a plain copy the compiler may leave out, and read twice what the other
    /// side changes in between.
    #[inline]
    fn read(&self, at: usize, to: &mut [u8]) {
        assert!(to.len().is_multiple_of(8), "{} bytes are no whole words", to.len());
        for (word, to) in to.as_chunks_mut().0.iter_mut().enumerate() {
            *to = self.u64(at + word * 8).load(Ordering::Relaxed).to_ne_bytes();
        }
    }
    #[inline]
    fn write(&self, at: usize, from: &[u8]) {
        assert!(from.len().is_multiple_of(8), "{} bytes are no whole words", from.len());
        for (word, from) in from.as_chunks().0.iter().enumerate() {
            self.u64(at + word * 8).store(u64::from_ne_bytes(*from), Ordering::Relaxed);
        }
    }
    #[inline]
    fn fence() {
        fence(Ordering::SeqCst);
    }
}

impl Word for AtomicU32 {
    fn load(&self, order: Ordering) -> u32 {
        AtomicU32::load(self, order)
    }
    fn store(&self, value: u32, order: Ordering) {
        AtomicU32::store(self, value, order);
    }
}

/// Where a ring lies in its memory, in bytes. Best with a cache line for each of the three words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingLayout {
    /// Where the producer's index is.
    pub tail_at: usize,
    /// Where the consumer's index is.
    pub head_at: usize,
    /// Where the consumer's flag is: 1 while it needs a wake-up.
    pub asleep_at: usize,
    /// Where the first entry is.
    pub entries_at: usize,
    /// The size of each entry in bytes.
    pub entry_bytes: usize,
    /// How many: a power of two.
    pub entries: u32,
}

impl RingLayout {
    fn check(&self) {
        assert!(self.entries.is_power_of_two() && self.entries <= 1 << 30, "{} entries", self.entries);
    }

    #[inline]
    fn slot(&self, index: u32) -> u32 {
        index & (self.entries - 1)
    }

    #[inline]
    fn entry_at(&self, index: u32) -> usize {
        self.entries_at + self.slot(index) as usize * self.entry_bytes
    }
}

/// The other side shows an index that cannot be: nothing in the ring means anything any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingError;

impl std::fmt::Display for RingError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the other side of a shared ring shows an index that cannot be")
    }
}

impl std::error::Error for RingError {}

/// The side that puts in.
#[derive(Debug)]
pub struct Producer<M> {
    memory: M,
    place: RingLayout,
    tail: u32,
    shown: u32,
    head_seen: u32,
}

impl<R: std::ops::Deref<Target: Memory>> Producer<R> {
    /// Of a ring that is all zero.
    pub fn new(memory: R, place: RingLayout) -> Producer<R> {
        place.check();
        Producer { memory, place, tail: 0, shown: 0, head_seen: 0 }
    }

    /// Entries that still fit.
    ///
    /// # Errors
    /// The consumer lies.
    #[inline]
    pub fn room(&mut self) -> Result<u32, RingError> {
        let head = self.memory.word(self.place.head_at).load(Ordering::Acquire);
        let used = self.tail.wrapping_sub(head);
        // Between what was seen last and the tail; it never goes back.
        if used > self.tail.wrapping_sub(self.head_seen) {
            return Err(RingError);
        }
        self.head_seen = head;
        Ok(self.place.entries - used)
    }

    /// Whether so many entries fit. Looks at the consumer's index only when they did not when that was seen last.
    ///
    /// # Errors
    /// The consumer lies.
    #[inline]
    pub fn has_room_for(&mut self, count: u32) -> Result<bool, RingError> {
        let seen = self.place.entries - self.tail.wrapping_sub(self.head_seen);
        Ok(seen >= count || self.room()? >= count)
    }

    /// Whether an entry fits. Looks at the consumer's index only when it did not when that was seen last.
    ///
    /// # Errors
    /// The consumer lies.
    #[inline]
    pub fn has_room(&mut self) -> Result<bool, RingError> {
        self.has_room_for(1)
    }

    /// Puts an entry in; the consumer sees it after [`Producer::show`]. False: there is no room.
    ///
    /// # Errors
    /// The consumer lies.
    #[inline]
    pub fn push(&mut self, entry: &[u8]) -> Result<bool, RingError> {
        assert_eq!(entry.len(), self.place.entry_bytes, "an entry of another size");
        if !self.has_room()? {
            return Ok(false);
        }
        self.memory.write(self.place.entry_at(self.tail), entry);
        self.tail = self.tail.wrapping_add(1);
        Ok(true)
    }

    /// The slot that the next entry will have, for what belongs to an entry but lies elsewhere.
    #[inline]
    pub fn next_slot(&self) -> u32 {
        self.place.slot(self.tail)
    }

    /// Publishes the new entries to the consumer. True: it sleeps and has to be woken.
    #[inline]
    pub fn show(&mut self) -> bool {
        if self.shown == self.tail {
            return false;
        }
        self.memory.word(self.place.tail_at).store(self.tail, Ordering::Release);
        self.shown = self.tail;
        self.is_asleep()
    }

    /// Reports once whether the consumer needs a wake-up, which the caller then has to give.
    #[inline]
    pub fn is_asleep(&mut self) -> bool {
        <R::Target as Memory>::fence();
        let flag = self.memory.word(self.place.asleep_at);
        // A store may hide a flag that was raised again meanwhile; the wake-up that follows covers it.
        let asleep = flag.load(Ordering::Relaxed) != 0;
        if asleep {
            flag.store(0, Ordering::Relaxed);
        }
        asleep
    }
}

/// The side that takes out.
#[derive(Debug)]
pub struct Consumer<M> {
    memory: M,
    place: RingLayout,
    head: u32,
    shown: u32,
    tail_seen: u32,
}

impl<R: std::ops::Deref<Target: Memory>> Consumer<R> {
    /// Of a ring that is all zero.
    pub fn new(memory: R, place: RingLayout) -> Consumer<R> {
        place.check();
        Consumer { memory, place, head: 0, shown: 0, tail_seen: 0 }
    }

    /// Entries to take, after a look at the producer's index.
    ///
    /// # Errors
    /// The producer lies.
    #[inline]
    pub fn look(&mut self) -> Result<u32, RingError> {
        let tail = self.memory.word(self.place.tail_at).load(Ordering::Acquire);
        let waiting = tail.wrapping_sub(self.head);
        let seen = self.tail_seen.wrapping_sub(self.head);
        if waiting > self.place.entries || waiting < seen {
            return Err(RingError);
        }
        self.tail_seen = tail;
        Ok(waiting)
    }

    /// Copies the next entry out, if there is one. Looks at the producer's index only when all that was seen is taken.
    ///
    /// # Errors
    /// The producer lies.
    #[inline]
    pub fn take(&mut self, entry: &mut [u8]) -> Result<bool, RingError> {
        assert_eq!(entry.len(), self.place.entry_bytes, "an entry of another size");
        if self.head == self.tail_seen && self.look()? == 0 {
            return Ok(false);
        }
        self.memory.read(self.place.entry_at(self.head), entry);
        self.head = self.head.wrapping_add(1);
        Ok(true)
    }

    /// The slot of the entry that was taken last; it is ours until [`Consumer::show`].
    #[inline]
    pub fn last_slot(&self) -> u32 {
        self.place.slot(self.head.wrapping_sub(1))
    }

    /// Gives the producer the places of what was taken.
    #[inline]
    pub fn show(&mut self) {
        if self.shown != self.head {
            self.memory.word(self.place.head_at).store(self.head, Ordering::Release);
            self.shown = self.head;
        }
    }

    /// Takes everything without looking at it.
    ///
    /// # Errors
    /// The producer lies.
    pub fn discard(&mut self) -> Result<(), RingError> {
        self.look()?;
        self.head = self.tail_seen;
        self.show();
        Ok(())
    }

    /// Requests a wake-up at the next entry. False: there are entries already, and no wake-up will come for them.
    ///
    /// # Errors
    /// The producer lies.
    pub fn sleep(&mut self) -> Result<bool, RingError> {
        self.memory.word(self.place.asleep_at).store(1, Ordering::Relaxed);
        <R::Target as Memory>::fence();
        let empty = self.look()? == 0;
        if !empty {
            self.wake();
        }
        Ok(empty)
    }

    /// Withdraws the request for a wake-up.
    pub fn wake(&mut self) {
        self.memory.word(self.place.asleep_at).store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::PageSize;
    use std::sync::Arc;

    fn place(entries: u32) -> RingLayout {
        RingLayout { tail_at: 0, head_at: 64, asleep_at: 68, entries_at: 128, entry_bytes: 8, entries }
    }

    fn ring(entries: u32) -> (Arc<Region>, Producer<Arc<Region>>, Consumer<Arc<Region>>) {
        let region = Arc::new(Region::private(4096, PageSize::Small).expect("memory"));
        (region.clone(), Producer::new(region.clone(), place(entries)), Consumer::new(region, place(entries)))
    }

    #[test]
    fn entries_come_out_in_order_across_the_end_of_the_ring_and_of_the_numbers() {
        let (region, mut producer, mut consumer) = ring(4);
        let near_the_end = u32::MAX - 5;
        region.u32(0).store(near_the_end, Ordering::Relaxed);
        region.u32(64).store(near_the_end, Ordering::Relaxed);
        (producer.tail, producer.shown, producer.head_seen) = (near_the_end, near_the_end, near_the_end);
        (consumer.head, consumer.shown, consumer.tail_seen) = (near_the_end, near_the_end, near_the_end);
        let (mut sent, mut received) = (0_u64, 0_u64);
        let mut random = fastrand::Rng::with_seed(3);
        while received < 1_000 {
            if random.bool() {
                while producer.push(&sent.to_le_bytes()).expect("honest") {
                    sent += 1;
                }
                assert_eq!(sent - received, 4, "full means full");
                assert!(!producer.show(), "nobody sleeps");
            }
            let mut entry = [0; 8];
            for _ in 0..random.u32(0..6) {
                if consumer.take(&mut entry).expect("honest") {
                    assert_eq!(u64::from_le_bytes(entry), received);
                    received += 1;
                }
            }
            consumer.show();
        }
    }

    #[test]
    fn lies_about_indexes_are_found() {
        let (region, mut producer, mut consumer) = ring(4);
        for lie in [5, u32::MAX - 1, 1 << 31] {
            region.u32(0).store(lie, Ordering::Relaxed);
            assert_eq!(consumer.look(), Err(RingError), "tail {lie}");
            region.u32(64).store(lie, Ordering::Relaxed);
            assert_eq!(producer.room(), Err(RingError), "head {lie}");
        }
        region.u32(0).store(3, Ordering::Relaxed);
        assert_eq!(consumer.look(), Ok(3));
        region.u32(0).store(2, Ordering::Relaxed);
        assert_eq!(consumer.look(), Err(RingError), "a tail that goes back");
    }

    #[test]
    fn two_threads_that_sleep_lose_nothing() {
        let (_, mut producer, mut consumer) = ring(8);
        let count = if cfg!(miri) { 200 } else { 50_000_u64 };
        let (notifier, heard) = std::sync::mpsc::channel();
        let sender = std::thread::spawn(move || {
            for value in 0..count {
                while !producer.push(&value.to_le_bytes()).expect("honest") {
                    std::thread::yield_now();
                }
                if producer.show() {
                    notifier.send(()).expect("the other lives");
                }
            }
        });
        let mut entry = [0; 8];
        for wanted in 0..count {
            while !consumer.take(&mut entry).expect("honest") {
                if consumer.sleep().expect("honest") {
                    heard.recv().expect("a bell");
                }
            }
            assert_eq!(u64::from_le_bytes(entry), wanted);
            consumer.show();
        }
        sender.join().expect("no panic");
    }

    /// Every order of events of a short exchange. The wake-up is a mutex and a condition: a lost one is a deadlock, which loom reports.
    #[cfg(not(miri))]
    mod every_order {
        use super::*;
        use loom::sync::atomic::{AtomicU32 as LoomU32, fence as loom_fence};
        use loom::sync::{Arc as LoomArc, Condvar, Mutex};

        struct LoomWords(Vec<LoomU32>);

        impl LoomWords {
            fn new(count: usize) -> LoomWords {
                LoomWords((0..count).map(|_| LoomU32::new(0)).collect())
            }
        }

        impl Word for LoomU32 {
            fn load(&self, order: Ordering) -> u32 {
                LoomU32::load(self, order)
            }
            fn store(&self, value: u32, order: Ordering) {
                LoomU32::store(self, value, order);
            }
        }

        /// Entries are relaxed atomics: one that is not ordered by the indexes reads as an old one.
        impl Memory for LoomWords {
            type Word = LoomU32;
            fn word(&self, at: usize) -> &LoomU32 {
                &self.0[at / 4]
            }
            fn read(&self, at: usize, to: &mut [u8]) {
                to.copy_from_slice(&self.0[at / 4].load(Ordering::Relaxed).to_le_bytes());
            }
            fn write(&self, at: usize, from: &[u8]) {
                self.0[at / 4].store(u32::from_le_bytes(from.try_into().expect("four bytes")), Ordering::Relaxed);
            }
            fn fence() {
                loom_fence(Ordering::SeqCst);
            }
        }

        fn explore(entries: u32, values: u32) {
            let mut model = loom::model::Builder::new();
            model.preemption_bound = Some(3);
            model.check(move || {
                let words = LoomArc::new(LoomWords::new(3 + entries as usize));
                let place = RingLayout { tail_at: 0, head_at: 4, asleep_at: 8, entries_at: 12, entry_bytes: 4, entries };
                let notifier = LoomArc::new((Mutex::new(false), Condvar::new()));
                let mut producer = Producer::new(words.clone(), place);
                let mut consumer = Consumer::new(words, place);
                let ring = notifier.clone();
                let sender = loom::thread::spawn(move || {
                    for value in 1..=values {
                        while !producer.push(&value.to_le_bytes()).expect("honest") {
                            loom::thread::yield_now();
                        }
                        if producer.show() {
                            *ring.0.lock().expect("no panic") = true;
                            ring.1.notify_one();
                        }
                    }
                });
                let mut entry = [0; 4];
                for wanted in 1..=values {
                    while !consumer.take(&mut entry).expect("honest") {
                        if consumer.sleep().expect("honest") {
                            let mut rung = notifier.0.lock().expect("no panic");
                            while !*rung {
                                rung = notifier.1.wait(rung).expect("no panic");
                            }
                            *rung = false;
                        }
                    }
                    assert_eq!(u32::from_le_bytes(entry), wanted);
                    consumer.show();
                }
                sender.join().expect("no panic");
            });
        }

        #[test]
        fn no_wake_up_is_lost_and_no_entry_is_read_before_it_is_there() {
            explore(2, 2);
        }

        #[test]
        fn a_place_is_not_written_before_it_is_free() {
            explore(1, 2);
        }
    }
}
