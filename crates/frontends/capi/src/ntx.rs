//! Transactions: changes of many files that are atomic, also across a power cut.
#![expect(unsafe_code, reason = "called by C")]

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use libc::{mode_t, off_t, ssize_t};
use parking_lot::Mutex;
use rustix::fs::OFlags;
use stack::rawfs::fs::{Creds, File, Fs, Transaction};

use crate::api_error::{ApiError, ApiResult};
use crate::guard::ffi_guard;
use crate::memory::{self, Memory, offset_of};
use crate::mounted::{Mount, MountGuard};
use crate::nfd;
use crate::nfiles::{self, Open};
use crate::nplace::below_root;
use crate::ntypes::{NVMEDFS, NVMEDFS_TX};
use crate::objects::{CloseOrder, ObjectKind, end, enroll, with};

/// A transaction that is open.
pub struct Tx {
    /// Taken when it ends.
    gathered: Mutex<Option<Transaction>>,
    /// Dropped after the transaction.
    mount: Mutex<Option<MountGuard>>,
}

impl ObjectKind for Tx {
    const NAME: &'static str = "NVMEDFS_TX";
    const CLOSE_ORDER: CloseOrder = CloseOrder::Transaction;
    /// Aborts the transaction without effect.
    fn finish(&self) -> ApiResult<()> {
        drop(self.gathered.lock().take());
        drop(self.mount.lock().take());
        Ok(())
    }
}

fn ended() -> ApiError {
    ApiError::new(libc::EBADF, "the transaction has ended")
}

impl Tx {
    /// Returns the mount of the transaction; EBADF if the transaction has ended.
    pub fn mount(&self) -> ApiResult<Arc<Mount>> {
        self.mount.lock().as_ref().map(|mount| Arc::clone(mount)).ok_or_else(ended)
    }

    /// Runs a call that adds changes to the transaction; EBADF if the transaction has ended.
    pub fn gather<T>(&self, call: impl FnOnce(&mut Transaction) -> ApiResult<T>) -> ApiResult<T> {
        let mount = self.mount()?;
        let mut gathered = self.gathered.lock();
        mount.watch(|| call(gathered.as_mut().ok_or_else(ended)?))
    }
}

/// Closes the object; the caller gets the transaction and the reference to its mount.
pub fn take(tx: *const NVMEDFS_TX) -> ApiResult<(Transaction, MountGuard)> {
    let mut taken = None;
    end(
        tx,
        |_: &Tx| Ok(()),
        |tx: &Tx| {
            taken = tx.gathered.lock().take().zip(tx.mount.lock().take());
            Ok(())
        },
    )?;
    taken.ok_or_else(ended)
}

/// Runs a call with a file of the transaction's file system.
pub fn with_file<T>(tx: *mut NVMEDFS_TX, fd: c_int, call: impl FnOnce(&mut Transaction, &Arc<File>) -> ApiResult<T>) -> ApiResult<T> {
    let open: Arc<Open> = nfiles::share(fd)?;
    with(tx, |tx: &Arc<Tx>| {
        if !Arc::ptr_eq(&tx.mount()?, &open.mount) {
            return Err(ApiError::new(libc::EXDEV, "the file is in another file system than the transaction"));
        }
        tx.gather(|gathered| call(gathered, &open.file))
    })
}

/// Starts a transaction: changes of any files of the file system, by nvmedfs_tx_..., that happen together or not at all, also across a
/// power cut or a kill. Until nvmedfs_commit they are copied and kept in memory, invisible even to the same thread. Other calls on the
/// same files are not part of it. Thread-safe, as are all calls with it.
///
/// At commit, file content is written first; then names and attributes change in the order of the calls, each seeing the earlier ones.
/// Paths are relative to the root. While a transaction with name changes is committed, other name changes wait.
///
/// Returns it, or NULL: EBADF; EROFS; EMFILE.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_begin(fs: *mut NVMEDFS) -> *mut NVMEDFS_TX {
    ffi_guard(|| {
        with(fs, |mount: &Arc<Mount>| {
            mount.run(|fs| {
                if fs.store().is_read_only() {
                    return Err(ApiError::new(libc::EROFS, "the file system is mounted read-only"));
                }
                let (gathered, mount) = (Mutex::new(Some(fs.begin())), Mutex::new(Some(mount.used())));
                enroll(Arc::new(Tx { gathered, mount }))
            })
        })
    })
}

/// Works like nvmedfs_pwrite, at the commit. Thread-safe.
///
/// Returns `n`, or -1: EBADF (also: not open for writing); EFBIG; EFAULT; EINVAL; EXDEV (a file of another file system).
///
/// # Safety
/// `buf` has `n` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_tx_pwrite(tx: *mut NVMEDFS_TX, fd: c_int, buf: *const c_void, n: usize, off: off_t) -> ssize_t {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        let (memory, at) = (unsafe { Memory::new(buf.cast_mut(), n) }?, offset_of(off)?);
        with_file(tx, fd, |tx, file| Ok(memory.with(|bytes| tx.write_at(file, bytes, at)).map(|()| n as isize)?))
    })
}

