//! File numbers of the u calls: small numbers in a separate table, the lowest free one first, as in POSIX.
//!
//! Each slot holds an open file; several slots may hold the same one (udup). A call reads its slot without a lock and without writing to
//! shared memory (`hazard.rs`); closing a number waits until no thread reads the slot. So a call that may block, such as a read from a
//! pipe, takes a reference to the file instead (`Ufds::get`).
#![expect(unsafe_code, reason = "places hold what Arc::into_raw gave; a look keeps it there")]

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use parking_lot::Mutex;

use crate::hazard;

/// Maximum number of open ufds. Each open file also has a kernel descriptor, so RLIMIT_NOFILE is reached first, except with duplicates.
pub const UFDS_MAX: usize = 1 << 16;
const WORDS: usize = UFDS_MAX / 64;

/// The table of file numbers.
pub struct Ufds<T> {
    places: [AtomicPtr<T>; UFDS_MAX],
    taken: Mutex<UsedFds>,
}

/// A protected read of a slot, with its file.
pub struct FdGuard<'a, T> {
    file: &'a T,
    guard: hazard::ReadGuard,
}

impl<T> FdGuard<'_, T> {
    /// Returns the record of the reading thread.
    #[inline(always)]
    pub fn record(&self) -> &'static hazard::ThreadRecord {
        self.guard.record()
    }
}

impl<T> std::ops::Deref for FdGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.file
    }
}

/// The set of numbers in use.
struct UsedFds {
    bits: [u64; WORDS],
}

impl UsedFds {
    fn lowest_free(&self, from: usize) -> Option<usize> {
        let mut word = from / 64;
        let mut free = !*self.bits.get(word)? & (u64::MAX << (from % 64));
        while free == 0 {
            word += 1;
            free = !*self.bits.get(word)?;
        }
        Some(word * 64 + free.trailing_zeros() as usize)
    }

    fn set(&mut self, ufd: usize, taken: bool) {
        let bit = 1 << (ufd % 64);
        if taken { self.bits[ufd / 64] |= bit } else { self.bits[ufd / 64] &= !bit }
    }
}

/// All numbers are in use.
#[derive(Debug, PartialEq, Eq)]
pub struct TableFullError;

impl<T: Send + Sync + 'static> Ufds<T> {
    /// Creates a table in which all numbers are free.
    pub const fn new() -> Ufds<T> {
        Ufds { places: [const { AtomicPtr::new(std::ptr::null_mut()) }; UFDS_MAX], taken: Mutex::new(UsedFds { bits: [0; WORDS] }) }
    }

    #[inline(always)]
    fn place(&self, ufd: i32) -> Option<(u32, &AtomicPtr<T>)> {
        let number = u32::try_from(ufd).ok()?;
        Some((number, self.places.get(number as usize)?))
    }

    /// Assigns the lowest free number that is at least `from`.
    pub fn insert(&self, file: Arc<T>, from: usize) -> Result<i32, TableFullError> {
        let mut taken = self.taken.lock();
        let ufd = taken.lowest_free(from).ok_or(TableFullError)?;
        taken.set(ufd, true);
        self.places[ufd].store(Arc::into_raw(file).cast_mut(), Ordering::SeqCst);
        Ok(ufd as i32)
    }

    /// Assigns this number; the previous file is returned once no thread reads it. `Err`: invalid number.
    pub fn replace(&self, ufd: i32, file: Arc<T>) -> Result<Option<Arc<T>>, TableFullError> {
        let (number, place) = self.place(ufd).ok_or(TableFullError)?;
        let mut taken = self.taken.lock();
        taken.set(number as usize, true);
        let before = place.swap(Arc::into_raw(file).cast_mut(), Ordering::SeqCst);
        drop(taken);
        Ok(reclaim(number, before))
    }

    /// Frees a number. The file is returned once no thread reads it by this number.
    pub fn remove(&self, ufd: i32) -> Option<Arc<T>> {
        let (number, place) = self.place(ufd)?;
        let mut taken = self.taken.lock();
        let before = place.swap(std::ptr::null_mut(), Ordering::SeqCst);
        if before.is_null() {
            return None;
        }
        taken.set(number as usize, false);
        drop(taken);
        reclaim(number, before)
    }

    /// Starts a protected read of the file. The reader must not wait for other calls. `None`: not open, or no protection is available at
    /// the moment (`get` decides).
    #[inline(always)]
    pub fn guard(&self, ufd: i32) -> Option<FdGuard<'_, T>> {
        self.looked(ufd, hazard::protect)
    }

    /// Starts a protected read if no setup is needed ([`hazard::protect_fast`]).
    #[inline(always)]
    pub fn protect_fast(&self, ufd: i32) -> Option<FdGuard<'_, T>> {
        self.looked(ufd, hazard::protect_fast)
    }

    #[inline(always)]
    fn looked(&self, ufd: i32, guard: impl FnOnce(u32) -> Option<hazard::ReadGuard>) -> Option<FdGuard<'_, T>> {
        let (number, place) = self.place(ufd)?;
        let guard = guard(number)?;
        // SAFETY: a slot has NULL or a counted reference to a file, which is removed only after this read has ended.
        let file = unsafe { place.load(Ordering::Acquire).as_ref() }?;
        Some(FdGuard { file, guard })
    }

    /// Runs a call with the file if it is open.
    pub fn with<R>(&self, ufd: i32, call: impl FnOnce(&T) -> R) -> Option<R> {
        match self.guard(ufd) {
            Some(file) => Some(call(&file)),
            None => self.get(ufd).map(|file| call(&file)),
        }
    }

    /// Returns a reference to the file.
    pub fn get(&self, ufd: i32) -> Option<Arc<T>> {
        let (number, place) = self.place(ufd)?;
        let Some(_guard) = hazard::protect(number) else { return self.get_slowly(place) };
        share(place.load(Ordering::Acquire))
    }

    #[cold]
    #[inline(never)]
    fn get_slowly(&self, place: &AtomicPtr<T>) -> Option<Arc<T>> {
        let _taken = self.taken.lock();
        share(place.load(Ordering::Acquire))
    }

    /// Locks the table before a fork: no thread is in the middle of a change.
    pub fn hold(&self) {
        let _held = ManuallyDrop::new(self.taken.lock());
    }

    /// Unlocks the table after a fork, in parent and child.
    ///
    /// # Safety
    /// After `hold`, once in each process.
    pub unsafe fn let_go(&self) {
        // SAFETY: held since `hold`, by this thread or the one that this is the child of.
        unsafe { self.taken.force_unlock() }
    }

    /// Returns the numbers in use.
    pub fn open(&self) -> Vec<i32> {
        let taken = self.taken.lock();
        (0..UFDS_MAX).filter(|ufd| taken.bits[ufd / 64] >> (ufd % 64) & 1 == 1).map(|ufd| ufd as i32).collect()
    }
}

