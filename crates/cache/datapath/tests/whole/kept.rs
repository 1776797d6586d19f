//! A process was stopped, or deliberately keeps a resource that others need. Their calls end within a second, with success or ETIMEDOUT,
//! and all is well when the process continues or ends. A process with a slow disk is waited for.
//!
//! The other process is this program again; its environment selects its role.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use datapath::engine::{BackingFile, CacheEngine, Environment, Layout, Limits, Open, OpenOptions, Parts, Sizes, Stamp};
use pagecache::{Replacement, Shape};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use shm::{FileAccess, OwnedLock, ProcessSlots, Region};
use ssdcache::{FileKey, Mode};

const DIR: &str = "DATAPATH_KEPT_DIR";
/// The longest time that a call of another process may take, beside the delay that the machine's load causes.
const MOST: Duration = Duration::from_secs(1);
/// How long a slow disk takes for a write and a sync.
const SLOW: Duration = Duration::from_millis(2500);
const PAGE: usize = 4096;

struct Disk {
    file: File,
    slow: bool,
}

impl Disk {
    fn open(dir: &Path, key: FileKey, slow: bool) -> io::Result<Arc<Disk>> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(dir.join(key.0.to_string()))?;
        Ok(Arc::new(Disk { file, slow }))
    }
}

impl BackingFile for Disk {
    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(to, at)
    }
    fn write_at(&self, at: u64, from: &[u8]) -> io::Result<()> {
        if self.slow {
            println!("> slow");
            std::thread::sleep(SLOW);
        }
        self.file.write_all_at(from, at)
    }
    fn sync(&self) -> io::Result<()> {
        if self.slow {
            std::thread::sleep(SLOW);
        }
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn punch(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn set_mtime(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn stamp(&self) -> io::Result<Stamp> {
        Ok(Stamp { size: self.file.metadata()?.len(), ..Stamp::default() })
    }
}

struct ReadAround {
    dir: PathBuf,
    slow: bool,
    begun: Instant,
}

impl Environment for ReadAround {
    fn open(&self, key: FileKey, _: &Path, _: &[u32], _: bool) -> io::Result<Arc<dyn BackingFile>> {
        Ok(Disk::open(&self.dir, key, self.slow)?)
    }
    fn now_ms(&self) -> u32 {
        self.begun.elapsed().as_millis() as u32
    }
    fn realtime_ns(&self) -> u64 {
        1
    }
    fn report(&self, words: &str) {
        println!("{words}");
    }
}

fn sizes() -> Sizes {
    Sizes { frames: Shape { frames: 64, shards: 2, ghosts: 0, replacement: Replacement::S3Fifo }, ssd: None, files: 16 }
}

fn make(dir: &Path, mode: Mode) {
    let layout = Layout::of(sizes());
    let region =
        Region::create_file(&dir.join("segment"), layout.bytes, FileAccess { permissions: 0o600, group: None }).expect("a segment");
    CacheEngine::format(&region, sizes(), &Limits::new(0), mode, 1, "");
}

fn processes_of(dir: &Path) -> (Arc<Region>, Layout, Arc<ProcessSlots>) {
    let region = Arc::new(Region::open_file(&dir.join("segment"), None).expect("the segment"));
    let layout = Layout::read(&region).expect("whole");
    let locks = ProcessSlots::open_lock_file(&dir.join("lock"), FileAccess { permissions: 0o600, group: None }).expect("a file");
    let processes = Arc::new(ProcessSlots::open(Arc::clone(&region), layout.processes_at(), locks).expect("memory"));
    (region, layout, processes)
}

/// A process of the instance, with a thread that leads when no other process does. It detaches when this is dropped.
struct Process {
    engine: Arc<CacheEngine>,
    dir: PathBuf,
    slow: bool,
    worker: Option<JoinHandle<()>>,
}

impl Process {
    fn attach(dir: &Path, slow: bool) -> Process {
        let (region, _, processes) = processes_of(dir);
        let world = Arc::new(ReadAround { dir: dir.to_owned(), slow, begun: Instant::now() });
        let engine =
            CacheEngine::attach(Parts { region, processes, device: None, plain: None, world, limits: Limits::new(0) }).expect("attached");
        let leads = Arc::clone(&engine);
        let worker = Some(std::thread::spawn(move || leads.work()));
        Process { engine, dir: dir.to_owned(), slow, worker }
    }

    fn open(&self, number: u64, mode: Mode) -> Result<Open, datapath::engine::OpenFileError> {
        let key = FileKey(number);
        let below = Disk::open(&self.dir, key, self.slow).expect("a file");
        self.engine.open(key, &self.dir.join(number.to_string()), OpenOptions { mode, ..OpenOptions::default() }, below)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.engine.detach();
        if let Some(worker) = self.worker.take() {
            let ended = worker.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the worker panicked");
        }
    }
}

/// The other process; it is killed when this is dropped.
struct Other(Child, BufReader<std::process::ChildStdout>);

impl Other {
    fn start(dir: &Path, role: &str, at: usize) -> Other {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "kept::child", "--nocapture", "--test-threads=1"])
            .env(DIR, dir)
            .env("ROLE", role)
            .env("AT", at.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut other = Other(child, lines);
        other.wait_for("> ready");
        other
    }

    fn wait_for(&mut self, what: &str) {
        let mut line = String::new();
        while !line.contains(what) {
            line.clear();
            assert_ne!(self.1.read_line(&mut line).expect("a line"), 0, "it ended");
        }
    }

    /// Returns when all threads of the process are stopped: until then it may still serve requests.
    fn stop(&self) {
        let pid = Pid::from_child(&self.0);
        kill_process(pid, Signal::STOP).expect("signalled");
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).expect("waited").expect("a status");
        assert!(status.stopped(), "{status:?}");
    }

    fn go_on(&self) {
        kill_process(Pid::from_child(&self.0), Signal::CONT).expect("signalled");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs in the other process; it is not a test itself.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let role = std::env::var("ROLE").expect("a role");
    let at = std::env::var("AT").ok().and_then(|at| at.parse().ok()).expect("a position");
    let until_killed = || _ = io::stdin().read(&mut [0]);
    match role.as_str() {
        // An ordinary process, which the test may stop.
        "leads" | "writes slowly" => {
            let process = Process::attach(&dir, role == "writes slowly");
            process.engine.ready().expect("it leads");
            println!("> ready");
            if role == "writes slowly" {
                let open = process.open(7, Mode::WriteThrough).expect("opened");
                open.write(0, &[1; PAGE]).expect("written");
            }
            until_killed();
            std::process::exit(0);
        }
        // These processes keep a lock, live, and do nothing.
        "keeps" => {
            let (region, _, processes) = processes_of(&dir);
            let me = processes.attach().expect("a process slot");
            let _held = OwnedLock::new(&region, at, &processes, me).lock();
            println!("> ready");
            until_killed();
            std::process::exit(0);
        }
        "keeps the lead" => {
            let (_region, _, processes) = processes_of(&dir);
            assert!(processes.try_lead());
            println!("> ready");
            until_killed();
            std::process::exit(0);
        }
        other => panic!("{other}?"),
    }
}

/// The total delay of a thread that only sleeps, in ns: what the machine's load costs a waiting thread.
static LATE_NS: AtomicU64 = AtomicU64::new(0);

/// Makes a call that may take no longer than a second, beside the delay that the load causes.
fn timed<T>(what: &str, call: impl FnOnce() -> T) -> T {
    static CONTROL: std::sync::Once = std::sync::Once::new();
    CONTROL.call_once(|| {
        std::thread::spawn(|| {
            loop {
                let begun = Instant::now();
                std::thread::sleep(Duration::from_micros(100));
                LATE_NS.fetch_add(begun.elapsed().saturating_sub(Duration::from_micros(250)).as_nanos() as u64, Ordering::Relaxed);
            }
        });
    });
    let (begun, late) = (Instant::now(), LATE_NS.load(Ordering::Relaxed));
    let result = call();
    let (took, late) = (begun.elapsed(), Duration::from_nanos(LATE_NS.load(Ordering::Relaxed) - late));
    println!("{what}: {took:?}, of which {late:?} by the load");
    assert!(took.saturating_sub(late) < MOST, "{what} took {took:?}, of which {late:?} by the load");
    result
}

fn page(byte: u8) -> Vec<u8> {
    vec![byte; PAGE]
}

fn read(open: &Open, page: u64) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; PAGE];
    let got = open.read(page * PAGE as u64, &mut bytes)?;
    bytes.truncate(got);
    Ok(bytes)
}

