//! The operations of a program whose effects a power cut may undo or must keep.

use std::ops::Range;

/// Identifies a file independently of its name.
pub type FileId = u64;

/// An operation of a program. `...Started` precedes the call, other marks follow its return.
#[derive(Clone, Debug)]
pub enum DurabilityMark {
    /// A file is about to be created.
    CreateStarted {
        /// The file that is created.
        id: FileId,
        /// The path of the new file.
        path: String,
    },
    /// Sectors are about to be written.
    WriteStarted {
        /// The file that is written.
        id: FileId,
        /// The sectors that are written.
        sectors: Range<u64>,
        /// The version in the sectors' stamps.
        version: u32,
    },
    /// A file is about to be truncated.
    TruncateStarted {
        /// The file that is truncated.
        id: FileId,
        /// The new length, in sectors.
        sectors: u64,
    },
    /// fsync(2) of the file returned 0.
    Synced {
        /// The file that was synced.
        id: FileId,
    },
    /// A file is about to be renamed and may replace another.
    RenameStarted {
        /// The file that is renamed.
        id: FileId,
        /// The new path of the file.
        to: String,
    },
    /// The directories of a rename were synced.
    RenameSynced {
        /// The file that was renamed.
        id: FileId,
    },
    /// A file is about to be removed.
    RemoveStarted {
        /// The file that is removed.
        id: FileId,
    },
    /// The directory of a removed file was synced.
    RemoveKept {
        /// The file that was removed.
        id: FileId,
    },
    /// A directory is about to be renamed.
    DirRenameStarted {
        /// The old path of the directory.
        from: String,
        /// The new path of the directory.
        to: String,
    },
    /// The parent of a renamed directory was synced.
    DirRenameSynced,
}
