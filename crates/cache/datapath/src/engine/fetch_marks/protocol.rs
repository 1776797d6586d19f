//! The protocol of the marks of reads in flight: for any kind of memory, so that loom can try every order of events.
//!
//! ```text
//! words: users (2, a bit for each process slot) .. 16 | 64 x ( active (a bit for each mark) .. 16 | 32 x mark )
//! mark:  state, file, start (low, high), end (low, high), 2 unused
//! state: turn (bits 31..3) | a process waits (bit 2) | phase (bits 1..0): free, claimed, reading
//! ```
//!
//! Only the owner of a process slot writes its words, except for the bit of those who wait, and for the marks of dead processes. The
//! *turn* counts the uses of a mark, so that a later use is not taken for an earlier one.
//!
//! A process *announces* a range as claimed, and then looks at the marks of all others. A fence lies between, so that of two processes
//! with overlapping ranges at least one sees the other. A process gives way to a range that is being read, and to one that a process with a
//! lower number has claimed. If one with a higher number has claimed it, that process may have looked too early to see our claim: it
//! decides within an instant, and is waited for. So no two processes read the same pages. Any value of any word is possible in a segment
//! that others write: the result is then a read too many, or a wait that the caller bounds.

use std::ops::Range;
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release, SeqCst};

/// The number of marks of a process: reads of more threads at the same time have none.
pub(crate) const MARKS: usize = 32;
/// The number of process slots.
pub(super) const PROCESSES: usize = 64;
pub(super) const HEAD_WORDS: usize = 16;
const MARK_WORDS: usize = 8;
pub(super) const PROCESS_WORDS: usize = HEAD_WORDS + MARKS * MARK_WORDS;
/// The size of all marks, bytes.
pub(super) const BYTES: usize = 4 * (HEAD_WORDS + PROCESSES * PROCESS_WORDS);

const FREE: u32 = 0;
pub(super) const CLAIMED: u32 = 1;
const READING: u32 = 2;
const PHASE: u32 = 3;
const WAITERS: u32 = 4;
const ONE_TURN: u32 = 8;

/// Looks at a mark that changes at each look: then another process overwrites it all the time.
const LOOKS: u32 = 100;
/// Sleeps in which a claim of another process is not decided: then it counts as a read.
const UNDECIDED_SLEEPS: u32 = 10;

/// The words of the marks, by number.
pub(super) trait Memory {
    fn load(&self, at: usize, order: Ordering) -> u32;
    fn store(&self, at: usize, value: u32, order: Ordering);
    /// Acquires and releases.
    fn swap(&self, at: usize, value: u32) -> u32;
    /// Acquires and releases. Returns whether the word was `old`.
    fn exchange(&self, at: usize, old: u32, new: u32) -> bool;
    fn fence(&self, order: Ordering);
}

/// What the protocol needs of the kernel.
pub(super) trait Kernel: Memory {
    /// Looks at a claim of another process before sleeping: it is decided in less time than a call of the kernel takes.
    const SPINS: u32;
    /// Sleeps while the word has this value, for a short time. `is_brief`: a millisecond.
    fn sleep(&self, at: usize, expected: u32, is_brief: bool);
    fn wake(&self, at: usize);
    fn is_alive(&self, process: u8) -> bool;
}

/// A mark by process slot and number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    pub(super) process: u8,
    pub(super) number: u8,
}

impl Mark {
    fn word(self, n: usize) -> usize {
        active_word(self.process) + HEAD_WORDS + usize::from(self.number) * MARK_WORDS + n
    }

    /// Returns the number of the word of the mark's state.
    pub(super) fn state(self) -> usize {
        self.word(0)
    }
}

fn active_word(process: u8) -> usize {
    HEAD_WORDS + usize::from(process) % PROCESSES * PROCESS_WORDS
}

/// A use of a mark by this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnMark {
    pub(super) mark: Mark,
    pub(super) turn: u32,
}

impl OwnMark {
    fn as_state(self, phase: u32) -> u32 {
        self.turn.wrapping_mul(ONE_TURN) | phase
    }
}

