//! A cache SSD on a user-space NVMe driver: a namespace of a controller, `nvme:0000:03:00.0/1` or `vfio-user:/run/x.sock/1`.
//!
//! A controller has one owner, the leader of the instance. A process that becomes leader takes the controller over ([`Owned`]) and writes
//! to it through a dedicated queue. A broker (`block::broker`), whose socket is beside the segment, hands out read queues to all attached
//! processes ([`Served`]), the leader included. Each process reads hits through its own queue.
//!
//! When the leader dies, the kernel closes its descriptors: the server of a vfio-user socket accepts the next host, VFIO resets the
//! function. Reads in flight complete with [`block::Error::Gone`]. They are repeated from the backing file, or wait for the next leader if
//! only the SSD has the page. The next leader takes the controller over and so resets it, which ends all requests of the dead leader. Then
//! it recovers the log as after a power cut (docs/decisions/25-nvme-drive-as-cache-ssd.md).

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use block::broker::{BrokerDevice, ConnectOptions, GrantSpec, Journal, Server, ServerOptions, Who};
use block::{Arena, Device, DeviceCapabilities, Geometry, Handle, OpenError, Params, Queue, QueueOptions};
use nvme::Namespace;
use nvme::named::{FunctionName, open_namespace};
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use ssdcache::PAGE_BYTES;

use crate::config::Config;
use crate::error::{Error, Kind};
use crate::place::InstancePaths;
pub use crate::ssd_name::{absolute, is_meant, parse};

/// What the broker calls it.
const DEVICE: &str = "ssd";
/// So long the last owner may take to be gone, and the controller to be ready: as long as an admin command may take.
const TAKES: Duration = Duration::from_secs(10);
/// So long a process that is being killed may take to let go of it.
const DYING: Duration = Duration::from_millis(300);
/// Between two tries.
const AGAIN: Duration = Duration::from_millis(2);
/// How long a reply of the broker may take: the leader may be suspended.
const ANSWERS: Duration = Duration::from_secs(5);
/// Queues of one process for threads that wait: a controller has some tens for all.
const QUEUES_MAX: usize = 4;
/// Shared memory of one queue, at most.
const MEMORY_MAX: u64 = 16 << 20;
/// The name of a socket, at most (unix(7)).
const SOCKET_NAME_MAX: usize = 107;
/// How much the exclusive user transfers in one call.
const PIECE: usize = 256 << 10;

/// Returns the default name of a cache on this controller. None: it is a path.
pub fn short_name(ssd: &Path) -> Option<String> {
    let (function, namespace) = parse(ssd)?;
    let name = match function {
        FunctionName::Pci(address) => format!("nvme-{}", address.replace(':', "-")),
        FunctionName::VfioUser(socket) => Config::name_for(&socket),
    };
    Some(if namespace == 1 { name } else { format!("{}-{namespace}", name.chars().take(50).collect::<String>()) })
}

fn to_error(ssd: &Path, error: &OpenError) -> Error {
    let shown = ssd.display().to_string();
    let what = error.to_string();
    let sentence = if what.contains(&shown) { what } else { format!("{shown}: {what}") };
    Error::new(Kind::Device, Errno::from_raw_os_error(error.errno()), sentence)
}

/// Keeps instances and tools of one user apart, as flock(2) does on an SSD that is a file.
pub struct Lock {
    path: PathBuf,
    /// The lock file, on which the caller takes flock(2).
    pub file: File,
}

