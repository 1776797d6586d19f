//! Tracks which writes are durable and which are still volatile.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::power_cut::CacheLoss;

/// A request that may not be durable. Submissions and completions are numbered in one sequence.
#[derive(Clone, Debug)]
struct Pending {
    id: u64,
    at: usize,
    data: Arc<[u8]>,
    /// Number of the completion. `None`: in flight.
    ended: Option<u64>,
    begun: u64,
    /// The write may or may not be visible, even after a flush, until it is overwritten: a discard, or an abandoned write.
    optional: bool,
}

#[derive(Debug)]
struct MediumState {
    sector: usize,
    /// The content that survives any power cut.
    durable: Vec<u8>,
    /// For each sector, the completion number of its durable content. Earlier completions are overwritten.
    since: Vec<u64>,
    /// Completed writes in order of completion, then writes in flight in order of submission.
    pending: Vec<Pending>,
    moment: u64,
}

/// The durability state of one device, shared by its queues. Clones share the state.
#[derive(Clone, Debug)]
pub struct Medium {
    state: Arc<Mutex<MediumState>>,
}

/// Marks the writes that a flush makes durable when it completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FlushStart(u64);

impl Medium {
    /// Creates a medium with this content, which tears at boundaries of `sector` bytes.
    pub fn new(content: Vec<u8>, sector: usize) -> Medium {
        assert!(sector > 0 && content.len().is_multiple_of(sector), "whole sectors");
        let sectors = content.len() / sector;
        let state = MediumState { sector, durable: content, since: vec![0; sectors], pending: Vec::new(), moment: 0 };
        Medium { state: Arc::new(Mutex::new(state)) }
    }

    /// Returns the number of writes that are not durable yet.
    pub fn pending(&self) -> usize {
        self.state.lock().pending.len()
    }

    /// Records the submission of a write, or of a discard as an `optional` write of zeroes. Returns its id.
    pub(crate) fn begin_write(&self, at: usize, data: Arc<[u8]>, optional: bool) -> u64 {
        let mut state = self.state.lock();
        let begun = state.tick();
        state.pending.push(Pending { id: begun, at, data, ended: None, begun, optional });
        begun
    }

    /// Records that a write completed.
    pub(crate) fn complete_write(&self, id: u64, through: bool) {
        let mut state = self.state.lock();
        let now = state.tick();
        let Some(from) = state.pending.iter().position(|pending| pending.id == id) else { return };
        let mut pending = state.pending.remove(from);
        pending.ended = Some(now);
        if through {
            state.keep(&pending);
        } else {
            let to = state.pending.partition_point(|other| other.ended.is_some());
            state.pending.insert(to, pending);
        }
    }

    /// Records that a write failed without effect.
    pub(crate) fn fail_write(&self, id: u64) {
        self.state.lock().pending.retain(|pending| pending.id != id);
    }

    /// Records that a write was abandoned: it may or may not have been done.
    pub(crate) fn abandon_write(&self, id: u64) {
        self.complete_write(id, false);
        let mut state = self.state.lock();
        if let Some(pending) = state.pending.iter_mut().find(|pending| pending.id == id) {
            pending.optional = true;
        }
    }

    /// Records the submission of a flush.
    pub(crate) fn begin_flush(&self) -> FlushStart {
        FlushStart(self.state.lock().tick())
    }

    /// Records that a flush completed.
    pub(crate) fn complete_flush(&self, from: FlushStart) {
        let mut state = self.state.lock();
        let kept = state.pending.partition_point(|pending| pending.ended.is_some_and(|ended| ended < from.0));
        let flushed: Vec<Pending> = state.pending.drain(..kept).collect();
        flushed.iter().for_each(|pending| state.keep(pending));
        let optional = flushed.into_iter().filter(|pending| pending.optional && state.shows_anywhere(pending)).collect::<Vec<_>>();
        state.pending.splice(..0, optional);
    }

