//! A handle: the object that performs I/O.
#![expect(unsafe_code, reason = "called by C")]

use std::cell::Cell;
use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use block::handle::{Data, Done, Features, Full, Io, Key, Released, Select, Selector, Ticket};
use block::{Op, Params, SharedHandle};
use parking_lot::Mutex;

use crate::api_error::{ApiError, ApiResult};
use crate::cached::{Cache, CachedHandle};
use crate::device::Device;
use crate::drequests::Requests;
use crate::guard::ffi_guard;
use crate::objects::{CloseOrder, ObjectKind, end, enroll, with};
use crate::options::{self, Versioned};
use crate::pool::LentData;
use crate::queue::{Binding, Queue};
use crate::types::*;

/// How long the destruction of a handle waits for requests in flight before the queue aborts them.
const LAST_WAIT: Duration = Duration::from_secs(1);
/// All supported flags.
const FLAGS: u32 = NVMED_DIRECT | NVMED_SYNC | NVMED_ZERO_COPY | NVMED_CACHED | NVMED_ASYNC | NVMED_DURABLE | NVMED_POLLED;

/// An open handle on one or several queues.
pub struct Handle {
    /// The device of all its queues.
    pub device: Arc<Device>,
    queues: Vec<Arc<Queue>>,
    /// The handle of the block layer that performs the I/O.
    pub engine: Engine,
    /// Current modes: NVMED_CACHED, NVMED_SYNC, NVMED_ASYNC, NVMED_ZERO_COPY.
    modes: AtomicU32,
    /// File position for reads and writes without an offset.
    pub position: Mutex<u64>,
    /// The asynchronous requests of the handle.
    pub requests: Mutex<Requests>,
    /// Completed requests whose pool memory the device still holds.
    held: AtomicU32,
    cached: OnceLock<(Arc<Cache>, CachedHandle)>,
}

/// The underlying handle: for one thread at a time, or for many.
pub enum Engine {
    /// Only try_lock is used: no thread waits for it.
    Own(Mutex<block::Handle>),
    Shared(SharedHandle),
}

/// Calls a method of either kind.
macro_rules! each {
    ($engine:expr, $handle:ident => $call:expr) => {
        match $engine {
            Engine::Own(handle) => {
                #[allow(unused_mut)]
                let mut $handle = handle.try_lock().ok_or_else(busy)?;
                Ok($call)
            }
            Engine::Shared($handle) => Ok($call),
        }
    };
}

fn busy() -> ApiError {
    ApiError::new(
        libc::EBUSY,
        "another call is inside this handle: its queue is dedicated (NVMED_QUEUE_DEDICATED), for one thread at a time",
    )
}

impl Engine {
    /// Submits a request and waits for its completion.
    pub fn run(&self, io: Io) -> ApiResult<Done> {
        each!(self, handle => handle.run(io))
    }
    /// Submits a request; the device sees it at the next ring, poll or wait.
    pub fn submit(&self, io: Io) -> ApiResult<Result<Ticket, Full>> {
        each!(self, handle => handle.submit(io))
    }
    /// Tells the device of all submitted requests.
    pub fn ring(&self) -> ApiResult<()> {
        each!(self, handle => handle.ring())
    }
    /// Rings, and returns a completed request if there is one.
    pub fn poll(&self) -> ApiResult<Option<Done>> {
        each!(self, handle => handle.poll())
    }
    /// Waits for a completed request, for this time at most; returns none also if nothing is in flight.
    pub fn wait(&self, at_most: Duration) -> ApiResult<Option<Done>> {
        each!(self, handle => handle.wait(at_most))
    }
    /// Cancels a request, which completes in any case; returns false if there is no such ticket.
    pub fn cancel(&self, ticket: Ticket) -> ApiResult<bool> {
        each!(self, handle => handle.cancel(ticket))
    }
    /// Waits until all requests have completed, for this time at most.
    pub fn drain(&self, at_most: Duration) -> ApiResult<Result<(), block::Error>> {
        each!(self, handle => handle.drain(at_most))
    }
    /// Returns the number of requests in flight.
    pub fn in_flight(&self) -> ApiResult<u32> {
        each!(self, handle => handle.in_flight())
    }
    fn take_released(&self) -> ApiResult<Option<Released>> {
        each!(self, handle => handle.take_released())
    }
    /// Returns the value of a parameter.
    pub fn get(&self, key: Key) -> ApiResult<u64> {
        each!(self, handle => handle.get(key))
    }
    /// Sets the value of a parameter.
    pub fn set(&self, key: Key, value: u64) -> ApiResult<Result<(), block::handle::ParamError>> {
        each!(self, handle => handle.set(key, value))
    }
}

