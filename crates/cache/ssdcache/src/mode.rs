//! The read and write policy, per instance and per open file. *Below* is the backing file.
//!
//! | mode | read miss | write hit | write miss | `flush` waits for |
//! |---|---|---|---|---|
//! | write-back | promote | to the SSD, dirty | to the SSD, dirty | a flush of the SSD |
//! | write-through | promote | below, then replace | below only | flushes of below and of the SSD |
//! | write-around | promote | below and drop | below only | flushes of below and of the SSD |
//! | read-only | promote | refused | refused | nothing |
//! | pass-through | below only | below and drop | below only | flushes of below and of the SSD |
//!
//! *Promote*: consult [`crate::Admission`]; the migration worker writes an admitted page to the SSD, clean. *Replace*: the cache drops the
//! page, and stores the new bytes clean after a flush of the backing file: otherwise a crash could leave the cache newer than that file.
//! *Drop* is [`crate::SsdCache::invalidate`]. A flush of the SSD makes it durable before `flush` of the file returns: otherwise a crash
//! would bring the old page back. A dirty page is written back before any other write to it goes to the backing file. It may be dropped
//! only if that write covers all of it. Every mode reads cached pages from the cache, except clean pages in pass-through.

/// The read and write policy of an instance or an open file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Mode {
    /// Writes go to the SSD first, and later to the backing file.
    #[default]
    WriteBack,
    /// Writes go to the backing file first, and then to the SSD.
    WriteThrough,
    /// Writes go to the backing file only.
    WriteAround,
    /// Writes are refused with EROFS.
    ReadOnly,
    /// Requests bypass the cache, except for dirty pages.
    PassThrough,
}

/// The event that a request is for the cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CacheEvent {
    /// A read of a page that is not cached.
    ReadMiss,
    /// A write to a cached page.
    WriteHit,
    /// A write to a page that is not cached.
    WriteMiss,
}

/// What the cache does for a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CacheAction {
    /// Reads the backing file, and consults admission.
    Promote,
    /// Reads or writes the backing file only.
    Below,
    /// Stores the page on the SSD, dirty.
    Store,
    /// Drops the page, writes the backing file, flushes it, and then stores the page clean.
    Replace,
    /// Drops the page, and writes the backing file.
    Drop,
    /// Refuses the request with EROFS.
    Refuse,
}

impl Mode {
    /// Returns the action of this mode for an event, by the table of the module.
    pub fn on(self, event: CacheEvent) -> CacheAction {
        match (self, event) {
            (Mode::PassThrough, CacheEvent::ReadMiss) => CacheAction::Below,
            (_, CacheEvent::ReadMiss) => CacheAction::Promote,
            (Mode::ReadOnly, _) => CacheAction::Refuse,
            (Mode::WriteBack, _) => CacheAction::Store,
            (Mode::WriteThrough, CacheEvent::WriteHit) => CacheAction::Replace,
            (_, CacheEvent::WriteHit) => CacheAction::Drop,
            (_, CacheEvent::WriteMiss) => CacheAction::Below,
        }
    }

    /// Returns whether the mode allows dirty pages. To switch to a mode that does not: let no write start in the old mode, and write
    /// back what [`crate::SsdCache::dirty_of`] counts. Then the new mode is in force.
    pub fn keeps_dirty(self) -> bool {
        self == Mode::WriteBack
    }

    /// Returns the effective mode of a file opened in this mode: of the two modes, the one that trusts the SSD less. A read-only
    /// instance refuses writes in any case.
    #[must_use]
    #[inline]
    pub fn within(self, instance: Mode) -> Mode {
        match (self, instance) {
            (Mode::ReadOnly, _) | (_, Mode::ReadOnly) => Mode::ReadOnly,
            (mine, theirs) => mine.max(theirs),
        }
    }

    /// Returns whether calls on a file of this mode bypass the cache, in an instance of that mode. A read-only instance does not end that:
    /// a mapping may still change the file, and a private file may not be cached at all.
    #[must_use]
    #[inline]
    pub fn bypasses_cache(self, instance: Mode) -> bool {
        self == Mode::PassThrough || instance == Mode::PassThrough
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn only_write_back_makes_dirty_pages_and_no_mode_leaves_an_old_page() {
        for mode in [Mode::WriteBack, Mode::WriteThrough, Mode::WriteAround, Mode::ReadOnly, Mode::PassThrough] {
            let on = |event| mode.on(event);
            assert_eq!(on(CacheEvent::WriteMiss) == CacheAction::Store, mode.keeps_dirty());
            assert_ne!(on(CacheEvent::WriteHit), CacheAction::Below, "{mode:?}");
            assert_eq!(mode.within(Mode::WriteBack), mode);
            assert_eq!(mode.within(Mode::ReadOnly), Mode::ReadOnly);
        }
        assert_eq!(Mode::WriteBack.within(Mode::PassThrough), Mode::PassThrough);
        assert!(Mode::PassThrough.bypasses_cache(Mode::ReadOnly) && Mode::ReadOnly.bypasses_cache(Mode::PassThrough));
        assert!(!Mode::ReadOnly.bypasses_cache(Mode::WriteAround));
    }
}
