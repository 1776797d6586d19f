//! One process, one file at a time, the simple things.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use cachedfs::{Config, File, Instance, Mode, Options, Size};
use rustix::fs::{CWD, OFlags};

fn config(dir: &Path) -> Config {
    Config { memory: Some(Size::Bytes(4 << 20)), runtime_dir: dir.to_owned(), files: 64, ..Config::default() }
}

fn open(instance: &Arc<Instance>, path: &Path, flags: OFlags) -> File {
    let at: BorrowedFd<'_> = CWD;
    let bits = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    instance.open_file(at, path, flags | OFlags::CLOEXEC, bits, &Options::default()).expect("opened")
}

fn read_all(file: &File) -> Vec<u8> {
    file.view(0..u64::MAX).expect("read").into()
}

#[test]
fn what_is_written_is_read_and_is_below_after_a_flush() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("file");
    for (n, (mode, ssd)) in [
        (Mode::WriteBack, false),
        (Mode::WriteBack, true),
        (Mode::WriteThrough, true),
        (Mode::WriteAround, false),
        (Mode::PassThrough, true),
    ]
    .into_iter()
    .enumerate()
    {
        let ssd = ssd.then(|| dir.path().join("ssd"));
        let ssd_size = ssd.is_some().then_some(Size::Bytes(8 << 20));
        let instance = Instance::open(&Config { mode, ssd, ssd_size, direct: n % 2 == 1, ..config(dir.path()) }).expect("an instance");
        let file = open(&instance, &path, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC);
        assert!(file.is_cached());
        assert_eq!(file.write_at(0, b"hello").expect("written"), 5);
        assert_eq!(file.write_at(10_000, b"world").expect("written"), 5);
        let mut expected = vec![0; 10_005];
        expected[..5].copy_from_slice(b"hello");
        expected[10_000..].copy_from_slice(b"world");
        assert!(read_all(&file) == expected, "{mode:?}");
        assert_eq!(file.stat().expect("stat").st_size, 10_005);
        file.sync(false).expect("synced");
        assert!(read_all(&file) == expected, "{mode:?}");
        file.clean().expect("written below");
        assert!(std::fs::read(&path).expect("below") == expected, "{mode:?}");
        file.set_len(3).expect("cut");
        assert_eq!(read_all(&file), b"hel");
        file.close().expect("closed");
        instance.detach().expect("left");
        assert_eq!(std::fs::read(&path).expect("below"), b"hel");
        assert!(!Instance::segment_path(instance.config()).exists(), "the last one out removes it");
        let _ = std::fs::remove_file(dir.path().join("ssd"));
    }
}

#[test]
fn in_read_only_mode_a_file_without_a_name_is_not_written_either() {
    let dir = tempfile::tempdir().expect("a directory");
    let instance = Instance::open(&Config { mode: Mode::ReadOnly, ..config(dir.path()) }).expect("an instance");
    let bits = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let file = instance.open_file(CWD, dir.path(), flags, bits, &Options::default()).expect("opened");
    let errno = |result: Result<usize, cachedfs::Error>| result.map_err(|error| error.errno());
    assert_eq!(errno(file.write(b"x")), Err(30));
    assert_eq!(errno(file.write_at(0, b"x")), Err(30));
    assert_eq!(errno(file.append(b"x").map(|_| 1)), Err(30));
    assert_eq!(errno(file.set_len(5).map(|()| 1)), Err(30));
    assert_eq!(errno(file.allocate(0..10, false).map(|()| 1)), Err(30));
    assert_eq!(file.len().expect("a length"), 0);
    instance.set_mode(Mode::WriteBack).expect("switched");
    assert_eq!(errno(file.write(b"x")), Ok(1), "the mode is looked at by each call");
}

/// A file that only grows is never shorter than it was, seen by its name.
#[test]
fn in_pass_through_a_name_s_length_is_what_is_below() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("file");
    let instance = Instance::open(&Config { mode: Mode::PassThrough, ..config(dir.path()) }).expect("an instance");
    let file = open(&instance, &path, OFlags::RDWR | OFlags::CREATE);
    std::thread::scope(|scope| {
        let writes = scope.spawn(|| {
            for n in 0..3000 {
                assert_eq!(file.write_at(n, b"x").expect("written"), 1);
            }
        });
        let mut last = 0;
        while !writes.is_finished() {
            let size = instance.stat(CWD, &path, rustix::fs::AtFlags::empty()).expect("stat").st_size;
            assert!(size >= last, "{size} after {last}");
            last = size;
            // Opened and closed by somebody else meanwhile.
            drop(open(&instance, &path, OFlags::RDONLY));
        }
        writes.join().expect("no panic");
    });
    assert_eq!(instance.stat(CWD, &path, rustix::fs::AtFlags::empty()).expect("stat").st_size, 3000);
}
