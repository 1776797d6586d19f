//! Replays a flight recording byte for byte, so that a driver's recording becomes a test.
//!
//! Entries are placed where they were, doorbells get the recorded values, and addresses are the recorded ones, with zeroes behind them.
//! Completions are requested in recorded order and compared bit by bit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvme::entry::{CompletionEntry, Entry, admin, nvm as op};
use nvme::recorder::{Event, Record};
use nvme::registers::{ACQ, AQA, ASQ, CC, CC_ENABLE, CC_SIZES, completion_doorbell, submission_doorbell};
use pci::{DmaSpace as _, Mmio as _};
use shm::{PageSize, Region};

use super::SoftController;
use super::rings::{Completions, Submissions};

const PAGE: u64 = 4096;
/// Addresses above this exist on no machine.
const ADDRESS_MAX: u64 = 1 << 56;

/// The differences between a recording and its replay.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReplayOutcome {
    /// Commands given to the controller.
    pub commands: usize,
    /// Number of identical completions, all 16 bytes.
    pub same: usize,
    /// Number of completions that differ only in the submission queue head: the command was fetched at another time.
    pub fetched_otherwise: usize,
    /// Other completions: recorded and replayed one.
    pub other: Vec<(CompletionEntry, CompletionEntry)>,
    /// Commands with a recorded completion but none now.
    pub silent: Vec<u16>,
    /// Number of recorded completions without a recorded command.
    pub strays: usize,
    /// Commands that never completed: the reason for the recording.
    pub unanswered: Vec<u16>,
}

/// Replays the commands of a recording on an unused controller and compares completions. Data and page lists, which are not recorded, are
/// made up.
///
/// # Errors
/// No memory, invalid addresses, or the controller rejects such a queue.
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
    /// Index of the next completion entry.
    place: u32,
    phase: bool,
    /// Commands without a completion, by identifier.
    waiting: BTreeMap<u16, Entry>,
    outcome: ReplayOutcome,
}

/// Entries of the admin queue that creates the recorded queue.
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

    /// Creates the queue as it was at the start of the recording.
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
            Event::Completion(place, answer) if *place < self.entries => self.answer(*place, answer),
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

    /// Writes a doorbell and fetches the commands without completing any.
    fn ring(&self, at: usize, value: u16) {
        self.controller.write32(at, value.into());
        let now = self.controller.times.now();
        let mut state = self.controller.lock();
        state.change_status(now);
        while state.is_running() && state.fetch(now) {}
    }

    fn answer(&mut self, place: u32, then: &CompletionEntry) {
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

    /// Completes a command now, as if it were due.
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

    /// Returns the next completion entry.
    fn taken(&mut self) -> Option<CompletionEntry> {
        let at = self.completions_at + self.place as usize * 16;
        let word = |at| self.rings.0.u64(at).load(Ordering::Acquire);
        let answer = CompletionEntry([word(at), word(at + 8)]);
        (CompletionEntry::phase(answer.0[1]) == self.phase).then(|| {
            self.next_place();
            answer
        })
    }

    fn next_place(&mut self) {
        self.place = (self.place + 1) % self.entries;
        self.phase ^= self.place == 0;
    }

    /// Skips a recorded completion that is missing now.
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
            // The admin queue's recording starts with a controller reset.
            0 => self.controller.lock().drop_everything(),
            _ => self.controller.lock().pending.retain(|_, pending| pending.queue != number),
        }
        self.rings.0.fill(0..self.rings.0.len(), 0);
        (self.place, self.phase) = (0, true);
        self.make_queue(0, 0, true);
    }
}

/// Returns a completion without the submission queue head.
fn without_head(answer: &CompletionEntry) -> CompletionEntry {
    CompletionEntry([answer.0[0], answer.0[1] & !0xffff])
}

/// Returns the index of the first command, or the tail if the recording has none.
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
        Event::Completion(place, answer) => Some((*place, CompletionEntry::phase(answer.0[1]))),
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
        // Skips the time until ready.
        let Some((_, status)) = state.changes_at.take() else { return Err("the controller does not become ready".to_owned()) };
        state.changes_at = Some((now, status));
        state.change_status(now);
    }
    Ok(())
}

/// Maps the pages that the recorded commands name; lists are filled with pages of zeroes.
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

/// Returns the data size of a command; 0 for commands whose memory is not accessed here.
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

    /// Replays a handwritten recording: one read completed, one not.
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
                    2 => Event::Completion(random.u32(..entries), CompletionEntry([wide(random), random.u64(..) & !0xfff8_0000_0000])),
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
