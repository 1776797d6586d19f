//! One process of a run: what it has open, on both sides, and what it does when the parent says a word.

use std::ffi::{c_int, c_void};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cachedfs::{Instance, Mode};
use fastrand::Rng;

use crate::abi::{self, Outcome, Requests, c_path, done, outcome, said};
use crate::setup::{MODES, NAMES, SIDES, Setup, path_in};

/// What a worker finds in its environment.
pub const DIR: &str = "LOCKSTEP_DIR";
pub const SETUP: &str = "LOCKSTEP_SETUP";

/// Files that a worker has open, duplicates counted.
pub const HANDLES: usize = 4;
/// Lines that a failure shows.
const LINES: usize = 30;

/// Calls the library or the kernel.
macro_rules! call {
    ($call:expr) => {
        // SAFETY: paths are strings, memory is as long as the length that the call gets, and closed numbers are answered with an error.
        unsafe { $call }
    };
}
pub(crate) use call;

/// A file, opened twice: a ufd, and the shadow's descriptor.
pub struct Pair {
    pub u: c_int,
    pub k: c_int,
    /// Opened for nothing but to name it.
    pub is_path: bool,
}

/// A mapping of both.
pub struct Map {
    pub pair: c_int,
    pub sides: [*mut c_void; 2],
    pub len: usize,
    pub is_written: bool,
}

/// A page that is pinned.
pub struct PinnedPage {
    pub u: c_int,
    pub off: i64,
    pub at: *const c_void,
}

pub struct Worker {
    pub rng: Rng,
    pub instance: Arc<Instance>,
    pub dir: PathBuf,
    /// Both sides' directories, open.
    pub tops: [c_int; 2],
    pub open: Vec<Pair>,
    pub maps: Vec<Map>,
    pub pinned: Vec<PinnedPage>,
    pub aio: Option<*mut Requests>,
    pub aio_memory: *mut u8,
    log: Vec<String>,
    trace: Option<fs::File>,
}

impl Worker {
    fn new(seed: u64, dir: PathBuf) -> Worker {
        let config = dir.join("config.toml");
        // SAFETY: a string.
        assert_eq!(unsafe { abi::hs_init(c_path(&config).as_ptr()) }, 0, "{}", said());
        let tops = SIDES.map(|side| c_path(&dir.join(side)));
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        let tops = [call!(abi::uopen(tops[0].as_ptr(), flags)), call!(libc::open(tops[1].as_ptr(), flags))];
        assert!(tops.iter().all(|fd| *fd >= 0), "{}", said());
        // The same as the library's: it is opened once a process.
        let instance = Instance::open(&Setup::of(seed).config(&dir)).expect("an instance");
        let trace = trace(&dir);
        Worker {
            rng: Rng::with_seed(0),
            instance,
            dir,
            tops,
            open: Vec::new(),
            maps: Vec::new(),
            pinned: Vec::new(),
            aio: None,
            aio_memory: std::ptr::null_mut(),
            log: Vec::new(),
            trace,
        }
    }

    pub fn path(&self, side: usize, name: usize) -> PathBuf {
        path_in(&self.dir, side, name)
    }

    pub fn say(&mut self, words: impl FnOnce() -> String) {
        if self.log.len() == 2 * LINES {
            self.log.drain(..LINES);
        }
        let words = words();
        if let Some(trace) = &mut self.trace {
            // Which file each number is, and how long: the other workers' lines have other numbers.
            let files = self.open.iter().map(|pair| {
                let mut stat = abi::zeroed_stat();
                call!(libc::fstat(pair.k, &raw mut stat));
                format!("{}:{}", stat.st_ino, stat.st_size)
            });
            let files: Vec<String> = files.collect();
            let mode = self.instance.mode();
            let _ = trace.write_all(format!("{} {words} [{}] {mode:?}\n", std::process::id(), files.join(" ")).as_bytes());
        }
        self.log.push(words);
    }

    fn last(&self) -> String {
        self.log[self.log.len().saturating_sub(LINES)..].join(" | ")
    }

    #[track_caller]
    pub fn same<T: PartialEq + std::fmt::Debug>(&self, cached: &T, plain: &T) {
        if cached != plain {
            let [cached, plain] = [cached, plain].map(|one| format!("{one:?}").chars().take(200).collect::<String>());
            let words = format!("cached {cached} plain {plain} ({}) after {}", said(), self.last());
            // Nothing happened on either side: what else differs is found in the same run.
            let is_errno = [cached, plain].iter().all(|text| text.starts_with("Err("));
            if !is_errno {
                panic!("{words}");
            }
            println!("> differs: {}", words.replace('\n', " "));
        }
    }

