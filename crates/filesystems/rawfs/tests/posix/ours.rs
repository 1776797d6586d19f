//! The calls of `sim::posix`, done on the library.

use std::sync::Arc;

use rawfs::fs::{Creds, File, FileKind, Fs, FsSettings, Node, SetAttr, SetTime, Stat, Timestamp};
use rawfs::{Disk, DiskSettings, FormatOptions, Settings, Store};
use rustix::fs::{OFlags, SeekFrom, XattrFlags, major, minor};
use rustix::io::{Errno, ReadWriteFlags};
use sim::posix::call::{Call, CallTarget, bytes, shown};
use sim::posix::generate::USERS;
use sim::posix::tree::{self, CallResult, SLOTS, digest};

/// The file system, and what is open there.
pub struct Ours {
    fs: Option<Fs>,
    base: Option<Node>,
    slots: [Option<Arc<File>>; SLOTS],
    device: block::driver::MemoryDevice,
    settings: FsSettings,
    /// Of every call.
    pub umask: u16,
}

/// Returns the credentials of this process.
pub fn myself() -> Creds {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return Creds::root();
    }
    let groups = rustix::process::getgroups().expect("known").into_iter().map(|group| group.as_raw()).collect();
    Creds { uid: uid.as_raw(), gid: rustix::process::getegid().as_raw(), groups, umask: 0o022, check: true }
}

type Outcome = Result<String, rawfs::fs::Error>;

const BELOW: &[u8] = b"/top/below";

impl Ours {
    pub fn new(bytes: u64, settings: FsSettings) -> Ours {
        let device = block::driver::MemoryDevice::new(512, bytes).expect("memory");
        let disk = Disk::open(&device, &DiskSettings::default()).expect("a disk");
        Store::format(&disk, &FormatOptions::default()).expect("formatted");
        let (store, _) = Store::open(disk, &Settings::default()).expect("a store");
        Fs::format(&store, Timestamp::now()).expect("a file system");
        let (fs, _) = Fs::open(store, settings.clone()).expect("opened");
        let owner = SetAttr { owner: Some((Some(myself().uid), Some(myself().gid))), ..SetAttr::default() };
        for path in [&b"/top"[..], BELOW] {
            fs.mkdir(fs.root(), path, 0o777, &Creds::root()).expect("made");
            let made = fs.lookup(fs.root(), path, true, &Creds::root()).expect("just made");
            fs.set_attr(&made, &owner, &Creds::root()).expect("set");
        }
        let base = fs.lookup(fs.root(), BELOW, true, &Creds::root()).expect("just made");
        Ours { fs: Some(fs), base: Some(base), slots: Default::default(), device, settings, umask: 0o022 }
    }

    pub fn fs(&self) -> &Fs {
        self.fs.as_ref().expect("open")
    }

    pub fn base(&self) -> &Node {
        self.base.as_ref().expect("open")
    }

    /// Closes everything, and opens it again.
    pub fn reopen(&mut self) {
        self.slots = Default::default();
        self.base = None;
        self.fs.take().expect("open").close().expect("closed");
        let disk = Disk::open(&self.device, &DiskSettings::default()).expect("a disk");
        let (store, recovery) = Store::open(disk, &Settings::default()).expect("a store");
        assert!(recovery.clean, "{recovery:?}");
        let report = rawfs::fs::check::check(&store).expect("read");
        let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        assert!(findings.is_empty(), "{findings:#?}");
        let (fs, orphans) = Fs::open(store, self.settings.clone()).expect("opened");
        assert_eq!(orphans, 0);
        self.base = Some(fs.lookup(fs.root(), BELOW, true, &Creds::root()).expect("there"));
        self.fs = Some(fs);
    }

    /// Does a call as the user of this process, or as one of [`USERS`].
    pub fn run(&mut self, call: &Call, user: Option<usize>) -> CallResult {
        let creds = match user {
            None => Creds { umask: self.umask, ..myself() },
            Some(user) => {
                let user = &USERS[user];
                Creds { uid: user.uid, gid: user.gid, groups: user.groups.to_vec(), umask: self.umask, check: true }
            }
        };
        let said = if let Call::UMask { mask } = call {
            self.umask = *mask as u16;
            Ok("0".into())
        } else {
            self.open_or_other(call, &creds)
        };
        said.map_err(|error| {
            assert!(!matches!(error, rawfs::fs::Error::Malformed { .. } | rawfs::fs::Error::Checksum { .. }), "{error}: {call:?}");
            error.errno()
        })
    }

