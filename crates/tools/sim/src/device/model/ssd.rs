//! Solid-state drives: a link, a controller, a write buffer, channels and flash dies.
//!
//! A read passes the controller, waits for its dies, senses a page on each, and crosses channel and link. A write completes when it is in
//! the buffer. Programs, which rotate over the dies, empty the buffer; a write waits when it is full. A die without clean blocks collects
//! garbage in between, which delays requests for that die.
//!
//! Not modelled: thermal limits, read disturb, wear. The mapping is by address (neighbours within a page share a die), not by time of
//! writing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use block::{Geometry, Op, Request, Time};

use super::ReservationModel;

/// Parameters of a solid-state drive. Rates in MB/s are 10^6 bytes per second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SsdParams {
    /// Number of independent buses to the flash.
    pub channels: u32,
    /// Number of dies, spread over the channels.
    pub dies: u32,
    /// Bytes of a flash page: what one read senses.
    pub page_bytes: u32,
    /// Pages of one die that are programmed together.
    pub planes: u32,
    /// Programs until a block of a die is full.
    pub programs_per_block: u32,
    /// Time to sense a page (tR).
    pub read_page: Duration,
    /// Time to program a page on all planes (tPROG).
    pub program_page: Duration,
    /// Time to erase a block (tBERS).
    pub erase: Duration,
    /// Rate of one channel, MB/s.
    pub channel_mb_s: u32,
    /// Rate of the link to the host for reads, MB/s: what the interface leaves, or the controller.
    pub read_mb_s: u32,
    /// Rate of the link to the host for writes, MB/s.
    pub write_mb_s: u32,
    /// Reads and writes share the link (SATA).
    pub half_duplex: bool,
    /// Fixed cost of a read beside flash and transfers; it delays no other request.
    pub read_latency: Duration,
    /// Fixed cost of a write into the buffer; it delays no other request.
    pub write_latency: Duration,
    /// How long a read occupies the controller: the inverse of the maximum reads per second.
    pub read_interval: Duration,
    /// How long a write occupies the controller.
    pub write_interval: Duration,
    /// Size of the write buffer, bytes.
    pub buffer_bytes: u32,
    /// The buffer survives a power cut: a flush is a no-op.
    pub protected_buffer: bool,
    /// Percentage of a block that is still in use when it is collected, with random writes over the whole drive.
    pub collected_percent: u32,
}

/// The model of one solid-state drive; see the module documentation.
#[derive(Debug)]
pub struct SsdModel {
    params: SsdParams,
    block_bytes: u64,
    controller_free: Time,
    read_link_free: Time,
    write_link_free: Time,
    dies: Box<[Die]>,
    channels: Box<[Time]>,
    /// Completion times of programs in progress.
    programs: BinaryHeap<Reverse<Time>>,
    /// Bytes in the buffer that no program has taken yet.
    unprogrammed: u64,
    next_die: usize,
    last_program: Time,
    write_end: u64,
    /// Share of recent writes that did not follow their predecessor.
    random_share: f64,
    /// Programs until no clean block is left.
    clean_programs: u64,
    stalls: u64,
}

#[derive(Clone, Copy, Default, Debug)]
struct Die {
    free: Time,
    /// The page in the die's register, counted from 1.
    page: u64,
    programs: u32,
    /// Garbage collection that is due, done in slices.
    owed: Duration,
}

impl Die {
    /// Returns when a page is in the register, for a request that arrives at `start`.
    ///
    /// Requests that wait while a page is sensed or transferred share it (ONFI: Change Read Column). A request that arrives when the die
    /// is idle senses again: no data sheet says so, but see [`crate::device::curve`].
    fn sense(&mut self, start: Time, page: u64, takes: Duration) -> Time {
        if self.page == page + 1 && start < self.free {
            return self.free;
        }
        self.page = page + 1;
        start.max(self.free).after(takes)
    }
}

/// Programs between two slices of garbage collection: drives spread it, so that no request waits for all of it.
const PROGRAMS_PER_SLICE: u32 = 4;

impl SsdModel {
    /// Creates a drive that was written full: every block is collected before it is written again.
    pub fn new(params: SsdParams, geometry: &Geometry) -> SsdModel {
        let rows = params.buffer_bytes / (params.page_bytes * params.planes) + 2;
        SsdModel {
            params,
            block_bytes: geometry.block_bytes.into(),
            controller_free: Time(0),
            read_link_free: Time(0),
            write_link_free: Time(0),
            dies: vec![Die::default(); params.dies as usize].into(),
            channels: vec![Time(0); params.channels as usize].into(),
            programs: BinaryHeap::with_capacity(rows as usize),
            unprogrammed: 0,
            next_die: 0,
            last_program: Time(0),
            write_end: u64::MAX,
            random_share: 0.0,
            clean_programs: 0,
            stalls: 0,
        }
    }

    /// Makes `bytes` clean: nothing is collected until they are written.
    #[must_use]
    pub fn with_clean(mut self, bytes: u64) -> SsdModel {
        self.clean_programs = bytes / self.row_bytes();
        self
    }

    /// Returns how often a program waited for garbage collection.
    pub fn stalls(&self) -> u64 {
        self.stalls
    }

    fn row_bytes(&self) -> u64 {
        u64::from(self.params.page_bytes) * u64::from(self.params.planes)
    }

    fn controller(&mut self, now: Time, interval: Duration) -> Time {
        let start = now.max(self.controller_free);
        self.controller_free = start.after(interval);
        start
    }

