//! One directory of another file system, served by inode number.
//!
//! A [`DirectoryFs`] answers the requests of a FUSE front end with calls on one directory and its descendants. Each call is relative to
//! an open descriptor and one name, never follows a symbolic link, and creates in the name of the caller. The file system below decides
//! about everything that it can decide: modes, access control lists, quotas, times.
//!
//! File data is not read or written here. A front end that caches data implements [`FileCache`], which takes part in those calls that
//! change a file: so the cache knows that the change is its own.
//!
//! - `nodes.rs`: the inodes that the kernel knows. Read first. `descriptors.rs`, `reopen.rs`: which of them have an open descriptor.
//! - `names.rs`: lookups, links, renames, removals. `create.rs`: new files. `listing.rs`: directories.
//! - `remembered.rs`: names and attributes that are answered from memory, if the mount wants that. `remembering.rs`: when they are stored
//!   and dropped. `check.rs`: how they are read again. `saved.rs`: how they outlive the mount.
//! - `handover.rs`: all of it in a form that another process goes on from.
//! - `attributes.rs`: attributes and their changes. `set_id.rs`: when set-ID bits go. `xattrs.rs`: extended attributes.
#![forbid(unsafe_code)]

mod attributes;
mod cache;
mod check;
mod checks;
mod create;
mod descriptors;
mod directory;
mod handover;
mod identity;
mod last_stat;
mod listing;
mod names;
mod nodes;
mod remembered;
mod remembering;
mod reopen;
mod saved;
mod set_id;
mod stat;
#[cfg(test)]
mod test;
#[cfg(test)]
mod test_remembered;
mod xattrs;

pub use cache::{FileCache, NoCache, RemovedFile};
pub use check::{Change, is_of_dead_server};
pub use create::NewNode;
pub use descriptors::RemovedName;
pub use directory::{DirectoryFs, OpenError};
pub use handover::{HandedAttributes, HandedDirectory, HandedNames, HandedNode};
pub use listing::{Entry, Listing};
pub use names::Found;
pub use nodes::{DataKeeper, KeptData, Node, ROOT, Version};
pub use stat::Stat;

/// A call that failed gives the error of the system call.
pub type Result<T> = std::result::Result<T, rustix::io::Errno>;
