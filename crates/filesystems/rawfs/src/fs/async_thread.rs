//! The thread that carries out calls which return at once ([`super::async_calls`]), in the order in which they came.
//!
//! Calls that wait together are brought to the device together: writes into
//! memory first, then the blocks of each file that has to be there in one flight, then one sync for all.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use block::Tag;
use block::future::Promise;

use super::core::FsCore;
use super::error::{Error, Result};
use super::file::{File, PendingWrite};
use super::transaction::Transaction;
use crate::Lsn;

/// Ends that are waited for together, at most.
const TOGETHER: usize = 256;

/// Calls that wait to be started, at most; a caller that makes more waits.
const WAITING: usize = 4 * TOGETHER;

/// Carries out calls in the background until it is dropped.
pub struct AsyncThread {
    /// Taken when it ends.
    jobs: Option<SyncSender<AsyncCall>>,
    thread: Option<JoinHandle<()>>,
}

/// A call and the receiver of its result.
pub struct AsyncCall {
    /// What is to be done.
    pub what: AsyncOperation,
    /// The receiver of the result.
    pub end: CompletionTarget,
}

/// The operation of a call.
pub enum AsyncOperation {
    /// Commits a transaction.
    Commit(Transaction),
    /// Writes all bytes at an offset.
    Write { file: Arc<File>, at: u64, data: Box<dyn AsRef<[u8]> + Send> },
    /// Makes a file durable.
    Sync(Arc<File>),
    /// Calls a function.
    Call(Box<dyn FnOnce() + Send>),
}

/// The receiver of the result of a call.
pub enum CompletionTarget {
    /// None: the call reports its result itself.
    Itself,
    /// A promise, fulfilled with a tag.
    Promise(Promise, Tag),
    /// A function.
    Call(Box<dyn FnOnce(Result<u64>) + Send>),
}

/// The part of a call that is done without waiting.
struct StartedCall {
    done: Result<u64>,
    rest: RemainingStep,
    end: CompletionTarget,
}

/// What is still to be done for it.
enum RemainingStep {
    Nothing,
    /// It has to be on the device.
    Placed(Arc<File>),
    /// It has to be durable.
    Durable(Arc<File>),
    Committed(Transaction, Lsn),
}

/// Files whose blocks were brought to the device, by number.
type WrittenFiles = HashMap<u64, Result<Lsn>>;