/// Another process's mark, as it was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SeenMark {
    pub(super) mark: Mark,
    state: u32,
}

/// What a process wants to read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Claim {
    pub(crate) file: u32,
    /// The pages that were requested: those that another process reads are cut off at the end.
    pub(crate) asked: Range<u64>,
    /// These with pages around them, of which any may be cut off.
    pub(crate) pages: Range<u64>,
}

impl Claim {
    /// Cuts off what another process reads. Returns whether the first requested page is left.
    fn cut(&mut self, other: &Range<u64>) -> bool {
        if other.contains(&self.asked.start) {
            return false;
        }
        if other.start > self.asked.start {
            self.asked.end = self.asked.end.min(other.start);
            self.pages.end = self.pages.end.min(other.start);
        } else {
            self.pages.start = self.pages.start.max(other.end);
        }
        true
    }
}

enum Scan {
    /// Nobody else reads what is left of the claim.
    Free,
    /// A process with a higher number has claimed some of it, and decides now.
    Undecided(SeenMark),
    /// Another process reads the first requested page.
    Taken(SeenMark),
}

/// Claims pages with a free mark of this process, whose bit among the active ones is set. The claim is cut to what no other process reads.
///
/// # Errors
/// Another process reads the first page: the claim is withdrawn.
pub(super) fn claim(memory: &impl Kernel, own: OwnMark, claim: &mut Claim) -> Result<(), SeenMark> {
    announce(memory, own, claim, CLAIMED);
    memory.fence(SeqCst);
    let (mut sleeps, mut scans) = (0, 0);
    loop {
        scans += 1;
        match scan(memory, own.mark.process, claim) {
            Scan::Free => break,
            Scan::Undecided(other) if sleeps < UNDECIDED_SLEEPS && scans < LOOKS => {
                sleeps += u32::from(!wait_until_decided(memory, other));
            }
            Scan::Undecided(other) | Scan::Taken(other) => {
                change(memory, own, FREE);
                return Err(other);
            }
        }
    }
    // A reader that sees only some of these words sees a range between the claim and what is left of it.
    write_range(memory, own.mark, &claim.pages);
    change(memory, own, READING);
    Ok(())
}

/// Marks pages as being read, whatever other processes read.
pub(super) fn read_anyway(memory: &impl Kernel, own: OwnMark, claim: &Claim) {
    announce(memory, own, claim, READING);
}

/// Ends a read.
pub(super) fn end(memory: &impl Kernel, own: OwnMark) {
    change(memory, own, FREE);
}

/// Sets the bits of the marks that a process uses.
pub(super) fn set_active(memory: &impl Memory, process: u8, active: u32) {
    memory.store(active_word(process), active, Release);
}

/// Sets the bits of the marks that a process uses, if they are others: another process has changed them.
pub(super) fn restore_active(memory: &impl Memory, process: u8, active: u32) {
    if memory.load(active_word(process), Relaxed) != active {
        set_active(memory, process, active);
    }
}

/// Notes that a process takes part, or does so no more.
pub(super) fn set_user(memory: &impl Memory, process: u8, is_user: bool) {
    let (word, bit) = (usize::from(process) / 32 % 2, 1 << (process % 32));
    for _ in 0..LOOKS {
        let seen = memory.load(word, Relaxed);
        let users = if is_user { seen | bit } else { seen & !bit };
        if seen == users || memory.exchange(word, seen, users) {
            break;
        }
    }
}

/// Returns whether other processes take part.
pub(super) fn has_others(memory: &impl Memory, me: u8) -> bool {
    others(memory, me).next().is_some()
}

/// Frees all marks of a process that is dead or begins. Returns the turn of each.
pub(super) fn clear_process(memory: &impl Kernel, process: u8) -> [u32; MARKS] {
    memory.store(active_word(process), 0, Release);
    std::array::from_fn(|number| {
        let mark = Mark { process, number: number as u8 };
        let state = memory.load(mark.state(), Acquire);
        if state & PHASE != FREE {
            clear(memory, SeenMark { mark, state });
        }
        state / ONE_TURN
    })
}

