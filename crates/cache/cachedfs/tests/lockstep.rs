//! The same random calls on files of the cache and on plain files, compared call by call.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use cachedfs::{Config, File, Instance, Mode, Options, Size, Whence};
use fastrand::Rng;
use rustix::fs::{AtFlags, CWD, FallocateFlags, OFlags, RenameFlags, SeekFrom};
use rustix::io::Errno;

const NAMES: usize = 3;
const HANDLES: usize = 4;
/// Bytes that files have at most: more than the memory of the cache.
const LONGEST: u64 = 600 << 10;

type Outcome<T> = Result<T, i32>;

/// A file, opened twice: through the cache, and plain.
struct Pair {
    cached: File,
    plain: OwnedFd,
}

struct Run {
    rng: Rng,
    instance: Arc<Instance>,
    dirs: [PathBuf; 2],
    open: Vec<Pair>,
    log: Vec<String>,
}

fn errno<T>(result: Result<T, Errno>) -> Outcome<T> {
    result.map_err(Errno::raw_os_error)
}

fn to_error<T>(result: Result<T, cachedfs::Error>) -> Outcome<T> {
    result.map_err(|error| error.errno())
}

impl Run {
    fn path(&self, side: usize, name: usize) -> PathBuf {
        self.dirs[side].join(format!("file-{name}"))
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = match self.rng.u8(..4) {
            0 => self.rng.usize(..20),
            1 => self.rng.usize(..5000),
            2 => 4096,
            _ => self.rng.usize(..60_000),
        };
        let first = self.rng.u8(..);
        (0..len).map(|n| first.wrapping_add((n / 7) as u8)).collect()
    }

    fn place(&mut self) -> u64 {
        let at = self.rng.u64(..LONGEST);
        if self.rng.bool() { at / 4096 * 4096 } else { at }
    }

    fn open(&mut self) {
        let access = [OFlags::RDWR, OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR][self.rng.usize(..4)];
        let mut flags = access | OFlags::CLOEXEC;
        for (flag, one_of) in
            [(OFlags::CREATE, 2), (OFlags::TRUNC, 8), (OFlags::APPEND, 5), (OFlags::EXCL | OFlags::CREATE, 12), (OFlags::DSYNC, 12)]
        {
            if self.rng.usize(..one_of) == 0 {
                flags |= flag;
            }
        }
        let name = self.rng.usize(..NAMES);
        let bits = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let cached = to_error(self.instance.open_file(CWD, &self.path(0, name), flags, bits, &Options::default()));
        let plain = errno(rustix::fs::openat(CWD, self.path(1, name), flags, bits));
        self.log.push(format!("open {name} {flags:?}: {:?}", plain.as_ref().err()));
        self.same(&cached.as_ref().map(drop).map_err(|errno| *errno), &plain.as_ref().map(drop).map_err(|errno| *errno));
        if let (Ok(cached), Ok(plain)) = (cached, plain) {
            if self.open.len() == HANDLES {
                self.open.swap_remove(self.rng.usize(..HANDLES));
            }
            self.open.push(Pair { cached, plain });
        }
    }

    fn same<T: PartialEq + std::fmt::Debug>(&self, cached: &T, plain: &T) {
        let last = || self.log[self.log.len().saturating_sub(25)..].join("\n");
        if cached != plain {
            let text = |one: &T| format!("{one:?}").chars().take(200).collect::<String>();
            panic!("cached: {}\nplain:  {}\nafter\n{}", text(cached), text(plain), last());
        }
    }

    fn step(&mut self) {
        if self.open.is_empty() {
            return self.open();
        }
        let which = self.rng.usize(..self.open.len());
        match self.rng.u8(..100) {
            0..=9 => self.open(),
            10..=12 => drop(self.open.swap_remove(which)),
            13..=34 => self.read(which),
            35..=59 => self.write(which),
            60..=65 => self.cut(which),
            66..=70 => self.punch(which),
            71..=73 => self.seek(which),
            74..=76 => self.rename(),
            77..=79 => self.unlink(),
            80..=83 => self.allocate(which),
            84..=87 => self.sync(which),
            88..=90 => self.others_change(),
            91 => self.switch(which),
            92 => self.seek_data(which),
            93..=94 => self.pin(which),
            _ => self.stat(which),
        }
    }

