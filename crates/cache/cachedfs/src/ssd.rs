//! The SSD of an instance: opens it, creates it if it does not exist, and locks it.
//!
//! Every attached process holds a shared lock (flock(2)) on it. A process that creates an instance, or continues one without live
//! processes, takes the lock exclusively for a moment, and offline tools hold it exclusively: an SSD never has two instances. For an SSD
//! on a controller (`user_space_nvme.rs`), the lock is on a separate file.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::driver::{Engine, FileDevice, FileOptions};
use block::{Device, OpenError};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, fstat, openat};
use rustix::io::Errno;
use ssdcache::{CacheOpenError, PAGE_BYTES, Page, Shape, Superblock};

use crate::Size;
use crate::config::Config;
use crate::error::{Error, Kind};
use crate::image;
use crate::place::InstancePaths;
use crate::user_space_nvme::{self, Blocks, Lock, Owned, Served};

/// The time that a killed process may need to close its files.
const DYING: Duration = Duration::from_millis(300);

/// The SSD of an instance, open and locked.
pub struct Ssd {
    /// The path of the file or device.
    pub path: PathBuf,
    /// The device for readers, with any driver.
    pub device: Arc<dyn Device>,
    /// The device for the leader, whose calls end with the process.
    pub plain: Arc<dyn Device>,
    /// The geometry of its log.
    pub shape: Shape,
    /// The identity of the SSD, which formatting makes.
    pub uuid: [u8; 16],
    /// Device and inode of its file, which is never cached. None: it has no file.
    pub file: Option<(u64, u64)>,
    lock: SsdLock,
}

/// The lock of the SSD.
enum SsdLock {
    File(File),
    Driven(Lock),
}

impl std::fmt::Debug for Ssd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ssd({}, {:?})", self.path.display(), self.shape)
    }
}

/// The role of the process that opens it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Take {
    /// The first process of an instance, which needs it exclusively. It is created if it is missing or empty and a size is given.
    First(Option<Size>),
    /// A further process, which expects the log to have this geometry.
    Join(Shape),
}

impl Ssd {
    /// Opens it.
    ///
    /// # Errors
    /// [`Kind::Device`]: it belongs to another instance or is no SSD of a cache; or it does not exist and no size is given.
    pub fn open(path: &Path, take: Take, config: &Config) -> Result<Ssd, Error> {
        let path = user_space_nvme::absolute(path);
        if user_space_nvme::is_meant(&path) {
            return Ssd::open_controller(path, take, config);
        }
        let file = open_or_make(&path, take)?;
        lock(&file, &path, take)?;
        let superblock = superblock(&file, &path)?;
        let options = FileOptions { exclusive: false, round_down: true, ..FileOptions::default() };
        let failed = |error: OpenError| to_error(Errno::from_raw_os_error(error.errno()), error.to_string());
        let device = FileDevice::open(&path, &options).map_err(failed)?;
        let plain = FileDevice::open(&path, &FileOptions { engine: Engine::Plain, ..options }).map_err(failed)?;
        let stat = fstat(&file).map_err(|errno| Error::system(errno, "looking at the SSD", &path.as_path().into()))?;
        Ok(Ssd {
            device: Arc::new(device),
            plain: Arc::new(plain),
            shape: superblock.shape,
            uuid: superblock.uuid,
            file: Some((stat.st_dev, stat.st_ino)),
            path,
            lock: SsdLock::File(file),
        })
    }

    /// Opens a controller. Only the first process reads it, since the leader will own it.
    fn open_controller(path: PathBuf, take: Take, config: &Config) -> Result<Ssd, Error> {
        let held = loop {
            let held = Lock::open(&path)?;
            lock(&held.file, &path, take)?;
            if held.is_named() {
                break held;
            }
        };
        let (shape, uuid) = match take {
            Take::Join(shape) => (shape, [0; 16]),
            Take::First(_) => {
                let blocks = Blocks::open(&path).inspect_err(|_| held.let_go())?;
                let found = superblock_of(&path, blocks.bytes(), &mut |at, to| blocks.read(at, to)).inspect_err(|_| held.let_go())?;
                (found.shape, found.uuid)
            }
        };
        let place = InstancePaths::of(config)?;
        let pages = shape.device_pages();
        let plain = Arc::new(Owned::new(&path, config, &place, pages).inspect_err(|_| held.let_go())?);
        Ok(Ssd { device: Arc::new(Served::new(&place, pages)), plain, shape, uuid, file: None, path, lock: SsdLock::Driven(held) })
    }

    /// Releases the lock: this process has detached, and another one may take it exclusively.
    pub fn let_go(&self) {
        match &self.lock {
            SsdLock::File(file) => drop(flock(file, FlockOperation::Unlock)),
            SsdLock::Driven(lock) => lock.let_go(),
        }
    }
}

fn to_error(errno: Errno, sentence: String) -> Error {
    Error::new(Kind::Device, errno, sentence)
}

fn open(path: &Path) -> Result<Option<File>, Error> {
    match openat(CWD, path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(fd) => Ok(Some(fd.into())),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(Error::system(errno, "opening the SSD", &path.into())),
    }
}

