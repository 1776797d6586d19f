//! A member of the cache's group writes over its shared memory, and keeps its locks, while two processes work on their files: no panic, no
//! call that takes longer than a second, beside what the machine's load costs, and no file shows another's bytes.
//!
//! The three processes run this program again; its environment says what each does. Each page of a file names its file and page, and has
//! a checksum. A read may return old, zero or corrupt bytes, or fail, because the memory may be corrupt; but an intact page is the
//! requested page.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cachedfs::{Config, Instance, Mode, Options, Size};
use datapath::engine::Layout;
use fastrand::Rng;
use rustix::fs::{CWD, OFlags};
use shm::{OwnedLock, ProcessSlots, Region};

const DIR: &str = "CACHEDFS_OVERWRITTEN_DIR";
const PAGES: u64 = 300;
const PAGE: usize = 4096;
/// How long the enemy keeps a lock.
const KEEPS: Duration = Duration::from_millis(700);
/// No call takes longer, beside what the machine's load costs.
const MOST: Duration = Duration::from_secs(1);

fn config(dir: &Path, has_ssd: bool) -> Config {
    Config {
        memory: Some(Size::Bytes(1 << 20)),
        ssd: has_ssd.then(|| dir.join("ssd")),
        ssd_size: has_ssd.then_some(Size::Bytes(8 << 20)),
        mode: Mode::WriteBack,
        files: 64,
        keep: true,
        runtime_dir: dir.to_owned(),
        ..Config::default()
    }
}

/// The page `page` of the file of this number, written for the `round`-th time.
fn page_of(file: u64, page: u64, round: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAGE];
    let mut rng = Rng::with_seed(file << 40 ^ page << 20 ^ round);
    rng.fill(&mut bytes[32..]);
    for (n, word) in [file, page, round].into_iter().enumerate() {
        bytes[8 * n..8 * n + 8].copy_from_slice(&word.to_le_bytes());
    }
    let sum = sum_of(&bytes);
    bytes[24..32].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn sum_of(page: &[u8]) -> u64 {
    let words = page.chunks_exact(8).enumerate().filter(|(n, _)| *n != 3);
    words.fold(0x9e37_79b9_7f4a_7c15, |sum: u64, (_, word)| {
        let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        (sum ^ word).wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(17)
    })
}

/// Which page of which file this is, if it is whole.
fn whose(bytes: &[u8]) -> Option<(u64, u64)> {
    let word = |n: usize| u64::from_le_bytes(bytes[8 * n..8 * n + 8].try_into().expect("eight bytes"));
    (bytes.len() == PAGE && word(3) == sum_of(bytes)).then(|| (word(0), word(1)))
}

fn check(file: u64, page: u64, bytes: &[u8], what: &str) {
    if let Some(found) = whose(bytes) {
        assert_eq!(found, (file, page), "{what}: page {page} of file {file} is page {} of file {}", found.1, found.0);
    }
}

fn env(name: &str) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(0)
}

fn start(dir: &Path, role: &str, number: u64, seed: u64, ms: u64, has_ssd: bool) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(DIR, dir)
        .env("ROLE", role)
        .env("NUMBER", number.to_string())
        .env("SEED", seed.to_string())
        .env("MS", ms.to_string())
        .env("SSD", u8::from(has_ssd).to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started")
}

/// Not a test by itself: the other processes.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let rng = Rng::with_seed(env("SEED"));
    let until = Instant::now() + Duration::from_millis(env("MS"));
    match std::env::var("ROLE").as_deref() {
        Ok("victim") => victim(&dir, env("NUMBER"), rng, until),
        Ok("enemy") => enemy(&dir, rng, until),
        other => panic!("{other:?}?"),
    }
}

/// What the machine's load costs whoever works now, ns, in all since the begin: how much longer than it should something takes that does
/// nothing but that.
static LATE_NS: AtomicU64 = AtomicU64::new(0);
static SLOW_NS: AtomicU64 = AtomicU64::new(0);

/// Measures that, beside the calls, by a thread that only sleeps and one that only writes and syncs. Each takes a little longer than
/// nothing on an idle machine, too.
fn control(dir: &Path, number: u64) {
    fn repeat(late_ns: &'static AtomicU64, usual: Duration, mut what: impl FnMut() + Send + 'static) {
        std::thread::spawn(move || {
            loop {
                let begun = Instant::now();
                what();
                late_ns.fetch_add(begun.elapsed().saturating_sub(usual).as_nanos() as u64, Ordering::Relaxed);
            }
        });
    }
    // As short as what the leader waits for: each page of the SSD that it reads is handed to a thread and back.
    repeat(&LATE_NS, Duration::from_micros(250), || std::thread::sleep(Duration::from_micros(100)));
    let file = fs::File::create(dir.join(format!("control{number}"))).expect("made");
    repeat(&SLOW_NS, Duration::from_millis(5), move || {
        file.write_all_at(&[1; PAGE], 0).expect("written");
        file.sync_data().expect("synced");
        // No more of the disk than the one that is measured uses.
        std::thread::sleep(Duration::from_millis(2));
    });
}

