//! Requests of processes to the leader, and hints about pages that were read.
//!
//! A request is a slot of 64 bytes: state (a futex), process slot of the requester, kind, arguments and answer. Each request is
//! idempotent, so a new leader repeats the unfinished work of the last one. Hints go into a ring that overwrites the oldest.
//!
//! ```text
//! state:  31        3 2     0
//!        | generation| what  |     generation: counts the slot's uses; the requester keeps it in private memory
//! ```
//!
//! Every process of the group can write to the slots. A requester that finds another generation, or a state that leads to no answer, posts
//! the request anew ([`RequestState::Lost`]). The leader frees slots in which nothing can happen any more ([`Requests::recycle`]), and
//! refuses invalid numbers ([`Request::is_sane`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use shm::{ProcessSlot, ProcessSlots, Region, futex};
use ssdcache::PAGE_BYTES;

use super::record::{FILE_BYTES_MAX, FileNo, errno_from};

pub(crate) const REQUESTS: usize = 256;
pub(crate) const REQUEST_BYTES: usize = 64;
pub(crate) const HINTS: usize = 16_384;

const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const POSTED: u32 = 2;
const TAKEN: u32 = 3;
const DONE: u32 = 4;
/// Taken by the leader, and the requester waits no more.
const GIVEN_UP: u32 = 5;
/// The bits of a state that hold the state proper, without the generation.
const WHAT: u32 = 7;
const ONE_TURN: u32 = 8;

fn what(state: u32) -> u32 {
    state & WHAT
}

/// Returns another state of the same generation.
fn becomes(state: u32, what: u32) -> u32 {
    state & !WHAT | what
}

/// The kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RequestKind {
    /// A file was opened: register it and look it up in the catalogue. The answer is 0. With a = 1: how many pages of it are dirty on the
    /// SSD. With a = 2: open the backing file now, while that is possible.
    Open,
    /// Make every acknowledged byte of the file durable.
    Sync,
    /// Write the file back, or all files if the number is `u32::MAX`, durably.
    Clean,
    /// Drop pages a..b of the file, dirty or not (changed outside, unlinked).
    Drop,
    /// Set the length of the file to a, in all tiers.
    Truncate,
    /// Free frames for a writer.
    Room,
    /// Set the file's mode to a.
    Mode,
    /// Set the instance's mode to a.
    ModeOfAll,
    /// Make pages a..b of the file read as zeroes, in the backing file too.
    Punch,
    /// Prepare for write-through of the file.
    Through,
    /// A write-through writer of the file died: its cached pages that are not dirty may be older than the backing file.
    Stale,
    /// Drop clean pages of the file from the SSD: they are older than the backing file.
    DropClean,
    /// Give up the data that only a failed SSD had: the backing files count. The answer is the number of pages.
    Accept,
    /// The file will be closed with dirty pages: open it, so that it is found wherever it is moved.
    Hold,
    /// After a conflict: take the backing file's state for known, and write the newer cached pages over it.
    Force,
    /// Another program changed the file while it had dirty pages.
    Conflict,
    /// Write the dirty frames of pages a..b of the file back, durably.
    WriteBack,
    /// Make a record for the file with the key a, if the SSD has dirty pages of it. The answer is 1 if it has a record, else 0. With b = 1:
    /// if it has none, free the record of a closed file in its set.
    Record,
    /// Drop what is cached of the file, which was removed and has the key a, if no process has it open.
    DropRemoved,
    /// Look whether the SSD has clean pages of the version b ([`super::cached_version::version_of`]) of the file with the key a. The answer
    /// is 1 if it has, else 0.
    Version,
}

const REQUEST_KINDS: [RequestKind; 20] = [
    RequestKind::Open,
    RequestKind::Sync,
    RequestKind::Clean,
    RequestKind::Drop,
    RequestKind::Truncate,
    RequestKind::Room,
    RequestKind::Mode,
    RequestKind::ModeOfAll,
    RequestKind::Punch,
    RequestKind::Through,
    RequestKind::Stale,
    RequestKind::DropClean,
    RequestKind::Accept,
    RequestKind::Hold,
    RequestKind::Force,
    RequestKind::Conflict,
    RequestKind::WriteBack,
    RequestKind::Record,
    RequestKind::DropRemoved,
    RequestKind::Version,
];

/// A request as the leader sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) slot: usize,
    /// The process slot of the requester.
    pub(crate) process: ProcessSlot,
    pub(crate) kind: RequestKind,
    pub(crate) file: FileNo,
    pub(crate) a: u64,
    pub(crate) b: u64,
}

