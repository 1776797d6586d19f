//! The helper: a child that reads directories of the mount, so that the kernel is told what it has not asked for.
//!
//! A process of its own, not a thread: if the daemon is killed, its end of the mount goes only when nothing of it waits for the mount.
//! The child has the mount as its standard output, and as its standard input a pipe with the directories' paths, each with a NUL behind it.

use std::ffi::OsStr;
use std::io::{BufRead, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, RawDir, ResolveFlags, SeekFrom};

/// A pipe takes a message of this length whole or not at all.
const MESSAGE_MAX: usize = 4096;
/// How much is told at once, and so how long changes of the directory's names wait: about a millisecond.
const AT_ONCE: usize = 64 << 10;
/// Far more than is ever kept to be told.
const ROUNDS_MAX: usize = 1 << 14;

/// The helper as the daemon knows it.
#[derive(Debug)]
pub struct Helper {
    state: Mutex<State>,
    /// Its process; 0: none.
    pid: AtomicU32,
}

#[derive(Debug)]
enum State {
    /// Nobody needed it so far. The program, and the mount.
    NotYet(PathBuf, OwnedFd),
    Runs(Child, ChildStdin),
    /// It could not be started, or ended, or the mount has.
    Gone,
}

impl Helper {
    /// To be started as `program ahead` with this mount.
    pub fn new(program: PathBuf, mount: OwnedFd) -> Helper {
        Helper { state: Mutex::new(State::NotYet(program, mount)), pid: AtomicU32::new(0) }
    }

    /// Whether this is its process. Never waits: the helper may wait for who asks.
    pub fn is(&self, pid: u32) -> bool {
        pid != 0 && self.pid.load(Ordering::Acquire) == pid
    }

    /// Lets it read this directory, but not if that would need any waiting.
    pub fn read(&self, path: &[u8]) {
        let Some(mut state) = self.state.try_lock() else { return };
        if let State::NotYet(..) = &*state {
            *state = self.started(std::mem::replace(&mut *state, State::Gone));
        }
        let State::Runs(_, pipe) = &mut *state else { return };
        let message = [path, b"\0"].concat();
        if message.len() > MESSAGE_MAX {
            return;
        }
        match pipe.write(&message) {
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => {
                tracing::info!(%error, "attributes are not told ahead any more: the helper has ended");
                self.end_now(&mut state);
            }
            _ => {}
        }
    }

    fn started(&self, state: State) -> State {
        let State::NotYet(program, mount) = state else { return state };
        match start(&program, mount) {
            Ok((child, pipe)) => {
                self.pid.store(child.id(), Ordering::Release);
                State::Runs(child, pipe)
            }
            Err(error) => {
                tracing::info!(%error, "attributes are not told ahead: the helper does not start");
                State::Gone
            }
        }
    }

    /// Ends it, and gives the mount back.
    pub fn end(&self) {
        self.end_now(&mut self.state.lock());
    }

    fn end_now(&self, state: &mut State) {
        if let State::Runs(mut child, pipe) = std::mem::replace(state, State::Gone) {
            drop(pipe);
            // It may be in the middle of a directory.
            let ended = child.kill().and_then(|()| child.wait());
            self.pid.store(0, Ordering::Release);
            if let Err(error) = ended {
                tracing::warn!(%error, "the helper that tells attributes ahead was not seen to end");
            }
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.end();
    }
}

fn start(program: &PathBuf, mount: OwnedFd) -> std::io::Result<(Child, ChildStdin)> {
    let mut command = Command::new(program);
    command.arg0("hotshelf").arg("ahead").current_dir("/").stdin(Stdio::piped()).stdout(mount).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let pipe = child.stdin.take().ok_or(rustix::io::Errno::PIPE)?;
    // Who serves requests never waits for the helper, who may wait for him.
    rustix::fs::fcntl_setfl(&pipe, OFlags::NONBLOCK)?;
    Ok((child, pipe))
}

/// What the helper does: reads each directory that is named on standard input, below the one that is its standard output, to the end.
pub fn help() -> std::io::Result<()> {
    // It was started by another name than the program's own.
    let _ = rustix::thread::set_name(c"hotshelf-ahead");
    let mount = std::io::stdout();
    for path in std::io::stdin().lock().split(0) {
        // The directory may have gone, or the mount; then nobody needs it.
        let _ = read(mount.as_fd(), OsStr::from_bytes(&path?));
    }
    Ok(())
}

fn read(mount: BorrowedFd<'_>, path: &OsStr) -> rustix::io::Result<()> {
    let path = if path.is_empty() { OsStr::new(".") } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::openat2(mount, path, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)?;
    let mut buffer = vec![MaybeUninit::<u8>::uninit(); AT_ONCE];
    for _ in 0..ROUNDS_MAX {
        // From its beginning each time, where the kernel always asks for attributes with the names. The daemon goes on.
        rustix::fs::seek(&dir, SeekFrom::Start(0))?;
        let mut entries = RawDir::new(dir.as_fd(), &mut buffer);
        let Some(first) = entries.next() else { break };
        first?;
    }
    Ok(())
}