    pub fn mode(&self) -> Mode {
        self.instance.mode()
    }

    /// In read-only mode: the answer of a call that would change bytes is EROFS, or what the kernel says of the descriptor. The shadow
    /// stays.
    #[track_caller]
    pub fn refused(&self, answer: Outcome) {
        let is_right = matches!(answer, Err(libc::EROFS | libc::EBADF | libc::EINVAL | libc::EISDIR));
        self.same(&(is_right, answer), &(true, answer));
    }

    fn batch(&mut self, seed: u64, calls: u64) {
        self.rng = Rng::with_seed(seed);
        for _ in 0..calls {
            self.step();
        }
    }

    /// Forgets a handle: what is mapped and pinned through it first.
    pub fn close(&mut self, which: usize) {
        let pair = self.open.swap_remove(which);
        let (of_pair, others) = std::mem::take(&mut self.maps).into_iter().partition(|map| map.pair == pair.u);
        self.maps = others;
        self.unmap(of_pair);
        // What is pinned ends with the last duplicate, or before it.
        for pinned in self.pinned.extract_if(.., |pinned| pinned.u == pair.u) {
            if self.rng.bool() {
                assert_eq!(call!(abi::uunpin(pinned.u, pinned.off, pinned.at)), 0, "{}", said());
            }
        }
        let answers = [done(call!(abi::uclose(pair.u))), done(call!(libc::close(pair.k)))];
        self.same(&answers[0], &answers[1]);
    }

    pub fn unmap(&self, maps: Vec<Map>) {
        for map in maps {
            map.sides.iter().for_each(|side| assert_eq!(call!(libc::munmap(*side, map.len)), 0));
        }
    }

    fn close_all(&mut self) {
        while !self.open.is_empty() {
            self.close(0);
        }
    }

    /// After the other program changed a file, each open file is looked at, as open and sync do.
    fn look(&mut self) {
        self.say(|| "look".to_owned());
        for at in 0..self.open.len() {
            if !self.open[at].is_path {
                let answer = outcome(call!(abi::ufsync(self.open[at].u)));
                self.same(&answer, &Ok(0));
            }
        }
    }

    /// Opens what there is to be opened: so a file that nobody could find is found.
    fn visit(&mut self) {
        for name in 0..NAMES.len() {
            let path = c_path(&self.path(0, name));
            let ufd = call!(abi::uopen(path.as_ptr(), libc::O_RDONLY));
            if ufd >= 0 {
                assert_eq!(call!(abi::uclose(ufd)), 0, "{}", said());
            }
        }
    }

