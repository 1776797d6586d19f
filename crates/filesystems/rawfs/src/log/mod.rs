//! The log: what was applied since the last checkpoint, in a ring on the device.
//!
//! Records wait in memory until a sync. One of the syncing threads takes all that wait, writes them as groups
//! and flushes once; the others wait for it, and find themselves served, or one of them is next (group commit). A write or flush
//! that fails is remembered, and nothing behind it is ever called durable.

pub mod group;
pub mod read;
pub mod ring;
#[cfg(test)]
mod test;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::disk::{Disk, QueueClass};
use crate::error::Error;
use crate::units::{BLOCK_BYTES, Block, Lsn};
use group::{GroupHeader, RECORD_HEAD};
use ring::{Ring, RingRegion};

/// Bytes that may wait in memory, about.
pub const PENDING_BYTES: usize = 4 << 20;
/// More is written and flushed, so that it is not made durable piece by piece.
const THROUGH_BYTES: usize = 128 << 10;

/// The log of an image, shared by all its threads.
pub struct Log {
    image: u64,
    state: Mutex<LogState>,
    written: Condvar,
}

struct LogState {
    ring: Ring,
    life: u64,
    /// Not yet taken by a writer, each with its length before it.
    pending: Vec<u8>,
    /// The last record.
    last: Lsn,
    /// The last one taken by a writer.
    taken: Lsn,
    /// Known to survive a loss of power.
    durable: Lsn,
    /// Said to be durable by what is durable itself.
    recorded: Lsn,
    writing: bool,
    /// A record that waits names data blocks that were written but not flushed.
    unflushed: bool,
    failed: Option<block::Error>,
}

/// Where a log begins, and what its groups carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogStart {
    /// The blocks of the log ring.
    pub place: RingRegion,
    /// The position of the next group.
    pub position: u64,
    /// The life that new groups will carry.
    pub life: u64,
    /// The last record that there is.
    pub lsn: Lsn,
}

impl Log {
    /// Makes a log without waiting records.
    pub fn new(image: u64, start: LogStart) -> Log {
        let (ring, lsn) = (Ring::new(start.place, start.position), start.lsn);
        let state = LogState {
            ring,
            life: start.life,
            pending: Vec::new(),
            last: lsn,
            taken: lsn,
            durable: lsn,
            recorded: lsn,
            writing: false,
            unflushed: false,
            failed: None,
        };
        Log { image, state: Mutex::new(state), written: Condvar::new() }
    }

    /// Whether a record of so many bytes surely finds room; only the one appender may call this.
    ///
    /// # Errors
    /// An earlier failure.
    pub fn has_room(&self, bytes: usize) -> Result<bool, Error> {
        let state = self.state.lock();
        state.check()?;
        Ok(state.ring.has_room(state.pending.len() + RECORD_HEAD + bytes))
    }

    /// Adds a record, for which there is room. `flush`: it names data blocks that were written. True: so much waits now that it should
    /// be synced.
    pub fn append(&self, record: &[u8], flush: bool) -> (Lsn, bool) {
        let mut state = self.state.lock();
        state.unflushed |= flush;
        state.pending.extend((record.len() as u32).to_le_bytes());
        state.pending.extend(record);
        state.last.0 += 1;
        (state.last, state.pending.len() > PENDING_BYTES.min(state.ring.place.group_bytes()))
    }

    /// Returns where the log lies on the device.
    pub fn place(&self) -> RingRegion {
        self.state.lock().ring.place
    }

    /// Returns the number of the last record.
    pub fn last(&self) -> Lsn {
        self.state.lock().last
    }

    /// Known to survive a loss of power.
    pub fn durable(&self) -> Lsn {
        self.state.lock().durable
    }

    /// What the device itself says is durable.
    pub fn recorded(&self) -> Lsn {
        self.state.lock().recorded
    }

    /// Bytes of the ring, and those in use.
    pub fn usage(&self) -> (u64, u64) {
        let state = self.state.lock();
        let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
        (bytes(state.ring.place.blocks), bytes(state.ring.used()) + state.pending.len() as u64)
    }

    /// Returns when the record survives a loss of power.
    ///
    /// # Errors
    /// It does not, and never will.
    pub fn sync(&self, disk: &Disk, lsn: Lsn) -> Result<(), Error> {
        let mut state = self.state.lock();
        let lsn = lsn.min(state.last);
        loop {
            if state.durable >= lsn {
                return Ok(());
            }
            state.check()?;
            if state.writing {
                self.written.wait(&mut state);
            } else {
                state = self.write(disk, state);
            }
        }
    }