impl ObjectKind for Handle {
    const NAME: &'static str = "handle";
    const CLOSE_ORDER: CloseOrder = CloseOrder::Handle;
    fn is_broken(&self) -> bool {
        self.queues.iter().any(|queue| queue.is_broken())
    }
    fn break_down(&self) {
        self.queues.iter().for_each(|queue| queue.break_down());
    }
    /// Flushes the cache and waits briefly for requests in flight.
    fn finish(&self) -> ApiResult<()> {
        let flushed = self.used_cache().map_or(Ok(()), |(cache, cached)| cache.flush(cached));
        let drained = self.engine.drain(LAST_WAIT);
        while let Ok(Some(done)) = self.engine.poll() {
            self.abandon(done);
        }
        let _ = (drained, self.take_released());
        flushed.map_err(|error| ApiError::new(error.errno, format!("flushing the cache while the handle was closed: {}", error.text)))
    }
}

impl Handle {
    fn create(queues: &[Arc<Queue>], options: &nvmed_handle_options, selector: Selector) -> ApiResult<Handle> {
        let first = queues.first().ok_or_else(|| ApiError::new(libc::EINVAL, "a handle needs a queue"))?;
        if queues.iter().any(|queue| !Arc::ptr_eq(&queue.device, &first.device)) {
            return Err(ApiError::new(libc::EINVAL, "the queues of a handle belong to one device"));
        }
        let params = params(options, &first.params)?;
        let modes = options.flags & (NVMED_CACHED | NVMED_SYNC | NVMED_ASYNC | NVMED_ZERO_COPY);
        let mut added = Vec::new();
        let outcome = Handle::bind(queues, selector, &params, &mut added);
        let engine = outcome.inspect_err(|_| added.iter().for_each(|queue: &Arc<Queue>| queue.children.remove()))?;
        let depths = queues.iter().map(|queue| if params.requests_max == 0 { queue.params.queue_depth } else { params.requests_max });
        let handle = Handle {
            device: Arc::clone(&first.device),
            queues: added,
            engine,
            modes: AtomicU32::new(modes),
            position: Mutex::new(0),
            requests: Mutex::new(Requests::new(depths.sum())),
            held: AtomicU32::new(0),
            cached: OnceLock::new(),
        };
        if handle.is(NVMED_CACHED) {
            handle.cached()?;
        }
        Ok(handle)
    }

    fn bind(queues: &[Arc<Queue>], selector: Selector, params: &Params, added: &mut Vec<Arc<Queue>>) -> ApiResult<Engine> {
        let (mut own, mut shared) = (Vec::new(), Vec::new());
        for queue in queues {
            match &queue.binding {
                Binding::Dedicated(slot) => {
                    queue.children.add_only()?;
                    added.push(Arc::clone(queue));
                    own.push(queue.take(slot)?);
                }
                Binding::Shared { queue: queue_below, .. } => {
                    queue.children.add()?;
                    added.push(Arc::clone(queue));
                    shared.push(Arc::clone(queue_below));
                }
            }
        }
        match (own.is_empty(), shared.is_empty()) {
            (false, true) => Ok(Engine::Own(Mutex::new(block::Handle::over(own, selector, params.clone())?))),
            (true, false) => Ok(Engine::Shared(SharedHandle::over(&shared, selector, params.clone())?)),
            _ => Err(ApiError::new(libc::EINVAL, "the queues of a handle are all dedicated, or none is")),
        }
    }

    /// Returns the completion mode of its queue.
    pub fn queue_completion(&self) -> u64 {
        self.queues[0].params.get(Key::Completion)
    }

    /// Returns whether a mode is set.
    pub fn is(&self, flag: u32) -> bool {
        self.modes.load(Ordering::Relaxed) & flag != 0
    }

    /// Sets and clears modes, given as flags; other modes stay.
    pub fn set_modes(&self, set: u32, clear: u32) {
        // If two threads set modes, each bit is from one of them.
        self.modes.fetch_or(set, Ordering::Relaxed);
        self.modes.fetch_and(!clear, Ordering::Relaxed);
    }

    /// Returns its state in the cache of its device.
    pub fn cached(&self) -> ApiResult<&(Arc<Cache>, CachedHandle)> {
        if let Some(cached) = self.cached.get() {
            return Ok(cached);
        }
        let cache = self.device.cache()?;
        let cached = cache.handle()?;
        Ok(self.cached.get_or_init(|| (cache, cached)))
    }

    /// Returns its state in the cache if it ever used it.
    pub fn used_cache(&self) -> Option<&(Arc<Cache>, CachedHandle)> {
        self.cached.get()
    }

