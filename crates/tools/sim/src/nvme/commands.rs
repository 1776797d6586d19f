//! I/O commands: started when fetched, completed when due.

use std::time::Duration;

use block::{Op, Time};
use nvme::Status;
use nvme::entry::{Entry, nvm as op};

use super::content::{BlockChange, BlockStore, NamespaceContent};
use super::faults::Fault;
use super::{CommandTiming, ControllerState};
use crate::device::crash::FlushStart;

/// The remaining work of a command.
pub(super) enum CommandWork {
    /// Only the completion: status and result.
    Completion(Status, u32),
    Read,
    /// The data was already fetched.
    Change(Vec<BlockChange>),
    /// The data was already fetched. `None`: it is fetched at completion.
    Write(Option<BlockChange>),
    Flush(Option<FlushStart>),
}

/// How a command is completed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReplyMode {
    Rightly,
    Never,
    WrongId,
    WrongQueue,
    Twice(Duration),
}

/// A command in progress.
pub(super) struct PendingCommand {
    /// Number of the submission queue.
    pub queue: u16,
    /// The submission queue entry itself.
    pub entry: Entry,
    /// What remains to be done.
    pub work: CommandWork,
    how: ReplyMode,
}

/// Number of write buffers kept for reuse.
const SPARE: usize = 64;
/// Force Unit Access, in double word 12.
const FUA: u32 = 1 << 30;

impl ControllerState {
    /// Handles a fetched command.
    pub(super) fn take(&mut self, queue: u16, entry: Entry, now: Time) {
        let fault = self.faults.hit(queue == 0, entry.opcode(), &mut self.random);
        self.done.faults += u64::from(fault.is_some());
        let mut due = now.after(self.latency(now, &entry));
        let how = match fault {
            Some(Fault::Drop) => return,
            Some(Fault::Delay(by)) => {
                due = due.after(by);
                ReplyMode::Rightly
            }
            Some(Fault::DropAnswer) => ReplyMode::Never,
            Some(Fault::WrongId) => ReplyMode::WrongId,
            Some(Fault::WrongQueue) => ReplyMode::WrongQueue,
            Some(Fault::Twice(after)) => ReplyMode::Twice(after),
            _ => ReplyMode::Rightly,
        };
        let work = match (fault, queue) {
            (Some(Fault::Status(status)), _) => Some(CommandWork::Completion(status, 0)),
            (_, 0) => self.admin(&entry).map(|(status, result)| CommandWork::Completion(status, result)),
            _ => Some(self.begin(&entry, due == now)),
        };
        if let Some(work) = work {
            self.add(due, PendingCommand { queue, entry, work, how });
        }
    }

    /// Returns the latency of a command.
    fn latency(&mut self, now: Time, entry: &Entry) -> Duration {
        let of = |op| block::Request { op, ..block::Request::read(block::Tag(0), block::Lba(lba(entry)), blocks(entry) as u32) };
        match (&self.shape.timing, entry.opcode()) {
            (CommandTiming::Instant, _) => Duration::ZERO,
            (CommandTiming::Between(least, most), _) => Duration::from_nanos(self.random.u64(*least..=*most.max(least))),
            (CommandTiming::Drive(drive), op::READ) => drive.lock().end(now, &of(Op::Read)).since(now),
            (CommandTiming::Drive(drive), op::WRITE) => drive.lock().end(now, &of(Op::Write)).since(now),
            (CommandTiming::Drive(drive), _) => drive.lock().end(now, &block::Request::flush(block::Tag(0))).since(now),
        }
    }

    fn add(&mut self, due: Time, pending: PendingCommand) {
        self.serial += 1;
        self.pending.insert((due, self.serial), pending);
    }

    /// Completes due commands. Returns whether there were any.
    pub(super) fn end_due(&mut self, now: Time) -> bool {
        let mut did = false;
        while let Some(first) = self.pending.first_entry().filter(|first| first.key().0 <= now) {
            let pending = first.remove();
            did = true;
            self.end(pending, now);
        }
        did
    }

