//! The SSD's log as the leader writes it: its metadata (`ssdcache`), and the I/O that the metadata requires.

use std::ops::Range;
use std::sync::Arc;

use block::{Device, Error};
use shm::Region;
use ssdcache::{
    CacheError, CacheOpenError, DevicePage, FileKey, Item, LookupResult, PAGE_BYTES, Page, PageIndex, PageVersion, RecoveryResult,
    SsdCache, VerifyResult, recover,
};

use super::catalogue::CATALOGUE;
use super::counters::{Count, Counters, Tier};
use super::ssd::{BATCH_PAGES, Disk, QUEUE_PAGES, SsdQueue, SsdQueues};

/// The reason why the log refused an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// The oldest segment must be reclaimed first: its dirty pages written back, its hot pages inserted again.
    Room,
    /// The page cannot be cached.
    Never,
    /// A clean version would replace a dirty one, or the page moved.
    Changed,
    /// The SSD failed.
    Failed(Error),
}

/// How often refusals of one operation are resolved before it fails. The metadata cycles through a few states; more refusals mean that
/// another process overwrote the map.
const RESOLVED: usize = 256;
const STUCK: Stop = Stop::Failed(Error::Media);

pub(crate) struct Log {
    pub(crate) cache: SsdCache,
    /// None: the SSD cannot be opened, and only its metadata is known.
    disk: Option<Disk>,
    /// The pages of the open batch, in the order of insertion.
    batch: Vec<Box<Page>>,
    spare: Vec<Box<Page>>,
    counters: Counters,
    /// Whether anything was written since the last flush.
    unflushed: bool,
    /// Whether a segment was reclaimed, and no later write records it: after a crash its pages would be valid again.
    unrecorded: bool,
}

