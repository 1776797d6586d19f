//! `hotshelf queue record`: the last commands, answers and doorbells of a drive's queues.

use anyhow::Context;
use nvme::entry::{CompletionEntry, Entry, admin, nvm};
use nvme::recorder::{Event, Flights, Record};
use serde_json::{Value, json};

use super::args::RecordArgs;

/// Shows what a file holds.
pub fn record(args: &RecordArgs) -> anyhow::Result<bool> {
    let mut flights = Flights::read(&args.file).with_context(|| args.file.display().to_string())?;
    if let Some(queue) = args.queue {
        flights.records.retain(|record| record.queue == queue);
        anyhow::ensure!(!flights.records.is_empty(), "{}: there is no queue {queue} in it", args.file.display());
    }
    if args.json {
        say_lines!("{}", serde_json::to_string_pretty(&as_json(&flights))?);
    } else if args.text {
        flights.records.iter().for_each(|record| say_lines!("{}", record.to_string().trim_end()));
    } else {
        show(&flights);
    }
    Ok(true)
}

fn show(flights: &Flights) {
    let seconds = flights.begun_ns / 1_000_000_000;
    say!("{}, process {}, at {seconds} s since 1970: {}", flights.name, flights.pid, flights.reason.words());
    for record in &flights.records {
        let Record { queue, entries, events } = record;
        say_lines!("\nqueue {queue} of {entries} places, its last {} events, the oldest first", events.len());
        events.iter().for_each(|event| say!("  {}", words(*queue, event)));
        let open = unanswered(record);
        if !open.is_empty() {
            say!("  without an answer: {}", open.iter().map(|cid| format!("{cid:#06x}")).collect::<Vec<_>>().join(", "));
        }
    }
}

/// Commands that no answer followed; requests for events of the controller wait always.
fn unanswered(record: &Record) -> Vec<u16> {
    let mut open: Vec<u16> = Vec::new();
    for event in &record.events {
        match event {
            Event::Command(_, entry) if record.queue > 0 || entry.opcode() != admin::ASYNC_EVENT => open.push(entry.cid()),
            Event::Completion(_, answer) => open.retain(|cid| *cid != answer.cid()),
            Event::Reset => open.clear(),
            _ => {}
        }
    }
    open
}

fn words(queue: u16, event: &Event) -> String {
    match event {
        Event::Command(place, entry) => format!("place {place:>4}  command {:#06x}  {}", entry.cid(), command(queue, entry)),
        Event::Completion(place, answer) => format!("place {place:>4}  answer  {:#06x}  {}", answer.cid(), outcome(answer)),
        Event::Tail(value, written) => format!("tail  {value:>4}  {}", bell(*written)),
        Event::Head(value, written) => format!("head  {value:>4}  {}", bell(*written)),
        Event::Reset => "the queue was made anew".to_owned(),
    }
}

fn bell(written: bool) -> &'static str {
    if written { "register" } else { "in memory only" }
}

fn outcome(answer: &CompletionEntry) -> String {
    match answer.status() {
        status if status.is_ok() && answer.result() == 0 => "done".to_owned(),
        status if status.is_ok() => format!("done, {:#x}", answer.result()),
        status => format!("{status:?}"),
    }
}

fn name(queue: u16, opcode: u8) -> String {
    let known = match (queue, opcode) {
        (0, admin::DELETE_SQ) => "delete submission queue",
        (0, admin::CREATE_SQ) => "create submission queue",
        (0, admin::GET_LOG_PAGE) => "get log page",
        (0, admin::DELETE_CQ) => "delete completion queue",
        (0, admin::CREATE_CQ) => "create completion queue",
        (0, admin::IDENTIFY) => "identify",
        (0, admin::ABORT) => "abort",
        (0, admin::SET_FEATURES) => "set features",
        (0, admin::GET_FEATURES) => "get features",
        (0, admin::ASYNC_EVENT) => "asynchronous event request",
        (0, admin::DOORBELL_BUFFER) => "doorbell buffer config",
        (0, _) => return format!("admin operation {opcode:#04x}"),
        (_, nvm::FLUSH) => "flush",
        (_, nvm::WRITE) => "write",
        (_, nvm::READ) => "read",
        (_, nvm::WRITE_ZEROES) => "write zeroes",
        (_, nvm::DATASET_MANAGEMENT) => "deallocate",
        (_, _) => return format!("operation {opcode:#04x}"),
    };
    known.to_owned()
}

fn command(queue: u16, entry: &Entry) -> String {
    let (prp1, prp2) = entry.data();
    let mut words = format!("{}, namespace {}", name(queue, entry.opcode()), entry.namespace());
    match (queue, entry.opcode()) {
        (0, _) => words += &format!(", {:#x} {:#x}", entry.dw(10), entry.dw(11)),
        (_, nvm::FLUSH) => {}
        (_, nvm::DATASET_MANAGEMENT) => words += &format!(", {} ranges", (entry.dw(10) & 0xff) + 1),
        (_, _) => {
            let (lba, blocks) = (u64::from(entry.dw(10)) | u64::from(entry.dw(11)) << 32, (entry.dw(12) & 0xffff) + 1);
            let fua = if entry.dw(12) & 1 << 30 != 0 { ", FUA" } else { "" };
            words += &format!(", block {lba}, {blocks} blocks{fua}");
        }
    }
    if prp1 != 0 {
        words += &format!(", memory {prp1:#x} {prp2:#x}");
    }
    words
}

fn as_json(flights: &Flights) -> Value {
    let event = |event: &Event| match event {
        Event::Command(place, entry) => json!({ "command": place, "cid": entry.cid(), "words": hex(&entry.0) }),
        Event::Completion(place, answer) => json!({ "answer": place, "cid": answer.cid(), "words": hex(&answer.0) }),
        Event::Tail(value, written) => json!({ "tail": value, "register": written }),
        Event::Head(value, written) => json!({ "head": value, "register": written }),
        Event::Reset => json!({ "reset": true }),
    };
    let record = |record: &Record| {
        let events: Vec<Value> = record.events.iter().map(event).collect();
        json!({ "queue": record.queue, "entries": record.entries, "unanswered": unanswered(record), "events": events })
    };
    let queues: Vec<Value> = flights.records.iter().map(record).collect();
    json!({ "device": flights.name, "pid": flights.pid, "time_ns": flights.begun_ns, "reason": flights.reason.words(), "queues": queues })
}

fn hex(words: &[u64]) -> Vec<String> {
    words.iter().map(|word| format!("{word:016x}")).collect()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn people_read_what_happened() {
        let text = "queue 1 of 4 entries\ncommand 3 100020002 1000000 0 5 40000007 0\ntail 0 1\nanswer 3 0 1000200010000\n\
                    command 0 100030009 2000000 0 2 0 0\n";
        let record: Record = text.parse().expect("a record");
        let lines: Vec<String> = record.events.iter().map(|event| words(1, event)).collect();
        assert_eq!(
            lines,
            [
                "place    3  command 0x0002  read, namespace 1, block 5, 8 blocks, FUA, memory 0x1000000 0x0",
                "tail     0  register",
                "place    3  answer  0x0002  done",
                "place    0  command 0x0003  deallocate, namespace 1, 3 ranges, memory 0x2000000 0x0",
            ]
        );
        assert_eq!(unanswered(&record), [3]);
        assert_eq!(words(0, &Event::Command(0, Entry::identify(1, 0))), "place    0  command 0x0000  identify, namespace 0, 0x1 0x0");
    }
}
