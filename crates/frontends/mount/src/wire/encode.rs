//! Encodes replies as the kernel's bytes.

use std::time::Duration;

use fuser::FileType;
use rustix::io::Errno;

/// Size of `struct fuse_out_header` in bytes.
pub const HEADER: usize = 16;
/// Of `fuse_entry_out`, which begins what a name stands for.
pub const ENTRY: usize = 128;
const DIRENT: usize = 24;

/// Attributes of an inode as the kernel receives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// Inode number that users see.
    pub ino: u64,
    /// Size of the file in bytes.
    pub size: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Last read: seconds and nanoseconds.
    pub atime: (i64, u32),
    /// Time of the last write: seconds and nanoseconds.
    pub mtime: (i64, u32),
    /// Time of the last change: seconds and nanoseconds.
    pub ctime: (i64, u32),
    /// File type and permission bits.
    pub mode: u32,
    /// Number of hard links to the file.
    pub nlink: u32,
    /// User ID of the owner.
    pub uid: u32,
    /// Group ID of the file.
    pub gid: u32,
    /// The device number of a device node, in the kernel's 32-bit form.
    pub rdev: u32,
    /// The preferred size of reads and writes in bytes.
    pub blksize: u32,
}

/// A message of some bytes, from its beginning to its end.
pub struct Message<const N: usize> {
    bytes: [u8; N],
    used: usize,
}

impl<const N: usize> Message<N> {
    /// Creates a message without any fields.
    pub fn new() -> Message<N> {
        Message { bytes: [0; N], used: 0 }
    }

    fn put<const M: usize>(mut self, number: [u8; M]) -> Self {
        self.bytes[self.used..self.used + M].copy_from_slice(&number);
        self.used += M;
        self
    }

    /// Appends a 32-bit field to the message.
    pub fn u32(self, number: u32) -> Self {
        self.put(number.to_ne_bytes())
    }

    /// Appends a 64-bit field to the message.
    pub fn u64(self, number: u64) -> Self {
        self.put(number.to_ne_bytes())
    }

    /// Appends a `struct fuse_attr` of 88 bytes.
    pub fn attr(self, attr: &Attr) -> Self {
        self.u64(attr.ino)
            .u64(attr.size)
            .u64(attr.blocks)
            .u64(attr.atime.0.cast_unsigned())
            .u64(attr.mtime.0.cast_unsigned())
            .u64(attr.ctime.0.cast_unsigned())
            .u32(attr.atime.1)
            .u32(attr.mtime.1)
            .u32(attr.ctime.1)
            .u32(attr.mode)
            .u32(attr.nlink)
            .u32(attr.uid)
            .u32(attr.gid)
            .u32(attr.rdev)
            .u32(attr.blksize)
            .u32(0)
    }

    /// `fuse_entry_out`: of an inode that the kernel may know by `number`, and how long it may believe attributes and name.
    pub fn entry(self, number: u64, attr_ttl: Duration, name_ttl: Duration, attr: &Attr) -> Self {
        self.u64(number)
            .u64(0)
            .u64(name_ttl.as_secs())
            .u64(attr_ttl.as_secs())
            .u32(name_ttl.subsec_nanos())
            .u32(attr_ttl.subsec_nanos())
            .attr(attr)
    }

    /// Appends a `struct fuse_open_out` of 16 bytes.
    pub fn open(self, fh: u64, flags: u32, backing: u32) -> Self {
        self.u64(fh).u32(flags).u32(backing)
    }

    /// Returns the bytes of the whole message.
    pub fn bytes(&self) -> &[u8] {
        debug_assert_eq!(self.used, N, "a message is filled to its end");
        &self.bytes
    }
}

/// Returns the `struct fuse_out_header` of a message with `length` bytes of data.
pub fn header(unique: u64, error: Option<Errno>, length: usize) -> [u8; HEADER] {
    let code = error.map_or(0, |error| -error.raw_os_error());
    Message::<HEADER>::new().u32((HEADER + length) as u32).u32(code.cast_unsigned()).u64(unique).bytes
}