/// Waits for the end of another process's read. Returns false if `gives_up` does, which is asked before each sleep.
pub(super) fn wait(memory: &impl Kernel, other: SeenMark, mut gives_up: impl FnMut() -> bool) -> bool {
    while is_under_way(memory, other) {
        if !memory.is_alive(other.mark.process) {
            clear(memory, other);
            if !is_under_way(memory, other) {
                break;
            }
            // Another process makes the mark again and again: that wait is bounded, too.
        }
        if gives_up() {
            return false;
        }
        if let Some(expected) = begin_sleep(memory, other.mark, |state| is_same(state, other.state)) {
            memory.sleep(other.mark.state(), expected, false);
        }
    }
    true
}

/// Writes a mark that was free.
pub(super) fn announce(memory: &impl Memory, own: OwnMark, claim: &Claim, phase: u32) {
    // A process that sees one of these words sees that the mark was freed before.
    memory.fence(Release);
    memory.store(own.mark.word(1), claim.file, Relaxed);
    write_range(memory, own.mark, &claim.pages);
    memory.store(own.mark.state(), own.as_state(phase), Release);
}

fn write_range(memory: &impl Memory, mark: Mark, pages: &Range<u64>) {
    for (n, value) in [pages.start, pages.start >> 32, pages.end, pages.end >> 32].into_iter().enumerate() {
        memory.store(mark.word(2 + n), value as u32, Relaxed);
    }
}

/// Gives our mark another phase, and wakes those who wait for that.
fn change(memory: &impl Kernel, own: OwnMark, phase: u32) {
    if memory.swap(own.mark.state(), own.as_state(phase)) & WAITERS != 0 {
        memory.wake(own.mark.state());
    }
}

/// Frees the mark of a dead process, if it is as it was seen.
fn clear(memory: &impl Kernel, dead: SeenMark) {
    let state = memory.load(dead.mark.state(), Acquire);
    let free = state & !(PHASE | WAITERS);
    if is_same(state, dead.state) && memory.exchange(dead.mark.state(), state, free) && state & WAITERS != 0 {
        memory.wake(dead.mark.state());
    }
}

/// Returns whether two states are of one use of a mark, which goes on.
fn is_same(state: u32, seen: u32) -> bool {
    state / ONE_TURN == seen / ONE_TURN && state & PHASE != FREE
}

fn is_under_way(memory: &impl Memory, other: SeenMark) -> bool {
    let is_active = memory.load(active_word(other.mark.process), Acquire) >> other.mark.number & 1 != 0;
    is_active && is_same(memory.load(other.mark.state(), Acquire), other.state)
}

/// Notes that somebody waits for a change of the state. Returns the value that the word then has; None: the wait is over.
fn begin_sleep(memory: &impl Memory, mark: Mark, is_waited_for: impl Fn(u32) -> bool) -> Option<u32> {
    let state = memory.load(mark.state(), Acquire);
    let is_noted = is_waited_for(state) && (state & WAITERS != 0 || memory.exchange(mark.state(), state, state | WAITERS));
    is_noted.then_some(state | WAITERS)
}

/// Waits a little until another process has decided about its claim. Returns false if it may not have.
fn wait_until_decided<M: Kernel>(memory: &M, other: SeenMark) -> bool {
    let is_undecided = |state: u32| is_same(state, other.state) && state & PHASE == CLAIMED;
    for _ in 0..M::SPINS {
        if !is_undecided(memory.load(other.mark.state(), Acquire)) {
            return true;
        }
        std::hint::spin_loop();
    }
    if !memory.is_alive(other.mark.process) {
        clear(memory, other);
        return true;
    }
    let Some(expected) = begin_sleep(memory, other.mark, is_undecided) else { return false };
    memory.sleep(other.mark.state(), expected, true);
    false
}

