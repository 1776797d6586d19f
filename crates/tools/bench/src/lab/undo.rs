//! One undo step. Every step may run twice, or without its action having happened.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};

/// An action to undo, with its object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UndoStep {
    /// A scratch directory with all contents.
    Dir(PathBuf),
    /// A mount on this directory.
    Mount(PathBuf),
    /// A loop device over this file.
    Loop(PathBuf),
    /// A control group; its processes move to the parent group.
    Group(PathBuf),
    /// A value that removes a limit when written to this file.
    Limit(PathBuf, String),
    /// A process and its start time (field 22 of its stat).
    Process(i32, u64),
}

impl fmt::Display for UndoStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UndoStep::Dir(path) => write!(f, "directory {}", path.display()),
            UndoStep::Mount(path) => write!(f, "mount {}", path.display()),
            UndoStep::Loop(path) => write!(f, "loop device of {}", path.display()),
            UndoStep::Group(path) => write!(f, "control group {}", path.display()),
            UndoStep::Limit(path, _) => write!(f, "limit in {}", path.display()),
            UndoStep::Process(pid, _) => write!(f, "process {pid}"),
        }
    }
}

/// Prefix of directories and groups: nothing else is ever removed.
pub const PREFIX: &str = "hotshelf-bench-";

impl UndoStep {
    /// Undoes the step. Returns whether there was anything to undo.
    pub fn run(&self) -> anyhow::Result<bool> {
        match self {
            UndoStep::Dir(path) => remove_dir(path),
            UndoStep::Mount(path) => unmount(path),
            UndoStep::Loop(file) => detach(file),
            UndoStep::Group(path) => remove_group(path),
            UndoStep::Limit(file, word) => {
                let all = file.components().all(|part| part != std::path::Component::ParentDir);
                ensure!(file.starts_with("/sys") && all, "{} is no limit", file.display());
                Ok(std::fs::write(file, word).is_ok())
            }
            UndoStep::Process(pid, began) => Ok(end(*pid, *began)),
        }
    }
}

fn is_ours(path: &Path) -> bool {
    let named = |part: std::path::Component<'_>| part.as_os_str().to_string_lossy().starts_with(PREFIX);
    path.is_absolute() && path.components().any(named) && !path.components().any(|part| part == std::path::Component::ParentDir)
}

fn remove_dir(path: &Path) -> anyhow::Result<bool> {
    ensure!(is_ours(path), "{} is not ours", path.display());
    if !path.exists() {
        return Ok(false);
    }
    ensure!(mounts_below(path).is_empty(), "something is still mounted below {}", path.display());
    std::fs::remove_dir_all(path).with_context(|| format!("{}", path.display()))?;
    Ok(true)
}

/// Returns all mounts at or below the path, last first.
fn mounts_below(path: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let point = |line: &str| line.split(' ').nth(4).map(|word| PathBuf::from(word.replace("\\040", " ")));
    let mut found: Vec<PathBuf> = text.lines().filter_map(point).filter(|point| point.starts_with(path)).collect();
    found.reverse();
    found
}

