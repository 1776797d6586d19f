//! A queue's flight once more, byte for byte: what a driver's flight recorder kept becomes a test.
//!
//! Entries lie in the places where they lay, and doorbells are rung with the values they had; addresses are those of the record, with
//! zeroes behind them. Answers are asked for in the order of the record, and compared with all their bits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvme::entry::{Answer, Entry, admin, nvm as op};
use nvme::recorder::{Event, Record};
use nvme::registers::{ACQ, AQA, ASQ, CC, CC_ENABLE, CC_SIZES, completion_doorbell, submission_doorbell};
use pci::{DmaSpace as _, Mmio as _};
use shm::{PageSize, Region};

use super::SoftController;
use super::rings::{Completions, Submissions};

const PAGE: u64 = 4096;
/// Addresses above this are in no machine.
const ADDRESS_MAX: u64 = 1 << 56;

/// What differed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReplayOutcome {
    /// Commands given to the controller.
    pub commands: usize,
    /// Answers that are the same, all 16 bytes.
    pub same: usize,
    /// Those that only say another head of the submission queue: that one was fetched at another moment.
    pub fetched_otherwise: usize,
    /// Other answers: then, now.
    pub other: Vec<(Answer, Answer)>,
    /// Answered then, and not now.
    pub silent: Vec<u16>,
    /// Answers of the record to commands that are not in it, or that nobody gave.
    pub strays: usize,
    /// In the record without an answer: what the flight was recorded for.
    pub unanswered: Vec<u16>,
}

/// Gives the commands of a record to a controller that nobody uses, and compares the answers. Only what the record holds is known:
/// data, and lists of pages, are made up.
///
/// # Errors
/// No memory, addresses that are in no machine, or the controller does not take such a queue.
pub fn replay(record: &Record, controller: &SoftController) -> Result<ReplayOutcome, String> {
    let mut replay = QueueReplay::new(record, controller)?;
    for event in &record.events {
        replay.event(event)?;
    }
    replay.outcome.unanswered = replay.waiting.into_keys().collect();
    Ok(replay.outcome)
}

struct QueueReplay<'a> {
    controller: &'a SoftController,
    number: u16,
    entries: u32,
    /// Submissions first, completions behind them on a page of their own.
    rings: (Arc<Region>, u64),
    completions_at: usize,
    /// Where the next answer goes.
    place: u32,
    phase: bool,
    /// Commands without an answer, by identifier.
    waiting: BTreeMap<u16, Entry>,
    outcome: ReplayOutcome,
}

/// Places of the admin queue that makes the recorded one.
const ADMIN_ENTRIES: u32 = 16;

fn stride(controller: &SoftController) -> usize {
    4 << controller.lock().shape.stride_shift
}

