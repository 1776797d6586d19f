//! The memory that a client and the broker share for one queue: its header, its two rings, and the format of their entries.
//!
//! ```text
//!      0  header: magic, version, depth, sizes, checksum      written by the broker once
//!     64  state: 0, or why the queue was closed               written by the broker
//!    128  tail of the commands                                by the client
//!    192  head of the commands                                by the broker
//!    256  the broker sleeps                                   by the broker; the client clears it
//!    320  tail of the completions                             by the broker
//!    384  head of the completions                             by the client
//!    448  the client waits                                    by the client; the broker clears it
//!   4096  commands: 2 * depth entries of 64 bytes
//!         segments: for each of those 30 of 16 bytes, those that do not fit into the entry
//!         completions: 2 * depth entries of 8 bytes
//! ```
//!
//! The rings have twice the depth, because a cancel request takes an entry and gets no completion. Both sides can write
//! everywhere, so each reader must check what it reads. Drawn in docs/formats.md.

use shm::Region;
use shm::ring::{Memory, RingLayout};

use crate::error::Error;
use crate::request::{Class, Op, Request, Status, Urgency};
use crate::units::{Lba, Tag};

/// The maximum number of data segments of one request.
pub const SEGMENTS_MAX: usize = 32;
const INLINE_SEGMENTS: usize = 2;
const COMMAND_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 16;
const COMPLETION_BYTES: usize = 8;
const TABLE_BYTES: usize = (SEGMENTS_MAX - INLINE_SEGMENTS) * SEGMENT_BYTES;

const MAGIC: &[u8; 4] = b"hsbq";
const HEADER_BYTES: usize = 64;
const STATE_AT: usize = 64;
const RINGS_AT: usize = 4096;

/// An encoded entry of the command ring.
pub type CommandBytes = [u8; COMMAND_BYTES];
/// An encoded entry of the completion ring.
pub type CompletionBytes = [u8; COMPLETION_BYTES];

const _: () = assert!(32 + INLINE_SEGMENTS * SEGMENT_BYTES == COMMAND_BYTES && TABLE_BYTES == 480 && RINGS_AT.is_multiple_of(64));

/// The reason why the broker closed a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Ended {
    /// The client that owns the queue closed it.
    #[error("the queue was closed")]
    Closed,
    /// The grant of the queue was revoked.
    #[error("the grant of the queue was revoked")]
    Revoked,
    /// An index in the shared memory of the queue is invalid.
    #[error("the shared ring of the queue is broken")]
    BrokenRing,
    /// An entry in the shared memory of the queue is invalid.
    #[error("a command in the shared ring of the queue makes no sense")]
    BadCommand,
    /// The broker is shutting down or has died.
    #[error("the broker has ended")]
    BrokerEnds,
    /// The device did not complete or cancel its requests, and may still access their memory.
    #[error("the device does not answer any more")]
    Lost,
}

impl Ended {
    const ALL: [Ended; 6] = [Ended::Closed, Ended::Revoked, Ended::BrokenRing, Ended::BadCommand, Ended::BrokerEnds, Ended::Lost];

    fn code(self) -> u32 {
        1 + Ended::ALL.iter().position(|ended| *ended == self).map_or(0, |at| u32::try_from(at).expect("a few"))
    }

    /// Returns the error with which unfinished requests of the queue complete.
    pub fn error(self) -> Error {
        match self {
            Ended::Closed => Error::Reset,
            Ended::Revoked | Ended::BrokenRing | Ended::BadCommand => Error::NotPermitted,
            Ended::BrokerEnds | Ended::Lost => Error::Gone,
        }
    }
}

/// The offsets and sizes of the shared memory of a queue, for one depth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The maximum number of requests in flight.
    pub depth: u32,
    /// The ring from the client to the broker.
    pub commands: RingLayout,
    /// The ring from the broker to the client.
    pub completions: RingLayout,
    table_at: usize,
    /// The total size of the shared memory, in bytes.
    pub bytes: usize,
}

