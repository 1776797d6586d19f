//! Options of opens, and files that are never cached.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use cachedfs::{Admit, Advice, Config, Error, File, Instance, Kind, Mode, Options, RuleConfig, Size, Whence};
use rustix::fs::{AtFlags, CWD, OFlags, RenameFlags, Timespec, Timestamps};

fn config(dir: &Path) -> Config {
    Config { memory: Some(Size::Bytes(1 << 20)), runtime_dir: dir.to_owned(), files: 64, ..Config::default() }
}

fn try_open(instance: &Arc<Instance>, path: &Path, flags: OFlags, options: &Options) -> Result<File, Error> {
    let bits = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    instance.open_file(CWD, path, flags | OFlags::CLOEXEC, bits, options)
}

fn open(instance: &Arc<Instance>, path: &Path, flags: OFlags) -> File {
    try_open(instance, path, flags, &Options::default()).expect("opened")
}

const NEW: OFlags = OFlags::RDWR.union(OFlags::CREATE);

#[test]
fn what_is_no_file_goes_to_the_kernel() {
    let dir = tempfile::tempdir().expect("a directory");
    let instance = Instance::open(&config(dir.path())).expect("an instance");
    for (path, flags) in [
        ("/proc/self/status", OFlags::RDONLY),
        ("/dev/zero", OFlags::RDWR),
        ("/", OFlags::RDONLY | OFlags::DIRECTORY),
        ("/etc/passwd", OFlags::PATH),
        ("/sys/kernel/mm/transparent_hugepage/enabled", OFlags::RDONLY),
    ] {
        if Path::new(path).exists() {
            assert!(!open(&instance, Path::new(path), flags).is_cached(), "{path}");
        }
    }
    let segment = Instance::segment_path(instance.config());
    assert!(!open(&instance, &segment, OFlags::RDONLY).is_cached(), "the cache does not cache itself");
    let mut bytes = [1; 10];
    let zero = open(&instance, Path::new("/dev/zero"), OFlags::RDWR | OFlags::TRUNC);
    assert_eq!((zero.read(&mut bytes).expect("read"), bytes), (10, [0; 10]));
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).expect("made");
    let both = open(&instance, &fifo, OFlags::RDWR);
    both.write(b"through").expect("written");
    assert_eq!(both.read(&mut bytes).expect("read"), 7);
    assert_eq!(both.seek(0, Whence::Start).expect_err("a pipe").errno(), 29);
    let proc = open(&instance, Path::new("/proc/self/status"), OFlags::RDONLY);
    let mut text = vec![0; 4096];
    assert!(proc.read(&mut text).expect("read") > 100);
    assert_eq!(try_open(&instance, &dir.path().join("none"), OFlags::RDONLY, &Options::default()).expect_err("none").errno(), 2);
    drop((zero, both, proc));
    instance.detach().expect("left");
}

