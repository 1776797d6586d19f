//! Names and attributes in transactions: gathered in order, and done in that order when the transaction is committed, behind what it
//! writes. A later change sees what an earlier one does: a file goes into a directory that is made in the same transaction.
//!
//! What is only given to new files (`name`) needs no trial and shares the name space with others (transaction.rs).

use std::collections::BTreeMap;
use std::sync::Arc;

use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::attrs::SetAttr;
use super::core::{Core, Held};
use super::creds::Creds;
use super::error::Result;
use super::file::Node;
use super::make::New;
use super::name::Name;
use super::record::{Kind, Record, Value};
use super::table::At;
use super::transaction::Transaction;
use super::trial::Effect;
use super::walk::Found;
use crate::Batch;

/// A path, from where it begins.
pub(super) struct Place {
    pub base: Arc<Name>,
    pub path: Vec<u8>,
}

pub(super) struct Change {
    pub what: What,
    pub creds: Creds,
}

pub(super) enum What {
    /// A file that has no name gets its first.
    Name {
        node: Node,
        to: Place,
    },
    Link {
        node: Node,
        to: Place,
    },
    Make {
        at: Place,
        kind: Kind,
        mode: u16,
        target: Vec<u8>,
    },
    Unlink(Place),
    RmDir(Place),
    Rename {
        from: Place,
        to: Place,
        flags: RenameFlags,
    },
    Set {
        node: Node,
        set: SetAttr,
    },
}

/// What was held before the names are locked: a file, and where its record is.
struct Known {
    at: At,
    linkable: bool,
}

fn place(at: &Node, path: &[u8]) -> Result<Place> {
    Ok(Place { base: at.core.base(at, path)?, path: path.to_vec() })
}

