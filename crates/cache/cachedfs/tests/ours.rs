//! What is a change of our own, what is another program's, and what becomes of dirty pages then (docs/cache-states.md).

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cachedfs::{Config, File, Instance, Kind, Mode, Options, Size};
use rustix::fs::{AtFlags, CWD, OFlags, RenameFlags, Timespec, Timestamps};

const NEW: OFlags = OFlags::RDWR.union(OFlags::CREATE);

fn config(dir: &Path, mode: Mode, has_ssd: bool) -> Config {
    Config {
        memory: Some(Size::Bytes(1 << 20)),
        ssd: has_ssd.then(|| dir.join("ssd")),
        ssd_size: has_ssd.then_some(Size::Bytes(8 << 20)),
        mode,
        files: 64,
        runtime_dir: dir.to_owned(),
        ..Config::default()
    }
}

fn open(instance: &Arc<Instance>, path: &Path, flags: OFlags) -> File {
    try_open(instance, path, flags, &Options::default()).expect("opened")
}

fn try_open(instance: &Arc<Instance>, path: &Path, flags: OFlags, options: &Options) -> Result<File, cachedfs::Error> {
    let bits = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    instance.open_file(CWD, path, flags | OFlags::CLOEXEC, bits, options)
}

/// Until the file system's clock has moved on since the file was changed.
fn next_tick(dir: &Path, path: &Path) {
    let changed = fs::metadata(path).expect("stat");
    loop {
        fs::write(dir.join("probe"), "tick").expect("written");
        let now = fs::metadata(dir.join("probe")).expect("stat");
        if (now.ctime(), now.ctime_nsec()) > (changed.ctime(), changed.ctime_nsec()) {
            return;
        }
    }
}

/// With each mode that writes, with and without an SSD.
fn each(test: impl Fn(&Path, Config)) {
    for mode in [Mode::WriteBack, Mode::WriteThrough, Mode::WriteAround] {
        for has_ssd in [false, true] {
            let dir = tempfile::tempdir().expect("a directory");
            println!("{mode:?} ssd {has_ssd}");
            test(dir.path(), config(dir.path(), mode, has_ssd));
        }
    }
}

/// For many files, where a disk takes long.
fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory")
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn times_and_attributes_that_we_set_are_no_change_from_outside() {
    each(|dir, config| {
        let instance = Instance::open(&config).expect("an instance");
        let path = dir.join("file");
        let file = open(&instance, &path, NEW);
        let time = |tv_sec| Timespec { tv_sec, tv_nsec: 5 };
        for round in 0..50_u8 {
            file.write_at(u64::from(round) * 100, &[round; 5000]).expect("written");
            let times = Timestamps { last_access: time(1), last_modification: time(1000 + i64::from(round)) };
            file.set_times(&times).expect("set");
            assert_eq!(file.stat().expect("stat").st_mtime, 1000 + i64::from(round));
            file.set_attributes(|fd| rustix::fs::fchmod(fd, rustix::fs::Mode::from_bits_retain(0o600 | u32::from(round % 8))))
                .expect("set");
            file.write_at(9000, &[round; 10]).expect("written");
            file.set_attributes(|fd| rustix::fs::fchmod(fd, rustix::fs::Mode::from_bits_retain(0o600))).expect("set");
            file.sync(false).expect("synced");
        }
        drop(file);
        instance.detach().expect("left");
        assert_eq!(fs::read(&path).expect("below")[9000..9010], [49; 10]);
    });
}

#[test]
fn space_that_we_reserve_while_pages_are_written_back_is_no_change_from_outside() {
    for has_ssd in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let config = Config { dirty_age: "1ms".parse().expect("a time"), ..config(dir.path(), Mode::WriteBack, has_ssd) };
        let instance = Instance::open(&config).expect("an instance");
        let file = open(&instance, &dir.path().join("file"), NEW);
        for round in 0..2000_u64 {
            file.write_at(round % 64 * 4096, &[round as u8; 4096]).expect("written");
            file.allocate(round % 50 * 4096..(round % 50 + 8) * 4096, round % 2 == 0).expect("reserved");
            if round % 16 == 0 {
                file.sync(false).unwrap_or_else(|error| panic!("round {round}: {error}"));
            }
        }
        drop(file);
        instance.detach().expect("left");
    }
}

