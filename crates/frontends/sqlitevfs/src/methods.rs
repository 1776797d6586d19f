//! What SQLite calls on an open file.
#![expect(unsafe_code, reason = "SQLite calls these functions with pointers")]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{Ordering, fence};

use libsqlite3_sys as sys;
use rawfs::fs::Error;
use rustix::io::Errno;

use crate::control;
use crate::database::Database;
use crate::error::{Outcome, VfsError};
use crate::ffi_guard::ffi_guard;
use crate::image::OpenImage;
use crate::opened_file::{OPEN_LOCK, OpenedFile};

/// What SQLite has for a file: its own part, then ours.
#[repr(C)]
pub struct Handle {
    base: sys::sqlite3_file,
    open: *mut OpenedFile,
}

/// Fills in the memory SQLite gave for a file.
///
/// # Safety
/// There are at least as many bytes as a [`Handle`] has, and nobody uses them.
pub unsafe fn begin(file: *mut sys::sqlite3_file, open: OpenedFile) {
    let methods = if matches!(open, OpenedFile::Database { .. }) { &DATABASE } else { &PLAIN };
    let handle = Handle { base: sys::sqlite3_file { pMethods: methods }, open: Box::into_raw(Box::new(open)) };
    // SAFETY: as the caller says.
    unsafe { file.cast::<Handle>().write(handle) }
}

/// What is behind a file that [`begin`] filled in.
///
/// # Safety
/// It was, and is not closed; one thread at a time calls, as SQLite sees to.
unsafe fn open_of<'a>(file: *mut sys::sqlite3_file) -> &'a mut OpenedFile {
    // SAFETY: as the caller says.
    unsafe { &mut *(*file.cast::<Handle>()).open }
}

const DATABASE: sys::sqlite3_io_methods = sys::sqlite3_io_methods {
    iVersion: 2,
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    ..PLAIN
};

const PLAIN: sys::sqlite3_io_methods = sys::sqlite3_io_methods {
    iVersion: 1,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(characteristics),
    xShmMap: None,
    xShmLock: None,
    xShmBarrier: None,
    xShmUnmap: None,
    xFetch: None,
    xUnfetch: None,
};

unsafe extern "C" fn close(file: *mut sys::sqlite3_file) -> c_int {
    ffi_guard(|| {
        let _lock = OPEN_LOCK.lock();
        // SAFETY: SQLite closes a file once; what `begin` put there is taken back.
        let open = unsafe {
            let handle = &mut *file.cast::<Handle>();
            handle.base.pMethods = std::ptr::null();
            Box::from_raw(std::mem::replace(&mut handle.open, std::ptr::null_mut()))
        };
        match *open {
            OpenedFile::Database { database, who, .. } => {
                database.locks.unlock(who, sys::SQLITE_LOCK_NONE);
                database.shm.lock().leave(who);
                Ok(())
            }
            OpenedFile::Wal { file, database, .. } => {
                drop(file);
                database.close_wal();
                Ok(())
            }
            OpenedFile::Journal(_) | OpenedFile::Super { .. } | OpenedFile::File { gone: None, .. } => Ok(()),
            OpenedFile::File { file, gone: Some(path), image } => {
                drop(file);
                let removed = image.fs.unlink(image.fs.root(), &path, &image.creds);
                removed.map_err(VfsError::of(sys::SQLITE_IOERR_DELETE, "removing a file"))
            }
        }
    })
}

/// Looks at a super-journal, or changes it.
fn of_super<T>(image: &OpenImage, path: &[u8], with: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    with(image.supers.lock().entry(path.to_vec()).or_default())
}

unsafe extern "C" fn read(file: *mut sys::sqlite3_file, to: *mut c_void, len: c_int, at: sys::sqlite3_int64) -> c_int {
    ffi_guard(|| {
        // SAFETY: an open file, and memory for so many bytes that is nobody else's meanwhile.
        let (open, to) = unsafe { (open_of(file), std::slice::from_raw_parts_mut(to.cast::<u8>(), len as usize)) };
        let at = at as u64;
        let done = match open {
            OpenedFile::Database { database, .. } => database.read(to, at)?,
            OpenedFile::Journal(database) => database.read_journal(to, at)?,
            OpenedFile::Super { path, image } => of_super(image, path, |bytes| {
                let from = (at as usize).min(bytes.len());
                let len = to.len().min(bytes.len() - from);
                to[..len].copy_from_slice(&bytes[from..from + len]);
                len
            }),
            OpenedFile::Wal { file, .. } | OpenedFile::File { file, .. } => {
                file.read_at(to, at).map_err(VfsError::of(sys::SQLITE_IOERR_READ, "reading"))?
            }
        };
        if done == to.len() {
            return Ok(());
        }
        to[done..].fill(0);
        Err(VfsError::quiet(sys::SQLITE_IOERR_SHORT_READ))
    })
}