/// Opens it. First creates it if it is missing or empty and may be created.
fn open_or_make(path: &Path, take: Take) -> Result<File, Error> {
    let found = open(path)?;
    let size = match take {
        Take::First(size) => size,
        Take::Join(_) => None,
    };
    let is_empty = found.as_ref().is_some_and(|file| file.metadata().is_ok_and(|stat| stat.is_file() && stat.len() == 0));
    match found {
        Some(file) if !is_empty => Ok(file),
        _ if size.is_some() => {
            image::create(path, &image::Options { size, ..image::Options::default() }, &mut |_, _| ())?;
            open(path)?.ok_or_else(|| Error::system(Errno::NOENT, "opening the SSD", &path.into()))
        }
        _ => Err(to_error(
            Errno::NOENT,
            format!("{}: there is no SSD cache: make it with `hotshelf cache create`, or say ssd_size", path.display()),
        )),
    }
}

fn lock(file: &File, path: &Path, take: Take) -> Result<(), Error> {
    let busy = |errno| match errno {
        Errno::WOULDBLOCK => to_error(Errno::BUSY, format!("{}: another instance, or a tool, uses this SSD: end it first", path.display())),
        errno => Error::system(errno, "locking the SSD", &path.into()),
    };
    if let Take::First(_) = take {
        let begun = Instant::now();
        // A process that is being killed loses its process slot first and this lock a moment later.
        loop {
            match flock(file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) if begun.elapsed() < DYING => std::thread::sleep(Duration::from_millis(2)),
                locked => break locked.map_err(busy)?,
            }
        }
    }
    flock(file, FlockOperation::NonBlockingLockShared).map_err(busy)
}

fn length(path: &Path) -> Result<u64, Error> {
    let device = FileDevice::open(path, &FileOptions { round_down: true, ..FileOptions::default() });
    let device = device.map_err(|error| to_error(Errno::from_raw_os_error(error.errno()), error.to_string()))?;
    Ok(device.geometry().bytes())
}

/// Returns a random identity for a new SSD.
pub fn uuid() -> [u8; 16] {
    let mut uuid = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut uuid));
    if read.is_err() {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        uuid[..8].copy_from_slice(&(now.tv_nsec as u64 ^ (now.tv_sec as u64) << 20).to_le_bytes());
        uuid[8..12].copy_from_slice(&std::process::id().to_le_bytes());
    }
    uuid
}

/// Reads the superblock of an SSD.
pub fn superblock(file: &File, path: &Path) -> Result<Superblock, Error> {
    let bytes = match file.metadata() {
        Ok(stat) if stat.is_file() => stat.len(),
        _ => length(path)?,
    };
    superblock_of(path, bytes, &mut |at, to| {
        let mut done = 0;
        while done < to.len() {
            match file.read_at(&mut to[done..], at + done as u64) {
                Ok(0) => break,
                Ok(got) => done += got,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    })
}

/// Reads the superblock of an SSD of this length.
fn superblock_of(path: &Path, bytes: u64, read_at: &mut dyn FnMut(u64, &mut [u8]) -> std::io::Result<()>) -> Result<Superblock, Error> {
    let mut pages: [Page; 2] = [[0; PAGE_BYTES]; 2];
    for (page, at) in pages.iter_mut().zip([0, PAGE_BYTES as u64]) {
        read_at(at, page)
            .map_err(|error| Error::system(Errno::from_io_error(&error).unwrap_or(Errno::IO), "reading the SSD", &path.into()))?;
    }
    Superblock::choose(&pages, bytes / PAGE_BYTES as u64).map_err(|why| match why {
        CacheOpenError::None if pages.iter().flatten().any(|byte| *byte != 0) => {
            let what = "it holds something that is no cache of ours, or a damaged one: nothing was changed; \
                        `hotshelf cache check` looks at it";
            to_error(Errno::EXIST, format!("{}: {what}", path.display()))
        }
        why => to_error(Errno::INVAL, format!("{}: {why}", path.display())),
    })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn an_empty_one_is_made_a_foreign_one_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, config) = (dir.path().join("ssd"), Config::default());
        assert_eq!(Ssd::open(&path, Take::First(None), &config).expect_err("not there").errno(), Errno::NOENT.raw_os_error());
        assert!(!path.exists());
        let made = Ssd::open(&path, Take::First(Some(Size::Bytes(8 << 20))), &config).expect("made");
        let (uuid, shape) = (made.uuid, made.shape);
        assert!(shape.device_pages() <= 2048);
        assert_eq!(Ssd::open(&path, Take::First(None), &config).expect_err("in use").errno(), Errno::BUSY.raw_os_error());
        let joined = Ssd::open(&path, Take::Join(shape), &config).expect("joined");
        assert_eq!((joined.uuid, joined.shape), (uuid, shape));
        drop((made, joined));
        assert_eq!(Ssd::open(&path, Take::First(None), &config).expect("again").uuid, uuid);
        std::fs::write(&path, vec![7; 8 << 20]).expect("written");
        let refused = Ssd::open(&path, Take::First(Some(Size::Bytes(8 << 20))), &config).expect_err("foreign");
        // The advice must never destroy data.
        assert!(refused.to_string().contains("`hotshelf cache check`") && !refused.to_string().contains("--force"), "{refused}");
        assert_eq!(std::fs::read(&path).expect("there")[..10], [7; 10]);
    }
}