/// The reason why the log was not opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenLog {
    #[error("{0}")]
    Device(#[from] block::OpenError),
    #[error("{0}")]
    Unusable(#[from] CacheOpenError),
    #[error("{0}")]
    Failed(Error),
}

impl Log {
    /// Opens the log and recovers its metadata. `readers`: queues for recovery, which reads many pages at once. If the process dies in
    /// such a read nothing is left behind.
    pub(crate) fn open(
        device: &dyn Device,
        readers: Option<&SsdQueues>,
        files: u32,
        published: (&Arc<Region>, usize),
        held: &[(FileKey, u32)],
        counters: Counters,
    ) -> Result<(Log, RecoveryResult), OpenLog> {
        let mut disk = Disk::open(device)?;
        let pages = disk.pages();
        let mut scattered = Scattered {
            ssd_queue: readers.and_then(|ssd_queues| SsdQueue::open(ssd_queues.device()).ok()),
            bytes: Box::new([0; PAGE_BYTES]),
        };
        let read = |places: &[DevicePage], each: &mut dyn FnMut(usize, &Page)| scattered.read(&mut disk, places, each);
        let (cache, found) = recover(pages, None, files, Some(published), held, read)?;
        let mut log = Log { cache, disk: Some(disk), batch: Vec::new(), spare: Vec::new(), counters, unflushed: false, unrecorded: false };
        if found.suspect.is_empty() && found.unknown == 0 {
            log.superblock().map_err(OpenLog::Failed)?;
        }
        Ok((log, found))
    }

    /// Opens the log of a failed SSD from the map that the last leader published; pages are read as far as possible. Also returns the
    /// number of dirty pages of files that cannot be named.
    pub(crate) fn of_failed(
        device: Option<&dyn Device>,
        files: u32,
        published: (&Arc<Region>, usize),
        held: &[(FileKey, u32)],
        counters: Counters,
    ) -> Result<(Log, u64), CacheOpenError> {
        let (cache, unknown) = SsdCache::of_published(published.0, published.1, files, held)?;
        let disk = device.and_then(|device| Disk::open(device).ok());
        Ok((Log { cache, disk, batch: Vec::new(), spare: Vec::new(), counters, unflushed: false, unrecorded: false }, unknown))
    }

    fn disk(&mut self) -> Result<&mut Disk, Error> {
        self.disk.as_mut().ok_or(Error::Gone)
    }

    fn superblock(&mut self) -> Result<(), Error> {
        let mut page = [0; PAGE_BYTES];
        let at = self.cache.superblock(&mut page);
        self.disk()?.write(at, &[&page])?;
        self.disk()?.flush()?;
        self.unrecorded = false;
        self.counters.add(Count::SsdWritten, PAGE_BYTES as u64);
        self.cache.superblock_written();
        Ok(())
    }

    /// Does what a refusal requires, unless the log cannot do it alone.
    pub(crate) fn resolve(&mut self, refused: CacheError) -> Result<(), Stop> {
        match refused {
            CacheError::Seal => self.seal(),
            CacheError::Flush | CacheError::InFlight => self.flush(),
            CacheError::Superblock => {
                self.seal()?;
                self.superblock().map_err(Stop::Failed)
            }
            CacheError::Reclaim => Err(Stop::Room),
            CacheError::Failed => Err(Stop::Failed(Error::Media)),
            CacheError::Dirty | CacheError::Changed => Err(Stop::Changed),
            CacheError::NotCacheable => Err(Stop::Never),
        }
    }

    fn keep(&mut self, bytes: &Page) {
        let mut page = self.spare.pop().unwrap_or_else(|| Box::new([0; PAGE_BYTES]));
        *page = *bytes;
        self.batch.push(page);
    }

    /// Puts a page into the open batch.
    pub(crate) fn put(&mut self, key: FileKey, page: PageIndex, version: PageVersion, bytes: &Page) -> Result<(), Stop> {
        for _ in 0..RESOLVED {
            match self.cache.put(key, page, version, bytes) {
                Ok(_) => {
                    self.keep(bytes);
                    if key != CATALOGUE {
                        self.counters.add(Count::SsdData, PAGE_BYTES as u64);
                    }
                    return Ok(());
                }
                Err(refused) => self.resolve(refused)?,
            }
        }
        Err(STUCK)
    }

    /// Puts a page of the catalogue while room is being made: it may use the last free segment.
    pub(crate) fn put_own(&mut self, page: PageIndex, bytes: &Page) -> Result<(), Stop> {
        for _ in 0..RESOLVED {
            match self.cache.put_own(page, bytes) {
                Ok(_) => {
                    self.keep(bytes);
                    return Ok(());
                }
                Err(refused) => self.resolve(refused)?,
            }
        }
        Err(STUCK)
    }

    /// Invalidates pages of a file.
    pub(crate) fn drop_pages(&mut self, key: FileKey, pages: Range<u64>) -> Result<(), Stop> {
        for _ in 0..RESOLVED {
            match self.cache.invalidate(key, pages.clone()) {
                Ok(None) => return Ok(()),
                Ok(Some(_)) => {
                    self.unflushed = true;
                    return Ok(());
                }
                Err(refused) => self.resolve(refused)?,
            }
        }
        Err(STUCK)
    }

    /// Reserves room for `drops` invalidations. Call it before newer bytes are written to the backing file.
    pub(crate) fn prepare(&mut self, drops: usize) -> Result<(), Stop> {
        for _ in 0..RESOLVED {
            match self.cache.prepare(drops) {
                Ok(()) => return Ok(()),
                Err(refused) => self.resolve(refused)?,
            }
        }
        Err(STUCK)
    }

    /// Returns the number of pages in the open batch.
    pub(crate) fn waiting(&self) -> usize {
        self.batch.len()
    }

    /// Writes the open batch.
    pub(crate) fn seal(&mut self) -> Result<(), Stop> {
        let mut summary = [0; PAGE_BYTES];
        let Some(sealed) = self.cache.seal(&mut summary) else { return Ok(()) };
        assert_eq!(self.batch.len(), sealed.pages as usize, "a batch and its metadata");
        let mut pages: Vec<&Page> = Vec::with_capacity(BATCH_PAGES);
        pages.push(&summary);
        pages.extend(self.batch.iter().map(|page| &**page));
        let begun = std::time::Instant::now();
        let written = self.disk.as_mut().ok_or(Error::Gone).and_then(|disk| disk.write(sealed.at, &pages));
        self.counters.write_took(Tier::Ssd, begun.elapsed().as_nanos() as u64);
        self.counters.add(Count::SsdWritten, (pages.len() * PAGE_BYTES) as u64);
        self.spare.append(&mut self.batch);
        self.unflushed = true;
        self.cache.ended(sealed.stamp, written.is_ok());
        self.unrecorded &= written.is_err();
        written.map_err(Stop::Failed)
    }

    /// Reclaims the oldest segment.
    pub(crate) fn reclaim(&mut self) -> Result<(), CacheError> {
        self.cache.reclaim()?;
        self.unrecorded = true;
        Ok(())
    }

    /// Returns whether a crash could make pages valid again that the metadata no longer has.
    pub(crate) fn is_unrecorded(&self) -> bool {
        self.unrecorded
    }

    /// Makes all earlier insertions, invalidations and reclaims durable.
    pub(crate) fn flush(&mut self) -> Result<(), Stop> {
        self.seal()?;
        if self.unrecorded {
            self.unflushed = true;
            self.superblock().map_err(Stop::Failed)?;
        }
        if !self.unflushed {
            return Ok(());
        }
        let began = self.cache.flush_begins();
        let flushed = self.disk().and_then(Disk::flush);
        self.counters.add(Count::SsdFlushes, 1);
        self.cache.flush_ended(began, flushed.is_ok());
        flushed.map_err(Stop::Failed)?;
        self.unflushed = false;
        Ok(())
    }

    /// Reads a page from the open batch or the device. None: it is not there, or bad.
    pub(crate) fn read(&mut self, key: FileKey, page: PageIndex) -> Option<Box<Page>> {
        let item = match self.cache.lookup(key, page) {
            LookupResult::Miss => return None,
            LookupResult::Hit(item) => item,
            LookupResult::Pending(_) => {
                self.seal().ok()?;
                let LookupResult::Hit(item) = self.cache.lookup(key, page) else { return None };
                item
            }
        };
        self.read_item(&item).ok()
    }

    /// Reads the page of an item, as [`Log::read`] does.
    pub(crate) fn read_item(&mut self, item: &Item) -> Result<Box<Page>, VerifyResult> {
        let mut bytes = Box::new([0; PAGE_BYTES]);
        if self.disk().and_then(|disk| disk.read(item.at, &mut bytes[..])).is_err() {
            return Err(VerifyResult::Bad);
        }
        self.counters.add(Count::SsdRead, PAGE_BYTES as u64);
        match self.cache.verify(item, &bytes) {
            VerifyResult::Good => Ok(bytes),
            other => Err(other),
        }
    }

    /// Reads items, adjacent ones in one request. An entry is None if its page could not be read or has changed.
    pub(crate) fn read_items(&mut self, items: &[Item]) -> Vec<Option<Box<Page>>> {
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by_key(|n| items[*n].at);
        let places: Vec<_> = order.iter().map(|n| items[*n].at).collect();
        let mut pages: Vec<Option<Box<Page>>> = items.iter().map(|_| None).collect();
        if let Some(disk) = &mut self.disk {
            read_many(disk, &places, &mut |n, page| pages[order[n]] = Some(Box::new(*page)));
        }
        self.counters.add(Count::SsdRead, (items.len() * PAGE_BYTES) as u64);
        for (item, page) in items.iter().zip(&mut pages) {
            if page.as_ref().is_some_and(|page| self.cache.verify(item, page) != VerifyResult::Good) {
                *page = None;
            }
        }
        pages
    }

    /// Inserts a page of the oldest segment again.
    pub(crate) fn reinsert(&mut self, item: &Item, bytes: &Page) -> Result<(), Stop> {
        for _ in 0..RESOLVED {
            match self.cache.reinsert(item, bytes) {
                Ok(_) => {
                    self.keep(bytes);
                    return Ok(());
                }
                Err(refused) => self.resolve(refused)?,
            }
        }
        Err(STUCK)
    }
}

/// The minimum number of adjacent pages to read in one request rather than in parallel.
const PIECE_MIN: usize = 8;

/// Reads scattered pages in parallel: recovery waits for the device's latency once for many of them.
struct Scattered {
    ssd_queue: Option<SsdQueue>,
    bytes: Box<Page>,
}

impl Scattered {
    /// Calls `each` with each page that can be read, in any order.
    fn read(&mut self, disk: &mut Disk, places: &[DevicePage], each: &mut dyn FnMut(usize, &Page)) {
        let mut alone = Vec::with_capacity(places.len());
        let mut at = 0;
        while at < places.len() {
            let count = neighbours(&places[at..]);
            if count >= PIECE_MIN || self.ssd_queue.is_none() {
                read_many(disk, &places[at..at + count], &mut |n, page| each(at + n, page));
            } else {
                alone.extend(at..at + count);
            }
            at += count;
        }
        for numbers in alone.chunks(QUEUE_PAGES) {
            self.read_alone(disk, places, numbers, each);
        }
    }

    fn read_alone(&mut self, disk: &mut Disk, places: &[DevicePage], numbers: &[usize], each: &mut dyn FnMut(usize, &Page)) {
        let Some(ssd_queue) = &mut self.ssd_queue else { return };
        let wanted: Vec<DevicePage> = numbers.iter().map(|n| places[*n]).collect();
        let mut failed = Vec::new();
        ssd_queue.read(&wanted, &mut self.bytes, |n, read| match read {
            Ok(page) => each(numbers[n], page),
            Err(_) => failed.push(numbers[n]),
        });
        // Pages that fail through the queue may be readable by the other driver.
        for n in failed {
            read_many(disk, &places[n..=n], &mut |_, page| each(n, page));
        }
    }
}

/// Returns how many of the first places are adjacent on the device, at most the pages of one read.
fn neighbours(places: &[DevicePage]) -> usize {
    let Some(first) = places.first() else { return 0 };
    places.iter().take(BATCH_PAGES).zip(first.0..).take_while(|(place, wanted)| place.0 == *wanted).count()
}

/// Reads pages in the given order, adjacent ones in one request. If a request fails, its pages are read one by one.
fn read_many(disk: &mut Disk, places: &[DevicePage], each: &mut dyn FnMut(usize, &Page)) {
    let mut bytes = vec![0; BATCH_PAGES * PAGE_BYTES];
    let mut at = 0;
    while at < places.len() {
        let count = neighbours(&places[at..]);
        let piece = &mut bytes[..count * PAGE_BYTES];
        let whole = disk.read(places[at], piece).is_ok();
        for n in 0..count {
            let one = &mut bytes[n * PAGE_BYTES..(n + 1) * PAGE_BYTES];
            if whole || disk.read(places[at + n], one).is_ok() {
                each(at + n, (&*one).try_into().expect("a page"));
            }
        }
        at += count;
    }
}
