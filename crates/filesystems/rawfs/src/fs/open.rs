//! open(2).

use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::core::{FsCore, HeldInode};
use super::creds::{Creds, READ, WRITE};
use super::error::Result;
use super::make::NewFile;
use super::name::Name;
use super::record::FileKind;
use super::remove::too_long;
use super::walk::{LastComponent, PathTail, WalkResult};

/// Symbolic links that are followed to a file to be made, at most.
const LINKS_MAX: u32 = 40;

/// What an open requires by its access mode.
pub fn access(flags: OFlags) -> (bool, bool) {
    match flags & OFlags::ACCMODE {
        OFlags::RDONLY => (true, false),
        OFlags::WRONLY => (false, true),
        _ => (true, true),
    }
}

/// Flags as the kernel makes sense of them; EINVAL for those that contradict each other.
pub fn sane(flags: OFlags) -> Result<OFlags> {
    if flags.contains(OFlags::PATH) {
        return Ok(flags & (OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC));
    }
    let unnamed = flags.contains(OFlags::TMPFILE) && !access(flags).1;
    if flags.contains(OFlags::CREATE | OFlags::DIRECTORY) || unnamed { Err(Errno::INVAL.into()) } else { Ok(flags) }
}

impl FsCore {
    /// Finds or makes what is to be opened. The flags were looked at by [`sane`].
    pub fn open(&self, base: &Arc<Name>, path: &[u8], flags: OFlags, mode: u16, creds: &Creds) -> Result<HeldInode<'_>> {
        if flags.contains(OFlags::PATH) {
            let held = self.hold_path(base, path, !flags.contains(OFlags::NOFOLLOW), creds)?;
            return if flags.contains(OFlags::DIRECTORY) && kind(&held) != FileKind::Dir { Err(Errno::NOTDIR.into()) } else { Ok(held) };
        }
        if flags.contains(OFlags::TMPFILE) {
            return self.open_unnamed(base, path, flags, mode, creds);
        }
        if flags.contains(OFlags::CREATE) {
            return self.open_or_make(base, path, flags, mode, creds);
        }
        let held = self.hold_path(base, path, !flags.contains(OFlags::NOFOLLOW), creds)?;
        self.opened(held, flags, creds)
    }

    fn open_unnamed(&self, base: &Arc<Name>, path: &[u8], flags: OFlags, mode: u16, creds: &Creds) -> Result<HeldInode<'_>> {
        let dir = self.dir_of(&*self.hold_path(base, path, true, creds)?)?;
        let _names = self.locks.shared();
        let held = self.make_unnamed(&dir, mode, creds)?;
        if flags.contains(OFlags::EXCL) {
            held.state.write().linkable = false;
        }
        Ok(held)
    }

    fn open_or_make(&self, base: &Arc<Name>, path: &[u8], flags: OFlags, mode: u16, creds: &Creds) -> Result<HeldInode<'_>> {
        let (mut base, mut path) = (Arc::clone(base), path.to_vec());
        for _ in 0..=LINKS_MAX {
            let names = self.locks.shared();
            let PathTail { dir, last, slash } = self.tail(&base, &path, creds)?;
            let LastComponent::Name(name) = last else {
                return Err(if flags.contains(OFlags::EXCL) { Errno::EXIST } else { Errno::ISDIR }.into());
            };
            if slash {
                return Err(Errno::ISDIR.into());
            }
            too_long(&name)?;
            let _dir = self.locks.change(&names, &[&dir]);
            let parent = self.dir_record(&dir)?;
            let epoch = self.table.epoch();
            match self.entry(&dir, &name)? {
                None => {
                    self.may_add(creds, &parent)?;
                    return self.add_new(&dir, &parent, &name, &NewFile::of(FileKind::File, mode), creds);
                }
                Some(_) if flags.contains(OFlags::EXCL) => return Err(Errno::EXIST.into()),
                Some(value) if value.kind() == FileKind::Symlink && !flags.contains(OFlags::NOFOLLOW) => {
                    path = self.target(&self.stored(value)?)?;
                    base = dir;
                }
                Some(value) => {
                    let held = self.hold_value(&dir, &name, &value, epoch)?;
                    drop(_dir);
                    drop(names);
                    return self.opened(held, flags, creds);
                }
            }
        }
        Err(Errno::LOOP.into())
    }

    /// Whether what there is may be opened so; cuts it if that is wanted. No lock is held.
    pub fn opened<'a>(&'a self, held: HeldInode<'a>, flags: OFlags, creds: &Creds) -> Result<HeldInode<'a>> {
        let kind = kind(&held);
        let (reads, writes) = access(flags);
        let truncates = flags.contains(OFlags::TRUNC);
        if flags.contains(OFlags::DIRECTORY) && kind != FileKind::Dir {
            return Err(Errno::NOTDIR.into());
        }
        match kind {
            FileKind::Symlink => return Err(Errno::LOOP.into()),
            FileKind::Dir if writes || truncates || flags.contains(OFlags::CREATE) => return Err(Errno::ISDIR.into()),
            _ => {}
        }
        if (writes || truncates) && kind == FileKind::File {
            self.may_change()?;
        }
        if creds.checks_access() {
            let record = {
                let _names = self.locks.shared();
                self.record(&held)?.0
            };
            self.may(creds, &record, if reads { READ } else { 0 } | if writes || truncates { WRITE } else { 0 })?;
        }
        match kind {
            // What they do is not ours: front doors that can do it do not come here.
            FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => return Err(Errno::NXIO.into()),
            FileKind::File if truncates => self.truncate(&held.inode, 0, creds)?,
            _ => {}
        }
        Ok(held)
    }

    /// Sets the size of a regular file.
    pub fn truncate(&self, inode: &Arc<super::table::Inode>, size: u64, creds: &Creds) -> Result<()> {
        self.may_change()?;
        let _names = self.locks.shared();
        let mut state = inode.state.write();
        self.set_size(inode, &mut state, size)?;
        let now = self.now();
        (state.record.mtime, state.record.ctime) = (now, now);
        state.record.mode = super::creds::mode_written(&state.record, creds);
        state.changed = true;
        self.list(inode, &mut state);
        Ok(())
    }

    /// Whether a path's file may be read, written, executed; 0: is there.
    pub fn access(&self, base: &Arc<Name>, path: &[u8], wanted: u16, creds: &Creds) -> Result<()> {
        let _names = self.locks.shared();
        let found = self.find(base, path, true, creds)?;
        self.stat_found(&found)?;
        let record = match found {
            WalkResult::Dir(name) => self.dir_or_gone(&name)?,
            WalkResult::Entry { value: Some(value), .. } => self.newest(&value)?,
            WalkResult::Entry { value: None, .. } => return Err(Errno::NOENT.into()),
        };
        self.may(creds, &record, wanted)
    }

    /// Where a symbolic link leads.
    pub fn readlink(&self, base: &Arc<Name>, path: &[u8], creds: &Creds) -> Result<Vec<u8>> {
        let _names = self.locks.shared();
        match self.find(base, path, false, creds)? {
            WalkResult::Entry { value: None, .. } => Err(Errno::NOENT.into()),
            WalkResult::Entry { value: Some(value), .. } if value.kind() == FileKind::Symlink => self.target(&self.stored(value)?),
            WalkResult::Entry { value: Some(value), slash: true, .. } if value.kind() != FileKind::Dir => Err(Errno::NOTDIR.into()),
            _ => Err(Errno::INVAL.into()),
        }
    }
}

fn kind(held: &HeldInode<'_>) -> FileKind {
    held.state.read().record.kind
}
