//! The open transaction of a session.

use std::collections::BTreeMap;

use stack::rawfs::fs::{File, Transaction};

/// The changes since `begin`, which `commit` writes together.
pub struct OpenTransaction {
    /// The transaction that collects the changes since `begin`.
    pub transaction: Transaction,
    /// The files it changes, by path; new ones get their names with the commit.
    pub files: BTreeMap<Vec<u8>, File>,
}
