//! Asynchronous requests of the library file system, as C submits them; `nrequests.rs` executes them.
#![expect(unsafe_code, reason = "called by C")]

use std::ffi::{c_char, c_int};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use libc::{iovec, timespec};
use stack::rawfs::fs::Fs;

use crate::api_error::{ApiError, ApiResult};
use crate::guard::ffi_guard;
use crate::memory::{self, Memory, offset_of};
use crate::mounted::Mount;
use crate::nfd;
use crate::nfiles::{Open, share};
use crate::nname;
use crate::nplace::{DirPath, below_dir, below_root};
use crate::nrequests::{Aio, CompletionNotice, QueuedRead, guarded, write_all};
use crate::ntx;
use crate::ntypes::*;
use crate::objects::{ObjectKind as _, end, enroll, with};
use crate::options::{self, Versioned};
use crate::uqueue::time_of;

/// Maximum number of unreaped requests of one NVMEDFS_AIO.
const DEPTH_MAX: u32 = 1 << 16;

// SAFETY: integers, raw pointers and a function that may be NULL, `usize` first.
unsafe impl Versioned for nvmedfs_io {
    fn defaults() -> Self {
        nvmedfs_io::default()
    }
}

/// Fills a struct nvmedfs_io with its size, AT_FDCWD for directories, and zeroes. Thread-safe.
///
/// `size` is sizeof *io. Returns 0, or -1: EFAULT (NULL), EINVAL (no such size).
///
/// # Safety
/// `io` is NULL or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_io_init(io: *mut nvmedfs_io, size: usize) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { options::write(io, size, Versioned::defaults()) })
}

/// Creates a queue for asynchronous requests of a file system: `depth` unreaped requests, 1 to 65536. Thread-safe.
///
/// Returns it, or NULL: EBADF; EINVAL (depth); EMFILE.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_aio_create(fs: *mut NVMEDFS, depth: u32) -> *mut NVMEDFS_AIO {
    ffi_guard(|| {
        if !(1..=DEPTH_MAX).contains(&depth) {
            return Err(ApiError::new(libc::EINVAL, format!("a depth of {depth}: 1 to {DEPTH_MAX}")));
        }
        with(fs, |mount: &Arc<Mount>| mount.run(|_| enroll(Aio::new(mount, depth)?)))
    })
}

/// A path with its base directory, kept as long as the request.
struct RequestPath {
    dir: Option<Arc<Open>>,
    path: Vec<u8>,
}

impl RequestPath {
    /// # Safety
    /// `path` is NULL or a string.
    unsafe fn new(aio: &Aio, dir: c_int, path: *const c_char) -> ApiResult<RequestPath> {
        // SAFETY: the caller's promise.
        let path = unsafe { memory::bytes(path, "the path") }?.to_vec();
        let dir = if dir == libc::AT_FDCWD { None } else { Some(of(aio, dir)?) };
        Ok(RequestPath { dir, path })
    }

