//! The program that takes a mount over: the file that this daemon was started from, as it is now.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cachedfs::CacheVersions;
use rustix::fs::MemfdFlags;

use super::VERSION;

/// The hidden command by which a program takes a mount over, or says whether it could.
pub const COMMAND: &str = "takeover";
const CHECK: &str = "--check";
/// How long a program may take to say whether it can take over.
const REPLY_MAX: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(2);

/// The version of this program.
pub const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");

/// The file of a program, and the words it is called with.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    name: OsString,
    /// The words of the first mount, for those who look at the list of processes.
    words: Vec<OsString>,
}

/// A program that can take over.
#[derive(Clone, Debug)]
pub struct CheckedProgram {
    program: Program,
    identity: FileIdentity,
}

/// What changes when a file is replaced or written to.
type FileIdentity = (u64, u64, u64, i64, i64);

fn identity_of(path: &Path) -> std::io::Result<FileIdentity> {
    let found = std::fs::metadata(path)?;
    Ok((found.dev(), found.ino(), found.size(), found.ctime(), found.ctime_nsec()))
}

/// Returns what a program of this version says when it is asked whether it can take over a state of version `format`. The one that asks
/// compares the versions of the cache.
pub fn reply_to_check(format: u32) -> Option<String> {
    let CacheVersions { segment, pages, ssd } = CacheVersions::OWN;
    (format == VERSION).then(|| format!("hotshelf {OWN_VERSION} takes over version {format} with cache {segment} {pages} {ssd}"))
}

/// Returns the versions of the cache in a reply that is consent to the format.
fn cache_versions_in(reply: &str) -> Option<CacheVersions> {
    let (version, versions) = reply.trim_end().strip_prefix("hotshelf ")?.split_once(" takes over version ")?;
    let mut numbers = versions.strip_prefix(&format!("{VERSION} with cache "))?.split(' ').map(|number| number.parse().ok());
    let mut next = || numbers.next().flatten();
    let versions = CacheVersions { segment: next()?, pages: next()?, ssd: next()? };
    (!version.is_empty() && numbers.next().is_none()).then_some(versions)
}

/// Returns whether a program with this reply finds all that it needs where this one leaves it.
fn is_consent(reply: &str) -> bool {
    cache_versions_in(reply).is_some_and(|versions| versions.can_follow(&CacheVersions::OWN))
}

impl Program {
    /// Returns the program of this process. To be called when the daemon starts: its file may be renamed later.
    ///
    /// # Errors
    /// The process does not see its own file.
    pub fn of_this_process() -> std::io::Result<Program> {
        let mut words = std::env::args_os();
        let name = words.next().unwrap_or_else(|| "hotshelf".into());
        let mut words: Vec<OsString> = words.collect();
        if words.first().is_some_and(|word| word == COMMAND) {
            words.drain(..words.len().min(2));
        }
        Ok(Program { path: without_deleted(std::env::current_exe()?), name, words })
    }

    /// Checks that the program is there, that no stranger could have put it there, and that it can take over. `mount`: the device number of
    /// the mount, whose files nobody can read while the program is replaced.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn check(&self, mount: Option<&str>) -> Result<CheckedProgram, String> {
        let shown = self.path.display();
        let missing = |error: std::io::Error| format!("the program {shown} cannot be used: {error}; install it there again");
        let real = std::fs::canonicalize(&self.path).map_err(missing)?;
        refuse_unsafe(&real, rustix::process::geteuid().as_raw())?;
        let identity = identity_of(&real).map_err(missing)?;
        let device = format!("{}:{}", rustix::fs::major(identity.0), rustix::fs::minor(identity.0));
        if mount == Some(&device) {
            return Err(format!(
                "the program {shown} is on the mount itself, which nobody serves while it is replaced: install it elsewhere"
            ));
        }
        let program = Program { path: real, ..self.clone() };
        program.ask().map(|()| CheckedProgram { program, identity })
    }

    fn ask(&self) -> Result<(), String> {
        let shown = self.path.display();
        let failed = |error: std::io::Error| format!("the program {shown} cannot be started: {error}");
        let memory = || rustix::fs::memfd_create(c"hotshelf-reply", MemfdFlags::CLOEXEC).map_err(|error| failed(error.into()));
        let (out, complaint) = (File::from(memory()?), File::from(memory()?));
        let output = |file: &File| file.try_clone().map(Stdio::from).map_err(failed);
        let mut command = Command::new(&self.path);
        command.arg(COMMAND).arg(CHECK).arg(VERSION.to_string()).process_group(0);
        let mut child = command.stdin(Stdio::null()).stdout(output(&out)?).stderr(output(&complaint)?).spawn().map_err(failed)?;
        let begun = Instant::now();
        let status = loop {
            match child.try_wait().map_err(failed)? {
                Some(status) => break status,
                None if begun.elapsed() > REPLY_MAX => {
                    let _ = child.kill().and_then(|()| child.wait());
                    return Err(format!("the program {shown} did not say within {} s whether it can take over", REPLY_MAX.as_secs()));
                }
                None => std::thread::sleep(POLL),
            }
        };
        if status.success() && is_consent(&beginning(out)) {
            return Ok(());
        }
        let said = beginning(complaint);
        let said = said.lines().next().map_or(String::new(), |line| format!(": {line}"));
        Err(format!(
            "the program {shown} cannot take over a mount of hotshelf {OWN_VERSION} ({status}{said}): unmount, and mount again with it"
        ))
    }
}

