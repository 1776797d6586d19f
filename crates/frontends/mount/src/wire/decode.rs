//! From the kernel's bytes to a request. Nothing of them is believed before it is checked.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fusedev::{SetAttr, SetTime};

use super::opcodes as op;

/// Size of `struct fuse_in_header` in bytes.
pub const HEADER: usize = 40;

/// Caller, operation and inode of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Operation code of the request, see `opcodes`.
    pub opcode: u32,
    /// Number that the reply must carry.
    pub unique: u64,
    /// Inode that the request is about.
    pub ino: u64,
    /// User ID of the calling process.
    pub uid: u32,
    /// Group ID of the calling process.
    pub gid: u32,
    /// Process ID of the caller, 0 if unknown.
    pub pid: u32,
}

/// Holds the attribute changes of a SETATTR request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttrChanges {
    /// The attributes that are to change.
    pub set: SetAttr,
    /// The kernel gives the time of the change, too: its own note of a write that it took, or of a cut.
    pub noted: bool,
    /// The open file that the caller used, if any.
    pub fh: Option<u64>,
}

/// A request and its arguments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FuseOp<'a> {
    Lookup {
        name: &'a OsStr,
    },
    Forget {
        times: u64,
    },
    /// Pairs of an inode and how often.
    BatchForget {
        pairs: &'a [u8],
    },
    GetAttr {
        fh: Option<u64>,
    },
    SetAttr(AttrChanges),
    ReadLink,
    Symlink {
        name: &'a OsStr,
        target: &'a OsStr,
    },
    MkNod {
        name: &'a OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
    },
    MkDir {
        name: &'a OsStr,
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a OsStr,
    },
    RmDir {
        name: &'a OsStr,
    },
    Rename {
        name: &'a OsStr,
        new_parent: u64,
        new_name: &'a OsStr,
        flags: u32,
    },
    Link {
        ino: u64,
        name: &'a OsStr,
    },
    Open {
        flags: i32,
    },
    Read {
        fh: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
        flags: i32,
    },
    Write {
        fh: u64,
        offset: u64,
        data: &'a [u8],
        write_flags: u32,
        flags: i32,
    },
    StatFs,
    Release {
        fh: u64,
    },
    Flush {
        fh: u64,
    },
    Fsync {
        fh: u64,
        datasync: bool,
    },
    SetXattr {
        name: &'a OsStr,
        value: &'a [u8],
        flags: u32,
    },
    GetXattr {
        name: &'a OsStr,
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a OsStr,
    },
    OpenDir {
        flags: i32,
    },
    ReadDir {
        fh: u64,
        offset: u64,
        size: u32,
    },
    ReadDirPlus {
        fh: u64,
        offset: u64,
        size: u32,
    },
    ReleaseDir {
        fh: u64,
    },
    FsyncDir {
        fh: u64,
        datasync: bool,
    },
    Access {
        mask: i32,
    },
    Create {
        name: &'a OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
    },
    /// The caller of the request with this number has got a signal.
    Interrupt {
        unique: u64,
    },
    Destroy,
    Ioctl,
    Fallocate {
        fh: u64,
        offset: u64,
        length: u64,
        mode: i32,
    },
    Lseek {
        fh: u64,
        offset: i64,
        whence: i32,
    },
    CopyFileRange {
        fh_in: u64,
        offset_in: u64,
        fh_out: u64,
        offset_out: u64,
        len: u64,
    },
    /// One that we do not know.
    Unknown,
}

/// The error for a request that is shorter than its header says, or whose string has no end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedRequestError;

/// Reads numbers one after the other.
struct ArgReader<'a>(&'a [u8]);

impl ArgReader<'_> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], MalformedRequestError> {
        let (first, rest) = self.0.split_first_chunk().ok_or(MalformedRequestError)?;
        self.0 = rest;
        Ok(*first)
    }

    fn u16(&mut self) -> Result<u16, MalformedRequestError> {
        self.bytes().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Result<u32, MalformedRequestError> {
        self.bytes().map(u32::from_ne_bytes)
    }

    fn i32(&mut self) -> Result<i32, MalformedRequestError> {
        self.bytes().map(i32::from_ne_bytes)
    }

    fn u64(&mut self) -> Result<u64, MalformedRequestError> {
        self.bytes().map(u64::from_ne_bytes)
    }

    fn i64(&mut self) -> Result<i64, MalformedRequestError> {
        self.bytes().map(i64::from_ne_bytes)
    }
}

/// A string up to its NUL, and what follows.
fn string(from: &[u8]) -> Result<(&OsStr, &[u8]), MalformedRequestError> {
    let end = from.iter().position(|byte| *byte == 0).ok_or(MalformedRequestError)?;
    Ok((OsStr::from_bytes(&from[..end]), &from[end + 1..]))
}

