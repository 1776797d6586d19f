//! Transactions (testFS on SPDK): writes to many files that happen all or not at all, also when the power goes.
//!
//! A transaction collects; nothing of it is seen before the commit. Then the files are locked, all data is in flight together, and
//! all records go into one batch, each once. Whatever fails before that leaves every file as it was.
//!
//! It can also give names to files made without one (O_TMPFILE), so that new files appear together, and change names and attributes
//! ([`super::changes`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::RwLockWriteGuard;
use rustix::io::Errno;

use super::calls::Fs;
use super::changes::{NameChange, NameOperation, PathRef};
use super::core::FsCore;
use super::creds::Creds;
use super::error::{Error, Result};
use super::file::{File, Node};
use super::flush::{PreparedWriteBack, Writes};
use super::key::{self, FileItem};
use super::name::Name;
use super::record::{self, INLINE_MAX, Record, RecordBody};
use super::table::{Inode, InodeState};
use super::walk::{LastComponent, PathTail};
use super::{SIZE_MAX, creds};
use crate::{BLOCK_BYTES, Batch, Lsn, TreeId};

/// Changes of many files, collected until the commit.
#[derive(Default)]
pub struct Transaction {
    files: BTreeMap<u64, TransactionFile>,
    pub(super) changes: Vec<NameChange>,
}

struct TransactionFile {
    node: Node,
    creds: Creds,
    steps: Vec<TransactionStep>,
}

enum TransactionStep {
    Write { at: Option<u64>, data: Vec<u8> },
    Size(u64),
}

/// A name for a new file, in a transaction that changes no other names.
struct NewName<'t> {
    ino: u64,
    to: &'t PathRef,
    creds: &'t Creds,
}

/// Where a new name goes, once it was looked for.
struct NamePlace {
    ino: u64,
    dir: Arc<Name>,
    parent: Record,
    name: Vec<u8>,
}

type LockedFiles<'t> = Vec<(&'t TransactionFile, RwLockWriteGuard<'t, InodeState>, Record)>;

impl Transaction {
    fn part(&mut self, file: &File) -> Result<&mut TransactionFile> {
        file.may_write()?;
        let new = || TransactionFile { node: file.node().clone(), creds: file.creds().clone(), steps: Vec::new() };
        Ok(self.files.entry(file.node().ino()).or_insert_with(new))
    }

    /// Writes at a place, when the transaction is committed.
    ///
    /// # Errors
    /// EBADF if it is not open for writing, EFBIG.
    pub fn write_at(&mut self, file: &File, data: &[u8], at: u64) -> Result<()> {
        if at.checked_add(data.len() as u64).is_none_or(|end| end > SIZE_MAX) {
            return Err(Errno::FBIG.into());
        }
        self.part(file)?.steps.push(TransactionStep::Write { at: Some(at), data: data.to_vec() });
        Ok(())
    }

    /// Writes at the end that the file has at the commit.
    ///
    /// # Errors
    /// As [`Transaction::write_at`].
    pub fn append(&mut self, file: &File, data: &[u8]) -> Result<()> {
        self.part(file)?.steps.push(TransactionStep::Write { at: None, data: data.to_vec() });
        Ok(())
    }

    /// Sets the size.
    ///
    /// # Errors
    /// As [`Transaction::write_at`]; the commit fails with EOPNOTSUPP if that makes a file of many runs shorter.
    pub fn set_len(&mut self, file: &File, size: u64) -> Result<()> {
        if size > SIZE_MAX {
            return Err(Errno::FBIG.into());
        }
        self.part(file)?.steps.push(TransactionStep::Size(size));
        Ok(())
    }

    /// Gives a file that was made without a name (O_TMPFILE) one.
    ///
    /// # Errors
    /// ENOTDIR; the rest the commit tells: EEXIST, ENOENT, EACCES.
    pub fn name(&mut self, file: &File, at: &Node, path: &[u8]) -> Result<()> {
        let part = self.part(file)?;
        let (node, creds) = (part.node.clone(), part.creds.clone());
        let to = PathRef { base: node.core.base(at, path)?, path: path.to_vec() };
        self.changes.push(NameChange { what: NameOperation::Name { node, to }, creds });
        Ok(())
    }

