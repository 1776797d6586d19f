//! Writes to the log of a cache that no process uses, synchronously.

use datapath::engine::CATALOGUE;
use rustix::io::Errno;
use ssdcache::{CacheError, Item, PAGE_BYTES, Page, PutResult, SsdCache, Stamp};

use super::disk::Disk;
use crate::error::{Error, Kind};

/// Refusals in a row that show an error in the metadata.
const TRIES: u32 = 64;

/// The log of a cache SSD, open for writing.
pub(super) struct Log<'a> {
    disk: &'a Disk,
    pub(super) cache: &'a mut SsdCache,
    /// The pages of the open batch.
    pages: Vec<u8>,
    summary: Box<Page>,
}

impl<'a> Log<'a> {
    /// Begins a life: its superblock is written.
    pub(super) fn open(disk: &'a Disk, cache: &'a mut SsdCache) -> Result<Log<'a>, Error> {
        let mut log = Log { disk, cache, pages: Vec::new(), summary: Box::new([0; PAGE_BYTES]) };
        log.superblock()?;
        Ok(log)
    }

    /// Puts a page, whatever has to be done before.
    pub(super) fn put(&mut self, bytes: &Page, mut put: impl FnMut(&mut SsdCache) -> Result<PutResult, CacheError>) -> Result<(), Error> {
        self.again(|cache| put(cache).map(|_| ()))?;
        self.pages.extend_from_slice(bytes);
        Ok(())
    }

    pub(super) fn drop_page(&mut self, item: &Item) -> Result<(), Error> {
        self.again(|cache| cache.invalidate(item.key, item.page.0..item.page.0 + 1).map(|_| ()))
    }

    /// All that was put is durable.
    pub(super) fn end(&mut self) -> Result<(), Error> {
        self.seal()?;
        self.flush()
    }

    fn again(&mut self, mut call: impl FnMut(&mut SsdCache) -> Result<(), CacheError>) -> Result<(), Error> {
        for _ in 0..TRIES {
            match call(self.cache) {
                Ok(()) => return Ok(()),
                Err(CacheError::Seal) => self.seal()?,
                Err(CacheError::Flush | CacheError::InFlight) => self.flush()?,
                Err(CacheError::Superblock) => {
                    self.seal()?;
                    self.superblock()?;
                }
                Err(CacheError::Reclaim) => {
                    self.cache.reclaim().map_err(|why| self.refused(why))?;
                }
                Err(why) => return Err(self.refused(why)),
            }
        }
        Err(self.refused(CacheError::Failed))
    }

    fn refused(&self, why: CacheError) -> Error {
        let what = match why {
            CacheError::Dirty => "what is dirty does not fit: `hotshelf cache flush` first".to_owned(),
            CacheError::NotCacheable => "it holds pages of more files than it can".to_owned(),
            why => format!("its log cannot go on ({why:?})"),
        };
        Error::new(Kind::Device, Errno::NOSPC, format!("{}: {what}", self.disk.path.display()))
    }

    fn seal(&mut self) -> Result<(), Error> {
        let Some(sealed) = self.cache.seal(&mut self.summary) else { return Ok(()) };
        let batch = [&self.summary[..], &self.pages].concat();
        self.pages.clear();
        let written = self.disk.write(sealed.at, &batch);
        self.cache.ended(sealed.stamp, written.is_ok());
        written
    }

    fn flush(&mut self) -> Result<(), Error> {
        let began: Stamp = self.cache.flush_begins();
        let flushed = self.disk.sync();
        self.cache.flush_ended(began, flushed.is_ok());
        flushed
    }

    pub(super) fn superblock(&mut self) -> Result<(), Error> {
        let mut page = [0; PAGE_BYTES];
        let at = self.cache.superblock(&mut page);
        self.disk.write(at, &page)?;
        self.disk.sync()?;
        self.cache.superblock_written();
        Ok(())
    }
}

/// Takes pages out of the log; with `damaged` also what of the log itself is no longer whole.
pub(super) fn repair(disk: &Disk, cache: &mut SsdCache, items: &[Item], damaged: bool) -> Result<(), Error> {
    let mut log = Log::open(disk, cache)?;
    if damaged {
        log.cache.end_segment();
        // Something has to be in the next segment; this page is never there.
        let last = ssdcache::PAGE_INDEX_END - 1;
        log.again(|cache| cache.prepare(1))?;
        log.again(|cache| cache.invalidate(CATALOGUE, last..last + 1).map(|_| ()))?;
    }
    for item in items {
        log.drop_page(item)?;
    }
    log.end()?;
    log.cache.pass_empty_segments();
    log.superblock()
}
