//! What all threads share that serve a cached directory.
//!
//! `open_file.rs` opens files in the cache, `file_data.rs` has the work on the data of open files, `attributes.rs` that on attributes.

mod attributes;
mod file_data;
mod open_file;
pub mod unopened_reads;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use cachedfs::{Instance, Mode};
use directoryfs::{DirectoryFs, KeptData, Listing};

use super::data::InstanceCache;
use super::kernel_pages::KernelPages;
use super::listener_thread::ListenerThread;
use super::open_handle::OpenHandle;
use super::slow_side::SlowSide;
use crate::direct_writes::DirectWrites;
use crate::handles::HandleTable;
use crate::kernel_notifier::KernelNotifier;
use crate::options::MountFlags;
pub use attributes::to_wire_attr;
pub use file_data::WritePlace;
pub use open_file::{O_ACCMODE, O_APPEND, O_DSYNC, O_EXCL, O_WRONLY, OpenCachedFile, open_flags};
pub use unopened_reads::UnopenedReads;

/// Holds the state that all serving threads share.
pub struct CachedShared {
    /// The directory on the slow side.
    pub fs: DirectoryFs<InstanceCache>,
    /// The path of the directory.
    pub top: PathBuf,
    /// The cache of file data.
    pub instance: Arc<Instance>,
    /// The open files of the mount.
    pub opened: HandleTable<OpenHandle<OpenCachedFile, UnopenedReads>>,
    /// The open directories of the mount.
    pub listings: HandleTable<Listing>,
    /// The mount flags, which decide what powers files have.
    pub flags: MountFlags,
    /// The device number of the directory's file system.
    pub device: u64,
    /// What the kernel may have cached of open files.
    pub pages: Arc<KernelPages>,
    /// Tells the kernel which cached attributes are stale.
    pub changed: Arc<KernelNotifier>,
    /// Keeps the kernel's cache coherent with direct writes.
    pub direct_writes: DirectWrites,
    /// The mode that files are opened in: write-through or write-back.
    pub mode: Mode,
    /// Whether the directory's file system may tell an error of a write not before the file is closed.
    pub is_remote: bool,
    /// How long the kernel may use names and attributes. Other programs may change the directory at any time.
    pub ttl: Duration,
    /// Drops the data of removed files that the kernel has forgotten.
    pub forgotten: SyncSender<KeptData>,
    /// Whether the slow side replies, and what is done while it does not.
    pub side: SlowSide,
    /// Listens to changes by other processes of the cache.
    pub listener: Arc<ListenerThread>,
}
