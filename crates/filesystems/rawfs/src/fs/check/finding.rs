//! The findings of a check, and the files that they concern.

use std::fmt;

use crate::fs::key::FileItem;
use crate::store::salvage::found_parts;
use crate::{Extent, TreeId};

/// Something that is wrong, and what it means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finding {
    /// A key that names nothing.
    Key {
        /// Of Names, or of Files.
        tree: TreeId,
        /// The key.
        key: Vec<u8>,
    },
    /// A value that cannot be read.
    Value {
        /// Of Names, or of Files.
        tree: TreeId,
        /// Its key.
        key: Vec<u8>,
        /// Where.
        path: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A name in a directory that there is not, or that cannot be reached.
    Lost {
        /// Where it would be.
        path: String,
        /// What keys below the directory begin with.
        begin: Vec<u8>,
        /// The directory, if it is there and nothing leads to it.
        dir: Option<u64>,
    },
    /// Two files with one number.
    Twice {
        /// The number.
        ino: u64,
    },
    /// A number that was never given away.
    Number {
        /// The number.
        ino: u64,
    },
    /// A record says another number of names than there are.
    Links {
        /// The file.
        ino: u64,
        /// What the record says.
        says: u32,
        /// What there are.
        are: u32,
    },
    /// A record says another number of blocks than there are.
    Blocks {
        /// The file.
        ino: u64,
        /// What the record says.
        says: u64,
        /// What there are.
        are: u64,
    },
    /// Something in Files that belongs to no file, or that its file does not know of.
    Stray {
        /// The number it has.
        ino: u64,
        /// What it is.
        what: FileItem,
    },
    /// Something that a file says is in Files, and is not.
    Missing {
        /// The file.
        ino: u64,
        /// What it is.
        what: FileItem,
    },
    /// Blocks of two files, or twice of one.
    Shared {
        /// The blocks.
        extent: Extent,
        /// The files.
        files: [u64; 2],
    },
    /// Blocks of a file that are free.
    Free {
        /// The blocks.
        extent: Extent,
        /// The file.
        ino: u64,
    },
    /// Blocks in use that belong to no file.
    Leaked {
        /// The blocks.
        extent: Extent,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocks = |extent: &Extent| format!("blocks {} to {}", extent.start.0, extent.start.0 + u64::from(extent.blocks) - 1);
        match self {
            Finding::Key { tree, key } if found_parts(*tree, key).is_some() => {
                write!(f, "{tree:?}: an entry was found whose directory or file is lost with a damaged node: {}", key.escape_ascii())
            }
            Finding::Key { tree, key } => write!(f, "{tree:?}: a key that names nothing: {}", key.escape_ascii()),
            Finding::Value { path, what, .. } => write!(f, "{path}: {what}: the file cannot be used"),
            Finding::Lost { path, .. } => write!(f, "{path}: its directory cannot be reached from the top: no path leads to the file"),
            Finding::Twice { ino } => write!(f, "file {ino}: two records have its number"),
            Finding::Number { ino } => write!(f, "file {ino}: its number was never given away, and would be given to a new file too"),
            Finding::Links { ino, says, are } => write!(f, "file {ino}: its record says {says} links, there are {are}"),
            Finding::Blocks { ino, says, are } => write!(f, "file {ino}: its record says {says} blocks, it has {are}"),
            Finding::Stray { ino, what } => write!(f, "file {ino}: {what:?} items that no record knows of: space is lost"),
            Finding::Missing { ino, what } => write!(f, "file {ino}: its {what:?} item is missing"),
            Finding::Shared { extent, files: [a, b] } => {
                write!(f, "{} belong to file {a} and to file {b}: a write to one would harm the other", blocks(extent))
            }
            Finding::Free { extent, ino } => write!(f, "{} of file {ino} are free: they may be given to another", blocks(extent)),
            Finding::Leaked { extent } => write!(f, "{} are in use and belong to no file: space is lost", blocks(extent)),
        }
    }
}

impl Finding {
    /// The files it is about.
    pub fn files(&self) -> Vec<u64> {
        match self {
            Finding::Key { .. } | Finding::Value { .. } | Finding::Leaked { .. } => Vec::new(),
            Finding::Lost { dir, .. } => dir.iter().copied().collect(),
            Finding::Shared { files, .. } => files.to_vec(),
            Finding::Twice { ino }
            | Finding::Number { ino }
            | Finding::Links { ino, .. }
            | Finding::Blocks { ino, .. }
            | Finding::Stray { ino, .. }
            | Finding::Missing { ino, .. }
            | Finding::Free { ino, .. } => vec![*ino],
        }
    }
}
