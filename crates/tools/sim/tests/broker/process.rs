//! Runs this program again as a child.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use block::{Completion, Lba, Queue, Request, Submit, Tag};

use crate::setting::{connect, controller, serve};

const ROLE: &str = "HOTSHELF_TEST_ROLE";
const DIR: &str = "HOTSHELF_TEST_DIR";

/// A child that is killed on drop. It also ends when its input closes, so no test leaves one behind.
pub struct Process {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Process {
    pub fn start(role: &str, dir: &Path) -> Process {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "process::another_role", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env(DIR, dir).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let said = BufReader::new(child.stdout.take().expect("a pipe"));
        Process { child, said }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the child's next line; libtest prints lines too.
    pub fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.said.read_line(&mut line).expect("heard") > 0, "the process ended without a word");
            if let Some((_, said)) = line.split_once("SAY ") {
                return said.trim_end().to_owned();
            }
        }
    }

    pub fn kill(mut self) {
        self.child.kill().expect("killed");
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

fn until_signalled() {
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// The entry point of the children, not a test.
#[test]
fn another_role() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    let dir = std::path::PathBuf::from(std::env::var_os(DIR).expect("a directory"));
    match role.to_str() {
        Some("broker") => {
            let (device, controller) = controller();
            // No command completes: every request waits.
            device
                .with_faults(|faults| faults.rules.push(sim::nvme::faults::ControllerFaultRule::one_in(1, sim::nvme::faults::Fault::Drop)));
            let _server = serve(&dir, &controller);
            say("ready");
            until_signalled();
        }
        Some("client") => client(&dir.join("socket")),
        Some("recorded") => crate::recorder::fly(&dir),
        other => panic!("no such role: {other:?}"),
    }
}

/// Opens two queues, reports that, and submits on both until it is killed.
fn client(socket: &Path) {
    let device = connect(socket, None).expect("allowed");
    let mut queues = [device.open_queue(8).expect("one"), device.open_queue(8).expect("two")];
    say("open");
    let memory = device.arena().allocate(4096).expect("room");
    let mut next = 0;
    loop {
        for queue in &mut queues {
            while queue.in_flight() < queue.depth() {
                next += 1;
                assert_eq!(queue.submit(&Request::write(Tag(next), Lba(next % 900), 8), &[memory.span()]), Submit::Queued);
            }
            queue.ring();
        }
        if next == 16 {
            say("asked");
        }
        for queue in &mut queues {
            queue.wait(std::time::Duration::from_millis(1));
            queue.poll(&mut [Completion::EMPTY; 8]);
        }
    }
}