impl Lock {
    /// Opens the lock file without locking it.
    pub fn open(ssd: &Path) -> Result<Lock, Error> {
        let place = InstancePaths::of(&Config::default())?;
        place.ensure()?;
        let hash = xxhash_rust::xxh3::xxh3_64(absolute(ssd).as_os_str().as_encoded_bytes());
        let path = place.dir.join(format!("ssd-{hash:016x}.lock"));
        let flags = (OFlags::NOFOLLOW | OFlags::CLOEXEC).bits().cast_signed();
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags).open(&path);
        match file {
            Ok(file) => Ok(Lock { path, file }),
            Err(error) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                Err(Error::system(errno, "opening the lock of the SSD", &path.as_path().into()))
            }
        }
    }

    /// Not one that was removed before we had it.
    pub fn is_named(&self) -> bool {
        let place = |stat: std::fs::Metadata| (stat.dev(), stat.ino());
        let (named, held) = (std::fs::symlink_metadata(&self.path).map(place), self.file.metadata().map(place));
        matches!((named, held), (Ok(named), Ok(held)) if named == held)
    }

    /// For this process alone.
    fn alone(ssd: &Path) -> Result<Lock, Error> {
        loop {
            let lock = Lock::open(ssd)?;
            match flock(&lock.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if lock.is_named() => return Ok(lock),
                Ok(()) => {}
                Err(_) => return Err(Error::new(Kind::Device, Errno::BUSY, in_use(ssd))),
            }
        }
    }

    /// It is let go; the last one leaves nothing behind.
    pub fn let_go(&self) {
        if self.is_named() && flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = std::fs::remove_file(&self.path);
        }
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Let go when it is dropped.
struct ExclusiveLock(Lock);

impl Drop for ExclusiveLock {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

fn in_use(ssd: &Path) -> String {
    format!("{} is in use: end the programs that use the cache, or `hotshelf cache detach` it", ssd.display())
}

/// Opens it as soon as whoever had it is gone, if that is soon.
fn open_within(most: Duration, function: &FunctionName, namespace: u32, record_file: Option<&Path>) -> Result<Namespace, OpenError> {
    let begun = Instant::now();
    loop {
        match open_namespace(function, namespace, record_file) {
            Err(_) if begun.elapsed() < most => std::thread::sleep(AGAIN),
            opened => return opened,
        }
    }
}

/// The SSD as the leader uses it: its only queue takes the controller over and releases it when it is dropped.
pub struct Owned {
    function: FunctionName,
    namespace: u32,
    record_file: Option<PathBuf>,
    socket: PathBuf,
    geometry: Geometry,
    tenure: Mutex<Weak<Tenure>>,
}

/// While a process owns the controller.
struct Tenure {
    /// Ends first.
    _server: Server,
    device: Namespace,
}

impl Owned {
    /// Nothing is opened yet. So many `pages` are of the cache.
    ///
    /// # Errors
    /// [`Kind::Invalid`]: the name of the socket is too long.
    pub fn new(ssd: &Path, config: &Config, place: &InstancePaths, pages: u64) -> Result<Owned, Error> {
        let (function, namespace) = parse(ssd).ok_or_else(|| Error::invalid(format!("`{}` is no controller", ssd.display())))?;
        if place.queues.as_os_str().len() > SOCKET_NAME_MAX {
            let what = format!("[cache] name, runtime_dir: {} is too long for a socket: {SOCKET_NAME_MAX} bytes", place.queues.display());
            return Err(Error::invalid(what));
        }
        Ok(Owned {
            function,
            namespace,
            record_file: config.record_file.clone(),
            socket: place.queues.clone(),
            geometry: Geometry::plain(PAGE_BYTES as u32, pages),
            tenure: Mutex::default(),
        })
    }

    /// Takes the controller, as soon as whoever had it is gone.
    fn take(&self) -> Result<Arc<Tenure>, OpenError> {
        let mut tenure = self.tenure.lock();
        if let Some(tenure) = tenure.upgrade() {
            return Ok(tenure);
        }
        let begun = Instant::now();
        let device = open_within(TAKES, &self.function, self.namespace, self.record_file.as_deref())?;
        let server = self.serve(&device).map_err(|error| OpenError::system(self.socket.display().to_string(), error))?;
        let taken = Arc::new(Tenure { _server: server, device });
        *tenure = Arc::downgrade(&taken);
        tracing::info!(took_ms = begun.elapsed().as_millis() as u64, "{}/{} is ours", self.function, self.namespace);
        Ok(taken)
    }

