//! Putting right what a dead process left: the books of a shard from its frames' records, and what it held elsewhere.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use shm::{ProcessSlot, Region};

use super::SharedPages;
use super::frame::{Frame, LINKS, PINS, QUEUE, Record};
use super::list::{FREE, MAIN, ORPHANS, SMALL, queue_of};
use super::shape::{HEAD_BYTES, Plan};
use super::shard::{LISTS, REPAIRS, Shard};

/// All zero is a shard without frames; this gives it its frames, all free.
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
    /// Makes index, lists and marks' bits anew. What has a name is found again, in the order in which it came.
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
        // What is torn after a repair is torn by somebody who goes on doing so.
        self.torn.set(false);
    }

    /// Ends what a dead process began in a frame. When the frame came into its queue.
    fn end_change(&self, local: u32) -> u64 {
        let (at, record) = (self.global(local), &self.records[local as usize]);
        let word = record.word();
        // Names come and go under the shard's lock, which we have: whoever was doing it is dead. Others may be writing.
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
            // A name of another shard, or one that is here twice: no process of ours leaves that behind.
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
        // What somebody wrote over is not taken for another page.
        let good = key.shard == self.no && self.pages.probe(&key).is_none() && self.pages.is_named_by_us(record, name);
        if good {
            self.index_insert(&key, local);
        }
        good
    }
}

impl SharedPages {
    /// Makes the books of all shards anew: what has a mark and is not found is found again, or is no page any more.
    pub fn repair_all(&self) {
        for no in 0..self.plan.shards {
            // For one that is kept from us is waited: the others have their turn when it is free.
            let Some(shard) = self.lock(no) else { return };
            shard.repair();
        }
    }

    /// Puts right what a dead process left: its locks, the frames it was changing, its pins. For whoever leads, before the process slot is
    /// given to another. The process must be dead.
    pub fn reap(&self, dead: ProcessSlot) {
        let frames = self.plan.frames as usize;
        for no in 0..self.plan.shards {
            drop(self.shard_lock(no).take_over().map(|held| self.hold(no, held)));
            let mut torn = false;
            for at in no * frames..(no + 1) * frames {
                torn |= self.reap_frame(at, dead);
            }
            // What is not done of this, somebody who lives keeps from being done; the shard's next repair does it.
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

    /// True: the dead one was giving it a name.
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
