//! A drive in another process.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use block::tracked::Timeouts;
use block::{Arena, Buf, Completion, Device as _, Queue, QueueOptions, Request, Status, Submit, Tracked};
use nvme::{Controller, Options};
use pci::user::UserOptions;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use shm::Region;
use tempfile::TempDir;

pub fn full() -> bool {
    std::env::var_os("FULL").is_some_and(|full| full == "1")
}

/// The program `nvme-sim`, killed on drop.
pub struct Drive {
    child: Child,
    out: BufReader<ChildStdout>,
    pub socket: PathBuf,
    _dir: TempDir,
}

impl Drive {
    pub fn start(args: &[&str]) -> Drive {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("x.sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_nvme-sim"));
        command.arg("--socket").arg(&socket).args(args).stdout(Stdio::piped());
        let mut child = command.spawn().expect("nvme-sim");
        let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        out.read_line(&mut line).expect("a line");
        assert!(line.contains("vfio-user:"), "it did not begin: {line}");
        Drive { child, out, socket, _dir: dir }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("signalled");
    }

    /// Stops the process: when this returns, all its threads are stopped.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let stopped = waitpid(Some(Pid::from_child(&self.child)), WaitOptions::UNTRACED).expect("waited");
        assert!(stopped.is_some_and(|(_, status)| status.stopped()), "{stopped:?}");
    }

    pub fn open(&self) -> Controller {
        open(&self.socket, Options::default())
    }

    /// Ends the process and returns its final output.
    pub fn end(mut self) -> String {
        self.signal(Signal::TERM);
        let mut words = String::new();
        self.out.read_to_string(&mut words).expect("words");
        let status = self.child.wait().expect("its end");
        assert!(status.success(), "{status}: {words}");
        words
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn open(socket: &std::path::Path, options: Options) -> Controller {
    let function = pci::user::open_with(socket, &UserOptions::default()).expect("connected");
    Controller::open(function, options).expect("ready")
}

/// A queue of namespace 1 with its own memory. Timeouts are longer than a busy machine delays requests.
pub struct Bench {
    pub queue: Tracked<Box<dyn Queue>>,
    pub arena: Arena,
    pub block: usize,
}

fn timeouts(timeout: Duration) -> Timeouts {
    let ms = Duration::from_millis;
    Timeouts { timeout: Some(timeout), cancel_grace: ms(50), reset_after: Some(ms(100)) }
}

impl Bench {
    pub fn new(controller: &Controller, depth: u32, polled: bool) -> Bench {
        Bench::impatient(controller, depth, polled, Duration::from_secs(30))
    }

    /// Opens a queue with this timeout, for requests that never complete.
    pub fn impatient(controller: &Controller, depth: u32, polled: bool, timeout: Duration) -> Bench {
        let namespace = controller.namespace(1).expect("a namespace");
        let options = QueueOptions { depth, device_polled: polled, ..QueueOptions::default() };
        let mut queue = Tracked::new(namespace.queue(&options).expect("a queue"), timeouts(timeout));
        let arena = Arena::over(Arc::new(Region::shared("test", 1 << 20).expect("memory")));
        queue.register(&arena).expect("registered");
        let block = queue.geometry().block_bytes as usize;
        Bench { queue, arena, block }
    }

    pub fn buf(&self, fill: u8) -> Buf {
        let buf = self.arena.allocate(self.block).expect("room");
        buf.write(0, &vec![fill; self.block]);
        buf
    }

    /// Waits for the next completions, by sleeping or by polling.
    pub fn next(&mut self, polled: bool) -> Vec<Completion> {
        let mut ended = [Completion::EMPTY; 64];
        let begun = std::time::Instant::now();
        loop {
            let count = self.queue.poll(&mut ended);
            if count > 0 {
                return ended[..count].to_vec();
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "no answer");
            if !polled {
                self.queue.wait(Duration::from_millis(100));
            }
        }
    }

    pub fn run(&mut self, request: Request, buf: Option<&Buf>) -> Status {
        let spans: Vec<_> = buf.iter().map(|buf| buf.span()).collect();
        assert_eq!(self.queue.submit(&request, &spans), Submit::Queued);
        self.queue.ring();
        let ended = self.next(false);
        assert_eq!((ended.len(), ended[0].tag), (1, request.tag));
        ended[0].status
    }
}
