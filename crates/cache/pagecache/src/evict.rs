//! Which page leaves: the rules of [`Replacement`], on the lists of a shard.
//!
//! A marked, pinned or taken frame takes another round. It is no loss that others see the frame as taken for a moment.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;

use super::frame::{Frame, HITS, PINS};
use super::list::{FREE, MAIN, ORPHANS, SMALL};
use super::read::HITS_MOST;
use super::shard::{DOUBT, EVICTIONS, FILLED, MARKED, Shard};
use super::word::Word;
use super::{Name, Replacement, SharedPages};

enum Verdict {
    Leaves,
    /// To the end of the main queue, with so many hits left.
    Promoted(u64),
    /// To the end of its own queue.
    Rotated,
}

impl Shard<'_> {
    /// The small queue's share.
    pub fn small_share(&self) -> u32 {
        let frames = self.pages.plan.frames;
        (frames / 10).max(1).min(frames)
    }

    /// One page leaves; its frame is free then. False: none can.
    pub fn evict(&self) -> bool {
        let pages = self.len(SMALL) + self.len(MAIN);
        // All but a few marked: to find those few would take longer than to wait for some to be written back.
        if super::marked::marked_in(self.head) >= pages {
            return false;
        }
        let first = if self.len(SMALL) >= self.small_share() { SMALL } else { MAIN };
        self.scan(first) || self.scan(MAIN + SMALL - first)
    }

    fn scan(&self, queue: usize) -> bool {
        // Enough for every page to use up its rounds.
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

    /// Evicts this page. False: somebody has a hand on it.
    fn let_go(&self, local: u32, is_remembered: bool) -> bool {
        let (at, record) = (self.global(local), &self.records[local as usize]);
        let word = record.word();
        let idle = word.is_named() && !word.is_changing() && word.marks().is_none();
        if !idle || !self.pages.take(at, word, word.taken_by(self.pages.me).leaving()) {
            return false;
        }
        // Whoever pins sets his bit first, and then looks whether the page leaves; we do it the other way around.
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

    /// Takes the page out of a frame that we have taken; `word` is what it was before. The frame is free, or an orphan while pinned.
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
        // Whoever unpins looks for a name afterwards, and finds none: he frees it then.
        match record[PINS].load(SeqCst) {
            0 => self.push_first(FREE, local),
            _ => self.push_last(ORPHANS, local),
        }
    }
}

impl SharedPages {
    /// A page that was brought and that nobody has asked for leaves, as if it had not come: it is not remembered. False: it is not here,
    /// was asked for or changed, somebody has a hand on it, or there are frames to spare.
    pub fn release(&self, name: Name) -> bool {
        let key = self.key(name);
        let Some(shard) = self.lock(key.shard) else { return false };
        let Some((at, _)) = self.probe(&key) else { return false };
        let is_unused = shard.get(FILLED) != 0 && self.records[at][HITS].load(Relaxed) == 0;
        is_unused && shard.let_go((at % self.plan.frames as usize) as u32, false)
    }

    /// Where fewer than `low` frames are free, lets pages leave until there are `high`: for whoever leads, now and then. Each shard
    /// has its share of both. The pages that left.
    pub fn evict_ahead(&self, low: u32, high: u32) -> u32 {
        let share = |all: u32| all.div_ceil(self.plan.shards as u32).min(self.plan.frames);
        let (mut left, mut waits) = (0, true);
        for no in 0..self.plan.shards {
            let is_low = super::list::len_in(&self.heads[no], FREE) < share(low);
            self.recount(no);
            if !is_low {
                continue;
            }
            // For one that is kept from us is waited.
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

    /// Sets the count of marked frames right if it is off by the same in two looks. Those who set a mark and count it may die between.
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
