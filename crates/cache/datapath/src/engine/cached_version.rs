//! Reading what the cache has of a file whose attributes are known, without opening the backing file.
//!
//! Where the backing file system is far away, each call to it takes longer than the read, and while it does not reply there is no other.
//!
//! A version is a length and the times of the last changes. What is cached of another version, or is newer than the backing file, is not
//! read here.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use ssdcache::{FileKey, Mode, PAGE_BYTES, ViewLookup};

use super::CacheEngine;
use super::dirty_records::NO_RECORD;
use super::not_open::NotOpen;
use super::open::Open;
use super::record::{FileNo, PATH_MAX, Record, flag};
use super::request::RequestKind;
use super::stamp::Stamp;
use super::stream::Stream;

/// What the cache has of one version of a file.
pub struct CachedVersion {
    open: Open,
    stamp: Stamp,
}

/// Returns a number for a version of a file, which the leader compares: a request has no room for more. The change time is left out, as
/// when the leader compares a file after a restart.
pub(crate) fn version_of(stamp: Stamp) -> u64 {
    (stamp.mtime as u64) ^ stamp.size.rotate_left(40)
}

/// Returns whether a record has clean pages of this version, or none.
fn is_of_version(record: Record<'_>, stamp: Stamp) -> bool {
    const OTHERWISE: u32 = flag::UNLINKED | flag::STRANDED | flag::OWED | flag::UNCOMPARED | flag::PUNCHING | flag::DIRTY_ON_SSD;
    !record.has(OTHERWISE)
        && record.truncations().load(Ordering::Acquire).is_multiple_of(2)
        && record.past().load(Ordering::SeqCst) == 0
        && record.size().load(Ordering::Acquire) == stamp.size
        && !record.own().is_open()
        && record.own().get() == stamp
}

impl CacheEngine {
    /// Returns what the cache has of a file whose attributes say that it is this version, without a look at the file. `path` is where the
    /// file is. None: the cache has nothing of that version, or has newer data; open the file.
    pub fn cached_version(self: &Arc<Self>, key: FileKey, path: &Path, mode: Mode, stamp: Stamp) -> Option<CachedVersion> {
        use std::os::unix::ffi::OsStrExt;
        if key.0 == 0 || path.as_os_str().as_bytes().len() > PATH_MAX || self.header.ssd_failed() != 0 {
            return None;
        }
        let (no, is_new) = self.record_of_version(key, path, mode, stamp)?;
        let below = Arc::new(NotOpen { stamp, error: Errno::STALE });
        let record = self.records.kept(no);
        let version = CachedVersion { open: Open { engine: Arc::clone(self), no, key, record, below, stream: Stream::default() }, stamp };
        if is_new {
            self.ask(RequestKind::Open, no, 0, 0).ok()?;
        }
        version.is_current().then_some(version)
    }

    /// Returns the record of a file, if what is cached of it is this version, and whether it was made now. The record is kept until
    /// [`CacheEngine::close_unopened`].
    fn record_of_version(&self, key: FileKey, path: &Path, mode: Mode, stamp: Stamp) -> Option<(FileNo, bool)> {
        let has_version = || self.ask(RequestKind::Version, NO_RECORD, key.0, version_of(stamp)) == Ok(1);
        let is_on_ssd = self.records.find(key).is_none() && self.view.is_some() && has_version();
        let _held = self.lock_records().ok()?;
        let mut opens = self.opens.lock();
        let found = self.records.find(key);
        let no = match found {
            Some(no) => Some(no).filter(|no| is_of_version(self.records.get(*no), stamp)),
            None if is_on_ssd => self.free_record(key, &opens),
            // A record that was found at first may have been freed since.
            None => None,
        }?;
        let record = self.records.get(no);
        if found.is_none() {
            record.begin(key, path, stamp, mode);
        }
        record.used().store(self.world.now_ms(), Ordering::Relaxed);
        record.set_open_by(self.me);
        opens.entry(no).or_default().add(false);
        Some((no, found.is_none()))
    }
}

