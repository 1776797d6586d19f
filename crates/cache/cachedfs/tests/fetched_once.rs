//! Threads and processes that miss the same pages share one read of the backing file. The processes are this program again, told by its
//! environment what to do.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use cachedfs::{Config, Instance, Mode, Options, Size};
use rustix::fs::{CWD, OFlags};

const PAGE: usize = 4096;
/// What a child finds in its environment: the directory of the instance.
const DIR: &str = "CACHEDFS_FETCHED_ONCE_DIR";
/// The size of the file that processes read.
const SHARED_SIZE: usize = 4 << 20;

/// Returns how many bytes of backing files were read so far.
fn below_bytes(instance: &Instance) -> u64 {
    let tiers = instance.status().tiers;
    tiers.iter().find(|tier| tier.name == "below").expect("is shown").read_bytes
}

/// Threads that read the same file at the same time wait for each other's reads of the backing file: each byte is read from it once.
#[test]
fn threads_that_read_the_same_file_fetch_each_byte_once() {
    const SIZE: usize = 8 << 20;
    let dir = tempfile::tempdir().expect("a directory");
    let config = Config {
        name: "fetched-once".into(),
        memory: Some(Size::Bytes(64 << 20)),
        mode: Mode::ReadOnly,
        runtime_dir: dir.path().to_owned(),
        private: true,
        ..Config::default()
    };
    let instance = Instance::open(&config).expect("an instance");
    let content: Vec<u8> = (0..SIZE as u32 / 4).flat_map(u32::to_le_bytes).collect();
    for (name, piece, share) in [("large", 128 << 10, 1), ("small", PAGE, 1), ("by turns", 64 << 10, 2)] {
        let path = dir.path().join(name);
        std::fs::write(&path, &content).expect("written");
        let before = below_bytes(&instance);
        let bits = rustix::fs::Mode::empty();
        let file = instance.open_file(CWD, &path, OFlags::RDONLY | OFlags::CLOEXEC, bits, &Options::default()).expect("opened");
        std::thread::scope(|threads| {
            for thread in 0..4 {
                let (file, content) = (&file, &content);
                threads.spawn(move || {
                    let mut bytes = vec![0; piece];
                    for n in (thread % share..SIZE / piece).step_by(share) {
                        assert_eq!(file.read_at((n * piece) as u64, &mut bytes).expect("read"), piece);
                        assert!(bytes == content[n * piece..][..piece], "{name}: wrong bytes in piece {n}");
                    }
                });
            }
        });
        let read = below_bytes(&instance) - before;
        assert!(read <= SIZE as u64 * 102 / 100, "{name}: {read} bytes were read for {SIZE}");
    }
}

fn shared_config(dir: &Path) -> Config {
    Config {
        name: "fetched-once".into(),
        memory: Some(Size::Bytes(32 << 20)),
        mode: Mode::WriteThrough,
        runtime_dir: dir.to_owned(),
        ..Config::default()
    }
}

/// Returns the content of the file of a round: each word differs from those of other places and rounds.
fn content_of(round: u64) -> Vec<u8> {
    (0..SHARED_SIZE as u64 / 8).flat_map(|word| (round << 32 | word).to_le_bytes()).collect()
}

/// Not a test by itself: a process that reads the file of a round in pieces, in the order of a seed (0: from the begin). It reports
/// when it has read the number of pieces that the line names.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let instance = Instance::open(&shared_config(&dir)).expect("an instance");
    println!("> ready");
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().expect("a number")).collect();
        let (round, piece, seed, report_at) = (numbers[0], numbers[1] as usize, numbers[2], numbers[3] as usize);
        let path = dir.join(round.to_string());
        let bits = rustix::fs::Mode::empty();
        let file = instance.open_file(CWD, &path, OFlags::RDONLY | OFlags::CLOEXEC, bits, &Options::default()).expect("opened");
        let content = content_of(round);
        let mut pieces: Vec<usize> = (0..SHARED_SIZE / piece).collect();
        if seed != 0 {
            fastrand::Rng::with_seed(seed).shuffle(&mut pieces);
        }
        let mut bytes = vec![0; piece];
        let mut slowest = Duration::ZERO;
        for (count, n) in pieces.into_iter().enumerate() {
            if count == report_at {
                println!("> has read {count}");
            }
            let begun = Instant::now();
            assert_eq!(file.read_at((n * piece) as u64, &mut bytes).expect("read"), piece);
            slowest = slowest.max(begun.elapsed());
            assert!(bytes == content[n * piece..][..piece], "wrong bytes in piece {n}");
        }
        println!("> read {}", slowest.as_millis());
    }
}

