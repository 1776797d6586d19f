//! A shard whose lock we hold: its index, its queues and its frames without a page.

use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::fence;
use std::time::Duration;

use shm::{OwnedLock, OwnedLockGuard};

use super::probe::step;
use super::record::Record;
use super::shape::HEAD_BYTES;
use super::{SharedPages, Ticket};

// The words of a shard's head. The lock is the lower half of word 0; the first cache line and the last two belong to its holder.
pub(super) const INSERTS: usize = 1;
pub(super) const EVICTIONS: usize = 2;
pub(super) const REPAIRS: usize = 3;
/// Odd while the index is changed in a way that may hide a page.
pub(super) const GATE: usize = 8;
/// Added to the epochs of all pages.
pub(super) const EPOCH: usize = 9;
/// The number of marked frames, maintained by those that set and clear marks: see `marked_count`.
pub(super) const MARKED: usize = 10;
/// The count and the number of set bits when they last differed.
pub(super) const DOUBT: usize = 11;
/// Three words for each of four lists: first, last, length.
pub(super) const LISTS: usize = 16;
/// Incremented with each page that enters a queue.
pub(super) const SEQUENCE: usize = 28;
/// Whether any page has been evicted.
pub(super) const FILLED: usize = 29;
/// Pages that became ghosts.
pub(super) const GHOSTS: usize = 30;

/// How long a thread waits for a shard with a living owner, and how long if a wait timed out recently. An owner that is only slow is waited
/// for longer: see [`OwnedLock::lock_within`].
const LOCKED_MAX: Duration = Duration::from_millis(400);
const LOCKED_AGAIN: Duration = Duration::from_millis(20);

/// The metadata of a shard beside its frames.
pub(super) type Head = [AtomicU64; HEAD_BYTES / 8];

/// A locked shard: the lock is held while this value exists. Only its methods change what others see of a shard.
pub(super) struct Shard<'a> {
    /// The cache that the shard belongs to.
    pub pages: &'a SharedPages,
    /// The number of the shard.
    pub no: usize,
    /// The shard's head in shared memory.
    pub head: &'a Head,
    /// The frames of this shard, by their number in it.
    pub records: &'a [Record],
    /// Whether an inconsistency was found: the metadata is rebuilt before the lock is released.
    pub torn: Cell<bool>,
    _held: OwnedLockGuard<'a>,
}

impl SharedPages {
    /// Waits for a shard; repairs it if its last owner died. Returns `None` if a living process keeps it: stopped in the middle of a
    /// change, or on purpose. A thread with a shard's lock waits for nothing but memory.
    #[inline]
    pub(super) fn lock(&self, no: usize) -> Option<Shard<'_>> {
        match self.shard_lock(no).try_lock() {
            Some(held) => Some(self.hold(no, held)),
            None => self.lock_kept(no),
        }
    }

    #[cold]
    #[inline(never)]
    fn lock_kept(&self, no: usize) -> Option<Shard<'_>> {
        let is_known = self.is_locked(no) || self.has_waited_in_vain();
        let at_most = if is_known { LOCKED_AGAIN } else { LOCKED_MAX };
        let held = self.shard_lock(no).lock_within(at_most);
        let bit = 1 << (no % 64);
        if let Some(word) = self.locked.get(no / 64) {
            match &held {
                Some(_) if word.load(Relaxed) & bit != 0 => _ = word.fetch_and(!bit, Relaxed),
                Some(_) => {}
                None => {
                    word.fetch_or(bit, Relaxed);
                    self.waited_in_vain();
                }
            }
        }
        Some(self.hold(no, held?))
    }

    /// Returns whether the lock of this shard has timed out.
    pub(super) fn is_locked(&self, no: usize) -> bool {
        self.any_stuck.load(Relaxed) && self.locked.get(no / 64).is_some_and(|word| word.load(Relaxed) & 1 << (no % 64) != 0)
    }

    /// Returns the shard if its lock is free.
    pub(super) fn try_lock(&self, no: usize) -> Option<Shard<'_>> {
        Some(self.hold(no, self.shard_lock(no).try_lock()?))
    }

    pub(super) fn shard_lock(&self, no: usize) -> OwnedLock<'_> {
        OwnedLock::new(&self.region, self.at + self.plan.heads_at + no * HEAD_BYTES, &self.processes, self.me)
    }

    pub(super) fn hold<'a>(&'a self, no: usize, held: OwnedLockGuard<'a>) -> Shard<'a> {
        let frames = self.plan.frames as usize;
        let abandoned = held.was_abandoned();
        let records = &self.records[no * frames..(no + 1) * frames];
        let shard = Shard { pages: self, no, head: &self.heads[no], records, torn: Cell::new(false), _held: held };
        if abandoned {
            shard.repair();
        }
        shard
    }

    /// Returns a ticket for a page, taken before its lookup: the page may later be inserted from another tier only if it did not change
    /// meanwhile.
    #[inline]
    pub fn ticket(&self, name: super::Name) -> Ticket {
        self.ticket_of(&self.key(name))
    }

    #[inline]
    pub(super) fn ticket_of(&self, key: &super::name_hash::HashedName) -> Ticket {
        let all = self.heads[key.shard][EPOCH].load(std::sync::atomic::Ordering::SeqCst) as u32;
        Ticket(self.epoch(key).load(std::sync::atomic::Ordering::SeqCst).wrapping_add(all))
    }

    #[inline]
    pub(super) fn epoch(&self, key: &super::name_hash::HashedName) -> &std::sync::atomic::AtomicU32 {
        &self.epochs[self.epoch_place(key)]
    }

    #[inline]
    pub(super) fn epoch_place(&self, key: &super::name_hash::HashedName) -> usize {
        key.shard * self.plan.epochs + ((key.hash >> 16) as usize & (self.plan.epochs - 1))
    }
}

impl Shard<'_> {
    /// Returns the number of a frame among all frames.
    #[inline]
    pub fn global(&self, local: u32) -> usize {
        self.no * self.pages.plan.frames as usize + local as usize
    }

    /// Returns a word of the shard's head.
    #[inline]
    pub fn get(&self, word: usize) -> u64 {
        self.head[word].load(Relaxed)
    }

    /// Stores a word of the shard's head.
    #[inline]
    pub fn set(&self, word: usize, value: u64) {
        step();
        self.head[word].store(value, Relaxed);
    }

    /// Adds to a word of the shard's head.
    pub fn add(&self, word: usize, value: u64) {
        self.set(word, self.get(word).wrapping_add(value));
    }

    /// Makes all earlier tickets of this page invalid.
    pub fn move_epoch(&self, key: &super::name_hash::HashedName) {
        step();
        self.pages.epoch(key).fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }

    /// Makes all earlier tickets of this shard's pages invalid.
    pub fn move_all_epochs(&self) {
        step();
        self.head[EPOCH].fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }

    /// Closes the gate: until it is opened, a miss proves nothing.
    pub fn close_gate(&self) {
        step();
        self.head[GATE].store(self.get(GATE) | 1, Relaxed);
        fence(Release);
    }

    /// Opens the gate: the index is complete again.
    pub fn open_gate(&self) {
        step();
        self.head[GATE].store((self.get(GATE) | 1).wrapping_add(1), Release);
    }
}

impl Drop for Shard<'_> {
    fn drop(&mut self) {
        if self.torn.get() && !std::thread::panicking() {
            self.repair();
        }
    }
}
