//! Notifies other processes at once that a file has changed, so that a mount makes the kernel drop its pages of it.
//!
//! A process that wants to be notified is a *listener*: it sets its bit in the header. A writer sets, in the file's record, the bits of all
//! listeners that have the file open, wakes them, and waits until each has looked: then a read through their mounts returns the change. A
//! listener clears its bit in a round, in which it also makes the kernel drop its pages, and counts the beginnings and ends of rounds: a
//! writer that finds the bit clear waits for the end of the round that is going on. A listener without progress is waited for once.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use shm::futex;

use super::CacheEngine;
use super::cached_version::CachedVersion;
use super::layout::{Header, Word};
use super::open::Open;
use super::record::Record;

/// How long a writer waits for listeners, and how long at a time.
const WAIT_MAX: Duration = Duration::from_millis(20);
const SLICE: Duration = Duration::from_micros(250);

impl Header {
    /// Returns the bits of the processes that listen.
    #[inline(always)]
    fn listeners(&self) -> &AtomicU64 {
        self.wide(Word::Listeners)
    }

    /// Returns the count of the changes of which a listener was notified, on which it sleeps.
    fn notices(&self, process: u32) -> &AtomicU32 {
        self.region().u32(Word::Notices as usize + 4 * process as usize)
    }

    /// Returns the count of the rounds that a listener has started and ended.
    fn rounds(&self, process: u32) -> &AtomicU32 {
        self.region().u32(Word::Rounds as usize + 4 * process as usize)
    }
}

/// A round of a listener: what it finds changed is looked at before this is dropped.
#[must_use = "a writer waits for its end"]
pub struct ListeningRound<'a>(&'a CacheEngine);

impl Drop for ListeningRound<'_> {
    fn drop(&mut self) {
        let rounds = self.0.header.rounds(self.0.me.0.into());
        rounds.fetch_add(1, Ordering::SeqCst);
        futex::wake(rounds, u32::MAX);
    }
}

impl CacheEngine {
    fn own_bit(&self) -> u64 {
        1 << self.me.0
    }

    /// Makes this process a listener, or ends that.
    pub fn set_listening(&self, listens: bool) {
        if listens {
            self.header.listeners().fetch_or(self.own_bit(), Ordering::SeqCst);
        } else {
            self.header.listeners().fetch_and(!self.own_bit(), Ordering::SeqCst);
        }
    }

    /// Returns a count that changes with each change of which this process is notified.
    pub fn change_count(&self) -> u32 {
        self.header.notices(self.me.0.into()).load(Ordering::SeqCst)
    }

    /// Waits until the count is not `seen` any more, or for so long.
    pub fn wait_for_changes(&self, seen: u32, at_most: Duration) {
        futex::wait(self.header.notices(self.me.0.into()), seen, Some(at_most));
    }

    /// Wakes the thread of this process that listens.
    pub fn wake_listener(&self) {
        self.wake(self.me.0.into());
    }

    fn wake(&self, process: u32) {
        let count = self.header.notices(process);
        count.fetch_add(1, Ordering::SeqCst);
        futex::wake(count, u32::MAX);
    }

    /// Begins a round in which this process looks at its files: see [`Open::take_change`].
    pub fn begin_round(&self) -> ListeningRound<'_> {
        let rounds = self.header.rounds(self.me.0.into());
        // One process that had this slot may have died in a round.
        let step = if rounds.load(Ordering::SeqCst).is_multiple_of(2) { 1 } else { 2 };
        rounds.fetch_add(step, Ordering::SeqCst);
        ListeningRound(self)
    }

    /// Ends what a process in this slot listened to before: it has died.
    pub(crate) fn forget_listener(&self, process: shm::ProcessSlot) {
        self.header.listeners().fetch_and(!(1 << process.0), Ordering::SeqCst);
    }

    /// Notifies the other listeners that have the file open that it has changed, and waits until they have looked.
    #[inline(always)]
    pub(crate) fn notify_of_change(&self, record: Record<'_>) {
        if self.header.listeners().load(Ordering::Relaxed) & !self.own_bit() != 0 {
            self.notify_others(record);
        }
    }

    #[cold]
    fn notify_others(&self, record: Record<'_>) {
        // The change comes before the look at the processes that have the file open: a later open reads the change.
        fence(Ordering::SeqCst);
        let others = self.header.listeners().load(Ordering::SeqCst) & record.open_by().load(Ordering::SeqCst) & !self.own_bit();
        self.mark_changed(record, others);
        let begun = Instant::now();
        for process in bits(others) {
            let rounds = self.header.rounds(process).load(Ordering::SeqCst);
            let is_stuck = self.stuck_listeners.load(Ordering::Relaxed) & 1 << process != 0;
            if is_stuck && self.stuck_at[process as usize].load(Ordering::Relaxed) == rounds {
                continue;
            }
            self.stuck_listeners.fetch_and(!(1 << process), Ordering::Relaxed);
            if !self.has_looked(record, process, begun) {
                self.stuck_at[process as usize].store(self.header.rounds(process).load(Ordering::SeqCst), Ordering::Relaxed);
                self.stuck_listeners.fetch_or(1 << process, Ordering::Relaxed);
            }
        }
    }

    /// Notifies all listeners, this process too, that another program has changed a file. Nothing waits for them.
    pub(crate) fn notify_of_foreign_change(&self, record: Record<'_>) {
        let listeners = self.header.listeners().load(Ordering::SeqCst);
        if listeners != 0 {
            self.mark_changed(record, listeners & record.open_by().load(Ordering::SeqCst));
        }
    }

    /// Sets the bits of these listeners, and wakes them.
    fn mark_changed(&self, record: Record<'_>, listeners: u64) {
        if listeners != 0 {
            record.changed_for().fetch_or(listeners, Ordering::SeqCst);
            bits(listeners).for_each(|process| self.wake(process));
        }
    }

    /// Waits until a listener has looked at a change, up to the limit of a writer's wait after its start `begun`. Returns whether it has.
    fn has_looked(&self, record: Record<'_>, process: u32, begun: Instant) -> bool {
        let rounds = self.header.rounds(process);
        let mut own_round = None;
        loop {
            let now = rounds.load(Ordering::SeqCst);
            let is_taken = record.changed_for().load(Ordering::SeqCst) & 1 << process == 0;
            // After the look at the bit: it is cleared in a round.
            let then = rounds.load(Ordering::SeqCst);
            if is_taken && (then.is_multiple_of(2) || then != now) {
                return true;
            }
            let Some(left) = WAIT_MAX.checked_sub(begun.elapsed()) else { return false };
            futex::wait(rounds, then, Some(left.min(SLICE)));
            // The listener of this process may wait for a page that the kernel keeps locked until this write ends, and that one for ours.
            let own = self.header.rounds(self.me.0.into()).load(Ordering::SeqCst);
            match own_round {
                Some((round, since)) if round == own && !own.is_multiple_of(2) && Instant::now() > since + SLICE => return true,
                Some((round, _)) if round == own => {}
                _ => own_round = Some((own, Instant::now())),
            }
        }
    }
}