    /// Returns the medium as a power cut now may leave it: any part of the pending writes, torn; writes in flight in any order. The seed
    /// decides; over many seeds every legal state occurs.
    pub fn power_cut(&self, seed: u64) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(seed);
        let caches = [CacheLoss::Lost, CacheLoss::Kept, CacheLoss::Prefix, CacheLoss::Any, CacheLoss::Any, CacheLoss::Any];
        let cache = caches[random.usize(..caches.len())];
        self.cut(cache, &mut random)
    }

    /// Returns the medium after a power cut with this loss of the cache; see [`Medium::power_cut`].
    pub fn cut(&self, cache: CacheLoss, random: &mut fastrand::Rng) -> Vec<u8> {
        let state = self.state.lock();
        let mut order: Vec<&Pending> = state.pending.iter().filter(|pending| !pending.optional || random.bool()).collect();
        let flying = order.partition_point(|pending| pending.ended.is_some());
        // A write in flight may be done before any write that had not completed when it was submitted.
        for at in flying..order.len() {
            let first = order[..flying].partition_point(|other| other.ended.is_some_and(|ended| ended < order[at].begun));
            let to = random.usize(first..=at);
            order[to..=at].rotate_right(1);
        }
        let mut medium = state.durable.clone();
        for (pending, share) in order.iter().zip(cache.shares(order.len(), random)) {
            for (sector, bytes) in pending.data.chunks(state.sector).enumerate() {
                let sector = pending.at / state.sector + sector;
                if random.f64() < share && state.may_show(pending, sector) {
                    let at = sector * state.sector;
                    medium[at..at + bytes.len()].copy_from_slice(bytes);
                }
            }
        }
        medium
    }

    /// Returns every medium that a power cut now may leave, each once. Sectors tear independently, so each one shows any of its versions.
    /// Only for few pending writes; [`PowerCutStates::media`] returns the number.
    pub fn all_power_cuts(&self) -> PowerCutStates {
        let state = self.state.lock();
        let mut choices: Vec<(usize, Vec<Vec<u8>>)> = Vec::new();
        for sector in 0..state.since.len() {
            let at = sector * state.sector;
            let durable = state.durable[at..at + state.sector].to_vec();
            let mut versions = vec![durable];
            for pending in state.pending.iter().filter(|pending| state.may_show(pending, sector)) {
                let from = at.wrapping_sub(pending.at);
                if let Some(bytes) = pending.data.get(from..from.saturating_add(state.sector)).filter(|_| at >= pending.at)
                    && !versions.iter().any(|version| version == bytes)
                {
                    versions.push(bytes.to_vec());
                }
            }
            if versions.len() > 1 {
                choices.push((at, versions));
            }
        }
        PowerCutStates { medium: state.durable.clone(), chosen: vec![0; choices.len()], choices, ended: false }
    }
}

impl MediumState {
    fn tick(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    fn keep(&mut self, pending: &Pending) {
        if pending.optional {
            return;
        }
        let ended = pending.ended.expect("only what ended is kept");
        let first = pending.at / self.sector;
        for (sector, bytes) in pending.data.chunks(self.sector).enumerate() {
            let sector = first + sector;
            if self.since[sector] < ended {
                let at = sector * self.sector;
                self.durable[at..at + bytes.len()].copy_from_slice(bytes);
                self.since[sector] = ended;
            }
        }
    }

    fn shows_anywhere(&self, pending: &Pending) -> bool {
        let first = pending.at / self.sector;
        (first..first + pending.data.len() / self.sector).any(|sector| self.may_show(pending, sector))
    }

    /// Returns whether the write completed after the durable content of the sector.
    fn may_show(&self, pending: &Pending, sector: usize) -> bool {
        pending.ended.is_none_or(|ended| ended > self.since[sector])
    }
}

/// An iterator over all media that a power cut may leave.
#[derive(Clone, Debug)]
pub struct PowerCutStates {
    medium: Vec<u8>,
    /// Byte offset and versions of each sector that has several.
    choices: Vec<(usize, Vec<Vec<u8>>)>,
    chosen: Vec<usize>,
    ended: bool,
}

impl PowerCutStates {
    /// Returns the number of media. `None`: more than 2^64.
    pub fn media(&self) -> Option<u64> {
        self.choices.iter().try_fold(1_u64, |count, (_, versions)| count.checked_mul(versions.len() as u64))
    }
}

impl Iterator for PowerCutStates {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        if self.ended {
            return None;
        }
        let medium = self.medium.clone();
        self.ended = true;
        for ((at, versions), chosen) in self.choices.iter().zip(&mut self.chosen) {
            *chosen = (*chosen + 1) % versions.len();
            let bytes = &versions[*chosen];
            self.medium[*at..at + bytes.len()].copy_from_slice(bytes);
            if *chosen != 0 {
                self.ended = false;
                break;
            }
        }
        Some(medium)
    }
}