    /// The names it gives, if it changes no others.
    fn new_names(&self) -> Option<Vec<NewName<'_>>> {
        let mut names = Vec::new();
        for change in &self.changes {
            let NameChange { what: NameOperation::Name { node, to }, creds } = change else { return None };
            names.push(NewName { ino: node.ino(), to, creds });
        }
        Some(names)
    }

    pub(super) fn each(&self, each: impl Fn(&Inode)) {
        self.files.values().for_each(|part| each(&part.node.inode));
    }

    /// Reports whether the transaction holds no changes.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.changes.is_empty()
    }
}

impl Fs {
    /// A transaction without anything in it. Dropped, it has never been.
    pub fn begin(&self) -> Transaction {
        Transaction::default()
    }

    /// All of it happens, and is durable when this returns; or nothing does.
    ///
    /// # Errors
    /// Those of a write or a link: then nothing has happened. EIO while it was made durable: it is seen, but may be lost as a whole.
    pub fn commit(&self, transaction: Transaction) -> Result<()> {
        let lsn = self.apply(&transaction)?;
        self.made_durable(&transaction, lsn)
    }

    /// All of it is seen when this returns, durable after the next sync of any of the files; or nothing is.
    ///
    /// # Errors
    /// As [`Fs::commit`].
    pub fn apply(&self, transaction: &Transaction) -> Result<Lsn> {
        if transaction.is_empty() {
            return Ok(self.core().last());
        }
        self.core().apply_transaction(transaction)
    }

    fn made_durable(&self, transaction: &Transaction, lsn: Lsn) -> Result<()> {
        let core = self.core();
        let outcome = core.store.sync(lsn).map_err(Error::from);
        if let Err(error) = &outcome {
            transaction.each(|inode| core.failed(inode, error));
        }
        outcome
    }
}

impl FsCore {
    /// Commits the changes of a transaction as one batch.
    pub fn apply_transaction(&self, transaction: &Transaction) -> Result<Lsn> {
        match transaction.new_names() {
            Some(new) => self.apply_files(transaction, &new),
            None => self.apply_changes(transaction),
        }
    }

