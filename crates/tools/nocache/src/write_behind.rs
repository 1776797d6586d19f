//! Writes in flight, as with little memory: the most recent bytes, up to a limit, stay in memory while the device writes them in parallel.
//! Only with a limit; without one each call waits for its own data.
//!
//! A ring in fixed memory holds them in order of arrival. The write that exceeds the limit waits for the oldest one and evicts it. A slot
//! whose writer never finished it (a child of a fork in between) blocks the ring; then each call waits for its own data.

use core::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use libc::c_int;

use crate::byte_range::{ByteRange, write_out};
use crate::files::{self, File};
use crate::{config, sys};

const PAGE: u64 = 4096;
/// Maximum number of writes in flight, a power of two.
const PLACES: usize = 1 << 15;

/// One write in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PendingWrite {
    fd: c_int,
    /// Range in whole pages.
    range: ByteRange,
}

impl PendingWrite {
    fn bytes(self) -> u64 {
        self.range.to - self.range.from
    }
}

struct RingSlot {
    /// Twice the number of uses of the slot; one more while it is in use.
    sequence: AtomicUsize,
    fd: AtomicI32,
    from: AtomicU64,
    to: AtomicU64,
}

impl RingSlot {
    const fn new() -> Self {
        Self { sequence: AtomicUsize::new(0), fd: AtomicI32::new(0), from: AtomicU64::new(0), to: AtomicU64::new(0) }
    }
}

/// A lock-free FIFO for any number of threads.
struct WriteRing<const N: usize> {
    slots: [RingSlot; N],
    head: AtomicUsize,
    tail: AtomicUsize,
    bytes: AtomicU64,
}

impl<const N: usize> WriteRing<N> {
    const fn new() -> Self {
        Self { slots: [const { RingSlot::new() }; N], head: AtomicUsize::new(0), tail: AtomicUsize::new(0), bytes: AtomicU64::new(0) }
    }

    /// Returns the slot at `at`, claimed by advancing `end`, if its sequence number matches.
    fn claim(&self, end: &AtomicUsize, sequence: usize) -> Option<(&RingSlot, usize)> {
        let mut at = end.load(Ordering::Relaxed);
        loop {
            let place = self.slots.get(at % N)?;
            let wanted = (at / N).wrapping_mul(2).wrapping_add(sequence);
            if place.sequence.load(Ordering::Acquire) != wanted {
                let now = end.load(Ordering::Relaxed);
                if now == at {
                    return None;
                }
                at = now;
                continue;
            }
            match end.compare_exchange_weak(at, at.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some((place, wanted)),
                Err(now) => at = now,
            }
        }
    }

    /// Appends a write; returns the total bytes. `None`: the ring is full.
    fn push(&self, write: PendingWrite) -> Option<u64> {
        let (place, sequence) = self.claim(&self.tail, 0)?;
        place.fd.store(write.fd, Ordering::Relaxed);
        place.from.store(write.range.from, Ordering::Relaxed);
        place.to.store(write.range.to, Ordering::Relaxed);
        // Counted before it can be removed: the total never becomes negative.
        let bytes = self.bytes.fetch_add(write.bytes(), Ordering::Relaxed) + write.bytes();
        place.sequence.store(sequence.wrapping_add(1), Ordering::Release);
        Some(bytes)
    }

    /// Removes the oldest write; returns it and the remaining bytes.
    fn pop(&self) -> Option<(PendingWrite, u64)> {
        let (place, sequence) = self.claim(&self.head, 1)?;
        let range = ByteRange { from: place.from.load(Ordering::Relaxed), to: place.to.load(Ordering::Relaxed) };
        let write = PendingWrite { fd: place.fd.load(Ordering::Relaxed), range };
        place.sequence.store(sequence.wrapping_add(1), Ordering::Release);
        Some((write, self.bytes.fetch_sub(write.bytes(), Ordering::Relaxed) - write.bytes()))
    }
}

static RING: WriteRing<PLACES> = WriteRing::new();

/// Returns whether writes may be in flight when their call returns.
pub fn is_on() -> bool {
    limit() > 0
}

fn limit() -> u64 {
    config::chosen().map_or(0, |config| config.write_cache)
}

/// Takes a completed write call. `false`: the caller must write back and evict.
pub fn take(file: File, range: ByteRange) -> bool {
    let limit = limit();
    if limit == 0 || file.is_whole() {
        return false;
    }
    let range = ByteRange { from: range.from / PAGE * PAGE, to: range.to.div_ceil(PAGE).saturating_mul(PAGE) };
    let write = PendingWrite { fd: file.fd, range };
    let pushed = RING.push(write).or_else(|| {
        RING.pop().into_iter().for_each(|(oldest, _)| settle(oldest));
        RING.push(write)
    });
    let Some(mut bytes) = pushed else { return false };
    // A quarter of the limit at once lets the device reorder.
    if file.has_written(write.bytes(), limit / 4) {
        let _ = sys::begin_writing(file.fd, 0, 0);
    }
    while bytes > limit {
        let Some((oldest, left)) = RING.pop() else { break };
        settle(oldest);
        bytes = left;
    }
    true
}

/// Waits for a write and evicts it. A closed file was already waited for.
fn settle(write: PendingWrite) {
    if let Some(file) = files::used(write.fd) {
        write_out(file, write.range);
        let _ = sys::drop_pages(file.fd, write.range.from, write.bytes());
    }
}

#[cfg(test)]
mod test {
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::{ByteRange, PendingWrite, WriteRing};

    fn write(n: u64) -> PendingWrite {
        PendingWrite { fd: n as i32, range: ByteRange { from: n * 4096, to: n * 4096 + 4096 * (1 + n % 3) } }
    }

    #[test]
    fn a_ring_is_a_queue_with_a_bound() {
        let (ring, mut model) = (WriteRing::<8>::new(), VecDeque::new());
        let mut sum = 0;
        for n in 0..1000 {
            // A pattern that fills and empties the ring and wraps around.
            if (n / 13) % 2 == 0 {
                let pushed = ring.push(write(n));
                assert_eq!(pushed.is_some(), model.len() < 8);
                if let Some(bytes) = pushed {
                    model.push_back(write(n));
                    sum += write(n).bytes();
                    assert_eq!(bytes, sum);
                }
            } else {
                let popped = ring.pop();
                assert_eq!(popped.map(|(one, _)| one), model.pop_front());
                sum -= popped.map_or(0, |(one, _)| one.bytes());
                assert_eq!(popped.map_or(sum, |(_, left)| left), sum);
            }
        }
    }

    #[test]
    fn what_many_push_many_pop_once() {
        const EACH: u64 = 2000;
        let (ring, sum, count) = (WriteRing::<64>::new(), AtomicU64::new(0), AtomicU64::new(0));
        let take = || {
            if let Some((one, _)) = ring.pop() {
                sum.fetch_add(one.range.from / 4096, Ordering::Relaxed);
                count.fetch_add(1, Ordering::Relaxed);
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (ring, take) = (&ring, &take);
                scope.spawn(move || {
                    for n in 0..EACH {
                        while ring.push(write(thread * EACH + n)).is_none() {
                            take();
                        }
                    }
                });
            }
        });
        while count.load(Ordering::Relaxed) < 3 * EACH {
            take();
        }
        assert_eq!(sum.load(Ordering::Relaxed), (0..3 * EACH).sum());
        assert!(ring.pop().is_none() && ring.bytes.load(Ordering::Relaxed) == 0);
    }
}
