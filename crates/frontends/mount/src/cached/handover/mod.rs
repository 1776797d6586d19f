//! The state of a mount that one program hands to the next, in the same process (execve(2)).
//!
//! `format.rs` is the state as bytes, `program.rs` the program that takes over.

mod format;
pub mod program;

use std::fs::File as StdFile;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;

use cachedfs::{Mode, Options};
use directoryfs::{HandedDirectory, HandedNames, Node};
use fusedev::Caller;
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use rustix::io::Errno;

use super::open_handle::OpenHandle;
use super::options::CachedOptions;
use super::shared::{CachedShared, OpenCachedFile};
pub use format::{FormatError, VERSION};

/// A state of this length would be one of a billion files.
const BYTES_MAX: u64 = 1 << 37;

/// A mount that nobody serves at this moment.
#[derive(Debug)]
pub struct HandedMount {
    /// When the mount ceased to reply, in nanoseconds of the monotonic clock.
    pub paused_at_ns: u64,
    /// The version of the program that served it.
    pub version: String,
    /// The mount point without symbolic links.
    pub mountpoint: PathBuf,
    /// The directory, the cache and the flags of the mount.
    pub options: CachedOptions,
    /// The connection to the kernel.
    pub device: OwnedFd,
    /// The locked file that says that the mount is served.
    pub presence: Option<OwnedFd>,
    /// The connection of the command that waits for the restart.
    pub client: Option<OwnedFd>,
    /// The inodes that the kernel knows.
    pub directory: HandedDirectory,
    /// What is remembered of names, if the mount remembers them.
    pub names: Option<Vec<u8>>,
    /// The open files that the kernel knows.
    pub files: Vec<HandedFile>,
    /// The open directories that the kernel knows.
    pub listings: Vec<HandedListing>,
}

/// Describes an open file as the next program gets it.
#[derive(Debug)]
pub struct HandedFile {
    /// The number by which the kernel knows the open file.
    pub handle: u64,
    /// The number of the inode.
    pub number: u64,
    /// The flags that it is opened in the cache with, for the descriptor as it is.
    pub flags: u32,
    /// Whether a program may write it.
    pub is_written: bool,
    /// Whether it was opened so that each write is durable when it returns.
    pub is_synchronous: bool,
    /// Whether its data go through the cache.
    pub is_cached: bool,
    /// Whether writes go through to the slow side, also where others are written back later.
    pub is_written_through: bool,
    /// An error of earlier writes that no program has got yet.
    pub late_error: Option<Errno>,
    /// The process that opened it.
    pub opener: Caller,
    /// The file on the slow side.
    pub file: OwnedFd,
}

/// Describes an open directory as the next program gets it.
#[derive(Debug)]
pub struct HandedListing {
    /// The number by which the kernel knows the open directory.
    pub handle: u64,
    /// The number of the inode.
    pub number: u64,
    /// The names of the directory, or what they are read from.
    pub names: HandedNames,
}

/// The open files and directories of a mount.
pub type HandedHandles = (Vec<HandedFile>, Vec<HandedListing>);

