//! What can be called.

use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

use super::async_thread::AsyncThread;
use super::attrs::{SetAttr, Stat, StatFs};
use super::core::{FsCore, HeldInode, ROOT};
use super::creds::Creds;
use super::error::{Error, Result};
use super::file::File;
use super::key::{self, FileItem};
use super::make::NewFile;
use super::name::Name;
use super::node::Node;
use super::open::sane;
use super::open_files::OpenFileCount;
use super::record::{FileKind, Record};
use super::settings::FsSettings;
use super::time::{SetTime, Timestamp};
use super::transaction::Transaction;
use super::walk::WalkResult;
use super::writer::WriteBackThread;
use super::{BLOCKS_MAX, NAME_MAX};
use crate::{BLOCK_BYTES, Batch, Lsn, Store, TreeId};

/// A file system in use. Paths are bytes, relative to a held directory, or absolute: from the root of this file system.
pub struct Fs {
    root: Node,
    /// Started when it is first needed.
    pub(super) later: Mutex<Option<AsyncThread>>,
    /// Ends with it.
    _writer: Option<WriteBackThread>,
}

impl Fs {
    /// Makes the top directory in a store that was just made.
    ///
    /// # Errors
    /// The store's.
    pub fn format(store: &Store, now: Timestamp) -> Result<()> {
        let mut batch = Batch::new();
        let root = Record::new(FileKind::Dir, ROOT, 0o755, (0, 0), now);
        batch.put(TreeId::Files, &key::file(ROOT, FileItem::Record, 0), &root.bytes());
        batch.put(TreeId::Files, &key::file(0, FileItem::Numbers, 0), &(ROOT + 1).to_le_bytes());
        let lsn = store.apply(batch)?;
        Ok(store.sync(lsn)?)
    }

    /// Opens what is in a store, and removes what a crash left; returns also how many files that were. In a store that is read-only
    /// nothing is removed, and what would change anything is EROFS.
    ///
    /// # Errors
    /// The store's; no file system is in it.
    pub fn open(store: Store, settings: FsSettings) -> Result<(Fs, u64)> {
        let core = Arc::new(FsCore::new(store, settings)?);
        let orphans = if core.read_only { 0 } else { core.remove_orphans()? };
        let writer = if core.read_only { None } else { WriteBackThread::start(&core)? };
        let inode = core.hold_dir(&core.root)?.keep();
        Ok((Fs { root: Node { core, inode }, later: Mutex::default(), _writer: writer }, orphans))
    }

    /// Writes back everything and closes the store. Whatever was held has to be let go of before.
    ///
    /// # Errors
    /// EBUSY if something is still held (it is all written back nevertheless); those of the device.
    pub fn close(self) -> Result<()> {
        drop(self.later.lock().take());
        self.sync()?;
        let core = Arc::clone(&self.root.core);
        drop(self);
        let core = Arc::into_inner(core).ok_or(Error::Refused(Errno::BUSY))?;
        Ok(core.store.close()?)
    }

    pub(super) fn core(&self) -> &FsCore {
        &self.root.core
    }

    fn node(&self, held: HeldInode<'_>) -> Node {
        Node { core: Arc::clone(&self.root.core), inode: held.keep() }
    }

    fn base(&self, at: &Node, path: &[u8]) -> Result<Arc<Name>> {
        self.core().base(at, path)
    }

    /// Returns the root directory of the file system.
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// Returns the metadata store of the file system.
    pub fn store(&self) -> &Store {
        &self.core().store
    }

    /// Bytes that were written and are not on the device yet.
    pub fn unwritten_bytes(&self) -> u64 {
        self.core().dirty_pages.load(std::sync::atomic::Ordering::Relaxed) * BLOCK_BYTES as u64
    }

    /// Files that are in use now.
    pub fn in_use(&self) -> usize {
        self.core().table.len()
    }

    // ---- names

