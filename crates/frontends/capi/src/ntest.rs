//! Tests of a panic inside a file system, which no device can cause.
#![expect(unsafe_code, reason = "calls the C functions")]

use std::ffi::{CStr, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::library::hs_error;
use crate::naio::{nvmedfs_aio_create, nvmedfs_aio_destroy, nvmedfs_aio_submit, nvmedfs_aio_wait};
use crate::nfd::{nvmedfs_close, nvmedfs_open};
use crate::nfile::{nvmedfs_fsync, nvmedfs_pread};
use crate::nfiles::share;
use crate::nmount::{nvmedfs_mount, nvmedfs_sync, nvmedfs_unmount};
use crate::nrequests::guarded;
use crate::ntypes::*;
use crate::options::Versioned;

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().expect("an errno")
}

fn mounted() -> *mut NVMEDFS {
    let options = nvmedfs_options { flags: NVMEDFS_CREATE, ..nvmedfs_options::defaults() };
    // SAFETY: a string, and options of their size.
    let fs = unsafe { nvmedfs_mount(c"memory:64MiB".as_ptr(), &options) };
    assert!(!fs.is_null());
    fs
}

fn open(fs: *mut NVMEDFS) -> c_int {
    // SAFETY: a string.
    unsafe { nvmedfs_open(fs, c"/file".as_ptr(), libc::O_CREAT | libc::O_RDWR, 0o600) }
}

#[test]
fn a_mistake_inside_breaks_one_file_system_and_no_other() {
    let (fs, other) = (mounted(), mounted());
    let (fd, well) = (open(fs), open(other));
    let inside = share(fd).expect("open");
    let panicked = catch_unwind(AssertUnwindSafe(|| inside.run(|_| -> crate::api_error::ApiResult<()> { panic!("on purpose") })));
    assert!(panicked.is_err());
    drop(inside);
    let mut byte = [0_u8; 1];
    // SAFETY: `byte` has one.
    assert_eq!((unsafe { nvmedfs_pread(fd, byte.as_mut_ptr().cast(), 1, 0) }, errno()), (-1, libc::EIO));
    assert_eq!((nvmedfs_fsync(fd), errno()), (-1, libc::EIO));
    // SAFETY: a string.
    assert!(unsafe { CStr::from_ptr(hs_error()) }.to_string_lossy().contains("unmount"));
    assert_eq!((open(fs), errno()), (-1, libc::EIO));
    assert_eq!((nvmedfs_unmount(fs), errno()), (-1, libc::EBUSY));
    assert_eq!((nvmedfs_close(fd), nvmedfs_unmount(fs)), (0, 0));
    assert_eq!((nvmedfs_fsync(well), nvmedfs_close(well), nvmedfs_unmount(other)), (0, 0, 0));
}

#[test]
fn a_request_that_is_lost_has_failed() {
    let fs = mounted();
    let aio = nvmedfs_aio_create(fs, 2);
    let ours: Arc<crate::nrequests::Aio> = crate::objects::with(aio, |aio: &Arc<_>| Ok(Arc::clone(aio))).expect("open");
    drop(ours.reserve(&nvmedfs_io::default()).expect("room"));
    // SAFETY: no timeout.
    let wait = || unsafe { nvmedfs_aio_wait(aio, std::ptr::null()) };
    assert_eq!((wait(), errno(), wait()), (-1, libc::EIO, 0));
    ours.reserve(&nvmedfs_io::default()).expect("room").cancel_unsubmitted();
    assert_eq!(wait(), 0);
    let io = nvmedfs_io { op: NVMEDFS_OP_SYNC, ..nvmedfs_io::default() };
    // SAFETY: one of its size.
    let submit = || unsafe { nvmedfs_aio_submit(aio, &io, 1) };
    assert_eq!((submit(), wait()), (1, 0));
    // A queued panic breaks the mount, not the thread.
    assert!(guarded(ours.mount(), || panic!("on purpose")).is_err());
    assert_eq!((submit(), wait(), errno()), (1, -1, libc::EIO));
    drop(ours);
    assert_eq!((nvmedfs_sync(fs), errno()), (-1, libc::EIO));
    assert_eq!((nvmedfs_aio_destroy(aio), nvmedfs_unmount(fs)), (0, 0));
}
