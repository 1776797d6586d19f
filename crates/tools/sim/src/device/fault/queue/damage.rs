//! Damage to data: torn writes, flipped bits, memory that a hung read overwrites.

use block::{Clock, Op, Queue, Request, Submit};

use super::{FaultyQueue, SCRATCH_BYTES, SECTOR, SlotState};
use crate::device::fault::rules::{Fault, TornPart};

impl<Q: Queue, C: Clock> FaultyQueue<Q, C> {
    /// Starts the torn write once it is alone.
    pub(super) fn read_old(&mut self) -> Submit {
        let Some(index) = self.torn.filter(|torn| self.slots[*torn as usize].state == SlotState::AwaitingIdle) else {
            return Submit::Queued;
        };
        if self.below > 0 {
            return Submit::Queued;
        }
        self.below += 1;
        self.slots[index as usize].state = SlotState::ReadingOld;
        let below = Request { tag: self.tag(index), op: Op::Read, fua: false, ..self.slots[index as usize].request };
        self.submit_scratch(index, below)
    }

    pub(super) fn submit_scratch(&mut self, index: u32, below: Request) -> Submit {
        let scratch = self.slots[index as usize].scratch.expect("taken at submission") as usize;
        let bytes = below.blocks * self.queue.geometry().block_bytes;
        let span = self.scratch.span(scratch * SCRATCH_BYTES, bytes);
        self.queue.submit(&below, &[span])
    }

    /// Copies the data of a write into the scratch buffer.
    pub(super) fn copy_to_scratch(&mut self, index: u32) -> usize {
        let mut bytes = 0;
        let first = index as usize * self.segments;
        for at in first..first + usize::from(self.slots[index as usize].spans) {
            let span = self.spans[at];
            let arena = self.arenas.iter().find(|arena| arena.id() == span.arena).expect("registered before it is named");
            arena.region().read(span.at as usize, &mut self.bytes[bytes..bytes + span.bytes as usize]);
            bytes += span.bytes as usize;
        }
        bytes
    }

    pub(super) fn fill_scratch(&mut self, index: u32, bytes: usize) {
        let scratch = self.slots[index as usize].scratch.expect("taken at submission") as usize;
        self.scratch.region().write(scratch * SCRATCH_BYTES, &self.bytes[..bytes]);
    }

    /// Writes the sectors that arrive over the old content.
    pub(super) fn tear(&mut self, index: u32) -> Submit {
        let Some(Fault::Torn(torn, _)) = self.slots[index as usize].fault else { unreachable!("only torn writes read first") };
        let bytes = self.copy_to_scratch(index);
        let sectors = bytes / SECTOR;
        let prefix = match torn {
            TornPart::Prefix(sectors) => sectors as usize,
            TornPart::AnyPrefix => self.random.usize(..sectors),
            TornPart::Any => 0,
        };
        let missing = self.random.usize(..sectors);
        let scratch = self.slots[index as usize].scratch.expect("taken at submission") as usize * SCRATCH_BYTES;
        for sector in 0..sectors {
            let arrives = sector < prefix || (torn == TornPart::Any && sector != missing && self.random.bool());
            if arrives {
                let at = sector * SECTOR;
                self.scratch.region().write(scratch + at, &self.bytes[at..at + SECTOR]);
            }
        }
        self.slots[index as usize].state = SlotState::Forwarded;
        let below = Request { tag: self.tag(index), ..self.slots[index as usize].request };
        self.submit_scratch(index, below)
    }

    pub(super) fn flip_memory(&mut self, index: u32, bits: u32) {
        for _ in 0..bits {
            let chosen = self.random.usize(..usize::from(self.slots[index as usize].spans));
            let span = self.memory(index)[chosen];
            let at = (span.at + u64::from(self.random.u32(..span.bytes))) as usize;
            let arena = self.arenas.iter().find(|arena| arena.id() == span.arena).expect("registered before it is named");
            let mut byte = [0];
            arena.region().read(at, &mut byte);
            byte[0] ^= 1 << self.random.u32(..8);
            arena.region().write(at, &byte);
        }
    }

    /// Overwrites the memory of hung reads, as a device may.
    pub(super) fn touch_hung(&mut self) {
        let index = self.random.u32(..self.slots.len() as u32);
        let slot = &self.slots[index as usize];
        if !matches!(slot.state, SlotState::Hung(_)) || slot.request.op != Op::Read {
            return;
        }
        for span in self.memory(index) {
            let arena = self.arenas.iter().find(|arena| arena.id() == span.arena).expect("registered before it is named");
            arena.region().fill(span.at as usize..span.at as usize + span.bytes as usize, 0xdd);
        }
    }
}

/// Flips random bits of the buffer.
pub(super) fn flip(bytes: &mut [u8], bits: u32, random: &mut fastrand::Rng) {
    for _ in 0..bits {
        bytes[random.usize(..bytes.len())] ^= 1 << random.u32(..8);
    }
}