/// Returns one more reference to the file of a slot. The caller protects the slot, or holds the lock under which slots are emptied.
fn share<T>(file: *mut T) -> Option<Arc<T>> {
    if file.is_null() {
        return None;
    }
    // SAFETY: the place's own share is there as long as the caller looks or holds the lock.
    unsafe {
        Arc::increment_strong_count(file);
        Some(Arc::from_raw(file))
    }
}

fn reclaim<T>(number: u32, before: *mut T) -> Option<Arc<T>> {
    if before.is_null() {
        return None;
    }
    hazard::wait_for_readers(number);
    // SAFETY: it came from Arc::into_raw, was taken from its place once, and nobody looks at it by that place any more.
    Some(unsafe { Arc::from_raw(before) })
}

#[cfg(test)]
mod test {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    #[test]
    fn the_lowest_free_number_is_next() {
        static UFDS: Ufds<u32> = Ufds::new();
        let insert = |value| UFDS.insert(Arc::new(value), 0);
        assert_eq!((insert(10), insert(11), insert(12)), (Ok(0), Ok(1), Ok(2)));
        assert_eq!(UFDS.remove(1).as_deref(), Some(&11));
        assert_eq!((UFDS.remove(1), UFDS.remove(-1), UFDS.remove(i32::MAX)), (None, None, None));
        assert_eq!((insert(13), insert(14)), (Ok(1), Ok(3)));
        assert_eq!(UFDS.insert(Arc::new(15), 100), Ok(100));
        assert_eq!((UFDS.with(100, |value| *value), UFDS.with(99, |value| *value), UFDS.with(-1, |value| *value)), (Some(15), None, None));
        assert_eq!(UFDS.replace(1, Arc::new(16)), Ok(Some(Arc::new(13))));
        assert_eq!(UFDS.replace(7, Arc::new(17)), Ok(None));
        assert_eq!(UFDS.replace(UFDS_MAX as i32, Arc::new(0)), Err(TableFullError));
        assert_eq!(UFDS.open(), [0, 1, 2, 3, 7, 100]);
        assert_eq!(UFDS.insert(Arc::new(0), UFDS_MAX), Err(TableFullError));
    }

    #[test]
    fn a_look_within_a_look_is_answered() {
        static UFDS: Ufds<u32> = Ufds::new();
        let ufd = UFDS.insert(Arc::new(5), 0).expect("room");
        assert_eq!(UFDS.with(ufd, |outer| outer + UFDS.with(ufd, |inner| *inner).expect("open")), Some(10));
    }

    /// Alive until dropped; counts drops.
    struct Alive(AtomicBool, &'static AtomicU64);
    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.store(false, Ordering::SeqCst);
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn who_looks_never_sees_a_closed_file() {
        static UFDS: Ufds<Alive> = Ufds::new();
        static DROPPED: AtomicU64 = AtomicU64::new(0);
        static DONE: AtomicBool = AtomicBool::new(false);
        let rounds = 2000;
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !DONE.load(Ordering::SeqCst) {
                        UFDS.with(0, |file| assert!(file.0.load(Ordering::SeqCst), "dropped under a look"));
                        if let Some(file) = UFDS.get(0) {
                            assert!(file.0.load(Ordering::SeqCst));
                        }
                    }
                });
            }
            for round in 0..rounds {
                assert_eq!(UFDS.insert(Arc::new(Alive(AtomicBool::new(true), &DROPPED)), 0), Ok(0));
                if round % 2 == 0 {
                    let again = Arc::new(Alive(AtomicBool::new(true), &DROPPED));
                    assert!(matches!(UFDS.replace(0, again), Ok(Some(_))));
                }
                assert!(UFDS.remove(0).is_some());
            }
            DONE.store(true, Ordering::SeqCst);
        });
        assert_eq!(DROPPED.load(Ordering::SeqCst), rounds * 3 / 2);
    }
}
