//! The record of a file: the value of its name. Drawn in docs/formats.md, "The raw file system: names and files".
//!
//! Everything here comes from a device and is not trusted: [`Record::parse`] refuses what [`Record::bytes`] cannot have made.

use std::sync::Arc;

use super::error::MalformedRecordError;
use super::extent::{self, Run};
use super::time::Timestamp;
use super::xattr_list::Attributes;

/// Bytes of a record before its body.
pub const HEAD: usize = 96;
/// Content of a file up to this lives in its record.
pub const INLINE_MAX: usize = 3072;
/// Runs in the record take at most so many bytes; more of them, and all go to Files.
pub const RUNS_MAX: usize = 256;
/// No number of a file comes near it.
pub const INO_END: u64 = 1 << 62;
/// The longest target of a symbolic link.
pub const TARGET_MAX: usize = 4095;

const VERSION: u8 = 1;
/// Where the link count lies in a record, to be patched.
pub const NLINK_AT: u16 = 4;
/// Where the time of the last change of content lies, and then that of the last change of attributes.
pub const TIMES_AT: u16 = 52;

const ZONE: u32 = 1;
const XATTRS: u32 = 2;

/// The type of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum FileKind {
    /// A regular file.
    File = 1,
    /// A directory.
    Dir = 2,
    /// A symbolic link.
    Symlink = 3,
    /// A named pipe.
    Fifo = 4,
    /// A socket.
    Socket = 5,
    /// A character device.
    CharDevice = 6,
    /// A block device.
    BlockDevice = 7,
}

const LINK: u8 = 8;

impl FileKind {
    fn of(byte: u8) -> Option<FileKind> {
        [FileKind::File, FileKind::Dir, FileKind::Symlink, FileKind::Fifo, FileKind::Socket, FileKind::CharDevice, FileKind::BlockDevice]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }

    /// The type's bits in `st_mode`.
    pub fn bits(self) -> u32 {
        match self {
            FileKind::File => 0o100_000,
            FileKind::Dir => 0o040_000,
            FileKind::Symlink => 0o120_000,
            FileKind::Fifo => 0o010_000,
            FileKind::Socket => 0o140_000,
            FileKind::CharDevice => 0o020_000,
            FileKind::BlockDevice => 0o060_000,
        }
    }
}

/// Where the content of a file is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RecordBody {
    /// Nothing: directories, pipes, devices.
    None,
    /// Here: a small file, or the target of a symbolic link.
    Inline(Vec<u8>),
    /// In blocks named here, in the order of the file.
    Runs(Vec<Run>),
    /// Elsewhere in Files: in blocks named by items there, or the long target of a symbolic link.
    Items,
}

impl RecordBody {
    fn number(&self) -> u8 {
        match self {
            RecordBody::None => 0,
            RecordBody::Inline(_) => 1,
            RecordBody::Runs(_) => 2,
            RecordBody::Items => 3,
        }
    }
}

/// The attributes and the content location of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The type of the file.
    pub kind: FileKind,
    /// Permissions: the lower twelve bits.
    pub mode: u16,
    /// Names; for a directory, as POSIX counts them.
    pub nlink: u32,
    /// The user that owns the file.
    pub uid: u32,
    /// The group that owns the file.
    pub gid: u32,
    /// Its number, never given to another.
    pub ino: u64,
    /// Bytes; of a device, its number.
    pub size: u64,
    /// Blocks of 4 KiB it has.
    pub blocks: u64,
    /// The time of the last read.
    pub atime: Timestamp,
    /// The time of the last change of content.
    pub mtime: Timestamp,
    /// The time of the last change of anything.
    pub ctime: Timestamp,
    /// The time when it was created.
    pub btime: Timestamp,
    /// A directory whose entries are found by its number.
    pub zone: bool,
    /// Whether there are extended attributes in Files.
    pub xattrs: bool,
    /// Those of a removed directory, which is nowhere but in memory.
    pub kept: Option<Arc<Attributes>>,
    /// The content, or where it is.
    pub body: RecordBody,
}

/// What a name leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NameValue {
    /// The file itself.
    Here(Record),
    /// A file whose record is in Files.
    Link {
        /// Its number.
        ino: u64,
        /// What it is.
        kind: FileKind,
    },
}

