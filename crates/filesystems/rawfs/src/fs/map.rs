//! Which blocks a file has: in its record while they are few, else in items of Files.

use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use super::core::FsCore;
use super::error::{Error, Result};
use super::extent::{self, Run};
use super::key::{self, FileItem};
use super::record::{RUNS_MAX, Record, RecordBody};
use super::table::{Inode, InodeState};
use super::trial_context::TrialEffect;
use crate::{Batch, Extent, ScanStep, TreeId};

/// Runs that one batch removes, at most, of what can be many.
const CUT_MAX: usize = 256;

/// The runs of a part of a file, while they are changed.
pub struct RunEdit {
    old: Vec<Run>,
    runs: Vec<Run>,
    used: Vec<Run>,
    freed: Vec<Extent>,
    /// The bytes of new blocks go with the batch, so it need not name their checksums.
    filled: bool,
}

impl RunEdit {
    /// These runs take the place of what is in a range.
    pub fn replace(&mut self, range: &Range<u64>, new: Vec<Run>) {
        self.used.extend(new.iter().cloned());
        self.freed.extend(extent::replace(&mut self.runs, range, new));
    }

    /// These runs, in order, take the place of what is there.
    pub fn replace_all(&mut self, new: Vec<Run>) {
        self.used.extend(new.iter().cloned());
        self.freed.extend(extent::replace_all(&mut self.runs, new));
    }

    /// As [`RunEdit::replace_all`], with blocks whose bytes go with the batch.
    pub fn fill(&mut self, new: Vec<Run>) {
        self.filled = true;
        self.replace_all(new);
    }

    /// These blocks of the file stay where they are, with other bytes.
    pub fn overwrite(&mut self, new: &Run) {
        let first = self.runs.partition_point(|run| run.end() <= new.at);
        for run in self.runs[first..].iter_mut().take_while(|run| run.at < new.end()) {
            run.set_sums(new);
        }
    }
}

fn touches(run: &Run, range: &Range<u64>) -> bool {
    run.at < range.end && run.end() > range.start
}

impl FsCore {
    /// The runs that touch a range of blocks, in order.
    pub fn runs(&self, record: &Record, range: &Range<u64>) -> Result<Vec<Run>> {
        match &record.body {
            RecordBody::Runs(runs) => Ok(runs.iter().filter(|run| touches(run, range)).cloned().collect()),
            RecordBody::Items => self.items(record.ino, range, usize::MAX),
            _ => Ok(Vec::new()),
        }
    }

    /// Runs from Files that touch a range; not more than so many.
    fn items(&self, ino: u64, range: &Range<u64>, most: usize) -> Result<Vec<Run>> {
        let (mut runs, mut end, mut wrong) = (Vec::new(), 0, None);
        let device = self.store.disk().blocks();
        let mut take = |at: Option<u64>, value: &[u8]| {
            match Run::parse(value) {
                Ok(run) if Some(run.at) == at && end <= run.at && run.extent().end().is_some_and(|end| end.0 <= device) => {
                    end = run.end();
                    runs.extend(Some(run).filter(|run| touches(run, range)));
                }
                Ok(_) => wrong = Some("runs of blocks that lie over each other, or outside the device"),
                Err(malformed) => wrong = Some(malformed.0),
            }
            wrong.is_some() || runs.len() >= most || end >= range.end
        };
        // The run that the range begins in begins there or before.
        let over =
            self.store.floor(TreeId::Files, &key::file(ino, FileItem::Extent, range.start), |key, value| match key::file_parts(key) {
                Some((of, FileItem::Extent, at)) if of == ino => take(Some(at), value),
                _ => false,
            })?;
        if over != Some(true) && range.start.saturating_add(1) < range.end {
            let (from, to) = (key::file(ino, FileItem::Extent, range.start + 1), key::file(ino, FileItem::Extent, range.end));
            self.store.scan(TreeId::Files, &from, &to, &mut |key, value| {
                if take(key::file_parts(key).map(|parts| parts.2), value) { ScanStep::Stop } else { ScanStep::Go }
            })?;
        }
        wrong.map_or(Ok(runs), |what| Err(Error::Malformed { ino, what }))
    }

    /// Begins to change the runs in a range, which is all that is changed before [`FsCore::put`] if the file has items.
    pub fn edit(&self, record: &Record, range: &Range<u64>) -> Result<RunEdit> {
        let old = match &record.body {
            RecordBody::Runs(runs) => runs.clone(),
            // Those before and behind may become one with what is new.
            RecordBody::Items => self.runs(record, &(range.start.saturating_sub(1)..range.end.saturating_add(1)))?,
            _ => Vec::new(),
        };
        Ok(RunEdit { runs: old.clone(), old, used: Vec::new(), freed: Vec::new(), filled: false })
    }