impl Transaction {
    fn change(&mut self, what: What, creds: &Creds) {
        self.changes.push(Change { what, creds: creds.clone() });
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// ENOTDIR; what [`super::Fs::mkdir`] says the commit tells.
    pub fn mkdir(&mut self, at: &Node, path: &[u8], mode: u16, creds: &Creds) -> Result<()> {
        let what = What::Make { at: place(at, path)?, kind: Kind::Dir, mode: mode & 0o1777, target: Vec::new() };
        self.change(what, creds);
        Ok(())
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// ENOTDIR; what [`super::Fs::symlink`] says the commit tells.
    pub fn symlink(&mut self, target: &[u8], at: &Node, path: &[u8], creds: &Creds) -> Result<()> {
        let what = What::Make { at: place(at, path)?, kind: Kind::Symlink, mode: 0o777, target: target.to_vec() };
        self.change(what, creds);
        Ok(())
    }

    /// Gives a file another name, or its first (O_TMPFILE).
    ///
    /// # Errors
    /// ENOTDIR; what [`super::Fs::link`] says the commit tells.
    pub fn link(&mut self, node: &Node, at: &Node, path: &[u8], creds: &Creds) -> Result<()> {
        self.change(What::Link { node: node.clone(), to: place(at, path)? }, creds);
        Ok(())
    }

    /// Removes a name.
    ///
    /// # Errors
    /// ENOTDIR; what [`super::Fs::unlink`] says the commit tells.
    pub fn unlink(&mut self, at: &Node, path: &[u8], creds: &Creds) -> Result<()> {
        self.change(What::Unlink(place(at, path)?), creds);
        Ok(())
    }

    /// Removes a directory that is empty by then.
    ///
    /// # Errors
    /// ENOTDIR; what [`super::Fs::rmdir`] says the commit tells.
    pub fn rmdir(&mut self, at: &Node, path: &[u8], creds: &Creds) -> Result<()> {
        self.change(What::RmDir(place(at, path)?), creds);
        Ok(())
    }

    /// Renames, also directories, and with what flags say.
    ///
    /// # Errors
    /// ENOTDIR; what [`super::Fs::rename`] says the commit tells.
    pub fn rename(&mut self, old_at: &Node, old: &[u8], new_at: &Node, new: &[u8], flags: RenameFlags, creds: &Creds) -> Result<()> {
        self.change(What::Rename { from: place(old_at, old)?, to: place(new_at, new)?, flags }, creds);
        Ok(())
    }

    /// Sets attributes of a held file: chmod, chown, utimens.
    ///
    /// # Errors
    /// None yet; what [`super::Fs::set_attr`] says the commit tells.
    pub fn set_attr(&mut self, node: &Node, set: &SetAttr, creds: &Creds) -> Result<()> {
        self.change(What::Set { node: node.clone(), set: *set }, creds);
        Ok(())
    }
}

impl What {
    fn node(&self) -> Option<&Node> {
        match self {
            What::Name { node, .. } | What::Link { node, .. } | What::Set { node, .. } => Some(node),
            _ => None,
        }
    }

    /// Where its paths begin.
    fn bases(&self) -> Vec<&Arc<Name>> {
        match self {
            What::Name { to, .. } | What::Link { to, .. } => vec![&to.base],
            What::Make { at, .. } | What::Unlink(at) | What::RmDir(at) => vec![&at.base],
            What::Rename { from, to, .. } => vec![&from.base, &to.base],
            What::Set { .. } => Vec::new(),
        }
    }
}

impl Core {
    /// What is in memory of the files that changes are about goes to the store, which is what they are tried on. The name space is ours
    /// alone, and no file is locked.
    pub(super) fn settle(&self, changes: &[Change]) -> Result<()> {
        for change in changes {
            if let Some(node) = change.what.node() {
                self.write_back(&node.inode, &mut node.inode.state.write())?;
            }
            // Who replaces a file by a new one wants the old content or the new.
            if let What::Rename { from, .. } = &change.what
                && let Ok(Found::Entry { value: Some(value), .. }) = self.find(&from.base, &from.path, false, &change.creds)
                && let Some(held) = self.in_use(value.ino()).filter(|held| held.state.read().record.kind == Kind::File)
            {
                self.write_back(&held.inode, &mut held.state.write())?;
            }
        }
        Ok(())
    }

    /// Tries changes behind what a batch does; returns all of it as one. `known`: of [`Core::known`].
    pub(super) fn try_changes(&self, changes: &[Change], known: &Knowledge, begun: Batch) -> Result<(Batch, Vec<Effect>)> {
        let numbers = changes.iter().filter(|change| matches!(change.what, What::Make { .. })).count();
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

    fn try_change(&self, Change { what, creds }: &Change, bases: &[Arc<Name>], held: &BTreeMap<u64, Held<'_>>) -> Result<()> {
        let of = |node: &Node| &held[&node.ino()];
        match what {
            What::Name { node, .. } if of(node).state.read().record.nlink > 0 => Err(Errno::NOENT.into()),
            What::Name { node, to } | What::Link { node, to } => self.link(of(node), &bases[0], &to.path, creds),
            What::Make { at, kind, mode, target } => {
                let new = New { target, ..New::of(*kind, *mode) };
                self.make(&bases[0], &at.path, &new, creds).map(drop)
            }
            What::Unlink(at) => self.unlink(&bases[0], &at.path, creds),
            What::RmDir(at) => self.rmdir(&bases[0], &at.path, creds),
            What::Rename { from, to, flags } => self.rename(&bases[0], &from.path, &bases[1], &to.path, *flags, creds),
            What::Set { node, set } => self.set_attr(&of(node).inode, set, creds),
        }
    }

    /// Holds here what is held where the trial will be done, as the store of the trial has it.
    fn enter(&self, ino: u64, known: &Known) -> Result<Held<'_>> {
        let (record, at): (Record, At) = match &known.at {
            At::Files => (self.record_of(ino)?, At::Files),
            At::Name(name) if name.is_gone() => return Err(Errno::NOENT.into()),
            At::Name(name) => {
                let name = self.mirror(name);
                let record = match name.key().map(|key| self.entry_at(&key)).transpose()?.flatten() {
                    Some(Value::Here(record)) => record,
                    Some(_) => return Err(super::Error::Malformed { ino, what: "a name that went by itself" }),
                    None if name.is_root() => self.record_of(ino)?,
                    None => return Err(Errno::NOENT.into()),
                };
                (record, At::Name(name))
            }
        };
        let held = Held { core: self, inode: self.table.enter(&record, Some(&at)) };
        held.state.write().linkable = known.linkable;
        Ok(held)
    }

    /// Where the files are that changes hold. Their locks are free.
    pub(super) fn known(&self, changes: &[Change]) -> Knowledge {
        let nodes = changes.iter().filter_map(|change| change.what.node());
        let known = nodes.filter_map(|node| {
            let state = node.inode.state.read();
            Some((node.ino(), Known { at: state.at.clone()?, linkable: state.linkable }))
        });
        Knowledge(known.collect())
    }
}

/// See [`Core::known`].
pub(super) struct Knowledge(BTreeMap<u64, Known>);