/// Returns a name within a directory; one that would lead elsewhere is refused. LOOKUP allows "." and "..".
fn name(from: &[u8], dots: bool) -> Result<(&OsStr, &[u8]), MalformedRequestError> {
    let (name, rest) = string(from)?;
    let bytes = name.as_bytes();
    let leads_away = bytes.is_empty() || bytes.contains(&b'/') || !dots && matches!(bytes, b"." | b"..");
    if leads_away { Err(MalformedRequestError) } else { Ok((name, rest)) }
}

/// The header, and how long all of the message says it is.
pub fn head(header: &[u8; HEADER]) -> (RequestHeader, u32) {
    let number = |at: usize| u32::from_ne_bytes(std::array::from_fn(|byte| header[at + byte]));
    let long = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| header[at + byte]));
    (RequestHeader { opcode: number(4), unique: long(8), ino: long(16), uid: number(24), gid: number(28), pid: number(32) }, number(0))
}

/// A message of `/dev/fuse`: its header, the arguments of fixed size, the rest.
pub fn split(message: &[u8]) -> Result<(RequestHeader, &[u8], &[u8]), MalformedRequestError> {
    let (header, rest) = message.split_first_chunk().ok_or(MalformedRequestError)?;
    let (head, length) = head(header);
    // What is behind it would be extensions, for which we did not ask.
    let mut extensions = ArgReader(&header[36..]);
    if length as usize != message.len() || extensions.u16()? != 0 {
        return Err(MalformedRequestError);
    }
    let (args, rest) = rest.split_at_checked(op::args_len(head.opcode)).ok_or(MalformedRequestError)?;
    Ok((head, args, rest))
}

/// Decodes the operation. `args` may be longer than the request's.
// long: one match over all requests of the protocol.
pub fn decode<'a>(opcode: u32, args: &'a [u8], rest: &'a [u8]) -> Result<FuseOp<'a>, MalformedRequestError> {
    let mut n = ArgReader(args.get(..op::args_len(opcode)).ok_or(MalformedRequestError)?);
    Ok(match opcode {
        op::LOOKUP => FuseOp::Lookup { name: name(rest, true)?.0 },
        op::FORGET => FuseOp::Forget { times: n.u64()? },
        op::BATCH_FORGET => {
            let bytes = (n.u32()? as usize).checked_mul(16).ok_or(MalformedRequestError)?;
            FuseOp::BatchForget { pairs: rest.get(..bytes).ok_or(MalformedRequestError)? }
        }
        op::GETATTR => {
            let (flags, _) = (n.u32()?, n.u32()?);
            let fh = n.u64()?;
            FuseOp::GetAttr { fh: (flags & GETATTR_FH != 0).then_some(fh) }
        }
        op::SETATTR => FuseOp::SetAttr(changes(n)?),
        op::READLINK => FuseOp::ReadLink,
        op::SYMLINK => {
            let (name, rest) = name(rest, false)?;
            FuseOp::Symlink { name, target: string(rest)?.0 }
        }
        op::MKNOD => {
            let (mode, rdev, umask) = (n.u32()?, n.u32()?, n.u32()?);
            FuseOp::MkNod { name: name(rest, false)?.0, mode, umask, rdev }
        }
        op::MKDIR => {
            let (mode, umask) = (n.u32()?, n.u32()?);
            FuseOp::MkDir { name: name(rest, false)?.0, mode, umask }
        }
        op::UNLINK => FuseOp::Unlink { name: name(rest, false)?.0 },
        op::RMDIR => FuseOp::RmDir { name: name(rest, false)?.0 },
        op::RENAME | op::RENAME2 => {
            let new_parent = n.u64()?;
            let flags = if opcode == op::RENAME2 { n.u32()? } else { 0 };
            let (from, rest) = name(rest, false)?;
            FuseOp::Rename { name: from, new_parent, new_name: name(rest, false)?.0, flags }
        }
        op::LINK => FuseOp::Link { ino: n.u64()?, name: name(rest, false)?.0 },
        op::OPEN => FuseOp::Open { flags: n.i32()? },
        op::OPENDIR => FuseOp::OpenDir { flags: n.i32()? },
        op::READ | op::READDIR | op::READDIRPLUS => {
            let (fh, offset, size, read_flags, _owner, flags) = (n.u64()?, n.u64()?, n.u32()?, n.u32()?, n.u64()?, n.i32()?);
            match opcode {
                op::READ => FuseOp::Read { fh, offset, size, read_flags, flags },
                op::READDIR => FuseOp::ReadDir { fh, offset, size },
                _ => FuseOp::ReadDirPlus { fh, offset, size },
            }
        }
        op::WRITE => {
            let (fh, offset, size, write_flags, _owner, flags) = (n.u64()?, n.u64()?, n.u32()?, n.u32()?, n.u64()?, n.i32()?);
            FuseOp::Write { fh, offset, data: rest.get(..size as usize).ok_or(MalformedRequestError)?, write_flags, flags }
        }
        op::STATFS => FuseOp::StatFs,
        op::RELEASE => FuseOp::Release { fh: n.u64()? },
        op::FLUSH => FuseOp::Flush { fh: n.u64()? },
        op::RELEASEDIR => FuseOp::ReleaseDir { fh: n.u64()? },
        op::FSYNC => FuseOp::Fsync { fh: n.u64()?, datasync: n.u32()? & FSYNC_DATA != 0 },
        op::FSYNCDIR => FuseOp::FsyncDir { fh: n.u64()?, datasync: n.u32()? & FSYNC_DATA != 0 },
        op::SETXATTR => {
            let (size, flags) = (n.u32()? as usize, n.u32()?);
            let (name, rest) = string(rest)?;
            FuseOp::SetXattr { name, value: rest.get(..size).ok_or(MalformedRequestError)?, flags }
        }
        op::GETXATTR => FuseOp::GetXattr { size: n.u32()?, name: string(rest)?.0 },
        op::LISTXATTR => FuseOp::ListXattr { size: n.u32()? },
        op::REMOVEXATTR => FuseOp::RemoveXattr { name: string(rest)?.0 },
        op::ACCESS => FuseOp::Access { mask: n.i32()? },
        op::CREATE => {
            let (flags, mode, umask) = (n.i32()?, n.u32()?, n.u32()?);
            FuseOp::Create { name: name(rest, false)?.0, mode, umask, flags }
        }
        op::INTERRUPT => FuseOp::Interrupt { unique: n.u64()? },
        op::DESTROY => FuseOp::Destroy,
        op::IOCTL => FuseOp::Ioctl,
        op::FALLOCATE => FuseOp::Fallocate { fh: n.u64()?, offset: n.u64()?, length: n.u64()?, mode: n.i32()? },
        op::LSEEK => FuseOp::Lseek { fh: n.u64()?, offset: n.i64()?, whence: n.i32()? },
        op::COPY_FILE_RANGE => {
            let (fh_in, offset_in, _ino_out, fh_out, offset_out, len) = (n.u64()?, n.u64()?, n.u64()?, n.u64()?, n.u64()?, n.u64()?);
            FuseOp::CopyFileRange { fh_in, offset_in, fh_out, offset_out, len }
        }
        _ => FuseOp::Unknown,
    })
}

