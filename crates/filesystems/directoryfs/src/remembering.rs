//! What is remembered when the file system has replied, and when this mount changes something.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};

use fusedev::Caller;
use rustix::io::Errno;

use crate::cache::FileCache;
use crate::directory::{DirectoryFs, open_name};
use crate::identity::InodeId;
use crate::nodes::Node;
use crate::remembered::{Moment, Target, XattrSet};
use crate::{Result, Stat};

impl<C: FileCache> DirectoryFs<C> {
    /// Runs a call that reads, as [`DirectoryFs::also_as_caller`] does. The call gets the moment after which it reads; none when it runs as
    /// the caller: what the file system shows to one user only is not remembered.
    pub(crate) fn read_as<T>(&self, caller: Caller, mut call: impl FnMut(Option<Moment>) -> Result<T>) -> Result<T> {
        let mut moment = self.moment();
        self.also_as_caller(caller, || call(moment.take()))
    }

    /// Returns whether an inode is on the file system of the top directory. One that is mounted below may be a user's, who decides what it
    /// shows to whom: nothing of it is remembered.
    pub(crate) fn is_on_top(&self, id: InodeId) -> bool {
        id.dev == self.nodes.root_id().dev
    }

    /// Remembers what a name stands for, which was read after `since`.
    pub(crate) fn remember_name(&self, dir: InodeId, name: &OsStr, target: Target, since: Option<Moment>) {
        let is_below = matches!(target, Target::Inode(id) if !self.is_on_top(id)) || !self.is_on_top(dir);
        if let (Some(remembered), Some(since), false) = (&self.remembered, since, is_below) {
            remembered.set_name(dir, name, target, since);
        }
    }

    /// Remembers attributes, which were read after `since`, of a file that nobody writes.
    pub(crate) fn remember_attributes(&self, node: &Node, stat: &Stat, since: Option<Moment>) {
        let id = node.id();
        if let (Some(remembered), Some(since)) = (&self.remembered, since)
            && self.is_on_top(id)
            && !self.has_writers(node.number())
        {
            remembered.set_attributes(id, stat, since);
            self.remember_data_key(id, node.as_fd(), stat, since);
        }
    }

    /// Remembers that this process may read an open file, and by which number the cache knows its data, if its attributes are remembered.
    /// Where a server decides who may read, what others have read is not given to a user whom it might refuse.
    pub fn remember_readable(&self, file: BorrowedFd<'_>, key: u64) {
        let Some(remembered) = &self.remembered else { return };
        let moment = remembered.moment();
        if let Ok(stat) = Stat::of(file) {
            remembered.add_to(InodeId::of(&stat), moment, |file| file.data_key = Some(key));
        }
    }

    /// Remembers by which number the cache knows the data of a file, whose attributes are remembered.
    pub(crate) fn remember_data_key(&self, id: InodeId, file: BorrowedFd<'_>, stat: &Stat, since: Moment) {
        let Some(remembered) = self.remembered.as_ref().filter(|_| stat.is_file()) else { return };
        let is_known = remembered.of_file(id, |file| file.data_key).is_some();
        if let Some(key) = (!is_known).then(|| self.cache.data_key(file)).flatten() {
            remembered.add_to(id, since, |file| file.data_key = Some(key));
        }
    }

    /// Returns the present moment, if names are remembered.
    pub(crate) fn moment(&self) -> Option<Moment> {
        self.remembered.as_ref().map(|remembered| remembered.moment())
    }

    /// Forgets the attributes of an inode that was changed.
    ///
    /// The front end calls this after each change of file data.
    pub fn forget_attributes(&self, number: u64) {
        if let Some(remembered) = &self.remembered
            && let Some(record) = self.nodes.known(number)
        {
            remembered.forget_attributes(record.id());
        }
    }

    /// Notes a change of a name by this mount; `target` if it is known what the name stands for now. Returns what it stood for.
    pub(crate) fn name_changed(&self, dir: &Node, name: &OsStr, target: Option<Target>) -> Option<InodeId> {
        let remembered = self.remembered.as_ref().filter(|_| self.is_on_top(dir.id()))?;
        remembered.change_name(dir.id(), name, target)
    }

