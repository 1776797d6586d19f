//! Running other programs: their errors in one line, and an end when the measuring is stopped.

use std::ffi::OsStr;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::experiment::Context;
use crate::needs::find;

/// Runs a program found on the path; what it wrote.
///
/// # Errors
/// It cannot be started or fails, with its first line; [`crate::Stopped`].
pub fn run(context: &Context, program: &str, args: &[&OsStr]) -> anyhow::Result<Vec<u8>> {
    run_path(context, &find(program).unwrap_or_else(|| program.into()), args)
}

/// Runs this program.
///
/// # Errors
/// As [`run`].
pub fn run_path(context: &Context, program: &Path, args: &[&OsStr]) -> anyhow::Result<Vec<u8>> {
    let mut command = Command::new(program);
    command.args(args);
    finish(context, command, None)
}

/// Runs what is prepared, with this on its standard input.
///
/// # Errors
/// As [`run`].
pub fn finish(context: &Context, mut command: Command, input: Option<std::fs::File>) -> anyhow::Result<Vec<u8>> {
    let name = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    command.stdin(input.map_or_else(Stdio::null, Stdio::from)).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| name.clone())?;
    let (mut out, mut err) = (child.stdout.take().context("a pipe")?, child.stderr.take().context("a pipe")?);
    let (mut said, mut complained) = (Vec::new(), Vec::new());
    let status = std::thread::scope(|scope| {
        // A pipe that cannot be read to its end gives what it gave.
        scope.spawn(|| out.read_to_end(&mut said));
        scope.spawn(|| err.read_to_end(&mut complained));
        wait(context, &mut child)
    })?;
    if !status.success() {
        let text = String::from_utf8_lossy(&complained).into_owned() + &String::from_utf8_lossy(&said);
        let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it failed and said nothing").to_owned();
        bail!("{name}: {line}");
    }
    Ok(said)
}

/// Until it ends, or we are to stop: then it is ended.
///
/// # Errors
/// [`crate::Stopped`].
pub fn wait(context: &Context, child: &mut Child) -> anyhow::Result<std::process::ExitStatus> {
    let pid = Pid::from_child(child);
    let handle = pidfd_open(pid, PidfdFlags::empty());
    let moment = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if let Err(stopped) = context.go_on() {
            child.kill()?;
            child.wait()?;
            return Err(stopped.into());
        }
        match &handle {
            // Interrupted by a signal: the loop looks.
            Ok(handle) => drop(poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&moment))),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
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
        assert!(error.is::<crate::Stopped>());
    }
}
