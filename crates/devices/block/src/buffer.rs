//! Memory that devices reach: arenas, registered with a queue once, and pieces of them.
//!
//! A device writes into memory at its own time, so nobody holds a reference to these bytes: a [`Span`] only names them, and
//! they are copied in and out (or looked at by address, at the caller's risk). Alignment and translation are decided when the
//! arena is made and registered, never on the path of a request.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use shm::{PageSize, Region};

/// Allocation is in units of this many bytes, and so is alignment.
pub const UNIT_BYTES: usize = 4096;

/// An arena of this process, by number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ArenaId(pub u32);

/// A piece of an arena, by name. Copied freely; says nothing of who may use it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Span {
    /// Whose.
    pub arena: ArenaId,
    /// Length.
    pub bytes: u32,
    /// First byte, from the arena's begin.
    pub at: u64,
}

impl Span {
    /// A part of it: `bytes` from its byte `from` on.
    #[must_use]
    #[inline]
    pub fn part(self, from: u32, bytes: u32) -> Span {
        assert!(from <= self.bytes && bytes <= self.bytes - from, "{bytes} bytes at {from} of {self:?}");
        Span { arena: self.arena, bytes, at: self.at + u64::from(from) }
    }
}

/// Memory for many buffers. Clones are the same arena.
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
    /// Memory of this process alone, zeroed, of huge pages where the kernel has them free.
    ///
    /// # Errors
    /// No memory.
    pub fn private(bytes: usize) -> io::Result<Arena> {
        let pages = if bytes >= 2 << 20 { PageSize::HugeIfFree } else { PageSize::Small };
        Ok(Arena::over(Arc::new(Region::private(bytes, pages)?)))
    }

    /// Over memory that is there. Whoever shares it agrees with us on who uses which part.
    pub fn over(region: Arc<Region>) -> Arena {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let units = Mutex::new(Units::new(region.len() / UNIT_BYTES));
        let id = ArenaId(NEXT.fetch_add(1, Ordering::Relaxed));
        Arena { inner: Arc::new(Inner { id, region, units }) }
    }

    /// Its number.
    pub fn id(&self) -> ArenaId {
        self.inner.id
    }

    /// The memory itself.
    pub fn region(&self) -> &Arc<Region> {
        &self.inner.region
    }

    /// Names a piece, for those who keep their own books of the arena.
    #[inline]
    pub fn span(&self, at: usize, bytes: u32) -> Span {
        assert!(at <= self.inner.region.len() && bytes as usize <= self.inner.region.len() - at, "{bytes} bytes at {at}");
        Span { arena: self.inner.id, bytes, at: at as u64 }
    }

    /// A buffer of `bytes`, rounded up to whole units in the arena; none when no piece is long enough. Its content is what
    /// the last user left.
    pub fn allocate(&self, bytes: usize) -> Option<Buf> {
        let units = bytes.div_ceil(UNIT_BYTES).max(1);
        let span_bytes = u32::try_from(bytes).ok()?;
        let first = self.inner.units.lock().take(units)?;
        Some(Buf { span: self.span(first * UNIT_BYTES, span_bytes), arena: self.clone() })
    }

    /// Bytes no buffer has.
    pub fn free_bytes(&self) -> usize {
        self.inner.units.lock().free * UNIT_BYTES
    }
}

/// A buffer of one owner, given back to its arena when dropped.
#[derive(Debug)]
pub struct Buf {
    span: Span,
    arena: Arena,
}

impl Buf {
    /// Its name, for requests.
    pub fn span(&self) -> Span {
        self.span
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.span.bytes as usize
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.span.bytes == 0
    }

    /// Where it comes from.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Its first byte's address.
    pub fn address(&self) -> *mut u8 {
        self.arena.region().address(self.at())
    }

    /// Copies out, from its byte `from` on.
    pub fn read(&self, from: usize, to: &mut [u8]) {
        self.check(from, to.len());
        self.arena.region().read(self.at() + from, to);
    }

    /// Copies in, from its byte `to` on.
    pub fn write(&self, to: usize, from: &[u8]) {
        self.check(to, from.len());
        self.arena.region().write(self.at() + to, from);
    }

    /// Everything in it.
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

/// Which units are taken. First fit from where the last one was found.
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