/// Appends to the end of the file, at the commit. Thread-safe. Returns as nvmedfs_tx_pwrite.
///
/// # Safety
/// `buf` has `n` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_tx_append(tx: *mut NVMEDFS_TX, fd: c_int, buf: *const c_void, n: usize) -> ssize_t {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        let memory = unsafe { Memory::new(buf.cast_mut(), n) }?;
        with_file(tx, fd, |tx, file| Ok(memory.with(|bytes| tx.append(file, bytes)).map(|()| n as isize)?))
    })
}

/// Works like nvmedfs_ftruncate, at the commit. Thread-safe.
///
/// Returns 0, or -1: EBADF; EFBIG; EINVAL; EXDEV. The commit fails with EOPNOTSUPP if it truncates a file with many extents.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_tx_ftruncate(tx: *mut NVMEDFS_TX, fd: c_int, len: off_t) -> c_int {
    ffi_guard(|| {
        let len = offset_of(len)?;
        with_file(tx, fd, |tx, file| Ok(tx.set_len(file, len).map(|()| 0)?))
    })
}

/// Gives a file another name, or the first name of an O_TMPFILE file, at the commit. Thread-safe.
///
/// Returns 0, or -1: EBADF; EXDEV; EFAULT. The commit reports the rest: EEXIST, ENOENT, ENOTDIR, EACCES, EMLINK, EPERM (a directory).
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_tx_link(tx: *mut NVMEDFS_TX, fd: c_int, path: *const c_char) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { memory::bytes(path, "the path") }?;
        let mount = with(tx, |tx: &Arc<Tx>| tx.mount())?;
        with_file(tx, fd, |tx, file| mount.run(|fs| named(tx, fs, file, path, &mount.creds()).map(|()| 0)))
    })
}

/// A first name does not block other callers; another name is a change of names.
fn named(tx: &mut Transaction, fs: &Fs, file: &File, path: &[u8], creds: &Creds) -> ApiResult<()> {
    let first = file.node().stat()?.nlink == 0 && tx.name(file, fs.root(), path).is_ok();
    if first { Ok(()) } else { Ok(tx.link(file.node(), fs.root(), path, creds)?) }
}

/// Creates a file that gets this name at the commit, and is removed if there is none (O_TMPFILE and nvmedfs_tx_link). Write it with
/// nvmedfs_tx_pwrite or nvmedfs_write. `flags`: O_WRONLY or O_RDWR, with others of nvmedfs_open except O_CREAT. The directory may be one
/// that the transaction creates: the file gets its group as in the nearest existing one. Thread-safe.
///
/// Returns a file number, or -1: any error of nvmedfs_open and nvmedfs_tx_link.
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_tx_creat(tx: *mut NVMEDFS_TX, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { memory::bytes(path, "the path") }?;
        let mount = with(tx, |tx: &Arc<Tx>| tx.mount())?;
        let dir = path.iter().rposition(|byte| *byte == b'/').map_or(&b"/"[..], |slash| &path[..=slash]);
        let dir = nearest(&mount, dir)?;
        let flags = (flags & !(libc::O_CREAT | libc::O_EXCL)) | OFlags::TMPFILE.bits().cast_signed();
        let fd = below_root(&mount, dir, |at| nfd::open_at(at, flags, mode))?;
        let named = with_file(tx, fd, |tx, file| mount.run(|fs| Ok(tx.name(file, fs.root(), path)?)));
        if let Err(fail) = named {
            nfd::nvmedfs_close(fd);
            return Err(fail);
        }
        Ok(fd)
    })
}

/// Returns the last existing directory on a path.
fn nearest<'p>(mount: &Arc<Mount>, mut dir: &'p [u8]) -> ApiResult<&'p [u8]> {
    loop {
        let found = below_root(mount, dir, |at| Ok(at.node(true)?.kind()));
        let trimmed = dir.len() - dir.iter().rev().take_while(|byte| **byte == b'/').count();
        match (found, dir[..trimmed].iter().rposition(|byte| *byte == b'/')) {
            (Err(fail), Some(slash)) if fail.errno == libc::ENOENT => dir = &dir[..=slash],
            (Err(fail), None) if fail.errno == libc::ENOENT => return Ok(b"/"),
            (found, _) => return found.map(|_| dir),
        }
    }
}

/// Commits the transaction: when this returns 0, all of it has happened and survives any crash. Each block of metadata is written once.
/// The NVMEDFS_TX is freed in any case. Thread-safe.
///
/// Returns 0, or -1: EBADF; errors of its calls (ENOSPC, EFBIG, EEXIST ...): nothing of it has happened; EIO (it could not be made
/// durable: it is visible, and after a power cut present completely or not at all; every open file of it gets the error from its next
/// fsync); EINVAL (too many changes for one transaction).
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_commit(tx: *mut NVMEDFS_TX) -> c_int {
    ffi_guard(|| {
        let (gathered, mount) = take(tx)?;
        mount.run(|fs| Ok(fs.commit(gathered)?)).map(|()| 0)
    })
}

/// Aborts the transaction without effect. Thread-safe. Returns 0, or -1: EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_abort(tx: *mut NVMEDFS_TX) -> c_int {
    ffi_guard(|| end(tx, |_: &Tx| Ok(()), Tx::finish))
}