impl NameValue {
    /// Reads a value of Names.
    pub fn parse(bytes: &[u8]) -> Result<NameValue, MalformedRecordError> {
        if bytes.len() != LINK_LEN || bytes[0] != VERSION || bytes[1] != LINK {
            return Record::parse(bytes).map(NameValue::Here);
        }
        let ino = u64::from_le_bytes(bytes[8..].try_into().expect("8 bytes"));
        let kind = FileKind::of(bytes[2]).filter(|kind| *kind != FileKind::Dir && bytes[3..8] == [0; 5] && ino != 0 && ino < INO_END);
        kind.map(|kind| NameValue::Link { ino, kind }).ok_or(MalformedRecordError("a link with wrong bytes"))
    }

    /// Returns the inode number it leads to.
    pub fn ino(&self) -> u64 {
        match self {
            NameValue::Here(record) => record.ino,
            NameValue::Link { ino, .. } => *ino,
        }
    }

    /// Returns the type of the file it leads to.
    pub fn kind(&self) -> FileKind {
        match self {
            NameValue::Here(record) => record.kind,
            NameValue::Link { kind, .. } => *kind,
        }
    }
}

const LINK_LEN: usize = 16;

/// The value of one of several names of a file.
pub fn link(ino: u64, kind: FileKind) -> [u8; LINK_LEN] {
    let mut bytes = [0; LINK_LEN];
    (bytes[0], bytes[1], bytes[2]) = (VERSION, LINK, kind as u8);
    bytes[8..].copy_from_slice(&ino.to_le_bytes());
    bytes
}

fn put_time(head: &mut [u8], time: Timestamp) {
    head[..8].copy_from_slice(&time.sec.to_le_bytes());
    head[8..12].copy_from_slice(&time.nsec.to_le_bytes());
}

/// The times a change of a directory's entries patches in, at [`TIMES_AT`].
pub fn change_times(mtime: Timestamp, ctime: Timestamp) -> [u8; 24] {
    let mut bytes = [0; 24];
    put_time(&mut bytes[..12], mtime);
    put_time(&mut bytes[12..], ctime);
    bytes
}

impl Record {
    /// A new file without content.
    pub fn new(kind: FileKind, ino: u64, mode: u16, owner: (u32, u32), now: Timestamp) -> Record {
        let body = if kind == FileKind::File { RecordBody::Inline(Vec::new()) } else { RecordBody::None };
        let nlink = if kind == FileKind::Dir { 2 } else { 1 };
        Record {
            kind,
            mode: mode & 0o7777,
            nlink,
            uid: owner.0,
            gid: owner.1,
            ino,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            zone: false,
            xattrs: false,
            kept: None,
            body,
        }
    }