impl Request {
    /// Returns whether the numbers are valid: a process may have written an impossible file, range or length into the segment.
    fn is_sane(&self, files: u32) -> bool {
        let is_file = self.file.0 < files || self.file.0 == u32::MAX;
        let is_range = self.a <= self.b && self.a <= FILE_BYTES_MAX;
        is_file
            && match self.kind {
                RequestKind::Truncate => self.a <= FILE_BYTES_MAX,
                RequestKind::Punch => is_range && self.b <= FILE_BYTES_MAX / PAGE_BYTES as u64,
                RequestKind::Drop | RequestKind::WriteBack => is_range,
                _ => true,
            }
    }
}

/// The request slots of a segment.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    pub(crate) region: Arc<Region>,
    pub(crate) at: usize,
    /// The number of file records.
    pub(crate) files: u32,
}

/// A request slot that we own until it is dropped.
pub(crate) struct Posted<'a> {
    requests: &'a Requests,
    slot: usize,
    /// The state with which the request was posted.
    posted: u32,
}

/// The progress of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RequestState {
    /// The request has no answer yet.
    Open,
    /// The request is done, or failed.
    Done(Result<u32, Errno>),
    /// We lost the slot, and there will be no answer: post the request anew.
    Lost,
}

/// Slots in a state that should be short, with that state and the time it was first seen. Only the leader has this.
#[derive(Debug, Default)]
pub(crate) struct StaleSlots(std::collections::HashMap<usize, (u32, u32)>);

/// How long a slot may stay claimed or answered without any action of its requester, ms.
const PASSING_MS: u32 = 500;

impl Requests {
    fn word(&self, slot: usize, at: usize) -> &AtomicU32 {
        self.region.u32(self.at + slot * REQUEST_BYTES + at)
    }

    fn state(&self, slot: usize) -> &AtomicU32 {
        self.word(slot, 0)
    }

