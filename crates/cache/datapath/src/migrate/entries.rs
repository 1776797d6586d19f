//! The entries of files in the catalogue on the SSD: what the leader puts there before it changes a file, and what it settles later.

use std::ops::Bound;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use ssdcache::{CollectScope, FileKey, LookupResult, PageVersion};

use super::files::{KNOWN_MAX, Known, NAMED_MS, STRANDED_MS, is_same};
use super::{RETRY_MS, Worker};
use crate::engine::cached_version::version_of;
use crate::engine::log::Stop;
use crate::engine::open::errno_of;
use crate::engine::{CATALOGUE, CUT_BELOW, CacheEngine, Entry, FileNo, Stamp, flag, place};

/// Entries that a new leader reads in one second, at most, to find truncations that are not settled.
const ENTRIES_READ: usize = 256;

impl Worker {
    /// Returns the file's entry from the log.
    pub(super) fn entry(&mut self, key: FileKey) -> Option<Entry> {
        if self.know(key).is_read {
            return self.know(key).noted.clone();
        }
        let page = self.log.as_mut().and_then(|log| log.read(CATALOGUE, place(key)));
        let entry = page.and_then(|page| Entry::decode(&page)).filter(|entry| entry.key == key);
        let known = self.know(key);
        (known.noted, known.is_read) = (entry.clone(), true);
        entry
    }

    /// Puts an entry into the log, unless it is there already; the next flush makes it durable. `make` builds the entry, and builds it
    /// again after room was made: that may have changed its inputs.
    pub(super) fn put_entry(
        &mut self,
        engine: &CacheEngine,
        key: FileKey,
        mut make: impl FnMut(&mut Worker) -> Entry,
    ) -> Result<(), Errno> {
        for _ in 0..3 {
            self.room_ahead(engine)?;
            let entry = make(self);
            let before = self.entry(key);
            if before.as_ref() == Some(&entry) {
                return Ok(());
            }
            let is_making_room = self.making_room;
            let Some(log) = &mut self.log else { return Err(Errno::IO) };
            let is_others = before.is_none() && log.cache.lookup(CATALOGUE, place(key)) != LookupResult::Miss;
            let put = match is_making_room {
                true => log.put_own(place(key), &entry.encode()),
                false => log.put(CATALOGUE, place(key), PageVersion::Dirty, &entry.encode()),
            };
            match put {
                Ok(()) => {
                    if is_others {
                        // The log has the entry of another file there no more.
                        let all = self.known.iter_mut().filter(|(other, _)| place(**other) == place(key));
                        all.for_each(|(_, known)| (known.noted, known.is_read) = (None, true));
                    }
                    let known = self.know(key);
                    let is_cut_settled = known.noted.as_ref().is_some_and(Entry::owes_cut) && !entry.owes_cut();
                    (known.noted, known.is_read) = (Some(entry), true);
                    self.is_cut_settled |= is_cut_settled;
                    return Ok(());
                }
                Err(Stop::Room) => self.make_room(engine)?,
                Err(stop) => return Err(self.stopped(engine, stop)),
            }
        }
        Err(Errno::NOSPC)
    }

    /// Writes the current entry of an open file.
    pub(super) fn note(&mut self, engine: &CacheEngine, no: FileNo) -> Result<(), Errno> {
        self.note_as(engine, no, None, engine.records.get(no).has(flag::THROUGH))
    }

    /// Writes the entry of a file that is about to be written through.
    pub(super) fn note_through(&mut self, engine: &CacheEngine, no: FileNo) -> Result<(), Errno> {
        self.note_as(engine, no, None, true)
    }

    /// Writes the entry of a file that is about to be truncated to `len`.
    pub(super) fn note_cut(&mut self, engine: &CacheEngine, no: FileNo, len: u64) -> Result<(), Errno> {
        self.note_as(engine, no, Some(len), engine.records.get(no).has(flag::THROUGH))
    }