struct Reader {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Reader {
    fn start(dir: &Path) -> Reader {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(DIR, dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        let mut reader = Reader { child, answers };
        assert_eq!(reader.answer(), "ready");
        reader
    }

    fn begin(&mut self, round: u64, piece: usize, seed: u64) {
        self.begin_reporting(round, piece, seed, usize::MAX);
    }

    /// Begins a round. The reader says when it has read so many pieces.
    fn begin_reporting(&mut self, round: u64, piece: usize, seed: u64, report_at: usize) {
        writeln!(self.child.stdin.as_mut().expect("piped"), "{round} {piece} {seed} {report_at}").expect("written");
    }

    /// Returns what the reader says; the test harness prints other lines, too.
    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.answers.read_line(&mut line).expect("a line"), 0, "the reader ended");
            if let Some(at) = line.find("> ") {
                return line[at + 2..].trim_end().to_owned();
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processes that read the same file in the same or in other orders, in small or large pieces, fetch each byte once.
#[test]
fn processes_that_read_the_same_file_fetch_each_byte_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let instance = Instance::open(&shared_config(dir.path())).expect("an instance");
    let mut readers: Vec<Reader> = (0..4).map(|_| Reader::start(dir.path())).collect();
    let kinds = [(PAGE, false), (128 << 10, false), (1 << 20, false), (PAGE, true), (64 << 10, true), (1 << 20, true)];
    for (round, (piece, is_shuffled)) in (1..).zip(kinds) {
        std::fs::write(dir.path().join(round.to_string()), content_of(round)).expect("written");
        let before = below_bytes(&instance);
        (1..).zip(&mut readers).for_each(|(seed, reader)| reader.begin(round, piece, if is_shuffled { seed } else { 0 }));
        readers.iter_mut().for_each(|reader| assert!(reader.answer().starts_with("read ")));
        let read = below_bytes(&instance) - before;
        assert!(read <= SHARED_SIZE as u64 * 102 / 100, "pieces of {piece}, shuffled {is_shuffled}: {read} bytes were read");
    }
}

/// Whoever is killed while it reads for others leaves no mark that they wait for, and no wrong byte.
#[test]
fn a_reader_that_is_killed_delays_nobody() {
    let dir = tempfile::tempdir().expect("a directory");
    let instance = Instance::open(&shared_config(dir.path())).expect("an instance");
    let mut readers: Vec<Reader> = (0..3).map(|_| Reader::start(dir.path())).collect();
    for round in 1..13 {
        std::fs::write(dir.path().join(round.to_string()), content_of(round)).expect("written");
        let before = below_bytes(&instance);
        let piece = [PAGE, 128 << 10, 1 << 20][round as usize % 3];
        let mut killed = Reader::start(dir.path());
        // It is killed at the begin, or after one, two or three quarters of the file: each with each size of a piece.
        let report_at = SHARED_SIZE / piece * (round as usize % 4) / 4;
        killed.begin_reporting(round, piece, 0, report_at);
        (0..).zip(&mut readers).for_each(|(seed, reader)| reader.begin(round, piece, seed));
        assert_eq!(killed.answer(), format!("has read {report_at}"));
        killed.child.kill().expect("killed");
        for reader in &mut readers {
            let answer = reader.answer();
            let slowest: u64 = answer.strip_prefix("read ").and_then(|ms| ms.parse().ok()).expect("a time");
            // The death is noticed within 10 ms. It would be 5 s for each mark of the dead process that is believed.
            assert!(slowest < 1_000, "a read took {slowest} ms");
        }
        let read = below_bytes(&instance) - before;
        // What it was reading is read again.
        assert!(read <= SHARED_SIZE as u64 * 102 / 100 + (3 << 20), "pieces of {piece}: {read} bytes were read");
    }
}
