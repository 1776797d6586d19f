//! Reads of files that no call to the slow side has opened, from what the cache has of the version that their attributes tell of.
//!
//! So a program reads what is cached without waiting for the slow side, and also while that does not reply.

use cachedfs::{CachedVersion, KnownFile, Options};
use directoryfs::Stat;
use fusedev::Caller;
use rustix::io::Errno;

use super::CachedShared;
use super::open_file::{O_ACCMODE, OpenCachedFile};
use crate::cached::kernel_pages::OpenFilePages;
use crate::cached::name_checks;
use crate::cached::open_handle::{OpenHandle, PromisedOpen};

/// What the cache has of a file that is not open below.
pub struct UnopenedReads {
    version: CachedVersion,
    pages: OpenFilePages,
}

impl UnopenedReads {
    /// Reads all of `to`, or to the end of the file. None: the cache does not have it, or has another version by now. `direct`: the kernel
    /// does not keep the pages.
    pub fn read(&self, offset: u64, to: &mut [u8], direct: bool) -> Option<usize> {
        if !direct {
            self.pages.has_pages();
        }
        self.version.read_at(offset, to)
    }
}

impl CachedShared {
    /// Replies to an open(2) for reading by what is remembered of the file, if that is fresh or the slow side does not reply. The file is
    /// opened when the kernel wants to read what neither it nor the cache has. Returns also whether the kernel may keep its pages.
    pub fn promise(&self, caller: Caller, number: u64, flags: i32) -> Option<(PromisedOpen, bool)> {
        if flags & O_ACCMODE != 0 {
            return None;
        }
        let stat = self.attributes_for_open(caller, number)?;
        if !stat.is_file() || stat.dev != self.device || self.fs.may_open_with(caller, &stat, true, false).is_err() {
            return None;
        }
        let open = PromisedOpen { caller, number, flags, stat, _held: self.fs.held(number) };
        Some((open, self.fs.is_cached(number, &stat)))
    }

    /// Returns remembered attributes by which a file may be opened: close-to-open, as NFS has it, wants those of now, as long as the slow
    /// side replies.
    fn attributes_for_open(&self, caller: Caller, number: u64) -> Option<Stat> {
        if self.side.is_away() {
            return self.fs.old_attributes(number);
        }
        if let Some(stat) = self.fs.fresh_attributes(number) {
            return Some(stat);
        }
        // One question to the slow side instead of the three or more of an open.
        self.fs.check_file(caller, number, &mut |change| name_checks::tell(self, change)).ok()?;
        self.fs.fresh_attributes(number)
    }

    /// Reads from the cache alone, if the file is not open and somebody has looked for what the cache has of it.
    pub fn read_found(handle: &OpenHandle<OpenCachedFile, UnopenedReads>, offset: u64, to: &mut [u8], direct: bool) -> Option<usize> {
        handle.version()?.read(offset, to, direct)
    }

    /// Reads from an open file. One that is not open is read from the cache alone, as far as that has it, or else opened.
    pub fn read_handle(
        &self,
        handle: &OpenHandle<OpenCachedFile, UnopenedReads>,
        offset: u64,
        to: &mut [u8],
        direct: bool,
    ) -> Result<usize, Errno> {
        let unopened = handle.find_version(|promised| self.find_version(promised));
        if let Some(read) = unopened.and_then(|reads| reads.read(offset, to, direct)) {
            return Ok(read);
        }
        if self.side.is_away() && handle.get().is_none() {
            return Err(Errno::TIMEDOUT);
        }
        let opened = handle.open(|promised| self.keep_promise(promised))?;
        if !direct {
            opened.pages.has_pages();
        }
        self.read(&opened, offset, to)
    }

    fn find_version(&self, promised: &PromisedOpen) -> Option<UnopenedReads> {
        let PromisedOpen { number, stat, .. } = promised;
        let (key, path) = self.fs.known_data(*number)?;
        let Stat { size, mtime, ctime, .. } = *stat;
        let file = KnownFile { key, path: self.top.join(path), size, mtime, ctime, is_lasting: self.cache.is_lasting() };
        let options = Options { mode: Some(self.mode), ..Options::default() };
        let version = self.instance.cached_version(&file, &options)?;
        Some(UnopenedReads { version, pages: self.pages.read_unopened(*number, &self.direct_writes) })
    }
}