impl AsyncThread {
    /// Starts the thread that carries out calls.
    pub fn start(core: &Arc<FsCore>) -> Result<AsyncThread> {
        let (jobs, taken) = sync_channel(WAITING);
        let core = Arc::clone(core);
        let work = move || {
            while let Some(jobs) = together(&taken) {
                carry_out(&core, jobs);
            }
        };
        let thread = std::thread::Builder::new().name("rawfs-later".into()).spawn(work);
        let thread = thread.map_err(|_| Error::Store(crate::Error::NoResources))?;
        Ok(AsyncThread { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Returns the way to hand it calls, unless it ends.
    pub fn sender(&self) -> Option<SyncSender<AsyncCall>> {
        self.jobs.clone()
    }
}

impl Drop for AsyncThread {
    /// Carries out what was queued first.
    fn drop(&mut self) {
        self.jobs = None;
        // The last to let go may be a call on the thread itself.
        let thread = self.thread.take().filter(|thread| thread.thread().id() != std::thread::current().id());
        let _ = thread.map(JoinHandle::join);
    }
}

fn together(taken: &Receiver<AsyncCall>) -> Option<Vec<AsyncCall>> {
    let mut jobs = vec![taken.recv().ok()?];
    jobs.extend(taken.try_iter().take(TOGETHER - 1));
    Some(jobs)
}

fn carry_out(core: &FsCore, jobs: Vec<AsyncCall>) {
    let begun: Vec<StartedCall> = jobs.into_iter().map(|job| begin(core, job)).collect();
    let mut placed = WrittenFiles::new();
    for StartedCall { rest, .. } in &begun {
        if let RemainingStep::Placed(file) | RemainingStep::Durable(file) = rest {
            let synced = matches!(rest, RemainingStep::Durable(_));
            placed.entry(file.node().ino()).or_insert_with(|| file.placed(synced));
        }
    }
    let last = begun.iter().filter_map(|begun| begun.rest.lsn(&placed)).max();
    let synced = last.map_or(Ok(()), |lsn| core.store.sync(lsn).map_err(Error::from));
    if let Err(error) = &synced {
        tell_handles(core, &begun, &placed, error);
    }
    for StartedCall { done, rest, end } in begun {
        let outcome = done.and_then(|done| rest.finish(&placed, &synced).map(|()| done));
        // A receiver may close everything at once: nothing of it is held here by then.
        drop(rest);
        end.complete(outcome);
    }
}

/// Up to what has to be waited for.
fn begin(core: &FsCore, AsyncCall { what, end }: AsyncCall) -> StartedCall {
    let (done, rest) = match what {
        AsyncOperation::Commit(transaction) => match core.apply_transaction(&transaction) {
            Ok(lsn) => (Ok(0), RemainingStep::Committed(transaction, lsn)),
            Err(error) => (Err(error), RemainingStep::Nothing),
        },
        AsyncOperation::Write { file, at, data } => match file.write_begun((*data).as_ref(), Some(at)) {
            Ok((done, ..)) if done < (*data).as_ref().len() => (Err(rustix::io::Errno::NOSPC.into()), RemainingStep::Nothing),
            Ok((done, _, PendingWrite::Nothing)) => (Ok(done as u64), RemainingStep::Nothing),
            Ok((done, _, PendingWrite::Place)) => (Ok(done as u64), RemainingStep::Placed(file)),
            Ok((done, _, PendingWrite::Sync)) => (Ok(done as u64), RemainingStep::Durable(file)),
            Err(error) => (Err(error), RemainingStep::Nothing),
        },
        AsyncOperation::Sync(file) => match file.may_sync() {
            Ok(()) => (Ok(0), RemainingStep::Durable(file)),
            Err(error) => (Err(error), RemainingStep::Nothing),
        },
        AsyncOperation::Call(call) => {
            call();
            (Ok(0), RemainingStep::Nothing)
        }
    };
    StartedCall { done, rest, end }
}

/// What was not made durable is remembered by every file it is of, once.
fn tell_handles(core: &FsCore, begun: &[StartedCall], placed: &WrittenFiles, error: &Error) {
    let mut synced = std::collections::HashSet::new();
    for StartedCall { rest, .. } in begun {
        match rest {
            RemainingStep::Committed(transaction, _) => transaction.each(|inode| core.failed(inode, error)),
            RemainingStep::Durable(file) if placed[&file.node().ino()].is_ok() && synced.insert(file.node().ino()) => {
                core.failed(file.inode(), error)
            }
            _ => {}
        }
    }
}

impl RemainingStep {
    /// What has to be durable.
    fn lsn(&self, placed: &WrittenFiles) -> Option<Lsn> {
        match self {
            RemainingStep::Committed(_, lsn) => Some(*lsn),
            RemainingStep::Durable(file) => placed.get(&file.node().ino())?.as_ref().ok().copied(),
            _ => None,
        }
    }

    fn finish(&self, placed: &WrittenFiles, synced: &Result<()>) -> Result<()> {
        let of = |file: &File| placed[&file.node().ino()].clone().map(drop);
        match self {
            RemainingStep::Nothing => Ok(()),
            RemainingStep::Placed(file) => of(file),
            RemainingStep::Durable(file) => file.report_error().and(of(file)).and(synced.clone()),
            RemainingStep::Committed(..) => synced.clone(),
        }
    }
}

impl CompletionTarget {
    /// Passes the result on to the receiver.
    pub fn complete(self, outcome: Result<u64>) {
        match self {
            CompletionTarget::Itself => {}
            CompletionTarget::Promise(promise, tag) => promise.fulfil(tag, outcome.map(drop).map_err(|error| as_device(&error))),
            CompletionTarget::Call(end) => end(outcome),
        }
    }
}

/// In the words of promises.
fn as_device(error: &Error) -> block::Error {
    match error {
        Error::Store(crate::Error::Device(error) | crate::Error::Failed(error)) => *error,
        Error::Store(crate::Error::NoSpace | crate::Error::NoNodes) => block::Error::NoSpace,
        other => block::Error::Other(u16::try_from(other.errno().raw_os_error()).unwrap_or(5)),
    }
}
