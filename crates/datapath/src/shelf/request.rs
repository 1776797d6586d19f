//! What processes ask the leader for, and what they tell him in passing.
//!
//! A request is a slot of 64 bytes: state (a futex), the asker's seat, what, and the answer. Each can be done again, so that a
//! new leader takes up what the last one had begun. Hints go into a ring whose oldest are overwritten.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use shm::{Region, SeatNo, Seats, futex};

use super::record::FileNo;

pub(crate) const REQUESTS: usize = 256;
pub(crate) const REQUEST_BYTES: usize = 64;
pub(crate) const HINTS: usize = 16_384;

const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const POSTED: u32 = 2;
const TAKEN: u32 = 3;
const DONE: u32 = 4;
/// Taken, and the asker waits no more.
const GIVEN_UP: u32 = 5;

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ask {
    /// A file was opened: know it, look it up in the catalogue. Answer: 0.
    Open,
    /// Every acknowledged byte of the file shall survive.
    Sync,
    /// The file, or all if the number is `u32::MAX`, shall be below, and durable.
    Clean,
    /// Pages a..b of the file are cached no more, dirty or not (changed outside, unlinked).
    Drop,
    /// The file gets the length a, everywhere.
    Truncate,
    /// Frames shall be freed.
    Room,
    /// The file's mode (a).
    Mode,
    /// The instance's mode (a).
    ModeOfAll,
    /// Pages a..b of the file read as zeroes, below too.
    Punch,
    /// The file will be written through.
    Through,
    /// Who wrote the file through has died: what is cached of it and not dirty may be older than below.
    Stale,
    /// What is clean of the file on the SSD is older than below.
    DropClean,
    /// What only an SSD that failed had is given up: what is below counts. Answer: how many pages.
    Accept,
}

const ASKS: [Ask; 13] = [
    Ask::Open,
    Ask::Sync,
    Ask::Clean,
    Ask::Drop,
    Ask::Truncate,
    Ask::Room,
    Ask::Mode,
    Ask::ModeOfAll,
    Ask::Punch,
    Ask::Through,
    Ask::Stale,
    Ask::DropClean,
    Ask::Accept,
];

/// A request as the leader sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) slot: usize,
    /// Who asked.
    pub(crate) seat: SeatNo,
    pub(crate) ask: Ask,
    pub(crate) file: FileNo,
    pub(crate) a: u64,
    pub(crate) b: u64,
}

/// The slots.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    pub(crate) region: Arc<Region>,
    pub(crate) at: usize,
}

/// A slot that is ours until it is dropped.
pub(crate) struct Posted<'a> {
    requests: &'a Requests,
    slot: usize,
}

impl Requests {
    fn word(&self, slot: usize, at: usize) -> &AtomicU32 {
        self.region.u32(self.at + slot * REQUEST_BYTES + at)
    }

    fn state(&self, slot: usize) -> &AtomicU32 {
        self.word(slot, 0)
    }

    /// None: all slots are taken.
    pub(crate) fn post(&self, me: SeatNo, ask: Ask, file: FileNo, a: u64, b: u64) -> Option<Posted<'_>> {
        let begin = (usize::from(me.0) * 4) % REQUESTS;
        let claim = |slot: &usize| self.state(*slot).compare_exchange(FREE, CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let slot = (begin..begin + REQUESTS).map(|slot| slot % REQUESTS).find(claim)?;
        self.word(slot, 4).store(u32::from(me.0), Ordering::Relaxed);
        self.word(slot, 8).store(ask as u32, Ordering::Relaxed);
        self.word(slot, 12).store(file.0, Ordering::Relaxed);
        let base = self.at + slot * REQUEST_BYTES;
        self.region.u64(base + 16).store(a, Ordering::Relaxed);
        self.region.u64(base + 24).store(b, Ordering::Relaxed);
        self.state(slot).store(POSTED, Ordering::Release);
        Some(Posted { requests: self, slot })
    }

