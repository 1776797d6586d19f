//! What a transaction does to names is tried first: on a store that nobody else sees ([`crate::Store`], `try_out`), by the calls that
//! do it one by one, on a separate core with a separate tree of names and table of files. What they applied is one batch; what
//! they did in memory is noted, and is done to what is really in use when the batch was applied.
//!
//! Meanwhile nobody else is in the name space ([`super::locks`]).

use std::sync::Arc;

use super::core::{FsCore, HeldInode};
use super::name::{Name, Trail};
use super::record::Record;
use super::table::RecordLocation;
use super::trial_context::{TrialContext, TrialEffect};
use crate::{Batch, Lsn};

impl FsCore {
    /// Remembers what was done, if it is only tried.
    pub fn note(&self, effect: impl FnOnce() -> TrialEffect) {
        if let Some(trial) = &self.trial {
            trial.note(effect());
        }
    }

    /// Whether a file is in use where what is tried here will be done.
    pub fn is_used_beside(&self, ino: u64) -> bool {
        self.trial.as_ref().is_some_and(|trial| trial.is_used(ino))
    }

    /// What was tried: one batch, and what is to be done in memory once it was applied.
    pub fn tried(&self) -> (Batch, Vec<TrialEffect>) {
        (self.store.tried(), self.trial.as_ref().map(TrialContext::take_effects).unwrap_or_default())
    }

    /// The name, among those that are in use here, that another core knows.
    pub fn mirror(&self, name: &Name) -> Arc<Name> {
        let mirrored = self.root.at_end_of(&name.trail());
        if name.is_gone() {
            mirrored.remove();
        }
        mirrored
    }

    /// What was tried was applied. The name space is ours alone, and no file is locked.
    pub fn catch_up(&self, effects: Vec<TrialEffect>, lsn: Lsn) {
        for effect in effects {
            match effect {
                TrialEffect::Removed { dir, name } => {
                    if let Some(name) = self.root.at_end_of(&dir).find(&name) {
                        name.remove();
                    }
                }
                TrialEffect::RemovedDir { name, record } => {
                    let now = record.ctime;
                    self.dir_removed(&self.root.at_end_of(&name), record, now);
                }
                TrialEffect::Renamed { from, to, zones, exchanged } => self.follow(&from, &to, zones, exchanged),
                TrialEffect::Changed { record, in_files, attributes } => self.follow_record(&record, in_files, attributes, lsn),
                TrialEffect::Left(record) => self.drop_left(&record),
                TrialEffect::Freed { ino, blocks } => self.cache.forget(ino, blocks),
            }
        }
    }

    fn follow(&self, from: &Trail, to: &Trail, zones: [Option<u64>; 2], exchanged: bool) {
        let end = |trail: &Trail| {
            let (last, above) = trail.split_last().expect("the top has no other name");
            (self.root.at_end_of(&above.to_vec()), last.0.clone())
        };
        let ((from_dir, from_name), (to_dir, to_name)) = (end(from), end(to));
        let names = [from_dir.find(&from_name), to_dir.find(&to_name).filter(|_| exchanged)];
        if let Some(name) = &names[0] {
            name.rename(&to_dir, &to_name);
            zones[0].into_iter().for_each(|ino| name.set_zone(ino));
        }
        if let Some(name) = &names[1] {
            name.rename_over(&from_dir, &from_name, names[0].is_some());
            zones[1].into_iter().for_each(|ino| name.set_zone(ino));
        }
    }

    fn follow_record(&self, record: &Record, in_files: bool, attributes: bool, lsn: Lsn) {
        let Some(held) = self.in_use(record.ino) else { return };
        let mut state = held.state.write();
        if state.at.is_none() {
            // It will be read.
            return;
        }
        (state.record.nlink, state.record.ctime, state.lsn) = (record.nlink, record.ctime, lsn);
        if in_files {
            (state.at, state.linkable) = (Some(RecordLocation::Files), false);
        }
        if attributes {
            let Record { mode, uid, gid, atime, mtime, xattrs, .. } = *record;
            (state.record.mode, state.record.uid, state.record.gid, state.record.xattrs) = (mode, uid, gid, xattrs);
            (state.record.atime, state.record.mtime) = (atime, mtime);
        }
    }

    /// Held once and let go of, it is removed, if nobody else holds it.
    fn drop_left(&self, record: &Record) {
        let held = HeldInode { core: self, inode: self.table.enter(record, Some(&RecordLocation::Files)) };
        drop(held);
    }
}
