//! A stretch of a region as an array of atomics, whose place is checked once.
//!
//! [`Region::u64`] checks range and alignment at each call; on paths of some ten nanoseconds that shows. Here both are checked
//! when the array is made, and an index costs what it costs in a slice: one comparison.
#![expect(unsafe_code, reason = "views mapped memory as a slice of atomics")]

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::Region;

/// What shared memory may be looked at as by reference: atomics, and arrays of them.
///
/// # Safety
/// Any bytes must be a value, and every change through a shared reference must be atomic.
pub unsafe trait SharedValue {}

// SAFETY: any four bytes are one; it changes atomically only.
unsafe impl SharedValue for AtomicU32 {}
// SAFETY: any eight bytes are one; it changes atomically only.
unsafe impl SharedValue for AtomicU64 {}
// SAFETY: nothing but its elements, without padding.
unsafe impl<W: SharedValue, const N: usize> SharedValue for [W; N] {}

/// An array of atomics in a region, which it keeps alive.
pub struct SharedSlice<W: SharedValue> {
    first: NonNull<W>,
    len: usize,
    region: Arc<Region>,
}

// SAFETY: it gives out shared references to atomics only, of memory that any thread may reach.
unsafe impl<W: SharedValue> Send for SharedSlice<W> {}
// SAFETY: as above.
unsafe impl<W: SharedValue> Sync for SharedSlice<W> {}

impl<W: SharedValue> SharedSlice<W> {
    /// `len` elements from byte `at` on. Out of range or not aligned is our own mistake: panics.
    pub fn new(region: &Arc<Region>, at: usize, len: usize) -> SharedSlice<W> {
        let bytes = len.checked_mul(size_of::<W>()).expect("an array within the address space");
        assert!(at <= region.len() && bytes <= region.len() - at, "{bytes} bytes at {at} of a region of {} bytes", region.len());
        let first = region.address(at);
        assert!((first as usize).is_multiple_of(align_of::<W>()), "byte {at} is no place for such words");
        SharedSlice { first: NonNull::new(first.cast()).expect("a mapping is never at address 0"), len, region: region.clone() }
    }

    /// The memory they are in.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Returns an element that will be read soon, and prefetches its cache line. None: the index is out of range.
    #[inline(always)]
    pub fn prefetch(&self, no: usize) -> Option<&W> {
        let word = self.get(no)?;
        crate::region::prefetch_line(std::ptr::from_ref(word).cast());
        Some(word)
    }
}

impl<W: SharedValue> Clone for SharedSlice<W> {
    fn clone(&self) -> SharedSlice<W> {
        SharedSlice { first: self.first, len: self.len, region: Arc::clone(&self.region) }
    }
}

impl<W: SharedValue> Deref for SharedSlice<W> {
    type Target = [W];

    #[inline(always)]
    fn deref(&self) -> &[W] {
        // SAFETY: in range and aligned (checked by `new`), mapped while `self.region` lives; others that change it are other
        // processes or atomics of this one. Copies by `Region` over the same bytes give bytes of no meaning at worst.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

/// One element, which needs no index.
pub struct SharedRef<W: SharedValue>(SharedSlice<W>);

impl<W: SharedValue> Clone for SharedRef<W> {
    fn clone(&self) -> SharedRef<W> {
        SharedRef(self.0.clone())
    }
}

impl<W: SharedValue> SharedRef<W> {
    /// At byte `at`, as [`SharedSlice::new`].
    pub fn new(region: &Arc<Region>, at: usize) -> SharedRef<W> {
        SharedRef(SharedSlice::new(region, at, 1))
    }

    /// The memory it is in.
    pub fn region(&self) -> &Arc<Region> {
        self.0.region()
    }
}

impl<W: SharedValue> Deref for SharedRef<W> {
    type Target = W;

    #[inline(always)]
    fn deref(&self) -> &W {
        // SAFETY: as for `SharedSlice`, which has this one element.
        unsafe { self.0.first.as_ref() }
    }
}

impl<W: SharedValue> fmt::Debug for SharedRef<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedRef({} bytes)", size_of::<W>())
    }
}

impl<W: SharedValue> fmt::Debug for SharedSlice<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Words({} of {} bytes)", self.len, size_of::<W>())
    }
}

#[cfg(test)]
mod test {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::PageSize;

    fn region() -> Arc<Region> {
        Arc::new(Region::private(4096, PageSize::Small).expect("memory"))
    }

    #[test]
    fn they_are_the_region_s_bytes() {
        let region = region();
        let records = SharedSlice::<[AtomicU64; 8]>::new(&region, 64, 63);
        records[62][7].store(5, Ordering::Relaxed);
        assert_eq!(region.u64(4088).load(Ordering::Relaxed), 5);
        assert_eq!(SharedRef::<[AtomicU64; 8]>::new(&region, 64 + 62 * 64)[7].load(Ordering::Relaxed), 5);
        assert_eq!(records.prefetch(62).map(|record| record[7].load(Ordering::Relaxed)), Some(5));
        assert!(records.prefetch(63).is_none());
        assert_eq!((records.len(), SharedSlice::<AtomicU32>::new(&region, 4096, 0).len()), (63, 0));
    }

    #[test]
    #[should_panic(expected = "of a region of 4096 bytes")]
    fn beyond_the_end_is_our_own_mistake() {
        SharedSlice::<AtomicU64>::new(&region(), 8, 512);
    }

    #[test]
    #[should_panic(expected = "no place for such words")]
    fn so_is_what_is_not_aligned() {
        SharedSlice::<AtomicU64>::new(&region(), 4, 1);
    }
}
