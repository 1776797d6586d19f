//! The replies that a file system can send, by kind of request. Those whose names begin with `try_` return whether the kernel got the
//! reply: if not, the watchdog has replied, the kernel does not know what the call did, and the file system has to undo it.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use fusedev::Backing;
use fuser::{FileType, FopenFlags};
use rustix::io::Errno;

use super::DATA_MAX;
use super::encode::{Attr, ENTRY, Entries, Message};
use super::pending_reply::PendingReply;

macro_rules! replies {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(PendingReply);

        impl From<PendingReply> for $name {
            fn from(answer: PendingReply) -> $name {
                $name(answer)
            }
        }

        impl $name {
            /// Replies that the operation failed with this error.
            pub fn error(self, error: Errno) {
                self.0.fail(error);
            }
        }
    )*};
}

replies! {
    /// The reply to a request that returns no data.
    ReplyEmpty,
    /// The reply to a lookup: an inode with its attributes.
    ReplyEntry,
    /// The reply to a request for attributes.
    ReplyAttr,
    /// The reply to an open of a file or directory.
    ReplyOpen,
    /// The reply to a create: the new file, and its handle.
    ReplyCreate,
    /// The reply to a read: the bytes.
    ReplyData,
    /// The reply to a write: the number of bytes written.
    ReplyWrite,
    /// The reply to statfs: sizes of the file system.
    ReplyStatfs,
    /// The reply to getxattr and listxattr: a value, names, or their length.
    ReplyXattr,
    /// The reply to lseek: a file offset.
    ReplyLseek,
}

macro_rules! try_errors {
    ($($name:ident),*) => {$(
        impl $name {
            /// Does the same as `error`, and returns whether the kernel got the reply.
            pub fn try_error(self, error: Errno) -> bool {
                self.0.fail(error)
            }
        }
    )*};
}

try_errors!(ReplyEmpty, ReplyEntry, ReplyAttr, ReplyWrite);

impl ReplyEmpty {
    /// Replies that the operation succeeded.
    pub fn ok(self) {
        self.try_ok();
    }

    /// Does the same as `ok`, and returns whether the kernel got the reply.
    pub fn try_ok(self) -> bool {
        self.0.send(&[])
    }
}

impl ReplyEntry {
    /// Replies with an inode, and with how long the kernel may cache its attributes and its name.
    pub fn entry(self, attr_ttl: Duration, name_ttl: Duration, attr: &Attr) {
        self.try_entry(attr_ttl, name_ttl, attr);
    }

    /// Does the same as `entry`, and returns whether the kernel got the reply.
    pub fn try_entry(self, attr_ttl: Duration, name_ttl: Duration, attr: &Attr) -> bool {
        self.0.send(Message::<ENTRY>::new().entry(attr.ino, attr_ttl, name_ttl, attr).bytes())
    }

    /// Replies that the name does not exist. The kernel may cache that for `ttl`; inode number 0 says so (fuse_lookup_name).
    pub fn absent(self, ttl: Duration) {
        self.0.send(Message::<ENTRY>::new().entry(0, Duration::ZERO, ttl, &Attr::default()).bytes());
    }
}

impl ReplyAttr {
    /// Replies with attributes, which the kernel may cache for `ttl`.
    pub fn attr(self, ttl: Duration, attr: &Attr) {
        self.try_attr(ttl, attr);
    }

    /// Does the same as `attr`, and returns whether the kernel got the reply.
    pub fn try_attr(self, ttl: Duration, attr: &Attr) -> bool {
        self.0.send(Message::<104>::new().u64(ttl.as_secs()).u32(ttl.subsec_nanos()).u32(0).attr(attr).bytes())
    }
}

impl ReplyOpen {
    /// Registers a file as backing file of passthrough opens.
    pub fn open_backing(&self, file: impl AsFd) -> rustix::io::Result<Backing> {
        open_backing(&self.0, file.as_fd())
    }

    /// Replies that the file is open; reads and writes are sent to the daemon.
    pub fn opened(self, fh: u64, flags: FopenFlags) {
        self.try_opened(fh, flags);
    }

    /// Does the same as `opened`, and returns whether the kernel got the reply.
    pub fn try_opened(self, fh: u64, flags: FopenFlags) -> bool {
        self.0.send(Message::<16>::new().open(fh, flags.bits(), 0).bytes())
    }

    /// Replies that the file is open; the kernel passes reads and writes to the backing file, which must live as long as the open.
    pub fn opened_passthrough(self, fh: u64, flags: FopenFlags, backing: &Backing) {
        self.0.send(Message::<16>::new().open(fh, (flags | FopenFlags::FOPEN_PASSTHROUGH).bits(), backing.number()).bytes());
    }
}

fn open_backing(answer: &PendingReply, file: BorrowedFd<'_>) -> rustix::io::Result<Backing> {
    Backing::new(answer.device(), file)
}

impl ReplyCreate {
    /// Registers a backing file, as [`ReplyOpen::open_backing`] does.
    pub fn open_backing(&self, file: impl AsFd) -> rustix::io::Result<Backing> {
        open_backing(&self.0, file.as_fd())
    }

    /// Replies with a new file, how long the kernel may cache its attributes and its name, and how it is open.
    pub fn created(self, attr_ttl: Duration, name_ttl: Duration, attr: &Attr, fh: u64, flags: FopenFlags, backing: Option<&Backing>) {
        let (flags, number) = match backing {
            Some(backing) => (flags | FopenFlags::FOPEN_PASSTHROUGH, backing.number()),
            None => (flags, 0),
        };
        let message = Message::<{ ENTRY + 16 }>::new().entry(attr.ino, attr_ttl, name_ttl, attr).open(fh, flags.bits(), number);
        self.0.send(message.bytes());
    }

