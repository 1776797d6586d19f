//! The ends of files, beside the kernel: the same calls on a file through the cache and on one of the kernel's own, at offsets around every
//! limit there is, give the same numbers and the same errnos.

use std::fs::{self, File as Plain};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use cachedfs::{Config, File, Instance, Options, Size, Whence};
use rustix::fs::{CWD, FallocateFlags, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};

const END: u64 = i64::MAX as u64;

fn instance(dir: &Path) -> Arc<Instance> {
    let config = Config { memory: Some(Size::Bytes(1 << 20)), runtime_dir: dir.to_owned(), files: 64, ..Config::default() };
    Instance::open(&config).expect("an instance")
}

/// One call on both.
#[derive(Clone, Copy, Debug)]
enum Call {
    Read,
    Write,
    WriteTwo,
    Cut,
    Allocate,
    AllocateKeeping,
    Punch,
    Seek,
    SeekOn,
    SeekEnd,
}

const CALLS: [Call; 10] = [
    Call::Read,
    Call::Write,
    Call::WriteTwo,
    Call::Cut,
    Call::Allocate,
    Call::AllocateKeeping,
    Call::Punch,
    Call::Seek,
    Call::SeekOn,
    Call::SeekEnd,
];

fn of_kernel<T>(result: Result<T, Errno>) -> Result<T, i32> {
    result.map_err(|errno| errno.raw_os_error())
}

fn plain(call: Call, file: &Plain, at: u64, len: usize) -> Result<u64, i32> {
    let bytes = vec![7; len];
    let allocate = |how| of_kernel(rustix::fs::fallocate(file, how, at, len as u64)).map(|()| 0);
    match call {
        Call::Read => of_kernel(rustix::io::pread(file, &mut vec![0; len][..], at)).map(|got| got as u64),
        Call::Write => of_kernel(rustix::io::pwrite(file, &bytes, at)).map(|done| done as u64),
        Call::WriteTwo => {
            let parts = [&bytes[..len / 2], &bytes[len / 2..]].map(std::io::IoSlice::new);
            of_kernel(rustix::io::pwritev(file, &parts, at)).map(|done| done as u64)
        }
        Call::Cut => of_kernel(rustix::fs::ftruncate(file, at)).map(|()| 0),
        Call::Allocate => allocate(FallocateFlags::empty()),
        Call::AllocateKeeping => allocate(FallocateFlags::KEEP_SIZE),
        Call::Punch => allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE),
        Call::Seek => of_kernel(rustix::fs::seek(file, SeekFrom::Start(at))),
        Call::SeekOn => of_kernel(rustix::fs::seek(file, SeekFrom::Start(at)).and_then(|_| rustix::fs::seek(file, SeekFrom::Current(1)))),
        Call::SeekEnd => of_kernel(rustix::fs::seek(file, SeekFrom::End(at as i64))),
    }
}

fn cached(call: Call, file: &File, at: u64, len: usize) -> Result<u64, i32> {
    let bytes = vec![7; len];
    let range = at..at.saturating_add(len as u64);
    let result = match call {
        Call::Read => file.read_at(at, &mut vec![0; len]).map(|got| got as u64),
        Call::Write => file.write_at(at, &bytes).map(|done| done as u64),
        Call::WriteTwo => {
            let parts = [&bytes[..len / 2], &bytes[len / 2..]].map(std::io::IoSlice::new);
            file.write_vectored_at(at, &parts).map(|done| done as u64)
        }
        Call::Cut => file.set_len(at).map(|()| 0),
        Call::Allocate => file.allocate(range, false).map(|()| 0),
        Call::AllocateKeeping => file.allocate(range, true).map(|()| 0),
        Call::Punch => file.punch_hole(range).map(|()| 0),
        Call::Seek => file.seek(at as i64, Whence::Start),
        Call::SeekOn => file.seek(at as i64, Whence::Start).and_then(|_| file.seek(1, Whence::Current)),
        Call::SeekEnd => file.seek(at as i64, Whence::End),
    };
    result.map_err(|error| error.errno())
}

