//! Closing the descriptors of known files, and opening the files again.
//!
//! A file is opened again by its directory and name, or by its file handle, and is then compared: it must be the same inode. A process
//! without CAP_DAC_READ_SEARCH cannot open by handle; there a file that another program has renamed meanwhile is ESTALE, upon which the
//! kernel looks its name up again.

use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, FileType, StatxFlags, statx};
use rustix::io::Errno;
use shm::FileHandle;

use crate::descriptors::{HeldFile, RemovedName};
use crate::directory::open_name;
use crate::identity::InodeId;
use crate::nodes::{DEPTH_MAX, Location, NodeRecord, Nodes, ROOT};
use crate::remembered::{Moment, Target};
use crate::{Result, Stat};

/// How many descriptors are closed at once where the process has none left: the cache and other threads need some, too.
const CLOSED_AT_ONCE: usize = 64;

impl Nodes {
    /// Runs a call that opens files. If the process or the system has no descriptor left, closes unused ones and runs the call again: it
    /// must not have changed anything by then.
    ///
    /// # Errors
    /// Those of the call.
    pub fn with_descriptors<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        // Other threads may take what was closed.
        const TRIES: usize = 16;
        for _ in 0..TRIES {
            match call() {
                Err(Errno::MFILE | Errno::NFILE) if self.close_some() => {}
                outcome => return outcome,
            }
        }
        call()
    }

    /// Closes unused descriptors while the process has few left. `newest` is the last one that was opened: the kernel gives the lowest free
    /// number.
    pub fn keep_reserve(&self, newest: impl AsFd) {
        let number = usize::try_from(newest.as_fd().as_raw_fd()).unwrap_or(0);
        if number >= self.descriptors.reserved_from {
            self.close_some();
        }
    }

    /// Gives a node its descriptor, unless it has one, and closes others beyond the limit.
    pub(crate) fn hold(&self, record: &Arc<NodeRecord>, file: OwnedFd) -> Arc<HeldFile> {
        let file = {
            let mut descriptor = record.descriptor.lock();
            if let Some(held) = descriptor.held() {
                return held;
            }
            let file = descriptor.set(file, &self.descriptors);
            record.remembered.lock().take();
            file
        };
        let mut queue = self.descriptors.queue.lock();
        queue.push_back(record.number);
        if queue.len() > 2 * self.descriptors.count() + 1024 {
            // Most of them are forgotten by now.
            let mut known = HashSet::new();
            queue.retain(|number| known.insert(*number) && self.has_descriptor(*number));
        }
        drop(queue);
        self.close_unused();
        self.keep_reserve(&*file);
        file
    }

    fn has_descriptor(&self, number: u64) -> bool {
        self.record(number).is_some_and(|record| record.descriptor.lock().file.is_some())
    }

    /// Closes unused descriptors beyond the limit.
    fn close_unused(&self) {
        const TRIES: usize = 64;
        self.close_while(TRIES, |_| self.descriptors.count() > self.descriptors.max);
    }

    /// Closes some unused descriptors, whatever the limit. Returns whether it closed any.
    fn close_some(&self) -> bool {
        // Each node has its second chance.
        let tries = 2 * self.descriptors.queue.lock().len();
        self.close_while(tries, |closed| closed < CLOSED_AT_ONCE) > 0
    }

    /// Closes unused descriptors while `is_wanted`, which gets the number of those that it has closed, and returns that number. A node that
    /// was used since the last search has a second chance.
    fn close_while(&self, tries_max: usize, is_wanted: impl Fn(usize) -> bool) -> usize {
        let (mut tries, mut closed) = (0, 0);
        while tries < tries_max && is_wanted(closed) {
            let Some(number) = self.descriptors.queue.lock().pop_front() else { break };
            let Some(record) = self.record(number) else { continue };
            tries += 1;
            let outcome = if record.is_used.swap(false, Ordering::Relaxed) { Closing::Used } else { self.close_if_unused(&record) };
            match outcome {
                Closing::Used => self.descriptors.queue.lock().push_back(number),
                Closing::Closed => closed += 1,
                Closing::WasClosed => {}
            }
        }
        closed
    }

    /// Closes the descriptor of a node that can be recognized when it is opened again.
    fn close_if_unused(&self, record: &NodeRecord) -> Closing {
        let mut descriptor = record.descriptor.lock();
        if descriptor.file.is_none() {
            return Closing::WasClosed;
        }
        let Some(file) = descriptor.unused() else { return Closing::Used };
        // Only the descriptor keeps a file without a name, which a program may open again by its own `O_PATH` descriptor.
        if record.is_removed_by_call.load(Ordering::Relaxed) {
            return Closing::Used;
        }
        let handle = FileHandle::of(file).ok();
        if handle.is_none() && !record.id().is_unique() {
            return Closing::Used;
        }
        descriptor.handle = handle.map(Box::new);
        let file = descriptor.file.take();
        drop(descriptor);
        drop(file);
        Closing::Closed
    }

    /// Opens a node whose descriptor was closed, and its directories.
    pub(crate) fn reopen(&self, record: &Arc<NodeRecord>) -> Result<Arc<HeldFile>> {
        let mut closed = vec![Arc::clone(record)];
        let mut dir = loop {
            let parent = closed.last().map_or(ROOT, |record| record.location.lock().parent);
            if parent == ROOT {
                break self.get(ROOT).map(|root| root.into_file());
            }
            let Some(parent) = self.record(parent).filter(|_| closed.len() < DEPTH_MAX) else { break Err(Errno::STALE) };
            let held = parent.descriptor.lock().held();
            if let Some(file) = held {
                break Ok(file);
            }
            closed.push(parent);
        };
        for record in closed.iter().rev() {
            let file = dir.and_then(|dir| self.open_by_name(record, dir.as_fd())).or_else(|error| self.open_by_handle(record).ok_or(error));
            if file.as_ref().err() == Some(&Errno::STALE) {
                // Another thread may have opened it meanwhile.
                let held = record.descriptor.lock().held();
                if let Some(held) = held {
                    dir = Ok(held);
                    continue;
                }
                self.forget_name(record);
            }
            dir = file.map(|file| self.hold(record, file));
        }
        dir
    }

    fn open_by_name(&self, record: &NodeRecord, dir: BorrowedFd<'_>) -> Result<OwnedFd> {
        let name = record.location.lock().name.clone();
        let moment = self.remembered.as_ref().map(|remembered| remembered.moment());
        let file = match open_name(dir, &name) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Err(Errno::STALE),
            file => file?,
        };
        let stat = Stat::of(file.as_fd())?;
        let (id, found) = (record.id(), InodeId::of(&stat));
        if id == found && (id.is_unique() || record.descriptor.lock().has_handle_of(file.as_fd())) {
            return Ok(file);
        }
        let remembered = record.remembered.lock().clone();
        match remembered {
            // Nobody has seen more of it than what was remembered of this name, and that is still right.
            Some(remembered) if !id.is_unique() && remembered.may_be_same(&stat) => {
                let old = self.set_identity(record, found)?;
                self.note_identity(record, (old, found), moment);
                Ok(file)
            }
            _ => Err(Errno::STALE),
        }
    }

    fn note_identity(&self, record: &NodeRecord, (old, new): (InodeId, InodeId), moment: Option<Moment>) {
        let Some(remembered) = self.remembered.as_ref().filter(|_| old != new) else { return };
        remembered.set_identity(old, new);
        let Location { parent, name } = record.location.lock().clone();
        if let (Some(parent), Some(moment)) = (self.known(parent), moment) {
            remembered.set_name(parent.id(), &name, Target::Inode(new), moment);
        }
    }

    /// Forgets what the name of a file is remembered to stand for, as it does not any more.
    fn forget_name(&self, record: &NodeRecord) {
        let Some(remembered) = &self.remembered else { return };
        let Location { parent, name } = record.location.lock().clone();
        if let Some(parent) = self.known(parent) {
            remembered.forget_name(parent.id(), &name);
        }
    }

    fn open_by_handle(&self, record: &NodeRecord) -> Option<OwnedFd> {
        let on = self.descriptors.by_handle.as_ref()?;
        // A handle is one of its file system; others may be mounted below.
        if record.id().dev != self.root_id().dev {
            return None;
        }
        let handle = *record.descriptor.lock().handle.clone()?;
        let file = handle.open(on).ok()?;
        (InodeId::of(&Stat::of(file.as_fd()).ok()?) == record.id()).then_some(file)
    }

    /// Looks at up to `count` of the files that the kernel knows and nobody has open, and closes the descriptors of those that were removed
    /// below: a descriptor keeps the blocks of a file. Returns those whose name the kernel still has. Later calls look at others.
    pub(crate) fn close_removed(&self, count: usize) -> Vec<RemovedName> {
        let numbers: Vec<u64> = {
            let (queue, mut searched) = (self.descriptors.queue.lock(), self.descriptors.searched.lock());
            let begin = if *searched < queue.len() { *searched } else { 0 };
            let end = queue.len().min(begin + count);
            *searched = end;
            queue.range(begin..end).copied().collect()
        };
        numbers.into_iter().filter_map(|number| self.close_if_removed(&*self.record(number)?)).collect()
    }

    fn close_if_removed(&self, record: &NodeRecord) -> Option<RemovedName> {
        // A call of the kernel may have removed the file, and not have noted it yet. Another search finds what this one leaves.
        let no_removals = self.removals.try_write()?;
        if !record.has_link_count || record.is_removed_by_call.load(Ordering::Relaxed) {
            return None;
        }
        let mut descriptor = record.descriptor.lock();
        // What the kernel knows without asking a server: a server frees the blocks itself.
        let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
        let stat = statx(descriptor.unused()?, c"", flags, StatxFlags::NLINK).ok()?;
        if stat.stx_mask & StatxFlags::NLINK.bits() == 0 || stat.stx_nlink > 0 {
            return None;
        }
        // A process may be in a removed directory, or have a pipe or a device open, which the kernel opens without a request. They have no
        // blocks to speak of.
        let file = if record.kind == FileType::RegularFile { descriptor.file.take() } else { None };
        drop((descriptor, no_removals));
        drop(file);
        let Location { parent, name } = record.location.lock().clone();
        // Another file may have the name: the kernel finds it at its next lookup.
        let is_absent = open_name(self.get(parent).ok()?.as_fd(), &name).err() == Some(Errno::NOENT);
        is_absent.then_some(RemovedName { parent, name, number: record.number })
    }
}

/// The outcome of closing a node's descriptor.
enum Closing {
    /// It was closed.
    Closed,
    /// There was none.
    WasClosed,
    /// It stays open: it is in use, or the file could not be recognized later.
    Used,
}