    /// Waits until the leader has noticed the death of each process that was killed.
    fn reaped(&self) {
        let begun = std::time::Instant::now();
        while self.instance.status().processes.iter().any(|process| !process.alive) {
            assert!(begun.elapsed() < std::time::Duration::from_secs(60), "a dead process stays");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    fn flush(&self) {
        self.instance.flush(&mut |_, _| ()).unwrap_or_else(|error| panic!("flush: {error} after {}", self.last()));
    }

    /// Another program changed this file while pages of it may have been dirty: there is a conflict, and its way out, or there is not.
    /// Answers what the file is now: as it was changed (`theirs`), or written over (`ours`).
    fn decide(&mut self, name: usize, how: u8) -> &'static str {
        self.say(|| format!("decide {name} how {how}"));
        let path = self.path(0, name);
        let named = c_path(&path);
        let ufd = call!(abi::uopen(named.as_ptr(), libc::O_RDWR));
        if ufd >= 0 {
            assert_eq!(call!(abi::ufsync(ufd)), 0, "{}", said());
            assert_eq!(call!(abi::uclose(ufd)), 0, "{}", said());
            self.unlock_all();
            return "theirs";
        }
        self.same(&abi::errno(), &libc::ESTALE);
        // It affects no other file, and the status lists it by its name.
        let stranded: Vec<PathBuf> = self.instance.status().stranded.into_iter().map(|one| one.path).collect();
        assert_eq!(stranded.len(), 1, "{stranded:?} after {}", self.last());
        let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).expect("stat"));
        self.same(&inode(&stranded[0]), &inode(&path));
        let failed = self.instance.flush(&mut |_, _| ()).expect_err("a conflict");
        assert!(failed.errno() == libc::ESTALE && failed.to_string().contains(&stranded[0].display().to_string()), "{failed}");
        for other in (0..NAMES.len()).filter(|other| *other != name) {
            let [cached, plain] = [0, 1].map(|side| fs::read(self.path(side, other)).ok());
            let is_it = fs::metadata(self.path(0, other)).is_ok_and(|found| std::os::unix::fs::MetadataExt::ino(&found) == inode(&path));
            assert!(is_it || cached == plain, "file {other} beside a conflict, after {}", self.last());
        }
        if how & 2 != 0 {
            self.export(&path, name);
        }
        let answer = if how & 1 == 0 { call!(abi::hs_discard(named.as_ptr())) } else { call!(abi::hs_force(named.as_ptr())) };
        assert_eq!(answer, 0, "{} after {}", said(), self.last());
        self.unlock_all();
        if how & 1 == 0 { "theirs" } else { "ours" }
    }

    /// Gives back the record locks of this process on both sides: what was opened and closed above, on one side alone, has ended those of
    /// that side.
    fn unlock_all(&self) {
        for Pair { u, k, .. } in &self.open {
            // SAFETY: integers alone, for which zeroes are values: the whole file.
            let mut all: libc::flock = unsafe { std::mem::zeroed() };
            all.l_type = libc::F_UNLCK as _;
            let answers = [call!(abi::ufcntl(*u, libc::F_SETLK, &raw mut all)), call!(libc::fcntl(*k, libc::F_SETLK, &raw mut all))];
            self.same(&answers[0], &answers[1]);
        }
    }

    /// Each page of what is exported is what this side wrote, or what the other program did.
    fn export(&self, path: &Path, name: usize) {
        let to = self.dir.join("exported");
        let _ = fs::remove_file(&to);
        let answer = call!(abi::hs_export(c_path(path).as_ptr(), c_path(&to).as_ptr()));
        assert_eq!(answer, 0, "{} after {}", said(), self.last());
        let [exported, theirs, ours] = [&to, path, &self.path(1, name)].map(|path| fs::read(path).expect("read"));
        assert_eq!(exported.len(), ours.len(), "exported, after {}", self.last());
        for (n, page) in exported.chunks(4096).enumerate() {
            let of = |bytes: &[u8]| bytes.iter().skip(n * 4096).chain([0; 4096].iter()).take(page.len()).copied().collect::<Vec<u8>>();
            assert!(page == of(&ours) || page == of(&theirs), "page {n} exported, after {}", self.last());
        }
        assert_eq!(call!(abi::hs_export(c_path(path).as_ptr(), c_path(&to).as_ptr())), -1);
        assert_eq!(abi::errno(), libc::EEXIST);
        fs::remove_file(&to).expect("removed");
    }

    /// Another mode, while files are open in all processes.
    pub fn switch(&mut self) {
        let mode = MODES[self.rng.usize(..MODES.len())];
        self.say(|| format!("{mode:?} for all"));
        self.instance.set_mode(mode).unwrap_or_else(|error| panic!("{error} after {}", self.last()));
    }
}

/// All calls of all processes in one file, if `LOCKSTEP_TRACE` says so.
pub fn trace(dir: &Path) -> Option<fs::File> {
    std::env::var_os("LOCKSTEP_TRACE")?;
    fs::File::options().append(true).create(true).open(dir.join("trace")).ok()
}

/// Does what the parent says, line by line.
pub fn main() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let seed = std::env::var(SETUP).expect("a seed").parse().expect("a number");
    let mut worker = Worker::new(seed, dir);
    println!("> ready");
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match words[0] {
            "batch" => {
                worker.batch(number(1), number(2));
                "done"
            }
            "decide" => worker.decide(number(1) as usize, number(2) as u8),
            word => {
                match word {
                    "look" => worker.look(),
                    "visit" => worker.visit(),
                    "close" => worker.close_all(),
                    "flush" => worker.flush(),
                    "reaped" => worker.reaped(),
                    "leave" => {
                        worker.close_all();
                        assert_eq!(call!(abi::hs_shutdown()), 0, "{}", said());
                    }
                    other => panic!("{other}?"),
                }
                "done"
            }
        }));
        match answer {
            Ok(answer) => println!("> {answer}"),
            Err(payload) => {
                let words = payload.downcast_ref::<String>().cloned().unwrap_or_else(|| "a panic".to_owned());
                println!("> failed {}", words.replace('\n', " "));
            }
        }
        if words[0] == "leave" {
            // As a program that ends by itself; the harness has nothing to add.
            std::process::exit(0);
        }
    }
}