    /// Keeps a file open that a call is about to take a name from, as a program may have it open without that the file is open below.
    pub(crate) fn hold_named(&self, caller: Caller, named: Option<InodeId>) -> Option<Node> {
        let number = self.nodes.number_of_id(named?)?;
        self.node(caller, number).ok()
    }

    /// Notes that an inode is new: what is remembered of it is of a removed one that had its number.
    pub(crate) fn note_new(&self, id: InodeId) {
        if let Some(remembered) = &self.remembered {
            remembered.forget(id);
        }
    }

    /// Notes that this mount has made a name, or has found out that what is remembered of it is wrong.
    pub(crate) fn note_name_made<T>(&self, dir: &Node, name: &OsStr, made: &Result<T>) {
        let target = made.is_ok().then_some(Target::Unread);
        self.forget_inode(self.name_changed(dir, name, target));
    }

    /// Notes that this mount has removed a name, or has found out that what is remembered of it is wrong.
    pub(crate) fn note_name_removed<T>(&self, dir: &Node, name: &OsStr, removed: &Result<T>) {
        let target = removed.is_ok().then_some(Target::Absent);
        self.forget_inode(self.name_changed(dir, name, target));
    }

    /// Returns the inode that a name stands for, if names are remembered: also one whose name is not, as it may have others.
    pub(crate) fn inode_named(&self, caller: Caller, dir: &Node, name: &OsStr) -> Option<InodeId> {
        self.remembered.as_ref()?.target(dir.id(), name).or_else(|| {
            let open = || self.also_as_caller(caller, || open_name(dir.as_fd(), name));
            let file = self.nodes.with_descriptors(open).ok()?;
            Some(InodeId::of(&Stat::of(file.as_fd()).ok()?))
        })
    }

    /// Forgets the attributes of an inode whose names or links have changed.
    pub(crate) fn forget_inode(&self, id: Option<InodeId>) {
        if let (Some(remembered), Some(id)) = (&self.remembered, id) {
            remembered.forget_attributes(id);
        }
    }

    /// Notes a rename by this mount. `is_moved`: `old` has become `new`; else nothing is known of both.
    pub(crate) fn note_renamed(&self, (old, old_name): (&Node, &OsStr), (new, new_name): (&Node, &OsStr), is_moved: bool) {
        let Some(remembered) = &self.remembered else { return };
        // Both names stay if they are two of one file.
        let moved = remembered.target(old.id(), old_name).filter(|id| is_moved && remembered.has_one_name(*id));
        let was_old = self.name_changed(old, old_name, moved.map(|_| Target::Absent));
        let was_new = self.name_changed(new, new_name, moved.map(Target::Inode));
        self.forget_inode(was_old);
        self.forget_inode(was_new);
    }

    /// Returns the target of a symbolic link that is remembered.
    pub(crate) fn known_link(&self, number: u64) -> Option<Vec<u8>> {
        let id = self.nodes.known(number)?.id();
        self.remembered.as_ref()?.of_file(id, |file| file.link.as_deref().map(<[u8]>::to_vec))
    }

    /// Remembers the target of a symbolic link, which was read after `since`.
    pub(crate) fn remember_link(&self, node: &Node, target: &[u8], since: Option<Moment>) {
        if let (Some(remembered), Some(since)) = (&self.remembered, since) {
            remembered.add_to(node.id(), since, |file| file.link = Some(target.into()));
        }
    }

    /// Returns the error that a question for an extended attribute of a file had before.
    pub(crate) fn known_xattr_error(&self, number: u64, asked: XattrSet) -> Option<Errno> {
        let remembered = self.remembered.as_ref()?;
        let id = self.nodes.known(number)?.id();
        remembered.of_file(id, |file| match () {
            () if file.absent_xattrs.contains(asked) => Some(Errno::NODATA),
            () if file.unsupported_xattrs.contains(asked) => Some(Errno::OPNOTSUPP),
            () => None,
        })
    }

    /// Remembers that a file has no such extended attribute, which was read after `since`.
    pub(crate) fn remember_xattr_error(&self, node: &Node, asked: XattrSet, error: Errno, since: Option<Moment>) {
        let (Some(remembered), Some(since)) = (&self.remembered, since) else { return };
        remembered.add_to(node.id(), since, |file| match error {
            Errno::NODATA => file.absent_xattrs.add(asked),
            Errno::OPNOTSUPP => file.unsupported_xattrs.add(asked),
            _ => {}
        });
    }
}