    /// Changes one state to another of the same generation.
    fn change(&self, slot: usize, from: u32, to: u32) -> bool {
        let state = self.state(slot).load(Ordering::Acquire);
        what(state) == from && self.state(slot).compare_exchange(state, becomes(state, to), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Posts a request. None: all slots are taken.
    pub(crate) fn post(&self, me: ProcessSlot, kind: RequestKind, file: FileNo, a: u64, b: u64) -> Option<Posted<'_>> {
        let begin = (usize::from(me.0) * 4) % REQUESTS;
        let claim = |slot: usize| {
            let state = self.state(slot).load(Ordering::Relaxed);
            let claimed = becomes(state.wrapping_add(ONE_TURN), CLAIMED);
            let is_free = what(state) == FREE;
            (is_free && self.state(slot).compare_exchange(state, claimed, Ordering::AcqRel, Ordering::Relaxed).is_ok())
                .then_some((slot, claimed))
        };
        let (slot, claimed) = (begin..begin + REQUESTS).map(|slot| slot % REQUESTS).find_map(claim)?;
        self.word(slot, 4).store(u32::from(me.0), Ordering::Relaxed);
        self.word(slot, 8).store(kind as u32, Ordering::Relaxed);
        self.word(slot, 12).store(file.0, Ordering::Relaxed);
        let base = self.at + slot * REQUEST_BYTES;
        self.region.u64(base + 16).store(a, Ordering::Relaxed);
        self.region.u64(base + 24).store(b, Ordering::Relaxed);
        let posted = becomes(claimed, POSTED);
        // If the slot is not ours any more, the requester finds that out at its next check.
        let _ = self.state(slot).compare_exchange(claimed, posted, Ordering::Release, Ordering::Relaxed);
        Some(Posted { requests: self, slot, posted })
    }

    /// Takes all posted requests, for the leader.
    pub(crate) fn take(&self, out: &mut Vec<Request>) {
        for slot in 0..REQUESTS {
            // The leader has answered all that it took: another process wrote a state that is still "taken".
            if !self.change(slot, POSTED, TAKEN) && what(self.state(slot).load(Ordering::Relaxed)) != TAKEN {
                continue;
            }
            let base = self.at + slot * REQUEST_BYTES;
            let get = |at: usize| self.region.u64(base + at).load(Ordering::Relaxed);
            let asked = REQUEST_KINDS.get(self.word(slot, 8).load(Ordering::Relaxed) as usize).map(|kind| {
                let file = FileNo(self.word(slot, 12).load(Ordering::Relaxed));
                let process = ProcessSlot((self.word(slot, 4).load(Ordering::Relaxed) % ProcessSlots::COUNT as u32) as u8);
                Request { slot, process, kind: *kind, file, a: get(16), b: get(24) }
            });
            match asked.filter(|asked| asked.is_sane(self.files)) {
                Some(asked) => out.push(asked),
                None => self.answer(slot, Err(Errno::INVAL)),
            }
        }
    }

    pub(crate) fn answer(&self, slot: usize, result: Result<u32, Errno>) {
        let value = result.map_or_else(|errno| -errno.raw_os_error(), |value| value.min(i32::MAX as u32) as i32);
        self.word(slot, 32).store(value as u32, Ordering::Relaxed);
        if self.change(slot, TAKEN, DONE) {
            futex::wake(self.state(slot), u32::MAX);
        } else {
            self.bury(slot);
        }
    }

    /// Returns whether the requester still waits. Of the slot's states, only "given up" is trusted here.
    pub(crate) fn is_wanted(&self, slot: usize) -> bool {
        what(self.state(slot).load(Ordering::Acquire)) != GIVEN_UP
    }

    /// Frees a slot whose requester gave up.
    fn bury(&self, slot: usize) {
        self.change(slot, GIVEN_UP, FREE);
    }

    /// Posts again the requests that the last leader had taken, for a new leader.
    pub(crate) fn again(&self) {
        (0..REQUESTS).for_each(|slot| self.post_again(slot));
    }

    /// Posts a request again that was taken: it is taken again in the leader's next step.
    pub(crate) fn post_again(&self, slot: usize) {
        self.change(slot, TAKEN, POSTED);
        self.bury(slot);
    }

    /// Frees the slots of a dead process: other processes may have written since what its requests would truncate.
    pub(crate) fn reap(&self, dead: ProcessSlot) {
        for slot in 0..REQUESTS {
            if self.word(slot, 4).load(Ordering::Relaxed) == u32::from(dead.0) {
                [DONE, POSTED, CLAIMED].into_iter().for_each(|from| _ = self.change(slot, from, FREE));
            }
        }
    }

    /// Frees abandoned slots: those in an invalid state, or for too long in a short one. Their requesters, if any, post anew. The leader
    /// calls it now and then, while it has no request in hand.
    pub(crate) fn recycle(&self, stale: &mut StaleSlots, now_ms: u32) {
        for slot in 0..REQUESTS {
            let state = self.state(slot).load(Ordering::Acquire);
            let is_over = match what(state) {
                FREE | POSTED | TAKEN => false,
                CLAIMED | DONE => match stale.0.get(&slot) {
                    Some((seen, since)) if *seen == state => now_ms.wrapping_sub(*since) >= PASSING_MS,
                    _ => {
                        stale.0.insert(slot, (state, now_ms));
                        continue;
                    }
                },
                _ => true,
            };
            stale.0.remove(&slot);
            if is_over {
                let free = becomes(state, FREE);
                let _ = self.state(slot).compare_exchange(state, free, Ordering::AcqRel, Ordering::Relaxed);
                futex::wake(self.state(slot), u32::MAX);
            }
        }
    }
}

impl Posted<'_> {
    /// Waits for an answer, at most for this duration.
    pub(crate) fn wait(&self, at_most: Duration) -> RequestState {
        let state = self.requests.state(self.slot);
        let now = state.load(Ordering::Acquire);
        if what(now) != DONE && self.is_ours(now) {
            futex::wait(state, now, Some(at_most));
        }
        let now = state.load(Ordering::Acquire);
        if !self.is_ours(now) {
            return RequestState::Lost;
        }
        if what(now) != DONE {
            return RequestState::Open;
        }
        let value = self.requests.word(self.slot, 32).load(Ordering::Relaxed) as i32;
        RequestState::Done(u32::try_from(value).map_err(|_| errno_from(value.saturating_neg())))
    }

    fn is_ours(&self, state: u32) -> bool {
        becomes(state, POSTED) == self.posted && matches!(what(state), POSTED | TAKEN | DONE)
    }
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        // While the leader works on the request, it frees the slot with its answer, or its successor does.
        let state = self.requests.state(self.slot);
        loop {
            let now = state.load(Ordering::Acquire);
            if !self.is_ours(now) {
                break;
            }
            let next = becomes(now, if what(now) == TAKEN { GIVEN_UP } else { FREE });
            if state.compare_exchange(now, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                break;
            }
        }
    }
}

/// A page that was read from the backing file: file (20 bits), page (40), and three more bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hint {
    pub(crate) file: FileNo,
    pub(crate) page: u64,
    pub(crate) in_stream: bool,
    /// The read was slow, and should not be repeated. The page is in a frame for now.
    pub(crate) was_slow: bool,
    /// No reader requested the page: it lay around one that was requested.
    pub(crate) is_around: bool,
}