    /// Prepares the cache for direct I/O.
    pub fn yield_direct(&self, op: Op, bytes: Range<u64>) -> ApiResult<()> {
        match self.device.cache_in_use() {
            Some(cache) => cache.yield_direct(op, self.within(bytes)),
            None => Ok(()),
        }
    }

    /// Updates the cache after direct I/O.
    pub fn forget(&self, op: Op, bytes: Range<u64>) {
        if let Some(cache) = self.device.cache_in_use() {
            cache.forget(op, self.within(bytes));
        }
    }

    fn within(&self, bytes: Range<u64>) -> Range<u64> {
        let end = self.device.geometry().bytes();
        bytes.start.min(end)..bytes.end.min(end)
    }

    /// Releases the pool memory of a request unless the device holds it.
    pub fn release(&self, data: &LentData, held: bool) {
        match data {
            LentData::Lent(_) if held => _ = self.held.fetch_add(1, Ordering::Relaxed),
            LentData::Lent(span) => self.device.pool.release(*span),
            LentData::Copied => {}
        }
    }

    /// Releases pool memory that the device no longer holds.
    pub fn take_released(&self) -> ApiResult<()> {
        while self.held.load(Ordering::Relaxed) > 0 {
            let Some(released) = self.engine.take_released()? else { break };
            if let Data::Span(span) = released.data {
                self.held.fetch_sub(1, Ordering::Relaxed);
                self.device.pool.release(span);
            }
        }
        Ok(())
    }

    /// Drops the completion of a request that is never reaped.
    fn abandon(&self, done: Done) {
        let held = done.held;
        if let Some(request) = self.requests.lock().take(done.user) {
            self.release(&request.data, held);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        for queue in &self.queues {
            queue.children.remove();
        }
    }
}

/// Returns the parameters of a handle on a queue.
fn params(options: &nvmed_handle_options, queue: &Params) -> ApiResult<Params> {
    let flags = options.flags;
    let both = |one, other| flags & one != 0 && flags & other != 0;
    if flags & !FLAGS != 0 {
        return Err(ApiError::new(libc::EINVAL, format!("flags {flags:#x} of a handle: only NVMED_... flags are known")));
    }
    if both(NVMED_DIRECT, NVMED_CACHED) || both(NVMED_SYNC, NVMED_ASYNC) {
        return Err(ApiError::new(libc::EINVAL, "a handle is direct or cached, and synchronous or asynchronous, not both"));
    }
    let mut params = Params { cached: flags & NVMED_CACHED != 0, ..queue.clone() };
    for (key, value) in [
        (Key::Synchronous, u64::from(flags & NVMED_ASYNC == 0)),
        (Key::Fua, u64::from(flags & NVMED_DURABLE != 0)),
        (Key::Completion, if flags & NVMED_POLLED != 0 { 1 } else { queue.get(Key::Completion) }),
        (Key::RequestsMax, options.requests_max.into()),
        (Key::TimeoutMs, options.timeout_ms.into()),
        (Key::Class, options.priority_class.into()),
    ] {
        params.set(key, value).map_err(|error| ApiError::new(libc::EINVAL, error))?;
    }
    Ok(params)
}

/// A queue-selection callback of the program.
struct ByProgram {
    rule: unsafe extern "C" fn(*mut NVMED_HANDLE, u8, u64, u32) -> *mut NVMED_QUEUE,
    queues: Vec<usize>,
    handle: Arc<OnceLock<usize>>,
    block_bytes: u64,
}

thread_local! {
    /// Length of the request that this thread submits: the callbacks of `block` get position and type only.
    static LENGTH: Cell<u64> = const { Cell::new(0) };
}

/// Sets the length of this thread's next request for the callback.
pub fn next_length(bytes: u64) {
    LENGTH.set(bytes);
}

impl Select for ByProgram {
    fn select(&self, request: &Features, _: usize) -> usize {
        let opcode = match request.op {
            Op::Flush => 0,
            Op::Write => 1,
            Op::Read => 2,
            Op::WriteZeroes => 8,
            Op::Discard => 9,
        };
        let handle = std::ptr::without_provenance_mut(self.handle.get().copied().unwrap_or(0));
        let length = u32::try_from(LENGTH.get()).unwrap_or(u32::MAX);
        // SAFETY: the program gave this function for just these arguments (nvmed_handle_create_mq).
        let queue = unsafe { (self.rule)(handle, opcode, request.lba.0 * self.block_bytes, length) };
        self.queues.iter().position(|known| *known == queue.addr()).unwrap_or(0)
    }
}

/// Creates a handle on a queue, with options (the paper's name). Thread-safe.
///
/// `options`: from nvmed_handle_options_init and changed, or NULL: direct and synchronous.
///
/// A handle on a shared queue can be used by any number of threads at the same time; one on a dedicated queue by one thread at a time.
///
/// Returns the handle, or NULL: EBADF; EINVAL (an option's value); E2BIG (an option that this version does not support); EBUSY (a
/// dedicated queue has a handle already); ENOTSUP (cached, and the device has no cache); ENOMEM.
///
/// # Safety
/// `options` is NULL or has as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_create_handle(queue: *mut NVMED_QUEUE, options: *const nvmed_handle_options) -> *mut NVMED_HANDLE {
    ffi_guard(|| {
        with(queue, |queue: &Arc<Queue>| {
            // SAFETY: the caller's promise.
            let options = unsafe { options::read(options) }?;
            enroll(Arc::new(Handle::create(std::slice::from_ref(queue), &options, Selector::RoundRobin)?))
        })
    })
}