impl Layout {
    /// Computes the layout for a depth, a power of two from 1 to 4096; panics for any other.
    pub fn new(depth: u32) -> Layout {
        assert!(depth.is_power_of_two() && depth <= 4096, "a depth of {depth}");
        let entries = 2 * depth;
        let table_at = RINGS_AT + entries as usize * COMMAND_BYTES;
        let completions_at = table_at + entries as usize * TABLE_BYTES;
        // Each word has its own cache line, so that frequent writes of one do not slow readers of its neighbour.
        let place = |words_at, entries_at, entry_bytes| RingLayout {
            tail_at: words_at,
            head_at: words_at + 64,
            asleep_at: words_at + 128,
            entries_at,
            entry_bytes,
            entries,
        };
        Layout {
            depth,
            commands: place(128, RINGS_AT, COMMAND_BYTES),
            completions: place(320, completions_at, COMPLETION_BYTES),
            table_at,
            bytes: completions_at + entries as usize * COMPLETION_BYTES,
        }
    }

    fn header(&self) -> [u8; HEADER_BYTES] {
        let number = |value: usize| u32::try_from(value).expect("a small number");
        let words = [
            super::protocol::VERSION,
            self.depth,
            self.commands.entries,
            number(self.table_at),
            number(self.completions.entries_at),
            number(SEGMENTS_MAX),
            number(self.bytes),
        ];
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(MAGIC);
        for (at, word) in (4..).step_by(4).zip(words) {
            header[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        let crc = crc32c::crc32c(&header[..HEADER_BYTES - 4]);
        header[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        header
    }

    /// Writes the header into memory that is all zero.
    pub fn write_header(&self, region: &Region) {
        region.write(0, &self.header());
    }

    /// Returns whether the memory has the header of a queue of this depth and version.
    pub fn is_header_of(&self, region: &Region) -> bool {
        let mut header = [0; HEADER_BYTES];
        region.read(0, &mut header);
        header == self.header()
    }

    /// Returns the offset of a segment that does not fit into the entry, by the entry's slot in its ring.
    fn segment_at(&self, slot: u32, segment: usize) -> usize {
        self.table_at + slot as usize * TABLE_BYTES + (segment - INLINE_SEGMENTS) * SEGMENT_BYTES
    }
}

/// Stores in shared memory that the queue is closed, and why.
pub fn write_state(region: &Region, ended: Ended) {
    region.u32(STATE_AT).store(ended.code(), std::sync::atomic::Ordering::Release);
}

/// Returns why the queue was closed, or `None` if it is open.
pub fn read_state(region: &Region) -> Option<Ended> {
    let code = region.u32(STATE_AT).load(std::sync::atomic::Ordering::Acquire);
    let index = usize::try_from(code.checked_sub(1)?).expect("an index");
    Some(Ended::ALL.get(index).copied().unwrap_or(Ended::BrokenRing))
}

/// A range of a registered arena that holds data of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The first byte, as an offset in the arena.
    pub at: u64,
    /// The length of the segment in bytes.
    pub bytes: u32,
    /// The number that the broker gave to the arena.
    pub arena: u32,
}

impl Segment {
    #[inline]
    fn encode(self) -> [u8; SEGMENT_BYTES] {
        let mut bytes = [0; SEGMENT_BYTES];
        bytes[..8].copy_from_slice(&self.at.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[12..].copy_from_slice(&self.arena.to_le_bytes());
        bytes
    }

    #[inline]
    fn decode(bytes: &[u8; SEGMENT_BYTES]) -> Segment {
        Segment { at: u64_at(bytes, 0), bytes: u32_at(bytes, 8), arena: u32_at(bytes, 12) }
    }
}

/// A decoded entry of the command ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// A request; its tag is the client's slot, which must be less than the depth.
    Request {
        /// The request, with addresses relative to the window.
        request: Request,
        /// The number of data segments.
        segments: usize,
    },
    /// Cancels a request that is in flight.
    Cancel {
        /// The slot of the request.
        slot: u32,
    },
}

const CANCEL: u8 = 6;
const FUA: u8 = 1;

/// Encodes a request. Segments beyond the first two are written to the segment table, at the place of the ring slot.
#[inline]
pub fn encode_request(
    region: &Region,
    layout: &Layout,
    ring_slot: u32,
    request: &Request,
    slot: u32,
    segments: impl ExactSizeIterator<Item = Segment>,
) -> CommandBytes {
    let count = u16::try_from(segments.len()).expect("few segments");
    let mut entry = [0; COMMAND_BYTES];
    entry[0] = match request.op {
        Op::Read => 1,
        Op::Write => 2,
        Op::Flush => 3,
        Op::Discard => 4,
        Op::WriteZeroes => 5,
    };
    entry[1] = if request.fua { FUA } else { 0 };
    entry[2] = match request.urgency {
        Urgency::Urgent => 0,
        Urgency::Normal => 1,
        Urgency::Batch => 2,
    };
    entry[3] = request.class.0;
    entry[4..8].copy_from_slice(&slot.to_le_bytes());
    entry[8..16].copy_from_slice(&request.lba.0.to_le_bytes());
    entry[16..20].copy_from_slice(&request.blocks.to_le_bytes());
    entry[20..22].copy_from_slice(&count.to_le_bytes());
    for (index, segment) in segments.enumerate() {
        if index < INLINE_SEGMENTS {
            let at = 32 + index * SEGMENT_BYTES;
            entry[at..at + SEGMENT_BYTES].copy_from_slice(&segment.encode());
        } else {
            Memory::write(region, layout.segment_at(ring_slot, index), &segment.encode());
        }
    }
    entry
}

/// Encodes a request to cancel the request in `slot`.
pub fn encode_cancel(slot: u32) -> CommandBytes {
    let mut entry = [0; COMMAND_BYTES];
    entry[0] = CANCEL;
    entry[4..8].copy_from_slice(&slot.to_le_bytes());
    entry
}

/// Decodes a private copy of a command entry; returns `None` if it is invalid.
#[inline]
pub fn decode(entry: &CommandBytes) -> Option<Command> {
    let slot = u32_at(entry, 4);
    let op = match entry[0] {
        1 => Op::Read,
        2 => Op::Write,
        3 => Op::Flush,
        4 => Op::Discard,
        5 => Op::WriteZeroes,
        CANCEL => return Some(Command::Cancel { slot }),
        _ => return None,
    };
    let urgency = match entry[2] {
        0 => Urgency::Urgent,
        1 => Urgency::Normal,
        2 => Urgency::Batch,
        _ => return None,
    };
    let segments = usize::from(u16::from_le_bytes([entry[20], entry[21]]));
    if segments > SEGMENTS_MAX || entry[1] & !FUA != 0 {
        return None;
    }
    let request = Request {
        tag: Tag(u64::from(slot)),
        lba: Lba(u64_at(entry, 8)),
        blocks: u32_at(entry, 16),
        op,
        fua: entry[1] & FUA != 0,
        urgency,
        class: Class(entry[3]),
    };
    Some(Command::Request { request, segments })
}

/// Decodes one segment of a copied entry. Segments beyond the first two are copied out of shared memory, once.
#[inline]
pub fn decode_segment(region: &Region, layout: &Layout, ring_slot: u32, entry: &CommandBytes, index: usize) -> Segment {
    if index < INLINE_SEGMENTS {
        let at = 32 + index * SEGMENT_BYTES;
        return Segment::decode(entry[at..at + SEGMENT_BYTES].try_into().expect("a segment"));
    }
    let mut bytes = [0; SEGMENT_BYTES];
    Memory::read(region, layout.segment_at(ring_slot, index), &mut bytes);
    Segment::decode(&bytes)
}

/// Encodes the completion of a request as a ring entry.
#[inline]
pub fn encode_completion(slot: u32, status: Status) -> CompletionBytes {
    let (code, errno): (u16, u16) = match status {
        Ok(()) => (0, 0),
        Err(Error::Other(errno)) => (OTHER, errno),
        Err(error) => (2 + u16::try_from(Error::CODES.iter().position(|known| *known == error).unwrap_or(0)).expect("few errors"), 0),
    };
    let mut entry = [0; COMPLETION_BYTES];
    entry[..4].copy_from_slice(&slot.to_le_bytes());
    entry[4..6].copy_from_slice(&code.to_le_bytes());
    entry[6..].copy_from_slice(&errno.to_le_bytes());
    entry
}

/// Decodes a completion entry into the slot and the status of the request.
#[inline]
pub fn decode_completion(entry: &CompletionBytes) -> (u32, Status) {
    let [code, errno] = [4, 6].map(|at| u16::from_le_bytes([entry[at], entry[at + 1]]));
    let status = match code {
        0 => Ok(()),
        OTHER => Err(Error::Other(errno)),
        _ => Err(Error::CODES.get(usize::from(code) - 2).copied().unwrap_or(Error::Media)),
    };
    (u32_at(entry, 0), status)
}

/// The code of an error with an errno. Those of [`Error::CODES`] follow.
const OTHER: u16 = 1;

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[inline]
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod test {
    use super::*;
    use shm::PageSize;

    #[test]
    fn parts_do_not_overlap_at_any_depth() {
        for depth in (0..=12).map(|bits| 1 << bits) {
            let layout = Layout::new(depth);
            let entries = 2 * depth as usize;
            assert_eq!(layout.table_at, layout.commands.entries_at + entries * 64);
            assert_eq!(layout.segment_at(2 * depth - 1, SEGMENTS_MAX - 1) + SEGMENT_BYTES, layout.completions.entries_at);
            assert_eq!(layout.completions.entries_at + entries * 8, layout.bytes);
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let layout = Layout::new(4);
        let region = Region::private(layout.bytes, PageSize::Small).expect("memory");
        let mut random = fastrand::Rng::with_seed(11);
        for _ in 0..if cfg!(miri) { 10 } else { 1000 } {
            let op = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes][random.usize(..5)];
            let request = Request {
                tag: Tag(u64::from(random.u32(..))),
                lba: Lba(random.u64(..)),
                blocks: random.u32(..),
                op,
                fua: random.bool(),
                urgency: [Urgency::Urgent, Urgency::Normal, Urgency::Batch][random.usize(..3)],
                class: Class(random.u8(..)),
            };
            let segments: Vec<Segment> = (0..random.usize(..=SEGMENTS_MAX))
                .map(|_| Segment { at: random.u64(..), bytes: random.u32(..), arena: random.u32(..) })
                .collect();
            let ring_slot = random.u32(..8);
            let slot = u32::try_from(request.tag.0).expect("small");
            let entry = encode_request(&region, &layout, ring_slot, &request, slot, segments.iter().copied());
            assert_eq!(decode(&entry), Some(Command::Request { request, segments: segments.len() }));
            for (index, segment) in segments.iter().enumerate() {
                assert_eq!(decode_segment(&region, &layout, ring_slot, &entry, index), *segment);
            }
        }
        assert_eq!(decode(&encode_cancel(9)), Some(Command::Cancel { slot: 9 }));
        let statuses = Error::CODES.iter().map(|error| Err(*error)).chain([Ok(()), Err(Error::Other(77))]);
        for status in statuses {
            assert_eq!(decode_completion(&encode_completion(5, status)), (5, status));
        }
    }

    #[test]
    fn a_state_is_reported_and_nonsense_is_none() {
        let layout = Layout::new(1);
        let region = Region::private(layout.bytes, PageSize::Small).expect("memory");
        assert!(!layout.is_header_of(&region));
        layout.write_header(&region);
        assert!(layout.is_header_of(&region) && !Layout::new(2).is_header_of(&region));
        assert_eq!(read_state(&region), None);
        for ended in Ended::ALL {
            write_state(&region, ended);
            assert_eq!(read_state(&region), Some(ended));
        }
        for wrong in [[0; 64], [7; 64], [255; 64]] {
            assert_eq!(decode(&wrong), None);
        }
    }
}
