//! The images that this process has open: each once, as long as a database in it is.

use std::collections::HashMap;
use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use libsqlite3_sys as sys;
use parking_lot::Mutex;
use rawfs::fs::{Atime, Creds, Error, File, Fs, FsSettings, Memory};
use rawfs::{Disk, DiskSettings, Settings, Store};
use rustix::fs::OFlags;
use rustix::io::Errno;
use stack::DeviceName;

use crate::error::{Outcome, VfsError};

/// What was committed without waiting (`synchronous` OFF, or NORMAL with a WAL) is durable after so long.
const COMMIT: Duration = Duration::from_secs(5);

/// A raw image that this process has open.
pub struct Image {
    /// The path under which the image is known.
    pub name: PathBuf,
    /// The file system in the image.
    pub fs: Fs,
    /// Whose the files are that are made.
    pub creds: Creds,
    /// Super-journals by path; they are in memory alone.
    pub supers: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
}

impl Image {
    /// Returns the flags with which SQLite's files are opened here: for reading only, if nothing can be written.
    pub fn flags(&self, flags: c_int) -> c_int {
        let writing = sys::SQLITE_OPEN_READWRITE | sys::SQLITE_OPEN_CREATE;
        if self.fs.store().is_read_only() { flags & !writing | sys::SQLITE_OPEN_READONLY } else { flags }
    }

    /// Opens a file with SQLite's flags.
    pub fn open_file(&self, path: &[u8], flags: c_int) -> Result<File, Error> {
        let asked = |flag: c_int| flags & flag != 0;
        let mut how = if asked(sys::SQLITE_OPEN_READONLY) { OFlags::RDONLY } else { OFlags::RDWR };
        how.set(OFlags::CREATE, asked(sys::SQLITE_OPEN_CREATE));
        how.set(OFlags::EXCL, asked(sys::SQLITE_OPEN_EXCLUSIVE) && asked(sys::SQLITE_OPEN_CREATE));
        let creds = Creds { umask: 0, ..self.creds.clone() };
        self.fs.open_at(self.fs.root(), path, how, 0o644, &creds)
    }
}

struct ImageSlot {
    image: Arc<Image>,
    users: usize,
    /// Stays when nobody uses it.
    kept: bool,
    ticker: Ticker,
}

static IMAGES: Mutex<Option<HashMap<PathBuf, ImageSlot>>> = Mutex::new(None);

/// An image in use; closed with its last user.
pub struct OpenImage(Option<Arc<Image>>);

impl std::ops::Deref for OpenImage {
    type Target = Image;

    fn deref(&self) -> &Image {
        self.0.as_ref().expect("until it is dropped")
    }
}

impl Drop for OpenImage {
    fn drop(&mut self) {
        let mut images = IMAGES.lock();
        let images = images.get_or_insert_default();
        let name = self.name.clone();
        let slot = images.get_mut(&name).expect("in use");
        slot.users -= 1;
        self.0 = None;
        if slot.users > 0 || slot.kept {
            return;
        }
        let ImageSlot { image, ticker, .. } = images.remove(&name).expect("just seen");
        drop(ticker);
        let fs = Arc::into_inner(image).expect("the last one").fs;
        if let Err(error) = fs.close() {
            crate::api::log(sys::SQLITE_IOERR_CLOSE, &format!("closing {}: {error}", name.display()));
        }
    }
}

/// The path that an image is known by: one that is open, or of a file or device that is there.
pub fn known(path: &Path) -> Option<PathBuf> {
    if IMAGES.lock().get_or_insert_default().contains_key(path) {
        return Some(path.to_owned());
    }
    std::fs::canonicalize(path).ok()
}

/// An image by its path, opened if this process has not: with so much memory.
pub fn hold(path: &Path, memory: Option<Memory>) -> Outcome<OpenImage> {
    let mut images = IMAGES.lock();
    let images = images.get_or_insert_default();
    if !images.contains_key(path) {
        let fs = open(path, memory)?;
        put(images, path, fs, false).map_err(VfsError::of(sys::SQLITE_CANTOPEN, "opening the image"))?;
    }
    let slot = images.get_mut(path).expect("there now");
    slot.users += 1;
    Ok(OpenImage(Some(Arc::clone(&slot.image))))
}

/// Gives a file system that is open already a name as an image.
///
/// # Errors
/// EEXIST if there is one of this name, EAGAIN if no thread can be started.
pub fn mount(name: &Path, fs: Fs) -> Result<(), Error> {
    let mut images = IMAGES.lock();
    let images = images.get_or_insert_default();
    if images.contains_key(name) { Err(Errno::EXIST.into()) } else { put(images, name, fs, true) }
}