#[test]
fn a_leader_that_is_stopped_keeps_nobody_and_what_it_had_begun_is_ended_once() {
    let dir = tempfile::tempdir().expect("a directory");
    make(dir.path(), Mode::WriteBack);
    let other = Other::start(dir.path(), "leads", 0);
    let here = Process::attach(dir.path(), false);
    let (a, b) = (here.open(1, Mode::WriteBack).expect("opened"), here.open(2, Mode::WriteBack).expect("opened"));
    for open in [&a, &b] {
        (0..4).for_each(|n| assert_eq!(open.write(n * PAGE as u64, &page(n as u8 + 1)), Ok(PAGE)));
        open.sync().expect("synced");
    }
    other.stop();
    assert_eq!(timed("a read", || read(&a, 2)), Ok(page(3)));
    assert_eq!(timed("a write", || a.write(PAGE as u64, &page(9))), Ok(PAGE));
    assert_eq!(timed("a sync", || a.sync()), Err(Errno::TIMEDOUT));
    assert_eq!(timed("a truncation", || b.set_len(0)), Err(Errno::TIMEDOUT));
    // The truncation may still happen: no process may write data that it would remove.
    assert_eq!(timed("a write after it", || b.write(0, &page(7))), Err(Errno::TIMEDOUT));
    assert!(timed("another open", || here.open(3, Mode::WriteBack)).is_ok());
    other.go_on();
    // On a loaded machine it is some time before it does.
    let end = Instant::now() + Duration::from_secs(30);
    while a.sync() != Ok(()) {
        assert!(Instant::now() < end, "the leader does not go on");
    }
    assert_eq!(b.write(0, &page(8)[..9]), Ok(9), "cut first, then written");
    assert_eq!((b.size(), read(&b, 0)), (9, Ok(page(8)[..9].to_vec())));
    for open in [&a, &b] {
        open.sync().expect("synced");
    }
    assert_eq!(std::fs::read(dir.path().join("2")).expect("there"), page(8)[..9]);
    assert_eq!(std::fs::read(dir.path().join("1")).expect("there")[PAGE..2 * PAGE], page(9));
    // The other process ends, and this one leads.
    drop(other);
    b.set_len(3).expect("cut");
    assert_eq!(b.sync(), Ok(()));
}

