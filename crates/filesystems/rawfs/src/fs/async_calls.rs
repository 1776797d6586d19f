//! Calls that return at once: a promise or a function receives their result ([`super::async_thread`]).

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use block::Tag;
use block::future::Promise;

use super::async_thread::{AsyncCall, AsyncOperation, AsyncThread, CompletionTarget};
use super::calls::Fs;
use super::error::{Error, Result};
use super::file::File;
use super::transaction::Transaction;

impl Fs {
    fn jobs(&self) -> Result<SyncSender<AsyncCall>> {
        let mut later = self.later.lock();
        if later.is_none() {
            *later = Some(AsyncThread::start(&self.root().core)?);
        }
        Ok(later.as_ref().and_then(AsyncThread::sender).expect("just put"))
    }

    fn ask(&self, what: AsyncOperation, promise: Promise, tag: Tag) -> Result<()> {
        let job = AsyncCall { what, end: CompletionTarget::Promise(promise, tag) };
        self.jobs()?.send(job).map_err(|_| Error::Store(crate::Error::NoResources))
    }

    fn ask_then(&self, what: AsyncOperation, end: impl FnOnce(Result<u64>) + Send + 'static) {
        let job = AsyncCall { what, end: CompletionTarget::Call(Box::new(end)) };
        match self.jobs() {
            // No thread takes it any more.
            Ok(jobs) => drop(jobs.send(job).map_err(|back| back.0.end.complete(Err(Error::Store(crate::Error::NoResources))))),
            Err(error) => job.end.complete(Err(error)),
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