unsafe extern "C" fn write(file: *mut sys::sqlite3_file, from: *const c_void, len: c_int, at: sys::sqlite3_int64) -> c_int {
    ffi_guard(|| {
        // SAFETY: an open file, and so many bytes that nobody changes meanwhile.
        let (open, from) = unsafe { (open_of(file), std::slice::from_raw_parts(from.cast::<u8>(), len as usize)) };
        let at = at as u64;
        match open {
            OpenedFile::Database { read_only: true, .. } => Err(VfsError::quiet(sys::SQLITE_READONLY)),
            OpenedFile::Database { database, .. } => database.write(from, at),
            OpenedFile::Journal(database) => database.write_journal(from, at),
            OpenedFile::Super { path, image } => {
                of_super(image, path, |bytes| {
                    bytes.resize(bytes.len().max(at as usize + from.len()), 0);
                    bytes[at as usize..][..from.len()].copy_from_slice(from);
                });
                Ok(())
            }
            OpenedFile::Wal { who, file, database } => database.write_wal(*who, file, from, at),
            OpenedFile::File { file, .. } => {
                let fault = || VfsError::of(sys::SQLITE_IOERR_WRITE, "writing");
                let done = file.write_at(from, at).map_err(fault())?;
                if done < from.len() { Err(fault()(Error::Refused(Errno::NOSPC))) } else { Ok(()) }
            }
        }
    })
}

unsafe extern "C" fn truncate(file: *mut sys::sqlite3_file, len: sys::sqlite3_int64) -> c_int {
    ffi_guard(|| {
        // SAFETY: an open file.
        match unsafe { open_of(file) } {
            OpenedFile::Database { database, .. } => database.set_len(len as u64),
            OpenedFile::Journal(database) => database.set_journal_len(len as u64),
            OpenedFile::Super { path, image } => {
                of_super(image, path, |bytes| bytes.resize(len as usize, 0));
                Ok(())
            }
            OpenedFile::Wal { file, .. } | OpenedFile::File { file, .. } => {
                file.set_len(len as u64).map_err(VfsError::of(sys::SQLITE_IOERR_TRUNCATE, "truncating"))
            }
        }
    })
}

unsafe extern "C" fn sync(file: *mut sys::sqlite3_file, _: c_int) -> c_int {
    ffi_guard(|| {
        // SAFETY: an open file.
        match unsafe { open_of(file) } {
            OpenedFile::Database { database, .. } => database.sync(),
            OpenedFile::Journal(database) => database.sync_journal(),
            // A crash leaves the databases as they were.
            OpenedFile::Super { .. } => Ok(()),
            OpenedFile::Wal { who, file, database } => database.sync_wal(*who, file),
            OpenedFile::File { file, .. } => file.sync().map_err(VfsError::of(sys::SQLITE_IOERR_FSYNC, "making it durable")),
        }
    })
}

unsafe extern "C" fn size(file: *mut sys::sqlite3_file, out: *mut sys::sqlite3_int64) -> c_int {
    ffi_guard(|| {
        // SAFETY: an open file.
        let len = match unsafe { open_of(file) } {
            OpenedFile::Database { database, .. } => database.len(),
            OpenedFile::Journal(database) => database.journal_len()?,
            OpenedFile::Super { path, image } => of_super(image, path, |bytes| bytes.len() as u64),
            OpenedFile::Wal { file, .. } | OpenedFile::File { file, .. } => {
                file.node().stat().map_err(VfsError::of(sys::SQLITE_IOERR_FSTAT, "the size"))?.size
            }
        };
        // SAFETY: a place for a number.
        unsafe { *out = len as sys::sqlite3_int64 };
        Ok(())
    })
}

/// The database and the connection; locks are of databases alone.
fn connection(open: &OpenedFile) -> Option<(&Database, u64)> {
    if let OpenedFile::Database { database, who, .. } = open { Some((database, *who)) } else { None }
}

fn granted(yes: bool) -> Outcome<()> {
    if yes { Ok(()) } else { Err(VfsError::quiet(sys::SQLITE_BUSY)) }
}

unsafe extern "C" fn lock(file: *mut sys::sqlite3_file, level: c_int) -> c_int {
    // SAFETY: an open file.
    let open = unsafe { open_of(file) };
    ffi_guard(|| connection(open).map_or(Ok(()), |(database, who)| granted(database.locks.lock(who, level))))
}

