//! Turns jobs into commands, and completed commands into completed jobs.

use block::{Error, Op, Request, Span};

use super::commands::{CommandSlot, Job, NONE};
use super::memory::Data;
use super::{NvmeQueue, SEGMENTS_MAX};
use crate::entry::{Entry, nvm};
use crate::status::Status;

/// Most blocks of a Write Zeroes: its count has 16 bits.
const ZEROES_BLOCKS_MAX: u32 = 1 << 16;
/// Double word 12: through every cache.
const FUA: u32 = 1 << 30;
/// Double word 12 of Write Zeroes: blocks may be given back.
const ZEROES_DEALLOCATE: u32 = 1 << 25;
/// Double word 11 of Dataset Management: deallocate.
const DEALLOCATE: u32 = 1 << 2;

/// A deallocate command that takes more ranges until the doorbell is rung.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranges {
    slot: u16,
    list: u16,
    count: u16,
    blocks: u64,
    first: u16,
    last: u16,
}

/// Whether a job can go on now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Went {
    /// All its commands are made; or the next is made when one of them has ended.
    On,
    /// No slot or no page is free.
    Nowhere,
}

impl NvmeQueue {
    /// Issues the common read or write: one piece of memory, one command. Returns false if the request needs the slow path.
    #[inline]
    pub(super) fn issue_single(&mut self, index: u16, request: &Request, span: Span) -> bool {
        if span.bytes > self.command_bytes_max {
            return false;
        }
        let Some(address) = self.memory.arenas.address(span) else { return false };
        let Some(&slot) = self.free_slots.last() else { return false };
        let Some(data) = self.memory.single(address, span.bytes) else { return false };
        self.free_slots.pop();
        let opcode = if request.op == Op::Read { nvm::READ } else { nvm::WRITE };
        self.jobs[usize::from(index)] = Job { left: 0, out: 1, ..Job::of(request) };
        let entry = self.transfer(opcode, (request.lba.0, request.blocks), request.fua && request.op == Op::Write, &data);
        self.post(slot, index, entry, &data);
        true
    }

    #[inline]
    fn transfer(&self, opcode: u8, (lba, blocks): (u64, u32), fua: bool, data: &Data) -> Entry {
        let mut entry = Entry::new(opcode, self.namespace).with_data(data.prp1, data.prp2);
        entry.0[5] = lba;
        entry.0[6] = u64::from((blocks - 1) | if fua { FUA } else { 0 });
        entry
    }

    /// A new command: into its slot and into the ring.
    #[inline]
    fn post(&mut self, slot: u16, job: u16, entry: Entry, data: &Data) {
        let place = &mut self.slots[usize::from(slot)];
        let entry = entry.with_cid(self.cids.make(slot.into(), place.generation));
        *place = CommandSlot { entry, job, generation: place.generation, list: data.list, bounce: data.bounce, retries: 0, busy: true };
        self.send(&entry);
    }

    #[inline]
    fn send(&mut self, entry: &Entry) {
        // The completion queue needs room for all commands in flight, including this one.
        if self.pair.owed() as usize > self.free_slots.len() {
            self.tell_head();
        }
        let place = self.pair.push(entry);
        self.recorder.command(place, entry);
        self.counters.commands += 1;
    }

    /// A command once more, under another identifier.
    pub(super) fn send_again(&mut self, slot: usize) {
        let place = &mut self.slots[slot];
        place.generation = place.generation.wrapping_add(1);
        place.retries += 1;
        place.entry = place.entry.with_cid(self.cids.make(slot, place.generation));
        let entry = place.entry;
        self.counters.retries += 1;
        self.send(&entry);
    }

    /// Keeps a request until its commands can be made.
    pub(super) fn keep(&mut self, index: u16, request: &Request, data: &[Span]) {
        let at = usize::from(index) * SEGMENTS_MAX;
        self.spans[at..at + data.len()].copy_from_slice(data);
        self.jobs[usize::from(index)] = Job { spans: data.len() as u16, waits: true, ..Job::of(request) };
        self.waiting.push_back(index);
    }

    /// Makes commands for the jobs that wait, in their order, as far as there are slots and pages.
    pub(super) fn pump(&mut self) {
        while let Some(&index) = self.waiting.front() {
            if self.issue(index) == Went::Nowhere {
                return;
            }
            self.waiting.pop_front();
            self.jobs[usize::from(index)].waits = false;
        }
    }

    fn issue(&mut self, index: u16) -> Went {
        while self.jobs[usize::from(index)].left > 0 {
            let job = self.jobs[usize::from(index)];
            if job.op == Op::Discard {
                // One deallocate at a time: it hangs on one list only.
                if job.out > 0 && self.ranges.is_none_or(|open| open.last != index) {
                    return Went::On;
                }
                if !self.add_range(index) {
                    return Went::Nowhere;
                }
                continue;
            }
            let Some(&slot) = self.free_slots.last() else { return Went::Nowhere };
            let Some((entry, data, blocks)) = self.command(index, &job) else { return Went::Nowhere };
            self.free_slots.pop();
            let bytes = if job.op.has_data() { blocks << self.block_shift } else { 0 };
            let place = &mut self.jobs[usize::from(index)];
            place.left -= blocks;
            place.lba += u64::from(blocks);
            place.done_bytes += bytes;
            place.out += 1;
            self.post(slot, index, entry, &data);
        }
        Went::On
    }