    fn serve(&self, device: &Namespace) -> io::Result<Server> {
        // Whoever listens there does not lead any more.
        match std::fs::remove_file(&self.socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let terms = GrantSpec {
            who: Who::Anybody,
            device: DEVICE.to_owned(),
            queues: u32::MAX,
            depth: 4096,
            first: 0,
            blocks: None,
            read_only: true,
            memory_bytes: MEMORY_MAX,
            bytes_per_s: None,
            requests_per_s: None,
        };
        let several = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
        Server::start(ServerOptions {
            socket: self.socket.clone(),
            journal: Journal::fixed([terms])?,
            devices: vec![(DEVICE.to_owned(), Arc::new(device.clone()) as Arc<dyn Device>)],
            spin: Duration::from_micros(if several { 20 } else { 0 }),
            reset_timeout: Duration::from_secs(1),
        })
    }
}

impl Device for Owned {
    /// In pages.
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn capabilities(&self) -> DeviceCapabilities {
        DeviceCapabilities { shared_memory: true, ..DeviceCapabilities::default() }
    }

    /// Waits until the controller is ours.
    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>, OpenError> {
        let tenure = self.take()?;
        Ok(Box::new(OwnedQueue { queue: tenure.device.queue(options)?, _tenure: tenure }))
    }
}

/// A queue that keeps the controller.
struct OwnedQueue {
    queue: Box<dyn Queue>,
    _tenure: Arc<Tenure>,
}

impl block::QueueWrapper for OwnedQueue {
    type Inner = dyn Queue;
    const CHANGES_POLLING: bool = false;

    fn inner(&self) -> &Self::Inner {
        &*self.queue
    }

    fn inner_mut(&mut self) -> &mut Self::Inner {
        &mut *self.queue
    }
}

/// The SSD as all processes read it: through queues of the leader.
pub struct Served {
    socket: PathBuf,
    geometry: Geometry,
}

impl Served {
    /// Returns the device without opening it.
    pub fn new(place: &InstancePaths, pages: u64) -> Served {
        Served { socket: place.queues.clone(), geometry: Geometry { read_only: true, ..Geometry::plain(PAGE_BYTES as u32, pages) } }
    }
}

impl Device for Served {
    /// In pages.
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn capabilities(&self) -> DeviceCapabilities {
        DeviceCapabilities { shared_memory: true, comes_back: true, queues_max: QUEUES_MAX }
    }

    /// Opens a connection for each queue. It ends with the leader.
    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>, OpenError> {
        let options = (
            options.depth,
            ConnectOptions {
                socket: self.socket.clone(),
                device: DEVICE.to_owned(),
                range: None,
                read_only: true,
                arena_bytes: PAGE_BYTES,
                reply_timeout: Some(ANSWERS),
            },
        );
        Ok(Box::new(BrokerDevice::connect(&options.1)?.open_queue(options.0)?))
    }
}

/// The blocks of an SSD that this process has exclusively, for tools.
pub struct Blocks {
    inner: Mutex<(Handle<Box<dyn Queue>>, Arena)>,
    bytes: u64,
    /// Let go after the controller.
    _lock: Option<ExclusiveLock>,
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blocks({} bytes)", self.bytes)
    }
}

impl Blocks {
    /// Takes the controller, and the lock that keeps instances from it.
    ///
    /// # Errors
    /// [`Kind::Device`]: it is in use, not there, or of no use.
    pub fn alone(ssd: &Path) -> Result<Blocks, Error> {
        let lock = ExclusiveLock(Lock::alone(ssd)?);
        Ok(Blocks { _lock: Some(lock), ..Blocks::open(ssd)? })
    }

    /// Opens the blocks of an SSD whose lock the caller holds.
    pub fn open(ssd: &Path) -> Result<Blocks, Error> {
        let (function, namespace) = parse(ssd).ok_or_else(|| Error::invalid(format!("`{}` is no controller", ssd.display())))?;
        let device = open_within(DYING, &function, namespace, None).map_err(|error| to_error(ssd, &error))?;
        let geometry = device.geometry();
        let bytes = geometry.bytes() / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        if !PAGE_BYTES.is_multiple_of(geometry.block_bytes as usize) {
            let what = format!("{}: its blocks of {} bytes are larger than a page", ssd.display(), geometry.block_bytes);
            return Err(Error::new(Kind::Device, Errno::INVAL, what));
        }
        let queue = device.queue(&QueueOptions { depth: 4, ..QueueOptions::default() }).map_err(|error| to_error(ssd, &error))?;
        let failed = |error: block::Error| to_error(ssd, &OpenError::Unusable(error.to_string()));
        let mut handle = Handle::new(queue, Params::default()).map_err(failed)?;
        let arena = device.arena(PIECE).map_err(|error| to_error(ssd, &OpenError::system("memory", error)))?;
        handle.register(&arena).map_err(failed)?;
        Ok(Blocks { inner: Mutex::new((handle, arena)), bytes, _lock: None })
    }

