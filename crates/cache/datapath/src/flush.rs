//! The path of a flush.
//!
//! *Settle*: what is on its way to the device arrives first. *Collect* the dirty pages, in the order of their pages. *Submit* them as
//! large writes, *reap* them, and then one flush command: only that makes safe what the device took into its own cache. *Report*.
//!
//! No byte that was acknowledged is forgotten because of an error:
//!
//! - A page whose write fails stays dirty. Every flush tries it again and fails until it is down; reads go on being right.
//! - If the flush command fails, nothing the device took since the last one is vouched for: those pages are dirty again, and the
//!   next flush writes them once more. Those that had left the cache meanwhile are lost: from then on every flush of every
//!   handle that was there fails, until it is opened anew.
//! - A failure that nobody waited for (write-back in the background) is told to every handle once, by its next flush, even when
//!   the page came down at the second try. (The kernel tells each descriptor once, too, but forgets the page:
//!   reference, "fsyncgate".)

use std::task::{Poll, ready};

use block::{Error, Queue, Request, Tag};
use pagecache::State;

use crate::core::{Core, Handle};
use crate::lane::Ticket;

/// A flush under way.
#[derive(Debug, Default)]
pub(crate) struct Flushing {
    stage: Stage,
    ticket: Option<Ticket>,
    error: Option<Error>,
    /// Of the collected pages, those before this one were sent.
    sent: usize,
}

#[derive(Clone, Copy, Debug, Default)]
enum Stage {
    /// Another flush may be under way.
    #[default]
    Begin,
    Settle,
    Submit,
    Reap,
    Command,
    Safe,
}

impl<Q: Queue> Core<Q> {
    /// One step of a flush.
    pub(crate) fn flush(&mut self, handle: &mut Handle, flushing: &mut Flushing) -> Poll<Result<(), Error>> {
        loop {
            flushing.stage = match flushing.stage {
                Stage::Begin => ready!(self.begin(flushing)),
                Stage::Settle => ready!(self.collect()),
                Stage::Submit => ready!(self.submit(flushing)),
                Stage::Reap => ready!(self.reap_writes(flushing)),
                Stage::Command => ready!(self.command(flushing)),
                Stage::Safe => {
                    ready!(self.ended(flushing));
                    self.flush_runs = false;
                    self.settle(&mut flushing.ticket);
                    return Poll::Ready(self.report(handle, flushing.error));
                }
            };
        }
    }

    /// One flush at a time; while it runs nobody writes back but who needs the room.
    fn begin(&mut self, flushing: &mut Flushing) -> Poll<Stage> {
        if self.flush_runs {
            self.reap();
            return Poll::Pending;
        }
        let Some(ticket) = self.tickets.take() else { return Poll::Pending };
        flushing.ticket = Some(ticket);
        self.flush_runs = true;
        Poll::Ready(Stage::Settle)
    }

    fn collect(&mut self) -> Poll<Stage> {
        self.reap();
        if self.pages.in_writing(self.file) > 0 {
            return Poll::Pending;
        }
        self.flush_list.clear();
        self.pages.collect_dirty(self.file, &(0..u64::MAX), true, &mut self.flush_list);
        Poll::Ready(Stage::Submit)
    }

    fn submit(&mut self, flushing: &mut Flushing) -> Poll<Stage> {
        while let Some(&frame) = self.flush_list.get(flushing.sent) {
            // It may have gone with one before it, or with somebody who needed the room.
            if self.pages.state(frame) != State::Dirty || self.write_out(frame, flushing.ticket) {
                flushing.sent += 1;
            } else if self.reap() == 0 {
                self.ring();
                if self.in_flight() > 0 {
                    return Poll::Pending;
                }
                flushing.error = flushing.error.or(Some(Error::Timeout));
                break;
            }
        }
        self.ring();
        Poll::Ready(Stage::Reap)
    }

    /// All that was dirty when the flush began is down, or is marked as failed.
    fn reap_writes(&mut self, flushing: &mut Flushing) -> Poll<Stage> {
        ready!(self.ended(flushing));
        if self.pages.in_writing(self.file) > 0 {
            return Poll::Pending;
        }
        if self.pages.failed(self.file) > 0 {
            flushing.error = flushing.error.or(self.pages.failures(self.file).last);
        }
        Poll::Ready(Stage::Command)
    }

    /// Also after a write that failed: the others are to be safe.
    fn command(&mut self, flushing: &mut Flushing) -> Poll<Stage> {
        let Some(ticket) = flushing.ticket else { return Poll::Ready(Stage::Safe) };
        if !self.shape.volatile_cache {
            return Poll::Ready(Stage::Safe);
        }
        if !self.send_plain(&Request::flush(Tag(0)), ticket) {
            if self.reap() > 0 {
                return Poll::Ready(Stage::Command);
            }
            if self.in_flight() > 0 {
                return Poll::Pending;
            }
            flushing.error = flushing.error.or(Some(Error::Timeout));
            return Poll::Ready(Stage::Safe);
        }
        // Completions are only taken in by `reap`: what is Written now was completed before the command was sent.
        let began = self.pages.flush_began(self.file);
        assert!(began, "two flushes at a time");
        self.stats.flushes += 1;
        Poll::Ready(Stage::Safe)
    }

    /// Our requests have ended; the first error counts.
    fn ended(&mut self, flushing: &mut Flushing) -> Poll<()> {
        self.reap();
        let Some(ticket) = flushing.ticket else { return Poll::Ready(()) };
        match self.tickets.outcome(ticket) {
            None => Poll::Pending,
            Some(status) => {
                flushing.error = flushing.error.or(status.err());
                Poll::Ready(())
            }
        }
    }

    /// What this flush met, or what happened since the handle was last told, or what was lost for good.
    fn report(&mut self, handle: &mut Handle, error: Option<Error>) -> Result<(), Error> {
        let failures = self.pages.failures(self.file);
        let told = std::mem::replace(&mut handle.failures, failures.times);
        let is_news = failures.times != told || failures.losses != handle.losses;
        match error.or(if is_news { failures.last } else { None }) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}