/// The leader is woken after this many hints.
const HINTS_RING: u64 = 64;

/// The ring of hints in the segment.
#[derive(Clone, Debug)]
pub(crate) struct Hints {
    pub(crate) region: Arc<Region>,
    pub(crate) at: usize,
}

impl Hints {
    /// Adds a hint. Returns whether the leader should be woken for it.
    #[must_use]
    pub(crate) fn tell(&self, hint: Hint) -> bool {
        let count = self.region.u64(self.at).fetch_add(1, Ordering::Relaxed);
        let bits = 1 << 63 | u64::from(hint.in_stream) << 62 | u64::from(hint.was_slow) << 61 | u64::from(hint.is_around) << 60;
        let word = bits | u64::from(hint.file.0) << 40 | (hint.page & ((1 << 40) - 1));
        self.region.u64(self.at + 64 + 8 * (count as usize % HINTS)).store(word, Ordering::Relaxed);
        // The hint of the requested page wakes the leader for the pages around it, too.
        !hint.is_around && (hint.was_slow || count % HINTS_RING == HINTS_RING - 1)
    }

    /// Takes up to `most` hints; `read` is the reader's position.
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

#[cfg(test)]
mod test {
    use shm::PageSize;

    use super::*;

    fn requests() -> (Arc<Region>, Requests) {
        let region = Arc::new(Region::private(REQUESTS * REQUEST_BYTES, PageSize::Small).expect("memory"));
        (Arc::clone(&region), Requests { region, at: 0, files: 8 })
    }

    #[test]
    fn an_asker_whose_slot_is_taken_from_it_is_notified_and_asks_anew() {
        let (region, requests) = requests();
        let posted = requests.post(ProcessSlot(1), RequestKind::Sync, FileNo(3), 0, 0).expect("a slot");
        assert_eq!(posted.wait(Duration::ZERO), RequestState::Open);
        for value in [0, u32::MAX, 1 << 31, 4, 5, 6, 7, posted.posted + ONE_TURN] {
            region.u32(posted.slot * REQUEST_BYTES).store(value, Ordering::Relaxed);
            assert_eq!(posted.wait(Duration::ZERO), RequestState::Lost, "{value:#x}");
        }
        region.u32(posted.slot * REQUEST_BYTES).store(posted.posted, Ordering::Relaxed);
        let mut taken = Vec::new();
        requests.take(&mut taken);
        assert_eq!(taken.len(), 1);
        requests.answer(taken[0].slot, Err(Errno::NOSPC));
        assert_eq!(posted.wait(Duration::ZERO), RequestState::Done(Err(Errno::NOSPC)));
        for value in [i32::MIN, i32::MAX, -1, -5000, 0] {
            region.u32(posted.slot * REQUEST_BYTES + 32).store(value as u32, Ordering::Relaxed);
            assert!(matches!(posted.wait(Duration::ZERO), RequestState::Done(_)), "{value}");
        }
    }

    /// Fills the slots with arbitrary values: the leader gets only valid requests, and the slots are soon free again.
    #[test]
    fn slots_that_somebody_filled_are_free_again_and_hold_no_request_that_cannot_be() {
        let (region, requests) = requests();
        let mut rng = fastrand::Rng::with_seed(2);
        let mut stale = StaleSlots::default();
        for round in 0..200_u32 {
            for word in 0..REQUESTS * REQUEST_BYTES / 4 {
                let value = [rng.u32(..), 0, u32::MAX, 1 << rng.u32(..32), rng.u32(..8)][rng.usize(..5)];
                region.u32(4 * word).store(value, Ordering::Relaxed);
            }
            let mut taken = Vec::new();
            requests.take(&mut taken);
            for asked in taken {
                assert!(asked.file.0 < 8 || asked.file.0 == u32::MAX);
                assert!(asked.kind != RequestKind::Punch || asked.a <= asked.b && asked.b <= FILE_BYTES_MAX / PAGE_BYTES as u64);
                assert!(asked.kind != RequestKind::Truncate || asked.a <= FILE_BYTES_MAX);
                requests.answer(asked.slot, Ok(0));
            }
            requests.recycle(&mut stale, round * 2 * PASSING_MS);
            requests.recycle(&mut stale, (round * 2 + 1) * PASSING_MS);
            assert!((0..REQUESTS).all(|slot| what(requests.state(slot).load(Ordering::Relaxed)) == FREE));
        }
    }
}