    pub(super) fn note_as(&mut self, engine: &CacheEngine, no: FileNo, len: Option<u64>, through: bool) -> Result<(), Errno> {
        let record = engine.records.get(no);
        let key = record.key().ok_or(Errno::NOENT)?;
        let is_first = self.log.as_ref().is_some_and(|log| log.cache.pages_of(key) == 0);
        if is_first && !self.is_durable_by_age(engine, no, key) {
            // The log has not recorded what happened to the file so far. After a loss of power the file might have older bytes than the
            // SSD, with the same stamp.
            let below = self.found(engine, key)?.ok_or(Errno::NOENT)?;
            below.sync().map_err(|error| errno_of(&error))?;
            self.synced_below(engine, key)?;
        }
        self.know(key).after = (!record.own().is_open()).then(|| record.own().get());
        self.put_entry(engine, key, |worker| {
            let before = worker.entry(key);
            let cut = before.as_ref().and_then(|entry| entry.cut);
            let size = record.size().load(Ordering::Acquire);
            Entry {
                key,
                path: record.path(),
                size: len.unwrap_or_else(|| size.max(before.as_ref().filter(|_| !is_first).map_or(0, |entry| entry.size))),
                // A conflict outlives a restart: the backing file then differs from what we left.
                stamp: if record.has(flag::CONFLICT) { Stamp::NEVER } else { record.own().get() },
                // A write-through changes the backing file at any time; only a sync makes it durable.
                writing: !record.has(flag::CONFLICT)
                    && (len.is_some() || through || record.own().is_open() || before.is_some_and(|entry| entry.writing)),
                cut: len.map_or(cut, |len| Some(cut.map_or(len, |cut| cut.min(len)))),
                through,
            }
        })
    }

    /// Returns whether a file that the log knows nothing of is durable, as nobody has changed it for long. Then it need not be opened,
    /// which takes longer than to read a small file where the file system is far away.
    fn is_durable_by_age(&mut self, engine: &CacheEngine, no: FileNo, key: FileKey) -> bool {
        let record = engine.records.get(no);
        let is_cutting = self.cutting.is_some_and(|(cutting, _)| cutting == key) || self.know(key).is_untrimmed;
        let is_untouched = !record.own().is_open() && !is_cutting && self.entry(key).as_ref().is_none_or(Entry::is_settled);
        is_untouched && engine.world.is_durable_by_age(&record.path(), record.own().get())
    }

    /// Records that the backing file is durable, including its truncation. Its entry says so before any page counts as clean.
    pub(super) fn synced_below(&mut self, engine: &CacheEngine, key: FileKey) -> Result<(), Errno> {
        if self.owes_cut(engine, key).is_some() {
            return Ok(());
        }
        let cut = self.cutting.filter(|(cutting, _)| *cutting == key).map(|(_, len)| len);
        let cut = cut.or(self.know(key).is_untrimmed.then_some(CUT_BELOW));
        match self.entry(key) {
            Some(entry) if entry.cut == Some(CUT_BELOW) => Ok(()),
            Some(entry) if entry.cut != cut && self.has_log(engine) => {
                self.put_entry(engine, key, |worker| Entry { cut, ..worker.entry(key).unwrap_or_else(|| entry.clone()) })
            }
            _ => Ok(()),
        }
    }

    /// Prepares the first write to a backing file; returns how long the file may become. Its entry first records the write and that
    /// length, durably. A backing file longer than its entry would exceed the length its users know after a crash.
    ///
    /// # Errors
    /// The log has no room for that, or the SSD failed just now.
    pub(super) fn begin_writing(&mut self, engine: &CacheEngine, key: FileKey) -> Result<u64, Errno> {
        let below = self.below(engine, key)?;
        // This comes before the entry says that changes are ours: after a crash they are then not checked.
        self.look_first(engine, key, &*below)?;
        if self.say_writing(engine, key)? {
            self.flush_log(engine)?;
        }
        Ok(self.end_below(engine, key))
    }

    /// Returns the last stamp known to be ours, of a file without a record. `None`: we may have changed the file since.
    pub(super) fn own_stamp(&mut self, key: FileKey) -> Option<Stamp> {
        let entry = self.entry(key)?;
        if entry.writing { self.know(key).after.filter(|_| !entry.through) } else { Some(entry.stamp) }
    }

    /// Returns whether the SSD has clean pages of this version of a file, and nothing of it waits to be written or cut.
    pub(super) fn has_version(&mut self, key: FileKey, version: u64) -> bool {
        let is_clean = self.log.as_ref().is_some_and(|log| log.cache.pages_of(key) > 0 && log.cache.dirty_of(key) == 0);
        let is_doubtful = self.known.get(&key).is_some_and(|known| known.is_doubtful);
        let is_of_version = |entry: &Entry| entry.is_settled() && entry.size == entry.stamp.size && version_of(entry.stamp) == version;
        is_clean && !is_doubtful && self.entry(key).as_ref().is_some_and(is_of_version)
    }

