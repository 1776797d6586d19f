//! Transactions (testFS on SPDK): writes to many files that happen all or not at all, also when the power goes.
//!
//! A transaction collects; nothing of it is visible before the commit ([`super::commit`]).
//!
//! It can also give names to files made without one (O_TMPFILE), so that new files appear together, and change names and attributes
//! ([`super::changes`]).

use std::collections::BTreeMap;

use rustix::io::Errno;

use super::SIZE_MAX;
use super::creds::Creds;
use super::error::Result;
use super::file::File;
use super::name_change::{NameChange, NameOperation, PathRef};
use super::node::Node;
use super::table::Inode;

/// Changes of many files, collected until the commit.
#[derive(Default)]
pub struct Transaction {
    /// The files that it writes to, by number.
    pub(super) files: BTreeMap<u64, TransactionFile>,
    /// The changes of names and attributes, in order.
    pub(super) changes: Vec<NameChange>,
}

/// What a transaction does to one file.
pub(super) struct TransactionFile {
    /// The file it is done to.
    pub node: Node,
    /// The credentials of the handle.
    pub creds: Creds,
    /// The steps in their order.
    pub steps: Vec<TransactionStep>,
}

/// One step of a transaction on a file.
pub(super) enum TransactionStep {
    /// Writes at an offset, or at the end.
    Write { at: Option<u64>, data: Vec<u8> },
    /// Sets the size.
    Size(u64),
}

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

    pub(super) fn each(&self, each: impl Fn(&Inode)) {
        self.files.values().for_each(|part| each(&part.node.inode));
    }

    /// Reports whether the transaction holds no changes.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.changes.is_empty()
    }
}
