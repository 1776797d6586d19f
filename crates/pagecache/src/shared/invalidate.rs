//! Dropping pages.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use super::find::Key;
use super::frame::{Frame, NAME, PINS};
use super::shard::Shard;
use super::word::Word;
use super::{FileNo, Marks, Name, SharedPages};
use crate::{PAGE_BYTES, PageIndex};

/// Pages are below this.
const PAGES_END: u64 = 1 << 40;

enum Dropped {
    Gone,
    /// It has a mark with which it stays.
    Marked,
    /// Somebody is changing it.
    Busy(usize, Word),
}

impl SharedPages {
    /// Drops pages of a file, marked or not, and lets nobody bring them who looked for them before. Who has one pinned keeps its bytes
    /// in sight; nobody else finds them.
    pub fn invalidate(&self, file: FileNo, pages: Range<u64>) {
        let pages = pages.start..pages.end.min(PAGES_END);
        if pages.end.saturating_sub(pages.start) <= u64::from(self.frames() / 8).max(1) {
            for page in pages {
                self.drop_page(&self.key(Name { file, page: PageIndex(page) }), None);
            }
            return;
        }
        for no in 0..self.plan.shards {
            self.lock(no).move_all_epochs();
            self.drop_all(no, |name| name.file == file && pages.contains(&name.page.0), None);
        }
    }

    /// Drops the pages of a file that have no mark, and lets nobody bring any who looked for them before (the number may be given to
    /// another file now). Whether none is left.
    pub fn drop_clean(&self, file: FileNo) -> bool {
        self.drop_without(file, Marks::DIRTY | Marks::SSD_STALE)
    }

    /// Drops the pages of a file that have none of these marks, as `drop_clean`. Returns whether none is left.
    pub fn drop_without(&self, file: FileNo, marks: Marks) -> bool {
        let left = |no: &usize| {
            self.lock(*no).move_all_epochs();
            !self.drop_all(*no, |name| name.file == file, Some(marks))
        };
        (0..self.plan.shards).filter(left).count() == 0
    }

    /// Zeroes the bytes of all frames that have no page: of pages that others are not to see any more.
    pub fn wipe_free(&self) {
        for no in 0..self.plan.shards {
            let shard = self.lock(no);
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
    }

    /// Every one of a shard that is wanted; whether none is left.
    fn drop_all(&self, no: usize, wanted: impl Fn(Name) -> bool, kept: Option<Marks>) -> bool {
        let frames = self.plan.frames as usize;
        let named = |record: &&super::frame::Record| record.word().is_named();
        let names = self.records[no * frames..(no + 1) * frames].iter().filter(named).map(|record| record[NAME].load(Relaxed));
        names.filter(|&name| wanted(Name::of(name)) && !self.drop_page(&self.key_of_word(name), kept)).count() == 0
    }

    /// False: it is still here, with a mark.
    fn drop_page(&self, key: &Key, kept: Option<Marks>) -> bool {
        loop {
            let shard = self.lock(key.shard);
            let dropped = shard.drop_now(key, kept);
            drop(shard);
            match dropped {
                Dropped::Gone => return true,
                Dropped::Marked => return false,
                // What nobody can read need not be dropped.
                Dropped::Busy(at, word) if !self.wait(at, word) => return kept.is_none(),
                Dropped::Busy(..) => {}
            }
        }
    }
}

impl Shard<'_> {
    fn drop_now(&self, key: &Key, kept: Option<Marks>) -> Dropped {
        if kept.is_none() {
            self.move_epoch(key);
        }
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
