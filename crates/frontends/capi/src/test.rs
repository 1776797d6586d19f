//! Tests of faults that no named device can cause: a device that does not respond, and a panic.
#![expect(unsafe_code, reason = "calls the C functions")]

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use block::{Arena, Completion, Error, Geometry, Op, OpenError, Queue, QueueOptions, Request, Span, Submit, Tag};

use crate::aio::{nvmed_aio_handle_complete, nvmed_aio_write, nvmed_submit, nvmed_wait};
use crate::device::{Device, nvmed_close, nvmed_get_buffer, nvmed_get_info, nvmed_put_buffer};
use crate::handle::{nvmed_handle_create, nvmed_handle_destroy};
use crate::objects::enroll;
use crate::options::{Versioned, nvmed_aio_ctx_init};
use crate::params::nvmed_set_param;
use crate::queue::{nvmed_create_queue, nvmed_queue_destroy};
use crate::transfer::{nvmed_flush, nvmed_pread, nvmed_pwrite};
use crate::types::*;

/// A device that completes nothing until released, ignores cancels, and panics on a discard.
struct Stubborn {
    geometry: Geometry,
    answers: Arc<AtomicBool>,
}

struct StubbornQueue {
    geometry: Geometry,
    answers: Arc<AtomicBool>,
    kept: Vec<Tag>,
    depth: u32,
}

impl block::Device for Stubborn {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>, OpenError> {
        let (geometry, answers) = (self.geometry.clone(), Arc::clone(&self.answers));
        Ok(Box::new(StubbornQueue { geometry, answers, kept: Vec::new(), depth: options.depth }))
    }
}

impl Queue for StubbornQueue {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }
    fn depth(&self) -> u32 {
        self.depth
    }
    fn register(&mut self, _: &Arena) -> Result<(), Error> {
        Ok(())
    }
    fn submit(&mut self, request: &Request, _: &[Span]) -> Submit {
        assert!(request.op != Op::Discard, "a mistake on purpose");
        self.kept.push(request.tag);
        Submit::Queued
    }
    fn ring(&mut self) {}
    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let count = if self.answers.load(Ordering::Relaxed) { self.kept.len().min(completions.len()) } else { 0 };
        for (place, tag) in completions.iter_mut().zip(self.kept.drain(..count)) {
            *place = Completion { tag, status: Ok(()) };
        }
        count
    }
    fn in_flight(&self) -> u32 {
        self.kept.len() as u32
    }
    fn wait(&mut self, at_most: Duration) {
        std::thread::sleep(at_most.min(Duration::from_millis(1)));
    }
    fn cancel(&mut self, _: Tag) {}
    fn reset(&mut self) -> Result<(), Error> {
        self.kept.clear();
        Ok(())
    }

    fn owns_buffer(&self, _: Tag) -> bool {
        false
    }

    fn take_released(&mut self) -> Option<Tag> {
        None
    }
}

struct Open {
    device: *mut NVMED,
    queue: *mut NVMED_QUEUE,
    handle: *mut NVMED_HANDLE,
    answers: Arc<AtomicBool>,
}

fn open(queue_flags: u32) -> Open {
    let answers = Arc::new(AtomicBool::new(false));
    let below = Stubborn { geometry: Geometry::plain(512, 2048), answers: Arc::clone(&answers) };
    let device = Device::over("stubborn", Arc::new(below), &nvmed_device_options::defaults()).expect("a device");
    let device = enroll(Arc::new(device)).expect("a place");
    let options = nvmed_queue_options { cancel_grace_ms: 1, reset_after_ms: 0, flags: queue_flags, ..nvmed_queue_options::defaults() };
    // SAFETY: the options are what their size says.
    let queue = unsafe { nvmed_create_queue(device, &options) };
    let handle = nvmed_handle_create(queue, 0);
    assert!(!handle.is_null());
    assert_eq!(nvmed_set_param(handle, NVMED_PARAM_TIMEOUT_MS, 1), 0);
    Open { device, queue, handle, answers }
}

impl Open {
    fn close(self) {
        assert_eq!((nvmed_handle_destroy(self.handle), nvmed_queue_destroy(self.queue), nvmed_close(self.device)), (0, 0, 0));
    }

    fn free(&self) -> u64 {
        let mut info = nvmed_info { size: size_of::<nvmed_info>(), ..nvmed_info::default() };
        // SAFETY: of its size.
        assert_eq!(unsafe { nvmed_get_info(self.device, &mut info) }, 0);
        info.buffer_bytes_free
    }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().expect("an errno")
}

