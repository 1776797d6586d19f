//! The flight recorder of a queue: its last commands, completion entries and doorbells, in order.
//!
//! All queues of a controller write into one [`Flight`]: memory of this process, or a file in shared memory that others can read
//! while it is written, and that is there after this process was killed. When something goes wrong a queue's ring is kept, and written
//! beside that file. [`Flights::read`] reads both; a test can do the same again with the software controller (`sim::nvme::replay`).
//! The bytes are drawn in docs/formats.md.

mod file;
mod flight;
mod ring;

use std::fmt;
use std::str::FromStr;

pub(crate) use file::with_suffix;
pub use file::{BadFlight, Flights, Reason};
pub(crate) use flight::Flight;
pub(crate) use ring::Recorder;

use crate::entry::{CompletionEntry, Entry};

/// The maximum number of events in a ring.
pub const EVENTS_MAX: u32 = 1 << 16;

/// One recorded event of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A command was written to this index of the submission queue.
    Command(u32, Entry),
    /// A completion entry was taken from this index.
    Completion(u32, CompletionEntry),
    /// The device was notified of commands: the tail, and whether the register was written (else only its shadow).
    Tail(u16, bool),
    /// The device was notified of the head of the completion queue.
    Head(u16, bool),
    /// The queue was made anew.
    Reset,
}

/// A queue's flight, as text: one line an event, to be read by people and by [`Record::from_str`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The number of the queue.
    pub queue: u16,
    /// The number of entries in each of its rings.
    pub entries: u32,
    /// The recorded events, oldest first.
    pub events: Vec<Event>,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "queue {} of {} entries", self.queue, self.entries)?;
        for event in &self.events {
            match event {
                Event::Command(place, entry) => {
                    let [a, _, _, b, c, d, e, g] = entry.0;
                    writeln!(f, "command {place:x} {a:x} {b:x} {c:x} {d:x} {e:x} {g:x}")?;
                }
                Event::Completion(place, answer) => writeln!(f, "answer {place:x} {:x} {:x}", answer.0[0], answer.0[1])?,
                Event::Tail(value, written) => writeln!(f, "tail {value:x} {:x}", u8::from(*written))?,
                Event::Head(value, written) => writeln!(f, "head {value:x} {:x}", u8::from(*written))?,
                Event::Reset => writeln!(f, "reset")?,
            }
        }
        Ok(())
    }
}

/// A text that is no record: the number of the line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {0} of the record makes no sense")]
pub struct NoRecord(pub usize);

fn parse(line: &str) -> Option<Event> {
    let mut words = line.split(' ');
    let kind = words.next()?;
    let values = words.map(|word| u64::from_str_radix(word, 16)).collect::<Result<Vec<_>, _>>().ok()?;
    let place = |place: u64| u32::try_from(place).ok();
    Some(match (kind, values.as_slice()) {
        ("command", [at, a, b, c, d, e, f]) => Event::Command(place(*at)?, Entry([*a, 0, 0, *b, *c, *d, *e, *f])),
        ("answer", [at, a, b]) => Event::Completion(place(*at)?, CompletionEntry([*a, *b])),
        ("tail", [value, written @ 0..=1]) => Event::Tail(u16::try_from(*value).ok()?, *written != 0),
        ("head", [value, written @ 0..=1]) => Event::Head(u16::try_from(*value).ok()?, *written != 0),
        ("reset", []) => Event::Reset,
        _ => return None,
    })
}

/// Rings have 2 to 65536 places, and events name places that are there.
fn is_possible(entries: u32, events: &[Event]) -> bool {
    let inside = |event: &Event| match event {
        Event::Command(place, _) | Event::Completion(place, _) => *place < entries,
        Event::Tail(value, _) | Event::Head(value, _) => u32::from(*value) < entries,
        Event::Reset => true,
    };
    (2..=65_536).contains(&entries) && events.iter().all(inside)
}

impl FromStr for Record {
    type Err = NoRecord;

    fn from_str(text: &str) -> Result<Record, NoRecord> {
        let mut lines = text.lines().zip(1..);
        let first = lines.next().and_then(|(line, _)| line.strip_prefix("queue ")?.strip_suffix(" entries")?.split_once(" of "));
        let parsed = first.and_then(|(queue, entries)| Some((queue.parse().ok()?, entries.parse().ok()?)));
        let Some((queue, entries)) = parsed.filter(|(_, entries)| is_possible(*entries, &[])) else { return Err(NoRecord(1)) };
        let possible = |event: &Event| is_possible(entries, &[*event]);
        let events = lines.map(|(line, number)| parse(line).filter(possible).ok_or(NoRecord(number))).collect::<Result<Vec<_>, _>>()?;
        Ok(Record { queue, entries, events })
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::entry::nvm;
    use crate::status::Status;

    #[test]
    fn the_last_events_are_kept_in_order_and_survive_as_text() {
        let flight = Flight::new("test", (2, 4), None).expect("memory");
        let mut recorder = flight.recorder(1, 64);
        for cid in 0..6 {
            recorder.command(cid.into(), &Entry::new(nvm::READ, 1).with_cid(cid).with_data(0x1000, 0).with_dw(10, 7));
        }
        recorder.tail(6, true);
        recorder.answer(0, &CompletionEntry::new(0, 6, 1, 4, Status::OK, true));
        let record = recorder.record();
        assert_eq!(record.events.len(), 4);
        assert!(matches!(record.events[0], Event::Command(4, entry) if entry.cid() == 4 && entry.dw(10) == 7));
        assert_eq!(record.events[2], Event::Tail(6, true));
        assert_eq!(record.to_string().parse(), Ok(record));
        let mut short = flight.recorder(2, 8);
        short.head(1, false);
        short.reset();
        assert_eq!(short.record().events, [Event::Head(1, false), Event::Reset]);
        drop(recorder);
        assert_eq!(flight.recorder(1, 8).record().events, [], "of the queue that had the number before");
        let mut none = Flight::new("test", (1, 0), None).expect("memory").recorder(1, 2);
        none.reset();
        assert_eq!(none.record().events, []);
    }

    #[test]
    fn other_texts_are_refused_by_line() {
        let wrong = |text: &str| text.parse::<Record>().expect_err("wrong").0;
        assert_eq!(wrong(""), 1);
        assert_eq!(wrong("queue 1 of 0 entries"), 1);
        assert_eq!(wrong("queue 1 of 2 entries\nreset\ntail 10000 1"), 3);
        assert_eq!(wrong("queue 1 of 2 entries\nreset\ntail 2 1"), 3);
        assert_eq!(wrong("queue 1 of 2 entries\ncommand 1 2 3"), 2);
        assert_eq!(wrong("queue 1 of 2 entries\nanswer 2 0 0"), 2);
    }
}