impl<'a> QueueReplay<'a> {
    fn new(record: &Record, controller: &'a SoftController) -> Result<QueueReplay<'a>, String> {
        if !(2..=65_536).contains(&record.entries) {
            return Err(format!("a queue of {} places", record.entries));
        }
        controller.set_eager(false);
        map_memory(record, controller)?;
        let completions_at = (record.entries as usize * 64).next_multiple_of(4096);
        let rings = memory(controller, completions_at + record.entries as usize * 16)?;
        enable(controller)?;
        let (place, phase) = first_answer(record);
        let replay = QueueReplay {
            controller,
            number: record.queue,
            entries: record.entries,
            rings,
            completions_at,
            place,
            phase,
            waiting: BTreeMap::new(),
            outcome: ReplayOutcome::default(),
        };
        replay.make_queue(first_command(record), place, phase);
        Ok(replay)
    }

    /// The queue as it was when the record began.
    fn make_queue(&self, first: u32, place: u32, phase: bool) {
        let (number, entries, at) = (self.number, self.entries, self.rings.1);
        let mut state = self.controller.lock();
        state.submissions.insert(number, Submissions { at, entries, head: first, tail: first, completions: number });
        let at = at + self.completions_at as u64;
        state.completions.insert(number, Completions { at, entries, head: place, tail: place, phase, vector: None });
    }

    fn event(&mut self, event: &Event) -> Result<(), String> {
        match event {
            Event::Command(place, entry) if *place < self.entries => self.command(*place, entry),
            Event::Answer(place, answer) if *place < self.entries => self.answer(*place, answer),
            Event::Tail(value, _) => self.ring(submission_doorbell(self.number, stride(self.controller)), *value),
            Event::Head(value, _) => self.ring(completion_doorbell(self.number, stride(self.controller)), *value),
            Event::Reset => self.reset(),
            _ => return Err(format!("{event:?} in a queue of {} places", self.entries)),
        }
        Ok(())
    }

    fn command(&mut self, place: u32, entry: &Entry) {
        for (word, value) in entry.0.iter().enumerate() {
            self.rings.0.u64(place as usize * 64 + 8 * word).store(*value, Ordering::Relaxed);
        }
        self.waiting.insert(entry.cid(), *entry);
        self.outcome.commands += 1;
    }

    /// Writes a doorbell; what is behind it is fetched, and nothing ended.
    fn ring(&self, at: usize, value: u16) {
        self.controller.write32(at, value.into());
        let now = self.controller.times.now();
        let mut state = self.controller.lock();
        state.change_status(now);
        while state.is_running() && state.fetch(now) {}
    }

    fn answer(&mut self, place: u32, then: &Answer) {
        self.place = place;
        if self.waiting.remove(&then.cid()).is_none() {
            self.outcome.strays += 1;
            return self.pass_over();
        }
        self.end(then.cid());
        match self.taken() {
            None => {
                self.outcome.silent.push(then.cid());
                self.pass_over();
            }
            Some(now) if now == *then => self.outcome.same += 1,
            Some(now) if without_head(&now) == without_head(then) => self.outcome.fetched_otherwise += 1,
            Some(now) => self.outcome.other.push((*then, now)),
        }
    }

    /// The controller ends a command now, as if its time had come.
    fn end(&self, cid: u16) {
        let now = self.controller.times.now();
        let mut state = self.controller.lock();
        let found = state.pending.iter().find(|(_, pending)| pending.queue == self.number && pending.entry.cid() == cid);
        if let Some(key) = found.map(|(key, _)| *key).filter(|_| state.is_running())
            && let Some(pending) = state.pending.remove(&key)
        {
            state.end(pending, now);
        }
    }

    /// The answer in the next place.
    fn taken(&mut self) -> Option<Answer> {
        let at = self.completions_at + self.place as usize * 16;
        let word = |at| self.rings.0.u64(at).load(Ordering::Acquire);
        let answer = Answer([word(at), word(at + 8)]);
        (Answer::phase(answer.0[1]) == self.phase).then(|| {
            self.next_place();
            answer
        })
    }

    fn next_place(&mut self) {
        self.place = (self.place + 1) % self.entries;
        self.phase ^= self.place == 0;
    }

    /// The controller had written an answer that it does not write now.
    fn pass_over(&mut self) {
        self.next_place();
        if let Some(ring) = self.controller.lock().completions.get_mut(&self.number) {
            (ring.tail, ring.phase) = (self.place, self.phase);
        }
    }

    fn reset(&mut self) {
        self.waiting.clear();
        let number = self.number;
        match number {
            // With the admin queue the whole controller began anew.
            0 => self.controller.lock().drop_everything(),
            _ => self.controller.lock().pending.retain(|_, pending| pending.queue != number),
        }
        self.rings.0.fill(0..self.rings.0.len(), 0);
        (self.place, self.phase) = (0, true);
        self.make_queue(0, 0, true);
    }
}

/// Of an answer, all but the head of the submission queue.
fn without_head(answer: &Answer) -> Answer {
    Answer([answer.0[0], answer.0[1] & !0xffff])
}

/// Where the first command lay; the tail, if no command is told of.
fn first_command(record: &Record) -> u32 {
    let of = |event: &Event| match event {
        Event::Command(place, _) => Some(*place),
        Event::Tail(value, _) => Some((*value).into()),
        Event::Reset => Some(0),
        _ => None,
    };
    record.events.iter().find_map(of).filter(|place| *place < record.entries).unwrap_or(0)
}

fn first_answer(record: &Record) -> (u32, bool) {
    let of = |event: &Event| match event {
        Event::Answer(place, answer) => Some((*place, Answer::phase(answer.0[1]))),
        Event::Reset => Some((0, true)),
        _ => None,
    };
    record.events.iter().find_map(of).filter(|(place, _)| *place < record.entries).unwrap_or((0, true))
}

fn memory(controller: &SoftController, bytes: usize) -> Result<(Arc<Region>, u64), String> {
    let region = controller.allocate(bytes).map_err(|error| error.to_string())?;
    let at = controller.map(&region).map_err(|error| error.to_string())?.0;
    Ok((region, at))
}

fn enable(controller: &SoftController) -> Result<(), String> {
    let (_, at) = memory(controller, 8192)?;
    controller.write32(AQA, (ADMIN_ENTRIES - 1) | (ADMIN_ENTRIES - 1) << 16);
    controller.write64(ASQ, at);
    controller.write64(ACQ, at + PAGE);
    controller.write32(CC, CC_SIZES | CC_ENABLE);
    let mut state = controller.lock();
    let now = controller.times.now();
    while !state.is_running() {
        // Becoming ready takes a time that nobody has to wait for here.
        let Some((_, status)) = state.changes_at.take() else { return Err("the controller does not become ready".to_owned()) };
        state.changes_at = Some((now, status));
        state.change_status(now);
    }
    Ok(())
}

/// The pages that a record's commands name, where they name them; lists are filled with pages of zeroes.
fn map_memory(record: &Record, controller: &SoftController) -> Result<(), String> {
    let (mut pages, mut lists) = (BTreeSet::new(), BTreeSet::new());
    for event in &record.events {
        let Event::Command(_, entry) = event else { continue };
        let (prp1, prp2) = entry.data();
        let bytes = data_bytes(controller, record.queue, entry);
        let in_first = PAGE - prp1 % PAGE;
        if bytes > 0 {
            pages.insert(prp1 / PAGE * PAGE);
        }
        if bytes > in_first {
            pages.insert(prp2 / PAGE * PAGE);
        }
        if bytes > in_first + PAGE {
            lists.insert(prp2);
        }
    }
    let end = pages.last().map_or(0, |page| page.saturating_add(PAGE));
    if end > ADDRESS_MAX {
        return Err(format!("a page at {:#x}", end - PAGE));
    }
    controller.lock().memory.go_on_from(end);
    let (_, zeroes) = memory(controller, PAGE as usize)?;
    for page in &pages {
        let region = Arc::new(Region::private(PAGE as usize, PageSize::Small).map_err(|error| error.to_string())?);
        for list in lists.range(*page..*page + PAGE) {
            for at in ((list % PAGE).next_multiple_of(8)..PAGE).step_by(8) {
                region.u64(at as usize).store(zeroes, Ordering::Relaxed);
            }
        }
        controller.lock().memory.put_at(*page, &region);
    }
    Ok(())
}

/// Bytes that a command names; none for those whose memory is not looked at here.
fn data_bytes(controller: &SoftController, queue: u16, entry: &Entry) -> u64 {
    let state = controller.lock();
    let block = state.namespaces.get(&entry.namespace()).map_or(512, |content| u64::from(content.shape.block_bytes));
    match (queue, entry.opcode()) {
        (0, admin::IDENTIFY | admin::GET_LOG_PAGE) => PAGE,
        (0, admin::DOORBELL_BUFFER) => 2 * PAGE,
        (0, _) => 0,
        (_, op::READ | op::WRITE) => super::commands::blocks(entry) * block,
        (_, op::DATASET_MANAGEMENT) => (u64::from(entry.dw(10) & 0xff) + 1) * 16,
        _ => 0,
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::device::clock::VirtualClock;
    use crate::nvme::ControllerConfig;

    fn controller() -> SoftController {
        SoftController::new(ControllerConfig::default(), &VirtualClock::default(), 1)
    }

    /// A driver's record, written down by hand: a read that was answered, one that was not.
    #[test]
    fn a_text_is_flown() {
        let text = "queue 1 of 4 entries\ncommand 3 100020002 1000000 0 5 0 0\ntail 0 1\nanswer 3 0 1000200010000\nhead 0 1\n\
                    command 0 100030002 1000000 0 6 0 0\ntail 1 1\n";
        let outcome = replay(&text.parse().expect("a record"), &controller()).expect("flown");
        let wanted = ReplayOutcome { commands: 2, same: 1, unanswered: vec![3], ..ReplayOutcome::default() };
        assert_eq!(outcome, wanted);
    }

    #[test]
    fn any_record_is_flown_or_refused() {
        for seed in 0..300 {
            let mut random = fastrand::Rng::with_seed(seed);
            let entries = random.u32(2..20);
            let event = |random: &mut fastrand::Rng| {
                let wide = |random: &mut fastrand::Rng| if random.bool() { random.u64(..) } else { random.u64(..1 << 24) };
                match random.u8(..5) {
                    0 | 1 => {
                        let opcode = [0, 1, 2, 6, 8, 9, 0x0c, 0x7c][random.usize(..8)];
                        let entry = Entry::new(opcode, random.u32(..3)).with_cid(random.u16(..8));
                        let entry =
                            entry.with_data(wide(random), wide(random)).with_dw(10, random.u32(..3000)).with_dw(12, random.u32(..200));
                        Event::Command(random.u32(..entries), entry)
                    }
                    2 => Event::Answer(random.u32(..entries), Answer([wide(random), random.u64(..) & !0xfff8_0000_0000])),
                    3 => [Event::Tail, Event::Head][random.usize(..2)](random.u16(..entries as u16), true),
                    _ if random.u8(..9) == 0 => Event::Reset,
                    _ => Event::Tail(random.u16(..entries as u16), false),
                }
            };
            let events = (0..random.usize(..60)).map(|_| event(&mut random)).collect();
            let _ = replay(&Record { queue: random.u16(..3), entries, events }, &controller());
        }
    }
}