/// Tests a shared queue and a dedicated one.
fn held_memory_is_lent_again_only_when_the_device_has_let_go(queue_flags: u32) {
    let open = open(queue_flags);
    let all = open.free();
    let lent = nvmed_get_buffer(open.device, 1);
    // SAFETY: `lent` has a page.
    let read = |bytes| unsafe { nvmed_pread(open.handle, lent, bytes, 0) };
    assert_eq!((read(512), errno()), (-1, libc::ETIMEDOUT));
    assert_eq!(nvmed_put_buffer(lent), 0);
    assert_eq!(open.free(), all - 4096, "the device may still write to it");
    let mut own = [7_u8; 512];
    // SAFETY: `own` has as many bytes.
    let timed_out = unsafe { nvmed_pread(open.handle, own.as_mut_ptr().cast(), own.len(), 0) };
    assert_eq!((timed_out, errno(), own), (-1, libc::ETIMEDOUT, [7; 512]), "memory of the program is never the device's");
    assert_eq!(open.free(), all - 8192, "what it was copied through is");
    open.answers.store(true, Ordering::Relaxed);
    assert_eq!(nvmed_flush(open.handle), 0);
    // SAFETY: as above.
    assert_eq!(unsafe { nvmed_pwrite(open.handle, own.as_ptr().cast(), own.len(), 0) }, 512);
    assert_eq!(open.free(), all);
    open.close();
}

#[test]
fn memory_of_timed_out_requests() {
    held_memory_is_lent_again_only_when_the_device_has_let_go(0);
    held_memory_is_lent_again_only_when_the_device_has_let_go(NVMED_QUEUE_DEDICATED);
}

#[test]
fn an_asynchronous_request_that_times_out_is_reported_as_such_with_its_memory() {
    let open = open(0);
    let all = open.free();
    let lent = nvmed_get_buffer(open.device, 1);
    let io = nvmed_io { op: NVMED_OP_WRITE, buf: lent, len: 4096, user: 9, ..nvmed_io::defaults() };
    let mut event = nvmed_event::default();
    // SAFETY: the memory is there, and so is the room for the event.
    unsafe {
        assert_eq!(nvmed_submit(open.handle, &io, std::ptr::null_mut()), 0);
        assert_eq!(nvmed_wait(open.handle, &mut event, 1, -1), 1);
    }
    let expected = (9, -i64::from(libc::ETIMEDOUT), NVMED_EVENT_HELD);
    assert_eq!((event.user, event.result, event.flags), expected);
    let mut own = [1_u8; 512];
    let context = Box::into_raw(Box::<NVMED_AIO_CTX>::new_zeroed()).cast::<NVMED_AIO_CTX>();
    let size = size_of::<NVMED_AIO_CTX>();
    // SAFETY: a context of its size, and memory that stays.
    unsafe {
        assert_eq!(nvmed_aio_ctx_init(context, size), 0);
        ((*context).handle, (*context).buf, (*context).len) = (open.handle, own.as_mut_ptr().cast(), own.len());
        assert_eq!(nvmed_aio_write(context), 0);
    }
    // SAFETY: it is filled, and nobody changes it meanwhile.
    let status = || unsafe { ((*context).status, (*context).error) };
    while status().0 == NVMED_AIO_BUSY {
        assert!(nvmed_aio_handle_complete(open.handle) >= 0);
        std::thread::yield_now();
    }
    assert_eq!(status(), (NVMED_AIO_ERROR, libc::ETIMEDOUT));
    // SAFETY: from a box; its request has ended.
    drop(unsafe { Box::from_raw(context) });
    assert_eq!(nvmed_put_buffer(lent), 0);
    open.answers.store(true, Ordering::Relaxed);
    assert_eq!((nvmed_flush(open.handle), nvmed_flush(open.handle)), (0, 0));
    assert_eq!(open.free(), all);
    open.close();
}

#[test]
fn a_mistake_of_ours_is_an_error_and_its_queue_can_only_be_closed() {
    let open = open(0);
    let other = nvmed_handle_create(open.queue, 0);
    open.answers.store(true, Ordering::Relaxed);
    let discard = || crate::transfer::nvmed_discard(open.handle, 0, 512);
    assert_eq!((discard(), errno()), (-1, libc::EIO));
    assert_eq!((nvmed_flush(open.handle), errno()), (-1, libc::EIO), "broken");
    assert_eq!((nvmed_flush(other), errno()), (-1, libc::EIO), "its state is shared with the other handle");
    assert!(nvmed_handle_create(open.queue, 0).is_null());
    assert_eq!((nvmed_handle_destroy(open.handle), nvmed_handle_destroy(other)), (0, 0));
    assert_eq!((nvmed_flush(open.handle), errno()), (-1, libc::EBADF));
    assert_eq!((nvmed_queue_destroy(open.queue), nvmed_close(open.device)), (0, 0));
}