    fn read(&mut self, which: usize) {
        let (at, len) = (self.place(), self.rng.usize(..40_000));
        let has_position = self.rng.bool();
        self.log.push(format!("read {which} at {at} {len} position {has_position}"));
        let mut bytes = [vec![0; len], vec![0; len]];
        let pair = &self.open[which];
        let [first, second] = &mut bytes;
        let (cached, plain) = if has_position {
            (to_error(pair.cached.read(first)), errno(rustix::io::read(&pair.plain, second)))
        } else {
            (to_error(pair.cached.read_at(at, first)), errno(rustix::io::pread(&pair.plain, second, at)))
        };
        self.same(&cached, &plain);
        let differs = bytes[0].iter().zip(&bytes[1]).position(|(a, b)| a != b);
        self.same(&differs, &None);
    }

    fn write(&mut self, which: usize) {
        let (at, bytes) = (self.place(), self.bytes());
        let how = self.rng.u8(..3);
        self.log.push(format!("write {which} at {at} {} how {how}", bytes.len()));
        let pair = &self.open[which];
        let (cached, plain) = match how {
            0 => (to_error(pair.cached.write(&bytes)), errno(rustix::io::write(&pair.plain, &bytes))),
            1 => {
                let (first, second) = bytes.split_at(bytes.len() / 3);
                let both = [std::io::IoSlice::new(first), std::io::IoSlice::new(second)];
                (to_error(pair.cached.write_vectored_at(at, &both)), errno(rustix::io::pwritev(&pair.plain, &both, at)))
            }
            _ => (to_error(pair.cached.write_at(at, &bytes)), errno(rustix::io::pwrite(&pair.plain, &bytes, at))),
        };
        self.same(&cached, &plain);
    }

    fn cut(&mut self, which: usize) {
        let len = self.place();
        self.log.push(format!("cut {which} to {len}"));
        let pair = &self.open[which];
        let (cached, plain) = (to_error(pair.cached.set_len(len)), errno(rustix::fs::ftruncate(&pair.plain, len)));
        self.same(&cached, &plain);
    }

    fn punch(&mut self, which: usize) {
        let (at, len) = (self.place(), self.rng.u64(1..100_000));
        self.log.push(format!("punch {which} at {at} {len}"));
        let pair = &self.open[which];
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (cached, plain) = (to_error(pair.cached.punch_hole(at..at + len)), errno(rustix::fs::fallocate(&pair.plain, how, at, len)));
        self.same(&cached, &plain);
    }

