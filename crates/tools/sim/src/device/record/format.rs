//! The file of a recording: a header, then frames of events, each with a checksum.

use block::{Class, Error, Geometry, Lba, Op, Request, Status, Tag, Time, Urgency};

pub(super) const MAGIC: [u8; 4] = *b"hsqr";
pub(super) const VERSION: u32 = 1;
pub(super) const HEADER_BYTES: usize = 64;
/// Length and checksum.
pub(super) const FRAME_HEAD_BYTES: usize = 8;
/// Maximum size of the events of a frame, bytes.
pub(super) const FRAME_BYTES_MAX: usize = 32 << 10;
/// Maximum size of one event, bytes.
pub(super) const EVENT_BYTES_MAX: usize = 48;

/// Why a recording cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file is no recording, or its header is damaged.
    #[error("the file is no recording, or its header is damaged")]
    RecordingHeader,
    /// A later version made the recording.
    #[error("the recording has version {0}, this program knows 1")]
    Version(u32),
    /// The file ends within a frame, as after a crash.
    #[error("the recording ends within the frame at byte {0}")]
    CutOff(u64),
    /// The checksum of a frame is wrong.
    #[error("the frame at byte {0} of the recording is damaged")]
    Frame(u64),
    /// The checksum is right but the content is invalid.
    #[error("an event in the frame at byte {0} of the recording has no meaning")]
    QueueEvent(u64),
}

/// The header of a recording: the recorded queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordingHeader {
    /// Geometry of the recorded device.
    pub geometry: Geometry,
    /// Maximum number of requests in flight.
    pub depth: u32,
}

/// One recorded event. Times count from the start of the recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueEvent {
    /// A request was submitted and accepted.
    Submit(Time, Request),
    /// The doorbell was rung for submitted requests.
    Ring(Time),
    /// A request completed with this status.
    Complete(Time, Tag, Status),
    /// A request was to be cancelled.
    Cancel(Time, Tag),
    /// The queue was reset, with this status.
    Reset(Time, Status),
}

impl QueueEvent {
    /// Returns the time of the event.
    pub fn time(&self) -> Time {
        match self {
            QueueEvent::Submit(time, _)
            | QueueEvent::Ring(time)
            | QueueEvent::Complete(time, ..)
            | QueueEvent::Cancel(time, _)
            | QueueEvent::Reset(time, _) => *time,
        }
    }
}

impl RecordingHeader {
    pub(super) fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let geometry = &self.geometry;
        let flags = [geometry.volatile_cache, geometry.read_only, geometry.discard, geometry.write_zeroes];
        let flags = flags.iter().enumerate().map(|(bit, set)| u32::from(*set) << bit).sum::<u32>();
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        let numbers = [VERSION, self.depth, geometry.block_bytes, geometry.transfer_bytes_max, geometry.memory_align];
        for (at, number) in numbers.iter().enumerate() {
            bytes[4 + at * 4..8 + at * 4].copy_from_slice(&number.to_le_bytes());
        }
        bytes[24..28].copy_from_slice(&u32::from(geometry.segments_max).to_le_bytes());
        bytes[28..32].copy_from_slice(&flags.to_le_bytes());
        bytes[32..40].copy_from_slice(&geometry.blocks.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Result<RecordingHeader, RecordingError> {
        let bytes: &[u8; HEADER_BYTES] =
            bytes.get(..HEADER_BYTES).and_then(|bytes| bytes.try_into().ok()).ok_or(RecordingError::RecordingHeader)?;
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[..4] != MAGIC {
            return Err(RecordingError::RecordingHeader);
        }
        match number(4) {
            VERSION => {}
            0 => return Err(RecordingError::RecordingHeader),
            later => return Err(RecordingError::Version(later)),
        }
        let flags = number(28);
        let geometry = Geometry {
            block_bytes: number(12),
            blocks: u64::from(number(32)) | u64::from(number(36)) << 32,
            transfer_bytes_max: number(16),
            segments_max: u16::try_from(number(24)).map_err(|_| RecordingError::RecordingHeader)?,
            memory_align: number(20),
            volatile_cache: flags & 1 != 0,
            read_only: flags & 2 != 0,
            discard: flags & 4 != 0,
            write_zeroes: flags & 8 != 0,
        };
        let sane = crc32c::crc32c(&bytes[..60]) == number(60)
            && flags < 16
            && geometry.block_bytes.is_power_of_two()
            && (512..=1 << 20).contains(&geometry.block_bytes)
            && geometry.memory_align.is_power_of_two()
            && (1..=4096).contains(&number(8))
            && geometry.blocks.checked_mul(u64::from(geometry.block_bytes)).is_some();
        if sane { Ok(RecordingHeader { geometry, depth: number(8) }) } else { Err(RecordingError::RecordingHeader) }
    }
}

/// Encodes events, each with the time since the previous one.
#[derive(Debug, Default)]
pub(super) struct Encoder {
    last: u64,
}

impl Encoder {
    /// Appends at most [`EVENT_BYTES_MAX`] bytes.
    pub(super) fn push(&mut self, event: &QueueEvent, to: &mut Vec<u8>) {
        let time = event.time().0.max(self.last);
        let since = time - self.last;
        self.last = time;
        match event {
            QueueEvent::Submit(_, request) => {
                to.push(request.op as u8 | u8::from(request.fua) << 4);
                [since, request.tag.0, request.lba.0, request.blocks.into()].into_iter().for_each(|number| varint(number, to));
                to.extend([request.urgency as u8, request.class.0]);
            }
            QueueEvent::Ring(_) => {
                to.push(0x20);
                varint(since, to);
            }
            QueueEvent::Complete(_, tag, status) => {
                to.push(0x30);
                [since, tag.0, status_code(*status).into()].into_iter().for_each(|number| varint(number, to));
            }
            QueueEvent::Cancel(_, tag) => {
                to.push(0x40);
                [since, tag.0].into_iter().for_each(|number| varint(number, to));
            }
            QueueEvent::Reset(_, status) => {
                to.push(0x50);
                [since, status_code(*status).into()].into_iter().for_each(|number| varint(number, to));
            }
        }
    }
}

/// Encodes a status: 0 is success, errors start at 1, 0x10000 plus errno for others.
fn status_code(status: Status) -> u32 {
    match status {
        Ok(()) => 0,
        Err(Error::Other(errno)) => 0x1_0000 + u32::from(errno),
        Err(error) => 1 + Error::CODES.iter().position(|other| *other == error).expect("all are there") as u32,
    }
}

fn status_of(code: u64) -> Option<Status> {
    match code {
        0 => Some(Ok(())),
        1..=12 => Some(Err(Error::CODES[code as usize - 1])),
        0x1_0000..=0x1_ffff => Some(Err(Error::Other((code - 0x1_0000) as u16))),
        _ => None,
    }
}

/// Appends a varint: seven bits in each byte, low bits first; the top bit marks continuation.
fn varint(mut number: u64, to: &mut Vec<u8>) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

/// Reads a recording in memory. Yields events in order; an error ends the iteration.
#[derive(Clone, Debug)]
pub struct Recording<'a> {
    header: RecordingHeader,
    bytes: &'a [u8],
    /// The frame being read, and where the next one begins.
    frame: &'a [u8],
    frame_at: usize,
    next: usize,
    last: u64,
    failed: bool,
}