/// Returns the numbers of the bits that are set.
fn bits(set: u64) -> impl Iterator<Item = u32> {
    (0..u64::BITS).filter(move |bit| set & 1 << bit != 0)
}

impl<'a> Record<'a> {
    /// Returns the process slots that are to look at a change of the file, and have not yet.
    #[inline]
    fn changed_for(self) -> &'a AtomicU64 {
        self.u64(120)
    }
}

impl Open {
    /// Returns whether the file was changed since the last call, in this process, for one of its open files. Called in a round.
    pub fn take_change(&self) -> bool {
        let bit = self.engine.own_bit();
        let changed = self.record().changed_for();
        changed.load(Ordering::SeqCst) & bit != 0 && changed.fetch_and(!bit, Ordering::SeqCst) & bit != 0
    }

    /// Returns whether the file was changed, and nobody has looked.
    pub fn has_change(&self) -> bool {
        self.record().changed_for().load(Ordering::SeqCst) & self.engine.own_bit() != 0
    }

    /// Notifies the other listeners that this process has changed the file.
    #[inline(always)]
    pub(super) fn notify_of_change(&self) {
        self.engine.notify_of_change(self.record());
    }
}

impl CachedVersion {
    /// Returns whether the file was changed, as [`Open::take_change`] does.
    pub fn take_change(&self) -> bool {
        self.as_open().take_change()
    }
}

#[cfg(test)]
mod test {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use ssdcache::Mode;

    use super::*;
    use crate::test_engine::two_processes;

    #[test]
    fn a_writer_returns_when_each_listener_that_has_the_file_open_has_looked() {
        let (writer, reader) = two_processes(Mode::WriteBack);
        let engine = Arc::clone(&reader.engine);
        writer.write(0, &[1; 100]).expect("written");
        assert!(!reader.has_change(), "nobody listens");
        engine.set_listening(true);
        let stop = Arc::new(AtomicBool::new(false));
        let looks = {
            let (engine, stop) = (Arc::clone(&engine), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut found = 0;
                while !stop.load(Ordering::SeqCst) {
                    let seen = engine.change_count();
                    let round = engine.begin_round();
                    found += u32::from(reader.take_change());
                    drop(round);
                    engine.wait_for_changes(seen, Duration::from_secs(10));
                }
                (found, reader)
            })
        };
        type Change = fn(&Open) -> Result<(), rustix::io::Errno>;
        let changes: [Change; 4] = [
            |open| open.write(0, &[2; 100]).map(drop),
            |open| open.append(&[3; 10]).map(drop),
            |open| open.set_len(50),
            |open| open.punch(0, 20),
        ];
        for change in changes {
            change(&writer).expect("changed");
            assert_eq!(writer.record().changed_for().load(Ordering::SeqCst), 0, "it has looked");
        }
        stop.store(true, Ordering::SeqCst);
        engine.wake_listener();
        let (found, reader) = looks.join().expect("no panic");
        assert_eq!(found, 4);
        // One that does not look any more is waited for once, also with a bit that it had taken before.
        for _ in 0..2 {
            let begun = Instant::now();
            (0..1000).for_each(|_| _ = writer.write(0, &[5; 100]).expect("written"));
            assert!(begun.elapsed() < WAIT_MAX * 100 && reader.has_change());
            assert!(reader.take_change());
        }
        writer.write(0, &[5; 100]).expect("written");
        assert!(reader.take_change() && !reader.take_change());
        engine.set_listening(false);
        writer.write(0, &[6; 100]).expect("written");
        assert!(!reader.has_change(), "it does not listen any more");
    }

    #[test]
    fn a_listener_that_died_is_forgotten() {
        let (writer, reader) = two_processes(Mode::WriteBack);
        reader.engine.set_listening(true);
        let _ = std::mem::ManuallyDrop::new(reader.engine.begin_round());
        writer.engine.forget_listener(reader.engine.process_slot());
        writer.write(0, &[1; 100]).expect("written");
        assert!(!reader.has_change());
        // Whoever gets its slot begins with an even count.
        drop(reader.engine.begin_round());
        assert!(writer.engine.header.rounds(reader.engine.process_slot().0.into()).load(Ordering::SeqCst).is_multiple_of(2));
    }
}