#[test]
fn who_keeps_the_lead_and_does_nothing_keeps_nobody_for_long() {
    let dir = tempfile::tempdir().expect("a directory");
    make(dir.path(), Mode::WriteBack);
    let other = Other::start(dir.path(), "keeps the lead", 0);
    let here = Process::attach(dir.path(), false);
    assert_eq!(timed("to attach", || here.engine.ready()), Err(Errno::TIMEDOUT));
    let open = timed("an open", || here.open(1, Mode::WriteBack)).expect("opened");
    assert_eq!(timed("a write", || open.write(0, &page(1))), Ok(PAGE));
    assert_eq!(timed("a sync", || open.sync()), Err(Errno::TIMEDOUT));
    assert_eq!(timed("a read", || read(&open, 0)), Ok(page(1)));
    drop(other);
    assert_eq!(open.sync(), Ok(()));
    assert_eq!(std::fs::read(dir.path().join("1")).expect("there"), page(1));
}

/// The files of a test while a lock is kept.
struct Kept<'a> {
    here: &'a Process,
    a: Open,
    b: Open,
}

fn while_kept(at: impl Fn(&Layout, &Open) -> usize, check: impl FnOnce(&Kept<'_>)) {
    let dir = tempfile::tempdir().expect("a directory");
    make(dir.path(), Mode::WriteBack);
    for number in [1, 2, 4] {
        std::fs::write(dir.path().join(number.to_string()), page(number as u8).repeat(6)).expect("written");
    }
    let here = Process::attach(dir.path(), false);
    let (a, b) = (here.open(1, Mode::WriteBack).expect("opened"), here.open(2, Mode::WriteBack).expect("opened"));
    for open in [&a, &b] {
        assert_eq!(open.write(0, &page(8)), Ok(PAGE));
        assert!(read(open, 1).is_ok());
    }
    let layout = processes_layout(dir.path());
    let other = Other::start(dir.path(), "keeps", at(&layout, &a));
    let kept = Kept { here: &here, a, b };
    check(&kept);
    drop(other);
    let Kept { a, b, .. } = kept;
    // The lock is taken over, and the cache works normally.
    assert_eq!((a.set_len(2 * PAGE as u64), a.sync(), b.sync()), (Ok(()), Ok(()), Ok(())));
    assert_eq!(std::fs::read(dir.path().join("1")).expect("there"), [page(8), page(1)].concat());
    assert_eq!(std::fs::read(dir.path().join("2")).expect("there")[..2 * PAGE], [page(8), page(2)].concat());
    assert!(here.open(4, Mode::WriteBack).is_ok_and(|open| read(&open, 5) == Ok(page(4))));
}

fn processes_layout(dir: &Path) -> Layout {
    let region = Region::open_file(&dir.join("segment"), None).expect("the segment");
    Layout::read(&region).expect("whole")
}

fn begin_of(layout: &Layout, name: &str) -> usize {
    layout.structures().into_iter().find(|(found, _)| *found == name).expect("there").1.start
}

#[test]
fn who_keeps_a_files_lock_keeps_that_file_alone() {
    while_kept(
        |layout, a| begin_of(layout, "records") + 64 + a.no().0 as usize * 1024 + 32,
        |kept| {
            assert_eq!(timed("a cut", || kept.a.set_len(0)), Err(Errno::TIMEDOUT));
            assert_eq!(timed("an append", || kept.a.append(&page(7))), Err(Errno::TIMEDOUT));
            assert_eq!(timed("a read", || read(&kept.a, 0)), Ok(page(8)));
            assert_eq!(timed("a write", || kept.a.write(0, &page(8))), Ok(PAGE));
            assert_eq!(timed("a sync", || kept.a.sync()), Ok(()));
            assert_eq!(timed("another's cut", || kept.b.set_len(5 * PAGE as u64)), Ok(()));
            assert!(timed("another's append", || kept.b.append(&page(7))).is_ok());
            assert_eq!(timed("another's sync", || kept.b.sync()), Ok(()));
            assert!(timed("another's open", || kept.here.open(4, Mode::WriteBack)).is_ok());
        },
    );
}

#[test]
fn who_keeps_the_table_of_files_keeps_opens_alone() {
    while_kept(
        |layout, _| begin_of(layout, "records"),
        |kept| {
            assert!(timed("an open", || kept.here.open(4, Mode::WriteBack)).is_err());
            for open in [&kept.a, &kept.b] {
                assert_eq!(timed("a write", || open.write(0, &page(8))), Ok(PAGE));
                assert!(timed("a read", || read(open, 4)).is_ok_and(|bytes| bytes.len() == PAGE));
                assert_eq!(timed("a cut", || open.set_len(5 * PAGE as u64)), Ok(()));
                assert_eq!(timed("a sync", || open.sync()), Ok(()));
            }
        },
    );
}

#[test]
fn who_keeps_a_part_of_the_memory_keeps_no_reader() {
    while_kept(
        |layout, _| begin_of(layout, "pages") + PAGE,
        |kept| {
            for (open, number) in [(&kept.a, 1), (&kept.b, 2)] {
                assert_eq!(timed("a read", || read(open, 0)), Ok(page(8)));
                // Cached or not, in whichever shard.
                (1..6).for_each(|n| assert_eq!(timed("a read of a page", || read(open, n)), Ok(page(number))));
                assert_eq!(timed("a write", || open.write(0, &page(8))), Ok(PAGE));
            }
            // The truncation drops pages of both shards.
            assert_eq!(timed("a cut", || kept.a.set_len(2 * PAGE as u64)), Err(Errno::TIMEDOUT));
            assert_eq!(timed("a write after it", || kept.a.write(0, &page(8))), Err(Errno::TIMEDOUT));
            timed("a sync", || kept.b.sync()).expect("synced");
        },
    );
}

#[test]
fn who_has_a_slow_disk_is_waited_for() {
    let dir = tempfile::tempdir().expect("a directory");
    make(dir.path(), Mode::WriteThrough);
    let mut other = Other::start(dir.path(), "writes slowly", 0);
    other.wait_for("> slow");
    // The other process leads, and has the file's lock.
    let here = Process::attach(dir.path(), false);
    let open = here.open(7, Mode::WriteThrough).expect("opened");
    let begun = Instant::now();
    assert_eq!(open.write(0, &page(2)), Ok(PAGE), "after the other one");
    assert!(begun.elapsed() > SLOW / 2, "{:?}: it was not waited for", begun.elapsed());
    let begun = Instant::now();
    assert_eq!(open.sync(), Ok(()));
    assert!(begun.elapsed() > SLOW / 2, "{:?}: it was not waited for", begun.elapsed());
    assert_eq!(std::fs::read(dir.path().join("7")).expect("there"), page(2));
}
