//! What the cache keeps of files stays within its bounds, and status tells what it did.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cachedfs::{Admit, Config, File, Instance, Mode, Options, Size, Status};
use rustix::fs::{CWD, OFlags};

/// The files that this process has open are counted: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn config(dir: &Path, has_ssd: bool) -> Config {
    Config {
        memory: Some(Size::Bytes(4 << 20)),
        runtime_dir: dir.to_owned(),
        files: 4096,
        ssd: has_ssd.then(|| dir.join("ssd")),
        ssd_size: has_ssd.then_some(Size::Bytes(32 << 20)),
        ..Config::default()
    }
}

fn open(instance: &Arc<Instance>, path: &Path, options: &Options) -> File {
    let at: BorrowedFd<'_> = CWD;
    let bits = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    instance.open_file(at, path, OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC, bits, options).expect("opened")
}

/// Waits until it is so, for what others do in their own time.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(30), "never: {what}");
        std::thread::yield_now();
    }
}

/// Files below a directory that this process has open; and how many of them have no name any more.
fn open_files(dir: &Path) -> (usize, usize) {
    let links = std::fs::read_dir("/proc/self/fd").expect("a list").flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let ours: Vec<_> = links.filter(|path| path.starts_with(dir.join("data"))).collect();
    let gone = ours.iter().filter(|path| path.to_string_lossy().ends_with(" (deleted)")).count();
    (ours.len(), gone)
}

#[test]
fn what_the_leader_keeps_of_many_files_is_bounded_and_nothing_deleted_is_kept_open() {
    let _alone = ALONE.lock();
    for has_ssd in [false, true] {
        // In memory: each file is flushed.
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        std::fs::create_dir(dir.path().join("data")).expect("made");
        let instance = Instance::open(&config(dir.path(), has_ssd)).expect("an instance");
        let path = |n: u32| dir.path().join(format!("data/{n}"));
        for n in 0..1200 {
            let file = open(&instance, &path(n), &Options::default());
            file.write_at(0, b"dirty").expect("written");
            if n % 5 == 0 {
                file.sync(false).expect("synced");
            }
            file.close().expect("closed");
        }
        instance.flush(&mut |_, _| ()).expect("all below");
        // What is clean need not be held any more.
        until("few are open after a flush", || open_files(dir.path()).0 <= 64);
        until("few are at hand", || instance.status().leader_files <= 1024);
        (0..1200).for_each(|n| std::fs::remove_file(path(n)).expect("removed"));
        until("nothing deleted is open", || open_files(dir.path()) == (0, 0));
        instance.detach().expect("left");
    }
}

#[test]
fn a_file_that_is_deleted_while_it_is_open_goes_with_its_last_user() {
    let _alone = ALONE.lock();
    for has_ssd in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("data")).expect("made");
        let instance = Instance::open(&config(dir.path(), has_ssd)).expect("an instance");
        let path = dir.path().join("data/file");
        let file = open(&instance, &path, &Options::default());
        file.write_at(0, &[7; 10_000]).expect("written");
        file.clean().expect("below");
        std::fs::remove_file(&path).expect("removed");
        file.write_at(5000, b"still").expect("written");
        file.close().expect("closed");
        until("it is gone", || open_files(dir.path()) == (0, 0));
        instance.detach().expect("left");
    }
}

fn tier<'a>(status: &'a Status, name: &str) -> &'a cachedfs::Tier {
    status.tiers.iter().find(|tier| tier.name == name).expect("a tier")
}

#[test]
fn status_tells_of_writes_pins_and_what_was_not_admitted() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().expect("a directory");
    let instance = Instance::open(&Config { mode: Mode::WriteBack, ..config(dir.path(), true) }).expect("an instance");
    let path = dir.path().join("file");
    std::fs::write(&path, vec![1; 1 << 20]).expect("a file");
    let file = open(&instance, &path, &Options::default());
    let before = instance.status();
    assert_eq!((before.memory.pinned_pages, before.refused), (0, cachedfs::RefusedPages::default()));
    // One of 64 is timed.
    for n in 0..640 {
        file.write_at(n * 100, b"some").expect("written");
    }
    file.sync(false).expect("on the SSD");
    file.clean().expect("below");
    let now = instance.status();
    for name in ["ram", "ssd", "below"] {
        let latency = &tier(&now, name).write_latency;
        assert!(latency.count > 0 && latency.p50_us > 0.0 && latency.max_us >= latency.p50_us, "{name}: {latency:?}");
    }
    let pins: Vec<_> = (0..3).map(|n| file.pin(n * 4096, 100).expect("pinned")).collect();
    assert_eq!(instance.status().memory.pinned_pages, 3);
    drop(pins);
    assert_eq!(instance.status().memory.pinned_pages, 0);
    // While the SSD has room, the first touch is enough.
    let full = open(&instance, &dir.path().join("full"), &Options::default());
    for n in 0..40 {
        full.write_at(n << 20, &vec![n as u8; 1 << 20]).expect("written");
        full.sync(false).expect("on the SSD");
        full.clean().expect("below");
    }
    let mut page = [0; 4096];
    file.read_at(1 << 19, &mut page).expect("read");
    until("a first touch is counted", || instance.status().refused.first_touch > 0);
    let never = dir.path().join("never");
    std::fs::write(&never, vec![1; 8192]).expect("a file");
    let never = open(&instance, &never, &Options { admit: Some(Admit::Never), ..Options::default() });
    never.read_at(0, &mut page).expect("read");
    until("a rule is counted", || instance.status().refused.rule > 0);
    drop((file, full, never));
    instance.detach().expect("left");
}