    /// Remembers that the clean pages of a file on the SSD may be older than the backing file: the entry says that a write was begun, and
    /// nobody knows whether it happened. After a restart this comes before a stamp counts as ours. `now`: the stamp of the file; `None`: a
    /// process of the instance is changing it, or its location is unknown. Nothing is dropped here: the log may have no room for that.
    pub(super) fn note_doubt(&mut self, engine: &CacheEngine, key: FileKey, now: Option<Stamp>) {
        let is_compared = engine.records.find(key).is_some_and(|no| engine.records.get(no).on_ssd().is_some());
        let Some(entry) = self.entry(key).filter(|_| !is_compared) else { return };
        let is_as_left = !entry.through && now.is_some_and(|now| is_same(entry.stamp, now));
        if !is_as_left && self.own_stamp(key).is_none() {
            self.know(key).is_doubtful = true;
        }
    }

    /// Drops these pages, durably, before the entry says that the file is as we left it.
    ///
    /// # Errors
    /// The log has no room for that, or the SSD failed just now.
    pub(super) fn drop_doubtful(&mut self, engine: &CacheEngine, key: FileKey) -> Result<(), Errno> {
        if self.know(key).is_doubtful {
            self.drop_clean_for_good(engine, key)?;
            self.know(key).is_doubtful = false;
        }
        Ok(())
    }

    /// Puts an entry into the log that says that a write to the backing file has begun, and how long the file may become. Returns whether
    /// the file has an entry: then the write must not begin before the log is flushed.
    pub(super) fn say_writing(&mut self, engine: &CacheEngine, key: FileKey) -> Result<bool, Errno> {
        let Some(entry) = self.entry(key).filter(|_| self.has_log(engine)) else { return Ok(false) };
        // Only a noted truncation shortens the entry: until then, the data after it may still be needed.
        let grown = || engine.records.find(key).map_or(0, |no| engine.records.get(no).size().load(Ordering::Acquire));
        let size = |entry: &Entry| entry.size.max(grown());
        if !entry.writing {
            // Until our first change, a file without a record still has to have the stamp of its entry. This comes first: making room for
            // the entry may write the file back.
            self.know(key).after = match engine.records.find(key).map(|no| engine.records.get(no).own()) {
                Some(own) => (!own.is_open()).then(|| own.get()),
                None => Some(entry.stamp),
            };
        }
        if !entry.writing || entry.size != size(&entry) {
            self.put_entry(engine, key, |worker| {
                let entry = worker.entry(key).unwrap_or_else(|| entry.clone());
                Entry { writing: true, size: size(&entry), ..entry }
            })?;
        }
        Ok(true)
    }

    /// Records the stamp after a write-back, without a flush. After a crash it shows which changes were ours, if it was durable by then.
    pub(super) fn note_after(&mut self, engine: &CacheEngine, key: FileKey) {
        // A later leader has to find the doubt again.
        let after = self.know(key).after.filter(|_| !self.known.get(&key).is_some_and(|known| known.is_doubtful));
        if let Some((entry, stamp)) = self.entry(key).filter(|entry| entry.writing && !entry.through && self.has_log(engine)).zip(after)
            && entry.stamp != stamp
        {
            let _ = self.put_entry(engine, key, |worker| Entry { stamp, ..worker.entry(key).unwrap_or_else(|| entry.clone()) });
        }
    }

