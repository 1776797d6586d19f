//! Distinguishes changes of a backing file by the instance from those of other programs. Every comparison of a file with its last known
//! stamp goes through [`OwnStamp`]; docs/cache-states.md has the state table.
//!
//! A writer of the instance opens a *window* before it changes the file, and closes it with the stamp that the file then has. While a
//! window is open nobody draws a conclusion from the stamp. Two writers exist at a time: the leader, and the process that holds the file's
//! lock (write-through, times, fallocate, rename). Each has a bit in one word, beside a number that counts openings. So:
//!
//! - the writer that closes last stores the stamp, and only if nobody opened a window since it took the stamp;
//! - a reader that finds the same word before and after it took the stamp, without a bit, knows of no overlapping change;
//! - a bit that stays set belongs to a dead process: the next owner of the lock, or the next leader, closes that window.

use std::sync::atomic::{AtomicU64, Ordering};

use super::stamp::Stamp;

/// A process of the instance that changes the file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Writer {
    /// The leader: one at a time.
    Leader = 1,
    /// The process that holds the file's lock.
    LockHolder = 2,
}

const BITS: u64 = 3;
/// The number of checks of a file that changes all the time.
pub(super) const TRIES_MAX: usize = 10;
/// Attempts to close a window: each fails if the other writer opens one meanwhile.
const TRIES: usize = 1000;

/// Returns the word after a window was opened.
fn opened(word: u64, writer: Writer) -> u64 {
    (word & !BITS).wrapping_add(BITS + 1) | word & BITS | writer as u64
}

/// Returns the word after a window was closed.
fn closed(word: u64, writer: Writer) -> u64 {
    word & !(writer as u64)
}

fn is_open(word: u64) -> bool {
    word & BITS != 0
}

/// Whether the writer's window is the only one, so that the writer has to store the stamp.
fn is_alone(word: u64, writer: Writer) -> bool {
    word & BITS == writer as u64
}

/// How a file differs from the last stamp that was ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Difference {
    /// Nothing differs.
    None,
    /// Only the change time: a new name, owner or mode; or a change in place whose times were set back.
    Attributes,
    /// Size or modification time: other bytes.
    Content,
}

/// Compares two stamps.
pub(crate) fn difference(known: Stamp, now: Stamp) -> Difference {
    match known {
        _ if known == now => Difference::None,
        _ if known.size == now.size && known.mtime == now.mtime => Difference::Attributes,
        _ => Difference::Content,
    }
}

/// The result of a check of the backing file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StampCheck {
    /// The file is unchanged since our last access.
    Ours(Moment),
    /// A process of the instance is changing the file: nothing can be concluded.
    Busy,
    /// Another program changed the file.
    Changed(Change),
}

/// A moment at which no window was open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moment(u64);

/// The word of the windows when one was opened: another word shows that another one was opened or closed since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WindowWord(u64);

/// A change by another program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Change {
    word: u64,
    /// The last stamp that was ours.
    pub(crate) known: Stamp,
    /// The stamp now.
    pub(crate) now: Stamp,
}

/// The last stamp of a file that is known to be ours, and the windows of our writers.
#[derive(Clone, Copy)]
pub(crate) struct OwnStamp<'a> {
    pub(super) windows: &'a AtomicU64,
    pub(super) stamp: [&'a AtomicU64; 3],
}

