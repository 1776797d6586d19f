//! The process that made a request, and what it may do with a file.

use crate::stat::Stat;

/// As in linux/capability.h.
pub(crate) const CAP_CHOWN: u32 = 0;
const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_DAC_READ_SEARCH: u32 = 2;
pub(crate) const CAP_FOWNER: u32 = 3;

/// Describes the process that made a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// New user ID of the owner.
    pub uid: u32,
    /// New group ID of the file.
    pub gid: u32,
    /// Process, for its supplementary groups.
    pub pid: u32,
}

impl Caller {
    /// May keep set-id bits on files it writes.
    pub(crate) fn privileged(self) -> bool {
        self.uid == 0
    }

    /// Whether the mode lets a user other than the owner write.
    pub(crate) fn may_write(self, stat: &Stat) -> bool {
        let bit = if self.in_group(stat.gid) { 0o020 } else { 0o002 };
        stat.mode & bit != 0
    }

    /// Whether the caller owns a file, or has this capability over it, in its user namespace if that maps the owner and the group
    /// (capable_wrt_inode_uidgid in the kernel).
    pub(crate) fn owns_or_may(self, stat: &Stat, capability: u32) -> bool {
        self.privileged() || self.uid == stat.uid || self.may(stat, capability)
    }

    /// Whether the caller may write a directory itself, as rename(2) asks of one that gets another parent. (What an access control list
    /// grants beyond the mode is the kernel's business.)
    pub(crate) fn may_write_directory(self, stat: &Stat) -> bool {
        let own = || if self.uid == stat.uid { stat.mode & 0o200 != 0 } else { self.may_write(stat) };
        self.privileged() || own() || self.may(stat, CAP_DAC_OVERRIDE)
    }

    /// Whether the mode of now lets the caller open a file. No more than it must: to its owner it is open, and whoever it shuts out, the
    /// kernel shuts out too. Execution is reading, and with an access control list the group's bits are the most that it grants.
    pub(crate) fn may_still_open(self, stat: &Stat, read: bool, write: bool) -> bool {
        let granted = stat.mode | stat.mode >> 3;
        let by_mode = (!read || granted & 0o5 != 0) && (!write || granted & 0o2 != 0);
        let by_capability = || self.may(stat, CAP_DAC_OVERRIDE) || !write && self.may(stat, CAP_DAC_READ_SEARCH);
        // A process in a container asks by an overlay with the capabilities of who made that, over all that the namespace maps.
        let by_container = || self.is_in_our_namespace() == Some(false) && self.has_mapped(stat);
        self.privileged() || self.uid == stat.uid || by_mode || by_capability() || by_container()
    }

    /// Whether the caller has a capability over a file.
    fn may(self, stat: &Stat, capability: u32) -> bool {
        let of_process = |what: &str| std::fs::read_to_string(format!("/proc/{}/{what}", self.pid)).unwrap_or_default();
        if !has_capability(&of_process("status"), capability) {
            return false;
        }
        self.is_in_our_namespace() == Some(true) || self.has_mapped(stat)
    }

    /// Whether the caller is in our user namespace, if that can be found out.
    fn is_in_our_namespace(self) -> Option<bool> {
        let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user")).ok();
        Some(namespace("self")? == namespace(&self.pid.to_string())?)
    }

    /// Whether the caller's user namespace maps the owner and the group of a file.
    fn has_mapped(self, stat: &Stat) -> bool {
        let maps = |map: &str, id: u32| maps(&std::fs::read_to_string(format!("/proc/{}/{map}", self.pid)).unwrap_or_default(), id);
        maps("uid_map", stat.uid) && maps("gid_map", stat.gid)
    }

    /// Whether `gid` is the caller's group or one of its supplementary groups.
    pub fn in_group(self, gid: u32) -> bool {
        self.gid == gid || supplementary_groups(self.pid).contains(&gid)
    }
}

fn supplementary_groups(pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_whitespace().filter_map(|gid| gid.parse().ok()).collect()
}

/// Whether the effective set of /proc/PID/status has a capability.
fn has_capability(status: &str, capability: u32) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or_default();
    u64::from_str_radix(line.trim(), 16).is_ok_and(|set| set >> capability & 1 == 1)
}

/// Whether a user or group ID is in a map of user_namespaces(7): inside, outside, count.
fn maps(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1).map(str::parse::<u64>);
        let (Some(Ok(outside)), Some(Ok(count))) = (fields.next(), fields.next()) else { return false };
        (outside..outside.saturating_add(count)).contains(&id.into())
    })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_caller_has_capabilities_over_what_its_namespace_maps() {
        let status = "Name:\tx\nCapEff:\t0000000000000008\n";
        assert!(has_capability(status, CAP_FOWNER) && !has_capability(status, CAP_CHOWN) && !has_capability("", CAP_FOWNER));
        let map = "         0       1000          1\n         1     100000      65536\n";
        assert!(maps(map, 1000) && maps(map, 100_000) && maps(map, 165_535));
        assert!(!maps(map, 0) && !maps(map, 1001) && !maps(map, 165_536) && !maps("", 0) && !maps("0 -1 x", 0));
        let me = Caller { uid: 4242, gid: 4242, pid: 0 };
        assert!(me.owns_or_may(&Stat { uid: 4242, ..Stat::default() }, CAP_FOWNER));
        assert!(!me.owns_or_may(&Stat::default(), CAP_FOWNER));
    }

    #[test]
    fn a_file_that_became_private_is_open_to_its_owner_only() {
        let file = |mode: u32| Stat { mode: 0o100_000 | mode, uid: 1, gid: 1, ..Stat::default() };
        let stranger = Caller { uid: 4242, gid: 4242, pid: 0 };
        let may =
            |mode: u32| [(true, false), (false, true), (true, true)].map(|(read, write)| stranger.may_still_open(&file(mode), read, write));
        assert_eq!(may(0o600), [false; 3]);
        assert_eq!((may(0o644), may(0o711), may(0o640)), ([true, false, false], [true, false, false], [true, false, false]));
        assert_eq!((may(0o622), may(0o666)), ([false, true, false], [true; 3]));
        assert!(Caller { uid: 1, ..stranger }.may_still_open(&file(0), true, true));
        assert!(Caller { uid: 0, ..stranger }.may_still_open(&file(0), true, true));
    }
}