impl CachedVersion {
    /// Reads at byte `at`, as pread does. None: the cache does not have all of it, or has another version by now.
    pub fn read(&self, at: u64, to: &mut [u8]) -> Option<usize> {
        let len = to.len().min(usize::try_from(self.stamp.size.saturating_sub(at)).unwrap_or(usize::MAX));
        if !self.is_current() || !self.has_all(at, len) {
            return None;
        }
        let read = self.open.read(at, &mut to[..len]).ok()?;
        // Another program may have changed the file, or a process of the instance cut it, since the read began.
        (read == len && self.is_current()).then_some(read)
    }

    /// Returns the file as one that is not open.
    pub(super) fn as_open(&self) -> &Open {
        &self.open
    }

    /// Returns whether the version is the one that all processes of the instance use.
    fn is_current(&self) -> bool {
        let open = &self.open;
        let is_used = open.check().is_ok() && is_of_version(open.record(), self.stamp) && !open.bypasses_cache();
        let is_registered = open.engine.view.is_none() || open.record().on_ssd().is_some();
        is_used && is_registered && open.engine.header.ssd_failed() == 0
    }

    /// Returns whether all pages of a range are in memory or on the SSD.
    fn has_all(&self, at: u64, len: usize) -> bool {
        let page = PAGE_BYTES as u64;
        let pages = at / page..(at + len as u64).div_ceil(page);
        let has = |page| self.open.engine.pages.contains(self.open.name(page)) || matches!(self.open.look_on_ssd(page), ViewLookup::Hit(_));
        len == 0 || pages.into_iter().all(has)
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::engine::{BackingFile, OpenOptions};
    use crate::test_engine::{File, lead, lead_with_ssd, restart};

    const KEY: FileKey = FileKey(7);

    fn version(engine: &Arc<CacheEngine>, stamp: Stamp) -> Option<CachedVersion> {
        engine.cached_version(KEY, Path::new("/file"), Mode::WriteThrough, stamp)
    }

    /// Returns what a version has of a range.
    fn read(engine: &Arc<CacheEngine>, stamp: Stamp, at: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0xee; len];
        let read = version(engine, stamp)?.read(at, &mut bytes)?;
        bytes.truncate(read);
        Some(bytes)
    }

    fn opened(engine: &Arc<CacheEngine>, file: &Arc<File>, mode: Mode) -> Open {
        let options = OpenOptions { mode, ..OpenOptions::default() };
        engine.open(KEY, Path::new("/file"), options, Arc::clone(file) as Arc<dyn BackingFile>).expect("opened")
    }

    #[test]
    fn what_is_in_memory_is_read_while_the_attributes_are_those_of_it() {
        let (file, engine, open) = lead(Mode::WriteThrough);
        open.write(0, &[1; 9000]).expect("written");
        let stamp = file.stamp().expect("known");
        assert_eq!(read(&engine, stamp, 0, 9000).as_deref(), Some(&[1; 9000][..]));
        // At and behind the end.
        assert_eq!(read(&engine, stamp, 8999, 10).as_deref(), Some(&[1][..]));
        assert_eq!(read(&engine, stamp, 9000, 10).as_deref(), Some(&[][..]));
        assert_eq!(read(&engine, stamp, u64::MAX, 10).as_deref(), Some(&[][..]));
        for other in [Stamp { size: 9001, ..stamp }, Stamp { mtime: 0, ..stamp }, Stamp { ctime: 0, ..stamp }] {
            assert!(version(&engine, other).is_none());
        }
        // A file that nobody has open keeps its pages; one that the cache does not know has none.
        drop(open);
        assert_eq!(read(&engine, stamp, 4096, 1).as_deref(), Some(&[1][..]));
        assert!(engine.cached_version(FileKey(8), Path::new("/other"), Mode::WriteThrough, stamp).is_none());
    }

