//! Calls that return at once: a promise or a function receives their result.
//!
//! One thread carries them out in the order in which they came. What waits together is brought to the device together: writes into
//! memory first, then the blocks of each file that has to be there in one flight, then one sync for all.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use block::Tag;
use block::future::Promise;

use super::calls::Fs;
use super::core::FsCore;
use super::error::{Error, Result};
use super::file::{File, PendingWrite};
use super::transaction::Transaction;
use crate::Lsn;

/// Ends that are waited for together, at most.
const TOGETHER: usize = 256;

/// Calls that wait to be started, at most; a caller that makes more waits.
const WAITING: usize = 4 * TOGETHER;

/// The thread, and the way to it.
pub struct AsyncCalls {
    /// Taken when it ends.
    jobs: Option<SyncSender<AsyncCall>>,
    thread: Option<JoinHandle<()>>,
}

struct AsyncCall {
    what: AsyncOperation,
    end: CompletionTarget,
}

enum AsyncOperation {
    Commit(Transaction),
    Write { file: Arc<File>, at: u64, data: Box<dyn AsRef<[u8]> + Send> },
    Sync(Arc<File>),
    Call(Box<dyn FnOnce() + Send>),
}

/// Where the result of a call goes.
enum CompletionTarget {
    /// It tells it itself.
    Itself,
    Promise(Promise, Tag),
    Call(Box<dyn FnOnce(Result<u64>) + Send>),
}

/// A call as far as it is done without waiting.
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

impl AsyncCalls {
    fn start(core: &Arc<FsCore>) -> Result<AsyncCalls> {
        let (jobs, taken) = sync_channel(WAITING);
        let core = Arc::clone(core);
        let work = move || {
            while let Some(jobs) = together(&taken) {
                carry_out(&core, jobs);
            }
        };
        let thread = std::thread::Builder::new().name("rawfs-later".into()).spawn(work);
        let thread = thread.map_err(|_| Error::Store(crate::Error::NoResources))?;
        Ok(AsyncCalls { jobs: Some(jobs), thread: Some(thread) })
    }
}

impl Drop for AsyncCalls {
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
        end.tell(outcome);
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
    let mut told = std::collections::HashSet::new();
    for StartedCall { rest, .. } in begun {
        match rest {
            RemainingStep::Committed(transaction, _) => transaction.each(|inode| core.failed(inode, error)),
            RemainingStep::Durable(file) if placed[&file.node().ino()].is_ok() && told.insert(file.node().ino()) => {
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
    fn tell(self, outcome: Result<u64>) {
        match self {
            CompletionTarget::Itself => {}
            CompletionTarget::Promise(promise, tag) => promise.fulfil(tag, outcome.map(drop).map_err(|error| as_device(&error))),
            CompletionTarget::Call(told) => told(outcome),
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

impl Fs {
    fn jobs(&self) -> Result<SyncSender<AsyncCall>> {
        let mut later = self.later.lock();
        if later.is_none() {
            *later = Some(AsyncCalls::start(&self.root().core)?);
        }
        Ok(later.as_ref().and_then(|later| later.jobs.clone()).expect("just put"))
    }

    fn ask(&self, what: AsyncOperation, promise: Promise, tag: Tag) -> Result<()> {
        let job = AsyncCall { what, end: CompletionTarget::Promise(promise, tag) };
        self.jobs()?.send(job).map_err(|_| Error::Store(crate::Error::NoResources))
    }

    fn ask_then(&self, what: AsyncOperation, end: impl FnOnce(Result<u64>) + Send + 'static) {
        let job = AsyncCall { what, end: CompletionTarget::Call(Box::new(end)) };
        match self.jobs() {
            // No thread takes it any more.
            Ok(jobs) => drop(jobs.send(job).map_err(|back| back.0.end.tell(Err(Error::Store(crate::Error::NoResources))))),
            Err(error) => job.end.tell(Err(error)),
        }
    }

    /// As [`Fs::commit`], and returns at once; `promise` is fulfilled with `tag` when it is durable, or has failed as a whole.
    ///
    /// # Errors
    /// No thread could be had; then the promise is not kept either.
    pub fn commit_later(&self, transaction: Transaction, promise: Promise, tag: Tag) -> Result<()> {
        self.ask(AsyncOperation::Commit(transaction), promise, tag)
    }

    /// As [`File::write_at`], all of it or ENOSPC, and returns at once. Durable after a sync, as any write.
    ///
    /// # Errors
    /// As [`Fs::commit_later`].
    pub fn write_later(&self, file: &Arc<File>, data: Vec<u8>, at: u64, promise: Promise, tag: Tag) -> Result<()> {
        self.ask(AsyncOperation::Write { file: Arc::clone(file), at, data: Box::new(data) }, promise, tag)
    }

    /// As [`File::sync`], of the calls queued before, and returns at once.
    ///
    /// # Errors
    /// As [`Fs::commit_later`].
    pub fn sync_later(&self, file: &Arc<File>, promise: Promise, tag: Tag) -> Result<()> {
        self.ask(AsyncOperation::Sync(Arc::clone(file)), promise, tag)
    }

    /// As [`Fs::commit_later`]; `end` is called by the thread that did it, and must not wait.
    pub fn commit_then(&self, transaction: Transaction, end: impl FnOnce(Result<u64>) + Send + 'static) {
        self.ask_then(AsyncOperation::Commit(transaction), end);
    }

    /// As [`Fs::write_later`]; `end` gets the number of bytes, from the thread that wrote them, and must not wait.
    pub fn write_then(
        &self,
        file: &Arc<File>,
        data: impl AsRef<[u8]> + Send + 'static,
        at: u64,
        end: impl FnOnce(Result<u64>) + Send + 'static,
    ) {
        self.ask_then(AsyncOperation::Write { file: Arc::clone(file), at, data: Box::new(data) }, end);
    }

    /// As [`Fs::sync_later`]; `end` is called by the thread that did it, and must not wait.
    pub fn sync_then(&self, file: &Arc<File>, end: impl FnOnce(Result<u64>) + Send + 'static) {
        self.ask_then(AsyncOperation::Sync(Arc::clone(file)), end);
    }

    /// Any other call, in its turn, which reports its result itself. Dropped without a call if no thread can be started.
    pub fn call_later(&self, call: impl FnOnce() + Send + 'static) {
        if let Ok(jobs) = self.jobs() {
            let _ = jobs.send(AsyncCall { what: AsyncOperation::Call(Box::new(call)), end: CompletionTarget::Itself });
        }
    }
}
