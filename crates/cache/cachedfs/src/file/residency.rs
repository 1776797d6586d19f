//! Where the pages of a file are, and taking them out of the cache.

use std::ops::Range;

use datapath::engine::{Residency, ResidencyPart};

use super::File;
use crate::error::Error;

impl File {
    /// Returns where the pages of the file are, as a whole and by `parts` parts of equal length. None: the file is not cached.
    ///
    /// # Errors
    /// Those of opening the file in a forked process.
    pub fn residency(&self, parts: usize) -> Result<Option<Residency>, Error> {
        Ok(self.cached_path("looking for its pages")?.map(|cached| cached.open.residency(parts)))
    }

    /// Returns where the pages of a range of bytes are. None: the file is not cached.
    ///
    /// # Errors
    /// As `residency`.
    pub fn residency_in(&self, range: Range<u64>) -> Result<Option<ResidencyPart>, Error> {
        Ok(self.cached_path("looking for its pages")?.map(|cached| cached.open.residency_in(range)))
    }

    /// Drops clean pages of a range of bytes from memory, so that the next read may bring them to the SSD.
    ///
    /// # Errors
    /// EIO: another process has stopped in the middle of a change.
    pub fn release(&self, range: Range<u64>) -> Result<(), Error> {
        match self.cached_path("releasing pages")? {
            Some(cached) => cached.open.release(range).map_err(|errno| self.to_error("releasing pages", errno)),
            None => Ok(()),
        }
    }

    /// Writes dirty pages back, and removes all pages of the file from the cache's memory and SSD.
    ///
    /// # Errors
    /// As `clean`: dirty pages that cannot be written stay.
    pub fn evict(&self) -> Result<(), Error> {
        match self.cached_path("evicting")? {
            Some(cached) => cached.open.evict().map_err(|errno| self.to_error("evicting", errno)),
            None => Ok(()),
        }
    }
}
