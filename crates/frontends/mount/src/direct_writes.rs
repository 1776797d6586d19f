//! Keeps what the kernel caches of a file right beside direct writes.
//!
//! A direct write goes around the kernel's page cache: the file is open with O_DIRECT, or only for writing (see `WRITE_ONLY`). The kernel
//! drops the pages of its range before it, and after it if the caller waits in the system call. After an asynchronous one (io_submit(2),
//! io_uring) it does not (fuse_aio_complete in fs/fuse/file.c of Linux 6.18), nor does it forget attributes that were read while the write
//! was under way. A reader beside it would have old data in the cache, for as long as the file stays there. So the daemon invalidates both,
//! when the data are in the file and before it answers.
//!
//! ```text
//!   reader:  page missing -> READ (old data) .......... -> page in the cache
//!   writer:  pages dropped -> WRITE -> data in the file -> page dropped by us -> answer
//! ```
//!
//! *No deadlock.* An invalidation waits for pages that are locked: by a READ that is under way, or by a write through the page cache that
//! waits for its answer. A direct write holds no page itself, and FUSE_WRITE_LOCKOWNER, which only the kernel's direct way sets
//! (fuse_send_write), tells one from the other. The invalidation runs on a separate thread, so that the threads that serve
//! requests do not wait for each other; over io_uring, where a thread waits for the answer of its request, only so many do that others
//! are left (`BlockingExecutor::may_wait`).
//!
//! *No cost without readers.* Nothing is invalidated of a file of which the kernel has no page and was given no attributes since the last
//! write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use crate::blocking_pool::BlockingPool;
use crate::kernel_notifier::KernelNotifier;

/// What the kernel may have cached of one file since it was opened, or since the kernel has known it.
#[derive(Debug)]
pub struct KernelCacheState {
    pages: AtomicBool,
    /// Attributes were given out since the last invalidation.
    attributes: AtomicBool,
    /// How many files there are without.
    unknown: Arc<AtomicUsize>,
}

impl KernelCacheState {
    /// The page cache is about to get data of the file. To be called before the data are read.
    pub fn has_pages(&self) {
        if !self.pages.load(SeqCst) {
            self.pages.store(true, SeqCst);
        }
    }

    /// Attributes that were read just now are about to be given out. False: a direct write may have ended since they were read, and they
    /// must not be trusted.
    pub fn give_attributes(&self) -> bool {
        let trusted = self.attributes.swap(true, SeqCst);
        if !trusted {
            self.unknown.fetch_sub(1, SeqCst);
        }
        trusted
    }

    /// Whether the kernel may have old ones after this moment.
    fn take_attributes(&self) -> bool {
        let given = self.attributes.swap(false, SeqCst);
        if given {
            self.unknown.fetch_add(1, SeqCst);
        }
        given
    }
}

impl Drop for KernelCacheState {
    fn drop(&mut self) {
        if !*self.attributes.get_mut() {
            self.unknown.fetch_sub(1, SeqCst);
        }
    }
}

/// A direct write whose data are in the file.
pub struct CompletedDirectWrite<'a> {
    /// Inode number of the written file.
    pub ino: u64,
    /// Offset of the first written byte.
    pub offset: u64,
    /// Number of bytes that were written.
    pub length: usize,
    /// What the kernel may have cached of the file.
    pub cached: &'a KernelCacheState,
}

/// Invalidates for all files of a mount.
#[derive(Default)]
pub struct DirectWrites {
    changed: Arc<KernelNotifier>,
    blocking_pool: BlockingPool,
    unknown: Arc<AtomicUsize>,
}

impl DirectWrites {
    /// Creates the tracker; `changed` notifies the kernel.
    pub fn new(changed: Arc<KernelNotifier>) -> DirectWrites {
        DirectWrites { changed, ..DirectWrites::default() }
    }

    /// Returns whether no invalidation or notice is under way.
    pub fn is_idle(&self) -> bool {
        self.blocking_pool.is_idle()
    }

    /// Creates the state of a file of which the kernel has no page.
    pub fn cached(&self) -> Arc<KernelCacheState> {
        Arc::new(KernelCacheState { pages: AtomicBool::new(false), attributes: AtomicBool::new(true), unknown: Arc::clone(&self.unknown) })
    }

    /// Whether attributes need [`KernelCacheState::give_attributes`]. A direct write that ends after this invalidates them.
    pub fn are_under_way(&self) -> bool {
        self.unknown.load(SeqCst) > 0
    }

    /// Replies to a direct write once no reader can find older data or attributes in the kernel. `may_wait`: the reply may come later.
    pub fn answer(&self, landed: &CompletedDirectWrite<'_>, may_wait: impl FnOnce() -> bool, answer: impl FnOnce() + Send + 'static) {
        let (ino, offset, length) = (landed.ino, landed.offset, landed.length);
        let given = landed.cached.take_attributes();
        if !landed.cached.pages.load(SeqCst) || length == 0 {
            if given {
                self.changed.invalidate_attributes(ino);
            }
            return answer();
        }
        if may_wait() {
            let changed = Arc::clone(&self.changed);
            self.blocking_pool.run(move || {
                changed.drop_pages(ino, offset, length);
                answer();
            });
        } else {
            // All threads but the last ones wait already. Old pages go as soon as they can.
            tracing::debug!(ino, "a direct write is answered before its pages are dropped");
            answer();
            self.drop_pages_later(ino, offset, length);
        }
    }

    /// Sends notices that may wait, on another thread. The kernel may keep a directory or pages locked until it has the reply to a request
    /// that is served now, or that no thread has read yet.
    pub fn later(&self, notice: impl FnOnce(&KernelNotifier) + Send + 'static) {
        let changed = Arc::clone(&self.changed);
        self.blocking_pool.run(move || notice(&changed));
    }

    /// Drops the kernel's pages of a range, as [`DirectWrites::later`].
    pub fn drop_pages_later(&self, ino: u64, offset: u64, length: usize) {
        self.later(move |changed| changed.drop_pages(ino, offset, length));
    }

    /// Drops all of the kernel's pages of a file, as [`DirectWrites::later`].
    pub fn drop_all_pages_later(&self, ino: u64) {
        self.later(move |changed| changed.drop_all_pages(ino));
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use std::sync::mpsc::channel;

    fn landed(cached: &KernelCacheState) -> CompletedDirectWrite<'_> {
        CompletedDirectWrite { ino: 7, offset: 0, length: 4096, cached }
    }

    #[test]
    fn attributes_that_may_be_older_than_a_write_are_not_trusted() {
        let writes = DirectWrites::default();
        let cached = writes.cached();
        assert!(!writes.are_under_way() && cached.give_attributes());
        writes.answer(&landed(&cached), || panic!("there is no page"), || {});
        assert!(writes.are_under_way() && !cached.give_attributes() && cached.give_attributes());
        assert!(!writes.are_under_way());
        writes.answer(&landed(&cached), || panic!("there is no page"), || {});
        assert!(writes.are_under_way());
        drop(cached);
        assert!(!writes.are_under_way());
    }

    #[test]
    fn an_answer_waits_for_the_pages_if_it_may() {
        let writes = DirectWrites::default();
        let cached = writes.cached();
        cached.has_pages();
        for may_wait in [true, false] {
            let (send, answered) = channel();
            let here = std::thread::current().id();
            writes.answer(&landed(&cached), || may_wait, move || send.send(std::thread::current().id() == here).expect("awaited"));
            assert_eq!(answered.recv(), Ok(!may_wait));
        }
    }
}