#[test]
fn modes_and_rules() {
    let dir = tempfile::tempdir().expect("a directory");
    let rule = |glob: &str, mode| RuleConfig { glob: glob.to_owned(), mode, ..RuleConfig::default() };
    let rules = vec![rule("*.ro", Some(Mode::ReadOnly)), rule("*.through", Some(Mode::WriteThrough))];
    let instance = Instance::open(&Config { rules, ..config(dir.path()) }).expect("an instance");
    fs::write(dir.path().join("a.ro"), "fixed").expect("written");
    let fixed = open(&instance, &dir.path().join("a.ro"), OFlags::RDWR);
    let error = fixed.write_at(0, b"x").expect_err("read-only");
    assert_eq!((error.errno(), error.kind()), (30, Kind::ReadOnly));
    assert!(error.to_string().contains("a.ro") && error.to_string().contains("mode"), "{error}");
    assert_eq!(fixed.set_len(0).expect_err("read-only").errno(), 30);
    let through = open(&instance, &dir.path().join("a.through"), NEW);
    through.write_at(0, b"now").expect("written");
    assert_eq!(fs::read(dir.path().join("a.through")).expect("below"), b"now");
    assert_eq!(through.mode(), Mode::WriteThrough);
    let path = dir.path().join("back");
    let back = open(&instance, &path, NEW);
    back.write_at(0, b"later").expect("written");
    assert_eq!(back.mode(), Mode::WriteBack);
    assert_eq!(fs::read(&path).expect("below"), b"");
    back.set_mode(Mode::PassThrough).expect("switched");
    assert_eq!(fs::read(&path).expect("below"), b"later", "what was dirty is written first");
    back.write_at(5, b" still").expect("written");
    assert_eq!(fs::read(&path).expect("below"), b"later still");
    // Others may change it in pass-through: nothing is cached.
    fs::write(&path, "theirs").expect("written");
    assert_eq!(&*back.view(0..100).expect("read"), b"theirs");
    back.set_mode(Mode::WriteBack).expect("switched");
    assert_eq!(&*back.view(0..100).expect("read"), b"theirs");
    instance.set_mode(Mode::ReadOnly).expect("switched");
    assert_eq!(back.write_at(0, b"x").expect_err("read-only").errno(), 30);
    assert_eq!(instance.status().mode, Mode::ReadOnly);
    let options = Options { mode: Some(Mode::WriteBack), admit: Some(Admit::Always), advice: Advice::Random, ..Options::default() };
    let asked = try_open(&instance, &path, OFlags::RDWR, &options).expect("opened");
    assert_eq!(asked.mode(), Mode::ReadOnly, "not more than the instance allows");
    drop((fixed, through, back, asked));
    instance.detach().expect("left");
}

#[test]
fn flags_of_open_hold() {
    let dir = tempfile::tempdir().expect("a directory");
    let instance = Instance::open(&config(dir.path())).expect("an instance");
    let path = dir.path().join("file");
    let file = open(&instance, &path, NEW);
    file.write_at(0, b"some bytes").expect("written");
    let reader = open(&instance, &path, OFlags::RDONLY);
    assert_eq!(reader.write_at(0, b"x").expect_err("to be read").errno(), 9);
    assert_eq!(reader.set_len(0).expect_err("to be read").errno(), 22);
    let writer = open(&instance, &path, OFlags::WRONLY);
    assert_eq!(writer.read_at(0, &mut [0]).expect_err("to be written").errno(), 9);
    writer.write_at(0, b"SOME").expect("written");
    let synced = open(&instance, &path, OFlags::RDWR | OFlags::DSYNC);
    synced.write_at(5, b"BYTES").expect("written");
    let appended = open(&instance, &path, OFlags::WRONLY | OFlags::APPEND);
    appended.write_at(0, b"!").expect("at the end, as Linux has it");
    assert_eq!(&*reader.view(0..100).expect("read"), b"SOME BYTES!");
    assert_eq!(try_open(&instance, &path, NEW | OFlags::EXCL, &Options::default()).expect_err("there").errno(), 17);
    let cut = open(&instance, &path, OFlags::RDWR | OFlags::TRUNC);
    assert_eq!(reader.len().expect("a length"), 0);
    // It may need whole blocks, so only where the file system takes it.
    if let Ok(direct) = try_open(&instance, &path, OFlags::RDWR | OFlags::DIRECT, &Options::default()) {
        assert_eq!(direct.mode(), Mode::PassThrough);
    }
    drop((file, reader, writer, synced, appended, cut));
    instance.detach().expect("left");
}

