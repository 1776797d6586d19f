//! Calls that return at once: their end is told by a promise, with the first error.
//!
//! One thread carries them out in the order in which they came. What waits together is made durable together: writes and batches
//! of all, then one sync.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use block::Tag;
use block::future::Promise;

use super::calls::Fs;
use super::core::Core;
use super::error::{Error, Result};
use super::file::File;
use super::transaction::Transaction;
use crate::Lsn;

/// Ends that are waited for together, at most.
const TOGETHER: usize = 256;

/// Calls that wait to be begun, at most; who makes more waits himself.
const WAITING: usize = 4 * TOGETHER;

/// The thread, and the way to it.
pub struct Later {
    /// Taken when it ends.
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

struct Job {
    what: What,
    promise: Promise,
    tag: Tag,
}

enum What {
    Commit(Transaction),
    Write { file: Arc<File>, at: u64, data: Vec<u8> },
    Sync(Arc<File>),
}

impl Later {
    fn start(core: &Arc<Core>) -> Result<Later> {
        let (jobs, taken) = sync_channel(WAITING);
        let core = Arc::clone(core);
        let work = move || {
            while let Some(jobs) = together(&taken) {
                carry_out(&core, jobs);
            }
        };
        let thread = std::thread::Builder::new().name("rawfs-later".into()).spawn(work);
        let thread = thread.map_err(|_| Error::Store(crate::Error::NoResources))?;
        Ok(Later { jobs: Some(jobs), thread: Some(thread) })
    }
}

impl Drop for Later {
    /// What was asked for is carried out first.
    fn drop(&mut self) {
        self.jobs = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn together(taken: &Receiver<Job>) -> Option<Vec<Job>> {
    let mut jobs = vec![taken.recv().ok()?];
    jobs.extend(taken.try_iter().take(TOGETHER - 1));
    Some(jobs)
}

fn carry_out(core: &Core, jobs: Vec<Job>) {
    let begun: Vec<(Job, Result<Option<Lsn>>)> = jobs.into_iter().map(|job| (begin(core, &job.what), job)).map(|(a, b)| (b, a)).collect();
    let last = begun.iter().filter_map(|(_, outcome)| *outcome.as_ref().ok()?).max();
    let synced = last.map_or(Ok(()), |lsn| core.store.sync(lsn).map_err(Error::from));
    for (job, outcome) in begun {
        let outcome = outcome.and_then(|lsn| if lsn.is_some() { end(core, &job.what, &synced) } else { Ok(()) });
        // Whoever is told may close everything at once: nothing of it is held here by then.
        let Job { what, promise, tag } = job;
        drop(what);
        promise.fulfil(tag, outcome.map_err(|error| as_device(&error)));
    }
}

/// Up to what has to be durable; `None`: nothing has to be.
fn begin(core: &Core, what: &What) -> Result<Option<Lsn>> {
    match what {
        What::Commit(transaction) => core.apply_transaction(transaction).map(Some),
        What::Write { file, at, data } => match file.write_at(data, *at) {
            Ok(done) if done < data.len() => Err(rustix::io::Errno::NOSPC.into()),
            outcome => outcome.map(|_| None),
        },
        What::Sync(file) => file.written_back().map(Some),
    }
}

fn end(core: &Core, what: &What, synced: &Result<()>) -> Result<()> {
    if let (What::Commit(transaction), Err(error)) = (what, synced) {
        transaction.each(|inode| core.failed(inode, error));
    }
    match what {
        What::Sync(file) => file.told().and(synced.clone()),
        _ => synced.clone(),
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
    fn ask(&self, what: What, promise: Promise, tag: Tag) -> Result<()> {
        let mut later = self.later.lock();
        if later.is_none() {
            *later = Some(Later::start(&self.root().core)?);
        }
        let jobs = later.as_ref().and_then(|later| later.jobs.as_ref()).expect("just put");
        jobs.send(Job { what, promise, tag }).map_err(|_| Error::Store(crate::Error::NoResources))
    }

    /// As [`Fs::commit`], and returns at once; `promise` is fulfilled with `tag` when it is durable, or has failed as a whole.
    ///
    /// # Errors
    /// No thread could be had; then the promise is not kept either.
    pub fn commit_later(&self, transaction: Transaction, promise: Promise, tag: Tag) -> Result<()> {
        self.ask(What::Commit(transaction), promise, tag)
    }

    /// As [`File::write_at`], all of it or ENOSPC, and returns at once. Durable after a sync, as any write.
    ///
    /// # Errors
    /// As [`Fs::commit_later`].
    pub fn write_later(&self, file: &Arc<File>, data: Vec<u8>, at: u64, promise: Promise, tag: Tag) -> Result<()> {
        self.ask(What::Write { file: Arc::clone(file), at, data }, promise, tag)
    }

    /// As [`File::sync`], of what was asked for before, and returns at once.
    ///
    /// # Errors
    /// As [`Fs::commit_later`].
    pub fn sync_later(&self, file: &Arc<File>, promise: Promise, tag: Tag) -> Result<()> {
        self.ask(What::Sync(Arc::clone(file)), promise, tag)
    }
}