/// Takes it back; nobody uses it.
///
/// # Errors
/// ENOENT if there is none, EBUSY if it is in use.
pub fn unmount(name: &Path) -> Result<Fs, Error> {
    let mut images = IMAGES.lock();
    let images = images.get_or_insert_default();
    if images.get(name).ok_or(Error::Refused(Errno::NOENT))?.users > 0 {
        return Err(Errno::BUSY.into());
    }
    let ImageSlot { image, ticker, .. } = images.remove(name).expect("just seen");
    drop(ticker);
    Arc::into_inner(image).map(|image| image.fs).ok_or(Error::Refused(Errno::BUSY))
}

fn put(images: &mut HashMap<PathBuf, ImageSlot>, path: &Path, fs: Fs, kept: bool) -> Result<(), Error> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let creds = Creds { uid, gid, groups: Vec::new(), umask: 0o022, check: false };
    let image = Arc::new(Image { name: path.to_owned(), fs, creds, supers: Mutex::default() });
    let ticker = Ticker::start(&image)?;
    images.insert(path.to_owned(), ImageSlot { image, users: 0, kept, ticker });
    Ok(())
}

fn open(path: &Path, memory: Option<Memory>) -> Outcome<Fs> {
    let refused = |why: &dyn std::fmt::Display| VfsError::new(sys::SQLITE_CANTOPEN, format!("{}: {why}", path.display()));
    let buffers = memory.map_or_else(DiskSettings::default, Memory::disk);
    // The words of the driver name the path already.
    let open_disk =
        |read_only| stack::open_disk(&DeviceName::Path(path.to_owned()), read_only, &buffers).map_err(|error| error.to_string());
    let disk = open_disk(false).map_err(|words| VfsError::new(sys::SQLITE_CANTOPEN, words))?;
    let (mut settings, mut files) = (Settings::default(), FsSettings { atime: Atime::Never, ..FsSettings::default() });
    if let Some(memory) = memory {
        let least = || refused(&format!("memory: this image needs {} bytes at least", Memory::least(disk.blocks())));
        memory.divide(disk.blocks(), &mut settings, &mut files).map_err(|_| least())?;
    }
    open_on(disk, || open_disk(true).ok(), &settings, &files).map_err(|error| refused(&error))
}

/// Opens the file system on a disk. If the device fails a request, it is opened for reading only, on the disk that `again` opens: its log
/// is replayed in memory. So what was acknowledged can be read when the device refuses all writes.
///
/// # Errors
/// The image cannot be read, or is in use, or is none.
pub fn open_on(disk: Disk, again: impl FnOnce() -> Option<Disk>, settings: &Settings, files: &FsSettings) -> Result<Fs, Error> {
    open_fs(disk, settings, files).or_else(|error| {
        let read_only = Settings { read_only: true, ..settings.clone() };
        let disk = if is_of_device(&error) { again() } else { None };
        let Some(fs) = disk.and_then(|disk| open_fs(disk, &read_only, files).ok()) else { return Err(error) };
        crate::api::log(sys::SQLITE_WARNING, &format!("the image is open for reading only, until it is opened again: {error}"));
        Ok(fs)
    })
}

fn open_fs(disk: Disk, settings: &Settings, files: &FsSettings) -> Result<Fs, Error> {
    let (store, _) = Store::open(disk, settings)?;
    Fs::open(store, files.clone()).map(|(fs, _)| fs)
}

/// Whether the device has failed a request, which may have been a write.
fn is_of_device(error: &Error) -> bool {
    match error {
        Error::Store(rawfs::Error::Device(_) | rawfs::Error::Failed(_)) => true,
        Error::WriteBack { why, .. } => is_of_device(why),
        _ => false,
    }
}

/// The thread that makes durable now and then what nobody waits for.
struct Ticker {
    running: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    fn start(image: &Arc<Image>) -> Result<Ticker, Error> {
        let (running, ended) = sync_channel(0);
        let image = Arc::downgrade(image);
        let work = move || {
            while ended.recv_timeout(COMMIT) == Err(RecvTimeoutError::Timeout) {
                let Some(image) = image.upgrade() else { break };
                let _ = image.fs.write_back();
                if image.fs.store().synced() < image.fs.store().applied() {
                    // The store remembers a failure, and reports it to the waiters.
                    let _ = image.fs.sync();
                }
            }
        };
        let thread = std::thread::Builder::new().name("hotshelf-sqlite".into()).spawn(work).map_err(|_| Error::Refused(Errno::AGAIN))?;
        Ok(Ticker { running: Some(running), thread: Some(thread) })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.running = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
