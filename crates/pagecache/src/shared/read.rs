//! Reading a page that is here.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::fence;

use super::find::Key;
use super::frame::{Frame, HITS};
use super::list::MAIN;
use super::stats::Count;
use super::write::check_piece;
use super::{Marks, Name, Page, Replacement, SharedPages, Snapshot};

/// Copies that were torn by writers before the frame is taken to copy it.
const TRIES: u32 = 32;
/// More hits than this are not told apart.
pub(super) const HITS_MOST: u64 = 3;

impl SharedPages {
    /// Copies a piece of a page, from its byte `offset` on. False: it is not here.
    ///
    /// # Panics
    /// The piece is not within a page.
    #[inline]
    pub fn read(&self, name: Name, offset: usize, to: &mut [u8]) -> bool {
        check_piece(offset, to.len());
        let key = self.key(name);
        match self.look(&key, offset) {
            Some((at, word)) if !word.is_changing() => {
                self.copy_out(at, offset, to);
                fence(Acquire);
                if word.is_same_version(self.records[at].word()) {
                    self.touch(at);
                    self.learn(&key, at);
                    self.count(Count::Hits);
                    return true;
                }
            }
            None if self.find_again(&key).is_none() => {
                self.count(Count::Misses);
                return false;
            }
            _ => {}
        }
        self.read_again(&key, offset, to)
    }

    #[cold]
    fn read_again(&self, key: &Key, offset: usize, to: &mut [u8]) -> bool {
        let found = self.copy_whole(key, offset, to);
        if let Some((at, _)) = found {
            self.touch(at);
        }
        self.count(if found.is_some() { Count::Hits } else { Count::Misses });
        found.is_some()
    }

    /// Copies a piece that is not torn; the frame and its word.
    fn copy_whole(&self, key: &Key, offset: usize, to: &mut [u8]) -> Option<(usize, super::word::Word)> {
        for _ in 0..TRIES {
            let (at, word) = self.find(key)?;
            if word.is_changing() {
                self.wait(at, word);
                continue;
            }
            self.copy_out(at, offset, to);
            fence(Acquire);
            let after = self.records[at].word();
            if word.is_same_version(after) {
                return Some((at, after));
            }
        }
        let (at, word) = self.take_named(key, Marks::NONE)?;
        self.copy_out(at, offset, to);
        self.records[at].give_back(word);
        Some((at, word))
    }

    /// Copies a whole page, of one version, without asking for it: it is no more likely to stay. None: it is not here.
    pub fn snapshot(&self, name: Name, to: &mut Page) -> Option<Snapshot> {
        let (at, word) = self.copy_whole(&self.key(name), 0, to)?;
        Some(Snapshot { frame: at as u32, version: word.version(), marks: word.marks() })
    }

    /// A page was asked for: it stays longer.
    #[inline]
    pub(super) fn touch(&self, at: usize) {
        match self.replacement {
            Replacement::S3Fifo => {
                let hits = &self.records[at][HITS];
                let now = hits.load(Relaxed);
                if now < HITS_MOST {
                    hits.store(now + 1, Relaxed);
                }
            }
            Replacement::Lru => self.move_last(at),
            Replacement::Fifo => {}
        }
    }

    /// LRU: to the end of the list, or a note that it belongs there when others have the list.
    #[cold]
    fn move_last(&self, at: usize) {
        let (no, local) = (at / self.plan.frames as usize, (at % self.plan.frames as usize) as u32);
        match self.try_lock(no) {
            Some(shard) if shard.queue(local) == MAIN && self.records[at].word().is_named() => shard.send_to(MAIN, local),
            Some(_) => {}
            None => self.records[at][HITS].store(1, Relaxed),
        }
    }
}