fn unmount(path: &Path) -> anyhow::Result<bool> {
    ensure!(is_ours(path), "{} is not ours", path.display());
    let mut any = false;
    for point in mounts_below(path) {
        any = true;
        // A process that is ending may hold it briefly.
        let until = Instant::now() + Duration::from_secs(10);
        while !run("umount", &[point.as_os_str()]) {
            let fuse = run("fusermount3", &["-u".as_ref(), point.as_os_str()]);
            if fuse || !mounts_below(path).contains(&point) {
                break;
            }
            if Instant::now() > until {
                let lazily = run("umount", &["-l".as_ref(), point.as_os_str()]);
                ensure!(lazily, "{} is busy", point.display());
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(any)
}

/// Returns the loop devices over the file.
pub fn loops_of(file: &Path) -> Vec<PathBuf> {
    let out = Command::new("losetup").arg("--list").args(["--noheadings", "--raw", "--output", "NAME,BACK-FILE"]).output();
    let Ok(out) = out else { return Vec::new() };
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let wanted = file.to_string_lossy();
    let of = |line: &str| {
        let (name, back) = line.split_once(' ')?;
        (back.trim_end_matches(" (deleted)").replace("\\x20", " ") == wanted).then(|| PathBuf::from(name))
    };
    text.lines().filter_map(of).collect()
}

fn detach(file: &Path) -> anyhow::Result<bool> {
    ensure!(is_ours(file), "{} is not ours", file.display());
    let loops = loops_of(file);
    for device in &loops {
        if !run("losetup", &["-d".as_ref(), device.as_os_str()]) {
            bail!("losetup -d {} fails", device.display());
        }
    }
    Ok(!loops.is_empty())
}

fn remove_group(path: &Path) -> anyhow::Result<bool> {
    ensure!(is_ours(path), "{} is not ours", path.display());
    if !path.exists() {
        return Ok(false);
    }
    let above = path.parent().context("a group has one above")?.join("cgroup.procs");
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        for pid in std::fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default().lines() {
            // A process that ended meanwhile is gone.
            let _ = std::fs::write(&above, pid);
        }
        match std::fs::remove_dir(path) {
            Ok(()) => return Ok(true),
            Err(error) if Instant::now() > until => return Err(error).with_context(|| format!("{}", path.display())),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Returns the start time of a live process.
pub fn began(pid: i32) -> Option<u64> {
    let stat = crate::programs::stat(pid)?;
    let mut words = stat.split_whitespace();
    words.next().filter(|state| *state != "Z")?;
    words.nth(18)?.parse().ok()
}

fn end(pid: i32, when: u64) -> bool {
    let lives = || began(pid) == Some(when);
    let Some(process) = rustix::process::Pid::from_raw(pid).filter(|_| lives()) else { return false };
    for (signal, wait) in [(rustix::process::Signal::TERM, 5), (rustix::process::Signal::KILL, 5)] {
        // It may end by itself meanwhile.
        let _ = rustix::process::kill_process(process, signal);
        let until = Instant::now() + Duration::from_secs(wait);
        while lives() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    true
}

/// Kills programs that work in a scratch directory: those with its path in their arguments or an open file in it. Not this process and not
/// our mounts, which end cleanly by themselves. Returns their process ids.
pub fn end_users(dir: &Path) -> Vec<i32> {
    if !is_ours(dir) {
        return Vec::new();
    }
    let ours = std::fs::read_link("/proc/self/exe").ok();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse::<i32>().ok());
    let is_user = |pid: &i32| {
        let of = PathBuf::from(format!("/proc/{pid}"));
        u32::try_from(*pid) != Ok(std::process::id()) && std::fs::read_link(of.join("exe")).ok() != ours && uses(&of, dir)
    };
    let users: Vec<(i32, u64)> = pids.filter(is_user).filter_map(|pid| Some((pid, began(pid)?))).collect();
    users.into_iter().filter(|(pid, when)| end(*pid, *when)).map(|(pid, _)| pid).collect()
}

fn uses(process: &Path, dir: &Path) -> bool {
    let words = std::fs::read(process.join("cmdline")).unwrap_or_default();
    let named = words.split(|byte| *byte == 0).any(|word| {
        let word = String::from_utf8_lossy(word);
        word.split('=').any(|part| Path::new(part).starts_with(dir))
    });
    let files = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    named || files.filter_map(|file| std::fs::read_link(file.path()).ok()).any(|file| file.starts_with(dir))
}

fn run(program: &str, args: &[&std::ffi::OsStr]) -> bool {
    let program = crate::programs::find(program).unwrap_or_else(|| program.into());
    Command::new(program).args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn only_what_is_ours_is_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let ours = dir.path().join("hotshelf-bench-7");
        std::fs::create_dir_all(ours.join("a")).expect("made");
        assert!(UndoStep::Dir(dir.path().to_owned()).run().is_err());
        assert!(UndoStep::Dir(ours.join("../x")).run().is_err());
        assert!(UndoStep::Dir("hotshelf-bench-7".into()).run().is_err());
        for undo in [
            UndoStep::Mount("/".into()),
            UndoStep::Loop("/etc/passwd".into()),
            UndoStep::Group("/sys/fs/cgroup/blkio".into()),
            UndoStep::Limit(dir.path().join("x"), "1".into()),
            UndoStep::Limit("/sys/../tmp/x".into(), "1".into()),
        ] {
            assert!(undo.run().is_err(), "{undo}");
        }
        assert!(UndoStep::Dir(ours.clone()).run().expect("removed"));
        assert!(!UndoStep::Dir(ours).run().expect("nothing to do"));
    }

    #[test]
    fn who_is_at_work_in_a_directory_of_ours_is_ended() {
        let dir = tempfile::tempdir().expect("a directory");
        let [ours, theirs] = ["hotshelf-bench-7", "theirs"].map(|name| dir.path().join(name));
        let sleeper = |dir: &Path| {
            std::fs::create_dir(dir).expect("made");
            let file = std::fs::File::create(dir.join("file")).expect("made");
            Command::new("sleep").arg("60").stdin(file).spawn().expect("sleep")
        };
        let (mut first, mut second) = (sleeper(&ours), sleeper(&theirs));
        let pid = i32::try_from(first.id()).expect("small");
        let waiter = std::thread::spawn(move || first.wait());
        assert_eq!(end_users(&ours), [pid]);
        assert!(!waiter.join().expect("no panic").expect("waited").success());
        assert!(end_users(&theirs).is_empty());
        assert!(second.try_wait().expect("asked").is_none());
        second.kill().and_then(|()| second.wait()).expect("ended");
    }

    #[test]
    fn a_process_of_another_time_is_left_alone() {
        let me = i32::try_from(std::process::id()).expect("small");
        let when = began(me).expect("I live");
        assert!(!UndoStep::Process(me, when + 1).run().expect("nothing done"));
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
        let pid = i32::try_from(child.id()).expect("small");
        let undo = UndoStep::Process(pid, began(pid).expect("it lives"));
        let waiter = std::thread::spawn(move || child.wait());
        assert!(undo.run().expect("ended"));
        assert!(!waiter.join().expect("no panic").expect("waited").success());
    }
}