    /// Returns the record in its stored form.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head().to_vec();
        match &self.body {
            RecordBody::None | RecordBody::Items => {}
            RecordBody::Inline(content) => bytes.extend_from_slice(content),
            RecordBody::Runs(runs) => runs.iter().for_each(|run| run.put(&mut bytes)),
        }
        bytes
    }

    /// What comes before the body; has the same length always.
    pub fn head(&self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        (head[0], head[1]) = (VERSION, self.kind as u8);
        head[2..4].copy_from_slice(&self.mode.to_le_bytes());
        head[4..8].copy_from_slice(&self.nlink.to_le_bytes());
        head[8..12].copy_from_slice(&self.uid.to_le_bytes());
        head[12..16].copy_from_slice(&self.gid.to_le_bytes());
        head[16..24].copy_from_slice(&self.ino.to_le_bytes());
        head[24..32].copy_from_slice(&self.size.to_le_bytes());
        head[32..40].copy_from_slice(&self.blocks.to_le_bytes());
        for (at, time) in [(40, self.atime), (52, self.mtime), (64, self.ctime), (76, self.btime)] {
            put_time(&mut head[at..at + 12], time);
        }
        let flags = if self.zone { ZONE } else { 0 } | if self.xattrs { XATTRS } else { 0 };
        head[88..92].copy_from_slice(&flags.to_le_bytes());
        head[92] = self.body.number();
        head
    }

    /// Parses a record from its stored form.
    pub fn parse(bytes: &[u8]) -> Result<Record, MalformedRecordError> {
        let head: &[u8; HEAD] = bytes.first_chunk().ok_or(MalformedRecordError("too short for a record"))?;
        let body = &bytes[HEAD..];
        if head[0] != VERSION {
            return Err(MalformedRecordError("a record of another version"));
        }
        let kind = FileKind::of(head[1]).ok_or(MalformedRecordError("a kind of file there is not"))?;
        let flags = u32::from_le_bytes(head[88..92].try_into().expect("4 bytes"));
        let record = Record { body: parse_body(head[92], body)?, ..Record::parse_head(head, kind) };
        if flags & !(ZONE | XATTRS) != 0 || head[93..] != [0; 3] {
            return Err(MalformedRecordError("flags there are not"));
        }
        record.is_sane().map(|()| record)
    }

    /// All but the body.
    fn parse_head(head: &[u8; HEAD], kind: FileKind) -> Record {
        let u32_at = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let time = |at: usize| Timestamp { sec: u64_at(at).cast_signed(), nsec: u32_at(at + 8) };
        let flags = u32_at(88);
        Record {
            kind,
            mode: u16::from_le_bytes([head[2], head[3]]),
            nlink: u32_at(4),
            uid: u32_at(8),
            gid: u32_at(12),
            ino: u64_at(16),
            size: u64_at(24),
            blocks: u64_at(32),
            atime: time(40),
            mtime: time(52),
            ctime: time(64),
            btime: time(76),
            zone: flags & ZONE != 0,
            xattrs: flags & XATTRS != 0,
            kept: None,
            body: RecordBody::None,
        }
    }

    /// What can be kept of one that [`Record::parse`] refuses: attributes are brought into their range, runs up to the first that is
    /// none are kept. A number that cannot be one is 0 then. `None`: nothing can be kept.
    pub fn mend(bytes: &[u8]) -> Option<Record> {
        let (head, body) = bytes.split_first_chunk::<HEAD>()?;
        let mut head = *head;
        head[0] = VERSION;
        head[3] &= 0x0f;
        for at in [48, 60, 72, 84] {
            if u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes")) >= 1_000_000_000 {
                head[at..at + 4].fill(0);
            }
        }
        let kind = FileKind::of(head[1]).unwrap_or(FileKind::File);
        head[1] = kind as u8;
        head[88] &= if kind == FileKind::Dir { (ZONE | XATTRS) as u8 } else { XATTRS as u8 };
        head[89..92].fill(0);
        head[93..].fill(0);
        let body = match (kind, head[92]) {
            (FileKind::File, 1) => RecordBody::Inline(body[..body.len().min(INLINE_MAX)].to_vec()),
            (FileKind::File, 2) => RecordBody::Runs(extent::parse_some(&body[..body.len().min(RUNS_MAX)])),
            (FileKind::File, _) | (FileKind::Symlink, 3) => RecordBody::Items,
            (FileKind::Symlink, 1) => {
                RecordBody::Inline(body[..body.len().min(INLINE_MAX)].iter().copied().filter(|byte| *byte != 0).collect())
            }
            (FileKind::Symlink, _) => return None,
            _ => RecordBody::None,
        };
        head[32..40].fill(0);
        let mut record = Record { body: RecordBody::None, ..Record::parse_head(&head, kind) };
        match &body {
            RecordBody::Inline(content) => record.size = content.len() as u64,
            RecordBody::Runs(runs) => record.blocks = extent::blocks(runs),
            RecordBody::Items if kind == FileKind::Symlink => record.size = record.size.min(TARGET_MAX as u64),
            _ => {}
        }
        record.body = body;
        record.size = if kind == FileKind::File { record.size.min(super::SIZE_MAX) } else { record.size };
        let number = std::mem::replace(&mut record.ino, 1);
        let mut record = Record::parse(&record.bytes()).ok()?;
        record.ino = if number < INO_END { number } else { 0 };
        Some(record)
    }

    /// What must be true of any.
    fn is_sane(&self) -> Result<(), MalformedRecordError> {
        let fits = match (self.kind, &self.body) {
            (FileKind::File, RecordBody::Inline(content)) => {
                content.len() <= INLINE_MAX && content.len() as u64 == self.size && self.blocks == 0
            }
            (FileKind::File, RecordBody::Runs(runs)) => self.blocks == extent::blocks(runs),
            (FileKind::File, RecordBody::Items) => true,
            (FileKind::Symlink, RecordBody::Inline(target)) => is_target(target) && target.len() as u64 == self.size && self.blocks == 0,
            (FileKind::Symlink, RecordBody::Items) => self.size <= TARGET_MAX as u64 && self.blocks == 0,
            (FileKind::File | FileKind::Symlink, _) => false,
            (_, body) => *body == RecordBody::None && self.blocks == 0,
        };
        if !fits {
            return Err(MalformedRecordError("content that does not fit the kind of file or its size"));
        }
        let large = self.size > super::SIZE_MAX && self.kind == FileKind::File || self.blocks > super::BLOCKS_MAX;
        if self.mode > 0o7777 || self.ino == 0 || self.ino >= INO_END || large {
            return Err(MalformedRecordError("attributes out of their range"));
        }
        let nsec = [self.atime, self.mtime, self.ctime, self.btime].map(|time| time.nsec);
        if nsec.iter().any(|nsec| *nsec >= 1_000_000_000) {
            return Err(MalformedRecordError("a time out of its range"));
        }
        if self.zone && self.kind != FileKind::Dir {
            return Err(MalformedRecordError("a zone that is no directory"));
        }
        Ok(())
    }
}