    pub fn slot(&self, slot: usize) -> Result<&Arc<File>, rawfs::fs::Error> {
        self.slots[slot].as_ref().ok_or(rawfs::fs::Error::Refused(Errno::BADF))
    }

    /// As `lstat`.
    pub fn stat(&self, path: &str) -> Result<tree::Stat, Errno> {
        self.fs().stat(self.base(), path.as_bytes(), false, &myself()).map(|stat| converted(&stat)).map_err(|error| error.errno())
    }

    pub fn stat_slot(&self, slot: usize) -> Result<tree::Stat, Errno> {
        let stat = self.slot(slot).and_then(|file| file.node().stat());
        stat.map(|stat| converted(&stat)).map_err(|error| error.errno())
    }

    fn open_or_other(&mut self, call: &Call, creds: &Creds) -> Outcome {
        match call {
            Call::Open { slot, path, flags, mode } => {
                let file = self.fs().open_at(self.base(), path.as_bytes(), *flags, *mode as u16, creds)?;
                self.slots[*slot] = Some(Arc::new(file));
                Ok("open".into())
            }
            Call::OpenAt { slot, at, path, flags, mode } => {
                let at = self.slot(*at)?.node().clone();
                let file = self.fs().open_at(&at, path.as_bytes(), *flags, *mode as u16, creds)?;
                self.slots[*slot] = Some(Arc::new(file));
                Ok("open".into())
            }
            Call::Close { slot } => {
                self.slots[*slot] = None;
                Ok("closed".into())
            }
            Call::Dup { slot, to } => {
                self.slots[*to] = Some(Arc::clone(self.slot(*slot)?));
                Ok("open".into())
            }
            _ => self.data(call, creds),
        }
    }

    fn data(&self, call: &Call, creds: &Creds) -> Outcome {
        if let Call::Read { slot, .. } | Call::ReadV { slot, .. } | Call::Seek { slot, .. } = call
            && self.slot(*slot)?.node().kind() == FileKind::Dir
        {
            return Ok("not asked of a directory".into());
        }
        let counted = |done: usize| done.to_string();
        match call {
            Call::Read { slot, len } => {
                let mut room = vec![0; *len];
                let done = self.slot(*slot)?.read(&mut room)?;
                Ok(digest(&room[..done]))
            }
            Call::ReadV { slot, lens } => {
                let mut room = vec![0; lens.iter().sum()];
                let done = self.slot(*slot)?.read(&mut room)?;
                Ok(digest(&room[..done]))
            }
            Call::PRead { slot, at, len } => {
                let mut room = vec![0; *len];
                let done = self.slot(*slot)?.read_at(&mut room, *at)?;
                Ok(digest(&room[..done]))
            }
            Call::Write { slot, len, seed } => self.slot(*slot)?.write(&bytes(*len, *seed)).map(counted),
            Call::WriteV { slot, lens, seed } => {
                let all: Vec<u8> = lens.iter().flat_map(|len| bytes(*len, *seed)).collect();
                self.slot(*slot)?.write(&all).map(counted)
            }
            Call::PWrite { slot, at, len, seed } => self.slot(*slot)?.write_at(&bytes(*len, *seed), *at).map(counted),
            Call::PWrite2 { slot, at, len, seed, flags } => {
                assert!(!flags.contains(ReadWriteFlags::APPEND), "not asked");
                let done = self.slot(*slot)?.write_at(&bytes(*len, *seed), *at)?;
                self.slot(*slot)?.sync()?;
                Ok(counted(done))
            }
            Call::Seek { slot, to } => self.slot(*slot)?.seek(*to).map(|at| at.to_string()),
            Call::Truncate { path, size } => {
                let flags = OFlags::WRONLY | OFlags::NONBLOCK;
                self.fs().open_at(self.base(), path.as_bytes(), flags, 0, creds)?.set_len(*size).map(done)
            }
            Call::FTruncate { slot, size } => self.slot(*slot)?.set_len(*size).map(done),
            Call::Fallocate { slot, flags, at, len } => self.slot(*slot)?.allocate(*flags, *at, *len).map(done),
            Call::ReadDir { slot, rewind, most } => self.list(self.slot(*slot)?, *rewind, *most),
            Call::Sync { slot, .. } => self.slot(*slot)?.sync().map(done),
            Call::SyncFs { slot } => self
                .slot(*slot)
                .and_then(|file| if file.flags().contains(OFlags::PATH) { Err(Errno::BADF.into()) } else { self.fs().sync().map(done) }),
            Call::SetFlags { slot, flags } => {
                let file = self.slot(*slot)?;
                if file.flags().contains(OFlags::PATH) {
                    return Err(Errno::BADF.into());
                }
                file.set_flags(*flags);
                Ok("0".into())
            }
            _ => self.names(call, creds),
        }
    }

