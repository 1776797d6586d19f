//! What becomes of reads and writes, per instance and per open file.
//!
//! | mode | read miss | write hit | write miss | `flush` waits for |
//! |---|---|---|---|---|
//! | write-back | promote | to the SSD, dirty | to the SSD, dirty | a flush of the SSD |
//! | write-through | promote | below, then replace | below only | flushes of below and of the SSD |
//! | write-around | promote | below and drop | below only | flushes of below and of the SSD |
//! | read-only | promote | refused | refused | nothing |
//! | pass-through | below only | below and drop | below only | flushes of below and of the SSD |
//!
//! *Promote*: consult [`crate::Admission`]; a page it admits is put by the migration worker, clean. *Replace*: the new bytes are put
//! clean after a flush of the backing file; before, the page is dropped, or a crash could leave the cache newer than that file. *Drop* is
//! [`crate::SsdCache::invalidate`]; it has to be durable (a flush of the SSD) before `flush` of the file is answered, for else
//! a crash would bring the old page back. A dirty page is written back before any other write to it goes below: not dropped,
//! unless the write covers all of it. In every mode what is cached is read from the cache, except clean pages in pass-through.

/// The read and write policy of an instance or an open file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Mode {
    /// Writes are on the SSD first.
    #[default]
    WriteBack,
    /// Writes are below first, and then on the SSD.
    WriteThrough,
    /// Writes are below only.
    WriteAround,
    /// No writes.
    ReadOnly,
    /// The cache is not used.
    PassThrough,
}

/// How a request met the cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CacheEvent {
    /// A read of a page that is not cached.
    ReadMiss,
    /// A write to a cached page.
    WriteHit,
    /// A write to one that is not.
    WriteMiss,
}

/// What the cache does for a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CacheAction {
    /// Read the backing file, and consult admission.
    Promote,
    /// Read or write below; the cache has nothing to do with it.
    Below,
    /// Put it, dirty.
    Store,
    /// Drop it, write below, put it clean after a flush below.
    Replace,
    /// Drop it, write below.
    Drop,
    /// EROFS.
    Refuse,
}

impl Mode {
    /// The table of the module.
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

    /// Whether dirty pages may be there. To switch to a mode where they may not: let no write begin in the old mode, write back
    /// what [`crate::SsdCache::dirty_of`] counts, and then the mode is in force.
    pub fn keeps_dirty(self) -> bool {
        self == Mode::WriteBack
    }

    /// Returns the mode of a file whose open requests one mode in an instance with another: the one that trusts the SSD less. An
    /// instance that is read-only refuses writes in any case.
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
