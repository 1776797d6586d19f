//! The other program of a run, which also says whose turn it is.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use fastrand::Rng;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::setup::{DIRS, LINKED, LONGEST, NAMES, SIDES, Setup, path_in};
use crate::worker::{DIR, SETUP, trace};
use crate::{BATCH, WORKERS};

/// A worker, as the parent has it.
struct Process {
    child: Child,
    answers: BufReader<ChildStdout>,
    /// Errnos that were not the kernel's.
    differences: u32,
}

impl Process {
    fn start(dir: &Path, seed: u64) -> Process {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "worker", "--nocapture", "--test-threads=1"])
            .env(DIR, dir)
            .env(SETUP, seed.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("started");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        let mut process = Process { child, answers, differences: 0 };
        assert_eq!(process.answer(), "ready");
        process
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            if self.answers.read_line(&mut line).expect("an answer") == 0 {
                return format!("failed: the worker ended: {:?}", self.child.wait());
            }
            if let Some((_, answer)) = line.trim_end().split_once("> ") {
                if answer.starts_with("differs: ") {
                    eprintln!("{answer}");
                    self.differences += 1;
                    continue;
                }
                return answer.to_owned();
            }
        }
    }

    fn tell(&mut self, what: &str) -> String {
        writeln!(self.child.stdin.as_mut().expect("piped"), "{what}").expect("told");
        self.answer()
    }

    #[track_caller]
    fn ask(&mut self, what: &str) {
        let answer = self.tell(what);
        assert_eq!(answer, "done", "{what}");
    }
}

impl Process {
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

struct Run {
    rng: Rng,
    dir: PathBuf,
    seed: u64,
    workers: Vec<Process>,
    /// The other program changed names since everything was last below.
    is_moved: bool,
    /// A process was killed, and the leader may not have noticed.
    is_one_dead: bool,
}

impl Run {
    fn both(&self, name: usize) -> [PathBuf; 2] {
        [0, 1].map(|side| path_in(&self.dir, side, name))
    }

    /// Waits until the file system's clock has moved on since the file was changed: what happens in one tick of it nobody can tell apart.
    fn next_tick(&self, path: &Path) {
        let Ok(changed) = fs::metadata(path) else { return };
        let probe = self.dir.join("probe");
        loop {
            fs::write(&probe, "tick").expect("written");
            let now = fs::metadata(&probe).expect("stat");
            if (now.ctime(), now.ctime_nsec()) > (changed.ctime(), changed.ctime_nsec()) {
                return;
            }
        }
    }

    fn flush(&mut self) {
        self.workers[0].ask("flush");
        self.is_moved = false;
    }

    /// Does the same on both sides.
    fn on_both<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, act: impl Fn(usize) -> Result<T, std::io::Error>) {
        let answers = [0, 1].map(|side| act(side).map_err(|error| error.raw_os_error()));
        assert_eq!(answers[0], answers[1], "{what}");
        self.is_moved = true;
    }

