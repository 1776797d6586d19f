//! The VFS: names become files.
#![expect(unsafe_code, reason = "SQLite calls these functions with pointers")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use libsqlite3_sys as sys;
use rawfs::fs::{Error, Memory};
use rustix::io::Errno;
use stack::cachedfs::Size;

use crate::api::{self, Api, api};
use crate::databases;
use crate::error::{Outcome, VfsError};
use crate::ffi_guard::ffi_guard;
use crate::image::{self, OpenImage};
use crate::methods::{self, Handle};
use crate::name;
use crate::opened_file::{OPEN_LOCK, OpenedFile};
use crate::super_journal;

/// Bytes of a full name, at most.
const NAME_MAX: c_int = 2048;
const TEMPORARY: c_int =
    sys::SQLITE_OPEN_TEMP_DB | sys::SQLITE_OPEN_TRANSIENT_DB | sys::SQLITE_OPEN_TEMP_JOURNAL | sys::SQLITE_OPEN_SUBJOURNAL;

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Makes SQLite know the VFS `hotshelf`; not its default. Once is enough; again does nothing.
///
/// # Errors
/// SQLite's code.
pub fn register(functions: Api) -> Result<(), c_int> {
    api::set(functions);
    // SAFETY: a name that ends with a zero; null stands for the default.
    let (known, below) = unsafe { ((api().vfs_find)(c"hotshelf".as_ptr()), (api().vfs_find)(std::ptr::null())) };
    if !known.is_null() {
        return Ok(());
    }
    if below.is_null() {
        return Err(sys::SQLITE_ERROR);
    }
    // SAFETY: SQLite's default VFS stays as long as the process.
    let of_below = unsafe { (*below).szOsFile };
    let vfs = Box::new(sys::sqlite3_vfs {
        iVersion: 2,
        szOsFile: of_below.max(size_of::<Handle>() as c_int),
        mxPathname: NAME_MAX,
        pNext: std::ptr::null_mut(),
        zName: c"hotshelf".as_ptr(),
        pAppData: below.cast(),
        xOpen: Some(open),
        xDelete: Some(delete),
        xAccess: Some(access),
        xFullPathname: Some(full_pathname),
        xDlOpen: Some(dl_open),
        xDlError: Some(dl_error),
        xDlSym: Some(dl_sym),
        xDlClose: Some(dl_close),
        xRandomness: Some(randomness),
        xSleep: Some(sleep),
        xCurrentTime: Some(current_time),
        xGetLastError: Some(last_error),
        xCurrentTimeInt64: Some(current_time_64),
        xSetSystemCall: None,
        xGetSystemCall: None,
        xNextSystemCall: None,
    });
    // SAFETY: the structure is whole and stays for ever.
    match unsafe { (api().vfs_register)(Box::leak(vfs), 0) } {
        sys::SQLITE_OK => Ok(()),
        code => Err(code),
    }
}

/// The WAL of a database that is read only.
const WAL_OF_READER: c_int = sys::SQLITE_OPEN_WAL | sys::SQLITE_OPEN_READONLY;

/// Bytes of a name of SQLite's.
///
/// # Safety
/// It is null, or ends with a zero and lives as long as it is used.
unsafe fn bytes<'a>(name: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: as the caller says.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_bytes())
}

/// The image and the path of a full name.
fn place(name: &[u8]) -> Outcome<(OpenImage, &[u8])> {
    place_with(name, None)
}

/// Likewise; an image that is not open yet is, with so much memory.
fn place_with(name: &[u8], memory: Option<Memory>) -> Outcome<(OpenImage, &[u8])> {
    let (image, path) = name::parts(name).ok_or_else(|| VfsError::new(sys::SQLITE_CANTOPEN, "a name without an image"))?;
    Ok((image::hold(image, memory)?, path))
}

/// What a database's URI says of memory.
///
/// # Safety
/// The name is one that SQLite gives for a database.
unsafe fn memory_of(name: *const c_char) -> Outcome<Option<Memory>> {
    // SAFETY: as the caller says; SQLite answers null or a text that ends with a zero.
    let Some(text) = (unsafe { bytes((api().uri_parameter)(name, c"memory".as_ptr())) }) else { return Ok(None) };
    let text = String::from_utf8_lossy(text);
    match text.parse() {
        Ok(Size::Bytes(bytes)) => Ok(Some(Memory::of(usize::try_from(bytes).unwrap_or(usize::MAX)))),
        _ => Err(VfsError::new(sys::SQLITE_CANTOPEN, format!("memory: `{text}` is not a size such as 256MiB"))),
    }
}

