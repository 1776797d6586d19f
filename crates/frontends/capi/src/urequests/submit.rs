//! Submission: a request starts at once, or goes to a thread.

use cachedfs::{Outcome as ReadOutcome, PreparedRead, Reading, SubmitResult};

use super::{AHEAD, AHEAD_FOUND, QueueState, QueuedRequest, Requests, SubmittedBatch, full, memory_of, no_thread};
use crate::api_error::{ApiError, ApiResult};
use crate::memory::{Memory, offset_of};
use crate::types::*;
use crate::ufiles::share;

/// Consecutive reads of one file, with prefetch of the next ones.
struct ReadAhead<'a> {
    file: Reading<'a>,
    reads: &'a [uaio],
    /// Index of the next read.
    at: usize,
    /// The next reads, each at its index modulo the length.
    expected: [Option<PreparedRead<'a>>; AHEAD],
}

impl<'a> ReadAhead<'a> {
    #[inline]
    fn new(file: Reading<'a>, reads: &'a [uaio]) -> ReadAhead<'a> {
        ReadAhead { file, reads, at: 0, expected: [None; AHEAD] }
    }

    /// Returns the prepared read to start now, if there is one.
    #[inline]
    fn next(&mut self) -> Option<PreparedRead<'a>> {
        let at = self.at;
        self.at += 1;
        // The first one prepares all before it.
        let until = |ahead: usize| if at == 0 { 0..ahead } else { at + ahead - 1..at + ahead };
        let of_these = |range: std::ops::Range<usize>| range.start..range.end.min(self.reads.len());
        for n in of_these(until(AHEAD)) {
            self.expected[n % AHEAD] = u64::try_from(self.reads[n].off).ok().and_then(|at| self.file.expect(at));
        }
        // Frames are prefetched later than index entries.
        for n in of_these(until(AHEAD_FOUND)) {
            self.expected[n % AHEAD].iter().for_each(PreparedRead::is_next);
        }
        self.expected[at % AHEAD]
    }
}

/// Returns how many leading requests are reads of one file.
fn reads_of_one(requests: &[uaio]) -> usize {
    let ufd = requests.first().map_or(-1, |first| first.ufd);
    requests.iter().position(|request| request.op != UAIO_READ || request.ufd != ufd).unwrap_or(requests.len())
}

impl Requests {
    /// Submits as many as fit, until one is invalid.
    ///
    /// # Safety
    /// As `uaio_submit`.
    pub unsafe fn submit(&self, requests: &[uaio]) -> ApiResult<usize> {
        let mut state = self.enter()?;
        // SAFETY: the caller's promise.
        let (done, outcome) = unsafe { self.add(&mut state, requests) };
        state.reads.ring();
        match outcome {
            Err(fail) if done == 0 => Err(fail),
            _ => Ok(done),
        }
    }

