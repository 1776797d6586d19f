//! The pinned pages of an open file, which the program reads without a copy.
#![expect(unsafe_code, reason = "slots that their thread changes without an atomic exchange")]

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, compiler_fence};

use cachedfs::{File, FoundPage, Pinned, PinnedPage};
use hashbrown::HashTable;
use parking_lot::Mutex;

use crate::hazard::{self, ThreadRecord};

/// The pinned pages of an open file, by address. The cache limits their number.
///
/// Each thread keeps its first few pins in its own slots, which it changes without an atomic exchange: an exchange costs as much as
/// finding the page. Another thread locks these slots only to release a pin that this thread took (see
/// [`hazard::ThreadRecord::enter_owner_section`]). All other pins, and copies, are in a table.
#[derive(Default)]
pub struct Pins {
    few: OnceLock<Box<[ThreadPins<PinnedPage>; THREADS_MAX]>>,
    more: Mutex<HashTable<Pin>>,
}

const THREADS_MAX: usize = 16;
const PINS_PER_THREAD: usize = 8;
/// Spins before yielding to a thread in its critical section.
const SPINS_MAX: u32 = 64;

/// The pins of one thread.
#[repr(align(128))]
struct ThreadPins<T> {
    owner: AtomicPtr<ThreadRecord>,
    /// Another thread wants them, and holds the table's lock.
    wanted: AtomicBool,
    places: [PinSlot<T>; PINS_PER_THREAD],
}

/// A pinned page, or none.
struct PinSlot<T> {
    /// Address of the page, or one of the constants that follow.
    address: AtomicUsize,
    at: AtomicU64,
    /// Initialised if there is an address.
    lent: UnsafeCell<MaybeUninit<T>>,
}

impl<T> Default for ThreadPins<T> {
    fn default() -> Self {
        ThreadPins { owner: AtomicPtr::default(), wanted: AtomicBool::new(false), places: std::array::from_fn(|_| PinSlot::default()) }
    }
}

impl<T> Default for PinSlot<T> {
    fn default() -> Self {
        PinSlot { address: AtomicUsize::new(FREE), at: AtomicU64::new(0), lent: UnsafeCell::new(MaybeUninit::uninit()) }
    }
}

/// No page is pinned.
const FREE: usize = 0;
/// A signal interrupted its thread during a change of the slot.
const BUSY: usize = 1;

// SAFETY: `lent` is accessed only with the right to change the slots, by one thread at a time, and not while it is `BUSY`.
unsafe impl<T: Send> Sync for PinSlot<T> {}

/// The right to change the slots of a thread: for the thread itself, or for one that made it wait.
struct PinSlots<'a, T>(&'a [PinSlot<T>; PINS_PER_THREAD]);

impl<T> PinSlots<'_, T> {
    #[inline]
    fn put(&self, at: u64, address: usize, lent: T) -> Result<(), T> {
        let Some(free) = self.free() else { return Err(lent) };
        free.prepare(at, lent);
        free.show(address);
        Ok(())
    }

    #[inline]
    fn free(&self) -> Option<FreeSlot<'_, T>> {
        self.0.iter().find(|place| place.address.load(Relaxed) == FREE).map(FreeSlot)
    }

    #[inline]
    fn take(&self, at: u64, address: usize) -> Option<T> {
        let is_it = |place: &&PinSlot<T>| place.address.load(Relaxed) == address && place.at.load(Relaxed) == at;
        let place = self.0.iter().find(is_it)?;
        place.address.store(BUSY, Relaxed);
        compiler_fence(SeqCst);
        // SAFETY: we may change the slots, and a signal handler of this thread skips a busy slot. There was an address.
        let lent = unsafe { (*place.lent.get()).assume_init_read() };
        place.address.store(FREE, Release);
        Some(lent)
    }
}

/// A free slot: only the holder of the right to change it reads more than its address.
struct FreeSlot<'a, T>(&'a PinSlot<T>);

impl<T> FreeSlot<'_, T> {
    /// Stores a pin; it is not visible until it is published.
    #[inline(always)]
    fn prepare(&self, at: u64, lent: T) {
        self.0.at.store(at, Relaxed);
        // SAFETY: we may change the slots, and a signal handler of this thread skips a free slot.
        unsafe { (*self.0.lent.get()).write(lent) };
    }

    #[inline(always)]
    fn show(self, address: usize) {
        compiler_fence(SeqCst);
        self.0.address.store(address, Release);
    }
}