unsafe extern "C" fn open(
    vfs: *mut sys::sqlite3_vfs,
    name: *const c_char,
    file: *mut sys::sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: SQLite gives memory of szOsFile bytes; null methods say that nothing is to be closed.
    unsafe { (*file).pMethods = std::ptr::null() };
    if name.is_null() || flags & TEMPORARY != 0 {
        let below = below(vfs);
        // SAFETY: the default VFS, with a file of at least its size; it puts its own methods there.
        return unsafe { (*below).xOpen.map_or(sys::SQLITE_CANTOPEN, |open| open(below, name, file, flags, out)) };
    }
    ffi_guard(|| {
        // SAFETY: SQLite's names end with a zero.
        let bytes = unsafe { bytes(name) }.unwrap_or_default();
        // SAFETY: it is the name of a database.
        let memory = if flags & sys::SQLITE_OPEN_MAIN_DB != 0 { unsafe { memory_of(name) }? } else { None };
        let (opened, flags) = open_named(bytes, flags, memory)?;
        // SAFETY: the memory is ours from here to xClose; `out` is null or a place for a number.
        unsafe {
            methods::begin(file, opened);
            if !out.is_null() {
                *out = flags;
            }
        }
        Ok(())
    })
}

fn open_named(name: &[u8], flags: c_int, memory: Option<Memory>) -> Outcome<(OpenedFile, c_int)> {
    let _lock = OPEN_LOCK.lock();
    let (image, path) = place_with(name, memory)?;
    let flags = image.flags(flags);
    if flags & sys::SQLITE_OPEN_MAIN_DB != 0 {
        let database = databases::open(image, path, flags)?;
        let who = NEXT.fetch_add(1, Ordering::Relaxed);
        let read_only = flags & sys::SQLITE_OPEN_READONLY != 0;
        return Ok((OpenedFile::Database { database, who, read_only, persist_wal: false, powersafe: true }, flags));
    }
    if flags & sys::SQLITE_OPEN_MAIN_JOURNAL != 0
        && let Some(database) = databases::find_by_journal(&image, path)
    {
        if !database.open_the_journal(flags & sys::SQLITE_OPEN_CREATE != 0)? {
            return Err(VfsError::quiet(sys::SQLITE_CANTOPEN));
        }
        return Ok((OpenedFile::Journal(database), flags));
    }
    if flags & sys::SQLITE_OPEN_SUPER_JOURNAL != 0 {
        let path = path.to_vec();
        let there = image.supers.lock().contains_key(&path);
        if !there && flags & sys::SQLITE_OPEN_CREATE == 0 {
            return Err(VfsError::quiet(sys::SQLITE_CANTOPEN));
        }
        image.supers.lock().entry(path.clone()).or_default();
        return Ok((OpenedFile::Super { path, image }, flags));
    }
    let file = match image.open_file(path, flags) {
        // SQLite does not read a database with a WAL that it can neither open nor make: this one is empty, in memory.
        Err(error) if error.errno() == Errno::NOENT && flags & WAL_OF_READER == WAL_OF_READER => {
            return Ok((OpenedFile::Super { path: path.to_vec(), image }, flags));
        }
        opened => opened.map_err(VfsError::of(sys::SQLITE_CANTOPEN, String::from_utf8_lossy(name)))?,
    };
    if flags & sys::SQLITE_OPEN_WAL != 0
        && let Some(database) = databases::find_owner(&image, path, b"-wal")
    {
        database.open_wal(&file)?;
        let who = NEXT.fetch_add(1, Ordering::Relaxed);
        return Ok((OpenedFile::Wal { who, file, database }, flags));
    }
    let gone = (flags & sys::SQLITE_OPEN_DELETEONCLOSE != 0).then(|| path.to_vec());
    Ok((OpenedFile::File { file, gone, image }, flags))
}

unsafe extern "C" fn delete(_: *mut sys::sqlite3_vfs, name: *const c_char, sync: c_int) -> c_int {
    ffi_guard(|| {
        // SAFETY: SQLite's names end with a zero.
        let name = unsafe { bytes(name) }.unwrap_or_default();
        let (image, path) = place(name)?;
        let there = match databases::find_by_journal(&image, path) {
            Some(database) => database.remove_journal()?,
            None if super_journal::remove(&image, path)? => true,
            None => match image.fs.unlink(image.fs.root(), path, &image.creds) {
                Ok(()) => true,
                Err(error) if error.errno() == Errno::NOENT => false,
                Err(error) => return Err(VfsError::of(sys::SQLITE_IOERR_DELETE, String::from_utf8_lossy(name))(error)),
            },
        };
        if !there {
            return Err(VfsError::quiet(sys::SQLITE_IOERR_DELETE_NOENT));
        }
        if sync != 0 {
            let store = image.fs.store();
            let synced = store.sync(store.applied()).map_err(Error::from);
            synced.map_err(VfsError::of(sys::SQLITE_IOERR_DIR_FSYNC, String::from_utf8_lossy(name)))?;
        }
        Ok(())
    })
}