    fn list(&self, file: &File, rewind: bool, most: usize) -> Outcome {
        if file.flags().contains(OFlags::PATH) {
            return Err(Errno::BADF.into());
        }
        if rewind || file.node().kind() != FileKind::Dir {
            file.seek(SeekFrom::Start(0))?;
        }
        let mut names = Vec::new();
        file.read_dir(&mut |entry, _| {
            if names.len() < most {
                names.push((entry.name.clone(), entry.kind));
                return true;
            }
            false
        })?;
        names.retain(|(name, _)| name != b"." && name != b"..");
        names.sort_by(|a, b| a.0.cmp(&b.0));
        let shown: Vec<String> = names.iter().map(|(name, kind)| format!("{} {}", String::from_utf8_lossy(name), word(*kind))).collect();
        Ok(if rewind && most == usize::MAX { format!("{shown:?}") } else { "listed".into() })
    }

    fn names(&self, call: &Call, creds: &Creds) -> Outcome {
        let (fs, at) = (self.fs(), self.base());
        match call {
            Call::MkDir { path, mode } => fs.mkdir(at, path.as_bytes(), *mode as u16, creds).map(made),
            Call::RmDir { path } => fs.rmdir(at, path.as_bytes(), creds).map(done),
            Call::Unlink { path } => fs.unlink(at, path.as_bytes(), creds).map(done),
            Call::Rename { from, to, flags } => fs.rename(at, from.as_bytes(), at, to.as_bytes(), *flags, creds).map(done),
            Call::Link { from, to, follow } => {
                let node = fs.lookup(at, from.as_bytes(), *follow, creds)?;
                fs.link(&node, at, to.as_bytes(), creds).map(done)
            }
            Call::LinkSlot { slot, to } => fs.link(self.slot(*slot)?.node(), at, to.as_bytes(), creds).map(done),
            Call::SymLink { target, path } => fs.symlink(target.as_bytes(), at, path.as_bytes(), creds).map(made),
            Call::ReadLink { path } => fs.readlink(at, path.as_bytes(), creds).map(|target| String::from_utf8_lossy(&target).into_owned()),
            Call::MkNod { path, kind, mode, dev } => {
                let kind = match kind {
                    rustix::fs::FileType::Fifo => FileKind::Fifo,
                    rustix::fs::FileType::Socket => FileKind::Socket,
                    rustix::fs::FileType::RegularFile => FileKind::File,
                    rustix::fs::FileType::CharacterDevice => FileKind::CharDevice,
                    rustix::fs::FileType::BlockDevice => FileKind::BlockDevice,
                    _ => FileKind::Dir,
                };
                fs.mknod(at, path.as_bytes(), kind, *mode as u16, *dev, creds).map(made)
            }
            Call::Access { path, how, .. } => fs.access(at, path.as_bytes(), how.bits() as u16, creds).map(done),
            _ => self.attributes(call, creds),
        }
    }

    /// A file by its number in a call; not by one that is open only as a path, unless `path` is allowed.
    fn which(&self, which: &CallTarget, path: bool, creds: &Creds) -> Result<Node, rawfs::fs::Error> {
        match which {
            CallTarget::Path(path) => self.fs().lookup(self.base(), path.as_bytes(), true, creds),
            CallTarget::Link(path) => self.fs().lookup(self.base(), path.as_bytes(), false, creds),
            CallTarget::Slot(slot) => {
                let file = self.slot(*slot)?;
                if file.flags().contains(OFlags::PATH) && !path { Err(Errno::BADF.into()) } else { Ok(file.node().clone()) }
            }
        }
    }

    /// What the kernel looks at before it looks for the file.
    fn xattr_asked(&self, which: &CallTarget, name: &str, flags: u32, len: usize) -> Result<(), rawfs::fs::Error> {
        if let CallTarget::Slot(slot) = which {
            self.slot(*slot)?;
        }
        match (name.len(), flags, len) {
            (_, 4.., _) => Err(Errno::INVAL.into()),
            (0 | 256.., _, _) => Err(Errno::RANGE.into()),
            (_, _, 65_537..) => Err(Errno::TOOBIG.into()),
            _ => Ok(()),
        }
    }

