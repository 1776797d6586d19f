//! An open device: its geometry, memory and cache.
#![expect(unsafe_code, reason = "called by C")]

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::{Geometry, Params};
use parking_lot::Mutex;
use stack::{DeviceName, DeviceOptions};

use crate::api_error::{ApiError, ApiResult};
use crate::cached::Cache;
use crate::config::defaults;
use crate::guard::ffi_guard;
use crate::library::ensure_init;
use crate::memory;
use crate::objects::{CloseOrder, ObjectKind, end, enroll, with};
use crate::options::{self, Versioned};
use crate::pool::{self, Pool};
use crate::types::*;

/// An open device with its pool and cache.
pub struct Device {
    /// The name that the program opened.
    pub name: String,
    /// The driver of the device.
    pub below: Arc<dyn block::Device>,
    /// The memory for buffers and copies.
    pub pool: Arc<Pool>,
    /// Configuration of the cache and of its parameters.
    pub params: Mutex<Params>,
    eager: AtomicBool,
    uncached: AtomicBool,
    cache: Mutex<Option<Arc<Cache>>>,
    /// The cache is in use: direct I/O has to check it.
    pub has_cache: AtomicBool,
    /// The count of its queues: a device with queues cannot be closed.
    pub children: Children,
}

/// Counts the queues of a device, or the handles of a queue: a parent with children cannot be closed.
#[derive(Default)]
pub struct Children(Mutex<(u32, bool)>);

impl Children {
    /// Adds a child unless the parent is closed.
    pub fn add(&self) -> ApiResult<()> {
        self.add_below(u32::MAX)
    }

    /// Adds a child, which has to be the only one; EBUSY if there is one already.
    pub fn add_only(&self) -> ApiResult<()> {
        self.add_below(1)
    }

    fn add_below(&self, most: u32) -> ApiResult<()> {
        let mut children = self.0.lock();
        match *children {
            (_, true) => Err(ApiError::new(libc::EBADF, "it is being closed")),
            (count, _) if count >= most => Err(ApiError::new(libc::EBUSY, "the queue is dedicated, and has a handle already")),
            _ => {
                children.0 += 1;
                Ok(())
            }
        }
    }

    /// Removes a child of the parent.
    pub fn remove(&self) {
        self.0.lock().0 -= 1;
    }

    /// Closes the parent if it has no children; `what` names them.
    pub fn close(&self, what: &str) -> ApiResult<()> {
        let mut children = self.0.lock();
        match *children {
            (_, true) => Err(ApiError::new(libc::EBADF, "it is being closed")),
            (0, _) => {
                children.1 = true;
                Ok(())
            }
            (count, _) => Err(ApiError::new(libc::EBUSY, format!("{count} of its {what} are open: destroy them first"))),
        }
    }
}

impl ObjectKind for Device {
    const NAME: &'static str = "device";
    const CLOSE_ORDER: CloseOrder = CloseOrder::Device;
    /// Closes the cache and the pool.
    fn finish(&self) -> ApiResult<()> {
        self.pool.orphan();
        // No handle is left: each was flushed when it was destroyed.
        self.cache.lock().take();
        Ok(())
    }
}

impl Device {
    fn open(name: &str, flags: i32, options: &nvmed_device_options) -> ApiResult<Device> {
        let access = flags & libc::O_ACCMODE;
        if flags & !(libc::O_ACCMODE | libc::O_CLOEXEC | libc::O_DIRECT) != 0 || (access != libc::O_RDONLY && access != libc::O_RDWR) {
            return Err(ApiError::new(libc::EINVAL, format!("flags {flags:#x}: a device is opened with O_RDONLY or O_RDWR")));
        }
        let device: DeviceName = name.parse().map_err(|error| ApiError::new(libc::EINVAL, error))?;
        let below = device.open_with(&DeviceOptions { read_only: access == libc::O_RDONLY, ..DeviceOptions::default() })?;
        Device::over(name, below, options)
    }