#[test]
fn names_come_and_go_while_it_is_open() {
    let dir = tempfile::tempdir().expect("a directory");
    let instance = Instance::open(&config(dir.path())).expect("an instance");
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    let file = open(&instance, &one, NEW);
    file.write_at(0, b"follows").expect("written");
    fs::rename(&one, &two).expect("renamed");
    file.clean().expect("found under its new name");
    assert_eq!(fs::read(&two).expect("below"), b"follows");
    file.write_at(0, b"FOLLOWS").expect("written");
    instance.rename(CWD, &two, CWD, &one, RenameFlags::empty()).expect("renamed");
    drop(file);
    assert_eq!(instance.stat(CWD, &one, AtFlags::empty()).expect("stat").st_size, 7);
    // Closed and dirty: moved by somebody else before it is written.
    fs::rename(&one, &two).expect("renamed");
    instance.flush(&mut |_, _| ()).expect("flushed");
    assert_eq!(fs::read(&two).expect("below"), b"FOLLOWS");
    let gone = open(&instance, &two, OFlags::RDWR);
    fs::remove_file(&two).expect("removed");
    gone.write_at(0, b"without").expect("written");
    assert_eq!(&*gone.view(0..100).expect("read"), b"without");
    gone.sync(false).expect("synced");
    assert_eq!(gone.stat().expect("stat").st_nlink, 0);
    // Another file of that name is another file.
    let new = open(&instance, &two, NEW);
    assert_eq!(new.len().expect("a length"), 0);
    drop((gone, new));
    instance.detach().expect("left");
    assert_eq!(fs::read(&two).expect("below"), b"");
}

#[test]
fn times_are_those_of_the_writes() {
    let dir = tempfile::tempdir().expect("a directory");
    let instance = Instance::open(&config(dir.path())).expect("an instance");
    let path = dir.path().join("file");
    let file = open(&instance, &path, NEW);
    file.clean().expect("clean");
    let old = Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
    file.set_times(&Timestamps { last_access: old, last_modification: old }).expect("set");
    assert_eq!(file.stat().expect("stat").st_mtime, 1_000_000_000);
    let begun = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time").as_secs() as i64;
    file.write_at(0, b"new").expect("written");
    let written = file.stat().expect("stat");
    assert!(written.st_mtime >= begun - 1, "{} {begun}", written.st_mtime);
    assert_eq!(fs::metadata(&path).expect("below").mtime(), 1_000_000_000, "nothing is below yet");
    file.clean().expect("written below");
    let below = fs::metadata(&path).expect("below");
    assert_eq!((below.mtime(), below.mtime_nsec()), (written.st_mtime, written.st_mtime_nsec as i64), "the time of the write");
    file.set_times(&Timestamps { last_access: old, last_modification: old }).expect("set");
    drop(file);
    instance.detach().expect("left");
    assert_eq!(fs::metadata(&path).expect("below").mtime(), 1_000_000_000);
}

#[test]
fn a_deadline_of_its_own_and_pages_that_stay() {
    let dir = tempfile::tempdir().expect("a directory");
    let dirty_age = cachedfs::Age(Duration::from_secs(3600));
    let instance = Instance::open(&Config { dirty_age, ..config(dir.path()) }).expect("an instance");
    let (soon, late) = (dir.path().join("soon"), dir.path().join("late"));
    let options = Options { dirty_age: Some(Duration::from_millis(50)), ..Options::default() };
    let file = try_open(&instance, &soon, NEW, &options).expect("opened");
    let other = open(&instance, &late, NEW);
    other.write_at(0, b"late").expect("written");
    file.write_at(0, b"soon").expect("written");
    let begun = Instant::now();
    while fs::read(&soon).expect("below") != b"soon" {
        assert!(begun.elapsed() < Duration::from_secs(10), "not written");
        std::thread::yield_now();
    }
    assert_eq!(fs::read(&late).expect("below"), b"");
    let kept = dir.path().join("kept");
    fs::write(&kept, vec![7; 100_000]).expect("written");
    let pinned = try_open(&instance, &kept, OFlags::RDONLY, &Options { pin: true, ..Options::default() }).expect("opened");
    let scanned = dir.path().join("scanned");
    fs::write(&scanned, vec![1; 4 << 20]).expect("written");
    let scan = open(&instance, &scanned, OFlags::RDONLY);
    assert_eq!(scan.view(0..u64::MAX).expect("read").len(), 4 << 20);
    let misses = |instance: &Instance| instance.status().tiers.iter().find(|tier| tier.name == "below").map(|tier| tier.hits);
    let before = misses(&instance);
    assert!(pinned.view(0..u64::MAX).expect("read").iter().all(|byte| *byte == 7));
    assert_eq!(misses(&instance), before, "they stayed");
    drop((file, other, pinned, scan));
    instance.detach().expect("left");
}

