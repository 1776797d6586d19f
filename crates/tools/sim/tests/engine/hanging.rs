//! An SSD that hangs while it may write into the caller's memory: a read ends only after the SSD released the destination, or after the
//! reader was notified that it never will.
#![expect(unsafe_code, reason = "reads memory that a device writes")]

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use block::tracked::Timeouts;
use block::{Arena, Buf};
use datapath::engine::{AsyncReader, AsyncReaderOptions, Open, Outcome, SubmitResult};
use ssdcache::{Mode, PAGE_BYTES};

use super::model::{CELL, CELLS, cell_bytes};
use super::world::{Hang, Kind, Machine};
use super::{FILES, Process, Setup, formatted, open_at};

const DEPTH: usize = 8;
const CELLS_OF_PAGE: usize = PAGE_BYTES / CELL;

/// A read into part of the arena.
struct ReadBuffer {
    open: Arc<Open>,
    to: Buf,
    key: u64,
    page: u64,
}

impl AsMut<[u8]> for ReadBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: the arena's memory, with one owner; the device has completed the request.
        unsafe { std::slice::from_raw_parts_mut(self.to.address(), self.to.len()) }
    }
}

impl ReadBuffer {
    fn check(&self, bytes: &[u8]) {
        for (n, cell) in bytes.chunks(CELL).enumerate() {
            let at = self.page as usize * CELLS_OF_PAGE + n;
            assert!(*cell == cell_bytes(self.key, at, 1), "file {} page {} cell {n}: {:x?}", self.key, self.page, &cell[..8]);
        }
    }
}

/// With files larger than memory.
fn filled() -> (Arc<Machine>, Process) {
    let machine = Machine::new(Kind::Memory, 0, formatted());
    let setup = Setup::plain(Mode::WriteBack);
    let region = setup.segment();
    let processes = setup.processes(&region);
    let process = Process::start(&machine, &region, &processes, setup);
    for key in FILES {
        let bytes: Vec<u8> = (0..CELLS).flat_map(|cell| cell_bytes(key, cell, 1)).collect();
        process.with(key, |open| {
            assert_eq!(open.write(0, &bytes), Ok(bytes.len()));
            open.sync().expect("synced");
        });
    }
    (machine, process)
}

/// Returns the number of outcomes by kind.
// long: one scenario: the same reads while the drive hangs in each way.
fn run(hang: Hang) -> BTreeMap<&'static str, usize> {
    let (machine, process) = filled();
    let ms = Duration::from_millis;
    let timeouts = Timeouts { timeout: Some(ms(2)), cancel_grace: ms(1), reset_after: Some(ms(2)) };
    let mut reads = AsyncReader::new(&process.engine, DEPTH as u32, AsyncReaderOptions { timeouts, ..AsyncReaderOptions::default() });
    let memory = Arena::private(DEPTH * PAGE_BYTES).expect("memory");
    reads.know(&memory);
    let (mut outcomes, mut rng) = (BTreeMap::new(), fastrand::Rng::with_seed(7));
    let mut kept = Vec::new();
    let mut ended = |job: ReadBuffer, outcome: Outcome| {
        let what = match outcome {
            Outcome::Read(count) => {
                assert_eq!(count, PAGE_BYTES);
                job.check(&job.to.to_vec());
                "read"
            }
            Outcome::Slow => {
                let mut bytes = vec![0; PAGE_BYTES];
                assert_eq!(job.open.read(job.page * PAGE_BYTES as u64, &mut bytes), Ok(PAGE_BYTES));
                job.check(&bytes);
                job.to.write(0, &bytes);
                kept.push(job);
                "slow"
            }
            Outcome::Lost => {
                // As documented: the memory is never used again.
                let _no_more = ManuallyDrop::new(job.to);
                "lost"
            }
        };
        *outcomes.entry(what).or_insert(0) += 1;
        // Data returned to the caller stays unchanged.
        kept.iter().for_each(|job: &ReadBuffer| job.check(&job.to.to_vec()));
        kept.truncate(2);
    };
    for round in 0..60 {
        for _ in 0..rng.usize(1..=DEPTH) {
            let hangs = round % 4 == 2 && (hang != Hang::UntilCancelled || rng.bool());
            *machine.hang.lock() = if hangs { hang } else { Hang::No };
            let Some(to) = memory.allocate(PAGE_BYTES) else { break };
            let (key, page) = (rng.u64(FILES), rng.u64(..(CELLS / CELLS_OF_PAGE) as u64));
            let open = Arc::new(open_at(&machine, &process.engine, key));
            let job = ReadBuffer { open: Arc::clone(&open), to, key, page };
            match reads.begin(&open, || Arc::clone(&open), page * PAGE_BYTES as u64, job) {
                SubmitResult::Ended(job, outcome) => ended(job, outcome),
                SubmitResult::UnderWay => {}
                SubmitResult::Full(_) => panic!("never more than it was made for"),
            }
        }
        reads.ring();
        let until_signalled = if hang == Hang::ForEver { hang } else { Hang::No };
        *machine.hang.lock() = until_signalled;
        while reads.under_way() > 0 {
            reads.wait(Duration::from_secs(60));
            // The slow path does not hang.
            *machine.hang.lock() = Hang::No;
            // Other requests are checked later.
            for _ in 0..rng.usize(1..=DEPTH) {
                let Some((job, outcome)) = reads.take_seen() else { break };
                ended(job, outcome);
            }
            *machine.hang.lock() = until_signalled;
        }
        *machine.hang.lock() = Hang::No;
        while let Some((job, outcome)) = reads.take_seen() {
            ended(job, outcome);
        }
    }
    outcomes
}