    fn run<T>(&self, mount: &Arc<Mount>, call: impl FnOnce(&DirPath<'_>) -> ApiResult<T>) -> ApiResult<T> {
        match &self.dir {
            None => below_root(mount, &self.path, call),
            Some(open) => below_dir(open, &self.path, call),
        }
    }
}

/// Returns an open file of this file system.
fn of(aio: &Aio, fd: c_int) -> ApiResult<Arc<Open>> {
    let open = share(fd)?;
    let is_ours = Arc::ptr_eq(&open.mount, aio.mount());
    if is_ours { Ok(open) } else { Err(ApiError::new(libc::EXDEV, "the file is in another file system than the requests")) }
}

/// The operation of a request, with everything it needs.
enum AioOp {
    Read(QueuedRead),
    Write { open: Arc<Open>, parts: Vec<Memory>, at: u64 },
    Sync(Arc<Open>),
    Commit(*const NVMEDFS_TX),
    Call(Call),
}

/// Any other operation, executed in order.
type Call = Box<dyn FnOnce(&Arc<Mount>) -> ApiResult<i64> + Send>;

/// # Safety
/// As for a request of `nvmedfs_aio_submit`.
unsafe fn parts_of(io: &nvmedfs_io) -> ApiResult<Vec<Memory>> {
    if matches!(io.op, NVMEDFS_OP_PREAD | NVMEDFS_OP_PWRITE) {
        // SAFETY: the caller's promise.
        return Ok(vec![unsafe { Memory::new(io.buf, io.n) }?]);
    }
    let count = c_int::try_from(io.n).unwrap_or(c_int::MAX);
    let list: *const iovec = io.buf.cast_const().cast();
    // SAFETY: the caller's promise.
    let parts = unsafe { memory::parts(list, count) }?;
    // SAFETY: likewise.
    parts.iter().map(|part| unsafe { Memory::new(part.iov_base, part.iov_len) }).collect()
}

/// # Safety
/// As for a request of `nvmedfs_aio_submit`.
unsafe fn job_of(aio: &Arc<Aio>, io: &nvmedfs_io) -> ApiResult<AioOp> {
    match io.op {
        NVMEDFS_OP_PREAD | NVMEDFS_OP_PREADV | NVMEDFS_OP_PWRITE | NVMEDFS_OP_PWRITEV => {
            // SAFETY: the caller's promise.
            let (open, at, parts) = (of(aio, io.fd)?, offset_of(io.off)?, unsafe { parts_of(io) }?);
            open.check_direct(&parts, Some(at))?;
            let reads = matches!(io.op, NVMEDFS_OP_PREAD | NVMEDFS_OP_PREADV);
            Ok(if reads { AioOp::Read(QueuedRead { open, parts, at }) } else { AioOp::Write { open, parts, at } })
        }
        NVMEDFS_OP_FSYNC | NVMEDFS_OP_FDATASYNC => Ok(AioOp::Sync(of(aio, io.fd)?)),
        NVMEDFS_OP_FTRUNCATE => {
            let (open, len) = (of(aio, io.fd)?, offset_of(io.off)?);
            Ok(AioOp::Call(Box::new(move |_| open.run(|file| Ok(file.set_len(len).map(|()| 0)?)))))
        }
        NVMEDFS_OP_COMMIT => Ok(AioOp::Commit(io.tx.cast_const())),
        NVMEDFS_OP_SYNC => Ok(AioOp::Call(Box::new(|mount| mount.run(|fs| Ok(fs.sync().map(|()| 0)?))))),
        // SAFETY: the caller's promise.
        _ => unsafe { names_of(aio, io) }.map(AioOp::Call),
    }
}

/// Returns an operation on names.
///
/// # Safety
/// As for a request of `nvmedfs_aio_submit`.
unsafe fn names_of(aio: &Arc<Aio>, io: &nvmedfs_io) -> ApiResult<Call> {
    let (op, flags, mode) = (io.op, io.flags, io.mode);
    if !matches!(op, NVMEDFS_OP_OPEN | NVMEDFS_OP_UNLINK | NVMEDFS_OP_MKDIR | NVMEDFS_OP_RENAME) {
        return Err(ApiError::new(libc::EINVAL, format!("op {op} of a request: NVMEDFS_OP_...")));
    }
    // SAFETY: the caller's promise.
    let place = unsafe { RequestPath::new(aio, io.fd, io.path) }?;
    if op == NVMEDFS_OP_RENAME {
        // SAFETY: the caller's promise.
        let (to, flags) = (unsafe { RequestPath::new(aio, io.fd2, io.path2) }?, flags.cast_unsigned());
        let rename = move |mount: &Arc<Mount>| place.run(mount, |from| to.run(mount, |to| nname::rename(from, to, flags))).map(i64::from);
        return Ok(Box::new(rename));
    }
    let call = move |at: &DirPath<'_>| match op {
        NVMEDFS_OP_OPEN => nfd::open_at(at, flags, mode),
        NVMEDFS_OP_UNLINK => nname::unlink_at(at, flags),
        _ => nname::mkdir(at, mode),
    };
    Ok(Box::new(move |mount| place.run(mount, call).map(i64::from)))
}

/// Starts the request; its completion is always delivered.
fn begin(aio: &Arc<Aio>, job: AioOp, notice: CompletionNotice) -> ApiResult<()> {
    let mount = aio.mount();
    match job {
        AioOp::Read(read) => aio.read(read, notice),
        AioOp::Write { open, mut parts, at } if parts.len() == 1 => {
            let (file, memory) = (Arc::clone(&open.file), parts.remove(0));
            with_fs(mount, |fs| fs.write_then(&file, memory, at, end_of(notice, open)));
        }
        AioOp::Write { open, parts, at } => later(mount, notice, move |_| write_all(&open, &parts, at)),
        AioOp::Sync(open) => {
            let file = Arc::clone(&open.file);
            with_fs(mount, |fs| fs.sync_then(&file, end_of(notice, open)));
        }
        AioOp::Commit(tx) => match ntx::take(tx) {
            Ok((gathered, held)) => with_fs(mount, |fs| fs.commit_then(gathered, end_of(notice, held))),
            Err(fail) => {
                notice.cancel_unsubmitted();
                return Err(fail);
            }
        },
        AioOp::Call(call) => later(mount, notice, call),
    }
    Ok(())
}

/// Delivers the completion after dropping what the request held.
fn end_of<T: Send>(notice: CompletionNotice, held: T) -> impl FnOnce(stack::rawfs::fs::Result<u64>) + Send {
    move |done| {
        drop(held);
        notice.deliver(done.map(u64::cast_signed).map_err(ApiError::from));
    }
}

/// Runs on the mount; a broken mount drops the request, which delivers its failure.
fn with_fs(mount: &Mount, ask: impl FnOnce(&Fs)) {
    let _ = mount.run(|fs| {
        ask(fs);
        Ok(())
    });
}

/// Queues an operation in submission order.
fn later(mount: &Arc<Mount>, notice: CompletionNotice, call: impl FnOnce(&Arc<Mount>) -> ApiResult<i64> + Send + 'static) {
    let own = Arc::clone(mount);
    let turn = move || {
        let done = guarded(&own, || call(&own));
        drop(own);
        notice.deliver(done);
    };
    with_fs(mount, |fs| fs.call_later(turn));
}