    /// The leader takes what was posted.
    pub(crate) fn take(&self, out: &mut Vec<Asked>) {
        for slot in 0..REQUESTS {
            if self.state(slot).compare_exchange(POSTED, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            let base = self.at + slot * REQUEST_BYTES;
            let get = |at: usize| self.region.u64(base + at).load(Ordering::Relaxed);
            match ASKS.get(self.word(slot, 8).load(Ordering::Relaxed) as usize) {
                Some(ask) => {
                    let file = FileNo(self.word(slot, 12).load(Ordering::Relaxed));
                    let seat = SeatNo((self.word(slot, 4).load(Ordering::Relaxed) % Seats::COUNT as u32) as u8);
                    out.push(Asked { slot, seat, ask: *ask, file, a: get(16), b: get(24) });
                }
                None => self.answer(slot, Err(Errno::INVAL)),
            }
        }
    }

    pub(crate) fn answer(&self, slot: usize, result: Result<u32, Errno>) {
        let value = result.map_or_else(|errno| -errno.raw_os_error(), |value| value.min(i32::MAX as u32) as i32);
        self.word(slot, 32).store(value as u32, Ordering::Relaxed);
        if self.state(slot).compare_exchange(TAKEN, DONE, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            futex::wake(self.state(slot), u32::MAX);
        } else {
            self.bury(slot);
        }
    }

    /// Nobody waits for the answer.
    fn bury(&self, slot: usize) {
        let _ = self.state(slot).compare_exchange(GIVEN_UP, FREE, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// A new leader: what the last one had taken is posted again.
    pub(crate) fn again(&self) {
        for slot in 0..REQUESTS {
            let _ = self.state(slot).compare_exchange(TAKEN, POSTED, Ordering::AcqRel, Ordering::Relaxed);
            self.bury(slot);
        }
    }

    /// What a dead process asked is asked by nobody: others may have written since what it wanted cut.
    pub(crate) fn reap(&self, dead: SeatNo) {
        for slot in 0..REQUESTS {
            let state = self.state(slot).load(Ordering::Acquire);
            let is_theirs = self.word(slot, 4).load(Ordering::Relaxed) == u32::from(dead.0);
            if is_theirs && matches!(state, DONE | POSTED | CLAIMED) {
                let _ = self.state(slot).compare_exchange(state, FREE, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }
}

impl Posted<'_> {
    /// Waits for at most so long. None: not answered yet.
    pub(crate) fn wait(&self, at_most: Duration) -> Option<Result<u32, Errno>> {
        let state = self.requests.state(self.slot);
        let now = state.load(Ordering::Acquire);
        if now != DONE {
            futex::wait(state, now, Some(at_most));
        }
        if state.load(Ordering::Acquire) != DONE {
            return None;
        }
        let value = self.requests.word(self.slot, 32).load(Ordering::Relaxed) as i32;
        Some(u32::try_from(value).map_err(|_| Errno::from_raw_os_error(value.saturating_neg())))
    }
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        // While the leader is at it, he frees the slot when he answers, or his successor does.
        let state = self.requests.state(self.slot);
        loop {
            let now = state.load(Ordering::Acquire);
            let next = match now {
                DONE | POSTED => FREE,
                TAKEN => GIVEN_UP,
                _ => break,
            };
            if state.compare_exchange(now, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                break;
            }
        }
    }
}

/// A page that was read below: file (20 bits), page (40), and three more bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hint {
    pub(crate) file: FileNo,
    pub(crate) page: u64,
    pub(crate) in_stream: bool,
    /// The reader waited for it: nobody should again. It is in a frame, for now.
    pub(crate) was_slow: bool,
    /// Nobody asked for it: it lay around one that was asked for.
    pub(crate) is_around: bool,
}

/// The leader is woken for so many hints.
const HINTS_RING: u64 = 64;

/// The ring.
#[derive(Clone, Debug)]
pub(crate) struct Hints {
    pub(crate) region: Arc<Region>,
    pub(crate) at: usize,
}

impl Hints {
    /// Whether the leader should be woken for it.
    #[must_use]
    pub(crate) fn tell(&self, hint: Hint) -> bool {
        let count = self.region.u64(self.at).fetch_add(1, Ordering::Relaxed);
        let bits = 1 << 63 | u64::from(hint.in_stream) << 62 | u64::from(hint.was_slow) << 61 | u64::from(hint.is_around) << 60;
        let word = bits | u64::from(hint.file.0) << 40 | (hint.page & ((1 << 40) - 1));
        self.region.u64(self.at + 64 + 8 * (count as usize % HINTS)).store(word, Ordering::Relaxed);
        // Of what lay around another page he hears by that one's hint.
        !hint.is_around && (hint.was_slow || count % HINTS_RING == HINTS_RING - 1)
    }

    /// Takes up to `most`; `read` is how far the reader has come.
    pub(crate) fn take(&self, read: &mut u64, most: usize, out: &mut Vec<Hint>) {
        let head = self.region.u64(self.at).load(Ordering::Relaxed);
        *read = (*read).max(head.saturating_sub(HINTS as u64)).min(head);
        while *read < head && out.len() < most {
            let word = self.region.u64(self.at + 64 + 8 * (*read as usize % HINTS)).swap(0, Ordering::Relaxed);
            *read += 1;
            if word != 0 {
                let file = FileNo((word >> 40) as u32 & 0xf_ffff);
                let bit = |n: u32| word >> n & 1 == 1;
                let page = word & ((1 << 40) - 1);
                out.push(Hint { file, page, in_stream: bit(62), was_slow: bit(61), is_around: bit(60) });
            }
        }
    }

    pub(crate) fn waiting(&self, read: u64) -> bool {
        self.region.u64(self.at).load(Ordering::Relaxed) > read
    }
}