    /// What the program without the cache does between two batches.
    // long: one match over what another program does to the files.
    fn other_program(&mut self) {
        if std::mem::take(&mut self.is_one_dead) {
            // Where a file went that only a dead process had open, a leader knows once it has noticed the death (docs/cache-states.md).
            self.workers[0].ask("reaped");
        }
        let (name, other) = (self.rng.usize(..NAMES.len()), self.rng.usize(..NAMES.len()));
        let (from, to) = (self.both(name), self.both(other));
        let (at, len) = (self.rng.u64(..LONGEST), self.rng.usize(1..9000));
        let what = self.rng.u8(..20);
        if let Some(mut trace) = trace(&self.dir) {
            let _ = writeln!(trace, "other program {what}: {name} {other} at {at} {len}");
        }
        match what {
            // Names and attributes, whatever is dirty: never a conflict.
            0 | 1 => {
                let flags = [RenameFlags::empty(), RenameFlags::EXCHANGE][self.rng.usize(..2)];
                self.on_both("rename", |side| Ok(renameat_with(CWD, &from[side], CWD, &to[side], flags)?));
            }
            2 | 3 => self.on_both("remove", |side| fs::remove_file(&from[side])),
            4 => {
                let bits = 0o600 | self.rng.u32(..0o200);
                for path in &from {
                    let _ = fs::set_permissions(path, fs::Permissions::from_mode(bits));
                }
            }
            // Replaced, as editors do.
            5 | 6 => {
                let dir = self.dir.clone();
                self.on_both("replace", |side| {
                    let new = dir.join(SIDES[side]).join("new");
                    fs::write(&new, vec![at as u8; len])?;
                    fs::rename(&new, &from[side])
                });
                let _ = SIDES.map(|side| fs::remove_file(self.dir.join(side).join("new")));
            }
            7 => self.on_both("link", |side| fs::hard_link(&from[side], &to[side])),
            8 => self.on_both("symlink", |side| symlink(LINKED, &from[side])),
            // A directory with files in it.
            9 | 10 => {
                let (from, to) = (DIRS[self.rng.usize(..DIRS.len())], DIRS[self.rng.usize(..DIRS.len())]);
                let dir = self.dir.clone();
                let in_side = |side: usize, name: &str| dir.join(SIDES[side]).join(name);
                self.on_both("rename of a directory", |side| fs::rename(in_side(side, from), in_side(side, to)));
                if self.rng.bool() {
                    self.on_both("mkdir", |side| fs::create_dir(in_side(side, from)));
                }
            }
            // Read, once all is below.
            11 | 12 => {
                self.flush();
                let [cached, plain] = from.map(|path| fs::read(path).ok());
                assert!(cached == plain, "file {name} read by another program");
            }
            // Changed while pages of it may be dirty.
            13 => self.conflict(name, at, len),
            // Changed, once nothing is dirty.
            _ => {
                self.flush();
                self.next_tick(&from[0]);
                let how = self.rng.u8(..4);
                for path in &from {
                    let Ok(file) = fs::OpenOptions::new().write(true).open(path) else { continue };
                    match how {
                        0 => file.set_len(at / 2).expect("cut"),
                        1 => file.set_times(fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH)).expect("times"),
                        2 => in_place(&file, at, len),
                        _ => file.write_all_at(&vec![at as u8; len], at).expect("written"),
                    }
                }
                self.workers.iter_mut().for_each(|worker| worker.ask("look"));
            }
        }
    }

    fn conflict(&mut self, name: usize, at: u64, len: usize) {
        let [cached, plain] = self.both(name);
        self.next_tick(&cached);
        let Ok(file) = fs::OpenOptions::new().write(true).open(&cached) else { return };
        let Ok(shadow) = fs::OpenOptions::new().read(true).write(true).open(&plain) else { panic!("file {name} is on one side") };
        file.write_all_at(&vec![at as u8; len], at).expect("written");
        let how = self.rng.u8(..4);
        let answer = self.workers[0].tell(&format!("decide {name} {how}"));
        let theirs = fs::read(&cached).expect("read");
        if answer == "ours" {
            // Which pages were dirty the other program cannot know: each is as one of both has it.
            let ours = fs::read(&plain).expect("read");
            assert_eq!(theirs.len(), ours.len(), "file {name} written over");
        } else {
            assert_eq!(answer, "theirs", "decide {name}");
        }
        shadow.set_len(0).expect("cut");
        shadow.write_all_at(&theirs, 0).expect("written");
        self.workers.iter_mut().for_each(|worker| worker.ask("look"));
    }

    fn compare(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.ask("close"));
        self.flush();
        for name in 0..NAMES.len() {
            let [cached, plain] = self.both(name).map(|path| fs::read(path).ok());
            assert!(cached == plain, "file {name}: below {:?} bytes, the kernel {:?}", cached.map(|b| b.len()), plain.map(|b| b.len()));
        }
    }

    fn go(mut self, batches: u64) {
        for batch in 0..batches {
            let worker = self.rng.usize(..WORKERS);
            let seed = self.rng.u64(..);
            self.workers[worker].ask(&format!("batch {seed} {BATCH}"));
            if self.rng.u8(..3) == 0 {
                self.other_program();
            }
            if self.rng.u8(..100) == 0 {
                if self.is_moved {
                    // Where a file went that nobody has open, a leader knows, and tells nobody when it is killed.
                    self.flush();
                }
                // Perhaps it led. What it had open is closed.
                assert_eq!(self.workers[worker].differences, 0, "errnos");
                self.workers[worker].kill();
                self.workers[worker] = Process::start(&self.dir, self.seed);
                self.is_one_dead = true;
            }
            if batch % 25 == 24 {
                self.compare();
            }
        }
        self.compare();
        for worker in &mut self.workers {
            worker.ask("leave");
            assert_eq!(worker.differences, 0, "errnos");
        }
    }
}

/// Other bytes, while size and time of modification are as they were.
fn in_place(file: &fs::File, at: u64, len: usize) {
    let before = file.metadata().expect("stat");
    let len = len.min(before.len().saturating_sub(at) as usize);
    file.write_all_at(&vec![at as u8; len], at).expect("written");
    file.set_times(fs::FileTimes::new().set_modified(before.modified().expect("a time"))).expect("times");
}

/// A run of so many batches.
pub fn run(seed: u64, batches: u64) {
    let setup = Setup::of(seed);
    // In memory where that is possible: the file system's own work is not what is tested.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
    for side in SIDES {
        ["a", "b", "d"].iter().for_each(|name| fs::create_dir_all(dir.path().join(side).join(name)).expect("made"));
    }
    let config = std::collections::BTreeMap::from([("cache", setup.config(dir.path()))]);
    fs::write(dir.path().join("config.toml"), toml::to_string(&config).expect("a table")).expect("written");
    let workers = (0..WORKERS).map(|_| Process::start(dir.path(), seed)).collect();
    let run = Run { rng: Rng::with_seed(seed ^ 0x5eed), dir: dir.path().to_owned(), seed, workers, is_moved: false, is_one_dead: false };
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.go(batches)));
    if let Err(payload) = done {
        eprintln!("{setup:?}: again with LOCKSTEP_SEED={seed}");
        if let Ok(text) = fs::read_to_string(dir.path().join("trace")) {
            let lines: Vec<&str> = text.lines().collect();
            eprintln!("{}", lines[lines.len().saturating_sub(40_000)..].join("\n"));
        }
        std::panic::resume_unwind(payload);
    }
}
