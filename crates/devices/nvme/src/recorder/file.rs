//! A flight as bytes: the memory that a process writes into, or what was written down when something went wrong. Hostile when opened.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::ring::{self, LINE};
use super::{EVENTS_MAX, Record, is_possible};

const MAGIC: &[u8; 4] = b"hsfr";
const VERSION: u32 = 1;
/// Bytes before the first ring.
pub(super) const HEADER: usize = 4096;
pub(super) const LINE_BYTES: usize = 8 * LINE;
const NAME: std::ops::Range<usize> = 64..192;
const CRC_AT: usize = HEADER - 4;
const RINGS_MAX: u32 = 4097;

pub(super) fn ring_bytes(events: u32) -> usize {
    LINE_BYTES + events as usize * LINE_BYTES
}

/// The reason why a recorder file was written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// It is the memory of a process that runs, or was killed.
    Running,
    /// A request exceeded its deadline.
    Overdue,
    /// A completion entry arrived for a command that does not exist.
    Stray,
    /// The controller reported a fatal fault, or does not create a queue.
    Fatal,
    /// A queue was reset.
    QueueReset,
    /// The controller was reset; the admin queue.
    ControllerReset,
}

impl Reason {
    const ALL: [Reason; 6] = [Reason::Running, Reason::Overdue, Reason::Stray, Reason::Fatal, Reason::QueueReset, Reason::ControllerReset];

    /// Returns the reason as text for people.
    pub fn words(self) -> &'static str {
        match self {
            Reason::Running => "memory of a process",
            Reason::Overdue => "a request was over its deadline",
            Reason::Stray => "an answer to a command that is not there",
            Reason::Fatal => "the controller reported a fatal fault",
            Reason::QueueReset => "the queue was reset",
            Reason::ControllerReset => "the controller was reset",
        }
    }
}

/// The reason why a file is not a valid recorder file.
#[derive(Debug, thiserror::Error)]
pub enum BadFlight {
    /// The file could not be read.
    #[error(transparent)]
    System(#[from] io::Error),
    /// It is of something else.
    #[error("it is no record of a queue's flight")]
    Magic,
    /// Of a later version.
    #[error("it is of version {0}, this program knows version {VERSION}")]
    Version(u32),
    /// Changed or cut off; where.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    /// A ring makes no sense; its number in the file.
    #[error("ring {0} of it is damaged")]
    Ring(u32),
}

/// The first page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Header {
    name: String,
    reason: Reason,
    rings: u32,
    events: u32,
    pid: u32,
    begun_ns: u64,
}

impl Header {
    /// Creates a header for this process and the current time.
    pub(super) fn new(name: &str, reason: Reason, rings: u32, events: u32) -> Header {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let begun_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let name = name.chars().take(NAME.len() / 4).collect();
        Header { name, reason, rings, events, pid: std::process::id(), begun_ns }
    }

    pub(super) fn bytes(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let mut put = |at: usize, from: &[u8]| bytes[at..at + from.len()].copy_from_slice(from);
        put(0, MAGIC);
        let reason = Reason::ALL.iter().position(|reason| *reason == self.reason).unwrap_or(0) as u32;
        for (at, value) in (4..).step_by(4).zip([VERSION, self.rings, self.events, reason, self.pid]) {
            put(at, &value.to_le_bytes());
        }
        put(24, &self.begun_ns.to_le_bytes());
        put(NAME.start, self.name.as_bytes());
        let crc = crc32c::crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Header, BadFlight> {
        if bytes.get(..4) != Some(MAGIC) {
            return Err(BadFlight::Magic);
        }
        let bytes = bytes.get(..HEADER).ok_or(BadFlight::Damaged("it is cut off"))?;
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        if u32_at(4) != VERSION {
            return Err(BadFlight::Version(u32_at(4)));
        }
        if crc32c::crc32c(&bytes[..CRC_AT]) != u32_at(CRC_AT) {
            return Err(BadFlight::Damaged("its first page has another checksum"));
        }
        let (rings, events) = (u32_at(8), u32_at(12));
        let possible = (1..=RINGS_MAX).contains(&rings) && (events == 0 || events.is_power_of_two() && events <= EVENTS_MAX);
        let reason = Reason::ALL.get(u32_at(16) as usize).filter(|_| possible).ok_or(BadFlight::Damaged("its first page"))?;
        let name = bytes[NAME].split(|byte| *byte == 0).next().unwrap_or(&[]);
        let begun_ns = u64::from_le_bytes(bytes[24..32].try_into().expect("8 bytes"));
        let name = String::from_utf8_lossy(name).chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        Ok(Header { name, reason: *reason, rings, events, pid: u32_at(20), begun_ns })
    }
}

/// The contents of a flight recorder's file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Flights {
    /// The function: "0000:03:00.0", a socket.
    pub name: String,
    /// The reason why the file was written.
    pub reason: Reason,
    /// The process that wrote the file.
    pub pid: u32,
    /// When the file was created or written: nanoseconds since 1970.
    pub begun_ns: u64,
    /// Queues that were ever made.
    pub records: Vec<Record>,
}