impl<T> ThreadPins<T> {
    /// Calls with the slots in their own thread, unless another thread wants them.
    #[inline]
    fn own<R>(&self, mine: &'static ThreadRecord, call: impl FnOnce(&PinSlots<'_, T>) -> R) -> Option<R> {
        let ours = std::ptr::from_ref(mine).cast_mut();
        let owner = self.owner.load(Relaxed);
        if owner != ours && !(owner.is_null() && self.owner.compare_exchange(owner, ours, AcqRel, Relaxed).is_ok()) {
            return None;
        }
        let _inside = mine.enter_owner_section(&self.wanted)?;
        Some(call(&PinSlots(&self.places)))
    }

    /// Takes a pin in any thread that holds the table's lock. `Err`: the owner is in its critical section, and may be waiting for that
    /// lock.
    fn of_another(&self, at: u64, address: usize) -> Result<Option<T>, ChangeGuard> {
        let is_here = || self.places.iter().any(|place| place.address.load(Acquire) == address);
        // SAFETY: records are never given back.
        let Some(owner) = (unsafe { self.owner.load(Acquire).as_ref() }).filter(|_| is_here()) else { return Ok(None) };
        if hazard::current().is_some_and(|mine| std::ptr::eq(mine, owner)) {
            // It may be inside if a signal interrupted it there: it does not continue now.
            return Ok(PinSlots(&self.places).take(at, address));
        }
        self.wanted.store(true, SeqCst);
        hazard::barrier();
        let is_free = (0..SPINS_MAX).any(|_| {
            std::hint::spin_loop();
            !owner.is_inside()
        });
        let result = if is_free { Ok(PinSlots(&self.places).take(at, address)) } else { Err(ChangeGuard) };
        self.wanted.store(false, Release);
        result
    }
}

/// The owner is changing its slots.
struct ChangeGuard;

struct Pin {
    at: u64,
    kept: PinSource,
}

enum PinSource {
    Page(PinnedPage),
    Pinned(Pinned),
}

impl Pin {
    fn address(&self) -> usize {
        match &self.kept {
            PinSource::Page(lent) => lent.as_ptr().addr(),
            PinSource::Pinned(pinned) => pinned.as_ptr().addr(),
        }
    }
}

impl PinSource {
    fn give_back(self, file: &File) {
        match self {
            PinSource::Page(lent) => file.unpin_page(lent),
            PinSource::Pinned(pinned) => drop(pinned),
        }
    }
}

/// Hashes the middle bits, in which addresses differ: page, and offset in it.
fn hash(address: usize) -> u64 {
    (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32)
}

