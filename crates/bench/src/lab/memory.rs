//! A control group with little memory, for programs that enter it.

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::Lab;
use super::undo::{PREFIX, Undo};

const V1: &str = "/sys/fs/cgroup/memory";
const V2: &str = "/sys/fs/cgroup";

/// What is wrong with them here.
pub fn why_not() -> Option<String> {
    let v2 = std::fs::read_to_string(Path::new(V2).join("cgroup.controllers"));
    let there = own_v1().join("memory.limit_in_bytes").exists() || v2.is_ok_and(|all| all.split_whitespace().any(|one| one == "memory"));
    (!there).then(|| "no control group here limits memory: mount the controller memory".into())
}

/// Our own group: what is below it is within its limits, too.
fn own_v1() -> PathBuf {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.split_once(":memory:")).map_or("/", |(_, path)| path);
    Path::new(V1).join(own.trim_start_matches('/'))
}

/// Whether a group of ours is one of these: its name ends with its size.
pub(super) fn is_one(group: &Path) -> bool {
    let name = group.file_name().unwrap_or_default().to_string_lossy();
    name.strip_prefix(PREFIX).is_some_and(|rest| rest.contains('-'))
}

/// A group of so many MiB; a process that writes its number into `cgroup.procs` is in it.
///
/// # Errors
/// It cannot be made.
pub fn group(lab: &mut Lab<'_>, mib: u64) -> anyhow::Result<PathBuf> {
    let own = own_v1();
    let (above, limit) = if own.join("memory.limit_in_bytes").exists() {
        (own, "memory.limit_in_bytes")
    } else {
        // On already where it was needed before.
        let _ = std::fs::write(Path::new(V2).join("cgroup.subtree_control"), "+io +memory");
        (PathBuf::from(V2), "memory.max")
    };
    let group = above.join(format!("{PREFIX}{}-{mib}", std::process::id()));
    if !group.exists() {
        lab.will(Undo::Group(group.clone()))?;
        std::fs::create_dir(&group).with_context(|| format!("{}", group.display()))?;
    }
    std::fs::write(group.join(limit), (mib << 20).to_string()).with_context(|| format!("{}", group.display()))?;
    Ok(group)
}
