//! A block cache for several threads.
//!
//! One lock around the books and the queues; who waits for the device does not hold it. Of those who wait one is the leader: he
//! waits for the queues' events and takes in what has ended, also for the others, who wait for him; when he is done
//! another one leads. So a page that one thread reads ahead is never stuck in the queue of a thread that has gone away.
//!
//! What has to change for readers that take no lock (and for several processes): see the header of `pagecache`. Here: a hit
//! copies under the lock, so two threads that only hit take turns; the core's steps are made for that change, for a hit
//! only looks up, copies and touches, and everything else may go on under a lock. The leader's place has to be taken from a process
//! that dies, as the migration worker's has.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::task::Poll;
use std::time::Duration;

use block::{Armed, Error, OpenError, Queue};
use pagecache::PageIndex;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::core::{Core, Handle};
use crate::flush::Flushing;
use crate::owned::BlockCache;
use crate::range::{Fate, Sweep};
use crate::read::{Pinned, Reading};
use crate::settings::{Settings, Stats};
use crate::write::Writing;

/// How long a wait lasts at most before the queues are looked at again: their deadlines need that.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A device with a cache in front of it, for any threads; each has a [`Handle`] of its own. The calls are those of
/// [`crate::BlockCache`].
///
/// Who waits needs the queues' events ([`Queue::event`]); with queues that have none he polls, and lets other threads run in
/// between.
pub struct SharedCache<Q> {
    inner: Mutex<Inner<Q>>,
    /// Something has ended, or the leader is done.
    ended: Condvar,
    /// One for each queue; none if one of them has none.
    events: Vec<OwnedFd>,
}

struct Inner<Q> {
    core: Core<Q>,
    /// Somebody waits for the queues.
    led: bool,
    /// Those who wait for him.
    followers: u32,
    /// What had ended when they were last told.
    told: u64,
}

impl<Q: Queue> SharedCache<Q> {
    /// As [`crate::BlockCache::open`].
    ///
    /// # Errors
    /// As there; or no descriptors.
    pub fn open(queues: Vec<Q>, settings: Settings) -> Result<SharedCache<Q>, OpenError> {
        let mut core = Core::open(queues, settings)?;
        let events: Option<Vec<_>> = core.queues().map(|queue| queue.event().map(|event| event.try_clone_to_owned())).collect();
        let events = events.unwrap_or_default().into_iter().collect::<Result<_, _>>();
        let events = events.map_err(|error| OpenError::system("a descriptor for the events of a queue", error))?;
        Ok(SharedCache { inner: Mutex::new(Inner { core, led: false, followers: 0, told: 0 }), ended: Condvar::new(), events })
    }

    /// A new user's place.
    pub fn handle(&self) -> Handle {
        self.inner.lock().core.handle()
    }

