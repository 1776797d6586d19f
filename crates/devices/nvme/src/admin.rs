//! The admin queue carries few commands. Each has a deadline and a dedicated page of memory. No function here blocks.

use std::collections::VecDeque;
use std::sync::Arc;

use block::Time;

use crate::cid::Cids;
use crate::entry::{CompletionEntry, Entry};
use crate::identify::Page;
use crate::mapping::{Mapping, PAGE_BYTES};
use crate::pair::Pair;
use crate::recorder::{Flight, Record, Recorder};
use crate::status::Status;
use pci::{DmaError, DmaSpace, Mmio};

/// The reason why an admin command failed.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The controller did not complete the command by its deadline.
    #[error("the controller does not answer")]
    Timeout,
    /// The device is not there any more: its registers read as all ones.
    #[error("the device is gone")]
    Gone,
    /// The controller reports a fatal fault.
    #[error("the controller reports a fatal fault")]
    Fatal,
    /// The controller did not become ready, or not ready, within the time that it declares.
    #[error("the controller does not become {0} in the time it says it needs")]
    Stuck(&'static str),
    /// The controller refused the command.
    #[error("the controller refuses: {0:?}")]
    Status(Status),
    /// The controller was reset meanwhile.
    #[error("the controller was reset")]
    Reset,
    /// No slot is free: all commands are still in flight.
    #[error("too many admin commands at once")]
    Full,
    /// No memory could be mapped for the device.
    #[error(transparent)]
    Dma(#[from] DmaError),
    /// This driver does not support the controller.
    #[error("{0}")]
    Unusable(String),
}

/// Places of each ring; one command less.
const ENTRIES: u32 = 32;
const SLOTS: usize = ENTRIES as usize - 1;
/// The number of event completions that are kept until somebody takes them.
const EVENTS: usize = 32;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SlotState {
    Free,
    Waiting(Wants),
    Done(CompletionEntry),
    /// Over its deadline; the device has its memory still.
    Lost,
}

/// What happens with the completion of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wants {
    /// The sender takes it by its ticket.
    Completion,
    /// It is dropped.
    Nothing,
    /// It is kept as an asynchronous event.
    Event,
}

#[derive(Clone, Copy, Debug)]
struct AdminSlot {
    state: SlotState,
    generation: u16,
    deadline: Time,
}

/// A command that was put into the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ticket {
    slot: usize,
    generation: u16,
}

pub(crate) struct Admin {
    pair: Pair,
    pages: Mapping,
    cids: Cids,
    slots: [AdminSlot; SLOTS],
    events: VecDeque<CompletionEntry>,
    recorder: Recorder,
    strays: u64,
}

impl Admin {
    pub(crate) fn new(
        mmio: &Arc<dyn Mmio>,
        dma: &Arc<dyn DmaSpace>,
        (entries_max, stride): (u32, usize),
        flight: &Flight,
    ) -> Result<Admin, DmaError> {
        let entries = ENTRIES.min(entries_max);
        Ok(Admin {
            pair: Pair::new(mmio, dma, (0, entries), stride, None)?,
            pages: Mapping::new(dma, SLOTS * PAGE_BYTES)?,
            cids: Cids::new(SLOTS),
            slots: [AdminSlot { state: SlotState::Free, generation: 0, deadline: Time::NEVER }; SLOTS],
            events: VecDeque::with_capacity(EVENTS),
            recorder: flight.recorder(0, entries),
            strays: 0,
        })
    }

    pub(crate) fn entries(&self) -> u32 {
        self.pair.entries()
    }

    pub(crate) fn addresses(&self) -> (u64, u64) {
        self.pair.addresses()
    }

    pub(crate) fn strays(&self) -> u64 {
        self.strays
    }

    pub(crate) fn record(&self) -> Record {
        self.recorder.record()
    }

    /// Forgets everything; when the controller is disabled.
    pub(crate) fn clear(&mut self) {
        self.pair.clear();
        self.recorder.reset();
        self.events.clear();
        for slot in &mut self.slots {
            *slot = AdminSlot { state: SlotState::Free, generation: slot.generation.wrapping_add(1), deadline: Time::NEVER };
        }
    }