const GETATTR_FH: u32 = 1;
const FSYNC_DATA: u32 = 1;

const MODE: u32 = 1;
const UID: u32 = 1 << 1;
const GID: u32 = 1 << 2;
const SIZE: u32 = 1 << 3;
const ATIME: u32 = 1 << 4;
const MTIME: u32 = 1 << 5;
const FH: u32 = 1 << 6;
const ATIME_NOW: u32 = 1 << 7;
const MTIME_NOW: u32 = 1 << 8;
const CTIME: u32 = 1 << 10;
const KILL_SUIDGID: u32 = 1 << 11;

fn changes(mut n: ArgReader<'_>) -> Result<AttrChanges, MalformedRequestError> {
    let (valid, _) = (n.u32()?, n.u32()?);
    let (fh, size, _owner) = (n.u64()?, n.u64()?, n.u64()?);
    let (atime, mtime, _ctime) = (n.i64()?, n.i64()?, n.i64()?);
    let (atime_nsec, mtime_nsec, _ctime_nsec) = (n.u32()?, n.u32()?, n.u32()?);
    let (mode, _, uid, gid) = (n.u32()?, n.u32()?, n.u32()?, n.u32()?);
    let time = |given: u32, now: u32, sec: i64, nsec: u32| {
        (valid & given != 0).then_some(if valid & now != 0 { SetTime::Now } else { SetTime::At(sec, nsec) })
    };
    Ok(AttrChanges {
        set: SetAttr {
            mode: (valid & MODE != 0).then_some(mode),
            uid: (valid & UID != 0).then_some(uid),
            gid: (valid & GID != 0).then_some(gid),
            size: (valid & SIZE != 0).then_some(size),
            atime: time(ATIME, ATIME_NOW, atime, atime_nsec),
            mtime: time(MTIME, MTIME_NOW, mtime, mtime_nsec),
            kill_set_id: valid & KILL_SUIDGID != 0,
        },
        noted: valid & CTIME != 0,
        fh: (valid & FH != 0).then_some(fh),
    })
}