/// Returns the header of a notice, a message that is no reply, with `length` bytes of data.
pub fn notice_header(code: i32, length: usize) -> [u8; HEADER] {
    Message::<HEADER>::new().u32((HEADER + length) as u32).u32(code.cast_unsigned()).u64(0).bytes
}

/// Returns the number of a type in a directory's entries; 0 (`DT_UNKNOWN`): programs ask for it by stat(2).
fn type_bits(kind: Option<FileType>) -> u32 {
    match kind {
        None => 0,
        Some(FileType::NamedPipe) => 1,
        Some(FileType::CharDevice) => 2,
        Some(FileType::Directory) => 4,
        Some(FileType::BlockDevice) => 6,
        Some(FileType::RegularFile) => 8,
        Some(FileType::Symlink) => 10,
        Some(FileType::Socket) => 12,
    }
}

/// The entries of a directory, encoded one after the other into a buffer.
pub struct Entries<'a> {
    /// The buffer that the entries are written to.
    pub room: &'a mut [u8],
    /// The number of bytes written so far.
    pub used: usize,
}

impl Entries<'_> {
    /// Adds a `fuse_dirent`, after the attributes if there are any; returns false if it does not fit.
    pub fn add(&mut self, attributes: &[u8], ino: u64, next: u64, kind: u32, name: &[u8]) -> bool {
        let head = Message::<DIRENT>::new().u64(ino).u64(next).u32(name.len() as u32).u32(kind);
        let length = (attributes.len() + DIRENT + name.len()).next_multiple_of(8);
        let Some(place) = self.room.get_mut(self.used..).and_then(|room| room.get_mut(..length)) else { return false };
        let (first, rest) = place.split_at_mut(attributes.len());
        first.copy_from_slice(attributes);
        rest[..DIRENT].copy_from_slice(head.bytes());
        rest[DIRENT..DIRENT + name.len()].copy_from_slice(name);
        rest[DIRENT + name.len()..].fill(0);
        self.used += length;
        true
    }

    /// Adds an entry to a listing with attributes, without an inode: node 0 tells the kernel so (fuse_direntplus_link).
    pub fn add_without_inode(&mut self, ino: u64, next: u64, kind: Option<FileType>, name: &[u8]) -> bool {
        self.add(&[0; ENTRY], ino, next, type_bits(kind), name)
    }

    /// Adds an entry with its type only.
    pub fn add_plain(&mut self, ino: u64, next: u64, kind: Option<FileType>, name: &[u8]) -> bool {
        self.add(&[], ino, next, type_bits(kind), name)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_kernel() {
        let attr = Attr::default();
        assert_eq!(Message::<88>::new().attr(&attr).bytes().len(), 88);
        assert_eq!(Message::<ENTRY>::new().entry(1, Duration::ZERO, Duration::ZERO, &attr).bytes().len(), ENTRY);
        assert_eq!(Message::<16>::new().open(1, 2, 3).bytes(), [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
    }

    #[test]
    fn a_header_counts_itself_and_negates_errors() {
        assert_eq!(header(9, Some(Errno::NOENT), 0), [16, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff, 9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(header(9, None, 4)[..8], [20, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn entries_fit_or_are_left_out() {
        let mut room = [0xff; 32 + 32 + 31];
        let mut entries = Entries { room: &mut room, used: 0 };
        assert!(entries.add_plain(5, 1, Some(FileType::Directory), b"d"));
        assert!(entries.add_plain(6, 2, None, b"12345678"));
        assert!(!entries.add_plain(7, 3, Some(FileType::RegularFile), b"x"));
        assert_eq!(entries.used, 64);
        assert_eq!(room[24..32], [b'd', 0, 0, 0, 0, 0, 0, 0]);
    }
}
