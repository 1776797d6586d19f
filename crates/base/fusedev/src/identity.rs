//! The user in whose name a thread works on files.
#![expect(unsafe_code, reason = "calls setfsuid and setfsgid, for which there is no safe wrapper")]

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// A user and a group that own what is created and pay for what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User ID that the kernel checks file access with.
    pub uid: u32,
    /// Group ID that the kernel checks file access with.
    pub gid: u32,
}

/// In place of a user or group: changes nothing, and returns the present one.
const QUERY: u32 = u32::MAX;

impl Identity {
    /// Returns the identity of the process.
    pub fn of_process() -> Identity {
        Identity { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
    }

    /// Runs `work` with the file-system user and group of this identity, on this thread only. New files belong to it, and the file
    /// system counts blocks against its quota and its limits.
    ///
    /// The thread keeps its capabilities: the kernel has checked at the mount what the caller may do, with groups and
    /// capabilities that a daemon does not know. EPERM: the process may not act for others; `work` has not run.
    pub fn act<T>(self, work: impl FnOnce() -> T) -> Result<T, Errno> {
        self.act_without(CapabilitySet::empty(), work)
    }

    /// The same without some capabilities. What the kernel is given meanwhile to write to later (a [`Backing`](crate::Backing)) stays
    /// without them.
    pub fn act_without<T>(self, dropped: CapabilitySet, work: impl FnOnce() -> T) -> Result<T, Errno> {
        let own = Identity::of_process();
        if self == own && dropped.is_empty() {
            return Ok(work());
        }
        if self.uid == QUERY || self.gid == QUERY {
            return Err(Errno::OVERFLOW);
        }
        let restore = Restore { own, capabilities: capabilities(None)? };
        let changed = set_group(self.gid) && set_user(self.uid);
        // The kernel has taken the capabilities that concern files with the change of the user.
        let wanted = CapabilitySets { effective: restore.capabilities.effective - dropped, ..restore.capabilities };
        if !changed || set_capabilities(None, wanted).is_err() {
            return Err(Errno::PERM);
        }
        let done = work();
        drop(restore);
        Ok(done)
    }
}

/// Gives up the right to use reserved blocks and to exceed quotas, for this thread and all that it starts: a daemon that writes for
/// others has no use for it.
pub fn give_up_reserved_resources() -> Result<(), Errno> {
    let CapabilitySets { effective, permitted, inheritable } = capabilities(None)?;
    let resource = CapabilitySet::SYS_RESOURCE;
    set_capabilities(
        None,
        CapabilitySets { effective: effective - resource, permitted: permitted - resource, inheritable: inheritable - resource },
    )
}

/// Gives a thread its own identity back, also when the work panics.
struct Restore {
    own: Identity,
    capabilities: CapabilitySets,
}

impl Drop for Restore {
    fn drop(&mut self) {
        let restored = set_user(self.own.uid) && set_group(self.own.gid) && set_capabilities(None, self.capabilities).is_ok();
        if !restored {
            // Every file that this thread makes from now on would belong to somebody else.
            std::process::abort();
        }
    }
}

/// Whether the thread has this user now.
fn set_user(uid: u32) -> bool {
    // SAFETY: changes a number of this thread and touches no memory.
    unsafe { libc::setfsuid(uid) };
    // SAFETY: the same; as no user has this number it only returns the present one.
    unsafe { libc::setfsuid(QUERY) }.cast_unsigned() == uid
}

/// Whether the thread has this group now.
fn set_group(gid: u32) -> bool {
    // SAFETY: changes a number of this thread and touches no memory.
    unsafe { libc::setfsgid(gid) };
    // SAFETY: the same; as no group has this number it only returns the present one.
    unsafe { libc::setfsgid(QUERY) }.cast_unsigned() == gid
}

#[cfg(test)]
mod test {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use std::path::PathBuf;

    use super::*;

    const SOMEBODY: Identity = Identity { uid: 4242, gid: 4343 };

    /// A directory that goes away with the test.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            let path = std::env::temp_dir().join(format!("hotshelf-identity-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).expect("made");
            Dir(path)
        }

        fn owner_of_new(&self, name: &str) -> (u32, u32) {
            let meta = File::create(self.0.join(name)).expect("made").metadata().expect("stat");
            (meta.uid(), meta.gid())
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn new_files_belong_to_the_identity_and_capabilities_stay() {
        if !rustix::process::geteuid().is_root() {
            assert_eq!(SOMEBODY.act(|| ()), Err(Errno::PERM));
            return;
        }
        let dir = Dir::new("act");
        let own = Identity::of_process();
        let before = capabilities(None).expect("read");
        // The directory is root's: without its capabilities the thread could not make a file there.
        let (owner, during) = SOMEBODY.act(|| (dir.owner_of_new("a"), capabilities(None).expect("read"))).expect("root may");
        assert_eq!(owner, (SOMEBODY.uid, SOMEBODY.gid));
        assert_eq!(during, before);
        assert_eq!(capabilities(None).expect("read"), before);
        assert_eq!(dir.owner_of_new("b"), (own.uid, own.gid));
    }

    #[test]
    fn a_panic_gives_the_thread_its_own_identity_back() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: needs root");
            return;
        }
        let dir = Dir::new("panic");
        let own = Identity::of_process();
        let outcome = std::panic::catch_unwind(|| SOMEBODY.act(|| panic!("in the middle")));
        assert!(outcome.is_err());
        assert_eq!(dir.owner_of_new("after"), (own.uid, own.gid));
    }

    #[test]
    fn capabilities_are_dropped_for_the_work_only() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: needs root");
            return;
        }
        let before = capabilities(None).expect("read");
        let keeps_set_id = || capabilities(None).expect("read").effective.contains(CapabilitySet::FSETID);
        assert_eq!(Identity::of_process().act_without(CapabilitySet::FSETID, keeps_set_id), Ok(false));
        assert_eq!(SOMEBODY.act_without(CapabilitySet::FSETID, keeps_set_id), Ok(false));
        assert_eq!(capabilities(None).expect("read"), before);
        let given_up = std::thread::spawn(|| {
            give_up_reserved_resources().expect("less is always allowed");
            let kept = SOMEBODY.act(|| capabilities(None).expect("read")).expect("root may");
            kept.effective.contains(CapabilitySet::SYS_RESOURCE) || kept.permitted.contains(CapabilitySet::SYS_RESOURCE)
        });
        assert!(!given_up.join().expect("no panic"));
    }

    #[test]
    fn an_unmapped_user_is_nobody() {
        assert_eq!(Identity { uid: u32::MAX, gid: 1 }.act(|| ()), Err(Errno::OVERFLOW));
    }
}
