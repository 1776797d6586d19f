//! The records of a queue: jobs (requests of its owner) and slots (commands that the device has).

use block::{Error, Op, Request, Status as Outcome, Tag};

use crate::entry::Entry;

/// The index that means no job, slot or page.
pub(super) const NONE: u16 = u16::MAX;

/// A request of the owner. It takes one command or several, in sequence or in parallel; one deallocate may serve several requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    /// The caller's tag of the request.
    pub tag: Tag,
    /// The next block that no command is for yet.
    pub lba: u64,
    /// Bytes of its memory before that block.
    pub done_bytes: u32,
    /// Blocks that no command is for yet.
    pub left: u32,
    /// Commands that the device has.
    pub out: u16,
    /// Pieces of memory that are kept.
    pub spans: u16,
    /// The next job of the same deallocate.
    pub next: u16,
    /// The operation of the request.
    pub op: Op,
    /// Whether its writes must be durable when it completes (FUA).
    pub fua: bool,
    /// Whether this entry holds a request.
    pub busy: bool,
    /// Whether the job waits for slots or pages.
    pub waits: bool,
    /// Whether the request was cancelled.
    pub cancelled: bool,
    /// The first failure of its commands, or success.
    pub outcome: Outcome,
}

impl Job {
    pub(super) const FREE: Job = Job {
        tag: Tag(0),
        lba: 0,
        done_bytes: 0,
        left: 0,
        out: 0,
        spans: 0,
        next: NONE,
        op: Op::Flush,
        fua: false,
        busy: false,
        waits: false,
        cancelled: false,
        outcome: Ok(()),
    };

    pub(super) fn of(request: &Request) -> Job {
        // A flush has no blocks, but one command.
        let left = if request.op == Op::Flush { 1 } else { request.blocks };
        Job { tag: request.tag, lba: request.lba.0, left, op: request.op, fua: request.fua, busy: true, ..Job::FREE }
    }

    /// Returns whether all its commands have completed and none is left to send.
    pub(super) fn is_over(&self) -> bool {
        self.out == 0 && self.left == 0
    }

    /// A part of it failed: the rest is not done.
    pub(super) fn fail(&mut self, error: Error) {
        self.outcome = self.outcome.and(Err(error));
        self.left = 0;
    }
}

/// A command.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommandSlot {
    /// The command as it was sent, kept for retries.
    pub entry: Entry,
    /// The first job it is for; the others follow by `Job::next`.
    pub job: u16,
    /// The generation of the slot, part of the command's identifier.
    pub generation: u16,
    /// Its list of pages, or its ranges.
    pub list: u16,
    /// The first page that was put in place of memory that could not be named.
    pub bounce: u16,
    /// How often the command was sent again.
    pub retries: u8,
    /// Whether the device has this command.
    pub busy: bool,
}

impl CommandSlot {
    pub(super) const FREE: CommandSlot =
        CommandSlot { entry: Entry([0; 8]), job: NONE, generation: 0, list: NONE, bounce: NONE, retries: 0, busy: false };
}

/// Counters of a queue's work so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Commands put into the submission queue.
    pub commands: u64,
    /// How often the device was notified of commands, by a shadow doorbell or a register.
    pub rings: u64,
    /// Doorbell registers written, for commands and for completions.
    pub doorbells: u64,
    /// Completion entries for commands that do not exist or have completed: a fault of the device.
    pub strays: u64,
    /// Commands sent again, at the controller's request or after a reset.
    pub retries: u64,
    /// Pages copied because the caller's memory could not be named to the device.
    pub bounced: u64,
    /// Commands asked to be aborted.
    pub aborts: u64,
    /// How often the queue was created again.
    pub remade: u64,
}