    /// Holds what a path leads to. `follow`: through a symbolic link at its end.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, EACCES, ELOOP, ENAMETOOLONG; EIO.
    pub fn lookup(&self, at: &Node, path: &[u8], follow: bool, creds: &Creds) -> Result<Node> {
        self.core().hold_path(&self.base(at, path)?, path, follow, creds).map(|held| self.node(held))
    }

    /// Where a path leads to, from the root, without links and dots.
    ///
    /// # Errors
    /// As [`Fs::lookup`].
    pub fn real_path(&self, at: &Node, path: &[u8], creds: &Creds) -> Result<Vec<u8>> {
        let base = self.base(at, path)?;
        let _names = self.core().locks.shared();
        match self.core().find(&base, path, true, creds)? {
            WalkResult::Dir(name) if name.is_gone() => Err(Errno::NOENT.into()),
            WalkResult::Dir(name) => Ok(name.path()),
            WalkResult::Entry { value: None, .. } => Err(Errno::NOENT.into()),
            WalkResult::Entry { value: Some(value), slash: true, .. } if value.kind() != FileKind::Dir => Err(Errno::NOTDIR.into()),
            WalkResult::Entry { dir, name, .. } => {
                let mut path = dir.path();
                path.extend_from_slice(if dir.is_root() { b"" } else { b"/" });
                path.extend_from_slice(&name);
                Ok(path)
            }
        }
    }

    /// Opens a file, and creates it if the flags request that.
    ///
    /// # Errors
    /// As open(2); ENFILE if as many are open as may be; ENXIO for pipes, sockets and devices, which are no matter of this library.
    pub fn open_at(&self, at: &Node, path: &[u8], flags: OFlags, mode: u16, creds: &Creds) -> Result<File> {
        let (flags, counted) = (sane(flags)?, OpenFileCount::new(&self.root.core)?);
        let held = self.core().open(&self.base(at, path)?, path, flags, mode, creds)?;
        Ok(File::new(self.node(held), flags, creds.clone(), counted))
    }

