//! What is durable, and what is not yet.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::power_cut::Cache;

/// A request that may not be durable. Moments are numbered: each begin and each end has one.
#[derive(Clone, Debug)]
struct Pending {
    id: u64,
    at: usize,
    data: Arc<[u8]>,
    /// When the device reported it; none: in flight.
    ended: Option<u64>,
    begun: u64,
    /// May show or not, whatever is flushed, until it is replaced: a discard, or a write that was given up.
    optional: bool,
}

#[derive(Debug)]
struct Books {
    sector: usize,
    /// What no loss of power takes away.
    durable: Vec<u8>,
    /// By sector: when what is durable there had ended. What ended earlier was replaced by it.
    since: Vec<u64>,
    /// In the order in which they ended, then those in flight in the order in which they began.
    pending: Vec<Pending>,
    moment: u64,
}

/// The books of one device, shared by its queues. Clones are the same books.
#[derive(Clone, Debug)]
pub struct Medium {
    books: Arc<Mutex<Books>>,
}

/// What a flush will have made durable when it completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FlushFrom(u64);

impl Medium {
    /// A medium with this content, torn at borders of `sector` bytes.
    pub fn new(content: Vec<u8>, sector: usize) -> Medium {
        assert!(sector > 0 && content.len().is_multiple_of(sector), "whole sectors");
        let sectors = content.len() / sector;
        let books = Books { sector, durable: content, since: vec![0; sectors], pending: Vec::new(), moment: 0 };
        Medium { books: Arc::new(Mutex::new(books)) }
    }

    /// Writes that are not durable yet.
    pub fn pending(&self) -> usize {
        self.books.lock().pending.len()
    }

    /// A write, or a discard as a write of zeroes that is `optional`, goes down. Says by which name to end it.
    pub(crate) fn begins(&self, at: usize, data: Arc<[u8]>, optional: bool) -> u64 {
        let mut books = self.books.lock();
        let begun = books.tick();
        books.pending.push(Pending { id: begun, at, data, ended: None, begun, optional });
        begun
    }

    /// It was reported as done.
    pub(crate) fn ends(&self, id: u64, through: bool) {
        let mut books = self.books.lock();
        let now = books.tick();
        let Some(from) = books.pending.iter().position(|pending| pending.id == id) else { return };
        let mut pending = books.pending.remove(from);
        pending.ended = Some(now);
        if through {
            books.keep(&pending);
        } else {
            let to = books.pending.partition_point(|other| other.ended.is_some());
            books.pending.insert(to, pending);
        }
    }

    /// It was reported as failed, and nothing of it was done.
    pub(crate) fn fails(&self, id: u64) {
        self.books.lock().pending.retain(|pending| pending.id != id);
    }

    /// It was given up, done or not.
    pub(crate) fn given_up(&self, id: u64) {
        self.ends(id, false);
        let mut books = self.books.lock();
        if let Some(pending) = books.pending.iter_mut().find(|pending| pending.id == id) {
            pending.optional = true;
        }
    }

    /// A flush goes down.
    pub(crate) fn flush_begins(&self) -> FlushFrom {
        FlushFrom(self.books.lock().tick())
    }

    /// It was reported as done.
    pub(crate) fn flush_ends(&self, from: FlushFrom) {
        let mut books = self.books.lock();
        let kept = books.pending.partition_point(|pending| pending.ended.is_some_and(|ended| ended < from.0));
        let flushed: Vec<Pending> = books.pending.drain(..kept).collect();
        flushed.iter().for_each(|pending| books.keep(pending));
        let optional = flushed.into_iter().filter(|pending| pending.optional && books.shows_anywhere(pending)).collect::<Vec<_>>();
        books.pending.splice(..0, optional);
    }

    /// The medium as a loss of power now may leave it: any part of what is pending, torn, those in flight in any order. The seed
    /// decides; over many seeds everything comes up that may.
    pub fn power_cut(&self, seed: u64) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(seed);
        let caches = [Cache::Lost, Cache::Kept, Cache::Prefix, Cache::Any, Cache::Any, Cache::Any];
        let cache = caches[random.usize(..caches.len())];
        self.cut(cache, &mut random)
    }

    /// As [`Medium::power_cut`], with so much of the cache.
    pub fn cut(&self, cache: Cache, random: &mut fastrand::Rng) -> Vec<u8> {
        let books = self.books.lock();
        let mut order: Vec<&Pending> = books.pending.iter().filter(|pending| !pending.optional || random.bool()).collect();
        let flying = order.partition_point(|pending| pending.ended.is_some());
        // What is in flight may have been done before anything that had not ended when it began.
        for at in flying..order.len() {
            let first = order[..flying].partition_point(|other| other.ended.is_some_and(|ended| ended < order[at].begun));
            let to = random.usize(first..=at);
            order[to..=at].rotate_right(1);
        }
        let mut medium = books.durable.clone();
        for (pending, share) in order.iter().zip(cache.shares(order.len(), random)) {
            for (sector, bytes) in pending.data.chunks(books.sector).enumerate() {
                let sector = pending.at / books.sector + sector;
                if random.f64() < share && books.may_show(pending, sector) {
                    let at = sector * books.sector;
                    medium[at..at + bytes.len()].copy_from_slice(bytes);
                }
            }
        }
        medium
    }

    /// Every medium that a loss of power now may leave, each once: as sectors are torn apart, each shows any of its versions,
    /// whatever the others show. Their number is [`EveryCut::media`]; for few pending writes alone.
    pub fn every_cut(&self) -> EveryCut {
        let books = self.books.lock();
        let mut choices: Vec<(usize, Vec<Vec<u8>>)> = Vec::new();
        for sector in 0..books.since.len() {
            let at = sector * books.sector;
            let durable = books.durable[at..at + books.sector].to_vec();
            let mut versions = vec![durable];
            for pending in books.pending.iter().filter(|pending| books.may_show(pending, sector)) {
                let from = at.wrapping_sub(pending.at);
                if let Some(bytes) = pending.data.get(from..from.saturating_add(books.sector)).filter(|_| at >= pending.at)
                    && !versions.iter().any(|version| version == bytes)
                {
                    versions.push(bytes.to_vec());
                }
            }
            if versions.len() > 1 {
                choices.push((at, versions));
            }
        }
        EveryCut { medium: books.durable.clone(), chosen: vec![0; choices.len()], choices, ended: false }
    }
}

impl Books {
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

    /// It had not ended when what is durable in a sector had.
    fn may_show(&self, pending: &Pending, sector: usize) -> bool {
        pending.ended.is_none_or(|ended| ended > self.since[sector])
    }
}

/// See [`Medium::every_cut`].
#[derive(Clone, Debug)]
pub struct EveryCut {
    medium: Vec<u8>,
    /// Where the sectors are that have several versions, and the versions.
    choices: Vec<(usize, Vec<Vec<u8>>)>,
    chosen: Vec<usize>,
    ended: bool,
}

impl EveryCut {
    /// How many there are; none if more than 2^64.
    pub fn media(&self) -> Option<u64> {
        self.choices.iter().try_fold(1_u64, |count, (_, versions)| count.checked_mul(versions.len() as u64))
    }
}

impl Iterator for EveryCut {
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