    /// Submits all of them for [`SubmittedBatch::reap`]: an invalid one completes with its error.
    ///
    /// # Safety
    /// As `uaio_submit`.
    pub unsafe fn take_in(&self, requests: &[uaio]) -> ApiResult<SubmittedBatch<'_>> {
        let mut state = self.enter()?;
        if requests.len() > state.free.len() {
            return Err(full());
        }
        let mut done = 0;
        while done < requests.len() {
            // SAFETY: the caller's promise.
            let (some, outcome) = unsafe { self.add(&mut state, &requests[done..]) };
            done += some;
            if let (Err(fail), Some(request)) = (outcome, requests.get(done)) {
                let token = state.place()?;
                state.put(token, QueuedRequest { request: *request, ..QueuedRequest::NONE });
                drop(state.end(token, -i64::from(fail.errno)));
                done += 1;
            }
        }
        Ok(SubmittedBatch { ours: self, state })
    }

    /// Returns how many were submitted, and why not all.
    ///
    /// # Safety
    /// As `uaio_submit`.
    #[inline]
    unsafe fn add(&self, state: &mut QueueState, requests: &[uaio]) -> (usize, ApiResult<()>) {
        let mut done = 0;
        while done < requests.len() {
            let reads = reads_of_one(&requests[done..]);
            // SAFETY: the caller's promise.
            let (some, outcome) = unsafe {
                if reads > 0 { self.add_reads(state, &requests[done..done + reads]) } else { self.add_other(state, &requests[done]) }
            };
            done += some;
            if outcome.is_err() {
                return (done, outcome);
            }
        }
        (done, Ok(()))
    }

    /// Submits reads of one file, at least one; returns how many, and why not all.
    ///
    /// # Safety
    /// As `uaio_submit`.
    #[inline]
    unsafe fn add_reads(&self, state: &mut QueueState, requests: &[uaio]) -> (usize, ApiResult<()>) {
        let open = match share(requests[0].ufd) {
            Ok(open) => open,
            Err(fail) => return (0, Err(fail)),
        };
        let file = state.files.take(&open);
        let reading = open.cached().map(|file| state.reads.reading(file));
        let mut done = 0;
        let outcome = open.run(|_| {
            let mut ahead = reading.map(|reading| ReadAhead::new(reading, requests));
            for request in requests {
                let expected = ahead.as_mut().and_then(ReadAhead::next);
                // SAFETY: the caller's promise.
                let memory = unsafe { memory_of(request) }?;
                self.begin(state, (reading, expected.as_ref()), file, request, memory)?;
                done += 1;
            }
            Ok(())
        });
        drop(state.files.give(file));
        (done, outcome)
    }

    #[inline]
    fn begin(
        &self,
        state: &mut QueueState,
        (reading, expected): (Option<Reading<'_>>, Option<&PreparedRead<'_>>),
        file: u32,
        request: &uaio,
        memory: Memory,
    ) -> ApiResult<()> {
        let at = offset_of(request.off)?;
        if at.checked_add(request.n as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(ApiError::new(libc::EINVAL, "the range ends behind the last position there is"));
        }
        let token = state.place()?;
        let begun = match (expected, reading) {
            (Some(expected), _) => Some(state.reads.submit_prepared(expected, memory, token)),
            (None, Some(reading)) => Some(state.reads.begin_next(reading, at, memory, token)),
            (None, None) => None,
        };
        let outcome = match begun {
            None => Some(ReadOutcome::Slow),
            Some(SubmitResult::UnderWay) => None,
            Some(SubmitResult::Full(..)) => return Err(full()),
            Some(SubmitResult::Ended(ended)) => Some(ended.outcome),
        };
        if outcome == Some(ReadOutcome::Slow) && !self.has_thread(state) {
            return Err(no_thread());
        }
        state.put(token, QueuedRequest { request: *request, file });
        match outcome {
            None => {}
            Some(ReadOutcome::Read(bytes)) => drop(state.end(token, bytes as i64)),
            Some(ReadOutcome::Slow) => self.hand_over(state, token),
            Some(ReadOutcome::Lost) => drop(state.end(token, i64::from(-libc::EIO))),
        }
        Ok(())
    }

    /// Submits another request, for a thread; returns whether, and why not.
    ///
    /// # Safety
    /// As `uaio_submit`.
    #[cold]
    unsafe fn add_other(&self, state: &mut QueueState, request: &uaio) -> (usize, ApiResult<()>) {
        // SAFETY: the caller's promise.
        let added = unsafe { self.try_add_other(state, request) };
        (usize::from(added.is_ok()), added)
    }

    /// # Safety
    /// As `uaio_submit`.
    unsafe fn try_add_other(&self, state: &mut QueueState, request: &uaio) -> ApiResult<()> {
        match request.op {
            UAIO_WRITE => _ = offset_of(request.off)?,
            UAIO_FSYNC | UAIO_FDATASYNC => {}
            op => return Err(ApiError::new(libc::EINVAL, format!("op {op} of a request: UAIO_..."))),
        }
        // SAFETY: the caller's promise.
        unsafe { memory_of(request) }?;
        let open = share(request.ufd)?;
        let token = state.place()?;
        if !self.has_thread(state) {
            return Err(no_thread());
        }
        let file = state.files.take(&open);
        state.put(token, QueuedRequest { request: *request, file });
        drop(state.files.give(file));
        self.hand_over(state, token);
        Ok(())
    }
}
