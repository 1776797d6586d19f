//! Where queues come from.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use shm::Region;

use crate::buffer::Arena;
use crate::error::Error;
use crate::geometry::Geometry;
use crate::queue::Queue;

/// How a queue shall be. What a driver does not have it leaves out, except `depth`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueOptions {
    /// Most requests in flight: 1 to 4096, a power of two.
    pub depth: u32,
    /// The device is polled for completions, and sends no interrupts (io_uring: IOPOLL).
    pub device_polled: bool,
    /// A thread of the kernel takes submissions, so that `ring` needs no system call (io_uring: SQPOLL).
    pub kernel_submits: bool,
    /// One thread alone uses the queue, from its first request to its drop; another thread may open it. io_uring then completes
    /// requests only when that thread enters the kernel (SINGLE_ISSUER, DEFER_TASKRUN), which is cheaper. Use by another thread panics.
    /// A drop by another thread keeps the file open until the using thread ends. Leave it off for queues that threads share.
    pub single_issuer: bool,
    /// The caller waits for completions, and polls when there are some. With `single_issuer`, io_uring then keeps no flag for
    /// finished work in memory that two CPUs write. A poll that finds nothing becomes a system call: leave it off for queues that are
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

/// Why a device or a queue of it was not opened. Says what, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system refused.
    #[error("{what}: {source}")]
    System {
        /// What was done, to which file.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// It is there but cannot be used so.
    #[error("{0}")]
    Unusable(String),
    /// The system refused for a reason that is told in words of ours.
    #[error("{what}")]
    Refused {
        /// What is in the way, and what to do.
        what: String,
        /// What the kernel said, for programs.
        errno: i32,
    },
}

impl OpenError {
    /// With words around what the kernel said.
    pub fn system(what: impl Into<String>, source: impl Into<io::Error>) -> OpenError {
        OpenError::System { what: what.into(), source: source.into() }
    }

    /// With words instead of what the kernel said.
    pub fn refused(what: impl Into<String>, source: &io::Error) -> OpenError {
        OpenError::Refused { what: what.into(), errno: source.raw_os_error().unwrap_or(0) }
    }

    /// The errno that programs are told.
    pub fn errno(&self) -> i32 {
        use rustix::io::Errno;
        match self {
            OpenError::System { source, .. } => source.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
            OpenError::Unusable(_) => Errno::INVAL.raw_os_error(),
            OpenError::Refused { errno, .. } => *errno,
        }
    }
}

/// What those who keep queues of a device for long have to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceCapabilities {
    /// Data moves without a copy, or at all, only in memory that other processes can map ([`Device::arena`]).
    pub shared_memory: bool,
    /// Its queues end when another process does, with [`Error::Gone`]; a new one may work again.
    pub comes_back: bool,
    /// Queues that one process should have at most: there are not many.
    pub queues_max: usize,
}

impl Default for DeviceCapabilities {
    fn default() -> Self {
        DeviceCapabilities { shared_memory: false, comes_back: false, queues_max: usize::MAX }
    }
}

/// A device that is open. Queues of one device are independent of each other.
pub trait Device: Send + Sync {
    /// What it looks like.
    fn geometry(&self) -> &Geometry;

    /// How it is to be used.
    fn capabilities(&self) -> DeviceCapabilities {
        DeviceCapabilities::default()
    }

    /// Memory for requests, of the kind that suits it.
    ///
    /// # Errors
    /// No memory.
    fn arena(&self, bytes: usize) -> io::Result<Arena> {
        if !self.capabilities().shared_memory {
            return Arena::private(bytes);
        }
        Ok(Arena::over(Arc::new(Region::shared("hotshelf-arena", bytes)?)))
    }

    /// A new queue of it.
    ///
    /// # Errors
    /// No more queues, no resources, or options the device cannot have.
    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>, OpenError>;

    /// Reads with the thread that calls, and waits as long as the kernel does: of one request after the other that is the cheapest
    /// way there is. `at` is of bytes; it and the length of `to` are whole blocks, and `to` lies as [`Geometry::memory_align`] says.
    /// None: this device has queues only.
    fn read_now(&self, at: u64, to: &mut [u8]) -> Option<Result<(), Error>> {
        let _ = (at, to);
        None
    }
}