    #[test]
    fn a_version_ends_with_the_next_write() {
        let (file, engine, open) = lead(Mode::WriteThrough);
        open.write(0, &[1; 9000]).expect("written");
        let old = file.stamp().expect("known");
        let version = version(&engine, old).expect("there");
        open.write(0, &[2; 10]).expect("written");
        let mut byte = [0];
        assert_eq!(version.read(0, &mut byte), None);
        assert_eq!(version.read(8000, &mut byte), None);
        assert_eq!(read(&engine, file.stamp().expect("known"), 0, 1).as_deref(), Some(&[2][..]));
        // And with a truncation.
        let old = file.stamp().expect("known");
        let version = super::test::version(&engine, old).expect("there");
        open.set_len(5).expect("cut");
        assert_eq!(version.read(0, &mut byte), None);
    }

    #[test]
    fn pages_that_the_cache_does_not_have_are_not_read() {
        let (file, engine, open) = lead(Mode::WriteThrough);
        file.write_at(0, &[3; 9000]).expect("written");
        drop(open);
        let open = opened(&engine, &file, Mode::WriteThrough);
        let stamp = file.stamp().expect("known");
        let mut page = [0; 10];
        open.read(4096, &mut page).expect("read");
        engine.drop_frames(open.no(), 0..1).expect("dropped");
        assert_eq!(read(&engine, stamp, 0, 10), None);
        assert_eq!(read(&engine, stamp, 4090, 10), None);
        assert_eq!(read(&engine, stamp, 4096, 10).as_deref(), Some(&[3; 10][..]));
    }

    #[test]
    fn unwritten_data_are_left_to_those_who_open_the_file() {
        let (file, engine, open) = lead_with_ssd(Mode::WriteBack);
        open.write(0, &[5; 9000]).expect("written");
        open.clean().expect("written back");
        let stamp = file.stamp().expect("known");
        open.write(0, &[6; 10]).expect("written");
        open.sync().expect("synced");
        let no = open.no();
        drop(open);
        restart(&engine, no);
        assert!(version(&engine, stamp).is_none());
        assert!(!engine.records.find(KEY).is_some_and(|no| engine.records.get(no).has(flag::CONFLICT)));
        let mut bytes = [0; 10];
        opened(&engine, &file, Mode::WriteBack).read(0, &mut bytes).expect("read");
        assert_eq!(bytes, [6; 10]);
    }

    #[test]
    fn a_version_takes_no_part_in_what_becomes_of_the_data() {
        let (file, engine, open) = lead(Mode::WriteBack);
        open.write(0, &[1; 100]).expect("written");
        open.clean().expect("written back");
        let version = version(&engine, file.stamp().expect("known")).expect("there");
        // The length stays, and so does the stamp: what was written is read.
        open.write(0, &[2; 10]).expect("written");
        let mut byte = [0];
        assert_eq!((version.read(0, &mut byte), byte), (Some(1), [2]));
        let no = open.no();
        drop(open);
        assert!(engine.records.get(no).has(flag::HELD), "the last one that has it open gives it to the leader");
        // Nor in how others use the file.
        let open = opened(&engine, &file, Mode::WriteThrough);
        assert_eq!(open.mode(), Mode::WriteThrough);
        drop(open);
        assert_eq!(opened(&engine, &file, Mode::WriteBack).mode(), Mode::WriteBack);
        drop(version);
        assert_eq!(engine.records.get(no).open_by().load(Ordering::Acquire), 0);
    }

    #[test]
    fn a_removed_file_goes_with_the_last_one_that_has_it_open() {
        let (file, engine, open) = lead(Mode::WriteThrough);
        open.write(0, &[1; 100]).expect("written");
        let version = version(&engine, file.stamp().expect("known")).expect("there");
        open.unlinked();
        file.is_gone.store(true, Ordering::Relaxed);
        assert_eq!(version.read(0, &mut [0; 10]), None);
        drop(version);
        let no = open.no();
        assert!(engine.records.get(no).has(flag::UNLINKED));
        drop(open);
        assert!(!engine.pages.has_pages(pagecache::FileNo(no.0)));
    }
}
