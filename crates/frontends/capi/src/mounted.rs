//! A mounted file system of the library, and what keeps it from being unmounted.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use stack::rawfs::Recovery;
use stack::rawfs::fs::{Creds, Fs};

use crate::api_error::{ApiError, ApiResult};
use crate::ntypes::NVMEDFS_SYNC;
use crate::objects::{CloseOrder, ObjectKind};

/// A mounted file system of the library.
pub struct Mount {
    /// Taken at unmount.
    fs: RwLock<Option<Fs>>,
    /// Set between the start and the end of an unmount.
    leaving: Mutex<Option<Fs>>,
    /// Number of open files, directories, transactions and request queues.
    uses: AtomicUsize,
    /// A call panicked inside.
    broken: AtomicBool,
    flags: u32,
    creds: Creds,
    /// The umask of files created by calls on the mount.
    pub umask: AtomicU16,
    device: String,
    /// Lock of a read-only mount.
    _no_writers: Option<File>,
    /// What the recovery found when the image was opened.
    pub recovery: Recovery,
    /// The number of files without a name that were removed then.
    pub orphans: u64,
}

/// A reference to a mount, which prevents its unmount.
pub struct MountGuard(Arc<Mount>);

impl Drop for MountGuard {
    fn drop(&mut self) {
        self.0.uses.fetch_sub(1, Ordering::SeqCst);
    }
}

impl std::ops::Deref for MountGuard {
    type Target = Arc<Mount>;
    fn deref(&self) -> &Arc<Mount> {
        &self.0
    }
}

impl ObjectKind for Mount {
    const NAME: &'static str = "NVMEDFS";
    const CLOSE_ORDER: CloseOrder = CloseOrder::FileSystem;
    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }
    fn break_down(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }
    fn prepare_shutdown(&self) -> ApiResult<()> {
        self.take()
    }
    fn finish(&self) -> ApiResult<()> {
        let fs = self.leaving.lock().take();
        fs.map_or(Ok(()), |fs| fs.close().map_err(|error| ApiError::from(error).named(&self.device)))
    }
}

/// Marks the mount as broken if the call in its scope panics.
struct PanicGuard<'a>(&'a Mount);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.break_down();
        }
    }
}

impl Mount {
    /// Creates the mount of an opened file system; `no_writers` is the lock of a read-only one.
    pub fn new(
        device: &str,
        (fs, recovery, orphans): (Fs, Recovery, u64),
        no_writers: Option<File>,
        (flags, creds, umask): (u32, Creds, u16),
    ) -> Mount {
        Mount {
            fs: RwLock::new(Some(fs)),
            leaving: Mutex::default(),
            uses: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
            flags,
            creds,
            umask: AtomicU16::new(umask),
            device: device.to_owned(),
            _no_writers: no_writers,
            recovery,
            orphans,
        }
    }

    /// Runs a call with the file system.
    pub fn run<T>(&self, call: impl FnOnce(&Fs) -> ApiResult<T>) -> ApiResult<T> {
        // Recursive: a waiting unmount must not block the calls that it waits for.
        let fs = self.fs.read_recursive();
        let fs = fs.as_ref().ok_or_else(|| ApiError::new(libc::EBADF, "the file system is being unmounted"))?;
        self.watch(|| call(fs))
    }

    /// Runs a call unless an earlier call panicked.
    pub fn watch<T>(&self, call: impl FnOnce() -> ApiResult<T>) -> ApiResult<T> {
        if self.is_broken() {
            return Err(ApiError::new(libc::EIO, "an earlier call failed inside this file system: unmount it, and mount it again"));
        }
        let _watch = PanicGuard(self);
        call()
    }

    /// Returns a reference; called within `run`, so that the mount cannot go meanwhile.
    pub fn used(self: &Arc<Mount>) -> MountGuard {
        self.uses.fetch_add(1, Ordering::SeqCst);
        MountGuard(Arc::clone(self))
    }

    /// Returns the credentials of the caller.
    pub fn creds(&self) -> Creds {
        Creds { umask: self.umask.load(Ordering::Relaxed), ..self.creds.clone() }
    }

    /// Returns whether a flag of the mount is set.
    pub fn is(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Finishes a call that changed names or attributes.
    pub fn changed<T>(&self, fs: &Fs, done: stack::rawfs::fs::Result<T>) -> ApiResult<T> {
        let done = done?;
        if self.is(NVMEDFS_SYNC) {
            fs.store().sync(fs.store().applied())?;
        }
        Ok(done)
    }

    /// Returns the device number for `st_dev`.
    pub fn number(fs: &Fs) -> u64 {
        let uuid = fs.store().uuid();
        u64::from_le_bytes(uuid[..8].try_into().expect("eight bytes"))
    }

    /// Takes the file system out for the unmount; EBUSY if something is open on it.
    pub fn take(&self) -> ApiResult<()> {
        let busy = |uses| {
            let what = format!("{}: {uses} files, directories, transactions or asynchronous requests are open on it", self.device);
            ApiError::new(libc::EBUSY, what)
        };
        let mut fs = self.fs.write();
        match self.uses.load(Ordering::SeqCst) {
            0 => {}
            uses => return Err(busy(uses)),
        }
        let taken = fs.take().ok_or_else(|| ApiError::new(libc::EBADF, "the file system is being unmounted"))?;
        *self.leaving.lock() = Some(taken);
        Ok(())
    }
}