/// Creates a handle on a queue, with flags (NVMeDirect's name): NVMED_DIRECT, NVMED_CACHED, NVMED_SYNC, NVMED_ASYNC, NVMED_DURABLE,
/// NVMED_POLLED, NVMED_ZERO_COPY. Thread-safe. Returns as nvmed_create_handle.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_handle_create(queue: *mut NVMED_QUEUE, flags: c_int) -> *mut NVMED_HANDLE {
    ffi_guard(|| {
        with(queue, |queue: &Arc<Queue>| {
            let options = nvmed_handle_options { flags: flags as u32, ..nvmed_handle_options::defaults() };
            enroll(Arc::new(Handle::create(std::slice::from_ref(queue), &options, Selector::RoundRobin)?))
        })
    })
}

/// Creates a handle on several queues of one device, all dedicated or all shared. Thread-safe.
///
/// `count` queues, 1 to 256; `flags` as of nvmed_handle_create; `rule` chooses the queue of each request, NULL: round robin. Returns as
/// nvmed_create_handle, also NULL with EFAULT (queues is NULL).
///
/// # Safety
/// `queues` is NULL or has `count` elements; `rule` is NULL or such a function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_handle_create_mq(
    queues: *const *mut NVMED_QUEUE,
    count: c_int,
    flags: c_int,
    rule: nvmed_mq_get_queue,
) -> *mut NVMED_HANDLE {
    ffi_guard(|| {
        if queues.is_null() {
            return Err(ApiError::new(libc::EFAULT, "the array of queues is NULL"));
        }
        let count = usize::try_from(count).ok().filter(|count| (1..=256).contains(count));
        let count = count.ok_or_else(|| ApiError::new(libc::EINVAL, "a handle has 1 to 256 queues"))?;
        // SAFETY: the caller's promise.
        let pointers = unsafe { std::slice::from_raw_parts(queues, count) };
        let numbers: Vec<usize> = pointers.iter().map(|queue| queue.addr()).collect();
        let queues = pointers.iter().map(|queue| with(*queue, |queue: &Arc<Queue>| Ok(Arc::clone(queue))));
        let queues: Vec<Arc<Queue>> = queues.collect::<ApiResult<_>>()?;
        let me = Arc::new(OnceLock::new());
        let selector = match rule {
            None => Selector::RoundRobin,
            Some(rule) => {
                let block_bytes = queues[0].device.geometry().block_bytes.into();
                Selector::Own(Box::new(ByProgram { rule, queues: numbers, handle: Arc::clone(&me), block_bytes }))
            }
        };
        let options = nvmed_handle_options { flags: flags as u32, ..nvmed_handle_options::defaults() };
        let handle: *mut NVMED_HANDLE = enroll(Arc::new(Handle::create(&queues, &options, selector)?))?;
        let _ = me.set(handle.addr());
        Ok(handle)
    })
}

/// Destroys a handle. A cached one is flushed. Requests in flight have one second to complete; their memory is free then, or held until
/// the device releases it (memory of nvmed_get_buffer), and they are not reported. Thread-safe: calls of other threads complete first or
/// fail with EBADF.
///
/// Returns 0, or -1: EBADF; or the errno of the flush: the handle is destroyed in any case, and data that could not be written is lost.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_handle_destroy(handle: *mut NVMED_HANDLE) -> c_int {
    ffi_guard(|| end(handle, |_: &Handle| Ok(()), Handle::finish))
}

/// Destroys a handle; another name of nvmed_handle_destroy.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_destroy_handle(handle: *mut NVMED_HANDLE) -> c_int {
    nvmed_handle_destroy(handle)
}

/// Destroys a handle on several queues; NVMeDirect's name of nvmed_handle_destroy.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_handle_destroy_mq(handle: *mut NVMED_HANDLE) -> c_int {
    nvmed_handle_destroy(handle)
}