/// How long a call takes, less what the load cost meanwhile.
struct Call {
    begun: Instant,
    late_ns: [u64; 2],
}

impl Call {
    fn begin() -> Call {
        Call { begun: Instant::now(), late_ns: Call::late_ns() }
    }

    fn late_ns() -> [u64; 2] {
        [&LATE_NS, &SLOW_NS].map(|late| late.load(Ordering::Relaxed))
    }

    fn took(&self) -> Duration {
        let [late, slow] = Call::late_ns();
        let cost = (late - self.late_ns[0]).max(slow - self.late_ns[1]);
        self.begun.elapsed().saturating_sub(Duration::from_nanos(cost))
    }
}

/// Works on a private file, and reads one that all processes share; every call is timed.
fn victim(dir: &Path, number: u64, mut rng: Rng, until: Instant) {
    let Ok(instance) = Instance::open(&config(dir, env("SSD") == 1)) else { return println!("> refused") };
    let mut slowest = Duration::ZERO;
    let (mut done, mut failed) = (0_u64, 0_u64);
    let mut round = 0;
    control(dir, number);
    println!("> ready");
    while Instant::now() < until {
        let at_once = |path: &str, flags: OFlags| {
            let bits = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
            instance.open_file(CWD, &dir.join(path), flags | OFlags::CLOEXEC, bits, &Options::default())
        };
        let call = Call::begin();
        let own = at_once(&format!("own{number}"), OFlags::RDWR | OFlags::CREATE);
        let opened = call.took();
        let call = Call::begin();
        let shared = at_once("shared", OFlags::RDONLY);
        let slower = opened.max(call.took());
        if slower > MOST / 2 {
            println!("> slow open: {slower:?} {:?} {:?}", own.as_ref().err(), shared.as_ref().err());
        }
        slowest = slowest.max(slower);
        for _ in 0..400 {
            let page = rng.u64(..PAGES);
            let mut bytes = vec![0; PAGE];
            round += 1;
            let what = rng.u32(..100);
            let call = Call::begin();
            let result = match (what, &own, &shared) {
                (0..45, Ok(own), _) => own.write_at(page * PAGE as u64, &page_of(number, page, round)).map(drop),
                (45..75, Ok(own), _) => own.read_at(page * PAGE as u64, &mut bytes).map(|got| check(number, page, &bytes[..got], "own")),
                (75..95, _, Ok(shared)) => {
                    shared.read_at(page * PAGE as u64, &mut bytes).map(|got| check(9, page, &bytes[..got], "shared"))
                }
                (95..98, Ok(own), _) => own.sync(false),
                (98..99, Ok(own), _) => own.stat().map(drop),
                (99, Ok(own), _) => own.set_len(rng.u64(..PAGES) * PAGE as u64),
                _ => Ok(()),
            };
            let took = call.took();
            if took > MOST / 2 {
                println!("> slow call {what}: {took:?} of {:?} {:?}", call.begun.elapsed(), result.as_ref().err().map(ToString::to_string));
            }
            slowest = slowest.max(took);
            (done, failed) = (done + 1, failed + u64::from(result.is_err()));
            if Instant::now() > until {
                break;
            }
        }
    }
    println!("> slowest {} of {done}, {failed} failed", slowest.as_millis());
    // It does not detach: the overwritten memory may prevent that permanently, and it may print so.
    std::process::exit(0);
}