    /// Opens what is held.
    ///
    /// # Errors
    /// As open(2).
    pub fn open_node(&self, node: &Node, flags: OFlags, creds: &Creds) -> Result<File> {
        let (node, counted) = (node.clone(), OpenFileCount::new(&self.root.core)?);
        node.core.table.hold_again(&node.inode);
        let held = HeldInode { core: &node.core, inode: Arc::clone(&node.inode) };
        drop(node.core.opened(held, flags, creds)?);
        Ok(File::new(node, flags, creds.clone(), counted))
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As mkdir(2).
    pub fn mkdir(&self, at: &Node, path: &[u8], mode: u16, creds: &Creds) -> Result<Node> {
        self.make(at, path, &NewFile::of(FileKind::Dir, mode & 0o1777), creds)
    }

    /// Makes a file, a pipe, a socket or a device (with its number).
    ///
    /// # Errors
    /// As mknod(2).
    pub fn mknod(&self, at: &Node, path: &[u8], kind: FileKind, mode: u16, device: u64, creds: &Creds) -> Result<Node> {
        match kind {
            FileKind::Dir => Err(Errno::PERM.into()),
            FileKind::Symlink => Err(Errno::INVAL.into()),
            _ => self.make(at, path, &NewFile { device, ..NewFile::of(kind, mode) }, creds),
        }
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As symlink(2).
    pub fn symlink(&self, target: &[u8], at: &Node, path: &[u8], creds: &Creds) -> Result<Node> {
        self.make(at, path, &NewFile { target, ..NewFile::of(FileKind::Symlink, 0o777) }, creds)
    }

    fn make(&self, at: &Node, path: &[u8], new: &NewFile<'_>, creds: &Creds) -> Result<Node> {
        self.core().make(&self.base(at, path)?, path, new, creds).map(|held| self.node(held))
    }

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// As readlink(2).
    pub fn readlink(&self, at: &Node, path: &[u8], creds: &Creds) -> Result<Vec<u8>> {
        self.core().readlink(&self.base(at, path)?, path, creds)
    }

    /// Where a held symbolic link leads.
    ///
    /// # Errors
    /// EINVAL if it is none; EIO.
    pub fn target(&self, node: &Node) -> Result<Vec<u8>> {
        if node.kind() != FileKind::Symlink {
            return Err(Errno::INVAL.into());
        }
        self.core().target(&self.core().record(&node.inode)?.0)
    }

    /// Gives a held file another name.
    ///
    /// # Errors
    /// As link(2).
    pub fn link(&self, node: &Node, at: &Node, path: &[u8], creds: &Creds) -> Result<()> {
        let base = self.base(at, path)?;
        node.core.table.hold_again(&node.inode);
        self.core().link(&HeldInode { core: self.core(), inode: Arc::clone(&node.inode) }, &base, path, creds)
    }

    /// Removes a name.
    ///
    /// # Errors
    /// As unlink(2).
    pub fn unlink(&self, at: &Node, path: &[u8], creds: &Creds) -> Result<()> {
        self.core().unlink(&self.base(at, path)?, path, creds)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As rmdir(2).
    pub fn rmdir(&self, at: &Node, path: &[u8], creds: &Creds) -> Result<()> {
        self.core().rmdir(&self.base(at, path)?, path, creds)
    }

    /// Renames. A directory of any size takes the same short time.
    ///
    /// # Errors
    /// As renameat2(2), which knows NOREPLACE and EXCHANGE.
    pub fn rename(&self, old_at: &Node, old: &[u8], new_at: &Node, new: &[u8], flags: RenameFlags, creds: &Creds) -> Result<()> {
        let (from, to) = (self.base(old_at, old)?, self.base(new_at, new)?);
        self.core().rename(&from, old, &to, new, flags, creds)
    }

    // ---- attributes

    /// Attributes of what a path leads to.
    ///
    /// # Errors
    /// As stat(2).
    pub fn stat(&self, at: &Node, path: &[u8], follow: bool, creds: &Creds) -> Result<Stat> {
        let base = self.base(at, path)?;
        let _names = self.core().locks.shared();
        let found: WalkResult = self.core().find(&base, path, follow, creds)?;
        self.core().stat_found(&found)
    }

    /// Sets attributes of a held file: chmod, chown, utimens.
    ///
    /// # Errors
    /// EPERM, EACCES; EIO.
    pub fn set_attr(&self, node: &Node, set: &SetAttr, creds: &Creds) -> Result<()> {
        self.core().set_attr(&node.inode, set, creds)
    }

    /// Sets the times of what a path leads to; nothing is looked at if both are left.
    ///
    /// # Errors
    /// As utimensat(2).
    pub fn utimens(&self, at: &Node, path: &[u8], times: [SetTime; 2], follow: bool, creds: &Creds) -> Result<()> {
        if times == [SetTime::Omit; 2] {
            return Ok(());
        }
        let set = SetAttr { atime: times[0], mtime: times[1], ..SetAttr::default() };
        self.set_attr(&self.lookup(at, path, follow, creds)?, &set, creds)
    }

    /// Sets the size of what a path leads to.
    ///
    /// # Errors
    /// As truncate(2).
    pub fn truncate(&self, at: &Node, path: &[u8], size: u64, creds: &Creds) -> Result<()> {
        let node = self.lookup(at, path, true, creds)?;
        self.set_len(&node, size, creds)
    }

    /// Sets the size of a held file.
    ///
    /// # Errors
    /// EISDIR, EINVAL, EACCES, EFBIG.
    pub fn set_len(&self, node: &Node, size: u64, creds: &Creds) -> Result<()> {
        match node.kind() {
            FileKind::File => {}
            FileKind::Dir => return Err(Errno::ISDIR.into()),
            _ => return Err(Errno::INVAL.into()),
        }
        if creds.checks_access() {
            let _names = self.core().locks.shared();
            self.core().may(creds, &self.core().record(&node.inode)?.0, super::creds::WRITE)?;
        }
        self.core().truncate(&node.inode, size, creds)
    }

    /// Whether a path's file may be read (4), written (2), executed (1); 0: is there.
    ///
    /// # Errors
    /// As access(2).
    pub fn access(&self, at: &Node, path: &[u8], wanted: u16, creds: &Creds) -> Result<()> {
        self.core().access(&self.base(at, path)?, path, wanted & 7, creds)
    }

    /// Returns the space and the file counts.
    pub fn stat_fs(&self) -> StatFs {
        let usage = self.store().usage();
        // A node of the tree has room for about 40 small records.
        let (files, files_free) = (usage.nodes.saturating_mul(40), usage.nodes_free.saturating_mul(40));
        let free = self.core().unpromised();
        StatFs { block_bytes: BLOCK_BYTES as u32, blocks: usage.blocks.min(BLOCKS_MAX), free, files, files_free, name_max: NAME_MAX as u32 }
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// As setxattr(2); ENOSPC if all of a file's are more than 4 KiB.
    pub fn set_xattr(&self, node: &Node, name: &[u8], value: &[u8], flags: XattrFlags, creds: &Creds) -> Result<()> {
        self.core().set_xattr(&node.inode, name, Some(value), flags, creds)
    }

    /// Removes one.
    ///
    /// # Errors
    /// As removexattr(2).
    pub fn remove_xattr(&self, node: &Node, name: &[u8], creds: &Creds) -> Result<()> {
        self.core().set_xattr(&node.inode, name, None, XattrFlags::empty(), creds)
    }

    /// The value of one.
    ///
    /// # Errors
    /// As getxattr(2).
    pub fn get_xattr(&self, node: &Node, name: &[u8], creds: &Creds) -> Result<Vec<u8>> {
        self.core().get_xattr(&node.inode, name, creds)
    }

    /// The names of all, each with a zero byte behind it.
    ///
    /// # Errors
    /// EIO.
    pub fn list_xattrs(&self, node: &Node, creds: &Creds) -> Result<Vec<u8>> {
        self.core().list_xattrs(&node.inode, creds)
    }

    // ---- transactions

    /// A transaction without anything in it. Dropped, it has never been.
    pub fn begin(&self) -> Transaction {
        Transaction::default()
    }

    /// All of it happens, and is durable when this returns; or nothing does.
    ///
    /// # Errors
    /// Those of a write or a link: then nothing has happened. EIO while it was made durable: it is seen, but may be lost as a whole.
    pub fn commit(&self, transaction: Transaction) -> Result<()> {
        let lsn = self.apply(&transaction)?;
        self.made_durable(&transaction, lsn)
    }

    /// All of it is seen when this returns, durable after the next sync of any of the files; or nothing is.
    ///
    /// # Errors
    /// As [`Fs::commit`].
    pub fn apply(&self, transaction: &Transaction) -> Result<Lsn> {
        if transaction.is_empty() {
            return Ok(self.core().last());
        }
        self.core().apply_transaction(transaction)
    }

    fn made_durable(&self, transaction: &Transaction, lsn: Lsn) -> Result<()> {
        let core = self.core();
        let outcome = core.store.sync(lsn).map_err(Error::from);
        if let Err(error) = &outcome {
            transaction.each(|inode| core.failed(inode, error));
        }
        outcome
    }

    // ---- durability

    /// Everything that was done before is on the device when this returns (syncfs).
    ///
    /// # Errors
    /// The first of what failed; each file tells its own handles too.
    pub fn sync(&self) -> Result<()> {
        let core = self.core();
        core.write_back_all(true)?;
        Ok(core.store.sync(core.last())?)
    }

    /// Brings to the device what is only in memory, without waiting until it is durable: to be called now and then.
    ///
    /// # Errors
    /// The first of what failed; each file tells its own handles too.
    pub fn write_back(&self) -> Result<()> {
        self.core().write_back_all(false)
    }
}