unsafe extern "C" fn unlock(file: *mut sys::sqlite3_file, level: c_int) -> c_int {
    // SAFETY: an open file.
    let open = unsafe { open_of(file) };
    ffi_guard(|| {
        let Some((database, who)) = connection(open) else { return Ok(()) };
        let writes = database.locks.level(who) >= sys::SQLITE_LOCK_RESERVED;
        if writes {
            database.is_unlocked();
        }
        database.locks.unlock(who, level);
        Ok(())
    })
}

unsafe extern "C" fn check_reserved(file: *mut sys::sqlite3_file, out: *mut c_int) -> c_int {
    ffi_guard(|| {
        // SAFETY: an open file.
        let is = connection(unsafe { open_of(file) }).is_some_and(|(database, _)| database.locks.is_reserved());
        // SAFETY: a place for a number.
        unsafe { *out = c_int::from(is) };
        Ok(())
    })
}

unsafe extern "C" fn file_control(file: *mut sys::sqlite3_file, op: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: an open file.
    let open = unsafe { open_of(file) };
    // SAFETY: what `arg` is follows from `op`, as SQLite says.
    ffi_guard(|| unsafe { control::control(open, op, arg) })
}

unsafe extern "C" fn sector_size(_: *mut sys::sqlite3_file) -> c_int {
    rawfs::BLOCK_BYTES as c_int
}

/// What is so here because data is never overwritten in place: a write is whole or not there, harms nothing beside it, and a file is
/// never longer than what was written. Not SEQUENTIAL: files are written back in an order of their own.
unsafe extern "C" fn characteristics(file: *mut sys::sqlite3_file) -> c_int {
    let always = sys::SQLITE_IOCAP_SAFE_APPEND;
    // SAFETY: an open file.
    match unsafe { open_of(file) } {
        OpenedFile::Database { powersafe, .. } => {
            let powersafe = if *powersafe { sys::SQLITE_IOCAP_POWERSAFE_OVERWRITE } else { 0 };
            always | powersafe | sys::SQLITE_IOCAP_ATOMIC | sys::SQLITE_IOCAP_BATCH_ATOMIC
        }
        OpenedFile::Journal(_) | OpenedFile::Super { .. } | OpenedFile::Wal { .. } | OpenedFile::File { .. } => {
            always | sys::SQLITE_IOCAP_POWERSAFE_OVERWRITE
        }
    }
}

unsafe extern "C" fn shm_map(file: *mut sys::sqlite3_file, index: c_int, bytes: c_int, make: c_int, out: *mut *mut c_void) -> c_int {
    ffi_guard(|| {
        // SAFETY: an open file.
        let (database, who) = connection(unsafe { open_of(file) }).ok_or(VfsError::quiet(sys::SQLITE_IOERR_SHMMAP))?;
        let region = database.shm.lock().map(who, index as usize, bytes as usize, make != 0);
        // SAFETY: a place for a pointer.
        unsafe { *out = region.unwrap_or(std::ptr::null_mut()) };
        region.map(drop).ok_or(VfsError::quiet(sys::SQLITE_NOMEM))
    })
}

unsafe extern "C" fn shm_lock(file: *mut sys::sqlite3_file, at: c_int, count: c_int, flags: c_int) -> c_int {
    ffi_guard(|| {
        // SAFETY: an open file.
        let (database, who) = connection(unsafe { open_of(file) }).ok_or(VfsError::quiet(sys::SQLITE_IOERR_SHMLOCK))?;
        let range = at as usize..(at + count) as usize;
        if range.end > sys::SQLITE_SHM_NLOCK as usize {
            return Err(VfsError::quiet(sys::SQLITE_IOERR_SHMLOCK));
        }
        let mut shm = database.shm.lock();
        if flags & sys::SQLITE_SHM_UNLOCK != 0 {
            // The first is the write lock.
            let ends = range.contains(&0);
            shm.unlock(who, range);
            drop(shm);
            if ends {
                database.wal_is_unlocked();
            }
            return Ok(());
        }
        granted(shm.lock(who, range, flags & sys::SQLITE_SHM_EXCLUSIVE != 0))
    })
}

unsafe extern "C" fn shm_barrier(_: *mut sys::sqlite3_file) {
    fence(Ordering::SeqCst);
}

unsafe extern "C" fn shm_unmap(file: *mut sys::sqlite3_file, _: c_int) -> c_int {
    // SAFETY: an open file.
    let open = unsafe { open_of(file) };
    ffi_guard(|| {
        if let Some((database, who)) = connection(open) {
            database.shm.lock().leave(who);
        }
        Ok(())
    })
}
