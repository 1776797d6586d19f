//! From pieces of the caller's memory to what a command says of it: PRP entries (NVMe base specification 2.0, section 4.1.1).
//!
//! The first entry may point into a page, all others point to the begin of one. A piece that does not lie so is copied through a page of
//! ours: the longest piece decides where pages begin, so that of a long transfer only the ends are copied.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use block::{Arena, Error, Span};
use shm::{Region, SharedSlice};

use super::commands::NONE;
use crate::mapping::{Mapping, PAGE_BYTES};
use crate::shared::Shared;
use pci::{DmaError, DmaSpace};

const PAGE: u64 = PAGE_BYTES as u64;

/// An arena that was registered.
struct Known {
    id: block::buffer::ArenaId,
    region: Arc<Region>,
    /// None: the device cannot reach it, everything is copied.
    mapping: Option<Arc<Mapping>>,
}

/// The arenas of a queue.
#[derive(Default)]
pub(super) struct Arenas {
    known: Vec<Known>,
    last: usize,
}

impl Arenas {
    pub(super) fn add(&mut self, shared: &Shared, arena: &Arena) -> Result<(), Error> {
        if self.known.iter().any(|known| known.id == arena.id()) {
            return Ok(());
        }
        let mapping = shared.map(arena)?;
        self.known.push(Known { id: arena.id(), region: Arc::clone(arena.region()), mapping });
        Ok(())
    }

    #[inline]
    fn find(&mut self, span: Span) -> Option<&Known> {
        if self.known.get(self.last).is_none_or(|known| known.id != span.arena) {
            self.last = self.known.iter().position(|known| known.id == span.arena)?;
        }
        let known = &self.known[self.last];
        let inside = span.at.checked_add(u64::from(span.bytes)).is_some_and(|end| end <= known.region.len() as u64);
        inside.then_some(known)
    }

    /// Returns whether the span lies in a registered arena.
    pub(super) fn has(&mut self, span: Span) -> bool {
        self.find(span).is_some()
    }

    /// The device's address of a piece; none: it has none.
    #[inline]
    pub(super) fn address(&mut self, span: Span) -> Option<u64> {
        let known = self.find(span)?;
        Some(known.mapping.as_ref()?.address(span.at as usize))
    }

    /// Copies between bytes `at..` of pieces in a row and a region.
    fn copy(&mut self, spans: &[Span], mut at: u32, (region, mut region_at, mut left): (&Region, usize, usize), out: bool) {
        for span in spans {
            if at >= span.bytes {
                at -= span.bytes;
                continue;
            }
            let bytes = ((span.bytes - at) as usize).min(left);
            if let Some(known) = self.find(*span) {
                let memory_at = span.at as usize + at as usize;
                match out {
                    true => region.copy(region_at, &known.region, memory_at, bytes),
                    false => known.region.copy(memory_at, region, region_at, bytes),
                }
            }
            (at, region_at, left) = (0, region_at + bytes, left - bytes);
            if left == 0 {
                return;
            }
        }
    }
}

/// Pages that the device reaches, for lists or for copies.
pub(super) struct Pages {
    memory: Mapping,
    words: SharedSlice<AtomicU64>,
    free: Vec<u16>,
}

impl Pages {
    pub(super) fn new(dma: &Arc<dyn DmaSpace>, count: u16) -> Result<Pages, DmaError> {
        let memory = Mapping::new(dma, usize::from(count) * PAGE_BYTES)?;
        let words = SharedSlice::new(memory.region(), 0, usize::from(count) * PAGE_BYTES / 8);
        Ok(Pages { memory, words, free: (0..count).rev().collect() })
    }

    pub(super) fn take(&mut self) -> Option<u16> {
        self.free.pop()
    }

    pub(super) fn give(&mut self, page: u16) {
        if page != NONE {
            self.free.push(page);
        }
    }

    pub(super) fn address(&self, page: u16) -> u64 {
        self.memory.address(usize::from(page) * PAGE_BYTES)
    }

    /// Writes a word of a page.
    #[inline]
    pub(super) fn set(&self, page: u16, word: usize, value: u64) {
        self.words[usize::from(page) * (PAGE_BYTES / 8) + word].store(value, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy)]
struct Bounce {
    next: u16,
    /// Where in the page.
    offset: u16,
    bytes: u16,
    /// Where in the job's memory.
    at: u32,
}

/// The lists of a queue, and its pages for copies.
pub(super) struct Memory {
    /// The arenas that the device reaches.
    pub arenas: Arenas,
    /// Pages that hold PRP lists and ranges of deallocates.
    pub lists: Pages,
    pages: Pages,
    bounces: Box<[Bounce]>,
    /// The number of pages copied so far.
    pub bounced: u64,
}

/// The memory of a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Data {
    /// The first PRP entry of the command.
    pub prp1: u64,
    /// The second PRP entry of the command.
    pub prp2: u64,
    /// The page that holds its PRP list, or `NONE`.
    pub list: u16,
    /// The first page used for copies, or `NONE`.
    pub bounce: u16,
}

