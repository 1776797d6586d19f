//! The table behind the opaque pointers of the C interface, which are numbers, never addresses.
//!
//! A number has a slot and a generation, so a closed or invalid handle is detected without accessing freed memory. No lock: a call counts
//! itself in and out of its slot.
//!
//! ```text
//! insert          close: CLOSING          the last one out
//! Free ----> Open ---------------> Closing ----------------> Free, next generation
//! ```
#![expect(unsafe_code, reason = "slots are read by many and emptied by one; the state of a place says which")]

use std::cell::UnsafeCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Maximum number of objects.
const SLOTS: usize = 1 << 14;

/// The low bits count calls inside.
const USERS: u64 = (1 << 24) - 1;
const OPEN: u64 = 1 << 24;
const CLOSING: u64 = 1 << 25;
/// A call panicked inside.
const POISONED: u64 = 1 << 26;
const GENERATION: u32 = 32;

/// A lock-free table of objects with generations.
pub struct Table<T> {
    slots: OnceLock<Box<[TableSlot<T>]>>,
    free: Mutex<Option<Vec<u32>>>,
}

struct TableSlot<T> {
    state: AtomicU64,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: `value` is written only by the thread that owns the slot (`insert`: it is not open; `leave`: it has won the closing and
// nobody is inside), and read only by those counted in while it is open. The state's orderings carry the value between them.
unsafe impl<T: Send + Sync> Sync for TableSlot<T> {}

/// The reason why a lookup failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LookupError {
    /// The number is unknown or closed.
    Unknown,
    /// An earlier call on it panicked.
    Poisoned,
}

impl<T: Send + Sync + 'static> Table<T> {
    /// Creates an empty table; it allocates memory at its first use.
    pub const fn new() -> Table<T> {
        Table { slots: OnceLock::new(), free: Mutex::new(None) }
    }

    fn slots(&self) -> &[TableSlot<T>] {
        self.slots.get_or_init(|| (0..SLOTS).map(|_| TableSlot { state: AtomicU64::new(0), value: UnsafeCell::new(None) }).collect())
    }

    /// Inserts an object and returns its number, never 0. `Err`: the table is full; the object is returned.
    pub fn insert(&self, value: T) -> Result<usize, T> {
        let mut free = self.free.lock();
        let list = free.get_or_insert_with(|| (0..SLOTS as u32).rev().collect());
        let Some(index) = list.pop() else { return Err(value) };
        drop(free);
        let place = &self.slots()[index as usize];
        // SAFETY: the place came from the list of free ones, and is not open: nobody else reads or writes it.
        unsafe { *place.value.get() = Some(value) };
        let before = place.state.fetch_or(OPEN, Ordering::Release);
        Ok(number(index, before >> GENERATION))
    }

    /// Enters a call, until the guard is dropped.
    pub fn enter(&'static self, number: usize) -> Result<TableGuard<T>, LookupError> {
        let inside = self.enter_any(number)?;
        let poisoned = inside.place().state.load(Ordering::Relaxed) & POISONED != 0;
        if poisoned { Err(LookupError::Poisoned) } else { Ok(inside) }
    }

    fn enter_any(&'static self, number: usize) -> Result<TableGuard<T>, LookupError> {
        let (index, generation) = parts(number).ok_or(LookupError::Unknown)?;
        let slots = self.slots.get().ok_or(LookupError::Unknown)?;
        let place = &slots[index as usize];
        let before = place.state.fetch_add(1, Ordering::Acquire);
        let inside = TableGuard { table: self, index };
        let open = before & (OPEN | CLOSING) == OPEN && before >> GENERATION == generation;
        // The guard's drop counts out again.
        if open { Ok(inside) } else { Err(LookupError::Unknown) }
    }

    /// Closes a slot: no new call enters; the last call drops the object. Also for a poisoned one.
    pub fn close(&'static self, number: usize) -> Result<TableGuard<T>, LookupError> {
        let inside = self.enter_any(number)?;
        let before = inside.place().state.fetch_or(CLOSING, Ordering::AcqRel);
        if before & CLOSING == 0 { Ok(inside) } else { Err(LookupError::Unknown) }
    }

    /// Returns the numbers of all open objects.
    pub fn open(&self) -> Vec<usize> {
        let Some(slots) = self.slots.get() else { return Vec::new() };
        let states = slots.iter().map(|place| place.state.load(Ordering::Acquire));
        let open = states.enumerate().filter(|(_, state)| state & (OPEN | CLOSING) == OPEN);
        open.map(|(index, state)| number(index as u32, state >> GENERATION)).collect()
    }

