//! Every order of events of the marks' protocol. Sleeping is a mutex and a condition: a lost wake-up is a deadlock, which loom reports.
//! Time is only up for whoever waits for a dead process, so no time-out hides a lost wake-up.

use std::ops::Range;
use std::sync::atomic::Ordering;

use loom::sync::atomic::Ordering::{Relaxed, SeqCst};
use loom::sync::atomic::{AtomicU32, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread::{JoinHandle, spawn};

use super::protocol::{self, Claim, Kernel, Mark, Memory, OwnMark};

const PAGES: usize = 4;
/// The words of a process with one mark whose values differ: active, state, start, end.
const WORDS: usize = 4;
/// The users, and the words that all marks have in common: few words, few orders.
const USERS: u32 = 0b111;
const FILE: u32 = 1;

/// The marks of three processes, the cached pages, and how often each was read.
struct TestMemory {
    words: Vec<AtomicU32>,
    dead: [AtomicU32; 3],
    cached: [AtomicU32; PAGES],
    reads: [std::sync::atomic::AtomicU32; PAGES],
    asleep: Mutex<()>,
    woken: Condvar,
}

impl TestMemory {
    fn new() -> TestMemory {
        let zero = |_| AtomicU32::new(0);
        TestMemory {
            words: (0..3 * WORDS).map(zero).collect(),
            dead: std::array::from_fn(zero),
            cached: std::array::from_fn(zero),
            reads: Default::default(),
            asleep: Mutex::new(()),
            woken: Condvar::new(),
        }
    }

    /// Returns a word, or the value that it always has.
    fn find(&self, at: usize) -> Result<&AtomicU32, u32> {
        let size = protocol::PROCESS_WORDS;
        let Some(in_process) = at.checked_sub(protocol::HEAD_WORDS) else { return Err(if at == 0 { USERS } else { 0 }) };
        let first = in_process / size * WORDS;
        match (in_process % size).checked_sub(protocol::HEAD_WORDS) {
            None => Ok(&self.words[first]),
            Some(0) => Ok(&self.words[first + 1]),
            Some(1) => Err(FILE),
            Some(2) => Ok(&self.words[first + 2]),
            Some(4) => Ok(&self.words[first + 3]),
            Some(_) => Err(0),
        }
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        self.find(at).expect("a word that changes")
    }

    fn wake_all(&self) {
        let _asleep = self.asleep.lock().expect("no panic");
        self.woken.notify_all();
    }

    fn die(&self, process: u8) {
        self.dead[usize::from(process)].store(1, SeqCst);
        self.wake_all();
    }

    /// Fetches pages as [`super::super::reads_in_flight`] does, and each of them once. That a page is cached is ordered by the marks alone.
    fn fetch(&self, process: u8, asked: Range<u64>) {
        let mut own = OwnMark { mark: Mark { process, number: 0 }, turn: 0 };
        let is_cached = |page: &u64| self.cached[*page as usize].load(Relaxed) == 1;
        while let Some(start) = asked.clone().find(|page| !is_cached(page)) {
            own.turn += 1;
            let left = start..(start..asked.end).find(is_cached).unwrap_or(asked.end);
            let mut claim = Claim { file: FILE, asked: left.clone(), pages: left };
            protocol::set_active(self, process, 1);
            let claimed = protocol::claim(self, own, &mut claim);
            if claimed.is_ok() && !claim.asked.clone().any(|page| is_cached(&page)) {
                for page in claim.asked {
                    assert_eq!(self.reads[page as usize].fetch_add(1, SeqCst), 0, "page {page} is read again");
                    self.cached[page as usize].store(1, Relaxed);
                }
            }
            protocol::end(self, own);
            protocol::set_active(self, process, 0);
            if let Err(other) = claimed {
                assert!(protocol::wait(self, other, || false));
            }
        }
    }
}

impl Memory for TestMemory {
    fn load(&self, at: usize, order: Ordering) -> u32 {
        self.find(at).map_or_else(|value| value, |word| word.load(order))
    }

    fn store(&self, at: usize, value: u32, order: Ordering) {
        match self.find(at) {
            Ok(word) => word.store(value, order),
            Err(fixed) => assert_eq!(fixed, value),
        }
    }

    fn swap(&self, at: usize, value: u32) -> u32 {
        self.word(at).swap(value, Ordering::AcqRel)
    }

    fn exchange(&self, at: usize, old: u32, new: u32) -> bool {
        self.word(at).compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn fence(&self, order: Ordering) {
        fence(order);
    }
}

impl Kernel for TestMemory {
    const SPINS: u32 = 0;

    fn sleep(&self, at: usize, expected: u32, _is_brief: bool) {
        let asleep = self.asleep.lock().expect("no panic");
        let process = (at - protocol::HEAD_WORDS) / protocol::PROCESS_WORDS;
        if self.word(at).load(SeqCst) == expected && self.is_alive(process as u8) {
            drop(self.woken.wait(asleep));
        }
    }

    fn wake(&self, _: usize) {
        self.wake_all();
    }

    fn is_alive(&self, process: u8) -> bool {
        self.dead[usize::from(process)].load(SeqCst) == 0
    }
}

type Work = Box<dyn FnOnce(&TestMemory)>;

/// FULL=1: more orders, which take longer.
fn is_full() -> bool {
    std::env::var_os("FULL").is_some_and(|full| full == "1")
}

/// Tries the orders of these threads with so many preemptions, and then whether the pages were each read once.
fn explore(preemptions: usize, threads: impl Fn() -> Vec<Work> + Send + Sync + 'static, pages: Range<usize>) {
    let mut model = loom::model::Builder::new();
    model.max_branches = 10_000;
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let memory = Arc::new(TestMemory::new());
        let run = |work: Work| -> JoinHandle<()> {
            let memory = memory.clone();
            spawn(move || work(&memory))
        };
        threads().into_iter().map(run).collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().expect("no panic"));
        pages.clone().for_each(|page| assert_eq!(memory.reads[page].load(SeqCst), 1, "page {page}"));
    });
}

fn fetches(process: u8, asked: Range<u64>) -> Work {
    Box::new(move |memory| memory.fetch(process, asked))
}

#[test]
fn two_that_miss_the_same_page_read_it_once() {
    explore(if is_full() { 3 } else { 2 }, || vec![fetches(0, 0..1), fetches(1, 0..1)], 0..1);
}

#[test]
fn two_whose_pages_overlap_read_each_once() {
    let preemptions = if is_full() { 2 } else { 1 };
    explore(preemptions, || vec![fetches(0, 0..2), fetches(1, 1..3)], 0..3);
    explore(preemptions, || vec![fetches(1, 0..2), fetches(0, 1..3)], 0..3);
}

#[test]
fn three_that_miss_the_same_page_read_it_once() {
    if !is_full() {
        return println!("SKIP: takes minutes; set FULL=1");
    }
    explore(0, || (0..3).map(|process| fetches(process, 0..1)).collect(), 0..1);
}

#[test]
fn the_mark_of_a_dead_process_ends() {
    for process in [0, 2] {
        for is_claimed in [false, true] {
            let dies = move |memory: &TestMemory| {
                protocol::set_active(memory, process, 1);
                let own = OwnMark { mark: Mark { process, number: 0 }, turn: 1 };
                let claim = Claim { file: FILE, asked: 0..1, pages: 0..2 };
                match is_claimed {
                    true => protocol::announce(memory, own, &claim, protocol::CLAIMED),
                    false => protocol::read_anyway(memory, own, &claim),
                }
                memory.die(process);
            };
            explore(2, move || vec![Box::new(dies), fetches(1, 0..1)], 0..1);
        }
    }
}