    /// Settles entries that say `writing` of files that are not being written.
    pub(super) fn settle_entries(&mut self, engine: &CacheEngine, most: usize) -> bool {
        // Each round starts where the last one ended: entries that cannot be settled now are not always first.
        let behind = (Bound::Excluded(self.settled), Bound::Unbounded);
        let all = self.known.range(behind).chain(self.known.range(..=self.settled));
        let now = engine.world.now_ms();
        let is_due = |known: &Known| known.unsettled_until.is_none_or(|until| (until.wrapping_sub(now) as i32) <= 0);
        let due = all.filter(|(_, known)| known.is_needed() && is_due(known));
        let keys: Vec<FileKey> = due.map(|(key, _)| *key).take(most).collect();
        self.settled = keys.last().copied().unwrap_or(self.settled);
        for key in &keys {
            // The last leader may have died before it truncated the backing file; the request or the next owner of the lock repeats that.
            if engine.records.find(*key).is_some_and(|no| self.is_being_cut(engine, no)) {
                continue;
            }
            // The stamp of a record that has not been compared with the entry may be of another program's change.
            let is_uncompared = engine.records.find(*key).is_some_and(|no| engine.records.get(no).on_ssd().is_none());
            if is_uncompared && self.own_stamp(*key).is_some() {
                continue;
            }
            let synced = self
                .cut_again(engine, *key)
                .and_then(|()| self.below(engine, *key))
                .and_then(|below| below.sync().map_err(|error| errno_of(&error)))
                .and_then(|()| self.synced_below(engine, *key));
            if let Err(errno) = synced {
                // The search for a missing file may be slow.
                self.leave_entry(engine, *key, if errno == Errno::NOENT { STRANDED_MS } else { RETRY_MS });
                continue;
            }
            self.end_trim(engine, *key);
            let Some(mut entry) = self.entry(*key) else { continue };
            let stamp = match engine.records.find(*key).map(|no| engine.records.get(no)) {
                Some(record) if record.own().is_open() || record.has(flag::STRANDED) => continue,
                Some(record) => {
                    if entry.through && !self.ends_through(engine, *key) {
                        continue;
                    }
                    entry.size = entry.size.max(record.size().load(Ordering::Acquire));
                    Ok(record.own().get())
                }
                None => match self.own_stamp(*key) {
                    Some(own) => Ok(own),
                    None => self.below(engine, *key).and_then(|below| below.stamp().map_err(|error| errno_of(&error))),
                },
            };
            let Ok(stamp) = stamp else { continue };
            self.note_doubt(engine, *key, Some(stamp));
            if self.drop_doubtful(engine, *key).is_err() {
                self.leave_entry(engine, *key, RETRY_MS);
                continue;
            }
            let put = self.put_entry(engine, *key, |_| Entry { stamp, writing: false, through: false, ..entry.clone() });
            if put.is_err() {
                self.leave_entry(engine, *key, RETRY_MS);
            }
        }
        // If that fails, the SSD has failed.
        let _ = self.flush_settled(engine);
        !keys.is_empty()
    }

    /// Makes durable that truncations of backing files are. An entry that still had one would have the next leader truncate the file again
    /// after a power cut, and with it what another program has written since.
    ///
    /// # Errors
    /// The SSD failed just now.
    pub(super) fn flush_settled(&mut self, engine: &CacheEngine) -> Result<(), Errno> {
        if self.is_cut_settled { self.flush_log(engine) } else { Ok(()) }
    }

    /// Forgets an entry that could not be settled. Its log entry is unchanged, so a later open takes the change for ours. The file stays
    /// open: another program may have moved it. An entry with a truncation is tried again after `ms`: a later open would repeat the
    /// truncation, over what other programs have written by then.
    pub(super) fn leave_entry(&mut self, engine: &CacheEngine, key: FileKey, ms: u32) {
        let until = engine.world.now_ms().wrapping_add(ms);
        let known = self.know(key);
        if known.noted.as_ref().is_some_and(Entry::owes_cut) {
            known.unsettled_until = Some(until);
        } else {
            (known.noted, known.is_read) = (None, false);
        }
    }

    /// Makes the next settling try all entries, also those that could not be settled just now.
    pub(super) fn settle_all_again(&mut self) {
        self.known.values_mut().for_each(|known| known.unsettled_until = None);
    }

    /// Collects the pages of the catalogue that the last leader left. All of them are durable now, and are found.
    pub(super) fn collect_entries(&mut self, engine: &CacheEngine) {
        let Some(log) = self.log.as_ref().filter(|_| self.has_log(engine)) else { return };
        let mut found = Vec::new();
        log.cache.collect_dirty(CollectScope::File(CATALOGUE), usize::MAX, &mut found);
        self.unread = found.into_iter().map(|item| item.page).collect();
    }

    /// Reads some of these pages. Files with truncations are remembered: the last leader may have died before it had settled them, and
    /// have no pages on the SSD that would lead to them.
    pub(super) fn read_entries(&mut self, engine: &CacheEngine) {
        let begun = engine.world.now_ms();
        for _ in 0..ENTRIES_READ {
            let is_over = engine.world.now_ms().wrapping_sub(begun) >= NAMED_MS || self.known.len() >= KNOWN_MAX;
            if is_over || !self.has_log(engine) {
                return;
            }
            let Some(page) = self.unread.pop() else { return };
            let found = self.log.as_mut().and_then(|log| log.read(CATALOGUE, page));
            if let Some(entry) = found.and_then(|page| Entry::decode(&page)).filter(|entry| entry.owes_cut() && place(entry.key) == page) {
                self.entry(entry.key);
            }
        }
    }