impl HandedMount {
    fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let single = [Some(&self.device), self.presence.as_ref(), self.client.as_ref(), Some(&self.directory.root)];
        let nodes = self.directory.nodes.iter().filter_map(|node| node.file.as_ref());
        let files = self.files.iter().map(|file| &file.file);
        let all = single.into_iter().flatten().chain(nodes).chain(files);
        let listings = self.listings.iter().filter_map(|listing| match &listing.names {
            HandedNames::Read(dir) => Some(dir),
            HandedNames::Remembered(_) => None,
        });
        all.chain(listings).map(OwnedFd::as_fd)
    }

    /// Writes the state into memory that the next program of this process can read, and lets it have the descriptors.
    ///
    /// # Errors
    /// No memory, or no descriptor is left.
    pub fn pass_on(&self) -> std::io::Result<OwnedFd> {
        let bytes = format::encode(self).map_err(std::io::Error::other)?;
        let memory = rustix::fs::memfd_create(c"hotshelf-state", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        std::io::Write::write_all(&mut StdFile::from(memory.try_clone()?), &bytes)?;
        rustix::fs::fcntl_add_seals(&memory, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        self.set_passed_on(true)?;
        fusedev::set_passed_on(memory.as_fd(), true)?;
        Ok(memory)
    }

    /// Lets the next program have the descriptors, or no longer.
    ///
    /// # Errors
    /// As fcntl(2).
    pub fn set_passed_on(&self, is_passed_on: bool) -> std::io::Result<()> {
        self.descriptors().try_for_each(|file| fusedev::set_passed_on(file, is_passed_on))
    }

    /// Takes the state that the program before this one has passed on.
    ///
    /// # Errors
    /// It is not a state of this version, or is damaged.
    pub fn take(number: RawFd) -> Result<HandedMount, FormatError> {
        let memory = StdFile::from(fusedev::take_passed_on(number)?);
        let is_sealed = rustix::fs::fcntl_get_seals(&memory).is_ok_and(|seals| seals.contains(SealFlags::WRITE));
        let length = memory.metadata()?.len();
        if !is_sealed || length > BYTES_MAX {
            return Err(FormatError::Damaged);
        }
        let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
        rustix::fs::seek(&memory, rustix::fs::SeekFrom::Start(0)).map_err(std::io::Error::from)?;
        (&memory).take(length).read_to_end(&mut bytes)?;
        format::decode(&bytes, &mut fusedev::take_passed_on)
    }
}

/// Returns whether an error of an open says that the file is not there any more, or that its reader may not read it now. Others may pass.
fn is_of_lost_file(error: Errno) -> bool {
    matches!(error, Errno::STALE | Errno::NOENT | Errno::ACCESS | Errno::PERM)
}

impl CachedShared {
    /// Writes data that only the cache has to files that have no name: only those that have them open find these files.
    ///
    /// # Errors
    /// As pwrite(2). The data stay in the cache.
    pub fn write_back_removed(&self) -> Result<(), Errno> {
        if self.mode != Mode::WriteBack {
            return Ok(());
        }
        for opened in self.opened.all().into_iter().filter_map(|(_, handle)| handle.get()) {
            if opened.file.is_removed() {
                opened.file.clean().map_err(|error| super::data::errno(&error))?;
            }
        }
        self.fs.write_back_removed()
    }

    /// Opens the files whose open(2) was replied to by what is remembered of them, but not those that are lost.
    ///
    /// # Errors
    /// As open(2).
    pub fn open_promised(&self) -> Result<(), Errno> {
        for (_, open) in self.opened.all() {
            match open.open(|promised| self.keep_promise(promised)) {
                Err(error) if !is_of_lost_file(error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns what another program needs to go on with the open files and directories. They stay open; no request may be under way. Most
    /// files should be open by now: see `open_promised`.
    ///
    /// # Errors
    /// The process has no descriptor left, the kernel has forgotten the inode of an open file, or as open(2).
    pub fn hand_over_handles(&self) -> Result<HandedHandles, Errno> {
        let mut files = Vec::new();
        for (handle, open) in self.opened.all() {
            match open.open(|promised| self.keep_promise(promised)) {
                Ok(opened) => files.push(self.hand_over_file(handle, &opened)?),
                // What the cache has of it may have been read.
                Err(error) if is_of_lost_file(error) => {
                    tracing::warn!(handle, %error, "a file that was opened for reading is lost in the restart")
                }
                Err(error) => return Err(error),
            }
        }
        let to_handed = |(handle, listing): (u64, Arc<directoryfs::Listing>)| {
            let (number, names) = self.fs.with_descriptors(|| listing.hand_over())?;
            Ok(HandedListing { handle, number, names })
        };
        Ok((files, self.listings.all().into_iter().map(to_handed).collect::<Result<_, Errno>>()?))
    }

    fn hand_over_file(&self, handle: u64, opened: &OpenCachedFile) -> Result<HandedFile, Errno> {
        let (file, number) = (&opened.file, opened.node.number());
        if !self.fs.is_known(number) {
            return Err(Errno::STALE);
        }
        if let Err(error) = file.take_unreported() {
            opened.late_error.lock().get_or_insert(super::data::errno(&error));
        }
        // The descriptor that the cache reads and writes by needs no more rights; opening the file again might.
        let is_cached = file.is_cached();
        let held = if is_cached { file.written_fd() } else { file.fd() };
        let kept = file.flags() - OFlags::NONBLOCK - OFlags::RWMODE - OFlags::APPEND;
        let flags = if is_cached { kept | rustix::fs::fcntl_getfl(held)? & OFlags::RWMODE } else { file.flags() };
        Ok(HandedFile {
            handle,
            number,
            flags: flags.bits(),
            is_written: opened.is_written,
            is_synchronous: opened.is_synchronous,
            is_cached,
            is_written_through: is_cached && file.mode() == Mode::WriteThrough,
            late_error: *opened.late_error.lock(),
            opener: opened.opener,
            file: self.fs.with_descriptors(|| rustix::io::fcntl_dupfd_cloexec(held, 0))?,
        })
    }

    /// Goes on with the open files and directories of another program. One that cannot be opened in the cache again bypasses it.
    pub fn take_over_handles(self: &Arc<Self>, files: Vec<HandedFile>, listings: Vec<HandedListing>) {
        let mut written = Vec::new();
        for file in files {
            let (handle, number) = (file.handle, file.number);
            if self.mode == Mode::WriteBack && file.is_written && !file.is_written_through {
                written.push(handle);
            }
            if let Err(error) = self.take_over_file(file) {
                tracing::error!(handle, number, %error, "an open file is lost in the restart: programs get EBADF");
            }
        }
        for HandedListing { handle, number, names } in listings {
            match self.fs.take_over_listing(number, names) {
                Ok(listing) => self.listings.insert(handle, listing),
                Err(error) => tracing::error!(handle, number, %error, "an open directory is lost in the restart: programs get EBADF"),
            }
        }
        if !written.is_empty() {
            self.prepare_to_write_later(written);
        }
    }

    /// Makes sure that what is written to these open files can reach the slow side later: see `open_file`. The leader of the cache, which
    /// begins at this moment, may take a second for that, and programs do not wait: while a file is open the leader has its descriptor.
    fn prepare_to_write_later(self: &Arc<Self>, handles: Vec<u64>) {
        let shared = Arc::downgrade(self);
        let prepare = move || {
            for handle in handles {
                let Some(opened) = shared.upgrade().and_then(|shared| shared.opened.get(handle).ok()?.get()) else { continue };
                if opened.file.prepare_to_write().is_err()
                    && let Err(error) = opened.file.set_mode(Mode::WriteThrough)
                {
                    tracing::warn!(handle, %error, "an open file cannot be written to the slow side after the restart");
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("hotshelf-write".into()).spawn(prepare) {
            tracing::warn!(%error, "open files are not prepared to be written to the slow side");
        }
    }

    fn take_over_file(&self, handed: HandedFile) -> Result<(), Errno> {
        let HandedFile { handle, number, file, .. } = handed;
        let node: Node = self.fs.take_over_node(number)?;
        let flags = OFlags::from_bits_retain(handed.flags);
        let mode = if handed.is_written_through { Mode::WriteThrough } else { self.mode };
        let options = Options { mode: Some(mode), is_uncached: !handed.is_cached, ..Options::default() };
        let open = |options: &Options| {
            self.fs.with_descriptors(|| {
                let file = rustix::io::fcntl_dupfd_cloexec(&file, 0)?;
                self.instance.open_descriptor(file, flags, options).map_err(|error| super::data::errno(&error))
            })
        };
        let opened = open(&options).or_else(|error| {
            tracing::warn!(number, %error, "an open file bypasses the cache after the restart");
            open(&Options { is_uncached: true, ..options })
        })?;
        if handed.is_written {
            self.fs.add_writer(number);
        }
        let pages = self.pages.open(number, &self.direct_writes);
        // It may have some.
        pages.has_pages();
        self.opened.insert(
            handle,
            OpenHandle::of(OpenCachedFile {
                file: Arc::new(opened),
                node,
                is_written: handed.is_written,
                is_synchronous: handed.is_synchronous,
                opener: handed.opener,
                pages,
                late_error: Mutex::new(handed.late_error),
            }),
        );
        Ok(())
    }
}