/// Writes over every structure, word by word; holds locks, and dies over them or lives on.
// long: one loop that spoils one word after another, with all positions that it chose from.
fn enemy(dir: &Path, mut rng: Rng, until: Instant) {
    let segment = Instance::segment_path(&config(dir, env("SSD") == 1));
    let region = Arc::new(Region::open_file(&segment, None).expect("the segment"));
    let layout = Layout::read(&region).expect("whole");
    let mut structures = layout.structures();
    // The bytes of pages are the pages' own affair: who spoils those spoils these.
    structures.iter_mut().filter(|(name, _)| *name == "pages").for_each(|(_, at)| at.end = at.end.min(at.start + (300 << 10)));
    let locks = ProcessSlots::open_lock_file(&segment.with_extension("lock"), shm::FileAccess { permissions: 0o600, group: None });
    let processes = Arc::new(ProcessSlots::open(Arc::clone(&region), layout.processes_at(), locks.expect("the locks")).expect("memory"));
    let me = processes.attach().ok();
    println!("> ready");
    let mut written = std::collections::BTreeMap::new();
    let (mut held, mut kept) = (Vec::new(), 0);
    while Instant::now() < until {
        let (name, at) = rng.choice(&structures).expect("some");
        // Not what says how long everything is: that is looked at once, by who attaches.
        if *name == "settings" {
            continue;
        }
        for _ in 0..rng.u32(1..30) {
            let begin = if *name == "header" { 256 } else { at.start };
            let end = if *name == "header" { 380 } else { at.end };
            // The begin of a structure, and of a record, more often than the rest.
            let word = match rng.u32(..4) {
                0 => begin + rng.usize(..(end - begin).min(512) / 8) * 8,
                1 if *name == "records" => begin + 64 + rng.usize(..16) * 1024 + rng.usize(..16) * 8,
                _ => begin + rng.usize(..(end - begin) / 8) * 8,
            };
            if word + 8 > end {
                continue;
            }
            let is_half = rng.bool();
            let other = region.u64(begin + rng.usize(..(end - begin) / 8) * 8).load(Ordering::Relaxed);
            let near = region.u64((word + 1024).min(end - 8) / 8 * 8).load(Ordering::Relaxed);
            let now = region.u64(word).load(Ordering::Relaxed);
            let value = match rng.u32(..8) {
                0 => 0,
                1 => u64::MAX,
                2 => 1 << rng.u32(..64),
                3 => other,
                4 => near,
                5 => now ^ 1 << rng.u32(..64),
                6 => rng.u64(..16),
                _ => rng.u64(..),
            };
            if is_half {
                region.u32(word + 4 * usize::from(rng.bool())).store(value as u32, Ordering::Relaxed);
            } else {
                region.u64(word).store(value, Ordering::Relaxed);
            }
            *written.entry(*name).or_insert(0_u32) += 1;
        }
        if let Some(me) = me.filter(|_| rng.u32(..50) == 0 && held.len() < 3 && processes.renew(me.unwrap_or(shm::ProcessSlot(0)))) {
            // Some file's lock, that of the table of files, or of a part of the memory. It gives it back, or dies over it.
            let begin = |name: &str| structures.iter().find(|(found, _)| *found == name).expect("there").1.start;
            let at = match rng.u32(..8) {
                0 => begin("records"),
                1 => begin("pages") + PAGE,
                _ => begin("records") + 64 + rng.usize(..64) * 1024 + 32,
            };
            held.extend(OwnedLock::new(&region, at, &processes, me).try_lock().map(|lock| (lock, Instant::now())));
            kept += 1;
        }
        if until - Instant::now() > Duration::from_millis(200) {
            held.retain(|(_, since)| since.elapsed() < KEEPS);
        }
        std::thread::sleep(Duration::from_micros(rng.u64(..2000)));
    }
    println!("> written {written:?}, {kept} locks kept, {} at the end", held.len());
    // With what it holds.
    std::process::exit(0);
}

struct Ended {
    out: String,
    err: String,
    is_good: bool,
}

fn end(child: Child) -> Ended {
    let output = child.wait_with_output().expect("ended");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ended { out: text(&output.stdout), err: text(&output.stderr), is_good: output.status.success() }
}

fn run(seed: u64, ms: u64, has_ssd: bool) {
    println!("SEED={seed} ssd={has_ssd}");
    let dir = tempfile::tempdir().expect("a directory");
    let write_whole = |name: &str, number: u64| {
        let file = fs::File::create(dir.path().join(name)).expect("made");
        (0..PAGES).for_each(|page| file.write_all_at(&page_of(number, page, 0), page * PAGE as u64).expect("written"));
    };
    write_whole("shared", 9);
    // One that nobody uses through the cache is as it was.
    write_whole("apart", 5);
    let mut victims: Vec<Child> = (1..3).map(|number| start(dir.path(), "victim", number, seed + number, ms, has_ssd)).collect();
    for victim in &mut victims {
        let mut lines = BufReader::new(victim.stdout.as_mut().expect("piped"));
        let mut line = String::new();
        while !line.contains("> ready") {
            line.clear();
            assert_ne!(lines.read_line(&mut line).expect("a line"), 0, "it ended");
        }
    }
    let enemies = (0..2).map(|n| {
        // The first dies before the others end.
        end(start(dir.path(), "enemy", 0, seed + 10 + n, ms / 3, has_ssd))
    });
    for enemy in enemies {
        assert!(enemy.is_good, "the enemy: {}{}", enemy.out, enemy.err);
        println!("{}", enemy.out.lines().filter(|line| line.contains("> written")).collect::<String>());
    }
    for victim in victims {
        let Ended { out, err, is_good } = end(victim);
        let said =
            out.lines().chain(err.lines()).filter(|line| line.contains("> ") || line.contains("panicked")).collect::<Vec<_>>().join("\n");
        assert!(is_good && !err.contains("panicked") && !out.contains("panicked"), "seed {seed}: {out}{err}");
        println!("{said}");
        let slowest = said.lines().find_map(|line| line.split_once("> slowest ")?.1.split(' ').next()?.parse().ok());
        assert!(slowest.is_some_and(|ms| Duration::from_millis(ms) <= MOST), "seed {seed}: {said}");
    }
    // What is below: each page where it belongs.
    for (name, number) in [("own1", 1), ("own2", 2), ("shared", 9), ("apart", 5)] {
        // A length that was written over is the file's now, whatever it is: no more than there ever was is looked at.
        let mut bytes = Vec::new();
        let _ = fs::File::open(dir.path().join(name)).and_then(|file| file.take(2 * PAGES * PAGE as u64).read_to_end(&mut bytes));
        bytes.chunks(PAGE).zip(0..).for_each(|(bytes, page)| check(number, page, bytes, name));
        if name == "apart" {
            let is_whole = bytes.chunks(PAGE).zip(0..).all(|(bytes, page)| bytes == page_of(number, page, 0));
            assert!(is_whole, "seed {seed}: `{name}`, which nobody wrote, has changed");
        }
    }
}