    /// The next command of a job, and how many blocks it is for.
    fn command(&mut self, index: u16, job: &Job) -> Option<(Entry, Data, u32)> {
        let none = Data { prp1: 0, prp2: 0, list: NONE, bounce: NONE };
        match job.op {
            Op::Flush => Some((Entry::new(nvm::FLUSH, self.namespace), none, 1)),
            Op::WriteZeroes => {
                let blocks = job.left.min(self.zeroes_blocks_max.min(ZEROES_BLOCKS_MAX));
                let mut entry = self.transfer(nvm::WRITE_ZEROES, (job.lba, blocks), job.fua, &none);
                entry.0[6] |= u64::from(if self.zeroes_deallocate { ZEROES_DEALLOCATE } else { 0 });
                Some((entry, none, blocks))
            }
            op => {
                let blocks = job.left.min(self.command_bytes_max >> self.block_shift);
                let spans = &self.spans[usize::from(index) * SEGMENTS_MAX..][..usize::from(job.spans)];
                let data = self.memory.pieces(spans, job.done_bytes, blocks << self.block_shift, op == Op::Write)?;
                let (opcode, fua) = if op == Op::Read { (nvm::READ, false) } else { (nvm::WRITE, job.fua) };
                Some((self.transfer(opcode, (job.lba, blocks), fua, &data), data, blocks))
            }
        }
    }

    /// The next range of a discard. False: no slot or page is free.
    fn add_range(&mut self, index: u16) -> bool {
        if self.ranges.is_none() {
            let Some(&slot) = self.free_slots.last() else { return false };
            let Some(list) = self.memory.lists.take() else { return false };
            self.free_slots.pop();
            self.ranges = Some(Ranges { slot, list, count: 0, blocks: 0, first: NONE, last: NONE });
        }
        let Some(mut open) = self.ranges else { return false };
        if open.last != index {
            match open.last {
                NONE => open.first = index,
                last => self.jobs[usize::from(last)].next = index,
            }
            open.last = index;
            self.jobs[usize::from(index)].next = NONE;
            self.jobs[usize::from(index)].out += 1;
        }
        let room = self.limits.deallocate_blocks_max - open.blocks;
        let job = &mut self.jobs[usize::from(index)];
        let blocks = job.left.min(self.limits.range_blocks_max).min(u32::try_from(room).unwrap_or(u32::MAX));
        self.memory.lists.set(open.list, 2 * usize::from(open.count), u64::from(blocks) << 32);
        self.memory.lists.set(open.list, 2 * usize::from(open.count) + 1, job.lba);
        job.left -= blocks;
        job.lba += u64::from(blocks);
        open.count += 1;
        open.blocks += u64::from(blocks);
        self.ranges = Some(open);
        if open.count >= self.limits.ranges_max || open.blocks >= self.limits.deallocate_blocks_max {
            self.close_ranges();
        }
        true
    }

    /// Sends the deallocate that was open.
    pub(super) fn close_ranges(&mut self) {
        let Some(open) = self.ranges.take() else { return };
        let data = Data { prp1: self.memory.lists.address(open.list), prp2: 0, list: open.list, bounce: NONE };
        let entry = Entry::new(nvm::DATASET_MANAGEMENT, self.namespace)
            .with_data(data.prp1, 0)
            .with_dw(10, u32::from(open.count) - 1)
            .with_dw(11, DEALLOCATE);
        self.post(open.slot, open.first, entry, &data);
    }

    /// A command has ended, or is given up: its slot is free, its jobs go on or are over.
    #[inline]
    pub(super) fn end(&mut self, slot: usize, outcome: Result<(), Error>) {
        let place = &mut self.slots[slot];
        place.busy = false;
        place.generation = place.generation.wrapping_add(1);
        let CommandSlot { job, list, bounce, .. } = *place;
        self.free_slots.push(slot as u16);
        if list != NONE || bounce != NONE {
            self.give_back(job, list, bounce, outcome.is_ok());
        }
        let mut index = job;
        while index != NONE {
            let next = self.jobs[usize::from(index)].next;
            self.ended_one(index, outcome);
            index = next;
        }
    }

    fn give_back(&mut self, job: u16, list: u16, bounce: u16, read: bool) {
        let Job { op, spans, .. } = self.jobs[usize::from(job)];
        if bounce != NONE && op == Op::Read && read {
            let spans = &self.spans[usize::from(job) * SEGMENTS_MAX..][..usize::from(spans)];
            self.memory.copy_out(spans, bounce);
        }
        self.memory.release(&Data { prp1: 0, prp2: 0, list, bounce });
    }

    #[inline]
    fn ended_one(&mut self, index: u16, outcome: Result<(), Error>) {
        let job = &mut self.jobs[usize::from(index)];
        job.out -= 1;
        job.next = NONE;
        if let Err(error) = outcome {
            job.fail(error);
        }
        if job.is_over() {
            self.finish(index);
        } else if job.out == 0 && !job.waits {
            job.waits = true;
            self.waiting.push_back(index);
        }
    }

    /// Reports a job.
    #[inline]
    pub(super) fn finish(&mut self, index: u16) {
        let job = &mut self.jobs[usize::from(index)];
        job.busy = false;
        let (tag, status) = (job.tag, job.outcome);
        if job.waits {
            job.waits = false;
            self.waiting.retain(|waiting| *waiting != index);
        }
        self.free_jobs.push(index);
        self.ended.push_back(block::Completion { tag, status });
    }

    /// A command failed: once more, if that may help.
    #[cold]
    pub(super) fn failed(&mut self, slot: usize, status: Status) {
        let place = self.slots[slot];
        let mut index = place.job;
        let mut cancelled = false;
        while index != NONE {
            cancelled |= self.jobs[usize::from(index)].cancelled;
            index = self.jobs[usize::from(index)].next;
        }
        if status.retry() && place.retries < self.shared.options.retries && !cancelled {
            self.send_again(slot);
        } else {
            self.end(slot, status.outcome());
        }
    }
}