    fn attributes(&self, call: &Call, creds: &Creds) -> Outcome {
        let fs = self.fs();
        match call {
            Call::SetXattr { which, name, value, flags } => self.xattr_asked(which, name, *flags, value.len())?,
            Call::GetXattr { which, name, .. } | Call::RemoveXattr { which, name } => self.xattr_asked(which, name, 0, 0)?,
            _ => {}
        }
        match call {
            Call::ChMod { which, mode } => {
                let set = SetAttr { mode: Some(*mode as u16), ..SetAttr::default() };
                fs.set_attr(&self.which(which, false, creds)?, &set, creds).map(done)
            }
            Call::ChOwn { which, uid, gid } => {
                let set = SetAttr { owner: Some((*uid, *gid)), ..SetAttr::default() };
                fs.set_attr(&self.which(which, false, creds)?, &set, creds).map(done)
            }
            Call::UTimes { which, access, modified } => {
                if let CallTarget::Slot(slot) = which {
                    self.slot(*slot)?;
                }
                if let (Ok(SetTime::Omit), Ok(SetTime::Omit)) = (time(*access), time(*modified)) {
                    return Ok("0".into());
                }
                let node = self.which(which, false, creds)?;
                let (atime, mtime) = (time(*access)?, time(*modified)?);
                fs.set_attr(&node, &SetAttr { atime, mtime, ..SetAttr::default() }, creds).map(done)
            }
            Call::SetXattr { which, name, value, flags } => {
                let flags = XattrFlags::from_bits_retain(*flags);
                fs.set_xattr(&self.which(which, false, creds)?, name.as_bytes(), value, flags, creds).map(done)
            }
            Call::RemoveXattr { which, name } => fs.remove_xattr(&self.which(which, false, creds)?, name.as_bytes(), creds).map(done),
            Call::GetXattr { which, name, room } => {
                let value = fs.get_xattr(&self.which(which, false, creds)?, name.as_bytes(), creds)?;
                match (*room, value.len()) {
                    (0, _) => Ok("0".into()),
                    (room, len) if room < len => Err(Errno::RANGE.into()),
                    _ => Ok(digest(&value)),
                }
            }
            Call::ListXattr { which, room } => {
                let all = fs.list_xattrs(&self.which(which, false, creds)?, creds)?;
                if *room > 0 && *room < all.len() {
                    return Err(Errno::RANGE.into());
                }
                if *room == 0 {
                    // Nothing can be got into nothing: how long they are is not asked.
                    return Ok("0 [\"\"]".into());
                }
                let mut names: Vec<String> = all.split(|byte| *byte == 0).map(|name| String::from_utf8_lossy(name).into_owned()).collect();
                names.sort();
                Ok(format!("{} {names:?}", all.len()))
            }
            Call::Stat { which } => self.which(which, true, creds)?.stat().map(|stat| shown(&converted(&stat))),
            other => panic!("not asked: {other:?}"),
        }
    }
}

fn done(_: ()) -> String {
    "0".into()
}

fn made(_: Node) -> String {
    "0".into()
}

fn time((sec, nsec): (i64, i64)) -> Result<SetTime, rawfs::fs::Error> {
    match nsec {
        0x3fff_ffff => Ok(SetTime::Now),
        0x3fff_fffe => Ok(SetTime::Omit),
        0..1_000_000_000 => Ok(SetTime::At(Timestamp { sec, nsec: nsec as u32 })),
        _ => Err(Errno::INVAL.into()),
    }
}

fn converted(stat: &Stat) -> tree::Stat {
    let time = |stamp: Timestamp| (stamp.sec, stamp.nsec);
    tree::Stat {
        ino: stat.ino,
        birth: time(stat.btime),
        mode: stat.mode,
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        size: stat.size,
        blocks: stat.blocks,
        rdev: (major(stat.device), minor(stat.device)),
        atime: time(stat.atime),
        mtime: time(stat.mtime),
        ctime: time(stat.ctime),
    }
}

/// As `rustix::fs::FileType` is shown.
fn word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "RegularFile",
        FileKind::Dir => "Directory",
        FileKind::Symlink => "Symlink",
        FileKind::Fifo => "Fifo",
        FileKind::Socket => "Socket",
        FileKind::CharDevice => "CharacterDevice",
        FileKind::BlockDevice => "BlockDevice",
    }
}
