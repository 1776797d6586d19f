//! Writes and reads whose result a promise receives (testFS on SPDK, section 4.1): the caller goes on, and waits for many at once.
//!
//! A call may become several requests; its promise is fulfilled once, when the last of them has ended, with the first error. Any
//! thread that drives a queue class ([`Disk::drive`]) hands out the ends of all calls on it.

use std::time::Duration;

use block::future::Promise;
use block::handle::{Data, Done, Full, Io};
use block::{Buf, SharedHandle, Tag};
use parking_lot::Mutex;

use super::{Disk, QueueClass};
use crate::units::{BLOCK_BYTES, Block};

/// Calls under way on a queue class.
pub(super) struct PendingCalls {
    pub(super) handle: SharedHandle,
    calls: Mutex<CallTable>,
}

#[derive(Default)]
struct CallTable {
    all: Vec<Option<PendingCall>>,
    free: Vec<usize>,
}

struct PendingCall {
    promise: Promise,
    tag: Tag,
    /// Requests not ended, and one more as long as not all were made.
    left: u32,
    failed: Option<block::Error>,
}

impl PendingCalls {
    pub(super) fn new(handle: SharedHandle) -> PendingCalls {
        PendingCalls { handle, calls: Mutex::default() }
    }

    fn begin(&self, promise: Promise, tag: Tag) -> usize {
        let mut calls = self.calls.lock();
        let call = Some(PendingCall { promise, tag, left: 1, failed: None });
        match calls.free.pop() {
            Some(at) => {
                calls.all[at] = call;
                at
            }
            None => {
                calls.all.push(call);
                calls.all.len() - 1
            }
        }
    }

    fn more(&self, at: usize) {
        self.calls.lock().all[at].as_mut().expect("it has not ended").left += 1;
    }

    /// One of its requests has ended, or the making of them.
    fn less(&self, at: usize, status: Result<(), block::Error>) {
        let mut calls = self.calls.lock();
        let call = calls.all[at].as_mut().expect("it has not ended");
        call.left -= 1;
        call.failed = call.failed.or(status.err());
        if call.left > 0 {
            return;
        }
        let call = calls.all[at].take().expect("just seen");
        calls.free.push(at);
        drop(calls);
        call.promise.fulfil(call.tag, call.failed.map_or(Ok(()), Err));
    }
}

impl Disk {
    /// As [`Disk::write_blocks`], and waits only for buffers: the bytes are copied. `promise` is fulfilled with `tag` when all is
    /// completed, by whoever drives the queue class then; its future has to expect one request for each call.
    pub fn write_later(&self, class: QueueClass, writes: &[(Block, &[u8])], promise: Promise, tag: Tag) {
        let call = match self.class(class).make_later() {
            Ok(later) => later.begin(promise, tag),
            Err(error) => return promise.fulfil(tag, Err(error)),
        };
        for (at, bytes) in writes {
            assert!(bytes.len().is_multiple_of(BLOCK_BYTES), "whole blocks");
            let mut at = *at;
            for piece in bytes.chunks(self.class(class).piece_bytes) {
                let buf = self.buffer_later(class, piece.len());
                buf.write(0, piece);
                self.count_write(piece.len(), false);
                self.submit_later(class, Io::write(at.byte(), buf).user(call as u64), call);
                at = at.after((piece.len() / BLOCK_BYTES) as u64);
            }
        }
        self.later(class).handle.ring();
        self.later(class).less(call, Ok(()));
    }

    /// Hands out what has ended on a queue class, waiting at most so long if nothing has. False: nothing is under way there.
    pub fn drive(&self, class: QueueClass, at_most: Duration) -> bool {
        let Some(later) = self.class(class).later() else { return false };
        let mut done = later.handle.poll();
        if done.is_none() {
            done = later.handle.wait(at_most);
        }
        while let Some(ended) = done {
            self.ended_later(class, ended);
            done = later.handle.poll();
        }
        later.handle.in_flight() > 0
    }

    fn ended_later(&self, class: QueueClass, done: Done) {
        let (call, status) = (done.user as usize, done.status);
        let buf = match done.data {
            Data::Buf(buf) => Some(buf),
            _ => None,
        };
        self.class(class).give_back(buf);
        self.later(class).less(call, status);
    }

    fn buffer_later(&self, class: QueueClass, bytes: usize) -> Buf {
        loop {
            if let Some(buf) = self.class(class).try_buffer(bytes) {
                return buf;
            }
            if !self.drive(class, Duration::from_millis(1)) {
                return self.class(class).buffer(bytes);
            }
        }
    }

    fn submit_later(&self, class: QueueClass, mut io: Io, call: usize) {
        let later = self.later(class);
        later.more(call);
        while let Err(Full(back)) = later.handle.submit(io) {
            io = back;
            self.drive(class, Duration::from_millis(1));
        }
    }
}