#[test]
fn what_is_not_dirty_is_dropped_without_a_word() {
    for mode in [Mode::WriteThrough, Mode::WriteAround] {
        let dir = tempfile::tempdir().expect("a directory");
        let config = Config { second_touch: false, ..config(dir.path(), mode, true) };
        let instance = Instance::open(&config).expect("an instance");
        let path = dir.path().join("file");
        let file = open(&instance, &path, NEW);
        for round in 0..20_u8 {
            file.write_at(0, &[round; 10_000]).expect("written");
            next_tick(dir.path(), &path);
            // Well within the dirty age.
            fs::File::options().write(true).open(&path).expect("opened").write_all_at(&[100 + round; 5000], 100).expect("written");
            file.sync(false).unwrap_or_else(|error| panic!("{mode:?} round {round}: {error}"));
            let mut bytes = vec![0; 10_000];
            assert_eq!(file.read_at(0, &mut bytes).expect("read"), 10_000);
            assert!(bytes[100..5100].iter().all(|byte| *byte == 100 + round) && bytes[5100..].iter().all(|byte| *byte == round));
        }
        assert!(instance.status().stranded.is_empty());
        drop(file);
        instance.detach().expect("left");
    }
}

#[test]
fn a_removal_or_rename_that_is_refused_at_the_last_moment_changes_nothing() {
    each(|dir, config| {
        let instance = Instance::open(&config).expect("an instance");
        let [one, two] = ["one", "two"].map(|name| dir.join(name));
        for path in [&one, &two] {
            open(&instance, path, NEW).write_at(0, path.as_os_str().as_encoded_bytes()).expect("written");
        }
        let refuse = || Err(rustix::io::Errno::CANCELED);
        let removed = instance.unlink_and_keep((CWD, &one), AtFlags::empty(), &refuse);
        let renamed = instance.rename_and_keep((CWD, &one), (CWD, &two), RenameFlags::empty(), &refuse);
        for refused in [removed, renamed] {
            assert_eq!(refused.err().map(|error| error.errno()), Some(rustix::io::Errno::CANCELED.raw_os_error()));
        }
        instance.detach().expect("left");
        for path in [&one, &two] {
            assert_eq!(fs::read(path).expect("there"), path.as_os_str().as_encoded_bytes());
        }
    });
}

#[test]
fn names_and_modes_that_others_change_are_no_conflict() {
    for has_ssd in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let instance = Instance::open(&config(dir.path(), Mode::WriteBack, has_ssd)).expect("an instance");
        let path = |name: &str| dir.path().join(name);
        fs::create_dir(path("sub")).expect("made");
        let file = open(&instance, &path("file"), NEW);
        fs::write(path("other"), "other").expect("written");
        for round in 0..10_u8 {
            file.write_at(u64::from(round) * 10, &[round; 10]).expect("written");
            next_tick(dir.path(), &path("file"));
            fs::set_permissions(path("file"), fs::Permissions::from_mode(0o600 | u32::from(round % 8))).expect("set");
            rustix::fs::renameat_with(CWD, path("file"), CWD, path("other"), RenameFlags::EXCHANGE).expect("exchanged");
            file.sync(false).expect("synced");
            rustix::fs::renameat_with(CWD, path("file"), CWD, path("other"), RenameFlags::EXCHANGE).expect("exchanged");
        }
        file.write_at(200, b"after").expect("written");
        fs::rename(path("file"), path("sub/moved")).expect("moved");
        drop(file);
        instance.flush(&mut |_, _| ()).expect("all below");
        assert_eq!(fs::read(path("sub/moved")).expect("below")[200..], *b"after");
        assert_eq!(fs::read(path("other")).expect("below"), b"other");
        instance.detach().expect("left");
    }
}

#[test]
fn what_is_old_enough_is_below_for_everybody() {
    each(|dir, config| {
        let instance = Instance::open(&Config { dirty_age: "300ms".parse().expect("a time"), ..config }).expect("an instance");
        let paths: Vec<PathBuf> = (0..20).map(|n| dir.join(n.to_string())).collect();
        let files: Vec<File> = paths.iter().map(|path| open(&instance, path, NEW)).collect();
        let bytes: Vec<u8> = (0..100_000_u32).map(|n| (n / 3) as u8).collect();
        for file in &files {
            file.write_at(0, &bytes).expect("written");
            // On the SSD, where there is one.
            file.sync(false).expect("synced");
        }
        for path in &paths {
            until("it is not below", || fs::read(path).expect("below") == bytes);
        }
        until("dirty pages are left", || instance.status().dirty_bytes == 0);
        drop(files);
        instance.detach().expect("left");
    });
}

