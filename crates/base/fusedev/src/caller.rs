//! The process that made a request, and what it may do to a file.

use rustix::thread::CapabilitySet;

use crate::Identity;

/// Describes the process that made a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User ID that the kernel checks file access with.
    pub uid: u32,
    /// Group ID that the kernel checks file access with.
    pub gid: u32,
    /// Process, for its supplementary groups and its capabilities.
    pub pid: u32,
}

/// The owner, the group and the mode of a file, which decide about access to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// User ID of the owner.
    pub uid: u32,
    /// Group ID of the file.
    pub gid: u32,
    /// File type and permission bits.
    pub mode: u32,
}

/// The set-user-ID bit of a file's mode.
pub const SET_UID: u32 = 0o4000;
/// The set-group-ID bit of a file's mode.
pub const SET_GID: u32 = 0o2000;

impl Caller {
    /// Returns the identity for [`Identity::act`].
    pub fn identity(self) -> Identity {
        Identity { uid: self.uid, gid: self.gid }
    }

    /// Returns whether the caller is root, who may keep set-ID bits on files that it writes.
    pub fn is_root(self) -> bool {
        self.uid == 0
    }

    /// Returns whether the mode lets a caller other than the owner write.
    pub fn may_write_by_mode(self, file: Permissions) -> bool {
        let bit = if self.in_group(file.gid) { 0o020 } else { 0o002 };
        file.mode & bit != 0
    }

    /// Returns whether the caller owns a file, or has this capability over it, in its user namespace if that maps the owner and the
    /// group (capable_wrt_inode_uidgid in the kernel).
    pub fn owns_or_has(self, file: Permissions, capability: CapabilitySet) -> bool {
        self.is_root() || self.uid == file.uid || self.has(file, capability)
    }

    /// Returns whether the caller may write a directory itself, which rename(2) requires of a directory that gets another parent.
    /// Access control lists are not considered.
    pub fn may_write_directory(self, dir: Permissions) -> bool {
        let by_mode = || if self.uid == dir.uid { dir.mode & 0o200 != 0 } else { self.may_write_by_mode(dir) };
        self.is_root() || by_mode() || self.has(dir, CapabilitySet::DAC_OVERRIDE)
    }

    /// Returns whether the present mode lets the caller open a file. The check is weaker than the kernel's, which precedes it with the
    /// attributes that it has cached: it finds files that became private since. To the owner a file is open. Execution is reading, and
    /// with an access control list the group's bits are the most that the list grants.
    pub fn may_still_open(self, file: Permissions, read: bool, write: bool) -> bool {
        let granted = file.mode | file.mode >> 3;
        let by_mode = (!read || granted & 0o5 != 0) && (!write || granted & 0o2 != 0);
        let by_capability = || self.has(file, CapabilitySet::DAC_OVERRIDE) || !write && self.has(file, CapabilitySet::DAC_READ_SEARCH);
        // A process in a container asks through an overlay with the capabilities of the mounter, over all IDs that the namespace maps.
        let by_container = || self.is_in_our_namespace() == Some(false) && self.has_mapped(file);
        self.is_root() || self.uid == file.uid || by_mode || by_capability() || by_container()
    }

    fn has(self, file: Permissions, capability: CapabilitySet) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        has_capability(&status, capability) && (self.is_in_our_namespace() == Some(true) || self.has_mapped(file))
    }

    /// Returns whether the caller is in the user namespace of this process, or none if that is unknown.
    fn is_in_our_namespace(self) -> Option<bool> {
        let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user")).ok();
        Some(namespace("self")? == namespace(&self.pid.to_string())?)
    }

    /// Returns whether the caller's user namespace maps the owner and the group of a file.
    fn has_mapped(self, file: Permissions) -> bool {
        let maps = |map: &str, id: u32| maps(&std::fs::read_to_string(format!("/proc/{}/{map}", self.pid)).unwrap_or_default(), id);
        maps("uid_map", file.uid) && maps("gid_map", file.gid)
    }

    /// Returns whether `gid` is the caller's group or one of its supplementary groups.
    pub fn in_group(self, gid: u32) -> bool {
        self.gid == gid || supplementary_groups(self.pid).contains(&gid)
    }
}

fn supplementary_groups(pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_whitespace().filter_map(|gid| gid.parse().ok()).collect()
}

/// Returns whether the effective set in a text of /proc/PID/status has a capability.
fn has_capability(status: &str, capability: CapabilitySet) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or_default();
    u64::from_str_radix(line.trim(), 16).is_ok_and(|set| set & capability.bits() != 0)
}

/// Returns whether an ID is in a map of user_namespaces(7): inside, outside, count.
fn maps(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1).map(str::parse::<u64>);
        let (Some(Ok(outside)), Some(Ok(count))) = (fields.next(), fields.next()) else { return false };
        (outside..outside.saturating_add(count)).contains(&id.into())
    })
}

/// Returns the permission bits of a file after a write by somebody other than root. Without execution by the group a set-group-ID bit
/// has no effect, and members of the group keep it.
pub fn without_set_id(mode: u32, is_member: bool) -> u32 {
    let taken = if mode & 0o010 != 0 || !is_member { SET_UID | SET_GID } else { SET_UID };
    mode & 0o7777 & !taken
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_caller_has_capabilities_over_what_its_namespace_maps() {
        let status = "Name:\tx\nCapEff:\t0000000000000008\n";
        assert!(has_capability(status, CapabilitySet::FOWNER) && !has_capability(status, CapabilitySet::CHOWN));
        assert!(!has_capability("", CapabilitySet::FOWNER));
        let map = "         0       1000          1\n         1     100000      65536\n";
        assert!(maps(map, 1000) && maps(map, 100_000) && maps(map, 165_535));
        assert!(!maps(map, 0) && !maps(map, 1001) && !maps(map, 165_536) && !maps("", 0) && !maps("0 -1 x", 0));
        let me = Caller { uid: 4242, gid: 4242, pid: 0 };
        let file = Permissions { uid: 4242, gid: 0, mode: 0 };
        assert!(me.owns_or_has(file, CapabilitySet::FOWNER));
        assert!(!me.owns_or_has(Permissions { uid: 0, ..file }, CapabilitySet::FOWNER));
    }

    #[test]
    fn a_file_that_became_private_is_open_to_its_owner_only() {
        let file = |mode: u32| Permissions { mode: 0o100_000 | mode, uid: 1, gid: 1 };
        let stranger = Caller { uid: 4242, gid: 4242, pid: 0 };
        let may =
            |mode: u32| [(true, false), (false, true), (true, true)].map(|(read, write)| stranger.may_still_open(file(mode), read, write));
        assert_eq!(may(0o600), [false; 3]);
        assert_eq!((may(0o644), may(0o711), may(0o640)), ([true, false, false], [true, false, false], [true, false, false]));
        assert_eq!((may(0o622), may(0o666)), ([false, true, false], [true; 3]));
        assert!(Caller { uid: 1, ..stranger }.may_still_open(file(0), true, true));
        assert!(Caller { uid: 0, ..stranger }.may_still_open(file(0), true, true));
    }

    #[test]
    fn set_gid_without_group_execute_stays_to_the_group() {
        assert_eq!(without_set_id(0o106_755, true), 0o755);
        assert_eq!(without_set_id(0o102_644, true), 0o2644);
        assert_eq!(without_set_id(0o103_644, false), 0o1644);
    }
}
