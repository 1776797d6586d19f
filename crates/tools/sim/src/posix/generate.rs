//! Random calls from a seed and the existing files.

use fastrand::Rng;
use rustix::fs::{Access, FallocateFlags, FileType, FlockOperation, OFlags, RenameFlags, SeekFrom, makedev};
use rustix::io::ReadWriteFlags;

use super::call::{Call, CallTarget};
use super::tree::{SLOTS, join};

/// Above this number of names, calls mostly remove.
const NAMES_MAX: usize = 70;
const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", "file with spaces", "\u{e4}"];

/// A generator of random calls.
pub struct Generator {
    /// The generator of random numbers.
    pub rng: Rng,
    /// Known paths, and whether they are directories.
    pub known: Vec<(String, bool)>,
    /// Paths may contain `..`, where that stays in the compared tree.
    pub dotdot: bool,
    /// Running as root: privileged calls, and other users.
    pub root: bool,
}

impl Generator {
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.rng.usize(..from.len())]
    }

    fn chance(&mut self, percent: u8) -> bool {
        self.rng.u8(0..100) < percent
    }

    fn name(&mut self) -> String {
        match self.rng.u16(0..400) {
            0 => "n".repeat(255),
            1 => "n".repeat(256),
            2 => ".hotshelf".into(),
            _ => self.pick(&NAMES).into(),
        }
    }

    fn dir(&mut self) -> String {
        let dirs: Vec<usize> = (0..self.known.len()).filter(|n| self.known[*n].1).collect();
        if dirs.is_empty() || self.chance(25) {
            return String::new();
        }
        let n = self.pick(&dirs);
        self.known[n].0.clone()
    }

    /// Returns a path, usually an existing one.
    fn path(&mut self) -> String {
        if !self.known.is_empty() && self.chance(75) {
            let n = self.rng.usize(..self.known.len());
            let path = self.known[n].0.clone();
            return self.decorated(path);
        }
        self.new_path()
    }

    /// Returns a path, usually with a new name.
    fn new_path(&mut self) -> String {
        let (dir, mut name) = (self.dir(), self.name());
        // Deep and wide enough, and mostly unused.
        if dir.matches('/').count() > 4 {
            return join(dir.split('/').next().unwrap_or_default(), &name);
        }
        if name == ".hotshelf" && dir.is_empty() && !self.dotdot {
            name = "a".into();
        }
        let path = join(&dir, &name);
        self.decorated(path)
    }

    fn decorated(&mut self, path: String) -> String {
        match self.rng.u16(0..300) {
            0..4 => path + "/",
            4..6 => path + "/.",
            6..8 if self.dotdot => path + "/..",
            8 => String::new(),
            9..11 => path + "/x",
            11 => ".".into(),
            12 => format!("./{path}"),
            13 => path.replace('/', "//"),
            14 => {
                let long = "./".repeat((4095 - path.len()) / 2) + &path;
                if long.len() == 4095 || self.rng.bool() { long } else { "/".repeat(4095 - long.len()) + "." + &long }
            }
            15 => "./".repeat(2048) + &path,
            _ => path,
        }
    }

    fn slot(&mut self) -> usize {
        self.rng.usize(..SLOTS)
    }

    fn which(&mut self) -> CallTarget {
        match self.rng.u8(0..10) {
            0..5 => CallTarget::Path(self.path()),
            5..7 => CallTarget::Link(self.path()),
            _ => CallTarget::Slot(self.slot()),
        }
    }

    fn mode(&mut self) -> u32 {
        let usual = [0o644, 0o755, 0o600, 0o777, 0o666, 0o700, 0o1777, 0o2775, 0o4755, 0o2755, 0o6711, 0o2664, 0];
        if self.chance(80) { self.pick(&usual) } else { self.rng.u32(0..0o10000) }
    }

    fn len(&mut self) -> usize {
        match self.rng.u8(0..20) {
            0 => 0,
            1 => 4096,
            2 => self.rng.usize(0..1 << 20),
            3..8 => self.rng.usize(0..64 << 10),
            _ => self.rng.usize(1..6000),
        }
    }

    fn at(&mut self) -> u64 {
        match self.rng.u8(0..30) {
            0 => self.rng.u64(0..9 << 20),
            1..5 => self.rng.u64(0..64) * 4096,
            5..12 => 0,
            _ => self.rng.u64(0..100 << 10),
        }
    }

    fn size(&mut self) -> u64 {
        match self.rng.u8(0..40) {
            0 => 0,
            1 => 5 << 20,
            2 => 1 << 50,
            3 => u64::MAX,
            4 => 16 << 40,
            _ => self.at(),
        }
    }

    fn flags(&mut self) -> OFlags {
        let access = self.pick(&[OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR, OFlags::RDWR]);
        // Without O_NONBLOCK the open of a pipe would wait.
        let mut flags = access | OFlags::NONBLOCK;
        for (percent, more) in [
            (45, OFlags::CREATE),
            (6, OFlags::EXCL),
            (12, OFlags::TRUNC),
            (15, OFlags::APPEND),
            (6, OFlags::NOFOLLOW),
            (6, OFlags::DIRECTORY),
            (5, OFlags::SYNC),
            (5, OFlags::DSYNC),
            (4, OFlags::PATH),
        ] {
            if self.chance(percent) {
                flags |= more;
            }
        }
        match self.rng.u8(0..20) {
            0 => access | OFlags::TMPFILE,
            1..4 => OFlags::DIRECTORY,
            _ => flags,
        }
    }

    fn xattr(&mut self) -> String {
        let names = [
            "user.a",
            "user.b",
            "user.c",
            "trusted.t",
            "security.s",
            "user.",
            "nothing",
            "other.x",
            "system.posix_acl_access",
            "system.posix_acl_access",
            "system.posix_acl_default",
            "system.posix_acl_default",
        ];
        match self.rng.u8(0..40) {
            0 => format!("user.{}", "n".repeat(250)),
            1 => format!("user.{}", "n".repeat(251)),
            _ => self.pick(&names).into(),
        }
    }

    fn value(&mut self, name: &str) -> Vec<u8> {
        if name.starts_with("system.posix_acl") && self.chance(92) {
            return self.acl();
        }
        let len = match self.rng.u8(0..20) {
            0 => 0,
            1 => 65_536,
            2 => 65_537,
            3 => 3900,
            4 => self.rng.usize(0..5000),
            _ => self.rng.usize(0..60),
        };
        super::call::bytes(len, self.rng.u8(..))
    }

    /// Returns an access control list in kernel format: tag, permissions and id of each entry.
    fn acl(&mut self) -> Vec<u8> {
        let mut value = 2u32.to_le_bytes().to_vec();
        let mut entry = |tag: u16, perm: u16, id: u32| {
            value.extend_from_slice(&tag.to_le_bytes());
            value.extend_from_slice(&perm.to_le_bytes());
            value.extend_from_slice(&id.to_le_bytes());
        };
        let rng = &mut self.rng;
        let extended = rng.bool();
        entry(0x01, rng.u16(0..8), u32::MAX);
        if extended {
            entry(0x02, rng.u16(0..8), USERS[0].uid);
        }
        entry(0x04, rng.u16(0..8), u32::MAX);
        if extended && rng.bool() {
            entry(0x08, rng.u16(0..8), USERS[0].groups[0]);
        }
        if extended && rng.u8(0..20) > 0 {
            entry(0x10, rng.u16(0..8), u32::MAX);
        }
        entry(0x20, rng.u16(0..8), u32::MAX);
        value
    }

    fn time(&mut self) -> (i64, i64) {
        const NOW: i64 = 0x3fff_ffff;
        const OMIT: i64 = 0x3fff_fffe;
        let sec = self.pick(&[
            -1,
            0,
            1,
            -2,
            1_000_000_000,
            -1_000_000,
            i64::from(i32::MAX),
            i64::from(i32::MAX) + 1,
            i64::from(i32::MIN),
            i64::from(i32::MIN) - 1,
            1 << 32,
            (1 << 33) + 7,
            15_032_385_535,
            15_032_385_536,
            1 << 40,
            -(1 << 40),
            i64::MIN,
            i64::MAX,
        ]);
        let nsec = self.pick(&[0, 1, 999_999_999, 123_456_789, NOW, OMIT, NOW, OMIT, 500_000_000, 1_000_000_000]);
        (sec, nsec)
    }

    fn id(&mut self) -> Option<u32> {
        self.pick(&[None, Some(0), Some(USERS[0].uid), Some(USERS[1].uid), Some(USERS[0].gid), Some(USERS[0].groups[0])])
    }

    /// Returns the next random call.
    pub fn call(&mut self) -> Call {
        if self.known.len() > NAMES_MAX {
            let path = self.known[self.rng.usize(..self.known.len())].clone();
            return if path.1 { Call::RmDir { path: path.0 } } else { Call::Unlink { path: path.0 } };
        }
        match self.rng.u8(0..100) {
            0..14 => self.open(),
            14..48 => self.data(),
            48..72 => self.names(),
            72..94 => self.attributes(),
            _ => self.others(),
        }
    }

    fn open(&mut self) -> Call {
        let (slot, flags, mode) = (self.slot(), self.flags(), self.mode());
        match self.rng.u8(0..20) {
            0 => Call::OpenAt { slot, at: self.slot(), path: self.name(), flags, mode },
            1 => Call::OpenAt { slot, at: self.slot(), path: ".".into(), flags, mode },
            2 | 3 => Call::Close { slot },
            4 => Call::Dup { slot, to: self.slot() },
            // Aligned access only: see `data`.
            _ => Call::Open { slot, path: if self.chance(60) { self.path() } else { self.new_path() }, flags, mode },
        }
    }

    fn data(&mut self) -> Call {
        let (slot, len, at, seed) = (self.slot(), self.len(), self.at(), self.rng.u8(..));
        match self.rng.u8(0..40) {
            0..4 => Call::Read { slot, len },
            4..9 => Call::PRead { slot, at, len },
            9 => Call::ReadV { slot, lens: [len / 2, 0, len / 3] },
            10..14 => Call::Write { slot, len, seed },
            14..20 => Call::PWrite { slot, at, len, seed },
            20 => Call::WriteV { slot, lens: [len / 2, 0, len / 3], seed },
            21 => {
                let flags = self.pick(&[ReadWriteFlags::APPEND, ReadWriteFlags::SYNC, ReadWriteFlags::DSYNC]);
                Call::PWrite2 { slot, at, len, seed, flags }
            }
            22..25 => Call::Seek { slot, to: self.seek() },
            25..27 => Call::Truncate { path: self.path(), size: self.size() },
            27..29 => Call::FTruncate { slot, size: self.size() },
            29..33 => self.fallocate(slot),
            33..35 => Call::CopyRange { from: slot, at, to: self.slot(), to_at: self.at(), len },
            35 => Call::SendFile { from: slot, at, to: self.slot(), len: len.min(60_000) },
            36 => Call::Clone { from: slot, to: self.slot() },
            37 => Call::Sync { slot, data_only: self.rng.bool() },
            38 => Call::Advise { slot },
            _ => Call::Stat { which: CallTarget::Slot(slot) },
        }
    }

    fn seek(&mut self) -> SeekFrom {
        let at = self.at();
        match self.rng.u8(0..6) {
            0 => SeekFrom::Start(at),
            1 => SeekFrom::End(at as i64 - 50_000),
            2 => SeekFrom::Current(at as i64 - 50_000),
            3 => SeekFrom::Hole(at),
            4 => SeekFrom::Data(at),
            _ => SeekFrom::Start(0),
        }
    }

    fn fallocate(&mut self, slot: usize) -> Call {
        let keep = FallocateFlags::KEEP_SIZE;
        let flags = self.pick(&[
            FallocateFlags::empty(),
            keep,
            FallocateFlags::PUNCH_HOLE | keep,
            FallocateFlags::PUNCH_HOLE | keep,
            FallocateFlags::PUNCH_HOLE,
            FallocateFlags::ZERO_RANGE,
            FallocateFlags::ZERO_RANGE | keep,
            FallocateFlags::COLLAPSE_RANGE,
            FallocateFlags::INSERT_RANGE,
            FallocateFlags::UNSHARE_RANGE,
        ]);
        let whole = self.chance(60);
        let (at, len) = (self.at(), self.len() as u64);
        let round = |n: u64| if whole { n / 4096 * 4096 } else { n };
        Call::Fallocate { slot, flags, at: round(at), len: round(len) }
    }

    fn names(&mut self) -> Call {
        match self.rng.u8(0..40) {
            0..6 => Call::MkDir { path: self.new_path(), mode: self.mode() | 0o700 },
            6 => Call::MkDir { path: self.path(), mode: self.mode() },
            7..10 => Call::RmDir { path: self.path() },
            10..15 => Call::Unlink { path: self.path() },
            15..26 => {
                let none = RenameFlags::empty();
                let flags = self.pick(&[
                    none,
                    none,
                    none,
                    none,
                    RenameFlags::NOREPLACE,
                    RenameFlags::EXCHANGE,
                    RenameFlags::EXCHANGE,
                    RenameFlags::EXCHANGE | RenameFlags::NOREPLACE,
                    RenameFlags::from_bits_retain(8),
                ]);
                let from = self.path();
                let to = match self.rng.u8(0..10) {
                    0..4 => self.path(),
                    4 => join(&from, "sub"),
                    5 => from.clone(),
                    _ => self.new_path(),
                };
                Call::Rename { from, to, flags }
            }
            26..30 => Call::Link { from: self.path(), to: self.new_path(), follow: self.rng.bool() },
            30 => Call::LinkSlot { slot: self.slot(), to: self.new_path() },
            31..34 => Call::SymLink { target: self.target(), path: self.new_path() },
            34 => Call::ReadLink { path: self.path() },
            35..38 => {
                let kind = self.pick(&[
                    FileType::Fifo,
                    FileType::Socket,
                    FileType::RegularFile,
                    FileType::CharacterDevice,
                    FileType::BlockDevice,
                    FileType::Directory,
                ]);
                // Device numbers without a driver.
                let dev = self.pick(&[makedev(240, 7), makedev(511, 300_000), makedev(4095, 1)]);
                Call::MkNod { path: self.new_path(), kind, mode: self.mode(), dev }
            }
            38 => Call::ReadDir { slot: self.slot(), rewind: true, most: usize::MAX },
            _ => Call::ReadDir { slot: self.slot(), rewind: self.chance(30), most: self.rng.usize(1..6) },
        }
    }

    fn target(&mut self) -> String {
        match self.rng.u8(0..30) {
            0 => "nowhere".into(),
            1 => "t".repeat(4095),
            2 => "t".repeat(4096),
            3 => String::new(),
            4 => "a/".into(),
            // Nothing can be created there: it would be the same file on both sides.
            5 => "/nowhere/at/all".into(),
            6 => ".".into(),
            7..20 => self.pick(&NAMES).into(),
            _ => self.known.first().map_or_else(String::new, |known| known.0.clone()),
        }
    }

    fn attributes(&mut self) -> Call {
        match self.rng.u8(0..40) {
            0..5 => Call::ChMod { which: self.which(), mode: self.mode() },
            5..9 => Call::ChOwn { which: self.which(), uid: self.id(), gid: self.id() },
            9..15 => Call::UTimes { which: self.which(), access: self.time(), modified: self.time() },
            15..23 => {
                let (which, name) = (self.which(), self.xattr());
                let value = self.value(&name);
                Call::SetXattr { which, name, value, flags: self.pick(&[0, 0, 0, 1, 2, 3]) }
            }
            23..27 => Call::GetXattr { which: self.which(), name: self.xattr(), room: self.pick(&[0, 1, 100, 65_536]) },
            27..29 => Call::ListXattr { which: self.which(), room: self.pick(&[0, 1, 65_536]) },
            29..32 => Call::RemoveXattr { which: self.which(), name: self.xattr() },
            32..36 => {
                let how = Access::from_bits_retain(self.rng.u32(0..8));
                Call::Access { path: self.path(), how, effective: self.rng.bool() }
            }
            _ => Call::Stat { which: self.which() },
        }
    }

    fn others(&mut self) -> Call {
        let slot = self.slot();
        let how = self.pick(&[
            FlockOperation::NonBlockingLockExclusive,
            FlockOperation::NonBlockingLockShared,
            FlockOperation::NonBlockingUnlock,
        ]);
        match self.rng.u8(0..10) {
            0..2 => Call::FLock { slot, how },
            2..4 => Call::PosixLock { slot, how },
            4 | 5 => Call::UMask { mask: self.pick(&[0o022, 0, 0o077, 0o027, 0o777]) },
            6 => Call::SetFlags { slot, flags: OFlags::NONBLOCK | self.pick(&[OFlags::APPEND, OFlags::empty()]) },
            7 => Call::GetFlags { slot },
            8 => Call::SyncFs { slot },
            _ => Call::Sync { slot, data_only: false },
        }
    }
}

/// An unprivileged user for calls.
pub struct User {
    /// User id of the user.
    pub uid: u32,
    /// Group id of the user.
    pub gid: u32,
    /// Supplementary groups of the user.
    pub groups: [u32; 2],
}

/// The users that make calls, beside root.
pub const USERS: [User; 2] =
    [User { uid: 10_001, gid: 10_011, groups: [10_021, 10_022] }, User { uid: 10_002, gid: 10_012, groups: [10_021, 10_023] }];