impl Flights {
    /// Reads a file, also one that a living process writes into.
    ///
    /// # Errors
    /// See [`BadFlight`].
    pub fn read(path: &Path) -> Result<Flights, BadFlight> {
        // A pipe of that name would wait for a writer: looked at before it is opened.
        if !std::fs::metadata(path)?.is_file() {
            return Err(BadFlight::Magic);
        }
        let file = File::open(path)?;
        let mut first = vec![0; HEADER];
        let mut filled = 0;
        while filled < HEADER {
            match file.read_at(&mut first[filled..], filled as u64)? {
                0 => break,
                count => filled += count,
            }
        }
        let header = Header::parse(&first[..filled])?;
        let mut records = Vec::new();
        let mut bytes = vec![0; ring_bytes(header.events)];
        for ring in 0..header.rings {
            let at = HEADER as u64 + u64::from(ring) * bytes.len() as u64;
            let mut after = [0; LINE_BYTES];
            // The count, the events, and the count once more: what was written meanwhile is not taken.
            let (head, lines) = bytes.split_at_mut(LINE_BYTES);
            for (part, at) in [(head, at), (lines, at + LINE_BYTES as u64), (&mut after, at)] {
                file.read_exact_at(part, at).map_err(cut_off)?;
            }
            records.extend(parse_ring(&bytes, &after, header.events).map_err(|()| BadFlight::Ring(ring))?);
        }
        let Header { name, reason, pid, begun_ns, .. } = header;
        Ok(Flights { name, reason, pid, begun_ns, records })
    }

    /// Writes what a queue's recorder held into a file.
    pub(crate) fn write(path: &Path, name: &str, reason: Reason, record: &Record) -> io::Result<()> {
        let events = u32::try_from(record.events.len()).unwrap_or(EVENTS_MAX).clamp(1, EVENTS_MAX).next_power_of_two();
        // One more than there are: that of a ring that is full may be half written, and is not read.
        let events = if record.events.len() as u32 == events { events * 2 } else { events };
        let mut bytes = Header::new(name, reason, 1, events).bytes().to_vec();
        let mut put = |words: &[u64]| words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        put(&[record.events.len() as u64, u64::from(record.queue) | u64::from(record.entries) << 32, 0, 0, 0, 0, 0, 0]);
        record.events.iter().for_each(|event| put(&ring::line(event)));
        bytes.resize(HEADER + ring_bytes(events), 0);
        let new = with_suffix(path, "new");
        let _ = std::fs::remove_file(&new);
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(&bytes)?;
        std::fs::rename(new, path)
    }
}

/// Returns the path with a dot and the suffix appended.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

fn cut_off(error: io::Error) -> BadFlight {
    if error.kind() == io::ErrorKind::UnexpectedEof { BadFlight::Damaged("it is cut off") } else { error.into() }
}

fn words(bytes: &[u8]) -> [u64; LINE] {
    std::array::from_fn(|word| u64::from_le_bytes(bytes[8 * word..8 * word + 8].try_into().expect("8 bytes")))
}

/// The events of a ring; `after`: its first line as it was after the others had been read. None: no queue was ever there.
fn parse_ring(bytes: &[u8], after: &[u8], events: u32) -> Result<Option<Record>, ()> {
    let ([count, what, first, ..], [later, what_later, first_later, ..]) = (words(bytes), words(after));
    let (queue, entries) = (what as u16, (what >> 32) as u32);
    if what == 0 {
        return Ok(None);
    }
    if (what & 0xffff_0000) != 0 || first > count || later < count || !is_possible(entries, &[]) {
        return Err(());
    }
    let mut record = Record { queue, entries, events: Vec::new() };
    // The line that comes next may be half written, by a process that is not there any more, too.
    let oldest = (later.checked_add(1).ok_or(())?).saturating_sub(events.into()).max(first);
    if (what_later, first_later) != (what, first) {
        // Its number went to another queue just now.
        return Ok(Some(record));
    }
    for number in oldest..count {
        let at = LINE_BYTES * (1 + (number % u64::from(events.max(1))) as usize);
        let event = bytes.get(at..at + LINE_BYTES).and_then(|line| ring::event(&words(line))).ok_or(())?;
        record.events.push(event);
    }
    if is_possible(entries, &record.events) { Ok(Some(record)) } else { Err(()) }
}

#[cfg(all(test, not(miri)))]
mod test {
    use super::super::{Event, Flight};
    use super::*;
    use crate::entry::{CompletionEntry, Entry, nvm};
    use crate::status::Status;

