//! What the kernel calls a file: a handle (name_to_handle_at(2)), of inode and generation, that no later file gets.
#![cfg_attr(not(miri), expect(unsafe_code, reason = "a system call that nobody wraps"))]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

/// open_by_handle_at(2): MAX_HANDLE_SZ.
const BYTES_MAX: usize = 128;

/// A file handle of the kernel. It is unique within a file system.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FileHandle {
    kind: i32,
    len: usize,
    bytes: [u8; BYTES_MAX],
}

impl FileHandle {
    /// Of an open file.
    ///
    /// # Errors
    /// EOPNOTSUPP: its file system has none (some of FUSE, overlays). ENOSYS and EPERM: not allowed here.
    pub fn of(fd: impl AsFd) -> Result<FileHandle, Errno> {
        ask(fd.as_fd())
    }

    /// Opens the file by its handle, for its name alone (`O_PATH`). `on` is a file of the same file system, open for reading.
    ///
    /// # Errors
    /// ESTALE: the file was removed. EPERM: the process lacks CAP_DAC_READ_SEARCH.
    pub fn open(&self, on: impl AsFd) -> Result<OwnedFd, Errno> {
        open(self, on.as_fd())
    }

    /// Returns a handle of the parts that [`FileHandle::kind`] and [`FileHandle::bytes`] gave, or none if there are too many bytes.
    pub fn from_parts(kind: i32, parts: &[u8]) -> Option<FileHandle> {
        let mut bytes = [0; BYTES_MAX];
        bytes.get_mut(..parts.len())?.copy_from_slice(parts);
        Some(FileHandle { kind, len: parts.len(), bytes })
    }

    /// How its bytes are meant, which the file system knows.
    pub fn kind(&self) -> i32 {
        self.kind
    }

    /// Returns the bytes of the handle.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// `struct file_handle` of the C library, with room.
#[cfg(not(miri))]
#[repr(C)]
struct Raw {
    bytes: u32,
    kind: std::ffi::c_int,
    handle: [u8; BYTES_MAX],
}

#[cfg(not(miri))]
fn open(handle: &FileHandle, on: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    use std::ffi::c_int;
    use std::os::fd::{AsRawFd, FromRawFd};

    // SAFETY: as declared by glibc and musl in fcntl.h.
    unsafe extern "C" {
        fn open_by_handle_at(mount_fd: c_int, handle: *mut Raw, flags: c_int) -> c_int;
    }

    let mut raw = Raw { bytes: handle.len as u32, kind: handle.kind, handle: handle.bytes };
    // SAFETY: a handle with as many bytes as it says, which lives across the call.
    let fd = unsafe { open_by_handle_at(on.as_raw_fd(), &raw mut raw, libc::O_PATH | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    // SAFETY: the kernel has just made this descriptor, which nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(miri)]
fn open(_: &FileHandle, _: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    Err(Errno::NOSYS)
}

#[cfg(not(miri))]
fn ask(fd: BorrowedFd<'_>) -> Result<FileHandle, Errno> {
    use std::ffi::{c_char, c_int};
    use std::os::fd::AsRawFd;

    const AT_EMPTY_PATH: c_int = 0x1000;

    // SAFETY: as declared by glibc and musl in fcntl.h.
    unsafe extern "C" {
        fn name_to_handle_at(dirfd: c_int, path: *const c_char, handle: *mut Raw, mount_id: *mut c_int, flags: c_int) -> c_int;
    }

    let mut raw = Raw { bytes: BYTES_MAX as u32, kind: 0, handle: [0; BYTES_MAX] };
    let mut mount_id = 0;
    // SAFETY: a path that ends with a zero; a handle with the room that it says; both live across the call.
    let failed = unsafe { name_to_handle_at(fd.as_raw_fd(), c"".as_ptr(), &raw mut raw, &raw mut mount_id, AT_EMPTY_PATH) } != 0;
    if failed {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(FileHandle { kind: raw.kind, len: (raw.bytes as usize).min(BYTES_MAX), bytes: raw.handle })
}

#[cfg(miri)]
fn ask(_: BorrowedFd<'_>) -> Result<FileHandle, Errno> {
    Err(Errno::NOSYS)
}

#[cfg(all(test, not(miri)))]
mod test {
    use super::*;
    use rustix::fs::{CWD, Mode, OFlags, fstat, openat, renameat, unlinkat};

    #[test]
    fn a_file_keeps_its_handle_and_no_other_gets_it() {
        let name = std::env::temp_dir().join(format!("handle-{}", std::process::id()));
        let other = name.with_extension("other");
        let open = || openat(CWD, &name, OFlags::CREATE | OFlags::RDWR, Mode::RUSR | Mode::WUSR).expect("opened");
        let first = open();
        let Ok(handle) = FileHandle::of(&first) else { return unlinkat(CWD, &name, rustix::fs::AtFlags::empty()).expect("unlinked") };
        renameat(CWD, &name, CWD, &other).expect("renamed");
        assert_eq!(FileHandle::of(&first), Ok(handle));
        let inode = fstat(&first).expect("stat").st_ino;
        unlinkat(CWD, &other, rustix::fs::AtFlags::empty()).expect("unlinked");
        drop(first);
        let second = open();
        let again = fstat(&second).expect("stat").st_ino;
        unlinkat(CWD, &name, rustix::fs::AtFlags::empty()).expect("unlinked");
        assert_ne!(FileHandle::of(&second), Ok(handle), "inode {inode}, then {again}");
    }
}
