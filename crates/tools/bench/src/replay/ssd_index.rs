//! The index of the SSD cache, over a device that discards all data.

use ssdcache::{CacheError, CacheStats, DevicePage, FileKey, Item, LookupResult, Page, PageIndex, PageVersion, Shape, SsdCache, recover};

const UUID: [u8; 16] = [1; 16];
/// Content of every page: irrelevant here.
const BYTES: Page = [0; ssdcache::PAGE_BYTES];
/// All pages are of one file.
const KEY: FileKey = FileKey(1);
/// Number of segments, if they may be so small: each matters, and ages differ.
const SEGMENTS: u32 = 64;

/// [`SsdCache`] with the duties of its owner: seal, flush, reclaim, reinsert hot pages.
#[derive(Debug)]
pub struct SsdIndex {
    cache: SsdCache,
    hot: Vec<Item>,
}

impl SsdIndex {
    /// Creates an index of at most `slots` slots, in whole segments.
    ///
    /// # Errors
    /// Too few or too many slots.
    pub fn new(slots: u32) -> anyhow::Result<SsdIndex> {
        let segment_pages = (slots / SEGMENTS).clamp(8, 2048);
        let shape = Shape { segment_pages, segments: slots / segment_pages };
        let first = SsdCache::format(UUID, shape);
        let read = |wanted: &[DevicePage], each: &mut dyn FnMut(usize, &Page)| {
            for (at, page) in wanted.iter().enumerate() {
                each(at, first.get(page.0 as usize).unwrap_or(&BYTES));
            }
        };
        let (mut cache, _) = recover(shape.device_pages(), Some(UUID), 1, None, &[], read)?;
        cache.superblock(&mut BYTES.clone());
        cache.superblock_written();
        Ok(SsdIndex { cache, hot: Vec::new() })
    }

    /// Reads a page. Returns whether it was a hit.
    pub fn read(&mut self, page: u64) -> bool {
        match self.cache.lookup(KEY, PageIndex(page)) {
            LookupResult::Hit(item) | LookupResult::Pending(item) => {
                self.cache.touch(&item);
                true
            }
            LookupResult::Miss => false,
        }
    }

    /// Inserts a clean page.
    ///
    /// # Errors
    /// The page cannot be cached.
    pub fn put(&mut self, page: u64) -> Result<(), CacheError> {
        self.ahead()?;
        self.until_taken(|cache| cache.put(KEY, PageIndex(page), PageVersion::Clean, &BYTES).map(drop))
    }

    /// Returns whether there is free space; see [`SsdCache::has_room`].
    pub fn has_room(&self) -> bool {
        self.cache.has_room()
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> u32 {
        self.cache.shape().slots()
    }

    /// Returns the counters of writes.
    pub fn stats(&self) -> CacheStats {
        self.cache.stats()
    }

    /// Frees the next segment before it is needed: hot pages are reinserted, the others are evicted.
    fn ahead(&mut self) -> Result<(), CacheError> {
        while self.cache.is_full() {
            let mut hot = std::mem::take(&mut self.hot);
            self.cache.collect_hot(usize::MAX, &mut hot);
            for item in &hot {
                match self.until_taken(|cache| cache.reinsert(item, &BYTES).map(drop)) {
                    Ok(()) | Err(CacheError::Changed) => {}
                    Err(other) => return Err(other),
                }
            }
            self.hot = hot;
            self.until_taken(|cache| cache.reclaim().map(drop))?;
        }
        Ok(())
    }

    fn until_taken(&mut self, mut call: impl FnMut(&mut SsdCache) -> Result<(), CacheError>) -> Result<(), CacheError> {
        loop {
            let Err(refused) = call(&mut self.cache) else { return Ok(()) };
            match refused {
                CacheError::Seal => self.seal(),
                CacheError::Flush => {
                    self.seal();
                    let began = self.cache.flush_begins();
                    self.cache.flush_ended(began, true);
                }
                CacheError::Superblock => {
                    self.cache.superblock(&mut BYTES.clone());
                    self.cache.superblock_written();
                }
                // Reinserted hot pages may fill the next segment at once.
                CacheError::Reclaim => drop(self.cache.reclaim()?),
                other => return Err(other),
            }
        }
    }

    fn seal(&mut self) {
        if let Some(sealed) = self.cache.seal(&mut BYTES.clone()) {
            self.cache.ended(sealed.stamp, true);
        }
    }
}