    /// Creates a device over a driver.
    pub fn over(name: &str, below: Arc<dyn block::Device>, options: &nvmed_device_options) -> ApiResult<Device> {
        let pool = Pool::new(options.buffer_bytes)?;
        let mut params = defaults().params;
        params.cache_bytes = options.cache_bytes;
        params.readahead_bytes = options.readahead_bytes;
        Ok(Device {
            name: name.to_owned(),
            below,
            pool,
            params: Mutex::new(params),
            eager: AtomicBool::new(false),
            uncached: AtomicBool::new(false),
            cache: Mutex::new(None),
            has_cache: AtomicBool::new(false),
            children: Children::default(),
        })
    }

    /// Returns the geometry of the device: block size and capacity.
    pub fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    /// Returns the cache, and opens it at its first use.
    pub fn cache(&self) -> ApiResult<Arc<Cache>> {
        if self.uncached.load(Ordering::Relaxed) {
            return Err(ApiError::new(libc::ENOTSUP, format!("{}: opened without a cache (NVMED_NO_CACHE)", self.name)));
        }
        let mut cache = self.cache.lock();
        if let Some(cache) = &*cache {
            return Ok(Arc::clone(cache));
        }
        let opened = Cache::open(&*self.below, &self.params.lock().clone(), self.eager.load(Ordering::Relaxed))?;
        let opened = Arc::new(opened);
        *cache = Some(Arc::clone(&opened));
        self.has_cache.store(true, Ordering::Release);
        Ok(opened)
    }

    /// Returns the cache if it is in use.
    pub fn cache_in_use(&self) -> Option<Arc<Cache>> {
        if self.has_cache.load(Ordering::Acquire) { self.cache.lock().clone() } else { None }
    }

    fn info(&self) -> nvmed_info {
        let geometry = self.geometry();
        nvmed_info {
            bytes: geometry.bytes(),
            block_bytes: geometry.block_bytes,
            transfer_bytes_max: geometry.transfer_bytes_max,
            memory_align: geometry.memory_align,
            volatile_cache: geometry.volatile_cache.into(),
            read_only: geometry.read_only.into(),
            can_discard: geometry.discard.into(),
            can_write_zeroes: geometry.write_zeroes.into(),
            buffer_bytes_free: self.pool.arena().free_bytes() as u64,
            ..nvmed_info::defaults()
        }
    }

    fn feature(&self, feature: i32) -> ApiResult<i32> {
        match feature as u32 {
            NVMED_NO_CACHE => Ok(self.uncached.load(Ordering::Relaxed).into()),
            NVMED_CACHE_SIZE => Ok(i32::try_from(self.params.lock().cache_bytes / 4096).unwrap_or(i32::MAX)),
            NVMED_CACHE_LAZY_INIT => Ok((!self.eager.load(Ordering::Relaxed)).into()),
            _ => Err(unknown(feature)),
        }
    }

    fn set_feature(&self, feature: i32, value: i32) -> ApiResult<i32> {
        let cache = self.cache.lock();
        let wrong = || ApiError::new(libc::EINVAL, format!("{value} is no value of this feature"));
        let flag = || if matches!(value, 0 | 1) { Ok(value == 1) } else { Err(wrong()) };
        match feature as u32 {
            NVMED_NO_CACHE | NVMED_CACHE_SIZE | NVMED_CACHE_LAZY_INIT if cache.is_some() => {
                return Err(ApiError::new(libc::EBUSY, "the cache is in use: set this before the first cached handle"));
            }
            NVMED_NO_CACHE => self.uncached.store(flag()?, Ordering::Relaxed),
            NVMED_CACHE_LAZY_INIT => self.eager.store(!flag()?, Ordering::Relaxed),
            NVMED_CACHE_SIZE => {
                self.params.lock().cache_bytes = u64::try_from(value).ok().filter(|pages| *pages > 0).ok_or_else(wrong)? * 4096
            }
            _ => return Err(unknown(feature)),
        }
        Ok(0)
    }
}

fn unknown(feature: i32) -> ApiError {
    ApiError::new(
        libc::EINVAL,
        format!("there is no feature {feature} of a device: NVMED_NO_CACHE, NVMED_CACHE_SIZE, NVMED_CACHE_LAZY_INIT"),
    )
}