impl<'a> Recording<'a> {
    /// Opens a recording from the bytes of its file.
    ///
    /// # Errors
    /// The header is not that of a known recording.
    pub fn new(bytes: &'a [u8]) -> Result<Recording<'a>, RecordingError> {
        let header = RecordingHeader::from_bytes(bytes)?;
        Ok(Recording { header, bytes, frame: &[], frame_at: 0, next: HEADER_BYTES, last: 0, failed: false })
    }

    /// Returns the header of the recording.
    pub fn header(&self) -> &RecordingHeader {
        &self.header
    }

    fn next_frame(&mut self) -> Result<(), RecordingError> {
        let at = self.next as u64;
        let rest = &self.bytes[self.next..];
        let head = rest.get(..FRAME_HEAD_BYTES).ok_or(RecordingError::CutOff(at))?;
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        if length == 0 || length > FRAME_BYTES_MAX {
            return Err(RecordingError::Frame(at));
        }
        let frame = rest.get(FRAME_HEAD_BYTES..FRAME_HEAD_BYTES + length).ok_or(RecordingError::CutOff(at))?;
        if frame_crc(at, frame) != u32::from_le_bytes([head[4], head[5], head[6], head[7]]) {
            return Err(RecordingError::Frame(at));
        }
        self.frame_at = self.next;
        self.next += FRAME_HEAD_BYTES + length;
        self.frame = frame;
        Ok(())
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.frame.split_first()?;
        self.frame = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn event(&mut self) -> Option<QueueEvent> {
        let kind = self.byte()?;
        self.last = self.last.checked_add(self.number()?)?;
        let time = Time(self.last);
        match kind {
            0..0x20 => Some(QueueEvent::Submit(time, self.request(kind)?)),
            0x20 => Some(QueueEvent::Ring(time)),
            0x30 => Some(QueueEvent::Complete(time, Tag(self.number()?), status_of(self.number()?)?)),
            0x40 => Some(QueueEvent::Cancel(time, Tag(self.number()?))),
            0x50 => Some(QueueEvent::Reset(time, status_of(self.number()?)?)),
            _ => None,
        }
    }

    fn request(&mut self, kind: u8) -> Option<Request> {
        let op = *[Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes].get(usize::from(kind & 0xf))?;
        let (tag, lba) = (Tag(self.number()?), Lba(self.number()?));
        let blocks = u32::try_from(self.number()?).ok()?;
        let urgency = *[Urgency::Urgent, Urgency::Normal, Urgency::Batch].get(usize::from(self.byte()?))?;
        let class = Class(self.byte()?);
        Some(Request { tag, lba, blocks, op, fua: kind & 0x10 != 0, urgency, class })
    }
}

impl Iterator for Recording<'_> {
    type Item = Result<QueueEvent, RecordingError>;

    fn next(&mut self) -> Option<Result<QueueEvent, RecordingError>> {
        if self.failed || (self.frame.is_empty() && self.next == self.bytes.len()) {
            return None;
        }
        let frame = if self.frame.is_empty() { self.next_frame() } else { Ok(()) };
        let event = frame.and_then(|()| self.event().ok_or(RecordingError::QueueEvent(self.frame_at as u64)));
        self.failed = event.is_err();
        Some(event)
    }
}

/// Returns the checksum over a frame's position and events, so that a frame is valid only where it was written.
pub(super) fn frame_crc(at: u64, events: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&at.to_le_bytes()), events)
}
