//! Requests by read(2) from `/dev/fuse`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{Builder, Scope};

use rustix::io::Errno;

use super::DATA_MAX;
use super::answer::Answer;
use super::decode::{self, Op};
use super::filesystem::{Aside, FileSystem, Job};
use super::perform::{forgets, perform};
use crate::lanes::Lanes;
use crate::turns::Turns;

/// Besides the data of a write: its header and arguments.
const BESIDES: usize = 4096;

/// The threads that read the device, and what they have in common.
pub struct Readers<'a, F> {
    pub fs: &'a F,
    /// Nobody else is served.
    pub owner: Option<u32>,
    pub device: &'a Arc<OwnedFd>,
    pub threads: usize,
    /// A copy of the device for each.
    pub copies: bool,
    lanes: Lanes,
    turns: Turns,
    failed: AtomicBool,
}

impl Aside for Lanes {
    fn run(&self, job: Job) {
        Lanes::run(self, job);
    }

    /// Any thread may answer.
    fn may_wait(&self) -> bool {
        true
    }
}

impl<'env, F: FileSystem> Readers<'env, F> {
    pub fn new(fs: &'env F, owner: Option<u32>, device: &'env Arc<OwnedFd>, threads: usize, copies: bool) -> Self {
        let (lanes, turns) = (Lanes::default(), Turns::new(threads));
        Readers { fs, owner, device, threads, copies, lanes, turns, failed: AtomicBool::new(false) }
    }

    /// Starts all but one: this thread is it.
    pub fn start_others<'scope>(&'env self, scope: &'scope Scope<'scope, 'env>) -> io::Result<()> {
        for number in 1..self.threads {
            let device = if self.copies { Arc::new(fusedev::clone_of(self.device.as_fd())?) } else { Arc::clone(self.device) };
            let read = move || {
                if let Err(error) = self.read(&device, true) {
                    tracing::error!(%error, "a thread that reads requests ends");
                    self.failed.store(true, Relaxed);
                }
            };
            Builder::new().name(format!("reader-{number}")).spawn_scoped(scope, read)?;
        }
        Ok(())
    }

    /// Whether one of those has ended before its time, or a request in a bug of ours.
    pub fn failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    /// Serves until the mount has gone; `in_turn` with others.
    pub fn read(&self, device: &Arc<OwnedFd>, in_turn: bool) -> io::Result<()> {
        let mut buffer = vec![0; DATA_MAX + BESIDES];
        let turns = in_turn.then_some(&self.turns);
        loop {
            match rustix::io::read(device, &mut buffer) {
                Ok(length) => {
                    if self.serve_one(device, turns, &buffer[..length])? {
                        return Ok(());
                    }
                }
                // ENOENT: who asked went away before we read it.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// True: it was the last one.
    fn serve_one(&self, device: &Arc<OwnedFd>, turns: Option<&Turns>, message: &[u8]) -> io::Result<bool> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, "not a request of FUSE");
        let (head, args, rest) = decode::split(message).map_err(|_| invalid())?;
        let answer = || Answer::by_device(head.unique, device);
        match decode::decode(head.opcode, args, rest) {
            Ok(op) if forgets(self.fs, &head, &op) => {}
            Ok(Op::Destroy) => {
                answer().send(&[]);
                return Ok(true);
            }
            Ok(op) => {
                let _turn = turns.map(Turns::take);
                let answer = answer();
                // The answer that is owed is given when it is dropped.
                if catch_unwind(AssertUnwindSafe(|| perform(self.fs, self.owner, head, op, &self.lanes, answer))).is_err() {
                    self.failed.store(true, Relaxed);
                }
            }
            Err(_) => {
                tracing::error!(opcode = head.opcode, "a request makes no sense");
                answer().fail(Errno::IO);
            }
        }
        Ok(false)
    }
}
