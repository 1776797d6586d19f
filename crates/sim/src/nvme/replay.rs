//! A queue's flight once more: what a driver's flight recorder kept becomes a test.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvme::Status;
use nvme::entry::{Answer, Entry};
use nvme::recorder::{Event, Record};
use nvme::registers::{ACQ, AQA, ASQ, CC, CC_ENABLE, CC_SIZES, submission_doorbell};
use pci::{DmaSpace as _, Mmio as _};
use shm::Region;

use super::SoftController;

/// What differed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// Commands given to the controller.
    pub commands: usize,
    /// Answered as they were in the record.
    pub same: usize,
    /// Answered in another way: identifier, then, now.
    pub other: Vec<(u16, Status, Status)>,
    /// In the record without an answer: what the flight was recorded for.
    pub unanswered: Vec<u16>,
}

/// Gives the commands of a record to a controller that nobody uses, in their order, with memory of their own in place of what is gone,
/// and compares the answers. Only what the record holds is known: data is zero.
///
/// # Errors
/// No memory, or the controller does not take such a queue.
pub fn replay(record: &Record, controller: &SoftController) -> Result<Outcome, String> {
    let mut replay = Replay::new(record, controller)?;
    let mut outcome = Outcome::default();
    let mut waiting: HashSet<u16> = HashSet::new();
    let mut then: Vec<(u16, Status)> = Vec::new();
    for event in &record.events {
        match event {
            Event::Command(entry) => {
                replay.command(entry)?;
                waiting.insert(entry.cid());
                outcome.commands += 1;
            }
            Event::Answer(answer) if waiting.remove(&answer.cid()) => then.push((answer.cid(), answer.status())),
            Event::Reset => waiting.clear(),
            _ => {}
        }
    }
    for (cid, before) in then {
        match replay.answers.iter().find(|(found, _)| *found == cid) {
            Some((_, now)) if *now == before => outcome.same += 1,
            Some((_, now)) => outcome.other.push((cid, before, *now)),
            None => outcome.unanswered.push(cid),
        }
    }
    outcome.unanswered.extend(waiting);
    Ok(outcome)
}

/// A queue of two small rings, driven by hand.
struct Replay<'a> {
    controller: &'a SoftController,
    queue: Ring,
    /// Zeroes, long enough for the largest transfer; and its device address.
    data: (Arc<Region>, u64),
    answers: Vec<(u16, Status)>,
}

const ENTRIES: u32 = 16;
const DATA_BYTES: usize = 1 << 20;

struct Ring {
    number: u16,
    region: Arc<Region>,
    at: u64,
    tail: u32,
    head: u32,
    phase: bool,
}

impl Ring {
    fn new(controller: &SoftController, number: u16) -> Result<Ring, String> {
        let region = controller.allocate(8192).map_err(|error| error.to_string())?;
        let at = controller.map(&region).map_err(|error| error.to_string())?.0;
        Ok(Ring { number, region, at, tail: 0, head: 0, phase: true })
    }

    fn run(&mut self, controller: &SoftController, entry: &Entry) -> Option<Answer> {
        for (word, value) in entry.0.iter().enumerate() {
            self.region.u64(self.tail as usize * 64 + 8 * word).store(*value, Ordering::Relaxed);
        }
        self.tail = (self.tail + 1) % ENTRIES;
        let stride = 4 << controller.lock().shape.stride_shift;
        controller.write32(submission_doorbell(self.number, stride), self.tail);
        controller.pass_until(None, controller.next_due().min(block::Time(u64::MAX - 1)));
        controller.step();
        let at = 4096 + self.head as usize * 16;
        let answer = Answer([self.region.u64(at).load(Ordering::Relaxed), self.region.u64(at + 8).load(Ordering::Acquire)]);
        if Answer::phase(answer.0[1]) != self.phase {
            return None;
        }
        self.head = (self.head + 1) % ENTRIES;
        self.phase ^= self.head == 0;
        controller.write32(submission_doorbell(self.number, stride) + stride, self.head);
        Some(answer)
    }
}

impl<'a> Replay<'a> {
    fn new(record: &Record, controller: &'a SoftController) -> Result<Replay<'a>, String> {
        let mut admin = Ring::new(controller, 0)?;
        controller.write32(AQA, (ENTRIES - 1) | (ENTRIES - 1) << 16);
        controller.write64(ASQ, admin.at);
        controller.write64(ACQ, admin.at + 4096);
        controller.write32(CC, CC_SIZES | CC_ENABLE);
        let region = controller.allocate(DATA_BYTES).map_err(|error| error.to_string())?;
        let at = controller.map(&region).map_err(|error| error.to_string())?.0;
        let queue = Ring::new(controller, record.queue)?;
        if record.queue > 0 {
            let rings = [Entry::create_cq(record.queue, ENTRIES, queue.at + 4096, None), Entry::create_sq(record.queue, ENTRIES, queue.at)];
            for entry in rings {
                let answer = admin.run(controller, &entry).ok_or("the controller does not answer")?;
                answer.status().is_ok().then_some(()).ok_or_else(|| format!("no such queue: {:?}", answer.status()))?;
            }
        }
        let queue = if record.queue == 0 { admin } else { queue };
        Ok(Replay { controller, queue, data: (region, at), answers: Vec::new() })
    }

    /// With memory of ours: a command names two pages, or one and a list.
    fn command(&mut self, entry: &Entry) -> Result<(), String> {
        let (prp1, prp2) = entry.data();
        let (region, at) = &self.data;
        let half = DATA_BYTES as u64 / 2;
        let mut entry = *entry;
        if prp1 != 0 {
            // A list in the last page, of pages from the second on.
            let list = at + half + half - 4096;
            for word in 0..100 {
                region.u64(DATA_BYTES - 4096 + 8 * word).store(at + 4096 * (word as u64 + 1), Ordering::Relaxed);
            }
            entry = entry.with_data(at + prp1 % 4096, if prp2 == 0 { 0 } else { list });
            let bytes = self.bytes(&entry, prp1);
            if prp2 != 0 && bytes <= 8192 - prp1 % 4096 {
                entry = entry.with_data(at + prp1 % 4096, at + 4096);
            }
        }
        if let Some(answer) = self.queue.run(self.controller, &entry) {
            self.answers.push((answer.cid(), answer.status()));
        }
        Ok(())
    }

    fn bytes(&self, entry: &Entry, prp1: u64) -> u64 {
        let state = self.controller.lock();
        let block = state.namespaces.get(&entry.namespace()).map_or(512, |content| u64::from(content.shape.block_bytes));
        super::commands::blocks(entry) * block + (prp1 & 3)
    }
}