    fn a_flight(file: &Path) -> (Flight, Vec<Record>) {
        let flight = Flight::new("0000:03:00.0", (3, 8), Some(file)).expect("a file");
        let mut admin = flight.recorder(0, 32);
        admin.reset();
        let mut queue = flight.recorder(2, 64);
        for cid in 0..20 {
            queue.command(u32::from(cid), &Entry::new(nvm::WRITE, 1).with_cid(cid).with_data(0x1000, 0x2000));
            queue.answer(u32::from(cid), &CompletionEntry::new(7, cid, 2, cid, Status::OK, true));
        }
        queue.tail(20, false);
        let mut shown = queue.record();
        // The oldest of a ring that is full.
        shown.events.remove(0);
        (flight, vec![admin.record(), shown])
    }

    #[test]
    fn what_is_read_of_a_file_is_what_was_recorded_and_a_good_end_removes_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("flight");
        std::fs::write(&file, b"of one that was killed").expect("written");
        let (flight, records) = a_flight(&file);
        let read = Flights::read(&file).expect("read");
        assert_eq!((read.name.as_str(), read.reason, read.pid), ("0000:03:00.0", Reason::Running, std::process::id()));
        assert_eq!(read.records, records);
        assert_eq!(std::fs::read(with_suffix(&file, "old")).expect("kept"), b"of one that was killed");
        drop(flight);
        assert!(!file.exists());
    }

    #[test]
    fn what_went_wrong_is_written_down_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        let (file, out) = (dir.path().join("flight"), dir.path().join("out"));
        let (_flight, records) = a_flight(&file);
        for record in &records {
            for events in [record.events.len(), 4, 1, 0] {
                let record = Record { events: record.events[..events.min(record.events.len())].to_vec(), ..record.clone() };
                Flights::write(&out, "x", Reason::Stray, &record).expect("written");
                let read = Flights::read(&out).expect("read");
                assert_eq!((read.reason, read.records.as_slice()), (Reason::Stray, &[record][..]));
            }
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let (file, out) = (dir.path().join("flight"), dir.path().join("out"));
        let (_flight, _) = a_flight(&file);
        let good = std::fs::read(&file).expect("read");
        let mut random = fastrand::Rng::with_seed(1);
        let (mut read, mut refused) = (0, 0);
        for _ in 0..600 {
            let mut bytes = good.clone();
            for _ in 0..random.u32(1..4) {
                let at = [random.usize(..HEADER), HEADER + random.usize(..bytes.len() - HEADER)][random.usize(..2)];
                bytes[at] = random.u8(..);
                if random.bool() {
                    // As if it were meant.
                    let crc = crc32c::crc32c(&bytes[..CRC_AT]);
                    bytes[CRC_AT..HEADER].copy_from_slice(&crc.to_le_bytes());
                }
            }
            if random.u8(..8) == 0 {
                bytes.truncate(random.usize(..bytes.len()));
            }
            std::fs::write(&out, bytes).expect("written");
            match Flights::read(&out) {
                Ok(flights) => {
                    read += 1;
                    assert!(flights.records.iter().all(|record| is_possible(record.entries, &record.events)));
                    flights.records.iter().for_each(|record| assert_eq!(record.to_string().parse().as_ref(), Ok(record)));
                }
                Err(error) => {
                    refused += 1;
                    assert!(!error.to_string().is_empty());
                }
            }
        }
        assert!(read > 50 && refused > 50, "{read} read, {refused} refused");
        assert!(matches!(Flights::read(dir.path()), Err(BadFlight::Magic)));
        std::fs::write(&out, [&b"hsfr"[..], &9_u32.to_le_bytes(), &[0; HEADER]].concat()).expect("written");
        assert!(matches!(Flights::read(&out), Err(BadFlight::Version(9))));
    }

    #[test]
    fn a_ring_that_is_written_meanwhile_gives_whole_events() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("flight");
        let flight = Flight::new("x", (1, 16), Some(&file)).expect("a file");
        let mut queue = flight.recorder(1, 2);
        let ended = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut number = 0_u64;
                while !ended.load(std::sync::atomic::Ordering::Acquire) {
                    number += 1;
                    queue.command(1, &Entry([number, 0, 0, number, number, number, number, number]));
                }
            });
            let mut seen = 0;
            while seen < 500 {
                for event in Flights::read(&file).expect("read").records.iter().flat_map(|record| &record.events) {
                    let Event::Command(1, Entry([a, _, _, rest @ ..])) = event else { panic!("{event:?}") };
                    assert!(rest.iter().all(|word| word == a), "{event:?}");
                    seen += 1;
                }
            }
            ended.store(true, std::sync::atomic::Ordering::Release);
        });
    }
}
