//! Mounting an image, serving it and unmounting it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rawfs::fs::Fs;
use rustix::io::Errno;

use super::image_filesystem::{ImageFilesystem, ImageShared, SetId};
use super::nodes::Nodes;
use crate::direct_writes::DirectWrites;
use crate::handles::HandleTable;
use crate::kernel_notifier::KernelNotifier;
use crate::session::{MountError, check_mountpoint};
use crate::simple_session::{self, SessionOptions};

/// Time after which writes are durable without a sync; ext4 has the same default.
const COMMIT: Duration = Duration::from_secs(5);
const SUBTYPE: &str = "hotshelf-image";
/// As mount(8) shows it.
const FS_TYPE: &str = "fuse.hotshelf-image";

/// The image that is mounted on exactly this directory, if one is.
pub fn image_at(path: &Path) -> Option<PathBuf> {
    crate::source::type_at(path).filter(|kind| kind == FS_TYPE).and_then(|_| crate::source::source_at(path))
}

/// Whether a process has an image for itself.
pub fn is_in_use(image: &Path) -> bool {
    use rustix::fs::{FlockOperation, flock};
    let refused = |file: File| flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK);
    File::open(image).is_ok_and(refused)
}

/// Why an image is not mounted, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum RawMountError {
    /// The mount.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// Closing the image.
    #[error("closing the image: {0}")]
    Close(rawfs::fs::Error),
}

/// Mounts a file system, calls `ready` once it replies to requests, and serves it until it is unmounted or SIGTERM comes; closes it.
pub fn run(fs: Fs, options: &SessionOptions, ready: impl FnOnce()) -> Result<(), RawMountError> {
    let mountpoint = check_mountpoint(&options.mountpoint)?;
    // Modes of new files are the caller's business.
    rustix::process::umask(rustix::fs::Mode::empty());
    let changed: Arc<KernelNotifier> = Arc::default();
    let direct_writes = DirectWrites::new(changed.clone());
    let (nodes, opened, set_id) = (Nodes::default(), HandleTable::default(), SetId::default());
    let inner = Arc::new(ImageShared { fs, nodes, opened, changed, direct_writes, set_id });
    let served = serve(&inner, options, &mountpoint, ready);
    inner.opened.clear();
    inner.nodes.clear();
    let saved = inner.fs.sync();
    let closed = match Arc::into_inner(inner) {
        Some(inner) => inner.fs.close(),
        // A request is still under way: all is saved, and the next opening looks into the log.
        None => Ok(()),
    };
    served?;
    saved.and(closed).map_err(RawMountError::Close)
}

fn serve(inner: &Arc<ImageShared>, options: &SessionOptions, mountpoint: &Path, ready: impl FnOnce()) -> Result<(), MountError> {
    let filesystem = ImageFilesystem { inner: Arc::clone(inner) };
    let committer = CommitThread::start(inner);
    let served = simple_session::serve(filesystem, options, SUBTYPE, mountpoint, &inner.changed, ready);
    committer.end();
    served
}

/// Commits now and then what nobody syncs.
struct CommitThread {
    thread: Option<std::thread::JoinHandle<()>>,
    over: Arc<(Mutex<bool>, Condvar)>,
}

impl CommitThread {
    fn start(inner: &Arc<ImageShared>) -> CommitThread {
        let over: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let (theirs, inner) = (Arc::clone(&over), Arc::clone(inner));
        let started = std::thread::Builder::new().name("committer".into()).spawn(move || {
            let mut ended = theirs.0.lock();
            while !*ended {
                let _ = theirs.1.wait_for(&mut ended, COMMIT);
                if let Err(error) = inner.fs.sync() {
                    tracing::error!(%error, "what was written is not on the device");
                }
            }
        });
        let thread = started.map_err(|error| tracing::error!(%error, "no thread: only fsync makes anything durable")).ok();
        CommitThread { thread, over }
    }

    fn end(self) {
        *self.over.0.lock() = true;
        self.over.1.notify_one();
        if let Some(thread) = self.thread {
            let _ = thread.join();
        }
    }
}
