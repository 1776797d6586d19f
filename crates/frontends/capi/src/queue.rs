//! A queue: of one handle and one thread, or shared.
#![expect(unsafe_code, reason = "called by C")]

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::handle::Served;
use block::{Params, SharedQueue, Tracked};
use parking_lot::Mutex;

use crate::api_error::{ApiError, ApiResult};
use crate::device::{Children, Device};
use crate::guard::ffi_guard;
use crate::objects::{CloseOrder, ObjectKind, end, enroll, with};
use crate::options::{self, Versioned};
use crate::types::*;

/// A driver's queue with exactly one completion for each request.
pub type Tracks = Tracked<Box<dyn block::Queue>>;

/// An open queue of a device.
pub struct Queue {
    /// The device that the queue belongs to.
    pub device: Arc<Device>,
    /// The parameters with which the queue is opened.
    pub params: Params,
    /// How handles are bound to the queue.
    pub binding: Binding,
    /// The count of its handles: a queue with handles cannot be closed.
    pub children: Children,
    /// A call panicked inside: its state may be inconsistent.
    pub broken: AtomicBool,
}

/// How handles are bound to a queue.
pub enum Binding {
    /// Moves to its one handle, and is opened again for the next one.
    Dedicated(Box<Mutex<Option<Tracks>>>),
    /// Shared by any number of handles.
    Shared {
        /// The completion thread serves it while this lives.
        _served: Option<Served>,
        queue: Arc<SharedQueue>,
    },
}

impl ObjectKind for Queue {
    const NAME: &'static str = "queue";
    const CLOSE_ORDER: CloseOrder = CloseOrder::Queue;
    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }
    fn break_down(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }
    /// Closes the driver's queue if it is dedicated; a shared queue closes when it is dropped.
    fn finish(&self) -> ApiResult<()> {
        if let Binding::Dedicated(queue) = &self.binding {
            queue.lock().take();
        }
        Ok(())
    }
}

/// Opens a queue of the driver with the device's pool registered.
fn open(device: &Device, params: &Params) -> ApiResult<Tracks> {
    let mut queue = stack::open_queue(&*device.below, params)?;
    block::Queue::register(&mut queue, device.pool.arena()).map_err(unknown_memory)?;
    Ok(queue)
}

fn unknown_memory(error: block::Error) -> ApiError {
    ApiError::of("telling the device of its memory", error)
}

impl Queue {
    fn create(device: &Arc<Device>, options: &nvmed_queue_options) -> ApiResult<Queue> {
        let params = options::queue_params(options)?;
        device.children.add()?;
        let bind = || {
            if options.flags & NVMED_QUEUE_DEDICATED != 0 {
                return Ok(Binding::Dedicated(Box::new(Mutex::new(Some(open(device, &params)?)))));
            }
            let (queue, _served) = stack::open_shared_queue(&*device.below, &params)?;
            queue.register(device.pool.arena()).map_err(unknown_memory)?;
            Ok(Binding::Shared { _served, queue })
        };
        match bind() {
            Ok(binding) => {
                Ok(Queue { device: Arc::clone(device), params, binding, children: Children::default(), broken: AtomicBool::new(false) })
            }
            Err(fail) => {
                device.children.remove();
                Err(fail)
            }
        }
    }

    /// Takes the queue for its one handle.
    pub fn take(&self, queue: &Mutex<Option<Tracks>>) -> ApiResult<Tracks> {
        match queue.lock().take() {
            Some(queue) => Ok(queue),
            None => open(&self.device, &self.params),
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.device.children.remove();
    }
}

/// Creates a queue of a device, with options (the paper's name). Thread-safe.
///
/// `options`: from nvmed_queue_options_init and changed, or NULL.
///
/// Returns the queue, or NULL: EBADF; EINVAL (an option's value); E2BIG (an option that this version does not support); ENOTSUP and other
/// errors of the driver (hs_error says why); ENOMEM, EMFILE.
///
/// # Safety
/// `options` is NULL or has as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_create_queue(device: *mut NVMED, options: *const nvmed_queue_options) -> *mut NVMED_QUEUE {
    ffi_guard(|| {
        with(device, |device: &Arc<Device>| {
            // SAFETY: the caller's promise.
            let options = unsafe { options::read(options) }?;
            enroll(Arc::new(Queue::create(device, &options)?))
        })
    })
}

/// Creates a queue of a device, with NVMED_QUEUE_... flags (NVMeDirect's name). Thread-safe. Returns as nvmed_create_queue.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_queue_create(device: *mut NVMED, flags: c_int) -> *mut NVMED_QUEUE {
    ffi_guard(|| {
        with(device, |device: &Arc<Device>| {
            let options = nvmed_queue_options { flags: flags as u32, ..nvmed_queue_options::defaults() };
            enroll(Arc::new(Queue::create(device, &options)?))
        })
    })
}

/// Destroys a queue. Its handles must be destroyed before. Thread-safe.
///
/// Returns 0, or -1: EBADF; EBUSY (it has handles, and stays).
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_queue_destroy(queue: *mut NVMED_QUEUE) -> c_int {
    ffi_guard(|| end(queue, |queue: &Queue| queue.children.close("handles"), Queue::finish))
}

/// Destroys a queue; another name of nvmed_queue_destroy.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_destroy_queue(queue: *mut NVMED_QUEUE) -> c_int {
    nvmed_queue_destroy(queue)
}