    /// Returns the length in bytes, a multiple of the page size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn pieces(&self, at: u64, len: usize) -> io::Result<impl Iterator<Item = (u64, std::ops::Range<usize>)>> {
        let inside = at.checked_add(len as u64).is_some_and(|end| end <= self.bytes);
        if !inside || !at.is_multiple_of(PAGE_BYTES as u64) || !len.is_multiple_of(PAGE_BYTES) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok((0..len).step_by(PIECE).map(move |from| (at + from as u64, from..len.min(from + PIECE))))
    }

    /// Returns the length in bytes, a multiple of the page size.
    ///
    /// # Errors
    /// The device's; or there are not so many.
    pub fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        for (at, part) in self.pieces(at, to.len())? {
            let (handle, arena) = &mut *self.inner.lock();
            let done = handle.read(at, arena.allocate(part.len()).ok_or(io::ErrorKind::OutOfMemory)?);
            done.status.map_err(failed)?;
            done.into_buf().ok_or(io::ErrorKind::OutOfMemory)?.read(0, &mut to[part]);
        }
        Ok(())
    }

    /// Returns the length in bytes, a multiple of the page size.
    ///
    /// # Errors
    /// As above.
    pub fn write(&self, at: u64, from: &[u8]) -> io::Result<()> {
        for (at, part) in self.pieces(at, from.len())? {
            let (handle, arena) = &mut *self.inner.lock();
            let buf = arena.allocate(part.len()).ok_or(io::ErrorKind::OutOfMemory)?;
            buf.write(0, &from[part]);
            handle.write(at, buf).status.map_err(failed)?;
        }
        Ok(())
    }

    /// What was written survives a loss of power.
    ///
    /// # Errors
    /// The device's.
    pub fn sync(&self) -> io::Result<()> {
        self.inner.lock().0.flush().map_err(failed)
    }
}

fn failed(error: block::Error) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn names_of_controllers_stay_what_they_are() {
        let path = Path::new;
        assert_eq!(absolute(path("nvme:0000:03:00.0")), path("nvme:0000:03:00.0/1"));
        assert_eq!(absolute(path("vfio-user:/run/x.sock/2")), path("vfio-user:/run/x.sock/2"));
        assert!(
            absolute(path("vfio-user:x.sock")).to_str().is_some_and(|name| name.starts_with("vfio-user:/") && name.ends_with("/x.sock/1"))
        );
        assert_eq!(absolute(path("/ssd/cache")), path("/ssd/cache"));
        for (ssd, name) in
            [("nvme:0000:03:00.0/1", "nvme-0000-03-00.0"), ("vfio-user:/run/x.sock", "x"), ("vfio-user:/run/x.sock/3", "x-3")]
        {
            assert_eq!(Config::name_for(path(ssd)), name);
            assert!(Config::is_name(name));
        }
    }

    #[test]
    fn what_cannot_be_is_said_before_anything_is_opened() {
        let config = |ssd: &str| Config { ssd: Some(ssd.into()), ..Config::default() };
        for (config, named) in [
            (config("nvme:03:00.0"), "ssd"),
            (config("vfio-user:"), "ssd"),
            (Config { private: true, ..config("vfio-user:/run/x.sock") }, "private"),
            (Config { record_file: Some("/dev/shm/flight".into()), ..config("/ssd/cache") }, "record_file"),
        ] {
            let error = config.check().expect_err(named);
            assert!(error.to_string().contains(named), "{error}");
        }
        assert!(Config { record_file: Some("/dev/shm/flight".into()), ..config("vfio-user:/run/x.sock") }.check().is_ok());
    }
}