unsafe extern "C" fn access(_: *mut sys::sqlite3_vfs, name: *const c_char, flags: c_int, out: *mut c_int) -> c_int {
    ffi_guard(|| {
        // SAFETY: SQLite's names end with a zero.
        let name = unsafe { bytes(name) }.unwrap_or_default();
        let (image, path) = place(name)?;
        let stat = || image.fs.stat(image.fs.root(), path, true, &image.creds);
        let known = databases::find_by_journal(&image, path).and_then(|database| database.has_journal());
        let known = known.or_else(|| image.supers.lock().contains_key(path).then_some(true));
        let is = match known.map_or_else(|| stat().map(|stat| flags != sys::SQLITE_ACCESS_EXISTS || stat.size > 0), Ok) {
            Ok(is) => is,
            Err(error) if matches!(error.errno(), Errno::NOENT | Errno::NOTDIR) => false,
            Err(error) => return Err(VfsError::of(sys::SQLITE_IOERR_ACCESS, String::from_utf8_lossy(name))(error)),
        };
        // SAFETY: a place for a number.
        unsafe { *out = c_int::from(is) };
        Ok(())
    })
}

unsafe extern "C" fn full_pathname(_: *mut sys::sqlite3_vfs, name: *const c_char, room: c_int, out: *mut c_char) -> c_int {
    ffi_guard(|| {
        // SAFETY: SQLite gives a name of sqlite3_open's with its URI's parameters behind it, since 3.31 also with zeros before it.
        let image = unsafe { bytes((api().uri_parameter)(name, c"image".as_ptr())) };
        // SAFETY: it ends with a zero.
        let name = unsafe { bytes(name) }.unwrap_or_default();
        let image = image.map(|image| PathBuf::from(std::ffi::OsStr::from_bytes(image)));
        let full = name::full(name, image, |path: &Path| image::known(path))?;
        if full.len() >= usize::try_from(room).unwrap_or(0) {
            return Err(VfsError::new(sys::SQLITE_CANTOPEN_FULLPATH, "the names of image and database are too long together"));
        }
        // SAFETY: there is room for it and a zero.
        unsafe {
            std::ptr::copy_nonoverlapping(full.as_ptr(), out.cast::<u8>(), full.len());
            out.add(full.len()).write(0);
        }
        Ok(())
    })
}

/// SQLite's default VFS.
fn below(vfs: *mut sys::sqlite3_vfs) -> *mut sys::sqlite3_vfs {
    // SAFETY: SQLite gives the structure that was registered.
    unsafe { (*vfs).pAppData.cast() }
}

type Symbol = Option<unsafe extern "C" fn(*mut sys::sqlite3_vfs, *mut c_void, *const c_char)>;

/// Passes a call to the default VFS.
macro_rules! passed {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $answer:ty, $method:ident, $else:expr;)*) => {$(
        unsafe extern "C" fn $name(vfs: *mut sys::sqlite3_vfs, $($arg: $type),*) -> $answer {
            let below = below(vfs);
            // SAFETY: the default VFS with what SQLite gave.
            unsafe { (*below).$method.map_or($else, |call| call(below, $($arg),*)) }
        }
    )*};
}

passed! {
    fn dl_open(name: *const c_char) -> *mut c_void, xDlOpen, std::ptr::null_mut();
    fn dl_error(room: c_int, out: *mut c_char) -> (), xDlError, ();
    fn dl_sym(library: *mut c_void, name: *const c_char) -> Symbol, xDlSym, None;
    fn dl_close(library: *mut c_void) -> (), xDlClose, ();
    fn randomness(room: c_int, out: *mut c_char) -> c_int, xRandomness, 0;
    fn sleep(microseconds: c_int) -> c_int, xSleep, 0;
    fn current_time(out: *mut f64) -> c_int, xCurrentTime, sys::SQLITE_ERROR;
    fn last_error(room: c_int, out: *mut c_char) -> c_int, xGetLastError, 0;
    fn current_time_64(out: *mut sys::sqlite3_int64) -> c_int, xCurrentTimeInt64, sys::SQLITE_ERROR;
}