    fn leave(&self, index: u32) {
        let place = &self.slots()[index as usize];
        let mut state = place.state.fetch_sub(1, Ordering::AcqRel) - 1;
        while state & USERS == 0 && state & CLOSING != 0 {
            let next = ((state >> GENERATION) + 1) << GENERATION;
            match place.state.compare_exchange(state, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    // SAFETY: it was closing with nobody inside, and this exchange ended that state, so nobody else is here;
                    // it is not in the list of free slots yet.
                    let value = unsafe { (*place.value.get()).take() };
                    if let Some(free) = self.free.lock().as_mut() {
                        free.push(index);
                    }
                    drop(value);
                    return;
                }
                Err(now) => state = now,
            }
        }
    }
}

/// Slot 0 of generation 0 is number 1, so that 0 is invalid.
fn number(index: u32, generation: u64) -> usize {
    ((generation << GENERATION) | u64::from(index) << 4 | 1) as usize
}

fn parts(number: usize) -> Option<(u32, u64)> {
    let low = number & 0xffff_ffff;
    let index = low >> 4;
    (low & 0xf == 1 && index < SLOTS).then_some((index as u32, (number >> GENERATION) as u64))
}

const _: () = assert!(usize::BITS == 64, "the opaque pointers of the C interface need 64 bits");

/// A call inside a slot: the object stays alive.
pub struct TableGuard<T: Send + Sync + 'static> {
    table: &'static Table<T>,
    index: u32,
}

impl<T: Send + Sync> TableGuard<T> {
    fn place(&self) -> &TableSlot<T> {
        &self.table.slots()[self.index as usize]
    }
}

impl<T: Send + Sync> std::ops::Deref for TableGuard<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: it was open when this was counted in, so the value is there; it is taken only when nobody is inside.
        unsafe { (*self.place().value.get()).as_ref().expect("an open place has a value") }
    }
}

impl<T: Send + Sync> Drop for TableGuard<T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.place().state.fetch_or(POISONED, Ordering::Relaxed);
        }
        self.table.leave(self.index);
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    struct Counted(Arc<AtomicU32>, u64);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_number_is_good_until_closed_and_never_again() {
        static TABLE: Table<u32> = Table::new();
        assert!(TABLE.enter(1).is_err());
        let first = TABLE.insert(7).expect("room");
        assert_eq!(TABLE.enter(first).map(|inside| *inside), Ok(7));
        for wrong in [0, 1 << 40 | 1, first + 1, first ^ 1 << 33, usize::MAX] {
            assert_eq!(TABLE.enter(wrong).err(), Some(LookupError::Unknown), "{wrong:#x}");
        }
        drop(TABLE.close(first).expect("open"));
        assert_eq!(TABLE.close(first).err(), Some(LookupError::Unknown));
        let second = TABLE.insert(8).expect("room");
        assert_ne!(first, second);
        assert_eq!(TABLE.enter(first).err(), Some(LookupError::Unknown));
        assert_eq!(TABLE.open(), [second]);
    }

    #[test]
    fn who_panicked_inside_leaves_it_unusable_but_closable() {
        static TABLE: Table<u32> = Table::new();
        let number = TABLE.insert(1).expect("room");
        let panicked = std::panic::catch_unwind(|| {
            let _inside = TABLE.enter(number);
            panic!("a test");
        });
        assert!(panicked.is_err());
        assert_eq!(TABLE.enter(number).err(), Some(LookupError::Poisoned));
        assert!(TABLE.close(number).is_ok());
    }

    #[test]
    fn each_object_is_dropped_once_whoever_is_last() {
        static TABLE: Table<Counted> = Table::new();
        let dropped = Arc::new(AtomicU32::new(0));
        let rounds = 200;
        for round in 0..rounds {
            let number = TABLE.insert(Counted(Arc::clone(&dropped), round)).ok().expect("room");
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        while let Ok(inside) = TABLE.enter(number) {
                            assert_eq!(inside.1, round);
                        }
                    });
                }
                scope.spawn(|| assert!(TABLE.close(number).is_ok()));
            });
            assert_eq!(u64::from(dropped.load(Ordering::Relaxed)), round + 1);
        }
    }
}
