//! Dropping pages.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use super::find::HashedName;
use super::frame::{Frame, PINS};
use super::shard::Shard;
use super::word::Word;
use super::{FileNo, Marks, Name, SharedPages};
use crate::{PAGE_BYTES, PageIndex};

/// Pages are below this.
const PAGES_END: u64 = 1 << 40;

/// What became of a page that is to be dropped.
enum Dropped {
    Gone,
    /// It has a mark with which it stays.
    Marked,
    /// Somebody is changing it.
    Busy(usize, Word),
}

/// Whether pages that were to be dropped are here still.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[must_use]
pub enum Leftover {
    /// None of them.
    None,
    /// Such as have a mark with which they stay.
    Marked,
    /// A process that does not go on keeps some, or what says where they are: they may be seen again when it does.
    Stuck,
}

impl SharedPages {
    /// Drops pages of a file, marked or not, and lets nobody bring them who looked for them before. Who has one pinned keeps its bytes
    /// in sight; nobody else finds them. Never `Leftover::Marked`.
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

    /// Drops the pages of a file that have no mark, and lets nobody bring any who looked for them before (the number may be given to
    /// another file now, if none is left).
    pub fn drop_clean(&self, file: FileNo) -> Leftover {
        self.drop_without(file, Marks::DIRTY | Marks::SSD_STALE)
    }

    /// Drops the pages of a file that have none of these marks, as `drop_clean`.
    pub fn drop_without(&self, file: FileNo, marks: Marks) -> Leftover {
        self.drop_of_all(|name| name.file == file, Some(marks))
    }

    /// Drops pages of a file that have none of these marks, and rejects those who looked for any of these pages before.
    pub fn drop_range_without(&self, file: FileNo, pages: Range<u64>, marks: Marks) -> Leftover {
        self.drop_range(file, pages, Some(marks))
    }

    /// Zeroes the bytes of all frames that have no page: of pages that others are not to see any more. Returns whether all of them are.
    #[must_use]
    pub fn wipe_free(&self) -> bool {
        for no in 0..self.plan.shards {
            let Some(shard) = self.lock(no) else { return false };
            for local in 0..self.plan.frames {
                let (at, record) = (shard.global(local), &self.records[shard.global(local)]);
                let word = record.word();
                // Who brings a page has the shard's lock. One that is pinned is still looked at.
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

    /// Every one of a shard that is wanted.
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
                // Nobody can read it now.
                Dropped::Busy(at, word) if !self.wait(at, word) => return Leftover::Stuck,
                Dropped::Busy(..) => {}
            }
        }
    }
}

/// What is left of all; the first that is kept from us is waited for, and then no more.
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
