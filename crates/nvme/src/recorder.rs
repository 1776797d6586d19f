//! The flight recorder of a queue: its last commands, answers and doorbells, in order. Written down when something goes wrong; a test
//! can do the same again with the software controller (`sim::nvme::replay`).

use std::fmt;
use std::str::FromStr;

use crate::entry::{Answer, Entry};

/// One thing that happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A command was put into the queue.
    Command(Entry),
    /// An answer was taken out.
    Answer(Answer),
    /// The device was told of commands: the tail, and whether the register was written (else only its shadow).
    Tail(u16, bool),
    /// The device was given places for answers.
    Head(u16, bool),
    /// The queue was made anew.
    Reset,
}

const COMMAND: u64 = 0;
const ANSWER: u64 = 1;
const TAIL: u64 = 2;
const HEAD: u64 = 3;
const RESET: u64 = 4;

/// The last so many events: a ring of words, one cache line each, so that writing costs little.
pub(crate) struct Recorder {
    lines: Box<[[u64; 8]]>,
    next: usize,
    full: bool,
}

impl Recorder {
    /// For this many events; a power of two, or 0: nothing is recorded.
    pub(crate) fn new(events: usize) -> Recorder {
        Recorder { lines: vec![[0; 8]; events].into(), next: 0, full: false }
    }

    #[inline]
    fn line(&mut self) -> Option<&mut [u64; 8]> {
        let at = self.next;
        if at + 1 >= self.lines.len() {
            self.full = true;
            self.next = 0;
        } else {
            self.next = at + 1;
        }
        self.lines.get_mut(at)
    }

    /// A command; the words that our commands leave zero (double words 2 to 5) are not kept.
    #[inline]
    pub(crate) fn command(&mut self, entry: &Entry) {
        if let Some(line) = self.line() {
            let [first, _, _, prp1, prp2, dw10, dw12, dw14] = entry.0;
            *line = [COMMAND, first, prp1, prp2, dw10, dw12, dw14, 0];
        }
    }

    #[inline]
    pub(crate) fn answer(&mut self, answer: &Answer) {
        if let Some(line) = self.line() {
            line[..3].copy_from_slice(&[ANSWER, answer.0[0], answer.0[1]]);
        }
    }

    #[inline]
    pub(crate) fn tail(&mut self, value: u16, written: bool) {
        if let Some(line) = self.line() {
            line[..3].copy_from_slice(&[TAIL, value.into(), written.into()]);
        }
    }

    #[inline]
    pub(crate) fn head(&mut self, value: u16, written: bool) {
        if let Some(line) = self.line() {
            line[..3].copy_from_slice(&[HEAD, value.into(), written.into()]);
        }
    }

    pub(crate) fn reset(&mut self) {
        if let Some(line) = self.line() {
            line[0] = RESET;
        }
    }

    /// What is kept, oldest first.
    pub(crate) fn record(&self, queue: u16, entries: u32) -> Record {
        let (new, old) = self.lines.split_at(self.next);
        let old = if self.full { old } else { &[] };
        let events = old.iter().chain(new).map(event).collect();
        Record { queue, entries, events }
    }
}

fn event(line: &[u64; 8]) -> Event {
    let [kind, a, b, c, d, e, f, _] = *line;
    match kind {
        COMMAND => Event::Command(Entry([a, 0, 0, b, c, d, e, f])),
        ANSWER => Event::Answer(Answer([a, b])),
        TAIL => Event::Tail(a as u16, b != 0),
        HEAD => Event::Head(a as u16, b != 0),
        _ => Event::Reset,
    }
}

/// A queue's flight, as text: one line an event, to be read by people and by [`Record::from_str`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Its number.
    pub queue: u16,
    /// Places of each of its rings.
    pub entries: u32,
    /// Oldest first.
    pub events: Vec<Event>,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "queue {} of {} entries", self.queue, self.entries)?;
        for event in &self.events {
            match event {
                Event::Command(entry) => {
                    let [a, _, _, b, c, d, e, g] = entry.0;
                    writeln!(f, "command {a:x} {b:x} {c:x} {d:x} {e:x} {g:x}")?;
                }
                Event::Answer(answer) => writeln!(f, "answer {:x} {:x}", answer.0[0], answer.0[1])?,
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
    Some(match (kind, values.as_slice()) {
        ("command", [a, b, c, d, e, f]) => Event::Command(Entry([*a, 0, 0, *b, *c, *d, *e, *f])),
        ("answer", [a, b]) => Event::Answer(Answer([*a, *b])),
        ("tail", [value, written @ 0..=1]) => Event::Tail(u16::try_from(*value).ok()?, *written != 0),
        ("head", [value, written @ 0..=1]) => Event::Head(u16::try_from(*value).ok()?, *written != 0),
        ("reset", []) => Event::Reset,
        _ => return None,
    })
}

impl FromStr for Record {
    type Err = NoRecord;

    fn from_str(text: &str) -> Result<Record, NoRecord> {
        let mut lines = text.lines().zip(1..);
        let first = lines.next().and_then(|(line, _)| line.strip_prefix("queue ")?.strip_suffix(" entries")?.split_once(" of "));
        let parsed = first.and_then(|(queue, entries)| Some((queue.parse().ok()?, entries.parse().ok()?)));
        let Some((queue, entries)) = parsed.filter(|(_, entries)| (2..=65_536).contains(entries)) else { return Err(NoRecord(1)) };
        let events = lines.map(|(line, number)| parse(line).ok_or(NoRecord(number))).collect::<Result<Vec<_>, _>>()?;
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
        let mut recorder = Recorder::new(4);
        for cid in 0..6 {
            recorder.command(&Entry::new(nvm::READ, 1).with_cid(cid).with_data(0x1000, 0).with_dw(10, 7));
        }
        recorder.tail(6, true);
        recorder.answer(&Answer::new(0, 6, 1, 4, Status::OK, true));
        let record = recorder.record(1, 64);
        assert_eq!(record.events.len(), 4);
        assert!(matches!(record.events[0], Event::Command(entry) if entry.cid() == 4 && entry.dw(10) == 7));
        assert_eq!(record.events[2], Event::Tail(6, true));
        assert_eq!(record.to_string().parse(), Ok(record));
        let mut short = Recorder::new(4);
        short.head(1, false);
        short.reset();
        assert_eq!(short.record(2, 8).events, [Event::Head(1, false), Event::Reset]);
        assert_eq!(Recorder::new(0).record(1, 2).events, []);
    }

    #[test]
    fn other_texts_are_refused_by_line() {
        let wrong = |text: &str| text.parse::<Record>().expect_err("wrong").0;
        assert_eq!(wrong(""), 1);
        assert_eq!(wrong("queue 1 of 0 entries"), 1);
        assert_eq!(wrong("queue 1 of 2 entries\nreset\ntail 10000 1"), 3);
        assert_eq!(wrong("queue 1 of 2 entries\ncommand 1 2 3"), 2);
    }
}