    /// Returns whether the file has not been written through for `RETRY_MS`, and all of that is durable on both sides.
    pub(super) fn ends_through(&mut self, engine: &CacheEngine, key: FileKey) -> bool {
        let Some(no) = engine.records.find(key) else { return false };
        let record = engine.records.get(no);
        let quiet = engine.world.now_ms().wrapping_sub(record.used().load(Ordering::Relaxed)) >= RETRY_MS;
        let Some(_held) = self.try_lock(engine, no).filter(|_| quiet) else { return false };
        let is_settled = !engine.pages.marked_of(pagecache::FileNo(no.0))
            && self.below(engine, key).is_ok_and(|below| below.sync().is_ok())
            && self.log.as_mut().is_some_and(|log| log.flush().is_ok());
        if is_settled {
            record.flags().fetch_and(!flag::THROUGH, Ordering::AcqRel);
        }
        is_settled
    }

    pub(super) fn drop_entry(&mut self, engine: &CacheEngine, key: FileKey) -> Result<(), Errno> {
        if !self.has_log(engine) || self.entry(key).is_none() {
            return Ok(());
        }
        self.drop_pages(engine, CATALOGUE, place(key).0..place(key).0 + 1)?;
        let known = self.know(key);
        (known.noted, known.is_read) = (None, true);
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use std::path::Path;

    use ssdcache::Mode;

    use super::*;
    use crate::engine::BackingFile;

    #[test]
    fn a_file_whose_entry_was_replaced_does_not_take_the_other_entry_with_it() {
        let (_, engine, open) = crate::test_engine::lead_with_ssd(Mode::WriteBack);
        open.write(0, &[1; 100]).expect("written");
        open.sync().expect("on the SSD");
        let mut worker = Worker::begin(&engine);
        let entry = worker.entry(FileKey(7)).expect("an entry");
        let other = FileKey(7 + (1 << 33));
        assert_eq!(place(other), place(FileKey(7)));
        worker.put_entry(&engine, other, |_| Entry { key: other, ..entry.clone() }).expect("put");
        worker.known.remove(&other);
        worker.drop_file(&engine, FileKey(7)).expect("dropped");
        assert_eq!(worker.entry(other).map(|entry| entry.key), Some(other));
    }

    #[test]
    fn after_a_restart_the_ssd_has_the_version_that_its_entry_names() {
        let (file, engine, open) = crate::test_engine::lead_with_ssd(Mode::WriteBack);
        let key = FileKey(7);
        open.write(0, &[5; 9000]).expect("written");
        open.sync().expect("on the SSD");
        open.clean().expect("written back");
        let no = open.no();
        drop(open);
        let stamp = file.stamp().expect("known");
        let mut worker = Worker::begin(&engine);
        assert!(!worker.has_version(key, version_of(stamp)), "the entry says that it is being written");
        worker.settle_entries(&engine, usize::MAX);
        assert!(worker.has_version(key, version_of(stamp)));
        for other in [Stamp { size: 9001, ..stamp }, Stamp { mtime: stamp.mtime + 1, ..stamp }] {
            assert!(!worker.has_version(key, version_of(other)));
        }
        worker.flush_log(&engine).expect("durable");
        crate::test_engine::restart(&engine, no);
        let version = |stamp| engine.cached_version(key, Path::new("/file"), Mode::WriteThrough, stamp);
        assert!(version(Stamp { size: 9001, ..stamp }).is_none());
        assert!(engine.records.find(key).is_none(), "no record is made for another version");
        let mut bytes = [0; 9000];
        assert_eq!(version(stamp).expect("there").read(0, &mut bytes), Some(9000));
        assert_eq!(bytes, [5; 9000]);
        // The record that was made is that of the file.
        let open = crate::test_engine::opened(&engine);
        assert_eq!(open.read(0, &mut bytes), Ok(9000));
        assert_eq!(engine.counters().sum(crate::engine::Count::Misses), 0, "its pages are valid");
    }

    #[test]
    fn a_file_that_nobody_has_changed_for_long_is_not_opened_for_its_entry() {
        for is_old in [false, true] {
            let (file, engine, open) = crate::test_engine::lead_with_ssd(Mode::WriteThrough);
            file.is_old.store(is_old, Ordering::Relaxed);
            let is_synced = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
            let seen = std::sync::Arc::clone(&is_synced);
            *file.at_sync.lock() = Some(Box::new(move || {
                seen.store(true, Ordering::Relaxed);
                true
            }));
            let mut worker = Worker::begin(&engine);
            worker.note(&engine, open.no()).expect("noted");
            assert_eq!(is_synced.load(Ordering::Relaxed), !is_old);
            // While a process changes the file, nobody knows how old its data are.
            engine.records.get(open.no()).own().open(crate::engine::own_stamp::Writer::LockHolder);
            worker.note(&engine, open.no()).expect("noted");
            assert!(is_synced.load(Ordering::Relaxed));
        }
    }
}
