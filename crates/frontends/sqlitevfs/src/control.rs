//! What SQLite tells and asks beside reads and writes.
#![expect(unsafe_code, reason = "arguments are pointers to what the operation says")]

use std::ffi::{CStr, c_char, c_int, c_void};

use libsqlite3_sys as sys;

use crate::api;
use crate::database::Database;
use crate::error::{Outcome, VfsError};
use crate::opened_file::OpenedFile;

/// SQLITE_FCNTL_NULL_IO and what else is not said to be known, is not.
const UNKNOWN: VfsError = VfsError { code: sys::SQLITE_NOTFOUND, words: String::new() };

/// One operation.
///
/// # Safety
/// `arg` is what SQLite says of `op`.
pub unsafe fn control(open: &mut OpenedFile, op: c_int, arg: *mut c_void) -> Outcome<()> {
    let OpenedFile::Database { database, who, persist_wal, powersafe, .. } = open else { return Err(UNKNOWN) };
    match op {
        sys::SQLITE_FCNTL_BEGIN_ATOMIC_WRITE => database.begin_batch(),
        sys::SQLITE_FCNTL_COMMIT_ATOMIC_WRITE => database.end_batch()?,
        sys::SQLITE_FCNTL_ROLLBACK_ATOMIC_WRITE => database.undo_batch(),
        sys::SQLITE_FCNTL_CKPT_START => database.checkpoint_begins()?,
        sys::SQLITE_FCNTL_CKPT_DONE => database.is_over(),
        sys::SQLITE_FCNTL_COMMIT_PHASETWO => database.is_committed()?,
        // Blocks have no place before they are written, and room is not set aside.
        sys::SQLITE_FCNTL_SIZE_HINT | sys::SQLITE_FCNTL_CHUNK_SIZE => {}
        // SAFETY: a number, to be set unless it is negative, and told.
        sys::SQLITE_FCNTL_PERSIST_WAL => unsafe { switch(persist_wal, arg) },
        // SAFETY: the same.
        sys::SQLITE_FCNTL_POWERSAFE_OVERWRITE => unsafe { switch(powersafe, arg) },
        // SAFETY: a place for a number.
        sys::SQLITE_FCNTL_LOCKSTATE => unsafe { arg.cast::<c_int>().write(database.locks.level(*who)) },
        // SAFETY: the same. Nobody else can move the file, or read it.
        sys::SQLITE_FCNTL_HAS_MOVED | sys::SQLITE_FCNTL_EXTERNAL_READER => unsafe { arg.cast::<c_int>().write(0) },
        // SAFETY: a place for text that SQLite frees.
        sys::SQLITE_FCNTL_VFSNAME => unsafe { arg.cast::<*mut c_char>().write(api::text("hotshelf")) },
        // SAFETY: three strings: the answer, the pragma's name, its argument.
        sys::SQLITE_FCNTL_PRAGMA => return unsafe { pragma(database, arg.cast()) },
        _ => return Err(UNKNOWN),
    }
    Ok(())
}

/// # Safety
/// A number.
unsafe fn switch(on: &mut bool, arg: *mut c_void) {
    let arg = arg.cast::<c_int>();
    // SAFETY: as the caller says.
    unsafe {
        if *arg >= 0 {
            *on = *arg != 0;
        }
        *arg = c_int::from(*on);
    }
}

/// # Safety
/// Three strings; the first is null and is to be filled in.
unsafe fn pragma(database: &Database, strings: *mut *mut c_char) -> Outcome<()> {
    // SAFETY: the name is a string.
    let name = unsafe { CStr::from_ptr(*strings.add(1)) };
    let image = database.image();
    let words = match name.to_bytes() {
        b"hotshelf_image" => image.name.display().to_string(),
        b"hotshelf_requests" => {
            let counts = image.fs.store().disk().counts();
            format!("reads {} writes {} written_bytes {} flushes {}", counts.reads, counts.writes, counts.written_bytes, counts.flushes)
        }
        _ => return Err(UNKNOWN),
    };
    // SAFETY: the first is the answer's place.
    unsafe { strings.write(api::text(&words)) };
    Ok(())
}