impl Memory {
    pub(super) fn new(dma: &Arc<dyn DmaSpace>, lists: u16, pages: u16) -> Result<Memory, DmaError> {
        Ok(Memory {
            arenas: Arenas::default(),
            lists: Pages::new(dma, lists)?,
            pages: Pages::new(dma, pages)?,
            bounces: vec![Bounce { next: NONE, offset: 0, bytes: 0, at: 0 }; usize::from(pages)].into(),
            bounced: 0,
        })
    }

    /// Describes one piece of mapped memory. `None`: no PRP list is free.
    #[inline]
    pub(super) fn single(&mut self, address: u64, bytes: u32) -> Option<Data> {
        let first = PAGE - address % PAGE;
        let bytes = u64::from(bytes);
        if bytes <= first {
            return Some(Data { prp1: address, prp2: 0, list: NONE, bounce: NONE });
        }
        let second = address + first;
        if bytes <= first + PAGE {
            return Some(Data { prp1: address, prp2: second, list: NONE, bounce: NONE });
        }
        let list = self.lists.take()?;
        for page in 0..(bytes - first).div_ceil(PAGE) {
            self.lists.set(list, page as usize, second + page * PAGE);
        }
        Some(Data { prp1: address, prp2: self.lists.address(list), list, bounce: NONE })
    }

    /// Describes bytes `from..from + bytes` of several pieces in sequence. `copy_in`: the device reads them. `None`: no pages are free.
    pub(super) fn pieces(&mut self, spans: &[Span], from: u32, bytes: u32, copy_in: bool) -> Option<Data> {
        let phase = self.phase(spans, from, bytes);
        let entries = (phase + u64::from(bytes)).div_ceil(PAGE);
        let list = if entries > 2 { self.lists.take()? } else { NONE };
        let mut data = Data { prp1: 0, prp2: if list == NONE { 0 } else { self.lists.address(list) }, list, bounce: NONE };
        let mut at = 0;
        for entry in 0..entries {
            let offset = if entry == 0 { phase } else { 0 };
            let chunk = (PAGE - offset).min(u64::from(bytes) - at);
            let place = (from + at as u32, chunk as u32, offset);
            let Some(address) = self.direct(spans, place).or_else(|| self.bounce(spans, place, copy_in, &mut data.bounce)) else {
                self.release(&data);
                return None;
            };
            match entry {
                0 => data.prp1 = address,
                1 if list == NONE => data.prp2 = address,
                _ => self.lists.set(list, entry as usize - 1, address),
            }
            at += chunk;
        }
        Some(data)
    }

    /// Where in a page the first byte lies, so that the longest piece needs no copy.
    fn phase(&mut self, spans: &[Span], from: u32, bytes: u32) -> u64 {
        let (mut begin, mut longest, mut phase) = (0_u64, 0, 0);
        let (from, end) = (u64::from(from), u64::from(from) + u64::from(bytes));
        for span in spans {
            let (lo, hi) = (begin.max(from), (begin + u64::from(span.bytes)).min(end));
            if hi > lo
                && hi - lo > longest
                && let Some(address) = self.arenas.address(*span)
            {
                longest = hi - lo;
                // Modulo a page, as if the address went on downwards to the first byte.
                phase = (address + (lo - begin)).wrapping_sub(lo - from) % PAGE;
            }
            begin += u64::from(span.bytes);
        }
        phase
    }

    /// The address of a chunk that lies in one piece, and so in its page.
    fn direct(&mut self, spans: &[Span], (mut at, bytes, offset): (u32, u32, u64)) -> Option<u64> {
        for span in spans {
            if at < span.bytes {
                if bytes > span.bytes - at {
                    return None;
                }
                let address = self.arenas.address(span.part(at, bytes))?;
                return (address % PAGE == offset).then_some(address);
            }
            at -= span.bytes;
        }
        None
    }

    fn bounce(&mut self, spans: &[Span], (at, bytes, offset): (u32, u32, u64), copy_in: bool, chain: &mut u16) -> Option<u64> {
        let page = self.pages.take()?;
        self.bounces[usize::from(page)] = Bounce { next: *chain, offset: offset as u16, bytes: bytes as u16, at };
        *chain = page;
        self.bounced += 1;
        if copy_in {
            let place = usize::from(page) * PAGE_BYTES + offset as usize;
            self.arenas.copy(spans, at, (self.pages.memory.region(), place, bytes as usize), false);
        }
        Some(self.pages.address(page) + offset)
    }

    /// Copies data that the device wrote to bounce pages into the caller's memory.
    pub(super) fn copy_out(&mut self, spans: &[Span], mut page: u16) {
        while page != NONE {
            let Bounce { next, offset, bytes, at } = self.bounces[usize::from(page)];
            let place = usize::from(page) * PAGE_BYTES + usize::from(offset);
            self.arenas.copy(spans, at, (self.pages.memory.region(), place, bytes.into()), true);
            page = next;
        }
    }

    /// The device has ended: list and pages are free.
    pub(super) fn release(&mut self, data: &Data) {
        self.lists.give(data.list);
        let mut page = data.bounce;
        while page != NONE {
            let next = self.bounces[usize::from(page)].next;
            self.pages.give(page);
            page = next;
        }
    }
}