impl Pins {
    /// Calls with this thread's slots, if it has any and no other thread wants them.
    #[inline]
    fn own<R>(&self, mine: Option<&'static ThreadRecord>, call: impl FnOnce(&PinSlots<'_, PinnedPage>) -> R) -> Option<R> {
        let mine = mine?;
        self.few.get_or_init(Box::default)[mine.number() as usize % THREADS_MAX].own(mine, call)
    }

    /// Calls with this thread's slots if they exist.
    #[inline(always)]
    fn own_at_once<R>(&self, mine: &'static ThreadRecord, call: impl FnOnce(&PinSlots<'_, PinnedPage>) -> Option<R>) -> Option<R> {
        let thread_pins = self.few.get()?;
        thread_pins[mine.number() as usize % THREADS_MAX].own(mine, call).flatten()
    }

    /// Pins bytes of a page in a slot of this thread, if the page is still in its frame and a slot is free; returns the length. `tell` gets
    /// the address.
    #[inline(always)]
    pub fn lend_at_once(
        &self,
        mine: &'static ThreadRecord,
        page: FoundPage<'_>,
        at: u64,
        n: usize,
        tell: impl FnOnce(*const u8),
    ) -> Option<usize> {
        self.own_at_once(mine, move |places| {
            let free = places.free()?;
            let len = page.pin(n, |lent| {
                let len = lent.len();
                free.prepare(at, lent);
                len
            })?;
            free.show(page.as_ptr().addr());
            tell(page.as_ptr());
            Some(len)
        })
    }

    /// Releases a pin in a slot of this thread.
    #[inline(always)]
    pub fn give_back_at_once(&self, mine: &'static ThreadRecord, file: &File, at: u64, address: usize) -> Option<()> {
        if address <= BUSY {
            return None;
        }
        let lent = self.own_at_once(mine, |places| places.take(at, address))?;
        file.unpin_page(lent);
        Some(())
    }

    /// Adds a pinned page, in a slot of this thread if one is free.
    #[inline]
    pub fn add(&self, mine: Option<&'static ThreadRecord>, at: u64, lent: PinnedPage) {
        let mut lent = Some(lent);
        let put = |places: &PinSlots<'_, PinnedPage>| lent = lent.take().and_then(|lent| places.put(at, lent.as_ptr().addr(), lent).err());
        let _ = self.own(mine, put);
        if let Some(lent) = lent {
            self.add_more(Pin { at, kept: PinSource::Page(lent) });
        }
    }

    /// Adds a pinned copy of uncached data.
    pub fn add_copy(&self, at: u64, copy: Pinned) {
        self.add_more(Pin { at, kept: PinSource::Pinned(copy) });
    }

    #[inline(never)]
    fn add_more(&self, pin: Pin) {
        self.more.lock().insert_unique(hash(pin.address()), pin, |pin| hash(pin.address()));
    }

    /// Releases a pin; false: there is none.
    #[inline]
    pub fn give_back(&self, mine: Option<&'static ThreadRecord>, file: &File, at: u64, address: usize) -> bool {
        if address <= BUSY {
            return false;
        }
        match self.own(mine, |places| places.take(at, address)).flatten() {
            Some(lent) => file.unpin_page(lent),
            None => match self.take_elsewhere(at, address) {
                Some(kept) => kept.give_back(file),
                None => return false,
            },
        }
        true
    }

    /// Takes a pin from the table, or from another thread.
    #[inline(never)]
    fn take_elsewhere(&self, at: u64, address: usize) -> Option<PinSource> {
        loop {
            let mut pins = self.more.lock();
            let entry = pins.find_entry(hash(address), |pin| pin.address() == address && pin.at == at).ok();
            if let Some(entry) = entry {
                return Some(entry.remove().0.kept);
            }
            let mut is_inside = false;
            for thread_pins in self.few.get().into_iter().flat_map(|few| few.iter()) {
                match thread_pins.of_another(at, address) {
                    Ok(Some(lent)) => return Some(PinSource::Page(lent)),
                    Ok(None) => {}
                    Err(ChangeGuard) => is_inside = true,
                }
            }
            drop(pins);
            if !is_inside {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// Releases all pins: the file is no longer in use.
    pub fn release_all(&mut self, file: &File) {
        for place in self.few.get_mut().into_iter().flat_map(|few| few.iter_mut().flat_map(|thread_pins| &mut thread_pins.places)) {
            if *place.address.get_mut() > BUSY {
                *place.address.get_mut() = FREE;
                // SAFETY: there was an address, and nobody else looks at the place any more.
                file.unpin_page(unsafe { place.lent.get_mut().assume_init_read() });
            }
        }
        self.more.get_mut().drain().for_each(|pin| pin.kept.give_back(file));
    }
}

#[cfg(test)]
mod test {
    use super::*;

    /// The owner pins and releases, other threads release too: each pin once, and none is left.
    #[test]
    fn what_a_thread_was_lent_is_given_back_once_whoever_does_it() {
        static OPEN: crate::ufd::Ufds<u8> = crate::ufd::Ufds::new();
        static TAKEN: [AtomicU64; ROUNDS] = [const { AtomicU64::new(0) }; ROUNDS];
        const ROUNDS: usize = if cfg!(miri) { 200 } else { 2000 };
        let ufd = OPEN.insert(std::sync::Arc::new(0), 0).expect("room");
        let (thread_pins, more, next) = (ThreadPins::<usize>::default(), Mutex::new(()), AtomicUsize::new(0));
        let take = |n: usize| {
            let _held = more.lock();
            thread_pins.of_another(n as u64, n + 2)
        };
        let count = |taken: Option<usize>| taken.inspect(|n| _ = TAKEN[*n].fetch_add(1, Relaxed)).is_some();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // A protected read assigns a record to this thread.
                OPEN.with(ufd, |_| ());
                let own = |call: &dyn Fn(&PinSlots<'_, usize>) -> bool| {
                    thread_pins.own(hazard::current().expect("a record"), |places| call(places))
                };
                for n in 0..ROUNDS {
                    while own(&|places| places.put(n as u64, n + 2, n).is_ok()) != Some(true) {
                        std::thread::yield_now();
                    }
                    next.store(n + 1, Release);
                    if n % 3 == 0 {
                        own(&|places| count(places.take(n as u64, n + 2)));
                    }
                }
                next.store(usize::MAX, Release);
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut from = 0;
                    loop {
                        let to = next.load(Acquire);
                        for n in from..to.min(ROUNDS) {
                            while let Err(ChangeGuard) = take(n).map(count) {
                                std::thread::yield_now();
                            }
                        }
                        if to == usize::MAX {
                            return;
                        }
                        from = to;
                    }
                });
            }
        });
        assert!(TAKEN.iter().all(|taken| taken.load(Relaxed) == 1), "lost, or given back twice");
        assert!(thread_pins.places.iter().all(|place| place.address.load(Relaxed) == FREE));
    }
}