    /// Puts what was changed into a batch and a record. The record itself is to be put by the caller.
    pub fn put(&self, batch: &mut Batch, record: &mut Record, edit: RunEdit) {
        edit.freed.iter().for_each(|extent| batch.free_blocks(*extent));
        for run in &edit.used {
            batch.use_blocks(run.extent(), run.sums.as_deref().filter(|_| !edit.filled).unwrap_or(&[]));
        }
        let freed: u64 = edit.freed.iter().map(|extent| u64::from(extent.blocks)).sum();
        record.blocks = (record.blocks + extent::blocks(&edit.used)).saturating_sub(freed);
        let few = edit.runs.iter().map(Run::stored_len).sum::<usize>() <= RUNS_MAX;
        if record.body != RecordBody::Items && few {
            record.body = RecordBody::Runs(edit.runs);
            return;
        }
        let items = record.body == RecordBody::Items;
        if items {
            let gone = edit.old.iter().filter(|old| edit.runs.binary_search_by_key(&old.at, |run| run.at).is_err());
            gone.for_each(|run| batch.delete(TreeId::Files, &key::file(record.ino, FileItem::Extent, run.at)));
        }
        for run in &edit.runs {
            let key = key::file(record.ino, FileItem::Extent, run.at);
            let old = edit.old.binary_search_by_key(&run.at, |old| old.at).ok().filter(|_| items);
            match old.map(|index| &edit.old[index]) {
                Some(old) if old == run => {}
                Some(old) if old.is_at(run) => run.each_changed(old, |at, sums| batch.patch(TreeId::Files, &key, at, sums)),
                _ => batch.put(TreeId::Files, &key, &run.bytes()),
            }
        }
        record.body = RecordBody::Items;
    }

    /// Removes runs from a block on, as many as are good for one batch; returns whether there may be more.
    pub fn cut(&self, batch: &mut Batch, record: &mut Record, from: u64) -> Result<bool> {
        let (mut end, mut more) = (u64::MAX, false);
        if record.body == RecordBody::Items {
            let runs = self.items(record.ino, &(from..u64::MAX), CUT_MAX)?;
            let Some(last) = runs.last() else { return Ok(false) };
            (end, more) = (last.end(), runs.len() == CUT_MAX);
        }
        self.cut_range(batch, record, &(from..end)).map(|()| more)
    }

    /// Removes the runs in a range, whose number is small.
    pub fn cut_range(&self, batch: &mut Batch, record: &mut Record, range: &Range<u64>) -> Result<()> {
        let mut edit = self.edit(record, range)?;
        edit.replace(range, Vec::new());
        for part in edit.old.iter().filter_map(|run| run.part(range)) {
            self.cache.forget(record.ino, part.at..part.end());
            self.note(|| TrialEffect::Freed { ino: record.ino, blocks: part.at..part.end() });
        }
        self.put(batch, record, edit);
        Ok(())
    }

    /// Returns the number of blocks that a file has from one on.
    pub fn blocks_from(&self, record: &Record, from: u64) -> Result<u64> {
        let (mut blocks, mut at) = (0, from);
        loop {
            let runs = match &record.body {
                RecordBody::Items => self.items(record.ino, &(at..u64::MAX), CUT_MAX)?,
                _ => self.runs(record, &(at..u64::MAX))?,
            };
            blocks += runs.iter().filter_map(|run| run.part(&(at..u64::MAX))).map(|run| u64::from(run.blocks)).sum::<u64>();
            match runs.last() {
                Some(last) if runs.len() == CUT_MAX => at = last.end(),
                _ => return Ok(blocks),
            }
        }
    }

    /// The first run that is not before a block.
    pub fn next_run(&self, record: &Record, block: u64) -> Result<Option<Run>> {
        match &record.body {
            RecordBody::Items => Ok(self.items(record.ino, &(block..u64::MAX), 1)?.pop()),
            _ => Ok(self.runs(record, &(block..u64::MAX))?.into_iter().next()),
        }
    }

    /// Frees everything of a file that has no name and that nobody uses. Its mark is there, or it has few blocks.
    pub fn purge(&self, record: &Record) -> Result<()> {
        let mut record = record.clone();
        loop {
            let mut batch = Batch::new();
            let more = matches!(record.body, RecordBody::Runs(_) | RecordBody::Items) && self.cut(&mut batch, &mut record, 0)?;
            if !more {
                self.put_end(&mut batch, &record);
            }
            self.apply(batch)?;
            if !more {
                return Ok(());
            }
        }
    }

    /// What else there is of a file whose blocks are free.
    pub fn put_end(&self, batch: &mut Batch, record: &Record) {
        batch.delete(TreeId::Files, &key::file(record.ino, FileItem::Record, 0));
        batch.delete(TreeId::Files, &key::file(0, FileItem::Orphan, record.ino));
        self.put_end_of_more(batch, record);
    }

    /// Extended attributes, and a long target.
    pub fn put_end_of_more(&self, batch: &mut Batch, record: &Record) {
        if record.xattrs {
            self.delete_long(batch, record.ino, FileItem::Xattrs);
        }
        if record.kind == super::record::FileKind::Symlink && record.body == RecordBody::Items {
            self.delete_long(batch, record.ino, FileItem::Target);
        }
    }

    /// Drops blocks that are not written.
    pub fn forget_pages(&self, state: &mut InodeState, blocks: impl RangeBounds<u64>) {
        let gone = state.pages.extract_if(blocks, |_, _| true).count();
        self.fewer_unwritten(gone as u64);
    }

    /// Takes a file off the list of what is to be written back, if there is nothing. Its lock is held, and the file by the caller.
    pub fn unlist(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        if state.listed && state.is_clean() {
            state.listed = false;
            self.weigh(state);
            self.dirty.lock().remove(&inode.ino);
            let left = self.table.release(inode);
            assert!(left > 0, "the caller holds it");
        }
    }
}
