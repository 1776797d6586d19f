//! Drops pages from the cache.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use super::name_hash::HashedName;
use super::record::{Frame, PINS};
use super::shard::Shard;
use super::word::Word;
use super::{FileNo, Marks, Name, SharedPages};
use crate::{PAGE_BYTES, PageIndex};

/// The numbers of pages are below this.
const PAGES_END: u64 = 1 << 40;

/// The result of dropping one page.
enum Dropped {
    Gone,
    /// The page has a mark that keeps it.
    Marked,
    /// Another thread is changing the page.
    Busy(usize, Word),
}

/// Which of the pages to be dropped are still cached.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[must_use]
pub enum Leftover {
    /// None of them is cached.
    None,
    /// Some have a mark that keeps them.
    Marked,
    /// A process that makes no progress holds some pages, or the lock of their shard: they may be seen again when it continues.
    Stuck,
}

impl SharedPages {
    /// Drops pages of a file, marked or not, and rejects insertions with earlier tickets. A process that has a page pinned keeps access
    /// to its bytes; no other finds it. Never returns `Leftover::Marked`.
    pub fn invalidate(&self, file: FileNo, pages: Range<u64>) -> Leftover {
        self.drop_range(file, pages, None)
    }

    fn drop_range(&self, file: FileNo, pages: Range<u64>, kept: Option<Marks>) -> Leftover {
        let pages = pages.start..pages.end.min(PAGES_END);
        if pages.end.saturating_sub(pages.start) <= u64::from(self.frames() / 8).max(1) {
            let drop = |page| self.drop_page(&self.key(Name { file, page: PageIndex(page) }), kept);
            return most(pages.map(drop));
        }
        self.drop_of_all(|name| name.file == file && pages.contains(&name.page.0), kept)
    }

    /// Drops the pages of a file that have no mark, and rejects insertions with earlier tickets. (If no page is left, the file number may
    /// be reused.)
    pub fn drop_clean(&self, file: FileNo) -> Leftover {
        self.drop_without(file, Marks::DIRTY | Marks::SSD_STALE)
    }

    /// Drops the pages of a file that have none of these marks, as `drop_clean`.
    pub fn drop_without(&self, file: FileNo, marks: Marks) -> Leftover {
        self.drop_of_all(|name| name.file == file, Some(marks))
    }

    /// Drops pages of a file that have none of these marks, and rejects insertions of any of these pages with earlier tickets.
    pub fn drop_range_without(&self, file: FileNo, pages: Range<u64>, marks: Marks) -> Leftover {
        self.drop_range(file, pages, Some(marks))
    }

    /// Returns whether a frame has a page of a file, while no process inserts one.
    pub fn has_pages(&self, file: FileNo) -> bool {
        let frames = self.plan.shards * self.plan.frames as usize;
        (0..frames).any(|at| self.records[at].word().is_named() && Name::of(self.name_at(at)).file == file)
    }

    /// Zeroes the bytes of all frames that have no page: they may be of pages that other processes must not see any more. Returns whether
    /// it reached every shard.
    #[must_use]
    pub fn wipe_free(&self) -> bool {
        for no in 0..self.plan.shards {
            let Some(shard) = self.lock(no) else { return false };
            for local in 0..self.plan.frames {
                let (at, record) = (shard.global(local), &self.records[shard.global(local)]);
                let word = record.word();
                // Insertions need the shard's lock. A pinned frame is still being read.
                let is_free = !word.is_named() && !word.is_changing() && record[PINS].load(Relaxed) == 0;
                if is_free {
                    let begin = self.data(at);
                    self.region.fill(begin..begin + PAGE_BYTES, 0);
                }
            }
        }
        true
    }

    fn drop_of_all(&self, wanted: impl Fn(Name) -> bool, kept: Option<Marks>) -> Leftover {
        most((0..self.plan.shards).map(|no| {
            let Some(shard) = self.lock(no) else { return Leftover::Stuck };
            shard.move_all_epochs();
            drop(shard);
            self.drop_all(no, &wanted, kept)
        }))
    }

    /// Drops every wanted page of a shard.
    fn drop_all(&self, no: usize, wanted: impl Fn(Name) -> bool, kept: Option<Marks>) -> Leftover {
        let frames = self.plan.frames as usize;
        let named = (no * frames..(no + 1) * frames).filter(|at| self.records[*at].word().is_named());
        let names = named.map(|at| self.name_at(at)).filter(|name| wanted(Name::of(*name)));
        most(names.map(|name| self.drop_page(&self.key_of_word(name), kept)))
    }

    fn drop_page(&self, key: &HashedName, kept: Option<Marks>) -> Leftover {
        loop {
            let Some(shard) = self.lock(key.shard) else { return Leftover::Stuck };
            let dropped = shard.drop_now(key, kept);
            drop(shard);
            match dropped {
                Dropped::Gone => return Leftover::None,
                Dropped::Marked => return Leftover::Marked,
                // No process can read it now.
                Dropped::Busy(at, word) if !self.wait(at, word) => return Leftover::Stuck,
                Dropped::Busy(..) => {}
            }
        }
    }
}

/// Returns the worst result; stops at the first page or shard that is stuck.
fn most(mut all: impl Iterator<Item = Leftover>) -> Leftover {
    all.try_fold(Leftover::None, |most, left| if left == Leftover::Stuck { Err(left) } else { Ok(most.max(left)) })
        .unwrap_or_else(|stuck| stuck)
}

impl Shard<'_> {
    fn drop_now(&self, key: &HashedName, kept: Option<Marks>) -> Dropped {
        self.move_epoch(key);
        let Some((at, word)) = self.pages.probe(key) else { return Dropped::Gone };
        if word.is_changing() {
            return Dropped::Busy(at, word);
        }
        if kept.is_some_and(|kept| word.marks().0 & kept.0 != 0) {
            return Dropped::Marked;
        }
        if !self.pages.take(at, word, word.taken_by(self.pages.me).leaving()) {
            return Dropped::Busy(at, word);
        }
        self.remove((at % self.pages.plan.frames as usize) as u32, word);
        Dropped::Gone
    }
}