#[test]
fn memory_comes_back_with_what_is_cancelled() {
    let outcomes = run(Hang::UntilCancelled);
    println!("{outcomes:?}");
    assert!(outcomes["read"] > 0 && outcomes["slow"] > 0 && !outcomes.contains_key("lost"), "{outcomes:?}");
}

#[test]
fn memory_comes_back_with_the_reset() {
    let outcomes = run(Hang::UntilReset);
    println!("{outcomes:?}");
    assert!(outcomes["read"] > 0 && outcomes["slow"] > 0 && !outcomes.contains_key("lost"), "{outcomes:?}");
}

#[test]
fn memory_of_a_drive_that_never_answers_is_lost_and_that_is_reported() {
    let outcomes = run(Hang::ForEver);
    println!("{outcomes:?}");
    assert!(outcomes["read"] > 0 && outcomes["lost"] > 0, "{outcomes:?}");
}

/// Reads of two pages in half as many slots, each followed by another as soon as it is reaped.
#[test]
fn who_waits_for_a_place_is_not_passed_over() {
    let (machine, process) = filled();
    let key = FILES.start;
    let open = Arc::new(open_at(&machine, &process.engine, key));
    let mut reads = AsyncReader::new(&process.engine, DEPTH as u32, AsyncReaderOptions::default());
    let mut rng = fastrand::Rng::with_seed(7);
    let (mut begun, mut waits) = (BTreeMap::new(), 0);
    for turn in 0..2_000 {
        while begun.len() < DEPTH {
            let page = rng.usize(..CELLS / CELLS_OF_PAGE - 1);
            let number = begun.last_key_value().map_or(turn * DEPTH, |(last, _)| last + 1);
            let job = Numbered { number, page, bytes: vec![0; 2 * PAGE_BYTES] };
            match reads.begin(&open, || Arc::clone(&open), (page * PAGE_BYTES) as u64, job) {
                SubmitResult::UnderWay => _ = begun.insert(number, turn),
                SubmitResult::Ended(..) => break,
                SubmitResult::Full(_) => panic!("never more than it was made for"),
            }
        }
        let Some(longest) = begun.values().min().map(|began| turn - began) else { continue };
        waits = waits.max(longest);
        reads.wait(Duration::from_secs(60));
        let Some((job, outcome)) = reads.take_seen() else { continue };
        begun.remove(&job.number).expect("it was under way");
        if outcome != Outcome::Slow {
            assert_eq!(outcome, Outcome::Read(2 * PAGE_BYTES));
            for (n, cell) in job.bytes.chunks(CELL).enumerate() {
                assert!(*cell == cell_bytes(key, job.page * CELLS_OF_PAGE + n, 1), "page {} cell {n}", job.page);
            }
        }
    }
    assert!((DEPTH..2 * DEPTH).contains(&waits), "one was taken after {waits} others");
}

struct Numbered {
    number: usize,
    page: usize,
    bytes: Vec<u8>,
}

impl AsMut<[u8]> for Numbered {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}
