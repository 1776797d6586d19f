//! Reads of files that no call to the slow side has opened, from what the cache has of the version that their attributes show.
//!
//! So a program reads what is cached without waiting for the slow side, and also while that does not reply.

use std::sync::Arc;
use std::time::Duration;

use cachedfs::{CachedVersion, KnownFile, Options};
use directoryfs::Stat;
use fusedev::Caller;
use rustix::io::Errno;

use super::CachedShared;
use super::open_file::{O_ACCMODE, OpenCachedFile};
use crate::cached::kernel_pages::OpenFilePages;
use crate::cached::open_handle::{OpenHandle, PromisedOpen};

type Handle = OpenHandle<OpenCachedFile, UnopenedReads>;

/// A file that has been read for so long without being open is opened: as long as programs have it, it then stays what it is, whatever
/// others do with its name.
const UNOPENED_MAX: Duration = Duration::from_secs(1);

/// What the cache has of a file that is not open below.
pub struct UnopenedReads {
    version: CachedVersion,
    pages: OpenFilePages,
}

impl UnopenedReads {
    /// Returns whether another process has changed the file since the last call.
    pub fn take_change(&self) -> bool {
        self.version.take_change()
    }
}

/// Starts a thread that opens files that have been read for a second without being open. It ends when nobody uses `shared` any more; nobody
/// waits for that, as the slow side may not reply. Without it (no memory for a thread) they stay so.
pub fn start(shared: &Arc<CachedShared>) {
    if !shared.fs.remembers_names() {
        return;
    }
    let shared = Arc::downgrade(shared);
    let run = move || {
        loop {
            std::thread::sleep(UNOPENED_MAX);
            let Some(shared) = shared.upgrade() else { return };
            shared.open_long_read();
        }
    };
    if let Err(error) = std::thread::Builder::new().name("hotshelf-opens".into()).spawn(run) {
        tracing::warn!(%error, "files that are read from the cache alone are not opened: mount anew without --names");
    }
}

/// Returns what tells two versions of a file apart.
fn version(stat: Stat) -> (u64, (i64, u32), (i64, u32)) {
    (stat.size, stat.mtime, stat.ctime)
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
        if let Some(stat) = self.fs.fresh_attributes(number).filter(|_| self.fs.is_found_again(number)) {
            return Some(stat);
        }
        // One question to the slow side instead of the three or more of an open.
        let old = self.fs.old_attributes(number)?;
        let now = self.fs.look_again(caller, number).ok()??;
        if version(old) != version(now) {
            self.changed.invalidate_attributes(number);
        }
        Some(now)
    }

    /// Reads from an open file. One that is not open is read from the cache alone, as far as that has it, or else opened. `direct`: the
    /// kernel does not keep the pages.
    pub fn read_handle(&self, handle: &Handle, offset: u64, to: &mut [u8], direct: bool) -> Result<usize, Errno> {
        if let Some(read) = self.read_unopened(handle, offset, to, direct) {
            return Ok(read);
        }
        if self.side.is_away() && handle.get().is_none() {
            return Err(Errno::TIMEDOUT);
        }
        let opened = handle.open(|promised| self.keep_promise(promised))?;
        self.look_for_change(&opened.file);
        if !direct {
            opened.pages.has_pages();
        }
        self.read(&opened, offset, to)
    }

    /// Reads all of `to`, or to the end of the file, from the cache alone. None: the file is open, or the cache does not have it, or what
    /// is known of the file now is not what the open was replied to with.
    fn read_unopened(&self, handle: &Handle, offset: u64, to: &mut [u8], direct: bool) -> Option<usize> {
        let (reads, promised) = handle.find_version(|promised| self.find_version(promised))?;
        // A later look may have shown the kernel another version, with whose pages these must not mix. A request that was sent before
        // that look keeps its pages locked until the kernel drops them.
        let is_current = || self.fs.old_attributes(promised.number).map(version) == Some(version(promised.stat));
        if !is_current() {
            return None;
        }
        if !direct {
            reads.pages.has_pages();
        }
        reads.version.read_at(offset, to).filter(|_| is_current())
    }

    /// Opens the files that have been read for a second without being open, while the slow side replies.
    fn open_long_read(&self) {
        // One after the other, as a handle that is closed meanwhile has to be free.
        for number in self.opened.numbers() {
            let Ok(handle) = self.opened.get(number) else { continue };
            if !self.side.is_away() && handle.is_due_to_open(UNOPENED_MAX) {
                // If that fails, the next read that the cache cannot serve says so.
                let _ = handle.open(|promised| self.keep_promise(promised));
            }
        }
    }

    /// Makes the cache tell this process of changes of a file whose pages the kernel keeps, so that it may ask for none.
    pub fn watch_version(&self, handle: &Handle) {
        handle.find_version(|promised| self.find_version(promised));
    }

    fn find_version(&self, promised: &PromisedOpen) -> Option<UnopenedReads> {
        let PromisedOpen { number, stat, .. } = promised;
        let (key, path) = self.fs.known_data(*number)?;
        let Stat { size, mtime, ctime, .. } = *stat;
        let file = KnownFile { key, path: self.top.join(path), size, mtime, ctime, is_lasting: self.fs.cache().is_lasting };
        let options = Options { mode: Some(self.mode), ..Options::default() };
        let version = self.instance.cached_version(&file, &options)?;
        Some(UnopenedReads { version, pages: self.pages.read_unopened(*number, &self.direct_writes) })
    }
}
