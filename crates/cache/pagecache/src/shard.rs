//! A shard whose lock we hold: its index, its queues and its frames that have no page.

use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::fence;
use std::time::Duration;

use shm::{OwnedLock, OwnedLockGuard};

use super::frame::Record;
use super::probe::step;
use super::shape::HEAD_BYTES;
use super::{SharedPages, Ticket};

// Words of a shard's head. The lock is the lower half of word 0; the first cache line and the last two are its holder's.
pub(super) const INSERTS: usize = 1;
pub(super) const EVICTIONS: usize = 2;
pub(super) const REPAIRS: usize = 3;
/// Odd while the index is changed in a way that may hide a page.
pub(super) const GATE: usize = 8;
/// Added to the epochs of all pages.
pub(super) const EPOCH: usize = 9;
/// Frames with a mark, as those count who set and clear them: see `marked_count`.
pub(super) const MARKED: usize = 10;
/// How far off that count was found to be.
pub(super) const DOUBT: usize = 11;
/// Three words for each of four lists: first, last, length.
pub(super) const LISTS: usize = 16;
/// Counted up with each page that enters a queue.
pub(super) const SEQUENCE: usize = 28;
/// Whether any page has left to make room.
pub(super) const FILLED: usize = 29;
/// Pages that became ghosts.
pub(super) const GHOSTS: usize = 30;

/// How long a shard is waited for whose owner lives, and how long if something was waited for in vain a moment ago.
const LOCKED_MAX: Duration = Duration::from_millis(400);
const LOCKED_AGAIN: Duration = Duration::from_millis(20);

/// What is kept of a shard beside its frames.
pub(super) type Head = [AtomicU64; HEAD_BYTES / 8];

/// The lock is held while this is there. What others see of a shard is changed only by methods of it.
pub(super) struct Shard<'a> {
    pub pages: &'a SharedPages,
    pub no: usize,
    pub head: &'a Head,
    /// The frames of this shard, by their number here.
    pub records: &'a [Record],
    /// Something was found that cannot be: the books are made anew before the lock is given back.
    pub torn: Cell<bool>,
    _held: OwnedLockGuard<'a>,
}

impl SharedPages {
    /// Waits for a shard; repairs it if whoever had it died. None: a process that lives keeps it, and was stopped in the middle of a
    /// change, or means to. Nothing that is done with a shard's lock waits for anything but memory.
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

    /// Whether this shard's lock was waited for in vain.
    pub(super) fn is_locked(&self, no: usize) -> bool {
        self.any_stuck.load(Relaxed) && self.locked.get(no / 64).is_some_and(|word| word.load(Relaxed) & 1 << (no % 64) != 0)
    }

    /// The shard, if nobody has it.
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

    /// To be taken before a page is looked for: what is found elsewhere later may be taken in only if the page did not change meanwhile.
    #[inline]
    pub fn ticket(&self, name: super::Name) -> Ticket {
        self.ticket_of(&self.key(name))
    }

    #[inline]
    pub(super) fn ticket_of(&self, key: &super::find::HashedName) -> Ticket {
        let all = self.heads[key.shard][EPOCH].load(std::sync::atomic::Ordering::SeqCst) as u32;
        Ticket(self.epoch(key).load(std::sync::atomic::Ordering::SeqCst).wrapping_add(all))
    }

    #[inline]
    pub(super) fn epoch(&self, key: &super::find::HashedName) -> &std::sync::atomic::AtomicU32 {
        &self.epochs[self.epoch_place(key)]
    }

    #[inline]
    pub(super) fn epoch_place(&self, key: &super::find::HashedName) -> usize {
        key.shard * self.plan.epochs + ((key.hash >> 16) as usize & (self.plan.epochs - 1))
    }
}

impl Shard<'_> {
    /// The number among all frames.
    #[inline]
    pub fn global(&self, local: u32) -> usize {
        self.no * self.pages.plan.frames as usize + local as usize
    }

    #[inline]
    pub fn get(&self, word: usize) -> u64 {
        self.head[word].load(Relaxed)
    }

    #[inline]
    pub fn set(&self, word: usize, value: u64) {
        step();
        self.head[word].store(value, Relaxed);
    }

    pub fn add(&self, word: usize, value: u64) {
        self.set(word, self.get(word).wrapping_add(value));
    }

    /// No ticket taken before now is good for this page.
    pub fn move_epoch(&self, key: &super::find::HashedName) {
        step();
        self.pages.epoch(key).fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }

    /// Nor for any page of this shard.
    pub fn move_all_epochs(&self) {
        step();
        self.head[EPOCH].fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }

    /// From now on until it is opened nobody believes a miss.
    pub fn close_gate(&self) {
        step();
        self.head[GATE].store(self.get(GATE) | 1, Relaxed);
        fence(Release);
    }

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
