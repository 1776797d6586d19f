//! Asynchronous reads: every page that comes back is one that was there while the read was under way, whole.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cachedfs::{AsyncReader, Config, Ended, File, Instance, Mode, Options, Outcome, PreparedRead, Size, SubmitResult};
use rustix::fs::{CWD, OFlags};

const PAGE: usize = 4096;
const PAGES: u64 = 600;

fn instance(dir: &Path, has_ssd: bool, mode: Mode) -> Arc<Instance> {
    let config = Config {
        memory: Some(Size::Bytes(256 << 10)),
        ssd: has_ssd.then(|| dir.join("ssd")),
        ssd_size: has_ssd.then_some(Size::Bytes(16 << 20)),
        mode,
        files: 64,
        runtime_dir: dir.to_owned(),
        private: true,
        ..Config::default()
    };
    Instance::open(&config).expect("an instance")
}

fn open(instance: &Arc<Instance>, path: &Path) -> File {
    let bits = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    instance.open_file(CWD, path, OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC, bits, &Options::default()).expect("opened")
}

/// A page full of its number and version.
fn stamped(page: u64, version: u64) -> Vec<u8> {
    (page << 32 | version).to_le_bytes().repeat(PAGE / 8)
}

/// The arguments of a read.
#[derive(Debug)]
struct Asked {
    at: u64,
    /// Versions of all pages then.
    before: Vec<u64>,
}

/// The bytes of each page are of one version, at least as new as when it began and no newer than now.
fn check(asked: &Asked, bytes: &[u8], now: &[u64], seed: u64) {
    let mut at = asked.at;
    let mut rest = bytes;
    while !rest.is_empty() {
        let (page, offset) = (at / PAGE as u64, (at % PAGE as u64) as usize);
        let (here, after) = rest.split_at((PAGE - offset).min(rest.len()));
        let known = asked.before[page as usize]..=now[page as usize];
        let is_one = known.clone().any(|version| stamped(page, version)[offset..offset + here.len()] == *here);
        assert!(is_one, "seed {seed}: page {page} from {offset}: {:?}, not of {known:?}", &here[..here.len().min(16)]);
        (at, rest) = (at + here.len() as u64, after);
    }
}

fn write(file: &File, versions: &mut [u64], page: u64) {
    versions[page as usize] += 1;
    file.write_at(page * PAGE as u64, &stamped(page, versions[page as usize])).expect("written");
}

struct AsyncReadTest {
    file: File,
    reads: AsyncReader<Asked, Vec<u8>>,
    versions: Vec<u64>,
    random: fastrand::Rng,
    seed: u64,
    /// Under way, or ended and not taken.
    begun: usize,
    /// At once, later, not at all.
    ended: [u32; 3],
}

impl AsyncReadTest {
    fn end(&mut self, mut ended: Ended<Asked, Vec<u8>>, later: usize) {
        let asked = &ended.token;
        let (want, size) = (ended.buffer.len(), PAGES * PAGE as u64);
        let got = match ended.outcome {
            Outcome::Read(got) => got,
            Outcome::Slow => self.file.read_at(asked.at, &mut ended.buffer).expect("read"),
            Outcome::Lost => panic!("of memory of the caller's alone"),
        };
        self.ended[if ended.outcome == Outcome::Slow { 2 } else { later }] += 1;
        assert_eq!(got as u64, (want as u64).min(size.saturating_sub(asked.at)), "seed {}: {asked:?}", self.seed);
        check(asked, &ended.buffer[..got], &self.versions, self.seed);
    }

    fn begin(&mut self) {
        let (at, len) = match self.random.u32(..10) {
            0..6 => (self.random.u64(..PAGES) * PAGE as u64, PAGE),
            6..8 => (self.random.u64(..PAGES * PAGE as u64), self.random.usize(..PAGE)),
            8 => (self.random.u64(..PAGES * PAGE as u64), self.random.usize(..9 * PAGE)),
            _ => ((PAGES - 1) * PAGE as u64 + self.random.u64(..2 * PAGE as u64), PAGE),
        };
        // Announced or not it is the same read, whatever is written after that and before it begins.
        let reading = self.reads.reading(&self.file);
        let announced = if self.random.bool() { reading.expect(at) } else { reading.expect(self.random.u64(..)).and(None) };
        announced.iter().filter(|_| self.random.bool()).for_each(PreparedRead::is_next);
        if self.random.u8(..8) == 0 {
            let page = (at / PAGE as u64).min(PAGES - 1);
            write(&self.file, &mut self.versions, page);
            if self.random.bool() {
                self.file.sync(false).expect("synced");
            }
        }
        let (buffer, asked) = (vec![0xee; len], Asked { at, before: self.versions.clone() });
        let begun = match &announced {
            Some(announced) => self.reads.submit_prepared(announced, buffer, asked),
            None => self.reads.begin(&self.file, at, buffer, asked),
        };
        match begun {
            SubmitResult::Ended(ended) => self.end(ended, 0),
            SubmitResult::UnderWay => self.begun += 1,
            SubmitResult::Full(..) => panic!("never more than it was made for"),
        }
    }