    /// Makes the device say what is durable, so that what is freed can be used. All that waits goes with it.
    ///
    /// # Errors
    /// As [`Log::sync`].
    pub fn record(&self, disk: &Disk) -> Result<(), Error> {
        let mut state = self.state.lock();
        let goal = state.durable;
        while state.recorded < goal {
            state.check()?;
            if state.writing {
                self.written.wait(&mut state);
            } else if state.pending.is_empty() && !state.ring.has_slack() {
                return Ok(());
            } else {
                state = self.write(disk, state);
            }
        }
        Ok(())
    }

    /// Writes all that waits, and flushes; what has all its data with it is written through the device's cache, in one request. The lock
    /// is not held meanwhile.
    fn write<'a>(&'a self, disk: &Disk, mut state: MutexGuard<'a, LogState>) -> MutexGuard<'a, LogState> {
        let (position, bytes) = state.take(self.image);
        let (durable, last) = (state.durable, state.taken);
        let place = state.ring.place;
        let flush = std::mem::take(&mut state.unflushed) || bytes.len() > THROUGH_BYTES;
        state.writing = true;
        drop(state);
        let written = write_ring(disk, place, position, &bytes, !flush).and_then(|()| if flush { disk.flush() } else { Ok(()) });
        let mut state = self.state.lock();
        state.writing = false;
        match written {
            Ok(()) => {
                state.durable = state.durable.max(last);
                state.recorded = state.recorded.max(durable);
            }
            Err(error) => state.fail(error),
        }
        self.written.notify_all();
        state
    }

    /// Something else has failed that the log's promises rest on: nothing more is taken.
    pub fn fail(&self, error: Error) {
        self.state.lock().fail(error);
        self.written.notify_all();
    }

    /// # Errors
    /// An earlier failure.
    pub fn check(&self) -> Result<(), Error> {
        self.state.lock().check()
    }

    /// Where the first record behind this one is or will be.
    pub fn behind(&self, lsn: Lsn) -> u64 {
        self.state.lock().ring.behind(lsn)
    }

    /// A checkpoint up to this record is durable, and says that the log goes on at this position.
    pub fn release(&self, lsn: Lsn, position: u64) {
        let mut state = self.state.lock();
        state.ring.release(position);
        state.durable = state.durable.max(lsn);
        state.recorded = state.recorded.max(lsn);
        self.written.notify_all();
    }
}

impl LogState {
    fn check(&self) -> Result<(), Error> {
        self.failed.map_or(Ok(()), |error| Err(Error::Failed(error)))
    }

    fn fail(&mut self, error: Error) {
        let cause = match error {
            Error::Device(error) | Error::Failed(error) => error,
            _ => block::Error::Media,
        };
        self.failed.get_or_insert(cause);
    }

    /// All that waits, in groups; one without records if nothing does.
    fn take(&mut self, image: u64) -> (u64, Vec<u8>) {
        let pending = std::mem::take(&mut self.pending);
        let position = self.ring.head();
        let mut bytes = Vec::with_capacity(pending.len() + 2 * BLOCK_BYTES);
        let mut from = 0;
        loop {
            let (to, records) = group_end(&pending, from, self.ring.place.group_bytes());
            let header = GroupHeader {
                position: self.ring.head(),
                life: self.life,
                image,
                first: Lsn(self.taken.0 + 1),
                durable: self.durable,
                records,
                bytes: (to - from) as u32,
            };
            group::encode(header, &pending[from..to], &mut bytes);
            self.ring.push(&header);
            self.taken.0 += u64::from(records);
            from = to;
            if from == pending.len() {
                return (position, bytes);
            }
        }
    }
}

/// Where a group ends that begins at `from`, and its records: as many as it holds, but at least one.
fn group_end(pending: &[u8], from: usize, bytes_max: usize) -> (usize, u32) {
    let (mut to, mut records) = (from, 0);
    while to < pending.len() {
        let next = to + RECORD_HEAD + crate::layout::u32_at(pending, to) as usize;
        if records > 0 && next - from > bytes_max {
            break;
        }
        (to, records) = (next, records + 1);
    }
    (to, records)
}

fn write_ring(disk: &Disk, place: RingRegion, position: u64, bytes: &[u8], through: bool) -> Result<(), Error> {
    let mut rest = bytes;
    let mut writes: Vec<(Block, &[u8])> = Vec::with_capacity(2);
    for (at, blocks) in place.rows(position, (bytes.len() / BLOCK_BYTES) as u64) {
        let (row, behind) = rest.split_at(blocks as usize * BLOCK_BYTES);
        writes.push((at, row));
        rest = behind;
    }
    if through { disk.write_through(QueueClass::Control, &writes) } else { disk.write_blocks(QueueClass::Control, &writes) }
}