impl CheckedProgram {
    /// Replaces the program of this process; the new one finds the state in `memory`. Returns only if that fails.
    pub fn replace(&self, memory: &OwnedFd) -> std::io::Error {
        let Program { path, name, words } = &self.program;
        match identity_of(path) {
            Ok(identity) if identity == self.identity => {}
            Ok(_) => return std::io::Error::other("the program was replaced meanwhile: try again"),
            Err(error) => return error,
        }
        Command::new(path).arg0(name).arg(COMMAND).arg(memory.as_raw_fd().to_string()).args(words).exec()
    }

    /// Returns the path of the program.
    pub fn path(&self) -> &Path {
        &self.program.path
    }
}

/// Returns the path of a program whose file was replaced since it was started (proc(5)).
fn without_deleted(path: PathBuf) -> PathBuf {
    match path.as_os_str().as_bytes().strip_suffix(b" (deleted)") {
        Some(before) if !path.exists() => OsString::from_vec(before.to_vec()).into(),
        _ => path,
    }
}

/// Returns the beginning of what a program wrote, without what would reach a terminal.
fn beginning(mut from: File) -> String {
    const MAX: u64 = 400;
    let mut bytes = Vec::new();
    let _ = from.rewind().and_then(|()| from.take(MAX).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    text.chars().filter(|letter| *letter == '\n' || !letter.is_control()).collect()
}

/// Refuses a program that others than root and the daemon's user could have replaced: it, or a directory that leads to it.
fn refuse_unsafe(path: &Path, user: u32) -> Result<(), String> {
    const SET_ID: u32 = 0o6000;
    const STICKY: u32 = 0o1000;
    for part in path.ancestors() {
        let shown = part.display();
        let found = std::fs::symlink_metadata(part).map_err(|error| format!("{shown}: {error}"))?;
        if !matches!(found.uid(), 0) && found.uid() != user {
            return Err(format!("{shown} belongs to user {}, who could replace the program: install it where only root can", found.uid()));
        }
        // In a sticky directory nobody removes what is another user's.
        let is_open = found.mode() & 0o002 != 0 || found.mode() & 0o020 != 0 && found.gid() != 0;
        if is_open && !(found.is_dir() && found.mode() & STICKY != 0) {
            return Err(format!("others may write to {shown}, and could replace the program: take that away (chmod go-w {shown})"));
        }
        if part == path && (!found.is_file() || found.mode() & SET_ID != 0) {
            return Err(format!("{shown} is not a program without set-user-ID and set-group-ID bits"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod test {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn program(path: &Path) -> Program {
        Program { path: path.to_owned(), name: "hotshelf".into(), words: Vec::new() }
    }

    fn script(path: &Path, text: &str) {
        std::fs::write(path, format!("#!/bin/sh\n{text}\n")).expect("written");
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("set");
    }

    #[test]
    fn only_the_right_words_are_consent() {
        let words = reply_to_check(VERSION).expect("its own");
        assert!(is_consent(&words) && is_consent(&format!("{words}\n")));
        for other in ["", "hotshelf", "hotshelf  takes over version 1x", "yes", "hotshelf 1 takes over version 99"] {
            assert!(!is_consent(other), "{other}");
        }
        // A cache of another layout is refused by the new program, when it is too late.
        let CacheVersions { segment, pages, ssd } = CacheVersions::OWN;
        let with = |cache: [u32; 3]| {
            is_consent(&format!("hotshelf 9.0 takes over version {VERSION} with cache {} {} {}", cache[0], cache[1], cache[2]))
        };
        assert!(with([segment, pages, ssd]) && with([segment, pages, ssd + 1]));
        assert!(!with([segment + 1, pages, ssd]) && !with([segment, pages + 1, ssd]) && !with([segment, pages, ssd - 1]));
        assert!(!is_consent(&format!("{words} 1")) && !is_consent(&format!("hotshelf 9.0 takes over version {VERSION}")));
        assert_eq!(reply_to_check(VERSION + 1), None);
    }

    #[test]
    fn a_program_that_fails_or_says_something_else_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("program");
        for (text, words) in [("echo no such command >&2; exit 1", "no such command"), ("echo hello", "cannot take over")] {
            script(&path, text);
            let refused = program(&path).check(None).expect_err(text);
            assert!(refused.contains(words) && !refused.contains('\n'), "{refused}");
        }
        let missing = program(&dir.path().join("none")).check(None).expect_err("missing");
        assert!(missing.contains("cannot be used"), "{missing}");
        script(&path, &format!("echo {}", reply_to_check(VERSION).expect("its own")));
        let checked = program(&path).check(None).expect("can take over");
        script(&path, "echo another, longer one");
        let refused = checked.replace(&File::open("/dev/null").expect("opens").into());
        assert!(refused.to_string().contains("replaced meanwhile"), "{refused}");
    }

    #[test]
    fn a_program_that_strangers_could_replace_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("program");
        script(&path, "true");
        let me = rustix::process::geteuid().as_raw();
        let path = std::fs::canonicalize(path).expect("there");
        refuse_unsafe(&path, me).expect("safe");
        let set = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("set");
        for mode in [0o757, 0o4755] {
            set(&path, mode);
            assert!(refuse_unsafe(&path, me).is_err(), "{mode:o}");
        }
        set(&path, 0o755);
        set(dir.path(), 0o707);
        assert!(refuse_unsafe(&path, me).is_err());
        set(dir.path(), 0o1707);
        refuse_unsafe(&path, me).expect("sticky");
        if me == 0 {
            rustix::fs::chown(&path, Some(rustix::fs::Uid::from_raw(1234)), None).expect("root may");
            assert!(refuse_unsafe(&path, me).is_err());
        }
    }

    #[test]
    fn a_replaced_file_is_found_by_its_name() {
        assert_eq!(without_deleted("/usr/bin/none (deleted)".into()), Path::new("/usr/bin/none"));
        assert_eq!(without_deleted("/usr/bin/env".into()), Path::new("/usr/bin/env"));
    }
}