    /// As [`crate::BlockCache::read`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn read(&self, handle: &mut Handle, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        let mut inner = self.inner.lock();
        inner.core.check(offset, to.len())?;
        let mut reading = Reading::begin(handle, offset, to.len());
        self.drive(&mut inner, |core| core.read(handle, &mut reading, to))
    }

    /// As [`crate::BlockCache::write`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn write(&self, _: &mut Handle, offset: u64, from: &[u8]) -> Result<(), Error> {
        let mut inner = self.inner.lock();
        inner.core.check(offset, from.len())?;
        let mut writing = Writing::begin(offset);
        self.drive(&mut inner, |core| core.write(&mut writing, from))
    }

    /// As [`crate::BlockCache::flush`]: also what other threads had written before.
    ///
    /// # Errors
    /// As there.
    pub fn flush(&self, handle: &mut Handle) -> Result<(), Error> {
        let mut flushing = Flushing::default();
        self.drive(&mut self.inner.lock(), |core| core.flush(handle, &mut flushing))
    }

    /// As [`crate::BlockCache::discard`].
    ///
    /// # Errors
    /// As there.
    pub fn discard(&self, bytes: Range<u64>) -> Result<(), Error> {
        let mut inner = self.inner.lock();
        inner.core.check_range(&bytes)?;
        let mut sweep = Sweep::new(Fate::Dropped, bytes);
        self.drive(&mut inner, |core| core.discard(&mut sweep))
    }

    /// As [`crate::BlockCache::write_back`].
    ///
    /// # Errors
    /// As there.
    pub fn write_back(&self, bytes: Range<u64>) -> Result<(), Error> {
        self.sweep(Fate::Written, bytes)
    }

    /// As [`crate::BlockCache::invalidate`].
    ///
    /// # Errors
    /// As there.
    pub fn invalidate(&self, bytes: Range<u64>) -> Result<(), Error> {
        self.sweep(Fate::Gone, bytes)
    }

    fn sweep(&self, fate: Fate, bytes: Range<u64>) -> Result<(), Error> {
        let mut inner = self.inner.lock();
        inner.core.check_range(&bytes)?;
        let mut sweep = Sweep::new(fate, bytes);
        self.drive(&mut inner, |core| core.sweep(&mut sweep))
    }

    /// As [`crate::BlockCache::pin`].
    ///
    /// # Errors
    /// As there.
    pub fn pin(&self, handle: &mut Handle, page: PageIndex) -> Result<Pinned, Error> {
        let mut inner = self.inner.lock();
        inner.core.check(page.offset(), 1)?;
        let mut ticket = None;
        self.drive(&mut inner, |core| core.pin(handle, page, &mut ticket))
    }

    /// Ends it.
    #[inline]
    pub fn unpin(&self, pinned: Pinned) {
        self.inner.lock().core.pages.unpin(pinned.frame);
    }

    /// As [`crate::BlockCache::tick`]: by one thread, a few times a second.
    pub fn tick(&self) {
        let mut inner = self.inner.lock();
        inner.core.look_at_clock(true);
        self.tell(&mut inner);
    }

    /// What it did so far.
    pub fn stats(&self) -> Stats {
        self.inner.lock().core.stats
    }

    /// As [`crate::BlockCache::set_limit`].
    pub fn set_limit(&self, frames: u32) {
        self.inner.lock().core.set_limit(frames);
    }

    /// For one thread again: to close it.
    pub fn into_owned(self) -> BlockCache<Q> {
        BlockCache { core: self.inner.into_inner().core }
    }

    /// Takes step after step, and waits for the device in between.
    #[inline]
    fn drive<T>(
        &self,
        inner: &mut MutexGuard<'_, Inner<Q>>,
        mut step: impl FnMut(&mut Core<Q>) -> Poll<Result<T, Error>>,
    ) -> Result<T, Error> {
        loop {
            if let Poll::Ready(outcome) = step(&mut inner.core) {
                // His pages are free, and nobody leads.
                if inner.followers > 0 {
                    self.ended.notify_all();
                }
                return outcome;
            }
            self.wait(inner);
        }
    }

    #[cold]
    fn wait(&self, inner: &mut MutexGuard<'_, Inner<Q>>) {
        self.tell(inner);
        if inner.led || inner.core.in_flight() == 0 {
            inner.followers += 1;
            self.ended.wait_for(inner, LOOK_AGAIN);
            inner.followers -= 1;
            return;
        }
        inner.led = true;
        if self.events.is_empty() {
            inner.core.queues().for_each(|queue| queue.wait(Duration::ZERO));
            MutexGuard::unlocked(inner, std::thread::yield_now);
        } else if inner.core.queues().all(|queue| queue.arm() == Armed::Waiting) {
            MutexGuard::unlocked(inner, || self.wait_for_event());
        }
        inner.led = false;
        inner.core.reap();
        self.tell(inner);
    }

    /// Wakes those who wait, if anything has ended.
    fn tell(&self, inner: &mut Inner<Q>) {
        let ended = inner.core.ended_so_far();
        if std::mem::replace(&mut inner.told, ended) != ended && inner.followers > 0 {
            self.ended.notify_all();
        }
    }

    fn wait_for_event(&self) {
        // One or two.
        let fd = |at: usize| PollFd::new(&self.events[at.min(self.events.len() - 1)], PollFlags::IN);
        let mut fds = [fd(0), fd(1)];
        let timeout = Timespec { tv_sec: 0, tv_nsec: LOOK_AGAIN.subsec_nanos().into() };
        // Interrupted or not: the queues are looked at.
        let _ = poll(&mut fds, Some(&timeout));
    }
}
