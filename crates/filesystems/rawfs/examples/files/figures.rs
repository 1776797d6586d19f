//! What is measured. What does not depend on the machine is asserted.

use std::path::Path;
use std::time::Instant;

use block::driver::file::{FileDevice, FileOptions};
use rawfs::fs::{Creds, Error, Fs, FsSettings, Timestamp};
use rawfs::{Disk, DiskSettings, FormatOptions, Settings, Store};
use rustix::fs::{OFlags, RenameFlags};

/// What each file holds.
const CONTENT: [u8; 100] = [7; 100];
/// Opened anew so often, with one lookup each.
const COLD: u64 = 40;
/// Device reads of a lookup with nothing in memory, at most.
const READS_MAX: u64 = 2;

fn took<T>(what: &str, run: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let value = run();
    println!("{what:<48} {:>10.3} ms", begin.elapsed().as_secs_f64() * 1e3);
    value
}

/// Memory of this process in MiB: now, and at most so far.
fn memory() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024
    };
    (field("VmRSS:"), field("VmHWM:"))
}

fn wide(number: u64) -> String {
    format!("/wide/file {number:07}")
}

/// One to eight directories deep.
fn nested(number: u64) -> String {
    let deep = 1 + number % 8;
    let dirs: String = (0..deep).map(|level| format!("/level {level} of {}", number / 8 % 20)).collect();
    format!("/nested{dirs}/file {number:07}")
}

struct Image<'a>(&'a Path);

impl Image<'_> {
    fn disk(&self) -> Disk {
        let device = FileDevice::open(self.0, &FileOptions::default()).expect("a file that can be a device");
        Disk::open(&device, &DiskSettings::default()).expect("queues")
    }

    fn open(&self) -> Fs {
        let (store, _) = Store::open(self.disk(), &Settings::default()).expect("a store");
        Fs::open(store, FsSettings::default()).expect("a file system").0
    }
}

fn make_dirs(fs: &Fs, path: &str) {
    for (at, _) in path.char_indices().filter(|(at, letter)| *at > 0 && *letter == '/') {
        match fs.mkdir(fs.root(), &path.as_bytes()[..at], 0o755, &Creds::root()) {
            Err(error) if error.errno() != rustix::io::Errno::EXIST => panic!("{path}: {error}"),
            _ => {}
        }
    }
}

fn make(fs: &Fs, path: &str) -> Result<(), Error> {
    let file = fs.open_at(fs.root(), path.as_bytes(), OFlags::WRONLY | OFlags::CREATE, 0o644, &Creds::root())?;
    file.write(&CONTENT).map(drop)
}

fn fill(fs: &Fs, files: u64) {
    let begin = Instant::now();
    make_dirs(fs, &wide(0));
    for number in 0..files {
        make(fs, &wide(number)).expect("there is room");
    }
    for number in 0..files / 10 {
        let path = nested(number);
        if number < 8 * 20 {
            make_dirs(fs, &path);
        }
        make(fs, &path).expect("there is room");
    }
    fs.sync().expect("saved");
    let all = (files + files / 10) as f64;
    println!("{:<48} {:>10.0} /s", format!("files made of {} bytes", CONTENT.len()), all / begin.elapsed().as_secs_f64());
}

/// Reads of the device that a lookup of a full path takes, at most.
fn reads(fs: &Fs, path: &str) -> u64 {
    let before = fs.store().disk().counts().reads;
    let stat = fs.stat(fs.root(), path.as_bytes(), false, &Creds::root()).expect("it was made");
    assert_eq!(stat.size, CONTENT.len() as u64, "{path}");
    fs.store().disk().counts().reads - before
}

