//! Devices, which open queues, and the options of a queue.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use shm::Region;

use crate::buffer::Arena;
use crate::error::Error;
use crate::geometry::Geometry;
use crate::queue::Queue;

/// The options of a queue. A driver ignores options that it does not support, except `depth`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueOptions {
    /// The most requests in flight: 1 to 4096, a power of two.
    pub depth: u32,
    /// Whether the device is polled for completions, and sends no interrupts (io_uring: IOPOLL).
    pub device_polled: bool,
    /// Whether a kernel thread takes submissions, so that `ring` needs no system call (io_uring: SQPOLL).
    pub kernel_submits: bool,
    /// Whether one thread alone uses the queue, from its first request to its drop; another thread may open it. io_uring then
    /// completes
    /// requests only when that thread enters the kernel (SINGLE_ISSUER, DEFER_TASKRUN), which is cheaper. Use by another thread
    /// panics.
    /// A drop by another thread keeps the file open until the using thread ends. Leave it off for queues that threads share.
    pub single_issuer: bool,
    /// Whether the caller waits for completions, and polls only when there are some. With `single_issuer`, io_uring then keeps no
    /// flag
    /// for finished work in memory that two CPUs write. A poll that finds nothing becomes a system call: leave it off for queues
    /// that are
    /// polled in a loop.
    pub waits: bool,
    /// How long a wait spins before it sleeps, with `single_issuer` and `waits`. Zero: it sleeps at once.
    pub spin_duration: Duration,
}

impl Default for QueueOptions {
    fn default() -> Self {
        QueueOptions {
            depth: 128,
            device_polled: false,
            kernel_submits: false,
            single_issuer: false,
            waits: false,
            spin_duration: Duration::ZERO,
        }
    }
}

/// The reason why a device or one of its queues was not opened. The message says what failed, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system refused the operation.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed, with its file.
        what: String,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The device exists but cannot be used this way.
    #[error("{0}")]
    Unusable(String),
    /// The system refused the operation, for a reason that the message explains.
    #[error("{what}")]
    Refused {
        /// The obstacle, and what to do about it.
        what: String,
        /// The errno of the kernel, for programs.
        errno: i32,
    },
}

impl OpenError {
    /// Makes an error from a description and the kernel's error.
    pub fn system(what: impl Into<String>, source: impl Into<io::Error>) -> OpenError {
        OpenError::System { what: what.into(), source: source.into() }
    }

    /// Makes an error whose description replaces the kernel's message.
    pub fn refused(what: impl Into<String>, source: &io::Error) -> OpenError {
        OpenError::Refused { what: what.into(), errno: source.raw_os_error().unwrap_or(0) }
    }

    /// Returns the errno that programs get.
    pub fn errno(&self) -> i32 {
        use rustix::io::Errno;
        match self {
            OpenError::System { source, .. } => source.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
            OpenError::Unusable(_) => Errno::INVAL.raw_os_error(),
            OpenError::Refused { errno, .. } => *errno,
        }
    }
}

/// The properties of a device that matter to long-lived users of its queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceCapabilities {
    /// Whether I/O without a copy, or any I/O, requires memory that other processes can map ([`Device::arena`]).
    pub shared_memory: bool,
    /// Whether the queues fail with [`Error::Gone`] when another process ends, and a new queue may work again.
    pub comes_back: bool,
    /// The most queues that one process should open, because the device has few.
    pub queues_max: usize,
}

impl Default for DeviceCapabilities {
    fn default() -> Self {
        DeviceCapabilities { shared_memory: false, comes_back: false, queues_max: usize::MAX }
    }
}

/// An open device. The queues of one device are independent of each other.
pub trait Device: Send + Sync {
    /// Returns the geometry of the device.
    fn geometry(&self) -> &Geometry;

    /// Returns the properties that matter to long-lived users.
    fn capabilities(&self) -> DeviceCapabilities {
        DeviceCapabilities::default()
    }

    /// Allocates memory for requests, of a kind that suits the device.
    ///
    /// # Errors
    /// There is not enough memory.
    fn arena(&self, bytes: usize) -> io::Result<Arena> {
        if !self.capabilities().shared_memory {
            return Arena::private(bytes);
        }
        Ok(Arena::over(Arc::new(Region::shared("hotshelf-arena", bytes)?)))
    }

    /// Opens a new queue of the device.
    ///
    /// # Errors
    /// There are no more queues or resources, or the device does not support the options.
    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>, OpenError>;

    /// Reads synchronously, in a system call of the calling thread: the cheapest way to read one request at a time. `at` is a byte
    /// offset; it and the length of `to` are multiples of the block size, and `to` is aligned to [`Geometry::memory_align`]. Returns
    /// `None`
    /// if the device has only queues.
    fn read_now(&self, at: u64, to: &mut [u8]) -> Option<Result<(), Error>> {
        let _ = (at, to);
        None
    }
}
