//! Requests of one caller that are under way together.

use std::collections::VecDeque;

use block::Buf;
use block::handle::{Data, Done, Full, Io, Ticket};

use super::class_queue::ClassQueue;
use super::{Disk, QueueClass};
use crate::error::Error;
use crate::units::{BLOCK_BYTES, Block};

/// Requests under way. Dropped, it waits for them; their outcome is then lost: finish it.
#[must_use]
pub struct InFlight<'d, 'm> {
    disk: &'d Disk,
    class: &'d ClassQueue,
    /// With where the bytes of a read go.
    under_way: VecDeque<(Ticket, Option<&'m mut [u8]>)>,
    failed: Option<block::Error>,
    /// What is written is durable when it has ended.
    pub(super) through: bool,
}

impl<'d, 'm> InFlight<'d, 'm> {
    pub(super) fn new(disk: &'d Disk, class: QueueClass) -> InFlight<'d, 'm> {
        InFlight { disk, class: disk.class(class), under_way: VecDeque::new(), failed: None, through: false }
    }

    /// Whether nothing is under way any more.
    pub fn is_over(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Waits for all.
    ///
    /// # Errors
    /// The first that failed.
    pub fn finish(mut self) -> Result<(), Error> {
        self.land()
    }

    /// The same, and more can be started afterwards.
    ///
    /// # Errors
    /// The first that failed.
    pub fn land(&mut self) -> Result<(), Error> {
        while self.end_one() {}
        self.failed.take().map_or(Ok(()), |error| Err(Error::Device(error)))
    }

    pub(super) fn read(&mut self, mut at: Block, mut to: &'m mut [u8]) {
        assert!(to.len().is_multiple_of(BLOCK_BYTES), "whole blocks");
        while !to.is_empty() {
            let (piece, rest) = to.split_at_mut(to.len().min(self.class.piece_bytes));
            let bytes = piece.len();
            let buf = self.buffer(bytes);
            self.disk.count_read(bytes);
            self.submit(Io::read(at.byte(), buf), Some(piece));
            at = at.after((bytes / BLOCK_BYTES) as u64);
            to = rest;
        }
    }

    /// Begins more writes. What follows each other here and on the device goes in one request.
    pub(crate) fn write(&mut self, mut writes: &[(Block, &[u8])]) {
        while let Some((at, first)) = writes.first() {
            let (mut bytes, mut count) = (first.len(), 1);
            while writes.get(count).is_some_and(|(next, _)| next.byte() == at.byte() + bytes as u64) {
                bytes += writes[count].1.len();
                count += 1;
            }
            self.write_run(*at, bytes, &writes[..count]);
            writes = &writes[count..];
        }
    }

    fn write_run(&mut self, mut at: Block, mut bytes: usize, from: &[(Block, &[u8])]) {
        assert!(bytes.is_multiple_of(BLOCK_BYTES), "whole blocks");
        let mut slices = from.iter().map(|(_, slice)| *slice);
        let mut slice: &[u8] = &[];
        while bytes > 0 {
            let piece = bytes.min(self.class.piece_bytes);
            let buf = self.buffer(piece);
            let mut filled = 0;
            while filled < piece {
                if slice.is_empty() {
                    slice = slices.next().expect("as many bytes as were counted");
                }
                let (now, later) = slice.split_at(slice.len().min(piece - filled));
                buf.write(filled, now);
                filled += now.len();
                slice = later;
            }
            self.disk.count_write(piece, self.through);
            self.submit(Io::write(at.byte(), buf).fua(self.through), None);
            at = at.after((piece / BLOCK_BYTES) as u64);
            bytes -= piece;
        }
    }

    /// Some of this flight come back before others are waited for: so no waiter waits for a waiter. That is why a thread has one flight at
    /// a time on a queue class, and does nothing else there as long as it has it.
    fn buffer(&mut self, bytes: usize) -> Buf {
        loop {
            if let Some(buf) = self.class.try_buffer(bytes) {
                return buf;
            }
            if !self.end_one() {
                return self.class.buffer(bytes);
            }
        }
    }

    fn submit(&mut self, mut io: Io, mut to: Option<&'m mut [u8]>) {
        loop {
            match self.class.submit(io) {
                Ok(ticket) => return self.under_way.push_back((ticket, to)),
                Err(Full(back)) => io = back,
            }
            if !self.end_one() {
                let done = self.class.run(io);
                return self.ended(done, to.take());
            }
        }
    }

    /// Waits for the oldest; false: there is none.
    fn end_one(&mut self) -> bool {
        let Some((ticket, to)) = self.under_way.pop_front() else { return false };
        let done = self.class.wait_for(ticket);
        self.ended(done, to);
        true
    }

    fn ended(&mut self, done: Done, to: Option<&mut [u8]>) {
        if let Err(error) = done.status {
            self.failed.get_or_insert(error);
        }
        let buf = match done.data {
            Data::Buf(buf) => Some(buf),
            _ => None,
        };
        if let (Some(to), Some(buf), Ok(())) = (to, &buf, done.status) {
            buf.read(0, to);
        }
        self.class.give_back(buf);
    }
}

impl Drop for InFlight<'_, '_> {
    fn drop(&mut self) {
        while self.end_one() {}
    }
}
