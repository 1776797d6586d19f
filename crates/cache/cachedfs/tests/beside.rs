// long: the model, the worker and the parent of one random test, which change together.
//! Several processes use files through the cache, one call at a time, while a program without the cache changes, renames, removes and
//! reads the backing files. The kernel does the same on shadow files, and every result is compared. It makes the calls
//! of Rust, with a mode for each file; crates/frontends/capi/tests/lockstep makes those of C, which are more.
//!
//! Each worker is this program again. It makes its calls from a seed, in batches, and compares them itself. Between two batches the
//! parent is the other program. `LOCKSTEP_CALLS`: how many calls in all (default 40,000); `LOCKSTEP_SEED`: one run, as
//! a failure names it.

use std::fs;
use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use cachedfs::{Config, File, Instance, Kind, Mode, Options, Size, Whence};
use fastrand::Rng;
use rustix::fs::{AtFlags, CWD, FallocateFlags, OFlags, RenameFlags, SeekFrom, Timespec, Timestamps};
use rustix::io::Errno;

/// What a worker finds in its environment.
const DIR: &str = "LOCKSTEP_DIR";
const SETUP: &str = "LOCKSTEP_SETUP";

const NAMES: usize = 4;
const HANDLES: usize = 4;
const LONGEST: u64 = 300 << 10;
const WORKERS: usize = 3;
/// Calls of a batch.
const BATCH: u64 = 100;
/// Batches of a run.
const RUN: u64 = 100;
const MODES: [Mode; 5] = [Mode::WriteBack, Mode::WriteThrough, Mode::WriteAround, Mode::PassThrough, Mode::ReadOnly];

type Outcome<T> = Result<T, i32>;

fn errno<T>(result: Result<T, Errno>) -> Outcome<T> {
    result.map_err(Errno::raw_os_error)
}

fn to_error<T>(result: Result<T, cachedfs::Error>) -> Outcome<T> {
    result.map_err(|error| error.errno())
}

/// What a run is over, from its seed.
#[derive(Clone, Copy, Debug)]
struct Setup {
    seed: u64,
    mode: Mode,
    has_ssd: bool,
    memory: u64,
    direct: bool,
}

impl Setup {
    fn of(seed: u64) -> Setup {
        let mut rng = Rng::with_seed(seed);
        // Read-only comes by a change of the mode: there is nothing to do from the begin.
        let mode = MODES[rng.usize(..4)];
        let memory = [256 << 10, 512 << 10, 2 << 20][rng.usize(..3)];
        Setup { seed, mode, has_ssd: rng.bool(), memory, direct: rng.u8(..8) == 0 }
    }

    fn config(self, dir: &Path) -> Config {
        Config {
            memory: Some(Size::Bytes(self.memory)),
            ssd: self.has_ssd.then(|| dir.join("ssd")),
            ssd_size: self.has_ssd.then_some(Size::Bytes(4 << 20)),
            second_touch: self.seed.is_multiple_of(2),
            dirty_age: "50ms".parse().expect("a time"),
            direct: self.direct,
            mode: self.mode,
            files: 32,
            runtime_dir: dir.to_owned(),
            ..Config::default()
        }
    }
}

/// A file, opened twice: through the cache, and the shadow.
struct Pair {
    cached: File,
    plain: OwnedFd,
}

struct Worker {
    rng: Rng,
    instance: Arc<Instance>,
    dir: PathBuf,
    open: Vec<Pair>,
    log: Vec<String>,
    trace: Option<fs::File>,
}

fn path_in(dir: &Path, side: usize, name: usize) -> PathBuf {
    // In two directories, so that files move.
    dir.join(["cached", "plain"][side]).join(["a", "b"][name % 2]).join(format!("file-{name}"))
}

impl Worker {
    fn path(&self, side: usize, name: usize) -> PathBuf {
        path_in(&self.dir, side, name)
    }

