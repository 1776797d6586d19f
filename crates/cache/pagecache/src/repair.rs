//! Repairs what a dead process left: the metadata of a shard, from the records of its frames, and everything else that it held.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use shm::{ProcessSlot, Region};

use super::SharedPages;
use super::list::{FREE, MAIN, ORPHANS, SMALL, queue_of};
use super::record::{Frame, LINKS, PINS, QUEUE, Record};
use super::shape::{HEAD_BYTES, Plan};
use super::shard::{LISTS, REPAIRS, Shard};

/// Gives each shard its frames, all free: memory that is all zero is a shard without frames.
pub(super) fn make_empty(region: &Region, at: usize, plan: &Plan) {
    let per = plan.frames as usize;
    for no in 0..plan.shards {
        let list = at + plan.heads_at + no * HEAD_BYTES + (LISTS + 3 * FREE) * 8;
        for (n, value) in [1, per, per].into_iter().enumerate() {
            region.u64(list + 8 * n).store(value as u64, Relaxed);
        }
        for local in 0..per as u64 {
            let after = if local + 1 < per as u64 { local + 2 } else { 0 };
            let record = at + plan.frames_at + (no * per + local as usize) * size_of::<Record>();
            region.u64(record + LINKS * 8).store(local | after << 32, Relaxed);
        }
    }
}

impl Shard<'_> {
    /// Rebuilds the index, the lists and the marks' bits. Pages with a name are found again, in the order of their insertion.
    pub fn repair(&self) {
        self.torn.set(false);
        self.close_gate();
        let mut order: Vec<(u64, u32)> = (0..self.pages.plan.frames).map(|local| (self.end_change(local), local)).collect();
        order.sort_unstable();
        self.index_clear();
        self.clear_lists();
        for (_, local) in order {
            self.enlist(local);
        }
        self.open_gate();
        self.add(REPAIRS, 1);
        // Whatever is torn after a repair is being overwritten by a live process.
        self.torn.set(false);
    }

    /// Finishes the change of a frame that a dead process started. Returns the time at which the frame entered its queue.
    fn end_change(&self, local: u32) -> u64 {
        let (at, record) = (self.global(local), &self.records[local as usize]);
        let word = record.word();
        // Names change only under the shard's lock, which we have: the process that was changing one is dead. Others may be writing.
        let abandoned = word.is_changing() && (!word.is_named() || word.is_leaving() || !self.pages.processes.is_alive(word.owner()));
        if abandoned {
            self.pages.take_over(at, word);
        } else if !word.is_changing() && self.pages.take(at, word, word.taken_by(self.pages.me)) {
            self.pages.set_bit(self.no, at, !word.marks().is_none() && word.is_named());
            record.give_back(word);
        }
        queue_of(record[QUEUE].load(Relaxed)).1
    }

    fn enlist(&self, local: u32) {
        let record = &self.records[local as usize];
        if record.word().is_named() && !self.enter_index(local) {
            // The name belongs to another shard, or is here twice: no process of the cache does that.
            let (at, word) = (self.global(local), record.word());
            if self.pages.take(at, word, word.taken_by(self.pages.me)) {
                self.pages.set_bit(self.no, at, false);
                record.give_back(word.unnamed());
            }
        }
        let queue = match (record.word().is_named(), queue_of(record[QUEUE].load(Relaxed)).0) {
            (true, SMALL) => SMALL,
            (true, _) => MAIN,
            (false, _) if record[PINS].load(SeqCst) != 0 => ORPHANS,
            (false, _) => FREE,
        };
        self.push_last(queue, local);
    }

    fn enter_index(&self, local: u32) -> bool {
        let record = &self.records[local as usize];
        let name = self.pages.name_at(self.global(local));
        let key = self.pages.key_of_word(name);
        // A page whose name was overwritten is not taken for another page.
        let good = key.shard == self.no && self.pages.probe(&key).is_none() && self.pages.is_named_by_us(record, name);
        if good {
            self.index_insert(&key, local);
        }
        good
    }
}

impl SharedPages {
    /// Rebuilds the metadata of all shards: marked pages that could not be found are found again, or dropped.
    pub fn repair_all(&self) {
        for no in 0..self.plan.shards {
            // If a shard cannot be locked, this gives up: the others are repaired when it is free.
            let Some(shard) = self.lock(no) else { return };
            shard.repair();
        }
    }

    /// Repairs what a dead process left: its locks, the frames it was changing, its pins. The leader calls this before the process slot
    /// is given to another process. The process must be dead.
    pub fn reap(&self, dead: ProcessSlot) {
        let frames = self.plan.frames as usize;
        for no in 0..self.plan.shards {
            drop(self.shard_lock(no).take_over().map(|held| self.hold(no, held)));
            let mut torn = false;
            for at in no * frames..(no + 1) * frames {
                torn |= self.reap_frame(at, dead);
            }
            // If a live process keeps the shard locked, its next repair does this.
            if let Some(shard) = self.lock(no) {
                shard.torn.set(torn);
            }
            if let Some(shard) = self.lock(no) {
                let orphans = (0..frames as u32).filter(|&local| shard.queue(local) == ORPHANS);
                orphans.for_each(|local| shard.free_if_orphan(local));
            }
            self.recount(no);
            self.recount(no);
        }
    }

    /// Releases a frame that a dead process held. Returns whether that process was giving it a name.
    fn reap_frame(&self, at: usize, dead: ProcessSlot) -> bool {
        let record = &self.records[at];
        let pin = 1 << (dead.0 & 63);
        if record[PINS].load(Relaxed) & pin != 0 {
            record[PINS].fetch_and(!pin, SeqCst);
        }
        let word = record.word();
        let held = word.is_changing() && word.owner() == dead;
        if held && word.is_named() {
            self.take_over(at, word);
        }
        held && !word.is_named()
    }
}