    fn allocate(&mut self, which: usize) {
        let (at, len, keep) = (self.place(), self.rng.u64(1..100_000), self.rng.bool());
        self.log.push(format!("allocate {which} at {at} {len} {keep}"));
        let pair = &self.open[which];
        let how = if keep { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
        let (cached, plain) = (to_error(pair.cached.allocate(at..at + len, keep)), errno(rustix::fs::fallocate(&pair.plain, how, at, len)));
        self.same(&cached, &plain);
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
        self.log.push(format!("seek {which} {whence:?} {to}"));
        let pair = &self.open[which];
        let (cached, plain) = (to_error(pair.cached.seek(to, whence)), errno(rustix::fs::seek(&pair.plain, plain)));
        self.same(&cached, &plain);
    }

    fn rename(&mut self) {
        let (from, to) = (self.rng.usize(..NAMES), self.rng.usize(..NAMES));
        self.log.push(format!("rename {from} to {to}"));
        let through = self.rng.bool();
        let cached = if through {
            to_error(self.instance.rename(CWD, &self.path(0, from), CWD, &self.path(0, to), RenameFlags::empty()))
        } else {
            errno(rustix::fs::renameat(CWD, self.path(0, from), CWD, self.path(0, to)))
        };
        let plain = errno(rustix::fs::renameat(CWD, self.path(1, from), CWD, self.path(1, to)));
        self.same(&cached, &plain);
    }

    fn unlink(&mut self) {
        let name = self.rng.usize(..NAMES);
        self.log.push(format!("unlink {name}"));
        let cached = if self.rng.bool() {
            to_error(self.instance.unlink(CWD, &self.path(0, name), AtFlags::empty()))
        } else {
            errno(rustix::fs::unlink(self.path(0, name)))
        };
        self.same(&cached, &errno(rustix::fs::unlink(self.path(1, name))));
    }

    fn sync(&mut self, which: usize) {
        self.log.push(format!("sync {which}"));
        let file = &self.open[which].cached;
        let synced = if self.rng.bool() { to_error(file.sync(false)) } else { to_error(file.clean()) };
        self.same(&synced, &Ok(()));
    }

    /// Another program changes a file; the next open, or sync, sees it.
    fn others_change(&mut self) {
        let (name, at, bytes) = (self.rng.usize(..NAMES), self.place(), self.bytes());
        self.log.push(format!("from outside: {name} at {at} {}", bytes.len()));
        // With dirty pages it would be a conflict.
        let flushed = to_error(self.instance.flush(&mut |_, _| ()));
        self.same(&flushed, &Ok(()));
        let keep = self.rng.bool();
        for side in 0..2 {
            let Ok(file) = fs::OpenOptions::new().write(true).truncate(false).open(self.path(side, name)) else { return };
            std::os::unix::fs::FileExt::write_all_at(&file, &bytes, at).expect("written");
            if !keep {
                file.set_len(at / 2).expect("cut");
            }
        }
        for pair in &self.open {
            self.same(&to_error(pair.cached.sync(true)), &Ok(()));
        }
    }

    fn stat(&mut self, which: usize) {
        self.log.push(format!("stat {which}"));
        let pair = &self.open[which];
        let (cached, plain) = (pair.cached.stat().expect("stat"), rustix::fs::fstat(&pair.plain).expect("stat"));
        self.same(&(cached.st_size, cached.st_nlink), &(plain.st_size, plain.st_nlink));
        let name = self.rng.usize(..NAMES);
        let cached = to_error(self.instance.stat(CWD, &self.path(0, name), AtFlags::empty())).map(|stat| stat.st_size);
        self.same(&cached, &errno(rustix::fs::stat(self.path(1, name))).map(|stat| stat.st_size));
    }

    /// Another mode, while files are open.
    fn switch(&mut self, which: usize) {
        let mode = MODES[self.rng.usize(..MODES.len())];
        let all = self.rng.bool();
        self.log.push(format!("{mode:?} for {}", if all { "all".to_owned() } else { which.to_string() }));
        let switched = if all { self.instance.set_mode(mode) } else { self.open[which].cached.set_mode(mode) };
        self.same(&to_error(switched), &Ok(()));
    }

    fn seek_data(&mut self, which: usize) {
        let at = self.place();
        self.log.push(format!("seek data {which} {at}"));
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
        self.log.push(format!("pin {which} {at} {len}"));
        let pair = &self.open[which];
        let plain = errno(rustix::io::pread(&pair.plain, &mut vec![0; len.min(4096 - (at % 4096) as usize)][..], at));
        self.same(&to_error(pair.cached.pin(at, len)).map(|pinned| pinned.len()), &plain);
    }

    fn end(mut self) {
        self.open.clear();
        self.log.push("end".to_owned());
        let left = to_error(self.instance.detach());
        self.same(&left, &Ok(()));
        for name in 0..NAMES {
            let [cached, plain] = [0, 1].map(|side| fs::read(self.path(side, name)).ok());
            self.same(&(cached == plain), &true);
        }
    }
}

fn run(seed: u64, mode: Mode, has_ssd: bool, steps: usize) {
    println!("seed {seed} {mode:?} ssd {has_ssd}");
    let dir = tempfile::tempdir().expect("a directory");
    let dirs = ["cached", "plain"].map(|name| dir.path().join(name));
    dirs.iter().for_each(|dir| fs::create_dir(dir).expect("made"));
    let config = Config {
        memory: Some(Size::Bytes(512 << 10)),
        ssd: has_ssd.then(|| dir.path().join("ssd")),
        ssd_size: has_ssd.then_some(Size::Bytes(4 << 20)),
        second_touch: seed.is_multiple_of(2),
        direct: seed % 4 == 3,
        mode,
        files: 32,
        runtime_dir: dir.path().to_owned(),
        ..Config::default()
    };
    let instance = Instance::open(&config).expect("an instance");
    let mut run = Run { rng: Rng::with_seed(seed), instance, dirs, open: Vec::new(), log: Vec::new() };
    for _ in 0..steps {
        run.step();
    }
    run.end();
}

const MODES: [Mode; 4] = [Mode::WriteBack, Mode::WriteThrough, Mode::WriteAround, Mode::PassThrough];

/// How many seeds: one, or many when there is time.
fn seeds() -> std::ops::Range<u64> {
    let from = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    match (from, std::env::var("FULL").is_ok_and(|full| full == "1")) {
        (Some(seed), _) => seed..seed + 1,
        (None, true) => 0..40,
        (None, false) => 0..1,
    }
}

#[test]
fn in_memory_as_plain_files() {
    for seed in seeds() {
        MODES.into_iter().for_each(|mode| run(seed, mode, false, 250));
    }
}

#[test]
fn with_an_ssd_as_plain_files() {
    for seed in seeds() {
        MODES.into_iter().for_each(|mode| run(seed, mode, true, 250));
    }
}
