//! Somebody who moves files between the sides all the time.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

/// The thread that moves them.
pub struct Mover {
    thread: JoinHandle<usize>,
    stop: Arc<AtomicBool>,
    turn: Arc<Mutex<()>>,
    begun: Receiver<()>,
}

impl Mover {
    pub fn start(hotshelf: &Path, root: &Path, paths: Arc<Mutex<Vec<String>>>, seed: u64) -> Mover {
        let (stop, turn) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(())));
        let (begins, begun) = sync_channel(1);
        let work = Work { hotshelf: hotshelf.into(), root: root.into(), paths, stop: stop.clone(), turn: turn.clone(), begins };
        Mover { thread: std::thread::spawn(move || work.run(seed)), stop, turn, begun }
    }

    /// Waits until the next move begins.
    pub fn wait_for_a_turn(&self) {
        let _ = self.begun.recv_timeout(Duration::from_millis(100));
    }

    /// Nothing moves as long as this is held.
    pub fn pause(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// How many were moved.
    pub fn stop(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or(0)
    }
}

struct Work {
    hotshelf: PathBuf,
    root: PathBuf,
    paths: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    turn: Arc<Mutex<()>>,
    begins: SyncSender<()>,
}

impl Work {
    fn run(&self, seed: u64) -> usize {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut moved = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let _turn = self.turn.lock();
            let _ = self.begins.try_send(());
            let Some(path) = rng.choice(&*self.paths.lock()).cloned() else { continue };
            let to = rng.choice(["ssd", "hdd"]).unwrap_or("hdd");
            let mut command = Command::new(&self.hotshelf);
            command.arg("migrate").arg(self.root.join(path)).args(["--to", to]).stdout(Stdio::null()).stderr(Stdio::null());
            // A file that is gone or busy by now is no error here.
            moved += usize::from(command.status().is_ok_and(|status| status.success()));
        }
        moved
    }
}