/// A file with dirty pages that another program changed, and one that it did not.
fn conflict(dir: &Path, has_ssd: bool) -> (Arc<Instance>, PathBuf, PathBuf) {
    let config = Config { memory: Some(Size::Bytes(256 << 10)), ..config(dir, Mode::WriteBack, has_ssd) };
    let instance = Instance::open(&config).expect("an instance");
    let (path, other) = (dir.join("file"), dir.join("other"));
    fs::write(&path, vec![1; 20_000]).expect("written");
    let file = open(&instance, &path, OFlags::RDWR);
    file.write_at(4096, &[2; 4096]).expect("written");
    file.sync(false).expect("synced");
    file.write_at(8192, &[2; 100]).expect("written");
    next_tick(dir, &path);
    fs::File::options().write(true).open(&path).expect("opened").write_all_at(&[3; 30_000], 0).expect("written");
    assert_eq!(file.sync(false).expect_err("a conflict").kind(), Kind::Conflict);
    assert_eq!(try_open(&instance, &path, OFlags::RDWR, &Options::default()).expect_err("a conflict").errno(), 116);
    drop(file);
    // It hurts no other file, also where memory is small.
    let good = open(&instance, &other, NEW);
    for at in 0..200 {
        good.write_at(at * 4096, &[at as u8; 4096]).unwrap_or_else(|error| panic!("page {at} of the other file: {error}"));
    }
    good.sync(false).expect("synced");
    drop(good);
    let error = instance.flush(&mut |_, _| ()).expect_err("one cannot be written");
    assert!(error.to_string().contains(&path.display().to_string()) && error.to_string().contains("hotshelf cache discard"), "{error}");
    assert_eq!(fs::read(&other).expect("below").len(), 200 * 4096);
    let stranded = instance.status().stranded;
    assert_eq!(stranded.iter().map(|one| (&*one.path, &*one.why)).collect::<Vec<_>>(), [(&*path, "conflict")]);
    (instance, path, other)
}

#[test]
fn a_conflict_has_three_ways_out() {
    for has_ssd in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let (instance, path, _) = conflict(dir.path(), has_ssd);
        let copy = dir.path().join("copy");
        let exported = instance.export(&path, &copy).expect("exported");
        let ours = fs::read(&copy).expect("a copy");
        assert_eq!((exported.bytes, exported.missing_bytes, ours.len()), (20_000, 0, 20_000));
        // Without an SSD the first page was below when the other program came, and was not dirty any more.
        let newer = if has_ssd { 4096..8292 } else { 8192..8292 };
        assert!(ours[newer.clone()].iter().all(|byte| *byte == 2));
        assert_eq!(instance.export(&path, &copy).expect_err("it is there").errno(), 17);
        instance.discard(&path).expect("given up");
        assert!(instance.status().stranded.is_empty());
        let file = open(&instance, &path, OFlags::RDWR);
        assert!(file.view(0..u64::MAX).expect("read").iter().all(|byte| *byte == 3));
        file.write_at(0, b"goes on").expect("written");
        file.sync(false).expect("synced");
        drop(file);
        assert_eq!(instance.discard(&path).expect_err("nothing to decide").errno(), 2);
        instance.detach().expect("left");

        let dir = tempfile::tempdir().expect("a directory");
        let (instance, path, _) = conflict(dir.path(), has_ssd);
        instance.force(&path).expect("written over it");
        let bytes = fs::read(&path).expect("below");
        assert_eq!(bytes.len(), 20_000);
        assert!(bytes[newer].iter().all(|byte| *byte == 2) && bytes[..4096].iter().all(|byte| *byte == 3));
        drop(open(&instance, &path, OFlags::RDWR));
        instance.detach().expect("left");
    }
}

#[test]
fn a_conflict_outlives_those_who_made_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let (instance, path, _) = conflict(dir.path(), true);
    let config = instance.config().clone();
    instance.detach().expect_err("one cannot be written");
    drop(instance);
    // As after a restart of the machine: memory is gone, the SSD is there.
    fs::remove_file(Instance::segment_path(&config)).expect("removed");
    let instance = Instance::open(&config).expect("an instance");
    instance.flush(&mut |_, _| ()).expect_err("one cannot be written");
    assert_eq!(instance.status().stranded.len(), 1);
    let copy = dir.path().join("copy");
    instance.export(&path, &copy).expect("exported");
    assert!(fs::read(&copy).expect("a copy")[4096..8192].iter().all(|byte| *byte == 2));
    assert!(fs::read(&path).expect("theirs").iter().all(|byte| *byte == 3));
    instance.discard(&path).expect("given up");
    instance.detach().expect("left");
}

