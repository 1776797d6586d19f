//! Calls that change a backing file past the cache, in pass-through. They take no lock and have no window: they are counted in the file's
//! record, and nothing is cached while the count is not zero. So a change that they made is found before any page is dirty.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::open::Open;
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

    /// Drops the cached pages of the file, before calls change it past the cache. What is dirty is written first and never dropped.
    /// `is_wanted` is called with the file's lock held. If it returns false, nothing is dropped, and false is returned.
    ///
    /// # Errors
    /// Returns what kept pages from being written or dropped; [`STALLED`]: a process makes pages dirty all the time.
    pub fn drop_before_past(&self, mut is_wanted: impl FnMut() -> bool) -> Result<bool, Errno> {
        self.check()?;
        let (engine, no) = (&self.engine, self.no);
        engine.clean_and_drop(no, &|| engine.lock_file(no).map(Some), &mut is_wanted, &mut |kind, a| engine.ask(kind, no, a, 0))
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
        self.0.notify_of_change();
    }
}

#[cfg(test)]
mod test {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use ssdcache::{FileKey, Mode};

    use crate::engine::{BackingFile, OpenOptions};

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

    /// A process died during a call past the cache, and so did the leader while it closed that process's files.
    #[test]
    fn a_call_that_no_process_can_be_in_is_not_waited_for() {
        let (file, engine, open) = crate::test_engine::lead(Mode::WriteBack);
        let record = engine.records.get(open.no());
        drop(open);
        assert_eq!(record.open_by().load(Ordering::Acquire), 0);
        record.past().fetch_add(1, Ordering::SeqCst);
        let below = std::sync::Arc::clone(&file) as std::sync::Arc<dyn BackingFile>;
        let open = engine.open(FileKey(7), std::path::Path::new("/file"), OpenOptions::default(), below).expect("opened");
        assert_eq!(open.wait_for_past(), Ok(false));
        // A later call is counted.
        *file.reports.lock() = Some(Vec::new());
        let past = open.begin_past();
        let other = engine.open(FileKey(7), std::path::Path::new("/file"), OpenOptions::default(), std::sync::Arc::clone(&open.below));
        assert_eq!(other.err(), Some(crate::engine::OpenFileError::Failed(crate::engine::STALLED)));
        drop(past);
    }

    /// Another process, which has not noticed pass-through yet, writes between the write-back and the drop.
    #[test]
    fn a_page_that_becomes_dirty_before_the_drop_is_written() {
        let (file, _engine, open) = crate::test_engine::lead(Mode::WriteBack);
        open.write(0, &[1; 9000]).expect("written");
        let mut asked = 0;
        let is_wanted = || {
            asked += 1;
            if asked == 1 {
                open.write(10, &[2; 10]).expect("written");
            }
            true
        };
        assert_eq!(open.drop_before_past(is_wanted), Ok(true));
        assert_eq!((asked, &file.bytes.lock()[9..21]), (2, &[1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1][..]));
        assert_eq!(open.is_dirty(), Ok(false));
        open.write(0, &[3; 10]).expect("written");
        assert_eq!(open.drop_before_past(|| false), Ok(false));
        assert_eq!(open.size(), 9000);
        let always = || {
            open.write(10, &[4; 10]).expect("written");
            true
        };
        assert_eq!(open.drop_before_past(always), Err(crate::engine::STALLED));
        open.sync().expect("no conflict");
        assert_eq!(file.bytes.lock()[10..20], [4; 10], "the page stays");
    }

    /// A file is opened while a call past the cache goes on that began before pass-through ended.
    #[test]
    fn an_open_waits_for_a_call_past_the_cache() {
        let (file, engine, open) = crate::test_engine::lead(Mode::WriteBack);
        let past = open.begin_past();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let below = std::sync::Arc::clone(&file) as std::sync::Arc<dyn BackingFile>;
                engine.open(FileKey(7), std::path::Path::new("/file"), OpenOptions::default(), below).expect("opened")
            });
            std::thread::sleep(Duration::from_millis(50));
            assert!(!other.is_finished(), "it waits");
            file.set_len(20_000).expect("changed");
            drop(past);
            assert_eq!(other.join().expect("it ends").size(), 20_000);
        });
    }

    /// The end of pass-through is counted before and after, also where the mode goes back to the one before.
    #[test]
    fn each_change_of_a_mode_is_counted_when_it_is_in_force() {
        let (_file, engine, open) = crate::test_engine::lead(Mode::WriteBack);
        let counted = |mode| {
            let before = engine.mode_changes();
            open.set_mode(mode).expect("switched");
            engine.mode_changes() - before
        };
        assert_eq!(counted(Mode::PassThrough), 2);
        assert_eq!(counted(Mode::WriteBack), 3);
    }

    /// Times that were set past the cache count afterwards, not those of an earlier write.
    #[test]
    fn the_time_of_a_write_ends_with_pass_through() {
        let (_file, engine, open) = crate::test_engine::lead(Mode::WriteBack);
        open.write(0, &[1; 10]).expect("written");
        engine.set_mode(Mode::PassThrough).expect("switched");
        assert_ne!(open.written_ns(), 0);
        engine.set_mode(Mode::WriteBack).expect("switched");
        assert_eq!(open.written_ns(), 0);
    }
}