/// Opens a device. Thread-safe.
///
/// `name`: the path of a file, a block device or an NVMe character device such as /dev/ng0n1; memory:SIZE such as memory:64MiB;
/// vfio-user:SOCKET or vfio-user:SOCKET/NAMESPACE, a drive in another process; null; or fault:eio@FIRST-LAST:NAME, the device NAME whose
/// blocks FIRST to LAST fail, for tests. `flags`: O_RDONLY or O_RDWR. A block device is opened for writing exclusively (O_EXCL), so it
/// must not be mounted.
///
/// Returns the device, or NULL: ENOENT, EACCES, EBUSY and other errors of open(2); EINVAL (an invalid name or flags, or a file that cannot
/// be a device: hs_error says why).
///
/// # Safety
/// `name` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_open(name: *const c_char, flags: c_int) -> *mut NVMED {
    // SAFETY: the caller's promise.
    unsafe { nvmed_open_with(name, flags, std::ptr::null()) }
}

/// Opens a device with options. Thread-safe.
///
/// `options`: from nvmed_device_options_init and changed, or NULL. Returns as nvmed_open; also NULL with E2BIG (an option that this
/// version does not support) and ENOMEM.
///
/// # Safety
/// `name` is NULL or a string; `options` is NULL or has as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_open_with(name: *const c_char, flags: c_int, options: *const nvmed_device_options) -> *mut NVMED {
    ffi_guard(|| {
        ensure_init()?;
        // SAFETY: the caller's promise.
        let (name, options) = unsafe { (memory::text(name, "the name of the device")?, options::read(options)?) };
        let device = Device::open(name, flags, &options)?;
        enroll(Arc::new(device))
    })
}

/// Closes a device. Its queues must be destroyed before. Buffers of nvmed_get_buffer stay valid until they are put back. Thread-safe.
///
/// Returns 0, or -1: EBADF; EBUSY (it has queues, and stays open).
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_close(device: *mut NVMED) -> c_int {
    ffi_guard(|| end(device, |device: &Device| device.children.close("queues"), Device::finish))
}

/// Returns the properties of a device. Thread-safe.
///
/// Set info->size to sizeof *info before. Returns 0, or -1: EBADF, EFAULT (NULL), EINVAL (size).
///
/// # Safety
/// `info` is NULL or has as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_get_info(device: *mut NVMED, info: *mut nvmed_info) -> c_int {
    ffi_guard(|| {
        with(device, |device: &Arc<Device>| {
            if info.is_null() {
                return Err(ApiError::new(libc::EFAULT, "info is NULL"));
            }
            // SAFETY: the caller's promise.
            unsafe { options::write(info, (*info).size, device.info()) }
        })
    })
}

/// Returns a feature of a device (NVMED_NO_CACHE, NVMED_CACHE_SIZE in pages of 4096 bytes, NVMED_CACHE_LAZY_INIT). Thread-safe.
///
/// Returns its value, or -1: EBADF, EINVAL (no such feature).
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_feature_get(device: *mut NVMED, feature: c_int) -> c_int {
    ffi_guard(|| with(device, |device: &Arc<Device>| device.feature(feature)))
}

/// Sets a feature of a device, before its cache is in use. Thread-safe.
///
/// Returns 0, or -1: EBADF; EINVAL (no such feature or value); EBUSY (the cache is in use).
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_feature_set(device: *mut NVMED, feature: c_int, value: c_int) -> c_int {
    ffi_guard(|| with(device, |device: &Arc<Device>| device.set_feature(feature, value)))
}

/// Allocates memory that the device can access directly: requests with it need no copy. It is zeroed and page-aligned. Thread-safe.
///
/// `pages`: number of pages of 4096 bytes. The memory of a request must lie within one buffer. Any other memory works too, at the cost of
/// a copy.
///
/// Returns its address, or NULL: EBADF; EINVAL (no pages); ENOMEM (the device's buffer_bytes are used up: see nvmed_open_with).
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_get_buffer(device: *mut NVMED, pages: u32) -> *mut c_void {
    ffi_guard(|| with(device, |device: &Arc<Device>| device.pool.allocate(pages).map(<*mut u8>::cast)))
}

/// Frees a buffer of nvmed_get_buffer; NULL is ignored. If requests use it, it is kept until the device has released it; the program must
/// not access it any more in any case. Thread-safe.
///
/// Returns 0, or -1: EINVAL (not a buffer, or already freed).
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_put_buffer(buffer: *mut c_void) -> c_int {
    ffi_guard(|| if buffer.is_null() { Ok(0) } else { pool::put_back(buffer.cast()) })
}
