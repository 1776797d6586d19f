//! Runs other programs: their errors in one line, and ended when the run is stopped.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context as _, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::experiment::Context;

/// Returns the path of a program.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = shm::environment::var_os("PATH").unwrap_or_default();
    let sbin = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(sbin).map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// Runs a program from `PATH` and returns its output.
///
/// # Errors
/// It cannot be started, or fails (with its first line); [`crate::StoppedError`].
pub fn run(context: &Context, program: &str, args: &[&OsStr]) -> anyhow::Result<Vec<u8>> {
    run_path(context, &find(program).unwrap_or_else(|| program.into()), args)
}

/// Runs the program at this path.
///
/// # Errors
/// As for [`run`].
pub fn run_path(context: &Context, program: &Path, args: &[&OsStr]) -> anyhow::Result<Vec<u8>> {
    let mut command = Command::new(program);
    command.args(args);
    finish(context, command, None)
}

/// Runs a prepared command with `input` as its standard input.
///
/// # Errors
/// As for [`run`].
pub fn finish(context: &Context, mut command: Command, input: Option<File>) -> anyhow::Result<Vec<u8>> {
    let name = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    command.stdin(input.map_or_else(Stdio::null, Stdio::from)).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| name.clone())?;
    let mut pipes =
        [OutputPipe::new(child.stdout.take().context("a pipe")?.into())?, OutputPipe::new(child.stderr.take().context("a pipe")?.into())?];
    let status = until_ended(context, &mut child, &mut pipes)?;
    let [said, complained] = pipes.map(|pipe| pipe.heard);
    if !status.success() {
        let text = String::from_utf8_lossy(&complained).into_owned() + &String::from_utf8_lossy(&said);
        let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it failed and said nothing").to_owned();
        bail!("{name}: {line}");
    }
    Ok(said)
}

/// Waits for a child. If the run is stopped, the child is killed.
///
/// # Errors
/// [`crate::StoppedError`].
pub fn wait(context: &Context, child: &mut Child) -> anyhow::Result<ExitStatus> {
    until_ended(context, child, &mut [])
}

/// Waits and reads the pipes meanwhile. It ends with the program itself: its children may hold the pipes longer.
fn until_ended(context: &Context, child: &mut Child, pipes: &mut [OutputPipe]) -> anyhow::Result<ExitStatus> {
    let handle = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).ok();
    // Without a pidfd (before Linux 5.3) the end of the child wakes nothing.
    let moment = Timespec { tv_sec: 0, tv_nsec: if handle.is_some() { 100_000_000 } else { 10_000_000 } };
    loop {
        let ended = child.try_wait()?;
        for pipe in &mut *pipes {
            pipe.hear();
        }
        if let Some(status) = ended {
            return Ok(status);
        }
        if let Err(stopped) = context.check_stopped() {
            kill_with_all_it_started(child)?;
            return Err(stopped.into());
        }
        let talking = pipes.iter().filter_map(|pipe| pipe.end.as_ref()).map(|end| PollFd::new(end, PollFlags::IN));
        let mut fds: Vec<_> = handle.iter().map(|handle| PollFd::new(handle, PollFlags::IN)).chain(talking).collect();
        // A signal interrupted it: the loop checks again.
        let _ = poll(&mut fds, Some(&moment));
    }
}

/// An output pipe of a program, and the data read from it.
struct OutputPipe {
    end: Option<File>,
    heard: Vec<u8>,
}

impl OutputPipe {
    fn new(end: OwnedFd) -> std::io::Result<OutputPipe> {
        rustix::io::ioctl_fionbio(&end, true)?;
        Ok(OutputPipe { end: Some(end.into()), heard: Vec::new() })
    }

    /// Reads all available data. A failing pipe keeps what was read.
    fn hear(&mut self) {
        let Some(end) = &mut self.end else { return };
        match end.read_to_end(&mut self.heard) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            _ => self.end = None,
        }
    }
}

/// Kills a program and its descendants. A fio job whose parent is killed at its start waits forever, in its own session.
fn kill_with_all_it_started(child: &mut Child) -> anyhow::Result<()> {
    let parent = Pid::from_child(child);
    // A stopped process starts no more children; it may have ended.
    let _ = kill_process(parent, Signal::STOP);
    let started = descendants(parent);
    child.kill()?;
    for pid in started {
        // It may have ended meanwhile.
        let _ = kill_process(pid, Signal::KILL);
    }
    child.wait()?;
    Ok(())
}

/// Returns all descendants of a process.
fn descendants(of: Pid) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok());
    let parents: Vec<(i32, i32)> = pids.filter_map(|pid| Some((pid, parent_of(pid)?))).collect();
    let mut found = vec![of.as_raw_nonzero().get()];
    let mut seen = 0;
    while let Some(&above) = found.get(seen) {
        seen += 1;
        found.extend(parents.iter().filter(|(_, parent)| *parent == above).map(|(pid, _)| *pid));
    }
    found.into_iter().skip(1).filter_map(Pid::from_raw).collect()
}

fn parent_of(pid: i32) -> Option<i32> {
    stat(pid)?.split_whitespace().nth(1)?.parse().ok()
}

/// Returns the fields of `/proc/PID/stat` after the name, from field 3 (state) on.
pub(crate) fn stat(pid: i32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain any byte.
    stat.rsplit_once(')').map(|(_, rest)| rest.to_owned())
}

#[cfg(test)]
mod test {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_failure_is_one_line() {
        let context = Context::small(".".into());
        let error = run(&context, "sh", &["-c".as_ref(), "echo; echo why not >&2; exit 3".as_ref()]).expect_err("it fails");
        assert_eq!(error.to_string(), "sh: why not");
        assert_eq!(run(&context, "echo", &["x".as_ref()]).expect("it runs"), b"x\n");
        assert!(run(&context, "no-such-program", &[]).is_err());
    }

    #[test]
    fn who_is_stopped_ends_its_programs() {
        static YES: AtomicBool = AtomicBool::new(true);
        let context = Context { stopped: &YES, ..Context::small(".".into()) };
        let error = run(&context, "sleep", &["600".as_ref()]).expect_err("it was stopped");
        assert!(error.is::<crate::StoppedError>());
    }

    #[test]
    fn what_a_program_has_started_holds_nobody_up() {
        let context = Context::small(".".into());
        let said = run(&context, "sh", &["-c".as_ref(), "echo $$; sleep 600 & echo $!".as_ref()]).expect("it runs");
        let said = String::from_utf8(said).expect("numbers");
        let left: i32 = said.lines().last().expect("two lines").parse().expect("a number");
        kill_process(Pid::from_raw(left).expect("a process"), Signal::KILL).expect("it lives, and nobody waited for it");
    }

    #[test]
    fn who_is_stopped_ends_what_its_programs_have_started() {
        let context = Context::small(".".into());
        let mut command = Command::new("sh");
        command.args(["-c", "setsid sh -c 'sleep 600 & echo $!; wait' & wait"]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("sh");
        let mut out = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        std::io::BufRead::read_line(&mut out, &mut line).expect("a line");
        let started = line.trim().parse().expect("a number");
        assert!(parent_of(started).is_some());
        static YES: AtomicBool = AtomicBool::new(true);
        let error = wait(&Context { stopped: &YES, ..context }, &mut child).expect_err("it was stopped");
        assert!(error.is::<crate::StoppedError>());
        // All holders of the pipe have ended.
        assert_eq!(out.read_to_end(&mut Vec::new()).expect("its end"), 0);
    }
}