    fn say(&mut self, words: impl FnOnce() -> String) {
        if self.log.len() == 60 {
            self.log.drain(..30);
        }
        let words = words();
        if let Some(trace) = &mut self.trace {
            // Which file each handle has, and how long it is: numbers of handles mean nothing to the other workers' lines.
            let files = self
                .open
                .iter()
                .map(|pair| rustix::fs::fstat(&pair.plain).map_or(String::new(), |stat| format!("{}:{}", stat.st_ino, stat.st_size)));
            let files: Vec<String> = files.collect();
            let _ = trace
                .write_all(format!("{} {words} [{}] {:?}\n", std::process::id(), files.join(" "), self.instance.status().mode).as_bytes());
        }
        self.log.push(words);
    }

    #[track_caller]
    fn same<T: PartialEq + std::fmt::Debug>(&self, cached: &T, plain: &T) {
        if cached != plain {
            let text = |one: &T| format!("{one:?}").chars().take(200).collect::<String>();
            let last = self.log[self.log.len().saturating_sub(30)..].join(" | ");
            panic!("cached {} plain {} after {last}", text(cached), text(plain));
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = match self.rng.u8(..8) {
            0..=2 => self.rng.usize(..20),
            3..=4 => self.rng.usize(..5000),
            5..=6 => 4096,
            _ => self.rng.usize(..30_000),
        };
        let first = self.rng.u8(..);
        (0..len).map(|n| first.wrapping_add((n / 7) as u8)).collect()
    }

    fn place(&mut self) -> u64 {
        let at = self.rng.u64(..LONGEST);
        if self.rng.bool() { at / 4096 * 4096 } else { at }
    }

    /// The mode forbids to write: the answer is EROFS, and the shadow stays.
    fn is_read_only(&self, which: usize) -> bool {
        self.open[which].cached.mode() == Mode::ReadOnly
    }

    fn batch(&mut self, seed: u64, calls: u64) {
        self.rng = Rng::with_seed(seed);
        for _ in 0..calls {
            self.step();
        }
    }

    /// After the other program changed a file, each open file is looked at, as open and sync do.
    fn look(&mut self) {
        self.log.push("look".to_owned());
        let mut stranded = false;
        for pair in &self.open {
            match pair.cached.sync(true) {
                Ok(()) => {}
                Err(error) if error.kind() == Kind::Conflict => stranded = true,
                Err(error) => panic!("{error:?} after {}", self.log.join(" | ")),
            }
        }
        assert!(!stranded, "a conflict without dirty pages after {}", self.log[self.log.len().saturating_sub(30)..].join(" | "));
    }

    fn step(&mut self) {
        if self.open.is_empty() {
            return self.open();
        }
        let which = self.rng.usize(..self.open.len());
        match self.rng.u8(..200) {
            0..=12 => self.open(),
            13..=18 => drop(self.open.swap_remove(which)),
            19..=64 => self.read(which),
            65..=114 => self.write(which),
            115..=122 => self.cut(which),
            123..=129 => self.punch(which),
            130..=135 => self.seek(which),
            136..=140 => self.rename(),
            141..=143 => self.unlink(),
            144..=150 => self.allocate(which),
            151..=158 => self.sync(which),
            159..=165 => self.set_times(which),
            166..=170 => self.chmod(which),
            171 => self.switch(which),
            172..=174 => self.seek_data(which),
            175..=178 => self.pin(which),
            179..=181 => self.cut_by_name(),
            182..=184 => self.append(which),
            185 => self.map(which),
            _ => self.stat(which),
        }
    }

    fn open(&mut self) {
        let access = [OFlags::RDWR, OFlags::RDONLY, OFlags::RDWR][self.rng.usize(..3)];
        let mut flags = access | OFlags::CLOEXEC;
        for (flag, one_of) in
            [(OFlags::CREATE, 2), (OFlags::TRUNC, 10), (OFlags::APPEND, 6), (OFlags::EXCL | OFlags::CREATE, 12), (OFlags::DSYNC, 14)]
        {
            if self.rng.usize(..one_of) == 0 {
                flags |= flag;
            }
        }
        let name = self.rng.usize(..NAMES);
        if flags.contains(OFlags::TRUNC) && self.instance.status().mode == Mode::ReadOnly {
            flags -= OFlags::TRUNC;
        }
        let bits = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let cached = to_error(self.instance.open_file(CWD, &self.path(0, name), flags, bits, &Options::default()));
        let plain = errno(rustix::fs::openat(CWD, self.path(1, name), flags, bits));
        self.say(|| format!("open {name} {flags:?}"));
        self.same(&cached.as_ref().map(drop).map_err(|errno| *errno), &plain.as_ref().map(drop).map_err(|errno| *errno));
        if let (Ok(cached), Ok(plain)) = (cached, plain) {
            if self.open.len() == HANDLES {
                self.open.swap_remove(self.rng.usize(..HANDLES));
            }
            self.open.push(Pair { cached, plain });
        }
    }

    fn read(&mut self, which: usize) {
        let (at, len, how) = (self.place(), self.rng.usize(..9_000), self.rng.u8(..3));
        self.say(|| format!("read {which} at {at} {len} how {how}"));
        let mut bytes = [vec![0; len], vec![0; len]];
        let pair = &self.open[which];
        let [first, second] = &mut bytes;
        let (cached, plain) = match how {
            0 => (to_error(pair.cached.read(first)), errno(rustix::io::read(&pair.plain, second))),
            1 => {
                let (a, b) = first.split_at_mut(len / 3);
                let cached = to_error(pair.cached.read_vectored_at(at, &mut [IoSliceMut::new(a), IoSliceMut::new(b)]));
                (cached, errno(rustix::io::pread(&pair.plain, second, at)))
            }
            _ => (to_error(pair.cached.read_at(at, first)), errno(rustix::io::pread(&pair.plain, second, at))),
        };
        self.same(&cached, &plain);
        let differs = bytes[0].iter().zip(&bytes[1]).position(|(a, b)| a != b);
        self.same(&differs, &None);
    }

    fn write(&mut self, which: usize) {
        let (at, bytes) = (self.place(), self.bytes());
        let how = self.rng.u8(..3);
        self.say(|| format!("write {which} at {at} {} how {how}", bytes.len()));
        let is_read_only = self.is_read_only(which);
        let pair = &self.open[which];
        if is_read_only {
            let refused = to_error(pair.cached.write_at(at, &bytes)).err();
            let is_right = bytes.is_empty()
                || matches!(refused, Some(errno) if errno == Errno::ROFS.raw_os_error() || errno == Errno::BADF.raw_os_error());
            return self.same(&is_right, &true);
        }
        let (cached, plain) = match how {
            0 => (to_error(pair.cached.write(&bytes)), errno(rustix::io::write(&pair.plain, &bytes))),
            1 => {
                let (first, second) = bytes.split_at(bytes.len() / 3);
                let both = [IoSlice::new(first), IoSlice::new(second)];
                (to_error(pair.cached.write_vectored_at(at, &both)), errno(rustix::io::pwritev(&pair.plain, &both, at)))
            }
            _ => (to_error(pair.cached.write_at(at, &bytes)), errno(rustix::io::pwrite(&pair.plain, &bytes, at))),
        };
        self.same(&cached, &plain);
    }

    fn append(&mut self, which: usize) {
        let bytes = self.bytes();
        let pair = &self.open[which];
        let end = rustix::fs::fstat(&pair.plain).expect("stat").st_size as u64;
        if self.is_read_only(which) || end > LONGEST || bytes.is_empty() {
            return;
        }
        self.say(|| format!("append {which} {}", bytes.len()));
        let pair = &self.open[which];
        let plain = errno(rustix::io::pwrite(&pair.plain, &bytes, end)).map(|_| end);
        self.same(&to_error(pair.cached.append(&bytes)), &plain);
    }

    fn cut(&mut self, which: usize) {
        let len = self.place();
        if self.is_read_only(which) {
            return;
        }
        self.say(|| format!("cut {which} to {len}"));
        let pair = &self.open[which];
        let (cached, plain) = (to_error(pair.cached.set_len(len)), errno(rustix::fs::ftruncate(&pair.plain, len)));
        self.same(&cached, &plain);
    }

    fn cut_by_name(&mut self) {
        let (name, len) = (self.rng.usize(..NAMES), self.place());
        if self.instance.status().mode == Mode::ReadOnly || self.open.iter().any(|pair| pair.cached.mode() == Mode::ReadOnly) {
            return;
        }
        self.say(|| format!("cut {name} by name to {len}"));
        let cached = to_error(self.instance.truncate(CWD, &self.path(0, name), len));
        let plain = rustix::fs::openat(CWD, self.path(1, name), OFlags::WRONLY | OFlags::CLOEXEC, rustix::fs::Mode::empty());
        self.same(&cached, &errno(plain.and_then(|fd| rustix::fs::ftruncate(fd, len))));
    }

    fn punch(&mut self, which: usize) {
        let (at, len) = (self.place(), self.rng.u64(1..60_000));
        if self.is_read_only(which) {
            return;
        }
        self.say(|| format!("punch {which} at {at} {len}"));
        let pair = &self.open[which];
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (cached, plain) = (to_error(pair.cached.punch_hole(at..at + len)), errno(rustix::fs::fallocate(&pair.plain, how, at, len)));
        self.same(&cached, &plain);
    }

    fn allocate(&mut self, which: usize) {
        let (at, len, keep) = (self.place(), self.rng.u64(1..60_000), self.rng.bool());
        if self.is_read_only(which) {
            return;
        }
        self.say(|| format!("allocate {which} at {at} {len} {keep}"));
        let pair = &self.open[which];
        let how = if keep { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
        let (cached, plain) = (to_error(pair.cached.allocate(at..at + len, keep)), errno(rustix::fs::fallocate(&pair.plain, how, at, len)));
        self.same(&cached, &plain);
    }

    fn set_times(&mut self, which: usize) {
        let time = |rng: &mut Rng| Timespec { tv_sec: rng.i64(0..2_000_000_000), tv_nsec: rng.i64(0..1_000_000_000) as _ };
        let times = Timestamps { last_access: time(&mut self.rng), last_modification: time(&mut self.rng) };
        self.say(|| format!("times {which} {}", times.last_modification.tv_sec));
        let pair = &self.open[which];
        let (cached, plain) = (to_error(pair.cached.set_times(&times)), errno(rustix::fs::futimens(&pair.plain, &times)));
        self.same(&cached, &plain);
        let (cached, plain) = (pair.cached.stat().expect("stat"), rustix::fs::fstat(&pair.plain).expect("stat"));
        self.same(&(cached.st_mtime, cached.st_mtime_nsec), &(plain.st_mtime, plain.st_mtime_nsec));
    }

    fn chmod(&mut self, which: usize) {
        let bits = rustix::fs::Mode::from_bits_retain(0o600 | self.rng.u32(..0o200));
        self.say(|| format!("chmod {which} {bits:?}"));
        let pair = &self.open[which];
        let cached = to_error(pair.cached.set_attributes(|fd| rustix::fs::fchmod(fd, bits)));
        self.same(&cached, &errno(rustix::fs::fchmod(&pair.plain, bits)));
    }

    fn seek(&mut self, which: usize) {
        let to = self.place();
        let (whence, plain) = match self.rng.u8(..4) {
            0 => (Whence::Start, SeekFrom::Start(to)),
            1 => (Whence::Current, SeekFrom::Current(to as i64 - 100_000)),
            2 => (Whence::End, SeekFrom::End(to as i64 - 300_000)),
            _ => (Whence::Start, SeekFrom::Start(0)),
        };
        let to = match plain {
            SeekFrom::Start(to) => to as i64,
            SeekFrom::Current(to) | SeekFrom::End(to) => to,
            _ => 0,
        };
        self.say(|| format!("seek {which} {whence:?} {to}"));
        let pair = &self.open[which];
        let (cached, plain) = (to_error(pair.cached.seek(to, whence)), errno(rustix::fs::seek(&pair.plain, plain)));
        self.same(&cached, &plain);
    }

    fn rename(&mut self) {
        let (from, to) = (self.rng.usize(..NAMES), self.rng.usize(..NAMES));
        let flags = [RenameFlags::empty(), RenameFlags::EXCHANGE, RenameFlags::NOREPLACE][self.rng.usize(..3)];
        self.say(|| format!("rename {from} to {to} {flags:?}"));
        let cached = to_error(self.instance.rename(CWD, &self.path(0, from), CWD, &self.path(0, to), flags));
        self.same(&cached, &errno(rustix::fs::renameat_with(CWD, self.path(1, from), CWD, self.path(1, to), flags)));
    }

    fn unlink(&mut self) {
        let name = self.rng.usize(..NAMES);
        self.say(|| format!("unlink {name}"));
        let cached = to_error(self.instance.unlink(CWD, &self.path(0, name), AtFlags::empty()));
        self.same(&cached, &errno(rustix::fs::unlink(self.path(1, name))));
    }

    fn sync(&mut self, which: usize) {
        let how = self.rng.u8(..4);
        self.say(|| format!("sync {which} how {how}"));
        let file = &self.open[which].cached;
        let synced = match how {
            0..=1 => to_error(file.sync(how == 1)),
            2 => to_error(file.clean()),
            _ => to_error(self.instance.flush(&mut |_, _| ())),
        };
        self.same(&synced, &Ok(()));
    }

    fn stat(&mut self, which: usize) {
        self.say(|| format!("stat {which}"));
        let pair = &self.open[which];
        let (cached, plain) = (pair.cached.stat().expect("stat"), rustix::fs::fstat(&pair.plain).expect("stat"));
        self.same(&(cached.st_size, cached.st_nlink, cached.st_mode), &(plain.st_size, plain.st_nlink, plain.st_mode));
        let name = self.rng.usize(..NAMES);
        let cached = to_error(self.instance.stat(CWD, &self.path(0, name), AtFlags::empty())).map(|stat| stat.st_size);
        self.same(&cached, &errno(rustix::fs::stat(self.path(1, name))).map(|stat| stat.st_size));
    }

    /// Another mode, while files are open in all processes.
    fn switch(&mut self, which: usize) {
        let all = self.rng.bool();
        // No single file is made read-only, since opens by its name would have to know.
        let mode = MODES[self.rng.usize(..MODES.len() - usize::from(!all))];
        self.say(|| format!("{mode:?} for {}", if all { "all".to_owned() } else { which.to_string() }));
        let switched = if all { self.instance.set_mode(mode) } else { self.open[which].cached.set_mode(mode) };
        self.same(&to_error(switched), &Ok(()));
    }

    fn seek_data(&mut self, which: usize) {
        let at = self.place();
        self.say(|| format!("seek data {which} {at}"));
        let pair = &self.open[which];
        // Where holes are is the file system's business; that data is not taken for a hole is ours.
        let end = pair.cached.stat().expect("stat").st_size as u64;
        if let Ok(hole) = pair.cached.seek(at as i64, Whence::Hole) {
            self.same(&(hole >= at && hole <= end), &true);
            let mut bytes = vec![0; 4096];
            if hole < end
                && let Ok(got) = rustix::io::pread(&pair.plain, &mut bytes, hole)
            {
                self.same(&bytes[..got.min(4096 - (hole % 4096) as usize)].iter().all(|byte| *byte == 0), &true);
            }
        } else {
            self.same(&(at >= end), &true);
        }
        let back = to_error(pair.cached.seek(0, Whence::Start));
        self.same(&back, &errno(rustix::fs::seek(&pair.plain, SeekFrom::Start(0))));
    }

    fn pin(&mut self, which: usize) {
        let (at, len) = (self.place(), self.rng.usize(1..9000));
        self.say(|| format!("pin {which} {at} {len}"));
        let pair = &self.open[which];
        let plain = errno(rustix::io::pread(&pair.plain, &mut vec![0; len.min(4096 - (at % 4096) as usize)][..], at));
        self.same(&to_error(pair.cached.pin(at, len)).map(|pinned| pinned.len()), &plain);
    }

    /// A mapping shows the backing file, and from here on a read shows the same.
    fn map(&mut self, which: usize) {
        if self.is_read_only(which) {
            return;
        }
        self.say(|| format!("map {which}"));
        let pair = &self.open[which];
        self.same(&to_error(pair.cached.prepare_mapping(false)), &Ok(()));
        let size = rustix::fs::fstat(&pair.plain).expect("stat").st_size as usize;
        let mut bytes = [vec![0; size + 1], vec![0; size + 1]];
        // A reader of the backing file sees what a mapping does.
        let below = rustix::fs::openat(
            CWD,
            format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&pair.cached.fd())),
            OFlags::RDONLY | OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        );
        let got = below.and_then(|below| rustix::io::pread(&below, &mut bytes[0], 0)).expect("read below");
        let plain = errno(rustix::fs::openat(
            CWD,
            format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&pair.plain)),
            OFlags::RDONLY | OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        ));
        let want = plain.map(|plain| rustix::io::pread(&plain, &mut bytes[1], 0).expect("read"));
        self.same(&Ok(got), &want);
        self.same(&(bytes[0] == bytes[1]), &true);
    }
}

