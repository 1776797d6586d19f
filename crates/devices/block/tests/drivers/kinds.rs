//! Runs the cases with every driver and every kind of file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use block::QueueOptions;
use block::driver::{Engine, FileDevice, FileOptions, MemoryDevice, Passthrough};
use tempfile::NamedTempFile;

use crate::cases;

const BYTES: u64 = 16 << 20;

/// Returns the modes in which a queue can be opened. One thread uses each queue.
fn modes() -> [QueueOptions; 6] {
    let plain = QueueOptions { depth: 16, ..QueueOptions::default() };
    [
        QueueOptions { single_issuer: true, ..plain.clone() },
        QueueOptions { single_issuer: true, waits: true, ..plain.clone() },
        QueueOptions { single_issuer: true, waits: true, spin_duration: Duration::from_micros(50), ..plain.clone() },
        QueueOptions { kernel_submits: true, ..plain.clone() },
        QueueOptions { depth: 1, device_polled: true, ..plain.clone() },
        plain,
    ]
}

fn file_in(dir: &Path) -> NamedTempFile {
    let file = NamedTempFile::new_in(dir).expect("a file");
    file.as_file().set_len(BYTES).expect("its size");
    file
}

fn shm() -> &'static Path {
    Path::new("/dev/shm")
}

/// Returns a directory on a disk: the one in which cargo builds, or the one for temporary files where another user has built.
pub fn disk() -> &'static Path {
    static DISK: LazyLock<PathBuf> = LazyLock::new(|| {
        let built = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let is_another_users = built.is_dir() && rustix::fs::access(&built, rustix::fs::Access::WRITE_OK).is_err();
        if is_another_users { std::env::temp_dir() } else { built }
    });
    &DISK
}

fn every_mode(name: &str, path: &Path, options: &FileOptions) {
    for mode in modes() {
        let device = FileDevice::open(path, options).expect("opened");
        cases::all(&format!("{name}, direct {}", device.direct()), &device, &mode);
    }
}

/// Returns the default file options with this engine.
pub fn options(engine: Engine) -> FileOptions {
    FileOptions { engine, ..FileOptions::default() }
}

#[test]
fn memory() {
    for mode in modes() {
        cases::all("memory", &MemoryDevice::new(512, BYTES).expect("memory"), &mode);
    }
}

#[test]
fn uring_on_a_file_in_memory() {
    let file = file_in(shm());
    every_mode("tmpfs", file.path(), &options(Engine::Uring));
    assert!(!FileDevice::open(file.path(), &FileOptions::default()).expect("opened").direct(), "tmpfs has no direct I/O worth the name");
}

#[test]
fn uring_on_a_file_of_a_disk() {
    let file = file_in(disk());
    every_mode("file", file.path(), &options(Engine::Uring));
    every_mode("file", file.path(), &FileOptions { buffered: true, ..options(Engine::Uring) });
}

#[test]
fn uring_with_large_blocks() {
    let file = file_in(disk());
    every_mode("file", file.path(), &FileOptions { block_bytes: Some(4096), ..options(Engine::Uring) });
}

#[test]
fn threads_on_files() {
    for dir in [shm(), disk()] {
        let file = file_in(dir);
        every_mode("plain", file.path(), &options(Engine::Plain));
    }
}

#[test]
fn loop_device() {
    let file = file_in(disk());
    let Some(device) = Loop::over(file.path()) else { return };
    every_mode("loop", Path::new(&device.0), &options(Engine::Uring));
    every_mode("loop, plain", Path::new(&device.0), &options(Engine::Plain));
    let held = FileDevice::open(&device.0, &FileOptions::default()).expect("opened");
    let error = FileDevice::open(&device.0, &FileOptions::default()).expect_err("one writer").to_string();
    assert!(error.contains("is in use: mounted"), "{error}");
    assert!(FileDevice::open(&device.0, &FileOptions { read_only: true, ..FileOptions::default() }).is_ok());
    drop(held);
}

#[test]
fn a_device_of_choice() {
    let Some(path) = std::env::var_os("HOTSHELF_TEST_DEVICE") else {
        println!("SKIP: HOTSHELF_TEST_DEVICE names no device");
        return;
    };
    let path = Path::new(&path);
    let node = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"ng"));
    // A single mode if the variable names one, otherwise all.
    let one: Option<usize> = std::env::var("HOTSHELF_TEST_MODE").ok().and_then(|mode| mode.parse().ok());
    for mode in modes().into_iter().enumerate().filter(|(at, _)| one.is_none_or(|one| one == *at)).map(|(_, mode)| mode) {
        if node {
            cases::all("passthrough", &Passthrough::open(path, false).expect("opened"), &mode);
        } else {
            cases::all("device", &FileDevice::open(path, &options(Engine::Uring)).expect("opened"), &mode);
        }
    }
}

/// A loop device that is detached when dropped.
pub struct Loop(pub String);

impl Loop {
    /// Attaches a loop device to a file; `None` if that is not possible here.
    pub fn over(file: &Path) -> Option<Loop> {
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
        match made {
            Ok(made) if made.status.success() => Some(Loop(String::from_utf8_lossy(&made.stdout).trim().to_owned())),
            _ => {
                println!("SKIP: needs root and losetup, for a loop device");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// Makes a file of a given size.
pub fn sized(dir: &Path, bytes: u64) -> NamedTempFile {
    let file = NamedTempFile::new_in(dir).expect("a file");
    File::set_len(file.as_file(), bytes).expect("its size");
    file
}
