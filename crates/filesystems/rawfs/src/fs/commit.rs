//! The commit of a transaction.
//!
//! The files are locked, all data is in flight together, and all records go into one batch, each once. A failure before that leaves
//! every file as it was.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::RwLockWriteGuard;
use rustix::io::Errno;

use super::core::FsCore;
use super::creds::Creds;
use super::error::{Error, Result};
use super::flush::{PreparedWriteBack, Writes};
use super::key::{self, FileItem};
use super::name::Name;
use super::name_change::{NameChange, NameOperation, PathRef};
use super::record::{self, INLINE_MAX, Record, RecordBody};
use super::table::InodeState;
use super::transaction::{Transaction, TransactionFile, TransactionStep};
use super::walk::{LastComponent, PathTail};
use super::{SIZE_MAX, creds};
use crate::{BLOCK_BYTES, Batch, Lsn, TreeId};

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

/// Returns the names that a transaction gives to new files, if it changes no others.
fn new_names(transaction: &Transaction) -> Option<Vec<NewName<'_>>> {
    let mut names = Vec::new();
    for change in &transaction.changes {
        let NameChange { what: NameOperation::Name { node, to }, creds } = change else { return None };
        names.push(NewName { ino: node.ino(), to, creds });
    }
    Some(names)
}

impl FsCore {
    /// Commits the changes of a transaction as one batch.
    pub fn apply_transaction(&self, transaction: &Transaction) -> Result<Lsn> {
        match new_names(transaction) {
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
}
