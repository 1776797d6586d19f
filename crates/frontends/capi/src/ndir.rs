//! Open directories of the library file system.
#![expect(unsafe_code, reason = "called by C; a struct dirent that C reads")]

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_long};
use std::sync::Arc;

use libc::dirent;
use parking_lot::Mutex;
use rustix::fs::{OFlags, SeekFrom};
use stack::rawfs::fs::{DirEntry, File, FileKind};

use crate::api_error::{ApiError, ApiResult};
use crate::guard::ffi_guard;
use crate::memory::offset_of;
use crate::mounted::MountGuard;
use crate::nfiles::share;
use crate::nplace::{DirPath, from_root};
use crate::ntypes::{NVMEDFS, NVMEDFS_DIR};
use crate::objects::{CloseOrder, ObjectKind, end, enroll, with};

/// Number of entries read at once.
const BATCH: usize = 128;

/// An open directory stream of the library file system.
pub struct NDir(Mutex<Option<DirStream>>);

struct DirStream {
    file: Arc<File>,
    /// Entries read ahead, each with the position behind it.
    ahead: VecDeque<(DirEntry, u64)>,
    /// Position behind the last returned entry.
    at: u64,
    /// The entry that readdir returned.
    entry_buf: Box<dirent>,
    /// Dropped after the file.
    _mount: MountGuard,
}

impl DirStream {
    fn new(file: Arc<File>, mount: MountGuard) -> DirStream {
        // SAFETY: integers alone, for which zeroes are values.
        let entry_buf = Box::new(unsafe { std::mem::zeroed() });
        DirStream { file, ahead: VecDeque::new(), at: 0, entry_buf, _mount: mount }
    }

    fn next(&mut self) -> ApiResult<*mut dirent> {
        if self.ahead.is_empty() {
            let ahead = &mut self.ahead;
            self.file.read_dir(&mut |entry, behind| {
                let has_room = ahead.len() < BATCH;
                if has_room {
                    ahead.push_back((entry.clone(), behind));
                }
                has_room
            })?;
        }
        let Some((entry, behind)) = self.ahead.pop_front() else { return Ok(std::ptr::null_mut()) };
        self.at = behind;
        (self.entry_buf.d_ino, self.entry_buf.d_off, self.entry_buf.d_type) = (entry.ino as _, behind.cast_signed(), kind_of(entry.kind));
        self.entry_buf.d_reclen = size_of::<dirent>() as _;
        self.entry_buf.d_name.fill(0);
        self.entry_buf.d_name.iter_mut().zip(&entry.name).for_each(|(to, from)| *to = *from as c_char);
        Ok(&raw mut *self.entry_buf)
    }

    fn go(&mut self, to: u64) -> ApiResult<c_int> {
        self.file.seek(SeekFrom::Start(to))?;
        self.ahead.clear();
        self.at = to;
        Ok(0)
    }
}

fn kind_of(kind: FileKind) -> u8 {
    match kind {
        FileKind::File => libc::DT_REG,
        FileKind::Dir => libc::DT_DIR,
        FileKind::Symlink => libc::DT_LNK,
        FileKind::Fifo => libc::DT_FIFO,
        FileKind::Socket => libc::DT_SOCK,
        FileKind::CharDevice => libc::DT_CHR,
        FileKind::BlockDevice => libc::DT_BLK,
    }
}

impl NDir {
    fn stream<T>(&self, call: impl FnOnce(&mut DirStream) -> ApiResult<T>) -> ApiResult<T> {
        let mut stream = self.0.lock();
        call(stream.as_mut().ok_or_else(|| ApiError::new(libc::EBADF, "the directory is closed"))?)
    }
}

impl ObjectKind for NDir {
    const NAME: &'static str = "NVMEDFS_DIR";
    const CLOSE_ORDER: CloseOrder = CloseOrder::FileSystemDirectory;
    /// Closes the stream; does nothing the second time.
    fn finish(&self) -> ApiResult<()> {
        drop(self.0.lock().take());
        Ok(())
    }
}

fn stream_of(file: Arc<File>, mount: MountGuard) -> ApiResult<*mut NVMEDFS_DIR> {
    if file.node().kind() != FileKind::Dir {
        return Err(ApiError::new(libc::ENOTDIR, "it is no directory"));
    }
    enroll(Arc::new(NDir(Mutex::new(Some(DirStream::new(file, mount))))))
}

fn open(at: &DirPath<'_>) -> ApiResult<*mut NVMEDFS_DIR> {
    let file = at.fs.open_at(at.node, at.path, OFlags::DIRECTORY, 0, &at.creds)?;
    stream_of(Arc::new(file), at.mount.used())
}

/// Works like opendir(3). Thread-safe. Returns the directory, or NULL: any error of opendir(3); EMFILE.
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_opendir(fs: *mut NVMEDFS, path: *const c_char) -> *mut NVMEDFS_DIR {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { from_root(fs, path, open) })
}

/// Works like fdopendir(3), but the file number stays open with its own position. Thread-safe. Returns as nvmedfs_opendir.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_fdopendir(fd: c_int) -> *mut NVMEDFS_DIR {
    ffi_guard(|| {
        let open = share(fd)?;
        open.mount.run(|fs| {
            let file = fs.open_node(open.file.node(), OFlags::DIRECTORY, &open.mount.creds())?;
            stream_of(Arc::new(file), open.mount.used())
        })
    })
}

/// Works like readdir(3): entries that exist all the time are returned once, whatever changes meanwhile. Thread-safe, but the result is
/// valid only until the next call for the same directory.
///
/// Returns the next entry; or NULL: at the end (errno is unchanged), or EBADF, ENOENT (the directory was removed), EIO.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_readdir(dir: *mut NVMEDFS_DIR) -> *mut dirent {
    ffi_guard(|| with(dir, |dir: &Arc<NDir>| dir.stream(DirStream::next)))
}

/// Works like telldir(3). Thread-safe. Returns a position for nvmedfs_seekdir, or -1: EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_telldir(dir: *mut NVMEDFS_DIR) -> c_long {
    ffi_guard(|| with(dir, |dir: &Arc<NDir>| dir.stream(|stream| Ok(stream.at.cast_signed()))))
}

/// Works like seekdir(3), to a position of nvmedfs_telldir for this directory. Thread-safe. Returns 0, or -1: EBADF, EINVAL.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_seekdir(dir: *mut NVMEDFS_DIR, place: c_long) -> c_int {
    ffi_guard(|| {
        let to = offset_of(place)?;
        with(dir, |dir: &Arc<NDir>| dir.stream(|stream| stream.go(to)))
    })
}

/// Works like rewinddir(3). Thread-safe. Returns 0, or -1: EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_rewinddir(dir: *mut NVMEDFS_DIR) -> c_int {
    ffi_guard(|| with(dir, |dir: &Arc<NDir>| dir.stream(|stream| stream.go(0))))
}

/// Works like closedir(3). Thread-safe. Returns 0, or -1: EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_closedir(dir: *mut NVMEDFS_DIR) -> c_int {
    ffi_guard(|| end(dir, |_: &NDir| Ok(()), NDir::finish))
}
