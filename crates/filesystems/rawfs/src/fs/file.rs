//! Open files: a held file with flags, a position, and the errors that were not reported yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::Errno;

use super::SIZE_MAX;
use super::core::FsCore;
use super::creds::Creds;
use super::dir_cursor::DirCursor;
use super::error::{Error, Result};
use super::node::Node;
use super::open::access;
use super::open_files::OpenFileCount;
use super::read_ahead::ReadAhead;
use super::record::{FileKind, Record, RecordBody};
use super::settings::Atime;
use super::table::Inode;
use crate::{BLOCK_BYTES, Lsn};

const BLOCK: u64 = BLOCK_BYTES as u64;
const DAY: i64 = 86_400;

/// An open file with its flags and position.
pub struct File {
    node: Node,
    creds: Creds,
    flags: AtomicU32,
    pub(super) at: Mutex<u64>,
    /// Errors of write-back that this handle has reported.
    seen: AtomicU64,
    pub(super) read_ahead: ReadAhead,
    pub(super) list: Mutex<DirCursor>,
    _counted: OpenFileCount,
}

/// What is still to be done for a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PendingWrite {
    /// It is in memory, and that is all.
    Nothing,
    /// It has to reach the device (O_DIRECT).
    Place,
    /// It has to be durable (O_SYNC).
    Sync,
}

impl File {
    pub(super) fn new(node: Node, flags: OFlags, creds: Creds, counted: OpenFileCount) -> File {
        let seen = AtomicU64::new(node.inode.state.read().seen_at_open());
        let kept = flags - (OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC | OFlags::NOCTTY);
        File {
            node,
            creds,
            flags: AtomicU32::new(kept.bits()),
            at: Mutex::new(0),
            seen,
            read_ahead: ReadAhead::default(),
            list: Mutex::default(),
            _counted: counted,
        }
    }

    /// Returns the file that is open here.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// As it was opened, but for what only the opening is about.
    pub fn flags(&self) -> OFlags {
        OFlags::from_bits_retain(self.flags.load(Ordering::Relaxed))
    }