    /// Executes a command and posts its completion.
    pub(super) fn end(&mut self, pending: PendingCommand, now: Time) {
        let (status, result) = self.finish(&pending);
        let PendingCommand { queue, entry, how, work } = pending;
        if let CommandWork::Write(Some(change)) = work {
            self.spare.extend(NamespaceContent::memory_of(change).filter(|_| self.spare.len() < SPARE));
        }
        let cid = entry.cid();
        match how {
            ReplyMode::Never => {}
            ReplyMode::Rightly => self.answer((queue, queue), cid, status, result),
            ReplyMode::WrongId => self.answer((queue, queue), cid ^ 0x8000, status, result),
            ReplyMode::WrongQueue => self.answer((queue, queue.wrapping_add(1)), cid, status, result),
            ReplyMode::Twice(after) => {
                self.doubled = true;
                self.answer((queue, queue), cid, status, result);
                let work = CommandWork::Completion(status, result);
                self.add(now.after(after), PendingCommand { queue, entry, work, how: ReplyMode::Rightly });
            }
        }
    }

    /// Abandons a command: its changes are done or not.
    pub(super) fn give_up(&mut self, pending: PendingCommand) {
        let Some(content) = self.namespaces.get_mut(&pending.entry.namespace()) else { return };
        match pending.work {
            CommandWork::Change(changes) => changes.iter().for_each(|change| content.give_up(change, self.random.bool())),
            CommandWork::Write(Some(change)) => content.give_up(&change, self.random.bool()),
            _ => {}
        }
    }

    pub(super) fn flush_all(&mut self) {
        for content in self.namespaces.values() {
            if let Some(medium) = &content.medium {
                medium.complete_flush(medium.begin_flush());
            }
            // A shutdown cannot report failure.
            let _ = content.store.sync();
        }
    }

    /// Starts a command. `at_once`: it completes at the same time.
    fn begin(&mut self, entry: &Entry, at_once: bool) -> CommandWork {
        let Some(content) = self.namespaces.get(&entry.namespace()) else {
            return CommandWork::Completion(Status::INVALID_NAMESPACE, 0);
        };
        if content.shape.write_protected && matches!(entry.opcode(), op::WRITE | op::WRITE_ZEROES | op::DATASET_MANAGEMENT) {
            return CommandWork::Completion(Status::WRITE_PROTECTED, 0);
        }
        if entry.opcode() == op::FLUSH {
            return CommandWork::Flush(content.medium.as_ref().map(|medium| medium.begin_flush()));
        }
        if entry.opcode() == op::DATASET_MANAGEMENT {
            return self.deallocate(entry).unwrap_or(CommandWork::Completion(Status::DATA_TRANSFER, 0));
        }
        let Some(range) = content.range(lba(entry), blocks(entry)) else { return CommandWork::Completion(Status::OUT_OF_RANGE, 0) };
        let bad = lba(entry) < self.faults.bad.end && self.faults.bad.start < lba(entry) + blocks(entry);
        let most = 4096_usize << self.shape.transfer_pages_shift;
        let too_long = self.shape.transfer_pages_shift > 0 && range.len() > most;
        match entry.opcode() {
            op::READ if bad => CommandWork::Completion(Status::READ_ERROR, 0),
            op::WRITE | op::WRITE_ZEROES if bad => CommandWork::Completion(Status::WRITE_FAULT, 0),
            op::READ | op::WRITE if too_long => CommandWork::Completion(Status::INVALID_FIELD, 0),
            op::READ => CommandWork::Read,
            op::WRITE if at_once || self.random.bool() => CommandWork::Write(None),
            op::WRITE => {
                self.fetch_data(entry).map_or(CommandWork::Completion(Status::DATA_TRANSFER, 0), |change| CommandWork::Write(Some(change)))
            }
            op::WRITE_ZEROES => CommandWork::Change(vec![content.begin(range.start, vec![0; range.len()], false)]),
            _ => CommandWork::Completion(Status::INVALID_OPCODE, 0),
        }
    }

    fn deallocate(&mut self, entry: &Entry) -> Option<CommandWork> {
        let count = (entry.dw(10) & 0xff) as usize + 1;
        let most = match self.shape.ranges_max {
            0 => 256,
            most => most.into(),
        };
        let mut ranges = vec![0; count * 16];
        let mut at = 0;
        for (address, bytes) in self.memory.pieces(entry.data(), count * 16)? {
            self.memory.read(address, &mut ranges[at..at + bytes])?;
            at += bytes;
        }
        let zeroes = self.random.bool();
        let content = self.namespaces.get(&entry.namespace())?;
        let mut changes = Vec::new();
        for range in ranges.chunks_exact(16) {
            let blocks = u32::from_le_bytes(range[4..8].try_into().expect("4 bytes"));
            let lba = u64::from_le_bytes(range[8..].try_into().expect("8 bytes"));
            let Some(bytes) = content.range(lba, blocks.into()).filter(|_| count <= most) else {
                return Some(CommandWork::Completion(if count > most { Status::INVALID_FIELD } else { Status::OUT_OF_RANGE }, 0));
            };
            if zeroes && entry.dw(11) & 4 != 0 {
                changes.push(content.begin(bytes.start, vec![0; bytes.len()], true));
            }
        }
        Some(CommandWork::Change(changes))
    }

