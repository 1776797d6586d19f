//! Calls that change a backing file past the cache, in pass-through. They take no lock and have no window: they are counted in the file's
//! record, and nothing is cached while the count is not zero. So a change that they made is found before any page is dirty.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::RequestKind;
use super::open::Open;
use super::own_stamp::Writer;
use super::record::flag;
use super::stall::STALLED;

/// How long a caller waits for calls past the cache, after the mode has changed.
const PAST_MAX: Duration = Duration::from_millis(500);
/// The interval of checks whether they have ended.
const PAST_LOOK: Duration = Duration::from_millis(1);

impl Open {
    /// Counts a call that changes the backing file past the cache, until the result is dropped. It comes before the check that the file
    /// is in pass-through: whoever uses the cache after that ([`Open::wait_for_past`]) waits for the call. The call has no window.
    #[inline(always)]
    pub fn begin_past(&self) -> PastCall<'_> {
        self.record().past().fetch_add(1, Ordering::SeqCst);
        PastCall(self)
    }

    /// Waits for calls past the cache that began in pass-through, before anything is cached again: their changes are then found before any
    /// page is dirty. Returns whether there were any.
    ///
    /// # Errors
    /// [`STALLED`]: one of them does not end.
    pub fn wait_for_past(&self) -> Result<bool, Errno> {
        let is_past = || self.record().past().load(Ordering::SeqCst) != 0;
        if !is_past() {
            return Ok(false);
        }
        let begun = Instant::now();
        while is_past() {
            if begun.elapsed() > PAST_MAX {
                let words = "a file is being changed past the cache, and its mode has changed: calls on it fail until that has ended";
                self.engine.world.report(words);
                return Err(STALLED);
            }
            std::thread::sleep(PAST_LOOK);
        }
        Ok(true)
    }

    /// Runs a call that changes the backing file past the cache while others may use the cache. What is dirty is written before, and what
    /// is clean is dropped after it.
    ///
    /// # Errors
    /// Returns the error of `change`, or what kept pages from being written or dropped.
    pub fn change_past<T>(&self, change: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        let (engine, record) = (&self.engine, self.record());
        let mut ask = |ask| engine.ask(ask, self.no, 0, 0).map(drop);
        if engine.has_ssd() && !record.has(flag::THROUGH) {
            ask(RequestKind::Through)?;
        }
        self.clean()?;
        let _held = engine.lock_file(self.no)?;
        self.look_locked()?;
        record.own().open(Writer::LockHolder);
        let result = change();
        record.flags().fetch_or(flag::UNSYNCED, Ordering::AcqRel);
        // If that fails the window stays open, and the next owner of the lock drops them.
        engine.drop_not_dirty(self.no, &mut ask)?;
        // Likewise: the next owner closes it.
        let _ = record.own().close(Writer::LockHolder, || {
            let stamp = self.below.stamp()?;
            // Dirty pages may have made the file longer here than the backing file.
            if self.is_dirty().unwrap_or(true) {
                record.size().fetch_max(stamp.size, Ordering::AcqRel);
            } else {
                record.size().store(stamp.size, Ordering::Release);
            }
            Ok::<_, std::io::Error>(stamp)
        });
        result
    }
}

/// A call that changes the backing file past the cache.
#[must_use = "the call ends when this is dropped"]
pub struct PastCall<'a>(&'a Open);

impl Drop for PastCall<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // The count is zero if a process died meanwhile.
        let _ = self.0.record().past().fetch_update(Ordering::AcqRel, Ordering::Relaxed, |count| count.checked_sub(1));
    }
}

#[cfg(test)]
mod test {
    use ssdcache::Mode;

    /// A process died during a call past the cache.
    #[test]
    fn a_call_of_a_dead_process_is_not_waited_for() {
        let (_file, engine, open) = crate::test_engine::lead(Mode::WriteBack);
        let alive = open.begin_past();
        let _never_ends = std::mem::ManuallyDrop::new(open.begin_past());
        engine.records.reap(engine.me);
        assert_eq!(open.wait_for_past(), Ok(false));
        drop(alive);
        assert_eq!(open.wait_for_past(), Ok(false), "the count does not become negative");
    }

    #[test]
    fn a_call_past_the_cache_is_ours() {
        let (file, _engine, open) = crate::test_engine::lead(Mode::WriteBack);
        open.write(0, &[1; 9000]).expect("written");
        let change = || {
            assert_eq!(file.bytes.lock().len(), 9000, "what is dirty is written before");
            crate::engine::BackingFile::set_len(&*file, 20_000).map_err(|_| rustix::io::Errno::IO)
        };
        open.change_past(change).expect("changed");
        assert_eq!((open.size(), open.look_below()), (20_000, Ok(())));
        open.write(0, &[2; 10]).expect("written");
        open.sync().expect("no conflict");
    }
}