impl OwnStamp<'_> {
    /// Returns the last stamp that was ours.
    pub(crate) fn get(self) -> Stamp {
        let [size, mtime, ctime] = self.stamp.map(|word| word.load(Ordering::Acquire));
        Stamp { size, mtime: mtime as i64, ctime: ctime as i64 }
    }

    fn set(self, stamp: Stamp) {
        for (word, value) in self.stamp.into_iter().zip([stamp.size, stamp.mtime as u64, stamp.ctime as u64]) {
            word.store(value, Ordering::Release);
        }
    }

    /// Sets the stamp of a record that nobody else knows yet.
    pub(crate) fn begin(self, stamp: Stamp) {
        self.windows.store(0, Ordering::Release);
        self.set(stamp);
    }

    /// Returns whether a process of the instance is changing the file, or died during the change.
    pub(crate) fn is_open(self) -> bool {
        is_open(self.windows.load(Ordering::Acquire))
    }

    /// Returns whether this writer is changing the file, or died during the change.
    pub(crate) fn is_open_by(self, writer: Writer) -> bool {
        self.windows.load(Ordering::Acquire) & writer as u64 != 0
    }

    /// Returns whether the file differs from our last stamp, and no process of the instance is changing it.
    pub(crate) fn differs(self, now: Stamp) -> bool {
        !self.is_open() && self.get() != now
    }

    /// Opens a window. Opening it twice is opening it once.
    pub(crate) fn open(self, writer: Writer) -> WindowWord {
        let before = self.windows.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| Some(opened(word, writer)));
        WindowWord(opened(before.unwrap_or_else(|word| word), writer))
    }

    /// Opens a window, unless one was opened since that moment. Returns whether it did.
    pub(crate) fn open_at(self, moment: Moment, writer: Writer) -> bool {
        self.windows.compare_exchange(moment.0, opened(moment.0, writer), Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Closes a window: the file's stamp becomes ours. If the other writer's window is open, that writer stores the stamp.
    ///
    /// # Errors
    /// Those of `stamp`: the window stays open.
    pub(crate) fn close<E>(self, writer: Writer, mut stamp: impl FnMut() -> Result<Stamp, E>) -> Result<(), E> {
        for _ in 0..TRIES {
            let word = self.windows.load(Ordering::Acquire);
            if is_alone(word, writer) {
                self.set(stamp()?);
            } else if word & writer as u64 == 0 {
                return Ok(());
            }
            if self.windows.compare_exchange(word, closed(word, writer), Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return Ok(());
            }
        }
        // A process of the group overwrites the word all the time: the window stays open.
        Ok(())
    }

    /// Closes a window with a stamp that was taken earlier in it, so that a change by another program since then is found. If another
    /// window was opened meanwhile, that change was ours: the file's present stamp is stored.
    ///
    /// # Errors
    /// Those of `stamp`: the window stays open.
    pub(crate) fn close_as_of<E>(
        self,
        window: WindowWord,
        writer: Writer,
        early: Stamp,
        stamp: impl FnMut() -> Result<Stamp, E>,
    ) -> Result<(), E> {
        let WindowWord(word) = window;
        // While our bit is set, no other writer stores a stamp.
        self.set(early);
        match self.windows.compare_exchange(word, closed(word, writer), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(_) => self.close(writer, stamp),
        }
    }

    /// Compares the backing file with the last stamp that was ours.
    ///
    /// # Errors
    /// Those of `stamp`.
    pub(crate) fn look<E>(self, mut stamp: impl FnMut() -> Result<Stamp, E>) -> Result<StampCheck, E> {
        let (word, known) = (self.windows.load(Ordering::Acquire), self.get());
        let now = stamp()?;
        if is_open(word) || self.get() != known || self.windows.load(Ordering::Acquire) != word {
            return Ok(StampCheck::Busy);
        }
        Ok(if known == now { StampCheck::Ours(Moment(word)) } else { StampCheck::Changed(Change { word, known, now }) })
    }

    /// Adopts a change by another program as known. Returns false if a process of the instance changed the file since, so that nothing is
    /// known.
    ///
    /// # Errors
    /// Those of `stamp`, if a process of the instance is changing the file by now: the window stays open.
    pub(crate) fn adopt<E>(self, change: &Change, writer: Writer, stamp: impl FnMut() -> Result<Stamp, E>) -> Result<bool, E> {
        if !self.open_at(Moment(change.word), writer) {
            return Ok(false);
        }
        self.close_as_of(WindowWord(opened(change.word, writer)), writer, change.now, stamp)?;
        Ok(true)
    }
}

/// Tests every order of the steps of small programs, with the transitions that the code uses.
#[cfg(test)]
mod test {
    use std::collections::HashSet;

    use super::*;

    /// A step of a writer or of a check. Each touches shared state once, except that a writer whose bit is set stores all words of the
    /// stamp.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    enum At {
        /// Not in a window.
        Idle,
        /// The window is open, the file is unchanged.
        Open,
        /// The file is changed.
        Changed,
        /// The word was read; it shows whether the writer is alone.
        Read(u64),
        /// The stamp was taken.
        Taken(u64, u8),
        /// The stamp was stored.
        Stored(u64),
        /// A check has read the word and the known stamp.
        Looking(u64, u8),
        /// The check has also taken the file's stamp.
        Looked(u64, u8, u8),
        /// The check found a change, and adopts it: its window is open, with this word.
        Adopts(u64, u8),
        /// The stamp of that change is stored.
        Adopted(u64, u8),
    }

    #[derive(Clone, PartialEq, Eq, Hash, Debug)]
    struct Environment {
        word: u64,
        known: u8,
        /// The backing file's stamp: each change counts it up.
        file: u8,
        /// A change by another program that no check has found yet, and that no window overlapped.
        foreign: bool,
        /// A change that a window overlapped: it may be found or not.
        hidden: bool,
        /// The file's stamp after the last change by another program.
        last_foreign: u8,
        at: [At; 2],
        /// The number of windows and checks that each may still start.
        left: [u8; 2],
        foreign_left: u8,
        deaths_left: u8,
    }

    const WRITERS: [Writer; 2] = [Writer::Leader, Writer::LockHolder];

    impl Environment {
        /// The other program changes the file.
        fn foreign(&self) -> Option<Environment> {
            let mut next = self.clone();
            next.foreign_left = self.foreign_left.checked_sub(1)?;
            next.file += 1;
            next.last_foreign = next.file;
            if is_open(self.word) {
                next.hidden = true
            } else {
                next.foreign = true
            }
            Some(next)
        }

        /// The process dies, and the next owner of its role continues. An open window is closed; a check is forgotten.
        fn death(&self, who: usize) -> Option<Environment> {
            let mut next = self.clone();
            next.deaths_left = self.deaths_left.checked_sub(1)?;
            next.at[who] = if self.word & WRITERS[who] as u64 != 0 { At::Changed } else { At::Idle };
            Some(next)
        }

        // long: the model of the protocol: one arm for each step that a thread can take.
        fn steps(&self, who: usize) -> Vec<Environment> {
            let writer = WRITERS[who];
            let mut next = self.clone();
            let mut all = Vec::new();
            match self.at[who] {
                At::Idle => {
                    let Some(left) = self.left[who].checked_sub(1) else { return all };
                    next.left[who] = left;
                    let mut look = next.clone();
                    look.at[who] = At::Looking(self.word, self.known);
                    all.push(look);
                    // An earlier change by another program is not found any more, unless the writer checked first. The leader must do
                    // so before it writes (`open_at`), the lock holder with `Open::look_below`. Here a blind window hides the change.
                    next.word = opened(self.word, writer);
                    next.hidden |= std::mem::take(&mut next.foreign);
                    next.at[who] = At::Open;
                }
                At::Open => {
                    next.file += 1;
                    next.at[who] = At::Changed;
                }
                At::Changed => next.at[who] = At::Read(self.word),
                At::Read(word) if is_alone(word, writer) => next.at[who] = At::Taken(word, self.file),
                At::Read(word) => {
                    assert!(word & writer as u64 != 0, "{self:?}: its bit is gone");
                    let is_same = self.word == word;
                    next.word = if is_same { closed(word, writer) } else { self.word };
                    next.at[who] = if is_same { At::Idle } else { At::Changed };
                }
                At::Taken(word, stamp) => {
                    next.known = stamp;
                    next.at[who] = At::Stored(word);
                }
                At::Stored(word) if self.word == word => {
                    next.word = closed(word, writer);
                    next.at[who] = At::Idle;
                    // A change after the stamp was taken is found later; one before is not, for it was in the window.
                    next.foreign = self.hidden && self.known != self.file;
                    next.hidden = false;
                }
                At::Stored(_) => next.at[who] = At::Changed,
                At::Looking(word, known) => next.at[who] = At::Looked(word, known, self.file),
                At::Looked(word, known, now) => {
                    let is_quiet = !is_open(word) && self.word == word && self.known == known;
                    next.at[who] = At::Idle;
                    if is_quiet && known != now {
                        assert!(self.foreign, "{self:?}: our own change was taken for another program's");
                        next.word = opened(word, writer);
                        next.at[who] = At::Adopts(next.word, now);
                    } else if is_quiet && self.file == now {
                        assert!(!self.foreign, "{self:?}: a change by another program was not seen");
                    }
                }
                At::Adopts(word, now) => {
                    next.known = now;
                    next.at[who] = At::Adopted(word, now);
                }
                At::Adopted(word, now) if self.word == word => {
                    // An earlier stamp: a later change differs from it, and the next check finds it.
                    next.word = closed(word, writer);
                    next.foreign = now != self.file;
                    assert!(!next.foreign || self.last_foreign > now, "{self:?}: our own change was taken for another program's");
                    next.hidden = false;
                    next.at[who] = At::Idle;
                }
                At::Adopted(..) => {
                    next.hidden |= std::mem::take(&mut next.foreign);
                    next.at[who] = At::Changed;
                }
            }
            all.push(next);
            all
        }
    }

    #[test]
    fn no_order_of_steps_takes_our_change_for_anothers_or_misses_one() {
        let first = Environment {
            word: 0,
            known: 0,
            file: 0,
            foreign: false,
            hidden: false,
            last_foreign: 0,
            at: [At::Idle; 2],
            left: [2, 2],
            foreign_left: 2,
            deaths_left: 1,
        };
        let mut seen = HashSet::new();
        let mut todo = vec![first];
        let mut ends = 0;
        while let Some(world) = todo.pop() {
            if !seen.insert(world.clone()) {
                continue;
            }
            let mut next: Vec<Environment> = (0..2).flat_map(|who| world.steps(who)).collect();
            if world.at == [At::Idle; 2] && next.is_empty() {
                ends += 1;
                assert!(!is_open(world.word), "{world:?}: a window stayed open");
                assert_eq!(world.known != world.file, world.foreign, "{world:?}: what is known at the end");
            }
            next.extend(world.foreign());
            next.extend((0..2).filter_map(|who| world.death(who)));
            todo.extend(next);
        }
        assert!(seen.len() > 10_000 && ends > 100, "{} states, {ends} ends", seen.len());
    }

    #[test]
    fn what_differs_is_what_counts() {
        let stamp = |size, mtime, ctime| Stamp { size, mtime, ctime };
        assert_eq!(difference(stamp(1, 2, 3), stamp(1, 2, 3)), Difference::None);
        assert_eq!(difference(stamp(1, 2, 3), stamp(1, 2, 4)), Difference::Attributes);
        assert_eq!(difference(stamp(1, 2, 3), stamp(2, 2, 3)), Difference::Content);
        assert_eq!(difference(stamp(1, 2, 3), stamp(1, 1, 3)), Difference::Content);
    }
}