fn is_target(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.len() <= INLINE_MAX && !bytes.contains(&0)
}

fn parse_body(number: u8, bytes: &[u8]) -> Result<RecordBody, MalformedRecordError> {
    match number {
        0 if bytes.is_empty() => Ok(RecordBody::None),
        1 => Ok(RecordBody::Inline(bytes.to_vec())),
        2 if bytes.len() <= RUNS_MAX => extent::parse_all(bytes).map(RecordBody::Runs),
        3 if bytes.is_empty() => Ok(RecordBody::Items),
        _ => Err(MalformedRecordError("a body there is not")),
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::Block;

    fn some() -> Vec<Record> {
        let now = Timestamp { sec: -5, nsec: 7 };
        let mut file = Record::new(FileKind::File, 9, 0o4755, (1, 2), now);
        (file.body, file.size) = (RecordBody::Inline(b"content".to_vec()), 7);
        let mut large = Record::new(FileKind::File, 10, 0o644, (1, 2), now);
        large.body = RecordBody::Runs(vec![Run::written(0, Block(7), vec![1, 2, 3]), Run::reserved(9, Block(70), 128)]);
        (large.size, large.blocks) = (1 << 40, 131);
        let mut items = large.clone();
        items.body = RecordBody::Items;
        let mut link = Record::new(FileKind::Symlink, 11, 0o777, (0, 0), now);
        (link.body, link.size) = (RecordBody::Inline(vec![b'x'; INLINE_MAX]), INLINE_MAX as u64);
        let mut dir = Record::new(FileKind::Dir, 1, 0o755, (0, 0), now);
        dir.zone = true;
        vec![file, large, items, link, dir]
    }

    #[test]
    fn what_is_stored_is_read() {
        for record in some() {
            assert_eq!(Record::parse(&record.bytes()), Ok(record.clone()));
            assert_eq!(NameValue::parse(&record.bytes()), Ok(NameValue::Here(record)));
        }
        assert_eq!(NameValue::parse(&link(77, FileKind::Fifo)), Ok(NameValue::Link { ino: 77, kind: FileKind::Fifo }));
    }

    #[test]
    fn patches_lie_where_they_belong() {
        let mut record = some().remove(0);
        let mut bytes = record.bytes();
        (record.mtime, record.ctime, record.nlink) = (Timestamp { sec: 1, nsec: 2 }, Timestamp { sec: 3, nsec: 4 }, 17);
        let at = usize::from(TIMES_AT);
        bytes[at..at + 24].copy_from_slice(&change_times(record.mtime, record.ctime));
        bytes[usize::from(NLINK_AT)..usize::from(NLINK_AT) + 4].copy_from_slice(&17u32.to_le_bytes());
        assert_eq!(Record::parse(&bytes), Ok(record));
    }

    #[test]
    fn damaged_bytes_are_refused_or_sane() {
        let mut rng = crate::testing::rng();
        for _ in 0..20_000 {
            let all = some();
            let mut bytes = all[rng.usize(..all.len())].bytes();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(..bytes.len().min(200));
                bytes[at] = rng.u8(..);
            }
            bytes.truncate(rng.usize(..bytes.len() * 2));
            if let Ok(record) = Record::parse(&bytes) {
                assert_eq!(Record::parse(&record.bytes()), Ok(record));
            }
        }
        assert!(NameValue::parse(&[0; 16]).is_err());
    }
}