/// All calls of all processes in one file, if `LOCKSTEP_TRACE` says so.
fn trace(dir: &Path) -> Option<fs::File> {
    std::env::var_os("LOCKSTEP_TRACE")?;
    fs::File::options().append(true).create(true).open(dir.join("trace")).ok()
}

/// Not a test by itself: a worker.
#[test]
fn worker() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let seed = std::env::var(SETUP).expect("a seed").parse().expect("a number");
    let instance = Instance::open(&Setup::of(seed).config(&dir)).expect("an instance");
    let mut worker = Worker { rng: Rng::with_seed(0), instance, open: Vec::new(), log: Vec::new(), trace: trace(&dir), dir };
    println!("> ready");
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        let words: Vec<&str> = line.split(' ').collect();
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match words[0] {
            "batch" => worker.batch(words[1].parse().expect("a seed"), words[2].parse().expect("a count")),
            "look" => worker.look(),
            "close" => worker.open.clear(),
            "flush" => worker.instance.flush(&mut |_, _| ()).expect("all below"),
            "leave" => {
                worker.open.clear();
                worker.instance.detach().expect("left");
            }
            other => panic!("{other}?"),
        }));
        match done {
            Ok(()) => println!("> done"),
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

/// A worker, as the parent has it.
struct Process {
    child: Child,
    answers: BufReader<ChildStdout>,
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
        let mut process = Process { child, answers };
        assert_eq!(process.answer(), "ready");
        process
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            if self.answers.read_line(&mut line).expect("an answer") == 0 {
                return "failed: the worker ended".to_owned();
            }
            if let Some((_, answer)) = line.trim_end().split_once("> ") {
                return answer.to_owned();
            }
        }
    }

    #[track_caller]
    fn ask(&mut self, what: &str) {
        writeln!(self.child.stdin.as_mut().expect("piped"), "{what}").expect("to_error");
        let answer = self.answer();
        assert_eq!(answer, "done", "{what}");
    }

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

    /// What the program without the cache does between two batches.
    fn other_program(&mut self) {
        let (name, other) = (self.rng.usize(..NAMES), self.rng.usize(..NAMES));
        let (from, to) = (self.both(name), self.both(other));
        let at = self.rng.u64(..LONGEST);
        let len = self.rng.usize(1..9000);
        let mut is_content = false;
        let what = self.rng.u8(..10);
        if let Some(mut trace) = trace(&self.dir) {
            let _ = writeln!(trace, "other program {what}: {name} {other} at {at} {len}");
        }
        match what {
            // Names and attributes, whatever is dirty: never a conflict.
            0 => {
                let flags = [RenameFlags::empty(), RenameFlags::EXCHANGE][self.rng.usize(..2)];
                let done = [0, 1].map(|side| rustix::fs::renameat_with(CWD, &from[side], CWD, &to[side], flags));
                assert_eq!(done[0], done[1], "rename {name} to {other}");
            }
            1 => {
                let done = [0, 1].map(|side| fs::remove_file(&from[side]).is_ok());
                assert_eq!(done[0], done[1], "remove {name}");
            }
            2 | 3 => {
                let bits = 0o600 | self.rng.u32(..0o200);
                for path in &from {
                    let _ = fs::set_permissions(path, fs::Permissions::from_mode(bits));
                }
            }
            // Replaced, as editors do.
            4 => {
                for (side, path) in from.iter().enumerate() {
                    let new = self.dir.join(["cached", "plain"][side]).join("new");
                    fs::write(&new, vec![at as u8; len]).expect("written");
                    fs::rename(&new, path).expect("replaced");
                }
            }
            // Read, once all is below.
            5 => {
                self.workers[0].ask("flush");
                let [cached, plain] = from.map(|path| fs::read(path).ok());
                assert!(cached == plain, "file {name} read by another program");
            }
            // Changed, once nothing is dirty.
            _ => {
                self.workers[0].ask("flush");
                self.next_tick(&from[0]);
                let how = self.rng.u8(..3);
                for path in &from {
                    let Ok(file) = fs::OpenOptions::new().write(true).open(path) else { continue };
                    is_content = true;
                    match how {
                        0 => file.set_len(at / 2).expect("cut"),
                        1 => file.set_times(fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH)).expect("times"),
                        _ => file.write_all_at(&vec![at as u8; len], at).expect("written"),
                    }
                }
            }
        }
        if is_content {
            self.workers.iter_mut().for_each(|worker| worker.ask("look"));
        }
    }

    fn compare(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.ask("close"));
        self.workers[0].ask("flush");
        for name in 0..NAMES {
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
                // Perhaps it led. What it had open is closed.
                self.workers[worker].kill();
                self.workers[worker] = Process::start(&self.dir, self.seed);
            }
            if batch % 25 == 24 {
                self.compare();
            }
        }
        self.compare();
        for worker in &mut self.workers {
            worker.ask("leave");
        }
    }
}

fn run(seed: u64, batches: u64) {
    let setup = Setup::of(seed);
    // In memory where that is possible: the file system's own work is not what is tested.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
    for side in ["cached", "plain"] {
        ["a", "b"].iter().for_each(|name| fs::create_dir_all(dir.path().join(side).join(name)).expect("made"));
    }
    let workers = (0..WORKERS).map(|_| Process::start(dir.path(), seed)).collect();
    let run = Run { rng: Rng::with_seed(seed ^ 0x5eed), dir: dir.path().to_owned(), seed, workers };
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

/// Runs of seeds from a queue that several threads take from.
#[test]
fn beside_another_program_as_the_kernel() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("LOCKSTEP_SEED") {
        return run(seed, RUN);
    }
    let calls = number("LOCKSTEP_CALLS").unwrap_or(40_000);
    let (first, runs) = (number("LOCKSTEP_FIRST").unwrap_or(0), calls.div_ceil(BATCH * RUN));
    let next = std::sync::atomic::AtomicU64::new(first);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if seed >= first + runs {
                        return;
                    }
                    run(seed, RUN);
                }
            });
        }
    });
}
