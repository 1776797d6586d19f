//! A control group with little memory for measured programs.

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::undo::{PREFIX, UndoStep};
use super::{Lab, group};

const V1: &str = "/sys/fs/cgroup/memory";
const V1_LIMIT: &str = "memory.limit_in_bytes";

/// Returns why memory groups cannot be used here.
pub fn why_not() -> Option<String> {
    if own_v1().join(V1_LIMIT).exists() {
        return None;
    }
    if group::has("memory") {
        return group::why_not("memory");
    }
    Some("no control group here limits memory: mount the controller memory".into())
}

/// Returns our own group, whose limits include its children.
fn own_v1() -> PathBuf {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.split_once(":memory:")).map_or("/", |(_, path)| path);
    Path::new(V1).join(own.trim_start_matches('/'))
}

/// Returns whether a group is one of these, by its name.
pub(super) fn is_one(group: &Path) -> bool {
    let name = group.file_name().unwrap_or_default().to_string_lossy();
    name.strip_prefix(PREFIX).is_some_and(|rest| rest.contains('-'))
}

/// Creates a group with this memory limit; a process enters it by writing its id to `cgroup.procs`.
///
/// # Errors
/// The group cannot be created.
pub fn group(lab: &mut Lab<'_>, mib: u64) -> anyhow::Result<PathBuf> {
    let (own, bytes) = (own_v1(), (mib << 20).to_string());
    if !own.join(V1_LIMIT).exists() {
        let group = group::make(lab, "memory", &format!("-{mib}"))?;
        group::set(&group, "memory.max", &bytes)?;
        return Ok(group);
    }
    let group = own.join(format!("{PREFIX}{}-{mib}", std::process::id()));
    if !group.exists() {
        lab.will(UndoStep::Group(group.clone()))?;
        std::fs::create_dir(&group).with_context(|| format!("{}", group.display()))?;
    }
    std::fs::write(group.join(V1_LIMIT), bytes).with_context(|| format!("{}", group.display()))?;
    Ok(group)
}