    /// Submits a command and rings the doorbell. `page`: the command gets a page for the data that it returns.
    pub(crate) fn submit(&mut self, entry: Entry, page: bool, wants: Wants, deadline: Time) -> Result<Ticket, AdminError> {
        self.submit_with(entry, page.then_some(&[][..]), wants, deadline)
    }

    /// Submits a command with a page that starts with these bytes; the rest is zero.
    pub(crate) fn submit_with(&mut self, entry: Entry, page: Option<&[u8]>, wants: Wants, deadline: Time) -> Result<Ticket, AdminError> {
        let most = self.pair.entries() as usize - 1;
        let slot = self.slots[..most.min(SLOTS)].iter().position(|slot| slot.state == SlotState::Free).ok_or(AdminError::Full)?;
        let generation = self.slots[slot].generation;
        let mut entry = entry.with_cid(self.cids.make(slot, generation));
        if let Some(data) = page {
            self.pages.region().fill(slot * PAGE_BYTES..(slot + 1) * PAGE_BYTES, 0);
            self.pages.region().write(slot * PAGE_BYTES, &data[..data.len().min(PAGE_BYTES)]);
            entry = entry.with_data(self.pages.address(slot * PAGE_BYTES), 0);
        }
        self.slots[slot].state = SlotState::Waiting(wants);
        self.slots[slot].deadline = deadline;
        let place = self.pair.push(&entry);
        self.recorder.command(place, &entry);
        let (tail, written) = self.pair.ring();
        self.recorder.tail(tail, written);
        Ok(Ticket { slot, generation })
    }

    /// Reaps the available completion entries.
    pub(crate) fn poll(&mut self) {
        // The limit keeps a device that completes without end from blocking the caller.
        for _ in 0..self.pair.entries() {
            let Some((place, answer)) = self.pair.pop() else { break };
            self.recorder.answer(place, &answer);
            self.end(answer);
        }
        if let Some((head, written)) = self.pair.give_back() {
            self.recorder.head(head, written);
        }
    }

    fn end(&mut self, answer: CompletionEntry) {
        let index = self.cids.slot(answer.cid());
        let known = self.slots.get(index).is_some_and(|slot| self.cids.make(index, slot.generation) == answer.cid());
        if !known || matches!(self.slots[index].state, SlotState::Free | SlotState::Done(_)) {
            self.strays += 1;
            return;
        }
        match self.slots[index].state {
            SlotState::Waiting(Wants::Completion) => self.slots[index].state = SlotState::Done(answer),
            SlotState::Waiting(Wants::Event) => {
                self.free(index);
                if self.events.len() < EVENTS {
                    self.events.push_back(answer);
                }
            }
            _ => self.free(index),
        }
    }

    fn free(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.state = SlotState::Free;
        slot.generation = slot.generation.wrapping_add(1);
    }

    /// Returns the outcome of a command, once. `None`: it is in flight, and its deadline has not passed.
    pub(crate) fn take(&mut self, ticket: Ticket, now: Time) -> Option<Result<CompletionEntry, AdminError>> {
        let slot = &mut self.slots[ticket.slot];
        if slot.generation != ticket.generation {
            return Some(Err(AdminError::Reset));
        }
        match slot.state {
            SlotState::Done(answer) => {
                self.free(ticket.slot);
                Some(if answer.status().is_ok() { Ok(answer) } else { Err(AdminError::Status(answer.status())) })
            }
            SlotState::Waiting(_) if now < slot.deadline => None,
            SlotState::Waiting(_) => {
                slot.state = SlotState::Lost;
                Some(Err(AdminError::Timeout))
            }
            SlotState::Free | SlotState::Lost => Some(Err(AdminError::Timeout)),
        }
    }

    /// Returns the page of a command whose completion was just taken.
    pub(crate) fn page(&self, ticket: Ticket) -> Page {
        let mut page = [0; PAGE_BYTES];
        self.pages.region().read(ticket.slot * PAGE_BYTES, &mut page);
        page
    }

    /// Returns the number of commands in flight whose completion is dropped: aborts.
    pub(crate) fn unwaited(&self) -> usize {
        self.slots.iter().filter(|slot| slot.state == SlotState::Waiting(Wants::Nothing)).count()
    }

    pub(crate) fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    /// The next event.
    pub(crate) fn take_event(&mut self) -> Option<CompletionEntry> {
        self.events.pop_front()
    }
}