/// # Safety
/// As for a request of `nvmedfs_aio_submit`.
unsafe fn submit(aio: &Arc<Aio>, io: *const nvmedfs_io) -> ApiResult<()> {
    // SAFETY: the caller's promise.
    let io = unsafe { options::read(io) }?;
    // SAFETY: likewise.
    let job = unsafe { job_of(aio, &io) }?;
    let notice = aio.reserve(&io)?;
    begin(aio, job, notice)
}

/// Submits requests, which are copied: `count` of them, or as many as fit. Reads have no order; reads from memory have completed on
/// return. All other requests are executed in order of submission, by one thread for the whole file system: a write is seen by later
/// writes, syncs, renames and commits. Waiting requests are written to the device together and made durable by one sync, including writes
/// of files opened with O_SYNC. Completions come in any order. Thread-safe.
///
/// Returns the number of submitted requests, or -1 if none was: EBADF; EFAULT; EINVAL; EXDEV (a file of another file system); EAGAIN (the
/// queue is full: call nvmedfs_aio_reap first). An invalid request ends the call; those before it are submitted.
///
/// # Safety
/// `requests` has `count` elements, each as its size says; paths are strings and arrays as long as stated; the memory of each read or
/// write belongs to the library until it has completed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_aio_submit(aio: *mut NVMEDFS_AIO, requests: *const nvmedfs_io, count: c_int) -> c_int {
    ffi_guard(|| {
        let count = usize::try_from(count).map_err(|_| ApiError::new(libc::EINVAL, "fewer requests than none"))?;
        if requests.is_null() && count > 0 {
            return Err(ApiError::new(libc::EFAULT, "requests is NULL"));
        }
        with(aio, |aio: &Arc<Aio>| {
            let mut next: *const u8 = requests.cast();
            for done in 0..count {
                // SAFETY: the caller's promise.
                if let Err(fail) = unsafe { submit(aio, next.cast()) } {
                    return if done == 0 { Err(fail) } else { Ok(done as c_int) };
                }
                // SAFETY: a struct whose size was read; the next one is behind it.
                next = unsafe { next.add(next.cast::<usize>().read()) };
            }
            Ok(count as c_int)
        })
    })
}

/// Reaps completed requests and calls their callbacks: at least `min`, unless fewer are outstanding or `timeout` (NULL: none) passes, at
/// most `max`. With `min` 0 it does not wait. Thread-safe: each completion goes to one thread.
///
/// Returns the number, or -1: EBADF; EINVAL (min, max or timeout).
///
/// # Safety
/// `done` is NULL (callbacks get all) or has room for `max`; `timeout` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_aio_reap(
    aio: *mut NVMEDFS_AIO,
    done: *mut nvmedfs_event,
    min: c_int,
    max: c_int,
    timeout: *const timespec,
) -> c_int {
    ffi_guard(|| {
        let wrong = || ApiError::new(libc::EINVAL, format!("from {min} to {max} requests"));
        let (least, most) = (usize::try_from(min).map_err(|_| wrong())?, usize::try_from(max).map_err(|_| wrong())?);
        if least > most {
            return Err(wrong());
        }
        // SAFETY: the caller's promise.
        let until = unsafe { time_of(timeout) }?;
        let ours = with(aio, |aio: &Arc<Aio>| Ok(Arc::clone(aio)))?;
        let mut to = done;
        let out = |event| {
            if !to.is_null() {
                // SAFETY: the caller's promise; `reap` hands out `most` at most.
                unsafe {
                    to.write(event);
                    to = to.add(1);
                }
            }
        };
        Ok(ours.reap(least, most, until, out) as c_int)
    })
}

/// Waits until all submitted requests have completed, or `timeout` (NULL: none) passes; reaps all and calls their callbacks. Like the
/// futures of NVMeDFS: one wait for many requests, which fails if one of them failed. Thread-safe.
///
/// Returns 0, or -1: EBADF; EINVAL (timeout); ETIMEDOUT; the errno of the first failure since the last call, with its message, whichever
/// thread reaped it.
///
/// # Safety
/// `timeout` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_aio_wait(aio: *mut NVMEDFS_AIO, timeout: *const timespec) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        let until = unsafe { time_of(timeout) }?;
        let ours = with(aio, |aio: &Arc<Aio>| Ok(Arc::clone(aio)))?;
        ours.wait(until).map(|()| 0)
    })
}

/// Returns a descriptor for poll(2), readable while completed requests wait to be reaped. It belongs to the library: it must not be read
/// or closed, and is closed with the NVMEDFS_AIO. Thread-safe.
///
/// Returns the descriptor, or -1: EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_aio_fileno(aio: *mut NVMEDFS_AIO) -> c_int {
    ffi_guard(|| with(aio, |aio: &Arc<Aio>| Ok(aio.event().as_raw_fd())))
}

/// Waits for requests in flight and discards their completions; no callbacks are called. Thread-safe. Returns 0, or -1: EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_aio_destroy(aio: *mut NVMEDFS_AIO) -> c_int {
    ffi_guard(|| end(aio, |_: &Aio| Ok(()), Aio::finish))
}