    /// Waits, and takes so many at most.
    fn take(&mut self, most: usize) {
        self.reads.wait(Duration::from_secs(60));
        for _ in 0..most {
            let Some(ended) = self.reads.take() else { break };
            self.begun -= 1;
            self.end(ended, 1);
        }
    }

    fn step(&mut self, depth: usize) {
        match self.random.u32(..100) {
            0..70 if self.begun < depth => self.begin(),
            0..90 => {
                let most = self.random.usize(1..=depth);
                self.take(most);
            }
            90..99 => {
                write(&self.file, &mut self.versions, self.random.u64(..PAGES));
            }
            _ => self.file.sync(false).expect("synced"),
        }
    }
}

fn run(has_ssd: bool, mode: Mode, seed: u64, steps: usize) -> [u32; 3] {
    let dir = tempfile::tempdir().expect("a directory");
    let instance = instance(dir.path(), has_ssd, mode);
    let file = open(&instance, &dir.path().join("file"));
    for page in 0..PAGES {
        file.write_at(page * PAGE as u64, &stamped(page, 0)).expect("written");
    }
    // Now the SSD has them all, and memory a tenth.
    file.sync(false).expect("synced");
    let depth = 16;
    let (reads, versions, random) = (AsyncReader::new(depth), vec![0; PAGES as usize], fastrand::Rng::with_seed(seed));
    let mut test = AsyncReadTest { file, reads, versions, random, seed, begun: 0, ended: [0; 3] };
    (0..steps).for_each(|_| test.step(depth as usize));
    while test.begun > 0 {
        test.take(1);
    }
    assert_eq!(test.reads.under_way(), 0);
    assert!(test.reads.take().is_none());
    let ended = test.ended;
    drop(test);
    instance.check().expect("whole");
    instance.detach().expect("left");
    ended
}

#[test]
fn each_page_is_one_that_was_there_meanwhile() {
    let steps = if std::env::var("FULL").is_ok_and(|full| full == "1") { 200_000 } else { 4_000 };
    let seed = fastrand::u64(..1 << 40);
    println!("seed {seed}");
    let [at_once, later, _] = run(true, Mode::WriteBack, seed, steps);
    assert!(at_once > 0 && later > 0, "{at_once} from memory, {later} from the SSD");
    run(true, Mode::WriteThrough, seed, steps / 4);
    let [_, later, slow] = run(false, Mode::WriteBack, seed, steps / 4);
    assert!(later == 0 && slow > 0, "without an SSD what is not in memory is slow");
}

/// As many pages as there are places at once, several times over, in one read.
#[test]
fn what_finds_no_place_goes_on_later() {
    let dir = tempfile::tempdir().expect("a directory");
    let instance = instance(dir.path(), true, Mode::WriteBack);
    let file = open(&instance, &dir.path().join("file"));
    for page in 0..PAGES {
        file.write_at(page * PAGE as u64, &stamped(page, 1)).expect("written");
    }
    file.sync(false).expect("synced");
    let mut reads = AsyncReader::new(4);
    let mut left = 0;
    for n in 0..4_u64 {
        match reads.begin(&file, n * 100 * PAGE as u64, vec![0; 100 * PAGE], n) {
            SubmitResult::UnderWay => left += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(reads.begin(&file, 500 * PAGE as u64, vec![0; PAGE], 9), SubmitResult::Full(9, _) | SubmitResult::Ended(_)));
    while left > 0 {
        reads.wait(Duration::from_secs(60));
        while let Some(mut ended) = reads.take() {
            let first = ended.token * 100;
            if ended.outcome == Outcome::Slow {
                assert_eq!(file.read_at(first * PAGE as u64, &mut ended.buffer).expect("read"), 100 * PAGE);
            } else {
                assert_eq!(ended.outcome, Outcome::Read(100 * PAGE));
            }
            (0..100).for_each(|n| assert_eq!(ended.buffer[n * PAGE..][..PAGE], stamped(first + n as u64, 1)));
            left -= 1;
        }
    }
}