#[test]
fn who_writes_over_the_segment_stops_nobody_and_mixes_no_files() {
    let is_full = std::env::var("FULL").is_ok_and(|full| full == "1");
    let first = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| Rng::new().u64(..1 << 32));
    let (runs, ms) = if is_full { (150, 6000) } else { (2, 2400) };
    for n in 0..runs {
        run(first + 100 * n, ms, n % 2 == 1);
    }
}

/// Words of one file's record, one after the other: calls on that file may fail, all others are as if nothing had happened.
#[test]
fn who_spoils_one_record_hurts_one_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = Config { keep: false, ..config(dir.path(), true) };
    let instance = Instance::open(&config).expect("an instance");
    let open = |name: &str| {
        let bits = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        instance.open_file(CWD, &dir.path().join(name), flags, bits, &Options::default()).expect("opened")
    };
    let (spoilt, whole) = (open("spoilt"), open("whole"));
    for page in 0..20 {
        spoilt.write_at(page * PAGE as u64, &page_of(1, page, 0)).expect("written");
        whole.write_at(page * PAGE as u64, &page_of(2, page, 0)).expect("written");
    }
    spoilt.sync(false).expect("synced");
    let region = Region::open_file(&Instance::segment_path(&config), None).expect("the segment");
    let layout = Layout::read(&region).expect("whole");
    let records = layout.structures().into_iter().find(|(name, _)| *name == "records").expect("there").1;
    let find = |name: &str| {
        let path = dir.path().join(name);
        let path = path.as_os_str().as_encoded_bytes();
        let is_it = |at: &usize| {
            let mut bytes = vec![0; path.len()];
            region.read(at + 128, &mut bytes);
            bytes == path
        };
        (records.start + 64..records.end).step_by(1024).take(64).find(is_it).expect("a record")
    };
    let (at, other) = (find("spoilt"), find("whole"));
    let mut rng = Rng::with_seed(1);
    control(dir.path(), 0);
    for word in (0..128).step_by(4) {
        let before = region.u32(at + word).load(Ordering::Relaxed);
        let theirs = region.u32(other + word).load(Ordering::Relaxed);
        for value in [0, u32::MAX, 1 << rng.u32(..32), theirs, before ^ 1 << rng.u32(..32), rng.u32(..)] {
            region.u32(at + word).store(value, Ordering::Relaxed);
            let call = Call::begin();
            let page = rng.u64(..20);
            let mut bytes = vec![0; PAGE];
            if let Ok(got) = spoilt.read_at(page * PAGE as u64, &mut bytes) {
                check(1, page, &bytes[..got], "spoilt");
            }
            let _ = spoilt.write_at(page * PAGE as u64, &page_of(1, page, 1));
            let _ = spoilt.sync(false);
            let _ = spoilt.stat();
            assert_eq!(whole.read_at(page * PAGE as u64, &mut bytes).expect("the other file is read"), PAGE);
            assert!(bytes == page_of(2, page, 0), "word {word}: {value:#x}");
            whole.write_at(page * PAGE as u64, &page_of(2, page, 0)).expect("and written");
            whole.sync(false).expect("and synced");
            assert!(call.took() < MOST, "word {word}, {value:#x}: {:?}", call.took());
            region.u32(at + word).store(before, Ordering::Relaxed);
        }
    }
    whole.clean().expect("written below");
    drop((spoilt, whole));
    let _ = instance.detach();
    let bytes = fs::read(dir.path().join("whole")).expect("there");
    assert!(bytes.chunks(PAGE).zip(0..).all(|(bytes, page)| bytes == page_of(2, page, 0)));
    fs::read(dir.path().join("spoilt")).expect("there").chunks(PAGE).zip(0..).for_each(|(bytes, page)| check(1, page, bytes, "below"));
}