    /// Changes what can be changed of an open file: O_APPEND, O_DIRECT, O_NONBLOCK.
    pub fn set_flags(&self, flags: OFlags) {
        let changeable = OFlags::APPEND | OFlags::DIRECT | OFlags::NONBLOCK;
        let change = |own: u32| Some(((OFlags::from_bits_retain(own) - changeable) | (flags & changeable)).bits());
        let _ = self.flags.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// Who opened it.
    pub(super) fn creds(&self) -> &Creds {
        &self.creds
    }

    /// EBADF unless it is a file open for writing.
    pub(super) fn may_write(&self) -> Result<()> {
        self.may(true).map(drop)
    }

    pub(super) fn core(&self) -> &FsCore {
        &self.node.core
    }

    pub(super) fn inode(&self) -> &Arc<Inode> {
        &self.node.inode
    }

    /// EBADF if it was not opened so, EISDIR for a directory.
    pub(super) fn may(&self, writes: bool) -> Result<OFlags> {
        let flags = self.flags();
        self.may_as(flags, writes, self.node.kind())
    }

    fn may_as(&self, flags: OFlags, writes: bool, kind: FileKind) -> Result<OFlags> {
        let (read, write) = access(flags);
        if flags.contains(OFlags::PATH) || !(if writes { write } else { read }) {
            return Err(Errno::BADF.into());
        }
        match kind {
            FileKind::File => Ok(flags),
            FileKind::Dir => Err(Errno::ISDIR.into()),
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// Reads from a place; less than asked for only at the end.
    ///
    /// # Errors
    /// EBADF, EISDIR; EIO for a block that is damaged or cannot be read.
    pub fn read_at(&self, to: &mut [u8], at: u64) -> Result<usize> {
        let flags = self.flags();
        if flags.contains(OFlags::DIRECT) {
            return self.read_past_cache(to, at);
        }
        let state = self.inode().state.read();
        self.may_as(flags, false, state.record.kind)?;
        is_offset(at, to.len())?;
        let most = self.core().settings.read_ahead_bytes as u64 / BLOCK;
        let done = self.core().read(&state, at, to, self.read_ahead.blocks(at, to.len() as u64, most))?;
        let due = !to.is_empty() && self.is_due(&state.record);
        drop(state);
        if due {
            self.accessed();
        }
        Ok(done)
    }

    fn read_past_cache(&self, to: &mut [u8], at: u64) -> Result<usize> {
        self.may(false)?;
        is_offset(at, to.len())?;
        let done = self.read_direct(to, at)?;
        if !to.is_empty() {
            self.accessed();
        }
        Ok(done)
    }

    /// Past the cache. Blocks are read whole, for their checksums: what is no whole block costs a copy.
    fn read_direct(&self, to: &mut [u8], at: u64) -> Result<usize> {
        let left = self.inode().state.read().record.size.saturating_sub(at);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(to.len());
        if len == 0 {
            return Ok(0);
        }
        let (skip, end) = (at % BLOCK, at + len as u64);
        if skip == 0 && (to.len() as u64).is_multiple_of(BLOCK) {
            return self.read_direct_blocks(to, at);
        }
        let mut room = vec![0; usize::try_from(end.next_multiple_of(BLOCK) - (at - skip)).map_err(|_| Errno::NOMEM)?];
        let done = self.read_direct_blocks(&mut room, at - skip)?.saturating_sub(skip as usize).min(to.len());
        to[..done].copy_from_slice(&room[skip as usize..skip as usize + done]);
        Ok(done)
    }

    fn read_direct_blocks(&self, to: &mut [u8], at: u64) -> Result<usize> {
        let core = self.core();
        loop {
            {
                let state = self.inode().state.read();
                if let RecordBody::Inline(_) = state.record.body {
                    return core.read(&state, at, to, 0);
                }
                if state.pages.is_empty() {
                    return core.read_direct(&state, at, to);
                }
            }
            let _names = core.locks.shared();
            core.write_back(self.inode(), &mut self.inode().state.write())?;
        }
    }

    /// Whether a read is to be remembered.
    pub(super) fn is_due(&self, record: &Record) -> bool {
        let core = self.core();
        if core.settings.atime != Atime::Relative || core.read_only || self.flags().contains(OFlags::NOATIME) {
            return false;
        }
        record.atime <= record.mtime || record.atime <= record.ctime || core.now().sec - record.atime.sec >= DAY
    }

    fn accessed(&self) {
        if self.is_due(&self.inode().state.read().record) {
            let now = self.core().now();
            // Nobody waits for others to remember a read: one of the next readers does it.
            let Some(mut state) = self.inode().state.try_write() else { return };
            state.record.atime = now;
            state.changed = true;
            self.core().list(self.inode(), &mut state);
        }
    }

    /// Writes at a place, or at the end with O_APPEND; returns how much, which is less than asked for only if there is no more room.
    ///
    /// # Errors
    /// EBADF, EFBIG, ENOSPC; EIO.
    pub fn write_at(&self, from: &[u8], at: u64) -> Result<usize> {
        self.write_from(from, Some(at)).map(|(done, _)| done)
    }

    fn write_from(&self, from: &[u8], at: Option<u64>) -> Result<(usize, u64)> {
        let (done, end, rest) = self.write_begun(from, at)?;
        match rest {
            PendingWrite::Nothing => {}
            PendingWrite::Place => drop(self.placed(false)?),
            PendingWrite::Sync => {
                // The sync reports a failure.
                let _ = self.placed(true);
                self.sync()?;
            }
        }
        Ok((done, end))
    }

    /// Up to what O_DIRECT and O_SYNC require.
    pub(super) fn write_begun(&self, from: &[u8], at: Option<u64>) -> Result<(usize, u64, PendingWrite)> {
        let flags = self.may(true)?;
        at.map_or(Ok(()), |at| is_offset(at, from.len()))?;
        let at = at.filter(|_| !flags.contains(OFlags::APPEND));
        let (done, end) = self.core().write(self.inode(), at, from, &self.creds)?;
        let rest = if done == 0 {
            PendingWrite::Nothing
        } else if flags.intersects(OFlags::SYNC | OFlags::DSYNC) {
            PendingWrite::Sync
        } else if flags.contains(OFlags::DIRECT) {
            PendingWrite::Place
        } else {
            PendingWrite::Nothing
        };
        Ok((done, end, rest))
    }

    /// Brings it to the device, past the cache if it was opened so; returns what has to be durable for it to be. `synced`: the caller
    /// waits until it is.
    pub(super) fn placed(&self, synced: bool) -> Result<Lsn> {
        let (core, keep) = (self.core(), !self.flags().contains(OFlags::DIRECT));
        if self.node.kind() == FileKind::Dir {
            return Ok(core.last());
        }
        let _names = core.locks.shared();
        core.write_back_beside_readers(self.inode(), keep, synced)
    }

    /// Reads on from where the handle is.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read(&self, to: &mut [u8]) -> Result<usize> {
        let mut at = self.at.lock();
        let done = self.read_at(to, *at)?;
        *at += done as u64;
        Ok(done)
    }

    /// Writes where the handle is, or at the end with O_APPEND.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn write(&self, from: &[u8]) -> Result<usize> {
        let mut at = self.at.lock();
        let (done, end) = self.write_from(from, Some(*at))?;
        if done > 0 {
            *at = end;
        }
        Ok(done)
    }

    /// Goes elsewhere; returns where that is. In a directory: to a place that [`File::read_dir`] told of it, with any handle, or 0.
    ///
    /// # Errors
    /// EINVAL before the begin, ENXIO behind the last data.
    pub fn seek(&self, to: SeekFrom) -> Result<u64> {
        if self.flags().contains(OFlags::PATH) {
            return Err(Errno::BADF.into());
        }
        let mut at = self.at.lock();
        let size = || self.node.stat().map(|stat| stat.size);
        let state = || self.inode().state.read();
        let by =
            |from: u64, by: i64| from.checked_add_signed(by).filter(|at| i64::try_from(*at).is_ok()).ok_or(Error::Refused(Errno::INVAL));
        let new = match to {
            SeekFrom::Start(to) => to,
            SeekFrom::Current(offset) => by(*at, offset)?,
            SeekFrom::End(offset) => by(size()?, offset)?,
            SeekFrom::Data(_) | SeekFrom::Hole(_) if self.node.kind() == FileKind::Dir => return Err(Errno::INVAL.into()),
            SeekFrom::Data(from) => self.core().seek_data(&state(), from)?,
            SeekFrom::Hole(from) => self.core().seek_hole(&state(), from)?,
        };
        let most = if self.node.kind() == FileKind::Dir { i64::MAX as u64 } else { SIZE_MAX };
        if new > most {
            return Err(Errno::INVAL.into());
        }
        *at = new;
        Ok(new)
    }

    /// Everything of the file is on the device when this returns 0, and so is its name. What failed before, also in the background,
    /// is reported once by every handle.
    ///
    /// # Errors
    /// EBADF; EIO, ENOSPC: what was written may be lost if the power goes; it is still in memory, and the next sync tries again.
    pub fn sync(&self) -> Result<()> {
        self.may_sync()?;
        let core = self.core();
        let outcome = if self.node.kind() == FileKind::Dir {
            core.store.sync(core.last()).map_err(Error::from)
        } else {
            core.sync_file(self.inode())
        };
        self.report_error().and(outcome)
    }

    /// EBADF if it was opened for its name alone.
    pub(super) fn may_sync(&self) -> Result<()> {
        if self.flags().contains(OFlags::PATH) { Err(Errno::BADF.into()) } else { Ok(()) }
    }

    /// Returns the error of earlier writes that this handle has not reported yet, as [`File::sync`] does; for the caller of close.
    ///
    /// # Errors
    /// The error of the write-back.
    pub fn take_error(&self) -> Result<()> {
        self.report_error()
    }

    /// Reports each error of a write-back once to this handle.
    pub(super) fn report_error(&self) -> Result<()> {
        let seen = self.seen.load(Ordering::SeqCst);
        if self.inode().state.read().errors == seen {
            return Ok(());
        }
        let mut state = self.inode().state.write();
        self.seen.store(state.errors, Ordering::SeqCst);
        state.reported = state.errors;
        let why = Box::new(state.error.clone().expect("counted"));
        Err(Error::WriteBack { ino: self.inode().ino, why })
    }

    /// Sets the size.
    ///
    /// # Errors
    /// EINVAL if it is not open for writing, EFBIG.
    pub fn set_len(&self, size: u64) -> Result<()> {
        let flags = self.flags();
        if i64::try_from(size).is_err() {
            return Err(Errno::INVAL.into());
        }
        if flags.contains(OFlags::PATH) {
            return Err(Errno::BADF.into());
        }
        if !access(flags).1 || self.node.kind() != FileKind::File {
            return Err(Errno::INVAL.into());
        }
        self.core().truncate(self.inode(), size, &self.creds)
    }

    /// Promises that so many blocks can be written to this file, whatever others write; the promise is used up by pages as they are
    /// written, and ends when the file is not in use any more. It is not a place in the file, and a crash ends it.
    ///
    /// # Errors
    /// ENOSPC: the promise is what it was.
    pub fn reserve(&self, blocks: u64) -> Result<()> {
        self.core().promise(&mut self.inode().state.write(), blocks)
    }

    /// fallocate(2): sets blocks aside, punches holes, zeroes.
    ///
    /// # Errors
    /// EBADF, EINVAL, EFBIG, EOPNOTSUPP, ENOSPC.
    pub fn allocate(&self, mode: FallocateFlags, at: u64, len: u64) -> Result<()> {
        let flags = self.flags();
        if flags.contains(OFlags::PATH) {
            return Err(Errno::BADF.into());
        }
        if len == 0 || i64::try_from(at).is_err() || i64::try_from(len).is_err() {
            return Err(Errno::INVAL.into());
        }
        let known = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE;
        let alone = !mode.contains(FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE);
        let keeps = !mode.contains(FallocateFlags::PUNCH_HOLE) || mode.contains(FallocateFlags::KEEP_SIZE);
        if !known.contains(mode) || !alone || !keeps {
            return Err(Errno::OPNOTSUPP.into());
        }
        if !access(flags).1 {
            return Err(Errno::BADF.into());
        }
        let core = self.core();
        let _names = core.locks.shared();
        let mut state = self.inode().state.write();
        core.allocate(self.inode(), &mut state, mode, at, len)?;
        let now = core.now();
        (state.record.mtime, state.record.ctime) = (now, now);
        state.record.mode = super::creds::mode_written(&state.record, &self.creds);
        Ok(())
    }
}

/// EINVAL for what does not end at an offset of the kernel's.
fn is_offset(at: u64, len: usize) -> Result<()> {
    if at.checked_add(len as u64).is_some_and(|end| i64::try_from(end).is_ok()) { Ok(()) } else { Err(Errno::INVAL.into()) }
}
