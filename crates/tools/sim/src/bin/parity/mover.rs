//! A thread that moves files between the sides all the time.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

/// Reads a path and a side, moves the file, and prints the result.
const LOOP: &str = r#"while IFS= read -r path && read -r to; do
    if "$0" migrate "$path" --to "$to" </dev/null >/dev/null 2>&1; then echo moved; else echo left; fi
done"#;

/// The thread that moves files.
pub struct Mover {
    thread: JoinHandle<usize>,
    stop: Arc<AtomicBool>,
    turn: Arc<Mutex<()>>,
    begun: Receiver<()>,
}

impl Mover {
    /// Starts the thread that moves files.
    pub fn start(hotshelf: &Path, root: &Path, paths: Arc<Mutex<Vec<String>>>, seed: u64) -> std::io::Result<Mover> {
        let (stop, turn) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(())));
        let (begins, begun) = sync_channel(1);
        // A separate process: a forked child would briefly share our open files and their locks.
        let mut command = Command::new("sh");
        command.args(["-c", LOOP]).arg(hotshelf).stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn()?;
        let work = Work { child, root: root.into(), paths, stop: stop.clone(), turn: turn.clone(), begins };
        Ok(Mover { thread: std::thread::spawn(move || work.run(seed)), stop, turn, begun })
    }

    /// Waits until the next move starts.
    pub fn wait_for_a_turn(&self) {
        let _ = self.begun.recv_timeout(Duration::from_millis(100));
    }

    /// Blocks moves while the guard is held.
    pub fn pause(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// Stops the thread; returns how many files it moved.
    pub fn stop(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or(0)
    }
}

struct Work {
    child: Child,
    root: PathBuf,
    paths: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    turn: Arc<Mutex<()>>,
    begins: SyncSender<()>,
}

impl Work {
    fn run(mut self, seed: u64) -> usize {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut moved = 0;
        let Some((mut pending, answers)) = self.child.stdin.take().zip(self.child.stdout.take()) else { return 0 };
        let mut answers = BufReader::new(answers).lines();
        while !self.stop.load(Ordering::Relaxed) {
            let _turn = self.turn.lock();
            let _ = self.begins.try_send(());
            let Some(path) = rng.choice(&*self.paths.lock()).cloned() else { continue };
            let to = rng.choice(["ssd", "hdd"]).unwrap_or("hdd");
            if writeln!(pending, "{}/{path}\n{to}", self.root.display()).is_err() {
                break;
            }
            // A removed or busy file is not an error here.
            moved += usize::from(answers.next().is_some_and(|line| line.is_ok_and(|line| line == "moved")));
        }
        drop(pending);
        let _ = self.child.wait();
        moved
    }
}