#[test]
fn what_another_program_removes_or_moves_away_hurts_nobody() {
    for has_ssd in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        fs::create_dir(path("sub")).expect("made");
        let config = Config { memory: Some(Size::Bytes(256 << 10)), ..config(dir.path(), Mode::WriteBack, has_ssd) };
        let instance = Instance::open(&config).expect("an instance");
        for name in ["removed", "moved", "replaced"] {
            fs::write(path(name), vec![1; 50_000]).expect("written");
            // Without O_TRUNC: nobody but us has opened it.
            let file = open(&instance, &path(name), OFlags::RDWR);
            file.write_at(10, &[2; 40_000]).expect("written");
        }
        fs::remove_file(path("removed")).expect("removed");
        fs::rename(path("moved"), path("sub/elsewhere")).expect("moved");
        fs::write(path("new"), "new").expect("written");
        fs::rename(path("new"), path("replaced")).expect("replaced");
        let other = open(&instance, &path("other"), NEW);
        for at in 0..200 {
            other.write_at(at * 4096, &[at as u8; 4096]).unwrap_or_else(|error| panic!("page {at} of the other file: {error}"));
        }
        other.sync(false).expect("synced");
        drop(other);
        instance.flush(&mut |_, _| ()).expect("all below");
        assert_eq!(fs::read(path("sub/elsewhere")).expect("below")[10..40_010], [2; 40_000]);
        assert_eq!(fs::read(path("replaced")).expect("below"), b"new");
        assert_eq!((instance.status().dirty_bytes, instance.status().stranded.len()), (0, 0));
        instance.detach().expect("left");
    }
}

/// The leader takes a quarter of these.
const DESCRIPTORS: u64 = 400;

fn limit_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS), maximum }).expect("limited");
}

/// More files than the leader may have open: each moved one is found, or named until it is, and no other file suffers.
// long: one scenario: files are closed, moved, removed, and counted at the end.
#[test]
fn a_thousand_closed_files_that_are_moved_or_removed_hurt_nobody() {
    const FILES: usize = 1000;
    const OTHER_PAGES: u64 = 9000;
    limit_descriptors();
    for has_ssd in [false, true] {
        let dir = in_memory();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir_all(path("sub/deeper")).expect("made");
        let config = Config {
            memory: Some(Size::Bytes(32 << 20)),
            ssd_size: has_ssd.then_some(Size::Bytes(64 << 20)),
            dirty_age: "1h".parse().expect("a time"),
            files: 4096,
            ..config(dir.path(), Mode::WriteBack, has_ssd)
        };
        let instance = Instance::open(&config).expect("an instance");
        let name = |n: usize| format!("file-{n}");
        for n in 0..FILES {
            fs::write(path(&name(n)), vec![1; 6000]).expect("written");
            let file = open(&instance, &path(&name(n)), OFlags::RDWR);
            file.write_at(10, &[n as u8; 500]).expect("written");
            if has_ssd && n % 2 == 0 {
                file.sync(false).expect("synced");
            }
        }
        // A third goes elsewhere, a third to another name, and each seventh is removed.
        let is_removed = |n: usize| n.is_multiple_of(7);
        let now = |n: usize| path(&[format!("sub/deeper/{n}"), format!("other-{n}"), name(n)][n % 3]);
        for n in 0..FILES {
            if is_removed(n) {
                fs::remove_file(path(&name(n))).expect("removed");
            } else if now(n) != path(&name(n)) {
                fs::rename(path(&name(n)), now(n)).expect("moved");
            }
        }
        let other = open(&instance, &path("other"), NEW);
        for at in 0..OTHER_PAGES {
            other.write_at(at * 4096, &[at as u8; 4096]).unwrap_or_else(|error| panic!("page {at} of the other file: {error}"));
        }
        other.sync(false).expect("synced");
        drop(other);
        let flushed = instance.flush(&mut |_, _| ());
        assert_eq!(fs::read(path("other")).expect("below").len() as u64, OTHER_PAGES * 4096);
        let stranded = instance.status().stranded;
        assert_eq!(flushed.is_ok(), stranded.is_empty(), "{flushed:?}");
        println!("ssd {has_ssd}: {} of {FILES} were not found", stranded.len());
        // Those are named, and nothing else is.
        for one in &stranded {
            let n: usize = one.path.file_name().and_then(|name| name.to_str()?.strip_prefix("file-")?.parse().ok()).expect("a number");
            assert_eq!(one.why, "missing");
            assert!(is_removed(n) || n.is_multiple_of(3), "{n} is where it was, or in the same directory");
            if is_removed(n) {
                instance.discard(&one.path).expect("given up");
            } else {
                drop(open(&instance, &now(n), OFlags::RDONLY));
            }
        }
        instance.flush(&mut |_, _| ()).expect("all below");
        for n in (0..FILES).filter(|n| !is_removed(*n)) {
            let bytes = fs::read(now(n)).expect("below");
            assert!(bytes.len() == 6000 && bytes[10..510] == [n as u8; 500], "file {n}");
        }
        assert_eq!((instance.status().dirty_bytes, instance.status().stranded.len()), (0, 0));
        instance.detach().expect("left");
    }
}

