//! Selects the page to evict: the rules of [`Replacement`], on the lists of a shard.
//!
//! A marked, pinned or taken frame gets another round. Other processes may see the frame as taken for a moment, which is harmless.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;

use super::list::{FREE, MAIN, ORPHANS, SMALL};
use super::read::HITS_MOST;
use super::record::{Frame, HITS, PINS};
use super::shard::{DOUBT, EVICTIONS, FILLED, MARKED, Shard};
use super::word::Word;
use super::{Name, Replacement, SharedPages};

enum Verdict {
    Leaves,
    /// Moves to the end of the main queue, with so many hits left.
    Promoted(u64),
    /// Moves to the end of the queue that it is in.
    Rotated,
}

impl Shard<'_> {
    /// Returns the number of frames in the small queue's share.
    pub fn small_share(&self) -> u32 {
        let frames = self.pages.plan.frames;
        (frames / 10).max(1).min(frames)
    }

    /// Evicts one page and frees its frame. Returns false if no page can be evicted.
    pub fn evict(&self) -> bool {
        let pages = self.len(SMALL) + self.len(MAIN);
        // Nearly all pages are marked: finding the others would take longer than waiting for write-back.
        if super::marked::marked_in(self.head) >= pages {
            return false;
        }
        let first = if self.len(SMALL) >= self.small_share() { SMALL } else { MAIN };
        self.scan(first) || self.scan(MAIN + SMALL - first)
    }

    fn scan(&self, queue: usize) -> bool {
        // This suffices for every page to use up its rounds.
        let most = u64::from(self.len(queue)) * (HITS_MOST + 2);
        for _ in 0..most {
            let Some(local) = self.first(queue) else { return false };
            match self.verdict(local, queue) {
                Verdict::Leaves if self.let_go(local, self.queue(local) == SMALL) => return true,
                Verdict::Leaves | Verdict::Rotated => self.send_to(queue, local),
                Verdict::Promoted(hits) => {
                    self.records[local as usize][HITS].store(hits, Relaxed);
                    self.send_to(MAIN, local);
                }
            }
        }
        false
    }

    fn verdict(&self, local: u32, queue: usize) -> Verdict {
        let record = &self.records[local as usize];
        let (hits, word) = (record[HITS].load(Relaxed).min(HITS_MOST), record.word());
        match (self.pages.replacement, queue) {
            (Replacement::S3Fifo, SMALL) if hits > 1 => return Verdict::Promoted(0),
            (Replacement::S3Fifo, _) if queue != SMALL && hits > 0 => return Verdict::Promoted(hits - 1),
            (Replacement::Lru, _) if hits > 0 => return Verdict::Promoted(0),
            _ => {}
        }
        match word.marks().is_none() && !word.is_changing() && record[PINS].load(Relaxed) == 0 {
            true => Verdict::Leaves,
            false => Verdict::Rotated,
        }
    }

    /// Evicts this page. Returns false if it is in use.
    fn let_go(&self, local: u32, is_remembered: bool) -> bool {
        let (at, record) = (self.global(local), &self.records[local as usize]);
        let word = record.word();
        let idle = word.is_named() && !word.is_changing() && word.marks().is_none();
        if !idle || !self.pages.take(at, word, word.taken_by(self.pages.me).leaving()) {
            return false;
        }
        // A pinning thread sets its bit first, and then checks whether the page is being evicted; this does it in the opposite order.
        fence(SeqCst);
        if record[PINS].load(SeqCst) != 0 {
            record.give_back(word);
            return false;
        }
        let key = self.pages.key_of_word(self.pages.name_at(at));
        self.remove(local, word);
        if is_remembered {
            self.remember(&key);
        }
        if self.get(FILLED) == 0 {
            self.set(FILLED, 1);
        }
        self.add(EVICTIONS, 1);
        true
    }

    /// Removes the page from a frame that we have taken; `word` is the word before that. The frame becomes free, or an orphan while it is
    /// pinned.
    pub fn remove(&self, local: u32, word: Word) {
        let (at, record) = (self.global(local), &self.records[local as usize]);
        let key = self.pages.key_of_word(self.pages.name_at(at));
        if key.shard != self.no {
            self.torn.set(true);
        }
        self.move_epoch(&key);
        self.pages.set_bit(self.no, at, false);
        record.give_back(word.unnamed());
        self.index_remove(&key, local);
        self.unlink(local);
        fence(SeqCst);
        // An unpinning thread checks for a name afterwards, and finds none: it then frees the frame.
        match record[PINS].load(SeqCst) {
            0 => self.push_first(FREE, local),
            _ => self.push_last(ORPHANS, local),
        }
    }
}

impl SharedPages {
    /// Evicts a page that was read around a request and never hit; it does not become a ghost. Returns false if it is not cached, was hit
    /// or changed, is in use, or if there are frames to spare.
    pub fn release(&self, name: Name) -> bool {
        let key = self.key(name);
        let Some(shard) = self.lock(key.shard) else { return false };
        let Some((at, _)) = self.probe(&key) else { return false };
        let is_unused = shard.get(FILLED) != 0 && self.records[at][HITS].load(Relaxed) == 0;
        is_unused && shard.let_go((at % self.plan.frames as usize) as u32, false)
    }

    /// Evicts pages until `high` frames are free, where fewer than `low` are: the leader calls this now and then. Each shard has its
    /// share of both. Returns the number of pages evicted.
    pub fn evict_ahead(&self, low: u32, high: u32) -> u32 {
        let share = |all: u32| all.div_ceil(self.plan.shards as u32).min(self.plan.frames);
        let (mut left, mut waits) = (0, true);
        for no in 0..self.plan.shards {
            let is_low = super::list::len_in(&self.heads[no], FREE) < share(low);
            self.recount(no);
            if !is_low {
                continue;
            }
            // Only the first shard that cannot be locked is waited for.
            let Some(shard) = (if waits { self.lock(no) } else { self.try_lock(no) }) else {
                waits = false;
                continue;
            };
            while shard.len(FREE) < share(high) && shard.evict() {
                left += 1;
            }
        }
        left
    }

    /// Corrects the count of marked frames if it is off by the same number in two checks. A process may die between setting a mark and
    /// counting it.
    pub(super) fn recount(&self, no: usize) {
        let words = &self.bitmap[no * self.plan.bitmap..(no + 1) * self.plan.bitmap];
        let head = &self.heads[no];
        let count = head[MARKED].load(SeqCst);
        let bits: u32 = words.iter().map(|word| word.load(SeqCst).count_ones()).sum();
        if count == u64::from(bits) {
            return;
        }
        let seen = count << 32 | u64::from(bits);
        if head[DOUBT].load(Relaxed) != seen {
            head[DOUBT].store(seen, Relaxed);
        } else if head[MARKED].compare_exchange(count, bits.into(), SeqCst, Relaxed).is_ok() {
            head[DOUBT].store(0, Relaxed);
        }
    }
}