impl FuseOp<'_> {
    /// The pairs of a batch.
    pub fn forgotten(pairs: &[u8]) -> impl Iterator<Item = (u64, u64)> {
        pairs.chunks_exact(16).filter_map(|pair| {
            let mut numbers = ArgReader(pair);
            Some((numbers.u64().ok()?, numbers.u64().ok()?))
        })
    }

    /// Returns the operation if it carries no data and its reply may reuse the buffer of the request.
    pub fn answered_in_place(&self) -> Option<FuseOp<'static>> {
        match *self {
            FuseOp::Read { fh, offset, size, read_flags, flags } => Some(FuseOp::Read { fh, offset, size, read_flags, flags }),
            FuseOp::ReadDir { fh, offset, size } => Some(FuseOp::ReadDir { fh, offset, size }),
            FuseOp::ReadDirPlus { fh, offset, size } => Some(FuseOp::ReadDirPlus { fh, offset, size }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    fn message(opcode: u32, body: &[u8]) -> Vec<u8> {
        let mut message = vec![0; HEADER];
        message[..4].copy_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
        message[4..8].copy_from_slice(&opcode.to_ne_bytes());
        message[8..16].copy_from_slice(&7_u64.to_ne_bytes());
        message.extend_from_slice(body);
        message
    }

    fn whole(message: &[u8]) -> Result<FuseOp<'_>, MalformedRequestError> {
        split(message).and_then(|(head, args, rest)| decode(head.opcode, args, rest))
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn names_end_and_do_not_lead_away() {
        assert_eq!(whole(&message(op::LOOKUP, b"a\0")), Ok(FuseOp::Lookup { name: OsStr::new("a") }));
        assert_eq!(whole(&message(op::LOOKUP, b"..\0")), Ok(FuseOp::Lookup { name: OsStr::new("..") }));
        for bad in [&b"a"[..], b"", b"\0", b"a/b\0"] {
            assert_eq!(whole(&message(op::LOOKUP, bad)), Err(MalformedRequestError), "{bad:?}");
        }
        for opcode in [op::UNLINK, op::RMDIR] {
            assert_eq!(whole(&message(opcode, b"..\0")), Err(MalformedRequestError));
        }
    }

    #[test]
    fn a_write_brings_what_it_says() {
        let args = [words(&[3, 0, 4096, 0, 5, 1, 0, 0, 0o100_001, 0]), b"12345".to_vec()].concat();
        let expected = FuseOp::Write { fh: 3, offset: 4096, data: b"12345", write_flags: 1, flags: 0o100_001 };
        assert_eq!(whole(&message(op::WRITE, &args)), Ok(expected));
        assert_eq!(whole(&message(op::WRITE, &args[..args.len() - 1])), Err(MalformedRequestError));
    }

    #[test]
    fn a_message_is_as_long_as_it_says() {
        let mut message = message(op::STATFS, b"");
        assert_eq!(whole(&message), Ok(FuseOp::StatFs));
        message.push(0);
        assert_eq!(whole(&message), Err(MalformedRequestError));
        assert_eq!(whole(&message[..20]), Err(MalformedRequestError));
    }

    #[test]
    fn times_are_before_1970_too() {
        let mut args = words(&[ATIME | MTIME | MTIME_NOW | CTIME | FH, 0, 9, 0, 0, 0, 0, 0]);
        args.extend((-2_i64).to_ne_bytes());
        args.extend([0; 16]);
        args.extend(words(&[800_000_000, 0, 0, 0, 0, 0, 0, 0]));
        let set = SetAttr { atime: Some(SetTime::At(-2, 800_000_000)), mtime: Some(SetTime::Now), ..SetAttr::default() };
        assert_eq!(whole(&message(op::SETATTR, &args)), Ok(FuseOp::SetAttr(AttrChanges { set, noted: true, fh: Some(9) })));
    }

    #[test]
    fn a_batch_is_no_longer_than_its_message() {
        let pair = words(&[1, 0, 2, 0]);
        let batch = message(op::BATCH_FORGET, &[words(&[1, 0]), pair.clone()].concat());
        let Ok(FuseOp::BatchForget { pairs }) = whole(&batch) else { panic!("no batch") };
        assert_eq!(FuseOp::forgotten(pairs).collect::<Vec<_>>(), [(1, 2)]);
        for count in [2, u32::MAX] {
            let batch = message(op::BATCH_FORGET, &[words(&[count, 0]), pair.clone()].concat());
            assert_eq!(whole(&batch), Err(MalformedRequestError), "{count}");
        }
    }

    proptest! {
        /// Whatever comes: an answer, never a panic; and by the queues, where the arguments have more room, the same.
        #[test]
        fn any_bytes_are_decoded_or_refused(opcode in 0_u32..60, body in proptest::collection::vec(any::<u8>(), 0..300)) {
            let message = message(opcode, &body);
            let by_device = whole(&message);
            if let Ok((_, args, rest)) = split(&message) {
                let mut room = [0xa5; 128];
                room[..args.len()].copy_from_slice(args);
                prop_assert_eq!(&by_device, &decode(opcode, &room, rest));
            }
        }
    }
}