/// The leader has room to hold few: those that were closed first are written back, and the rest is held.
#[test]
fn closed_files_are_written_back_when_too_many_are_dirty() {
    let dir = in_memory();
    let config = Config { dirty_age: "1h".parse().expect("a time"), files: 4096, ..config(dir.path(), Mode::WriteBack, false) };
    let instance = Instance::open(&Config { memory: Some(Size::Bytes(32 << 20)), ..config }).expect("an instance");
    limit_descriptors();
    let count = DESCRIPTORS;
    for n in 0..count {
        open(&instance, &dir.path().join(n.to_string()), NEW).write_at(0, b"soon below").expect("written");
    }
    until("the first is not below", || fs::read(dir.path().join("0")).expect("below") == b"soon below");
    until("too many are dirty", || instance.status().memory.dirty_pages <= count / 8);
    instance.detach().expect("left");
}

#[test]
fn the_mode_of_the_instance_counts_at_each_call() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("file");
    fs::write(&path, "before").expect("written");
    let instance = Instance::open(&config(dir.path(), Mode::ReadOnly, false)).expect("an instance");
    let file = open(&instance, &path, OFlags::RDWR);
    assert_eq!(file.write_at(0, b"no").expect_err("read-only").kind(), Kind::ReadOnly);
    for mode in [Mode::WriteBack, Mode::WriteThrough, Mode::PassThrough, Mode::WriteBack] {
        instance.set_mode(mode).expect("switched");
        file.write_at(0, b"yes").unwrap_or_else(|error| panic!("{mode:?}: {error}"));
        assert_eq!(file.mode(), mode);
    }
    drop(file);
    // What one open asked for stays as long as the file is open, and ends with it.
    let read_only = Options { mode: Some(Mode::ReadOnly), ..Options::default() };
    let file = try_open(&instance, &path, OFlags::RDWR, &read_only).expect("opened");
    instance.set_mode(Mode::WriteThrough).expect("switched");
    assert_eq!(file.write_at(0, b"no").expect_err("read-only").kind(), Kind::ReadOnly);
    drop(file);
    let file = open(&instance, &path, OFlags::RDWR);
    file.write_at(0, b"again").expect("written");
    drop(file);
    instance.detach().expect("left");
    assert_eq!(fs::read(&path).expect("below"), b"againe");
}

#[test]
fn a_file_that_is_mapped_is_below_at_each_moment() {
    for has_ssd in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        let instance = Instance::open(&config(dir.path(), Mode::WriteBack, has_ssd)).expect("an instance");
        let file = open(&instance, &path, NEW);
        file.write_at(0, &[1; 10_000]).expect("written");
        file.sync(false).expect("synced");
        file.write_at(10_000, &[2; 10_000]).expect("written");
        file.prepare_mapping(false).expect("below");
        assert_eq!(fs::read(&path).expect("below").len(), 20_000);
        file.write_at(5_000, &[3; 10_000]).expect("written");
        assert_eq!(fs::read(&path).expect("below")[5_000..15_000], [3; 10_000]);
        drop(file);
        // The mapping may still be there.
        let file = open(&instance, &path, OFlags::RDWR);
        file.write_at(0, &[4; 100]).expect("written");
        assert_eq!(fs::read(&path).expect("below")[..100], [4; 100]);
        drop(file);
        instance.detach().expect("left");
    }
}