    fn read(&mut self, now: Time, request: &Request) -> Time {
        let params = self.params;
        let start = self.controller(now, params.read_interval);
        let page_bytes = u64::from(params.page_bytes);
        let mut at = request.lba.0 * self.block_bytes;
        let end = at + u64::from(request.blocks) * self.block_bytes;
        let bytes = end - at;
        let mut done = start;
        while at < end {
            let part = (page_bytes - at % page_bytes).min(end - at);
            let index = ((at / page_bytes) % u64::from(params.dies)) as usize;
            let on_bus = transfer(part, params.channel_mb_s);
            let sensed = self.dies[index].sense(start, at / page_bytes, params.read_page);
            let channel = &mut self.channels[index % params.channels as usize];
            *channel = start.max(*channel).after(on_bus);
            // The page stays in the die's register until it has crossed the bus.
            let out = sensed.after(on_bus).max(*channel);
            self.dies[index].free = out;
            done = done.max(out);
            at += part;
        }
        let on_link = transfer(bytes, params.read_mb_s);
        self.read_link_free = start.max(self.read_link_free).after(on_link);
        if params.half_duplex {
            self.write_link_free = self.write_link_free.max(self.read_link_free);
        }
        // Earlier pages crossed the link meanwhile: one page remains.
        let last = transfer(bytes.min(page_bytes), params.read_mb_s);
        done.after(last).max(self.read_link_free).after(params.read_latency)
    }

    fn write(&mut self, now: Time, request: &Request) -> Time {
        let params = self.params;
        let start = self.controller(now, params.write_interval);
        let at = request.lba.0 * self.block_bytes;
        let bytes = u64::from(request.blocks) * self.block_bytes;
        let random = if at == self.write_end { 0.0 } else { 1.0 };
        self.random_share += (random - self.random_share) / 256.0;
        self.write_end = at + bytes;
        self.write_link_free = start.max(self.write_link_free).after(transfer(bytes, params.write_mb_s));
        if params.half_duplex {
            self.read_link_free = self.read_link_free.max(self.write_link_free);
        }
        let arrived = self.fill_buffer(self.write_link_free, bytes);
        // The link stalls while the buffer is full.
        self.write_link_free = arrived;
        let accepted = arrived.after(params.write_latency);
        if request.fua && !params.protected_buffer { self.flush(accepted) } else { accepted }
    }

    /// Returns when the buffer has room, and starts the programs that this requires.
    fn fill_buffer(&mut self, mut now: Time, bytes: u64) -> Time {
        let mut left = bytes;
        while left > 0 {
            let part = left.min(self.row_bytes());
            now = self.room_for(now, part);
            self.unprogrammed += part;
            if self.unprogrammed >= self.row_bytes() {
                self.unprogrammed -= self.row_bytes();
                self.program(now);
            }
            left -= part;
        }
        now
    }

    fn room_for(&mut self, mut now: Time, bytes: u64) -> Time {
        while let Some(Reverse(end)) = self.programs.peek().copied() {
            let used = self.programs.len() as u64 * self.row_bytes() + self.unprogrammed;
            if end > now && used + bytes <= u64::from(self.params.buffer_bytes) {
                break;
            }
            now = now.max(end);
            self.programs.pop();
        }
        now
    }

    fn program(&mut self, now: Time) {
        let params = self.params;
        let index = self.next_die;
        self.next_die = (index + 1) % self.dies.len();
        let on_bus = transfer(self.row_bytes(), params.channel_mb_s);
        let channel = &mut self.channels[index % params.channels as usize];
        *channel = now.max(*channel).after(on_bus);
        let begin = (*channel).max(self.dies[index].free.after(self.collect(index)));
        let end = begin.after(params.program_page);
        self.dies[index].free = end;
        self.dies[index].page = 0;
        self.last_program = self.last_program.max(end);
        self.programs.push(Reverse(end));
    }

    /// Returns how long a die collects garbage before its next program.
    ///
    /// Collecting a block with a share v in use yields 1 - v of a block, so a full block costs 1 / (1 - v) collections, each an erase and
    /// copies of v of its pages.
    fn collect(&mut self, index: usize) -> Duration {
        let params = self.params;
        if self.clean_programs > 0 {
            self.clean_programs -= 1;
            return Duration::ZERO;
        }
        let die = &mut self.dies[index];
        let used = self.random_share * f64::from(params.collected_percent) / 100.0;
        die.owed += (params.read_page + params.program_page).mul_f64(used / (1.0 - used));
        die.programs += 1;
        let mut stall = Duration::ZERO;
        if die.programs.is_multiple_of(params.programs_per_block) {
            stall += params.erase.mul_f64(1.0 / (1.0 - used));
        }
        if die.programs.is_multiple_of(PROGRAMS_PER_SLICE) {
            stall += std::mem::take(&mut die.owed);
        }
        self.stalls += u64::from(!stall.is_zero());
        stall
    }

    /// Returns when all accepted data is in flash.
    fn flush(&mut self, now: Time) -> Time {
        if self.params.protected_buffer {
            return now;
        }
        if self.unprogrammed > 0 {
            self.unprogrammed = 0;
            self.program(now);
        }
        now.max(self.last_program)
    }
}

impl ReservationModel for SsdModel {
    fn end(&mut self, now: Time, request: &Request) -> Time {
        match request.op {
            Op::Read => self.read(now, request),
            Op::Write => self.write(now, request),
            Op::Flush => self.flush(now).after(self.params.write_latency),
            // Only the mapping changes.
            Op::Discard | Op::WriteZeroes => self.controller(now, self.params.write_interval).after(self.params.write_latency),
        }
    }
}

/// Returns the transfer time of `bytes` at a rate.
pub(super) fn transfer(bytes: u64, mb_s: u32) -> Duration {
    Duration::from_nanos(bytes * 1000 / u64::from(mb_s))
}