    fn apply_files(&self, transaction: &Transaction, new: &[NewName<'_>]) -> Result<Lsn> {
        let names = self.locks.shared();
        let tails = new.iter().map(|new| self.tail(&new.to.base, &new.to.path, new.creds)).collect::<Result<Vec<_>>>()?;
        let dirs: Vec<&Name> = tails.iter().map(|tail| &*tail.dir).collect();
        let _dirs = self.locks.change(&names, &dirs);
        let spots = self.spots(new, &tails)?;
        self.with_files(transaction, |files| self.carry_out(files, &spots, Ok))
    }

    /// With changes of names, which are tried first.
    fn apply_changes(&self, transaction: &Transaction) -> Result<Lsn> {
        let _alone = self.locks.alone();
        // What is tried counts for itself.
        self.names_changed.fetch_add(1, Ordering::SeqCst);
        self.settle(&transaction.changes)?;
        let (known, mut effects) = (self.known(&transaction.changes), Vec::new());
        let lsn = self.with_files(transaction, |files| {
            self.carry_out(files, &[], |begun| {
                let (batch, done) = self.try_changes(&transaction.changes, &known, begun)?;
                effects = done;
                Ok(batch)
            })
        })?;
        self.catch_up(effects, lsn);
        Ok(lsn)
    }

    /// Locks the files, and leaves them as they were if something fails.
    fn with_files<'t>(&self, transaction: &'t Transaction, call: impl FnOnce(&mut LockedFiles<'t>) -> Result<Lsn>) -> Result<Lsn> {
        let mut files: LockedFiles<'_> = Vec::new();
        for part in transaction.files.values() {
            let mut state = part.node.inode.state.write();
            // What was written before is no part of it, and not undone with it.
            self.write_back(&part.node.inode, &mut state)?;
            let before = state.record.clone();
            files.push((part, state, before));
        }
        let outcome = call(&mut files);
        if outcome.is_err() {
            for (_, state, before) in &mut files {
                self.forget_pages(state, ..);
                state.record = before.clone();
                state.changed = false;
            }
        }
        outcome
    }

    /// Where the new names go; their directories are locked.
    fn spots(&self, new: &[NewName<'_>], tails: &[PathTail]) -> Result<Vec<NamePlace>> {
        let mut spots: Vec<NamePlace> = Vec::new();
        for (new, tail) in new.iter().zip(tails) {
            let LastComponent::Name(name) = &tail.last else { return Err(Errno::EXIST.into()) };
            let parent = self.may_name(&tail.dir, name, tail.slash, new.creds)?;
            let taken = spots.iter().any(|spot| spot.ino == new.ino || Arc::ptr_eq(&spot.dir, &tail.dir) && spot.name == *name);
            if taken {
                return Err(Errno::EXIST.into());
            }
            spots.push(NamePlace { ino: new.ino, dir: Arc::clone(&tail.dir), parent, name: name.clone() });
        }
        Ok(spots)
    }

    /// One flight, one batch, to which more may come.
    fn carry_out(&self, files: &mut LockedFiles<'_>, spots: &[NamePlace], more: impl FnOnce(Batch) -> Result<Batch>) -> Result<Lsn> {
        let (mut batch, mut writes, mut prepared) = (Batch::new(), self.writes(), Vec::new());
        let outcome = self.gather(files, spots, &mut batch, &mut writes, &mut prepared);
        let outcome = outcome.and(writes.finish().map_err(Error::from)).and_then(|()| more(batch)).and_then(|batch| self.apply(batch));
        let lsn = outcome.inspect_err(|_| prepared.iter().for_each(|prepared| self.undo(prepared)))?;
        for ((part, state, _), prepared) in files.iter_mut().zip(prepared) {
            state.linkable &= prepared.record.nlink == 0;
            self.finish(state, prepared, lsn);
            self.unlist(&part.node.inode, state);
        }
        Ok(lsn)
    }

    fn gather<'c>(
        &'c self,
        files: &mut LockedFiles<'_>,
        spots: &[NamePlace],
        batch: &mut Batch,
        writes: &mut Writes<'c>,
        prepared: &mut Vec<PreparedWriteBack>,
    ) -> Result<()> {
        let now = self.now();
        // First all that may read: as long as something is written nothing is read.
        for (part, state, _) in &mut *files {
            part.steps.iter().try_for_each(|step| self.step_of(state, step, batch))?;
        }
        let fills = self.fills(files.iter().map(|(_, state, _)| state.pages.len()).sum());
        for (part, state, _) in files {
            (state.record.mtime, state.record.ctime) = (now, now);
            state.record.mode = creds::mode_written(&state.record, &part.creds);
            let mut ready = if fills { self.plan_filled(state, batch)? } else { self.prepare(state, batch, writes, usize::MAX)? };
            for spot in spots.iter().filter(|spot| spot.ino == part.node.ino()) {
                if state.record.nlink > 0 || !state.linkable {
                    prepared.push(ready);
                    return Err(Errno::NOENT.into());
                }
                ready.record.nlink = 1;
                batch.put(TreeId::Names, &spot.dir.entry(&spot.name), &record::link(spot.ino, record::FileKind::File));
                batch.delete(TreeId::Files, &key::file(0, FileItem::Orphan, spot.ino));
                self.touch(batch, &spot.dir, &spot.parent, now, 0);
            }
            self.put_record(batch, &part.node.inode, state, &ready.record);
            prepared.push(ready);
        }
        Ok(())
    }

    fn step_of(&self, state: &mut InodeState, step: &TransactionStep, batch: &mut Batch) -> Result<()> {
        match step {
            TransactionStep::Write { at, data } => {
                let at = at.unwrap_or(state.record.size);
                if at + data.len() as u64 > SIZE_MAX {
                    return Err(Errno::FBIG.into());
                }
                let done = self.put_pages(state, at, data)?;
                if done == data.len() { Ok(()) } else { Err(Errno::NOSPC.into()) }
            }
            TransactionStep::Size(size) => self.set_size_in(state, *size, batch),
        }
    }

    fn set_size_in(&self, state: &mut InodeState, size: u64, batch: &mut Batch) -> Result<()> {
        if let RecordBody::Inline(content) = &mut state.record.body
            && size <= INLINE_MAX as u64
        {
            content.resize(usize::try_from(size).expect("small"), 0);
        } else if size > state.record.size {
            self.to_blocks(state);
            self.clear_tail(state)?;
        } else {
            if state.record.body == RecordBody::Items {
                return Err(Errno::OPNOTSUPP.into());
            }
            let from = size.div_ceil(BLOCK_BYTES as u64);
            self.forget_pages(state, from..);
            self.cut(batch, &mut state.record, from)?;
        }
        state.record.size = size;
        Ok(())
    }

    /// Every handle of a file has to report it.
    pub fn failed(&self, inode: &Inode, error: &Error) {
        let mut state = inode.state.write();
        state.errors += 1;
        state.error = Some(error.clone());
    }
}