/// Looks for other processes' reads of the claimed pages.
fn scan(memory: &impl Memory, me: u8, claim: &mut Claim) -> Scan {
    let mut undecided = None;
    for process in others(memory, me) {
        let mut active = memory.load(active_word(process), Acquire);
        while active != 0 {
            let mark = Mark { process, number: active.trailing_zeros() as u8 };
            active &= active - 1;
            let Some((seen, pages)) = look(memory, mark, claim.file) else { continue };
            if pages.start >= claim.pages.end || pages.end <= claim.pages.start {
                continue;
            }
            if seen.state & PHASE == CLAIMED && process > me {
                undecided = Some(seen);
            } else if !claim.cut(&pages) {
                return Scan::Taken(seen);
            }
        }
    }
    undecided.map_or(Scan::Free, Scan::Undecided)
}

/// Returns the other processes that take part.
fn others(memory: &impl Memory, me: u8) -> impl Iterator<Item = u8> {
    let low = memory.load(0, Relaxed);
    let high = memory.load(1, Relaxed);
    let mut users = (u64::from(high) << 32 | u64::from(low)) & !(1 << me);
    std::iter::from_fn(move || {
        let next = (users != 0).then(|| users.trailing_zeros() as u8);
        users &= users.wrapping_sub(1);
        next
    })
}

/// Returns a mark with its pages, if it is one of a read of this file.
fn look(memory: &impl Memory, mark: Mark, file: u32) -> Option<(SeenMark, Range<u64>)> {
    for _ in 0..LOOKS {
        let state = memory.load(mark.state(), Acquire);
        if !matches!(state & PHASE, CLAIMED | READING) {
            return None;
        }
        let word = |n: usize| u64::from(memory.load(mark.word(n), Relaxed));
        let (of, pages) = (word(1), word(2) | word(3) << 32..word(4) | word(5) << 32);
        memory.fence(Acquire);
        let after = memory.load(mark.state(), Relaxed);
        if is_same(after, state) {
            // The later state counts: a claim that became a read has not seen ours.
            return (of == u64::from(file)).then_some((SeenMark { mark, state: after }, pages));
        }
    }
    None
}

#[cfg(test)]
mod test {
    use std::cell::Cell;

    use super::*;

    /// Words of a dead process, each of which a hostile process stores again at once. It counts the checks of life and the sleeps.
    struct Renewed {
        state: u32,
        checks: Cell<u32>,
        sleeps: Cell<u32>,
    }

    impl Memory for Renewed {
        fn load(&self, at: usize, _: Ordering) -> u32 {
            if at == active_word(1) { 1 } else { self.state }
        }

        fn store(&self, _: usize, _: u32, _: Ordering) {}

        fn swap(&self, _: usize, _: u32) -> u32 {
            self.state
        }

        fn exchange(&self, _: usize, old: u32, _: u32) -> bool {
            old == self.state
        }

        fn fence(&self, _: Ordering) {}
    }

    impl Kernel for Renewed {
        const SPINS: u32 = 1;

        fn sleep(&self, _: usize, _: u32, _: bool) {
            self.sleeps.set(self.sleeps.get() + 1);
        }

        fn wake(&self, _: usize) {}

        fn is_alive(&self, _: u8) -> bool {
            self.checks.set(self.checks.get() + 1);
            assert!(self.checks.get() < 1_000, "waits without end");
            false
        }
    }

    #[test]
    fn the_wait_for_a_dead_process_whose_mark_is_made_again_and_again_is_given_up() {
        let mark = Mark { process: 1, number: 0 };
        for state in [ONE_TURN | CLAIMED, ONE_TURN | READING, ONE_TURN | READING | WAITERS] {
            let memory = Renewed { state, checks: Cell::new(0), sleeps: Cell::new(0) };
            let mut asked = 0;
            let has_ended = wait(&memory, SeenMark { mark, state }, || {
                asked += 1;
                asked > 10
            });
            assert!(!has_ended && asked == 11);
            assert_eq!(memory.sleeps.get(), 10, "it does not spin");
        }
    }
}