fn look_up(image: &Image<'_>, files: u64, what: &str, path: impl Fn(u64) -> String) {
    let mut rng = fastrand::Rng::with_seed(1);
    let cold = (0..COLD).map(|_| {
        let fs = image.open();
        let reads = reads(&fs, &path(rng.u64(..files)));
        fs.close().expect("closed");
        reads
    });
    let cold: Vec<u64> = cold.collect();
    let most = cold.iter().copied().max().unwrap_or(0);
    println!("{:<48} {most:>10} at most, {:.2} in the mean", format!("device reads of a cold lookup, {what}"), mean(&cold));
    assert!(most <= READS_MAX, "{cold:?}");
    let fs = image.open();
    let begin = Instant::now();
    let more: Vec<u64> = (0..files.min(20_000)).map(|_| reads(&fs, &path(rng.u64(..files)))).collect();
    let each = begin.elapsed() / u32::try_from(more.len()).unwrap_or(u32::MAX);
    let most = more.iter().copied().max().unwrap_or(0);
    println!("{:<48} {most:>10} at most, {:.2} in the mean, {each:?} each", format!("  one after the other, {what}"), mean(&more));
    assert!(most <= READS_MAX);
    fs.close().expect("closed");
}

fn mean(reads: &[u64]) -> f64 {
    reads.iter().sum::<u64>() as f64 / reads.len().max(1) as f64
}

fn rename(fs: &Fs, from: &str, to: &str) {
    let rename = || fs.rename(fs.root(), from.as_bytes(), fs.root(), to.as_bytes(), RenameFlags::empty(), &Creds::root());
    took(&format!("rename {from} to {to}"), rename).expect("renamed");
    took("  and saving that", || fs.sync()).expect("saved");
}

/// Changes files until there is about as much of log as there ever is before a checkpoint, then lets the process's memory go.
fn crash(fs: Fs, files: u64) {
    let (mut rng, mut changed, mut most) = (fastrand::Rng::with_seed(2), 0_u64, 0);
    let used = || fs.store().usage().log_used;
    let first = files.min(20_000);
    while changed < first || changed < 2 * first && used() * 10 < most * 9 {
        most = most.max(used());
        let path = format!("/new {changed:07}");
        make(&fs, &path).expect("there is room");
        fs.truncate(fs.root(), wide(rng.u64(..files)).as_bytes(), 50, &Creds::root()).expect("there");
        changed += 1;
        // What nobody syncs is in no log, but in the next checkpoint.
        if changed.is_multiple_of(100) {
            fs.sync().expect("saved");
        }
    }
    fs.sync().expect("saved");
    println!("{:<48} {changed:>10} made and as many cut, {} KiB of log", "changes before the crash", used() >> 10);
    drop(fs);
}

/// Makes so many files in an image, and as many again a tenth in nested directories.
pub fn all(files: u64, image: &Path) {
    let bytes = (files * 3072).next_multiple_of(1 << 20) + (64 << 20);
    std::fs::File::options().write(true).create(true).truncate(true).open(image).and_then(|file| file.set_len(bytes)).expect("a file");
    let image = Image(image);
    let options = FormatOptions { metadata_bytes: Some(bytes / 2), ..FormatOptions::default() };
    Store::format(&image.disk(), &options).expect("formatted");
    let (store, _) = Store::open(image.disk(), &Settings::default()).expect("opened");
    Fs::format(&store, Timestamp::now()).expect("made");
    store.close().expect("closed");
    let before = memory().0;
    let fs = image.open();
    fill(&fs, files);
    let usage = fs.store().usage();
    println!("{:<48} {:>10} MiB, {} of them before; nodes' memory {} MiB", "memory at most", memory().1, before, usage.memory_bytes >> 20);
    println!("{:<48} {:>10} of {}", "nodes in use", usage.nodes - usage.nodes_free, usage.nodes);
    took("unmount", || fs.close()).expect("closed");
    let fs = took("mount after a clean stop", || image.open());
    fs.close().expect("closed");
    look_up(&image, files, "one directory", wide);
    look_up(&image, (files / 10).max(1), "nested 1 to 8 deep", nested);
    let fs = image.open();
    rename(&fs, "/wide", "/a longer name");
    rename(&fs, "/a longer name", "/wide");
    rename(&fs, "/wide", "/nested/wide");
    rename(&fs, "/nested/wide", "/wide");
    crash(fs, files);
    let fs = took("mount after a crash", || image.open());
    assert!(fs.stat(fs.root(), b"/new 0000000", false, &Creds::root()).is_ok());
    println!("{:<48} {:>10} MiB", "memory at most so far", memory().1);
    let report = took("check", || rawfs::fs::check::check(fs.store())).expect("read");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    println!("{:<48} {:>10} MiB", "memory at most, with the check", memory().1);
    fs.close().expect("closed");
}
