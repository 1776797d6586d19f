//! Requests by read(2) from `/dev/fuse`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{Builder, Scope};

use rustix::io::Errno;

use super::MESSAGE_MAX;
use super::filesystem::{BlockingExecutor, FileSystem, Job};
use super::pause::ReaderPause;
use super::pending_reply::PendingReply;
use super::perform::{dispatch, perform};
use super::stopper::MountStopper;
use crate::blocking_pool::BlockingPool;
use crate::reader_pool::ReaderPool;

/// The threads that read the device, and what they have in common.
pub struct Readers<'a, F> {
    /// The file system that serves the requests.
    pub fs: &'a F,
    /// If set, requests of all other users are refused.
    pub owner: Option<u32>,
    /// The FUSE device of the mount.
    pub device: &'a Arc<OwnedFd>,
    /// Number of threads that read requests.
    pub threads: usize,
    /// A copy of the device for each.
    pub copies: bool,
    stopper: Arc<MountStopper>,
    failed: AtomicBool,
}

/// Why a thread reads no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadEnd {
    /// The mount has gone.
    Gone,
    /// The readers were told to end.
    Stopped,
}

impl BlockingExecutor for BlockingPool {
    fn run(&self, job: Job) {
        BlockingPool::run(self, job);
    }

    /// Any thread may answer.
    fn may_wait(&self) -> bool {
        true
    }
}

impl<'env, F: FileSystem> Readers<'env, F> {
    /// Creates the readers without starting a thread. As many as `stopper` was made for.
    pub fn new(fs: &'env F, owner: Option<u32>, device: &'env Arc<OwnedFd>, copies: bool, stopper: Arc<MountStopper>) -> Self {
        Readers { fs, owner, device, threads: stopper.threads, copies, stopper, failed: AtomicBool::new(false) }
    }

    fn pause(&self) -> &ReaderPause {
        &self.stopper.pause
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

    /// Returns whether a reader thread ended early or a request panicked.
    pub fn failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    /// Serves until the mount has gone, or the readers are stopped; `in_turn` with others.
    pub fn read(&self, device: &Arc<OwnedFd>, in_turn: bool) -> io::Result<ReadEnd> {
        let mut buffer = vec![0; MESSAGE_MAX];
        let reader_pool = in_turn.then_some(&self.stopper.reader_pool);
        let me = self.pause().register();
        loop {
            if me.has_to_end() {
                return Ok(ReadEnd::Stopped);
            }
            match rustix::io::read(device, &mut buffer) {
                Ok(length) => {
                    let _serving = me.serving();
                    if self.serve_one(device, reader_pool, &buffer[..length])? {
                        return Ok(ReadEnd::Gone);
                    }
                }
                // ENOENT: the caller went away before the daemon read the request.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV) => return Ok(ReadEnd::Gone),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// True: it was the last one.
    fn serve_one(&self, device: &Arc<OwnedFd>, reader_pool: Option<&ReaderPool>, message: &[u8]) -> io::Result<bool> {
        dispatch(self.fs, device, message, |head, op| {
            let _turn = reader_pool.map(ReaderPool::take);
            let answer = PendingReply::by_device(head.unique, device);
            // After a panic, dropping the pending reply sends EIO.
            if catch_unwind(AssertUnwindSafe(|| perform(self.fs, self.owner, head, op, &self.stopper.blocking_pool, answer))).is_err() {
                self.failed.store(true, Relaxed);
            }
        })
    }
}