/// What the grid is made of: around each power that is some file system's end, or ours.
fn offsets() -> Vec<u64> {
    let ends = [0, 4096, 1 << 26, 1 << 31, 1 << 32, 1 << 41, 1 << 44, 1 << 45, 1 << 52, 1 << 56, 1 << 62, END];
    let around =
        |end: u64| [end.saturating_sub(8192), end.saturating_sub(4097), end.saturating_sub(4096), end.saturating_sub(1), end, end + 1];
    let mut all: Vec<u64> = ends.into_iter().flat_map(around).filter(|at| *at <= END).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn compare(instance: &Arc<Instance>, dir: &Path, offsets: &[u64]) {
    let mut cases = 0;
    for call in CALLS {
        for at in offsets {
            for len in [0, 1, 4096, 8193] {
                // A range of more than there is has no words in these calls.
                let is_range = matches!(call, Call::Allocate | Call::AllocateKeeping | Call::Punch);
                if is_range && at.checked_add(len as u64).is_none_or(|end| end > END) || (len > 0 && matches!(call, Call::Cut | Call::Seek))
                {
                    continue;
                }
                let (ours, theirs) = (dir.join("ours"), dir.join("theirs"));
                fs::write(&ours, b"begin").expect("made");
                fs::write(&theirs, b"begin").expect("made");
                let open = instance.open_file(CWD, &ours, OFlags::RDWR | OFlags::CLOEXEC, rustix::fs::Mode::empty(), &Options::default());
                let file = open.expect("opened");
                let shadow = Plain::options().read(true).write(true).open(&theirs).expect("opened");
                let (found, wanted) = (cached(call, &file, *at, len), plain(call, &shadow, *at, len));
                let what = format!("{call:?} of {len} bytes at {at:#x} in {}", dir.display());
                assert_eq!(found, wanted, "{what}");
                let size = shadow.metadata().expect("there").len();
                assert_eq!(
                    (file.len().ok(), file.stat().ok().map(|stat| stat.st_size as u64)),
                    (Some(size), Some(size)),
                    "{what}: the length"
                );
                if found.is_ok() && size > 5 {
                    let (mut ours, mut theirs) = ([1; 16], [2; 16]);
                    let tail = size - 16.min(size);
                    let got = file.read_at(tail, &mut ours).expect("read");
                    assert_eq!(got, shadow.read_at(&mut theirs, tail).expect("read"), "{what}");
                    assert_eq!(ours[..got], theirs[..got], "{what}: the end");
                    file.sync(false).unwrap_or_else(|error| panic!("{what}: what was taken is kept: {error}"));
                    assert_eq!(fs::metadata(dir.join("ours")).expect("there").len(), size, "{what}: below");
                }
                cases += 1;
                drop(file);
                instance.unlink(CWD, &ours, rustix::fs::AtFlags::empty()).expect("removed");
                fs::remove_file(&theirs).expect("removed");
            }
        }
    }
    println!("{cases} cases in {}", dir.display());
}

/// The file systems that are here: that of temporary files, and one in memory.
fn directories() -> Vec<tempfile::TempDir> {
    let here = tempfile::tempdir().expect("a directory");
    let in_memory = tempfile::tempdir_in("/dev/shm").ok();
    std::iter::once(here).chain(in_memory).collect()
}

#[test]
fn the_ends_of_files_are_where_the_kernel_has_them() {
    for dir in directories() {
        let instance = instance(dir.path());
        compare(&instance, dir.path(), &offsets());
        instance.detach().expect("left");
    }
}

/// Not a test by itself: a process that may not make files as long as it likes, and is not killed for trying.
#[test]
fn child() {
    let Some(dir) = std::env::var_os("CACHEDFS_LIMITED").map(PathBuf::from) else { return };
    let instance = instance(&dir);
    let limit = 100_000;
    let plain = Rlimit { current: Some(limit), maximum: None };
    setrlimit(Resource::Fsize, plain).expect("limited");
    compare(&instance, &dir, &[0, limit - 8193, limit - 4096, limit - 1, limit, limit + 1, 1 << 20, 1 << 50]);
    println!("> compared");
}

#[test]
fn the_process_s_own_limit_holds_at_the_call() {
    for dir in directories() {
        let output = Command::new("sh")
            .args(["-c", "trap '' XFSZ; exec \"$0\" --exact child --nocapture"])
            .arg(std::env::current_exe().expect("this program"))
            .env("CACHEDFS_LIMITED", dir.path())
            .output()
            .expect("started");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && out.contains("> compared"), "{out}{err}");
    }
}