    fn fetch_data(&mut self, entry: &Entry) -> Option<BlockChange> {
        let range = self.namespaces.get(&entry.namespace())?.range(lba(entry), blocks(entry))?;
        let mut data = self.spare.pop().unwrap_or_default();
        data.resize(range.len(), 0);
        let mut at = 0;
        for (address, bytes) in self.memory.pieces(entry.data(), data.len())? {
            self.memory.read(address, &mut data[at..at + bytes])?;
            at += bytes;
        }
        let content = self.namespaces.get(&entry.namespace())?;
        Some(content.begin(range.start, data, false))
    }

    /// Copies host memory to blocks directly. `None`: durability is tracked, the blocks are in a file, or part of the memory is
    /// unreadable.
    fn write_in_place(&mut self, entry: &Entry) -> Option<Status> {
        let content = self.namespaces.get_mut(&entry.namespace())?;
        let range = content.range(lba(entry), blocks(entry))?;
        let blocks = &mut content.in_place()?[range];
        let mut at = 0;
        for (address, bytes) in self.memory.pieces(entry.data(), blocks.len())? {
            self.memory.read(address, &mut blocks[at..at + bytes])?;
            at += bytes;
        }
        Some(Status::OK)
    }

    fn finish(&mut self, pending: &PendingCommand) -> (Status, u32) {
        let entry = &pending.entry;
        match &pending.work {
            CommandWork::Completion(status, result) => return (*status, *result),
            CommandWork::Read => return (self.send_data(entry).map_or(Status::DATA_TRANSFER, |()| Status::OK), 0),
            CommandWork::Change(changes) => return (self.end_changes(entry, changes), 0),
            CommandWork::Write(Some(change)) => return (self.end_changes(entry, std::slice::from_ref(change)), 0),
            CommandWork::Write(None) => {
                if let Some(status) = self.write_in_place(entry) {
                    return (status, 0);
                }
                let Some(change) = self.fetch_data(entry) else { return (Status::DATA_TRANSFER, 0) };
                let status = self.end_changes(entry, std::slice::from_ref(&change));
                return (status, 0);
            }
            CommandWork::Flush(from) => {
                let Some(content) = self.namespaces.get(&entry.namespace()) else { return (Status::OK, 0) };
                if content.store.sync().is_err() {
                    return (Status::WRITE_FAULT, 0);
                }
                if let (Some(medium), Some(from)) = (&content.medium, from) {
                    medium.complete_flush(*from);
                }
            }
        }
        (Status::OK, 0)
    }

    fn end_changes(&mut self, entry: &Entry, changes: &[BlockChange]) -> Status {
        let through = !self.shape.volatile_cache || entry.dw(12) & FUA != 0;
        let through = through && entry.opcode() != op::DATASET_MANAGEMENT;
        let Some(content) = self.namespaces.get_mut(&entry.namespace()) else { return Status::OK };
        let ended = changes.iter().try_for_each(|change| content.end(change, through));
        if ended.is_ok() { Status::OK } else { Status::WRITE_FAULT }
    }

    fn send_data(&mut self, entry: &Entry) -> Option<()> {
        let content = self.namespaces.get(&entry.namespace())?;
        let mut range = content.range(lba(entry), blocks(entry))?;
        for (address, bytes) in self.memory.pieces(entry.data(), range.len())? {
            let content = self.namespaces.get(&entry.namespace())?;
            match &content.store {
                BlockStore::Memory(blocks) => self.memory.write(address, &blocks[range.start..range.start + bytes])?,
                file => {
                    let mut blocks = vec![0; bytes];
                    file.read(range.start, &mut blocks).ok()?;
                    self.memory.write(address, &blocks)?;
                }
            }
            range.start += bytes;
        }
        Some(())
    }
}

pub(super) fn lba(entry: &Entry) -> u64 {
    entry.0[5]
}

pub(super) fn blocks(entry: &Entry) -> u64 {
    u64::from(entry.dw(12) & 0xffff) + 1
}