#[test]
fn a_pin_shows_what_is_there_and_keeps_it_there() {
    let dir = tempfile::tempdir().expect("a directory");
    let instance = Instance::open(&config(dir.path())).expect("an instance");
    let path = dir.path().join("file");
    fs::write(&path, vec![3; 10_000]).expect("written");
    let file = open(&instance, &path, OFlags::RDWR);
    let pinned = file.pin(4000, 500).expect("pinned");
    assert_eq!((pinned.len(), pinned.is_copy()), (96, false), "to the end of the page");
    assert!(file.pin(9_990, 500).expect("pinned").len() == 10 && file.pin(10_000, 1).expect("the end").is_empty());
    drop(pinned);
    drop(file);
    instance.detach().expect("left");
}

#[test]
fn a_private_one_is_nobody_elses_and_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let instance = Instance::open(&Config { private: true, ..config(dir.path()) }).expect("an instance");
    let path = dir.path().join("file");
    let file = open(&instance, &path, NEW);
    file.write_at(0, b"mine").expect("written");
    assert!(instance.status().segment.is_none());
    drop(file);
    instance.detach().expect("left");
    assert_eq!(fs::read(&path).expect("below"), b"mine");
    assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 1);
}

#[test]
fn a_group_shares_by_its_rights() {
    let dir = tempfile::tempdir().expect("a directory");
    let group = rustix::process::getegid().as_raw().to_string();
    let shared = Config { group: Some(group), ..config(dir.path()) };
    let instance = Instance::open(&shared).expect("an instance");
    let segment = Instance::segment_path(&shared);
    assert_eq!(fs::metadata(&segment).expect("there").permissions().mode() & 0o777, 0o660);
    assert_eq!(fs::metadata(segment.parent().expect("a directory")).expect("there").permissions().mode() & 0o777, 0o770);
    let mine = dir.path().join("mine");
    fs::write(&mine, "secret").expect("written");
    fs::set_permissions(&mine, PermissionsExt::from_mode(0o600)).expect("changed");
    let file = open(&instance, &mine, OFlags::RDONLY);
    assert_eq!((file.mode(), &*file.view(0..100).expect("read")), (Mode::PassThrough, &b"secret"[..]), "not for the group's eyes");
    fs::set_permissions(&mine, PermissionsExt::from_mode(0o660)).expect("changed");
    let ours = dir.path().join("ours");
    fs::write(&ours, "shared").expect("written");
    fs::set_permissions(&ours, PermissionsExt::from_mode(0o640)).expect("changed");
    assert_eq!(open(&instance, &ours, OFlags::RDONLY).mode(), Mode::WriteBack);
    assert_eq!(open(&instance, &ours, OFlags::RDWR).mode(), Mode::PassThrough, "who leads could not write it");
    drop(file);
    instance.detach().expect("left");
    let kept = Config { keep: true, ..config(dir.path()) };
    let instance = Instance::open(&kept).expect("an instance");
    let path = dir.path().join("file");
    fs::write(&path, "warm").expect("written");
    assert_eq!(&*open(&instance, &path, OFlags::RDONLY).view(0..100).expect("read"), b"warm");
    instance.detach().expect("left");
    assert!(Instance::segment_path(&kept).exists() && !Instance::is_running(&kept));
    assert_eq!(fs::metadata(Instance::segment_path(&kept)).expect("there").permissions().mode() & 0o777, 0o600);
    let again = Instance::open(&kept).expect("again");
    let file = open(&again, &path, OFlags::RDONLY);
    let misses = |instance: &Instance| instance.status().tiers.iter().find(|tier| tier.name == "below").map(|tier| tier.hits);
    let before = misses(&again);
    assert_eq!(&*file.view(0..100).expect("read"), b"warm");
    assert_eq!(misses(&again), before, "still warm");
    drop(file);
    again.detach().expect("left");
    Instance::destroy(&kept, false).expect("removed");
    assert!(!Instance::segment_path(&kept).exists());
}

