//! The page cache of one process.

use pagecache::{Config, FileKey, FileNo, Lookup, PageCache, PageIndex, Purpose, Replacement, Room};

use super::Cache;

/// [`PageCache`], with a frame for each page it may hold. All pages are of one file.
#[derive(Debug)]
pub struct Frames {
    cache: PageCache,
    file: FileNo,
}

impl Frames {
    /// Creates a cache with this number of frames.
    ///
    /// # Errors
    /// No memory.
    pub fn new(frames: u32, replacement: Replacement) -> anyhow::Result<Frames> {
        let config = Config { replacement, free_low: 0, free_high: 0, ..Config::new(frames) };
        let mut cache = PageCache::new(&config)?;
        let Some(file) = cache.open_file(FileKey(1)) else { anyhow::bail!("no room for a file") };
        Ok(Frames { cache, file })
    }
}

impl Cache for Frames {
    fn access(&mut self, page: u64) -> bool {
        match self.cache.lookup(self.file, PageIndex(page)) {
            Lookup::Hit(frame) | Lookup::Filling(frame) => {
                self.cache.touch(frame);
                return true;
            }
            Lookup::Miss => {}
        }
        // Nothing is dirty or pinned, so a frame is always available.
        if let Room::Frame(frame) = self.cache.allocate(self.file, PageIndex(page), Purpose::Demand) {
            self.cache.filled(frame);
        }
        false
    }
}
