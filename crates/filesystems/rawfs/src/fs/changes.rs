//! Names and attributes in transactions: collected in order, and done in that order when the transaction is committed, behind what it
//! writes. A later change sees what an earlier one does: a file goes into a directory that is made in the same transaction.
//!
//! What is only given to new files (`name`) needs no trial and shares the name space with others (transaction.rs).

use std::collections::BTreeMap;
use std::sync::Arc;

use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::attrs::SetAttr;
use super::core::{FsCore, HeldInode};
use super::creds::Creds;
use super::error::Result;
use super::make::NewFile;
use super::name::Name;
use super::name_change::{NameChange, NameOperation, PathRef};
use super::node::Node;
use super::record::{FileKind, NameValue, Record};
use super::table::RecordLocation;
use super::transaction::Transaction;
use super::trial_context::TrialEffect;
use super::walk::WalkResult;
use crate::Batch;

/// What was held before the names are locked: a file, and where its record is.
struct KnownFile {
    at: RecordLocation,
    linkable: bool,
}

fn place(at: &Node, path: &[u8]) -> Result<PathRef> {
    Ok(PathRef { base: at.core.base(at, path)?, path: path.to_vec() })
}

impl Transaction {
    fn change(&mut self, what: NameOperation, creds: &Creds) {
        self.changes.push(NameChange { what, creds: creds.clone() });
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// ENOTDIR; what [`super::Fs::mkdir`] says the commit tells.
    pub fn mkdir(&mut self, at: &Node, path: &[u8], mode: u16, creds: &Creds) -> Result<()> {
        let what = NameOperation::Make { at: place(at, path)?, kind: FileKind::Dir, mode: mode & 0o1777, target: Vec::new() };
        self.change(what, creds);
        Ok(())
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// ENOTDIR; what [`super::Fs::symlink`] says the commit tells.
    pub fn symlink(&mut self, target: &[u8], at: &Node, path: &[u8], creds: &Creds) -> Result<()> {
        let what = NameOperation::Make { at: place(at, path)?, kind: FileKind::Symlink, mode: 0o777, target: target.to_vec() };
        self.change(what, creds);
        Ok(())
    }

    /// Gives a file another name, or its first (O_TMPFILE).
    ///
    /// # Errors
    /// ENOTDIR; what [`super::Fs::link`] says the commit tells.
    pub fn link(&mut self, node: &Node, at: &Node, path: &[u8], creds: &Creds) -> Result<()> {
        self.change(NameOperation::Link { node: node.clone(), to: place(at, path)? }, creds);
        Ok(())
    }

    /// Removes a name.
    ///
    /// # Errors
    /// ENOTDIR; what [`super::Fs::unlink`] says the commit tells.
    pub fn unlink(&mut self, at: &Node, path: &[u8], creds: &Creds) -> Result<()> {
        self.change(NameOperation::Unlink(place(at, path)?), creds);
        Ok(())
    }

    /// Removes a directory that is empty by then.
    ///
    /// # Errors
    /// ENOTDIR; what [`super::Fs::rmdir`] says the commit tells.
    pub fn rmdir(&mut self, at: &Node, path: &[u8], creds: &Creds) -> Result<()> {
        self.change(NameOperation::RmDir(place(at, path)?), creds);
        Ok(())
    }

    /// Renames, also directories, and with what flags say.
    ///
    /// # Errors
    /// ENOTDIR; what [`super::Fs::rename`] says the commit tells.
    pub fn rename(&mut self, old_at: &Node, old: &[u8], new_at: &Node, new: &[u8], flags: RenameFlags, creds: &Creds) -> Result<()> {
        self.change(NameOperation::Rename { from: place(old_at, old)?, to: place(new_at, new)?, flags }, creds);
        Ok(())
    }

    /// Sets attributes of a held file: chmod, chown, utimens.
    ///
    /// # Errors
    /// None yet; what [`super::Fs::set_attr`] says the commit tells.
    pub fn set_attr(&mut self, node: &Node, set: &SetAttr, creds: &Creds) -> Result<()> {
        self.change(NameOperation::Set { node: node.clone(), set: *set }, creds);
        Ok(())
    }
}

impl FsCore {
    /// What is in memory of the files that changes are about goes to the store, which is what they are tried on. The name space is ours
    /// alone, and no file is locked.
    pub(super) fn settle(&self, changes: &[NameChange]) -> Result<()> {
        for change in changes {
            if let Some(node) = change.what.node() {
                self.write_back(&node.inode, &mut node.inode.state.write())?;
            }
            // Who replaces a file by a new one wants the old content or the new.
            if let NameOperation::Rename { from, .. } = &change.what
                && let Ok(WalkResult::Entry { value: Some(value), .. }) = self.find(&from.base, &from.path, false, &change.creds)
                && let Some(held) = self.in_use(value.ino()).filter(|held| held.state.read().record.kind == FileKind::File)
            {
                self.write_back(&held.inode, &mut held.state.write())?;
            }
        }
        Ok(())
    }

    /// Tries changes behind what a batch does; returns all of it as one. `known`: of [`FsCore::known`].
    pub(super) fn try_changes(&self, changes: &[NameChange], known: &KnownFiles, begun: Batch) -> Result<(Batch, Vec<TrialEffect>)> {
        let numbers = changes.iter().filter(|change| matches!(change.what, NameOperation::Make { .. })).count();
        let trial = self.try_out(numbers as u64)?;
        let bases: Vec<Vec<Arc<Name>>> =
            changes.iter().map(|change| change.what.bases().into_iter().map(|base| trial.mirror(base)).collect()).collect();
        trial.store.apply(begun)?;
        let held = known.0.iter().map(|(ino, known)| Ok((*ino, trial.enter(*ino, known)?))).collect::<Result<BTreeMap<_, _>>>()?;
        for (change, bases) in changes.iter().zip(&bases) {
            trial.try_change(change, bases, &held)?;
        }
        drop(held);
        Ok(trial.tried())
    }

    fn try_change(&self, NameChange { what, creds }: &NameChange, bases: &[Arc<Name>], held: &BTreeMap<u64, HeldInode<'_>>) -> Result<()> {
        let of = |node: &Node| &held[&node.ino()];
        match what {
            NameOperation::Name { node, .. } if of(node).state.read().record.nlink > 0 => Err(Errno::NOENT.into()),
            NameOperation::Name { node, to } | NameOperation::Link { node, to } => self.link(of(node), &bases[0], &to.path, creds),
            NameOperation::Make { at, kind, mode, target } => {
                let new = NewFile { target, ..NewFile::of(*kind, *mode) };
                self.make(&bases[0], &at.path, &new, creds).map(drop)
            }
            NameOperation::Unlink(at) => self.unlink(&bases[0], &at.path, creds),
            NameOperation::RmDir(at) => self.rmdir(&bases[0], &at.path, creds),
            NameOperation::Rename { from, to, flags } => self.rename(&bases[0], &from.path, &bases[1], &to.path, *flags, creds),
            NameOperation::Set { node, set } => self.set_attr(&of(node).inode, set, creds),
        }
    }

    /// Holds here what is held where the trial will be done, as the store of the trial has it.
    fn enter(&self, ino: u64, known: &KnownFile) -> Result<HeldInode<'_>> {
        let (record, at): (Record, RecordLocation) = match &known.at {
            RecordLocation::Files => (self.record_of(ino)?, RecordLocation::Files),
            RecordLocation::Name(name) if name.is_gone() => return Err(Errno::NOENT.into()),
            RecordLocation::Name(name) => {
                let name = self.mirror(name);
                let record = match name.key().map(|key| self.entry_at(&key)).transpose()?.flatten() {
                    Some(NameValue::Here(record)) => record,
                    Some(_) => return Err(super::Error::Malformed { ino, what: "a name that went by itself" }),
                    None if name.is_root() => self.record_of(ino)?,
                    None => return Err(Errno::NOENT.into()),
                };
                (record, RecordLocation::Name(name))
            }
        };
        let held = HeldInode { core: self, inode: self.table.enter(&record, Some(&at)) };
        held.state.write().linkable = known.linkable;
        Ok(held)
    }

    /// Where the files are that changes hold. Their locks are free.
    pub(super) fn known(&self, changes: &[NameChange]) -> KnownFiles {
        let nodes = changes.iter().filter_map(|change| change.what.node());
        let known = nodes.filter_map(|node| {
            let state = node.inode.state.read();
            Some((node.ino(), KnownFile { at: state.at.clone()?, linkable: state.linkable }))
        });
        KnownFiles(known.collect())
    }
}

/// See [`FsCore::known`].
pub(super) struct KnownFiles(BTreeMap<u64, KnownFile>);
