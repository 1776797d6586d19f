//! Reading remembered names and attributes again, in the background.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;

use fusedev::Caller;
use rustix::io::Errno;

use crate::cache::FileCache;
use crate::directory::{DirectoryFs, open_name};
use crate::identity::InodeId;
use crate::listing::read_names_unseen;
use crate::nodes::Node;
use crate::remembered::{Known, Target};
use crate::{Result, Stat};

/// Something that was remembered and is not so any more, by the numbers that the kernel knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A name stands for another file, or for none, or is new.
    Name {
        /// The inode number of the directory.
        parent: u64,
        /// The name in the directory.
        name: OsString,
    },
    /// The attributes of this inode number have changed.
    Attributes(u64),
}

/// Returns whether an error says that the server of a file system does not reply.
pub fn is_of_dead_server(error: Errno) -> bool {
    matches!(
        error,
        Errno::NOTCONN
            | Errno::CONNABORTED
            | Errno::CONNRESET
            | Errno::CONNREFUSED
            | Errno::SHUTDOWN
            | Errno::TIMEDOUT
            | Errno::HOSTDOWN
            | Errno::HOSTUNREACH
            | Errno::NETDOWN
            | Errno::NETUNREACH
    )
}

impl<C: FileCache> DirectoryFs<C> {
    /// Reads a directory again in the background, as something old of it was answered.
    pub(crate) fn check_later(&self, caller: Caller, number: u64) {
        if let Some(remembered) = &self.remembered {
            remembered.checks.add(number, caller);
        }
    }

    /// Waits for a directory of which something old was answered, reads it again and gives what has changed to `each`. Returns false once
    /// [`DirectoryFs::end_checks`] was called, or if nothing is remembered.
    pub fn check_next(&self, each: &mut dyn FnMut(Change)) -> bool {
        let Some(remembered) = &self.remembered else { return false };
        let Some((number, caller)) = remembered.checks.next() else { return false };
        if let Err(error) = self.check(caller, number, each) {
            // It is answered as before, and the next look at it tries again.
            let _ = error;
        }
        true
    }

    /// Ends all calls of [`DirectoryFs::check_next`].
    pub fn end_checks(&self) {
        if let Some(remembered) = &self.remembered {
            remembered.checks.end();
        }
    }

    /// Reads a directory and the attributes of its files again, unless that was done within the time to live.
    fn check(&self, caller: Caller, number: u64, each: &mut dyn FnMut(Change)) -> Result<()> {
        let Some(remembered) = &self.remembered else { return Ok(()) };
        let id = self.nodes.known(number).ok_or(Errno::STALE)?.id();
        if remembered.is_checked(id) {
            return Ok(());
        }
        if !self.is_on_top(id) {
            return Ok(());
        }
        let node = self.node(caller, number)?;
        // Its identity may only be known now.
        let id = node.id();
        let moment = remembered.moment();
        if remembered.set_attributes(id, &node.stat()?, moment) {
            each(Change::Attributes(number));
        }
        let (mut names, is_complete) = remembered.names_to_check(id);
        if is_complete {
            let moment = remembered.moment();
            match self.nodes.with_descriptors(|| read_names_unseen(&node))? {
                Some(listed) => {
                    for name in remembered.set_listing(id, &listed, moment) {
                        each(Change::Name { parent: number, name });
                    }
                    names = listed.into_iter().map(|listed| listed.name).collect();
                }
                None => remembered.set_large(id),
            }
        }
        for name in names {
            self.check_name(&node, &name, each)?;
        }
        remembered.set_checked(id);
        Ok(())
    }

    fn check_name(&self, dir: &Node, name: &OsStr, each: &mut dyn FnMut(Change)) -> Result<()> {
        let Some(remembered) = &self.remembered else { return Ok(()) };
        let parent = dir.number();
        let moment = remembered.moment();
        let looked_at = self.nodes.with_descriptors(|| open_name(dir.as_fd(), name)).and_then(|file| {
            let mut stat = Stat::of(file.as_fd())?;
            let has_newer_data = stat.is_file() && self.correct(file.as_fd(), &mut stat)?;
            Ok((file, stat, has_newer_data))
        });
        let (file, stat, has_newer_data) = match looked_at {
            Err(Errno::NOENT) => {
                if remembered.set_name(dir.id(), name, Target::Absent, moment) {
                    each(Change::Name { parent, name: name.to_owned() });
                }
                return Ok(());
            }
            // The file system does not reply: that says nothing of the name.
            Err(error) if is_of_dead_server(error) => return Err(error),
            // A damaged inode, a mount that may not be entered, or a file that only some users may see: the other names can be read.
            Err(_) => {
                remembered.forget_name(dir.id(), name);
                return Ok(());
            }
            Ok(looked_at) => looked_at,
        };
        if !self.is_on_top(InodeId::of(&stat)) {
            remembered.forget_name(dir.id(), name);
            return Ok(());
        }
        if has_newer_data {
            remembered.forget_attributes(InodeId::of(&stat));
            return Ok(());
        }
        let id = self.identity(dir.id(), name, &stat);
        if remembered.set_name(dir.id(), name, Target::Inode(id), moment) {
            each(Change::Name { parent, name: name.to_owned() });
        }
        let number = self.nodes.number_of_id(id);
        let is_written = number.is_some_and(|number| self.has_writers(number));
        if !is_written {
            let differs = remembered.set_attributes(id, &stat, moment);
            self.remember_data_key(id, file.as_fd(), &stat, moment);
            if let Some(number) = number.filter(|_| differs) {
                each(Change::Attributes(number));
            }
        }
        Ok(())
    }

    /// Returns the identity under which a file is remembered. Where files have no time of birth, a file system may have given another
    /// number to the file since: it is taken for the same if name, type, size and time are.
    fn identity(&self, dir: InodeId, name: &OsStr, stat: &Stat) -> InodeId {
        let now = InodeId::of(stat);
        let known = self.remembered.as_ref().and_then(|remembered| remembered.name(dir, name));
        match known {
            Some(Known { what: Some((id, old)), .. }) if id != now && !id.is_unique() && old.may_be_same(stat) => id,
            _ => now,
        }
    }
}
