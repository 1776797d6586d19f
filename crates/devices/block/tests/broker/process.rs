//! Runs this program again, in another role.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use block::{Completion, Lba, Queue, Request, Submit, Tag};

use crate::setting::{self, Holding, connect, reap};

const ROLE: &str = "HOTSHELF_TEST_ROLE";
const DIR: &str = "HOTSHELF_TEST_DIR";
/// The user ID of `nobody`.
pub const OTHER_USER: u32 = 65534;

/// A child process that takes commands as lines, and is killed when dropped.
pub struct Process {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Process {
    /// Starts this program in a role, as the same user.
    pub fn start(role: &str, dir: &Path) -> Process {
        Process::start_as(None, role, dir).expect("started")
    }

    /// Starts the process as another user; `None` if that is not possible here.
    pub fn start_as(user: Option<u32>, role: &str, dir: &Path) -> Option<Process> {
        let me = std::env::current_exe().expect("this program");
        let mut command = Command::new(&me);
        if let Some(user) = user {
            if setting::me() != 0 {
                return None;
            }
            // The other user can execute the copy.
            let copy = dir.join("program");
            // Copied once, because the first child may still execute it. `cp` copies it: if this process had it open for writing, a
            // child
            // started by another test would inherit the descriptor.
            if !copy.exists() {
                let copied = Command::new("cp").arg(&me).arg(&copy).output().expect("cp");
                assert!(copied.status.success(), "{}: {}", copied.status, String::from_utf8_lossy(&copied.stderr));
            }
            command = Command::new(copy);
            command.uid(user).gid(user);
        }
        command.args(["--exact", "process::another_role", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env(DIR, dir).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let said = BufReader::new(child.stdout.take().expect("a pipe"));
        Some(Process { child, said })
    }

    /// Sends a command line to the child.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().expect("a pipe"), "{line}").expect("next_line");
    }

    /// Returns the next message of the child, without the output of libtest.
    pub fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.said.read_line(&mut line).expect("heard") > 0, "the process ended without a word");
            if let Some((_, said)) = line.split_once("SAY ") {
                return said.trim_end().to_owned();
            }
        }
    }

    /// Sends a signal to the child.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("signalled");
    }

    /// Kills the child and waits for its end.
    pub fn kill(mut self) {
        self.signal(rustix::process::Signal::KILL);
        self.child.wait().expect("ended");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(words: impl std::fmt::Display) {
    println!("SAY {words}");
}

fn next_line() -> Option<String> {
    let mut line = String::new();
    (std::io::stdin().read_line(&mut line).ok()? > 0).then(|| line.trim_end().to_owned())
}

/// Not a test: the entry point of the children.
#[test]
fn another_role() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    let dir = std::path::PathBuf::from(std::env::var_os(DIR).expect("a directory"));
    match role.to_str() {
        Some(role @ ("broker" | "holding broker")) => {
            let device = Holding::new();
            device.hold.store(role == "holding broker", Ordering::Release);
            let _server = setting::serve(&dir, Arc::new(device));
            say("ready");
            while next_line().is_some() {}
        }
        Some("client") => client(&dir.join("socket")),
        other => panic!("no such role: {other:?}"),
    }
}

/// Opens a queue and executes the commands it reads: `submit N`, `reap N`, `write N` (submit and reap, N times).
fn client(socket: &Path) {
    let opened = connect(socket, None).and_then(|device| Ok((device.open_queue(8)?, device)));
    let (mut queue, device) = match opened {
        Ok(opened) => opened,
        Err(error) => return say(format!("error {error}")),
    };
    let memory = device.arena().allocate(512).expect("room");
    say("open");
    let mut next = 0;
    while let Some(line) = next_line() {
        let (word, number) = line.split_once(' ').expect("a word and a number");
        let number: usize = number.parse().expect("a number");
        let mut submit = |queue: &mut dyn Queue| {
            next += 1;
            assert_eq!(queue.submit(&Request::write(Tag(next), Lba(next % 1000), 1), &[memory.span()]), Submit::Queued);
        };
        let mut ended: Vec<Completion> = Vec::new();
        match word {
            "submit" => {
                (0..number).for_each(|_| submit(&mut queue));
                queue.ring();
            }
            "reap" => ended = reap(&mut queue, number),
            "write" => {
                for _ in 0..number {
                    submit(&mut queue);
                    ended = reap(&mut queue, 1);
                }
            }
            other => panic!("{other}?"),
        }
        let last = ended.last().map_or("none".into(), |completion| format!("{:?}", completion.status));
        say(format!("done {last}"));
    }
}
