//! Memory that devices can access: arenas, which are registered with a queue once, and pieces of them.
//!
//! A device writes into memory at any time, so no code holds a reference to these bytes. A [`Span`] only names them, and callers
//! copy
//! them in and out, or access them by address at their own risk. Alignment and address translation are decided when the arena is
//! made
//! and registered, never for each request.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use shm::{PageSize, Region};

/// The unit of allocation and its alignment, in bytes.
pub const UNIT_BYTES: usize = 4096;

/// The number of an arena of this process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ArenaId(pub u32);

/// A named piece of an arena. It can be copied and does not express ownership.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Span {
    /// The arena that contains the piece.
    pub arena: ArenaId,
    /// The length of the piece in bytes.
    pub bytes: u32,
    /// The first byte, counted from the start of the arena.
    pub at: u64,
}

impl Span {
    /// Returns a part of the piece: `bytes` bytes from its byte `from` on.
    #[must_use]
    #[inline]
    pub fn part(self, from: u32, bytes: u32) -> Span {
        assert!(from <= self.bytes && bytes <= self.bytes - from, "{bytes} bytes at {from} of {self:?}");
        Span { arena: self.arena, bytes, at: self.at + u64::from(from) }
    }
}

/// Memory for many buffers. Clones refer to the same arena.
#[derive(Clone, Debug)]
pub struct Arena {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    id: ArenaId,
    region: Arc<Region>,
    units: Mutex<Units>,
}

impl Arena {
    /// Allocates zeroed memory that only this process maps, with huge pages if the kernel has free ones.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn private(bytes: usize) -> io::Result<Arena> {
        let pages = if bytes >= 2 << 20 { PageSize::HugeIfFree } else { PageSize::Small };
        Ok(Arena::over(Arc::new(Region::private(bytes, pages)?)))
    }

    /// Makes an arena over existing memory. Processes that share the memory have to agree on its use.
    pub fn over(region: Arc<Region>) -> Arena {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let units = Mutex::new(Units::new(region.len() / UNIT_BYTES));
        let id = ArenaId(NEXT.fetch_add(1, Ordering::Relaxed));
        Arena { inner: Arc::new(Inner { id, region, units }) }
    }

    /// Returns the number of the arena.
    pub fn id(&self) -> ArenaId {
        self.inner.id
    }

    /// Returns the memory of the arena.
    pub fn region(&self) -> &Arc<Region> {
        &self.inner.region
    }

    /// Names a piece of the arena, for callers that manage its memory themselves.
    #[inline]
    pub fn span(&self, at: usize, bytes: u32) -> Span {
        assert!(at <= self.inner.region.len() && bytes as usize <= self.inner.region.len() - at, "{bytes} bytes at {at}");
        Span { arena: self.inner.id, bytes, at: at as u64 }
    }

    /// Allocates a buffer of `bytes`; it occupies whole units of the arena. Returns `None` if no free piece is long enough. The
    /// buffer keeps the content of its last user.
    pub fn allocate(&self, bytes: usize) -> Option<Buf> {
        let units = bytes.div_ceil(UNIT_BYTES).max(1);
        let span_bytes = u32::try_from(bytes).ok()?;
        let first = self.inner.units.lock().take(units)?;
        Some(Buf { span: self.span(first * UNIT_BYTES, span_bytes), arena: self.clone() })
    }

    /// Returns the number of bytes that no buffer occupies.
    pub fn free_bytes(&self) -> usize {
        self.inner.units.lock().free * UNIT_BYTES
    }
}

/// A buffer with one owner, which returns to its arena when dropped.
#[derive(Debug)]
pub struct Buf {
    span: Span,
    arena: Arena,
}

impl Buf {
    /// Returns the span that names this buffer in requests.
    pub fn span(&self) -> Span {
        self.span
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.span.bytes as usize
    }

    /// Returns whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.span.bytes == 0
    }

    /// Returns the arena of the buffer.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Returns the address of the first byte.
    pub fn address(&self) -> *mut u8 {
        self.arena.region().address(self.at())
    }

    /// Copies bytes out, starting at byte `from` of the buffer.
    pub fn read(&self, from: usize, to: &mut [u8]) {
        self.check(from, to.len());
        self.arena.region().read(self.at() + from, to);
    }

    /// Copies bytes in, starting at byte `to` of the buffer.
    pub fn write(&self, to: usize, from: &[u8]) {
        self.check(to, from.len());
        self.arena.region().write(self.at() + to, from);
    }

    /// Returns a copy of the whole content.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.read(0, &mut bytes);
        bytes
    }

    fn at(&self) -> usize {
        usize::try_from(self.span.at).expect("a position in memory")
    }

    fn check(&self, at: usize, bytes: usize) {
        assert!(at <= self.len() && bytes <= self.len() - at, "{bytes} bytes at {at} of a buffer of {}", self.len());
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        let units = self.len().div_ceil(UNIT_BYTES).max(1);
        self.arena.inner.units.lock().give(self.at() / UNIT_BYTES, units);
    }
}

/// A bitmap of used units. Allocation is next fit: first fit from the end of the last allocation.
#[derive(Debug)]
struct Units {
    taken: Vec<bool>,
    free: usize,
    next: usize,
}

impl Units {
    fn new(units: usize) -> Units {
        Units { taken: vec![false; units], free: units, next: 0 }
    }

    fn take(&mut self, units: usize) -> Option<usize> {
        if units > self.free {
            return None;
        }
        let found = self.find(self.next, self.taken.len(), units).or_else(|| self.find(0, self.taken.len(), units))?;
        self.taken[found..found + units].fill(true);
        self.free -= units;
        self.next = found + units;
        Some(found)
    }

    fn find(&self, from: usize, to: usize, units: usize) -> Option<usize> {
        let mut run = 0;
        for at in from..to {
            run = if self.taken[at] { 0 } else { run + 1 };
            if run == units {
                return Some(at + 1 - units);
            }
        }
        None
    }

    fn give(&mut self, first: usize, units: usize) {
        let range = &mut self.taken[first..first + units];
        assert!(range.iter().all(|taken| *taken), "units {first}.. are given back twice");
        range.fill(false);
        self.free += units;
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn buffers_do_not_overlap_and_come_back() {
        let arena = Arena::private(16 * UNIT_BYTES).expect("memory");
        let mut held = Vec::new();
        let mut random = fastrand::Rng::with_seed(7);
        for round in 0..if cfg!(miri) { 50_u32 } else { 2_000 } {
            if random.bool()
                && let Some(buf) = arena.allocate(random.usize(1..3 * UNIT_BYTES))
            {
                buf.write(0, &vec![round.to_ne_bytes()[0]; buf.len()]);
                held.push((round.to_ne_bytes()[0], buf));
            } else if !held.is_empty() {
                let (byte, buf) = held.swap_remove(random.usize(..held.len()));
                assert!(buf.to_vec().iter().all(|found| *found == byte), "somebody else wrote into a buffer");
            }
        }
        held.clear();
        assert_eq!(arena.free_bytes(), 16 * UNIT_BYTES);
        assert!(arena.allocate(17 * UNIT_BYTES).is_none());
        assert!(arena.allocate(16 * UNIT_BYTES).is_some());
    }
}
