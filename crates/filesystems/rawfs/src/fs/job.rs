//! Many files to be written back for a waiting caller: it and the write-back thread do it together, piece by piece. While one
//! waits for the device the other has work.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};

use super::error::{Error, Result};

/// Fewer files than this are no work for two.
const FILES_MIN: usize = 128;
/// Pieces of a job of some hundred files: two for each, so that both end at about the same time.
const PIECES: usize = 4;

/// The files of a write-back, in pieces. A sync follows.
pub struct WriteBackJob {
    numbers: Vec<u64>,
    /// Files of a piece.
    piece: usize,
    /// The first piece that nobody has taken.
    next: AtomicUsize,
    ended: Mutex<PieceOutcome>,
    all: Condvar,
}

struct PieceOutcome {
    pieces: usize,
    /// The first error, but all are tried.
    outcome: Result<()>,
}

/// A piece that somebody is at work on. Dropped without an outcome, it has failed.
struct ClaimedPiece<'j> {
    job: &'j WriteBackJob,
    outcome: Result<()>,
}

impl WriteBackJob {
    /// For files of these numbers, in pieces of so many at most; `None`: they are too few.
    pub fn new(numbers: &[u64], most: usize) -> Option<WriteBackJob> {
        (numbers.len() >= FILES_MIN).then(|| WriteBackJob {
            numbers: numbers.to_vec(),
            piece: numbers.len().div_ceil(PIECES).min(most),
            next: AtomicUsize::new(0),
            ended: Mutex::new(PieceOutcome { pieces: 0, outcome: Ok(()) }),
            all: Condvar::new(),
        })
    }

    /// Takes pieces as long as there are any; `write` writes back the files of these numbers.
    pub fn work(&self, write: impl Fn(&[u64]) -> Result<()>) {
        while let Some(files) = self.numbers.chunks(self.piece).nth(self.next.fetch_add(1, Ordering::Relaxed)) {
            let died = Err(Error::Store(crate::Error::NoResources));
            let mut taken = ClaimedPiece { job: self, outcome: died };
            taken.outcome = write(files);
        }
    }

    /// Returns when all pieces have ended, whoever had them.
    pub fn wait(&self) -> Result<()> {
        let mut ended = self.ended.lock();
        while ended.pieces < self.numbers.len().div_ceil(self.piece) {
            self.all.wait(&mut ended);
        }
        ended.outcome.clone()
    }
}

impl Drop for ClaimedPiece<'_> {
    fn drop(&mut self) {
        let mut ended = self.job.ended.lock();
        ended.pieces += 1;
        let before = std::mem::replace(&mut ended.outcome, Ok(()));
        ended.outcome = before.and(std::mem::replace(&mut self.outcome, Ok(())));
        self.job.all.notify_all();
    }
}
