//! Control groups version 2: where they are and what is available.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::Lab;
use super::undo::{PREFIX, UndoStep};

/// Root of the control groups; version 1 controllers have directories in it.
pub const ROOT: &str = "/sys/fs/cgroup";

/// Returns whether a controller is available, possibly as version 1.
pub fn has(controller: &str) -> bool {
    names(Path::new(ROOT), "cgroup.controllers", controller)
}

/// Returns why an available controller cannot be used.
pub fn why_not(controller: &str) -> Option<String> {
    let read_only = rustix::fs::statvfs(ROOT).is_ok_and(|stat| stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
    why_not_in(Path::new(ROOT), controller, read_only)
}

fn why_not_in(root: &Path, controller: &str, read_only: bool) -> Option<String> {
    // In a container the apparent root has a type, and cannot enable a controller while it contains processes.
    let passed_on = names(root, "cgroup.subtree_control", controller) || !root.join("cgroup.type").exists();
    (read_only || !passed_on).then(|| {
        let why = if read_only { "is read-only" } else { "does not pass it on" };
        format!("the controller {controller} cannot be used: {} {why}, as in a container: run it on the machine itself", root.display())
    })
}

fn names(dir: &Path, file: &str, controller: &str) -> bool {
    std::fs::read_to_string(dir.join(file)).is_ok_and(|all| all.split_whitespace().any(|one| one == controller))
}

/// Creates a group with this controller below the root; its name ends with `end`.
pub fn make(lab: &mut Lab<'_>, controller: &str, end: &str) -> anyhow::Result<PathBuf> {
    let root = Path::new(ROOT);
    if !names(root, "cgroup.subtree_control", controller) {
        // Written alone: one unknown controller makes the kernel reject the whole line. It stays enabled, as others may use it when this
        // run ends.
        let file = root.join("cgroup.subtree_control");
        std::fs::write(&file, format!("+{controller}")).with_context(|| format!("{}", file.display()))?;
    }
    let group = root.join(format!("{PREFIX}{}{end}", std::process::id()));
    if !group.exists() {
        lab.will(UndoStep::Group(group.clone()))?;
        std::fs::create_dir(&group).with_context(|| format!("{}", group.display()))?;
    }
    Ok(group)
}

/// Moves processes into a group.
pub fn enter(group: &Path, pids: &[u32]) -> anyhow::Result<()> {
    let file = group.join("cgroup.procs");
    pids.iter().try_for_each(|pid| std::fs::write(&file, pid.to_string()).with_context(|| format!("{}", file.display())))
}

/// Sets one limit of a group.
pub fn set(group: &Path, name: &str, words: &str) -> anyhow::Result<()> {
    let file = group.join(name);
    ensure!(file.exists(), "this kernel's control groups have no {name}: it was built without");
    std::fs::write(&file, words).with_context(|| format!("{}", file.display()))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_containers_groups_are_distinguished() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str, words: &str| std::fs::write(dir.path().join(name), words).expect("written");
        let why = |read_only| why_not_in(dir.path(), "io", read_only);
        file("cgroup.controllers", "cpu io\n");
        file("cgroup.subtree_control", "\n");
        assert_eq!(why(false), None);
        assert!(why(true).is_some_and(|why| why.contains("is read-only")));
        file("cgroup.type", "domain\n");
        assert!(why(false).is_some_and(|why| why.contains("does not pass it on")));
        file("cgroup.subtree_control", "cpu io\n");
        assert_eq!(why(false), None);
    }
}