    /// Does the same as `created` for a file without a backing file, and returns whether the kernel got the reply.
    pub fn try_created(self, ttl: Duration, attr: &Attr, fh: u64, flags: FopenFlags) -> bool {
        self.0.send(Message::<{ ENTRY + 16 }>::new().entry(attr.ino, ttl, ttl, attr).open(fh, flags.bits(), 0).bytes())
    }
}

impl ReplyData {
    /// Returns a buffer for `length` bytes, from which the kernel takes them without another copy.
    pub fn room(&mut self, length: usize) -> &mut [u8] {
        self.0.room(length.min(DATA_MAX))
    }

    /// Replies with the first `length` bytes of the buffer.
    pub fn filled(self, length: usize) {
        self.0.send_room(length);
    }

    /// Replies with these bytes of data.
    pub fn data(self, data: &[u8]) {
        self.0.send(data);
    }
}

impl ReplyWrite {
    /// Replies that this many bytes were written.
    pub fn written(self, length: u32) {
        self.try_written(length);
    }

    /// Does the same as `written`, and returns whether the kernel got the reply.
    pub fn try_written(self, length: u32) -> bool {
        self.0.send(Message::<8>::new().u32(length).u32(0).bytes())
    }
}

impl ReplyStatfs {
    /// Replies with the values of statvfs(3): blocks in total, free, available; files in total, free; block size, longest name, fragment
    /// size.
    pub fn statfs(self, blocks: [u64; 3], files: [u64; 2], block_bytes: u32, name_max: u32, fragment_bytes: u32) {
        let mut message = Message::<80>::new();
        for number in blocks.into_iter().chain(files) {
            message = message.u64(number);
        }
        message = message.u32(block_bytes).u32(name_max).u32(fragment_bytes);
        self.0.send((0..7).fold(message, |message, _| message.u32(0)).bytes());
    }
}

impl ReplyXattr {
    /// Replies with the size of the attribute's value.
    pub fn size(self, length: u32) {
        self.0.send(Message::<8>::new().u32(length).u32(0).bytes());
    }

    /// Replies with these bytes of data.
    pub fn data(self, data: &[u8]) {
        self.0.send(data);
    }
}

impl ReplyLseek {
    /// Replies with the offset that was found.
    pub fn offset(self, offset: i64) {
        self.0.send(Message::<8>::new().u64(offset.cast_unsigned()).bytes());
    }
}

/// Entries that are being collected.
#[derive(Debug)]
struct Listing {
    answer: PendingReply,
    size: usize,
    used: usize,
}

impl Listing {
    fn new(answer: PendingReply, size: u32) -> Listing {
        Listing { answer, size: (size as usize).min(DATA_MAX), used: 0 }
    }

    fn add(&mut self, add: impl FnOnce(&mut Entries<'_>) -> bool) -> bool {
        let mut entries = Entries { room: self.answer.room(self.size), used: self.used };
        let added = add(&mut entries);
        self.used = entries.used;
        added
    }
}

macro_rules! listings {
    ($($(#[$doc:meta])* $name:ident),*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(Listing);

        impl $name {
            pub(super) fn new(answer: PendingReply, size: u32) -> $name {
                $name(Listing::new(answer, size))
            }

            /// Replies that the operation succeeded, with the entries added so far.
            pub fn ok(self) {
                self.try_ok();
            }

            /// Does the same as `ok`, and returns whether the kernel got the reply.
            pub fn try_ok(self) -> bool {
                self.0.answer.send_room(self.0.used)
            }

            /// Replies that the operation failed with this error.
            pub fn error(self, error: Errno) {
                self.0.answer.fail(error);
            }
        }
    )*};
}

listings! {
    /// The reply to readdir: names in a directory.
    ReplyDirectory,
    /// The reply to readdirplus: names in a directory, each with its inode.
    ReplyDirectoryPlus
}

impl ReplyDirectory {
    /// Adds a name; `next` is the offset of the entry after it. Returns true if the buffer is full.
    pub fn add(&mut self, ino: u64, next: u64, kind: impl Into<Option<FileType>>, name: impl AsRef<OsStr>) -> bool {
        !self.0.add(|entries| entries.add_plain(ino, next, kind.into(), name.as_ref().as_bytes()))
    }
}

impl ReplyDirectoryPlus {
    /// Adds a name without its inode, for which the kernel takes no reference. Returns true if the buffer is full.
    pub fn add_name(&mut self, ino: u64, next: u64, kind: impl Into<Option<FileType>>, name: impl AsRef<OsStr>) -> bool {
        !self.0.add(|entries| entries.add_without_inode(ino, next, kind.into(), name.as_ref().as_bytes()))
    }

    /// Adds a name and its inode. Returns true if the buffer is full.
    pub fn add(&mut self, next: u64, name: impl AsRef<OsStr>, ttl: Duration, attr: &Attr) -> bool {
        let entry = Message::<ENTRY>::new().entry(attr.ino, ttl, ttl, attr);
        let kind = (attr.mode >> 12) & 0o17;
        !self.0.add(|entries| entries.add(entry.bytes(), attr.ino, next, kind, name.as_ref().as_bytes()))
    }
}