#[test]
fn too_many_files_go_without_the_cache() {
    let dir = tempfile::tempdir().expect("a directory");
    let instance = Instance::open(&Config { files: 16, ..config(dir.path()) }).expect("an instance");
    let files: Vec<_> = (0..40).map(|n| open(&instance, &dir.path().join(n.to_string()), NEW)).collect();
    assert!(files.iter().any(|file| !file.is_cached()) && files.iter().any(File::is_cached));
    files.iter().enumerate().for_each(|(n, file)| assert_eq!(file.write(n.to_string().as_bytes()).expect("written"), n.to_string().len()));
    drop(files);
    instance.detach().expect("left");
    (0..40).for_each(|n| assert_eq!(fs::read_to_string(dir.path().join(n.to_string())).expect("below"), n.to_string()));
}

#[test]
fn a_file_below_that_is_cut_or_replaced_is_no_crash() {
    let dir = tempfile::tempdir().expect("a directory");
    let instance = Instance::open(&config(dir.path())).expect("an instance");
    let path = dir.path().join("file");
    fs::write(&path, vec![1; 20_000]).expect("written");
    let file = open(&instance, &path, OFlags::RDWR);
    assert_eq!(file.view(0..4096).expect("read").len(), 4096);
    fs::OpenOptions::new().write(true).open(&path).expect("opened").set_len(100).expect("cut");
    file.sync(false).expect("looked at");
    assert_eq!(file.view(0..u64::MAX).expect("read").len(), 100);
    // Replaced as editors do: open files go on with the old one.
    let mut new = tempfile::NamedTempFile::new_in(dir.path()).expect("made");
    new.write_all(b"another").expect("written");
    new.persist(&path).expect("replaced");
    file.sync(false).expect("looked at");
    assert_eq!(file.view(0..u64::MAX).expect("read").len(), 100);
    let another = open(&instance, &path, OFlags::RDWR);
    assert_eq!(&*another.view(0..100).expect("read"), b"another");
    // Open reports a conflict, and an option resolves it.
    another.write_at(0, b"OURS").expect("written");
    drop(another);
    fs::File::options().write(true).open(&path).expect("opened").write_all_at(b"theirs, longer", 0).expect("written");
    let refused = try_open(&instance, &path, OFlags::RDWR, &Options::default()).expect_err("a conflict");
    assert_eq!((refused.kind(), refused.errno()), (Kind::Conflict, 116));
    let decided = try_open(&instance, &path, OFlags::RDWR, &Options { discard: true, ..Options::default() }).expect("opened");
    assert_eq!(&*decided.view(0..100).expect("read"), b"theirs, longer");
    drop((file, decided));
    instance.detach().expect("left");
}

#[test]
fn an_ssd_that_fails_is_only_slower_in_write_through() {
    let dir = tempfile::tempdir().expect("a directory");
    let ssd = dir.path().join("ssd");
    let with_ssd = Config {
        ssd: Some(ssd.clone()),
        ssd_size: Some(Size::Bytes(8 << 20)),
        mode: Mode::WriteThrough,
        second_touch: false,
        ..config(dir.path())
    };
    let instance = Instance::open(&with_ssd).expect("an instance");
    let path = dir.path().join("file");
    let bytes: Vec<u8> = (0..3 << 20).map(|n: usize| (n / 3) as u8).collect();
    fs::write(&path, &bytes).expect("written");
    let file = open(&instance, &path, OFlags::RDWR);
    assert!(*file.view(0..u64::MAX).expect("read") == bytes[..]);
    // All but its superblocks is gone.
    fs::File::options().write(true).open(&ssd).expect("opened").set_len(8192).expect("cut");
    for round in 0..3 {
        assert!(*file.view(0..u64::MAX).expect("read") == bytes[..], "round {round}");
        file.write_at(round * 5000, &bytes[round as usize * 5000..][..100]).expect("written");
        file.sync(false).expect("synced");
    }
    assert!(fs::read(&path).expect("below") == bytes);
    drop(file);
    instance.detach().expect("left");
}
