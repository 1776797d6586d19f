//! A pair of directories in a temporary directory, for tests.

use std::ffi::OsStr;
use std::ops::Deref;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::config::{Config, Size};
use crate::number::ROOT;
use crate::pair::TieredFs;
use fusedev::Caller;

/// The open pair; the directories go away with it.
pub struct TestPair {
    /// The tiered file system over the pair.
    pub fs: TieredFs,
    /// The temporary directory that holds both sides.
    pub temp: TempDir,
}

impl Deref for TestPair {
    type Target = TieredFs;

    fn deref(&self) -> &TieredFs {
        &self.fs
    }
}

/// Two directories, and these files in them: "ssd/a/file". Each file's content is its path. One that ends in a slash is a directory.
pub fn sides_with<S: AsRef<str>>(paths: &[S]) -> TempDir {
    let temp = tempfile::tempdir().expect("a directory");
    for path in ["ssd/", "hdd/"].into_iter().chain(paths.iter().map(AsRef::as_ref)) {
        let (dir, file) = path.rsplit_once('/').expect("of a side");
        std::fs::create_dir_all(temp.path().join(dir)).expect("made");
        if !file.is_empty() {
            std::fs::write(temp.path().join(path), path).expect("written");
        }
    }
    temp
}

/// Returns a configuration that opens the pair in there. Its marks keep files where they are also on a disk that is nearly full: the
/// default ones would let the mover demote every file there.
pub fn config_of(temp: &TempDir) -> Config {
    let [ssd, hdd] = ["ssd", "hdd"].map(|side| temp.path().join(side));
    let (full, none) = (Size::Percent(100), Size::Bytes(0));
    Config { ssd, hdd, high: full, low: full, reserve: none, ..Config::default() }
}

/// Runs it as an ordinary user, to whom something can be forbidden.
pub fn as_nobody(what: impl FnOnce() + Send) {
    let as_somebody = || {
        if rustix::process::geteuid().is_root() {
            let nobody = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("of this thread");
        }
        what();
    };
    std::thread::scope(|scope| scope.spawn(as_somebody).join().expect("no panic"));
}

/// Returns the user that runs the tests.
pub fn me() -> Caller {
    Caller { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw(), pid: 1 }
}

impl TestPair {
    /// Creates a pair of two empty directories.
    pub fn empty() -> TestPair {
        TestPair::with::<&str>(&[])
    }

    /// Creates a pair with these files, see [`sides_with`].
    pub fn with<S: AsRef<str>>(paths: &[S]) -> TestPair {
        TestPair::open(sides_with(paths))
    }

    /// Opens the pair in a temporary directory.
    pub fn open(temp: TempDir) -> TestPair {
        TestPair { fs: crate::start::open(config_of(&temp)).expect("opened"), temp }
    }

    /// Unmounted and mounted once more.
    pub fn again(self) -> TestPair {
        drop(self.fs);
        TestPair::open(self.temp)
    }

    /// A file as it lies on a side: "hdd/a/file".
    pub fn at(&self, path: &str) -> PathBuf {
        self.temp.path().join(path)
    }

    /// The kernel has one reference to it then.
    pub fn look_up(&self, name: &str) -> u64 {
        self.fs.lookup(ROOT, OsStr::new(name)).expect("there").ino
    }

    /// The kernel looks a path up and forgets it.
    pub fn look_and_forget(&self, path: &str) {
        // One that is not there was not seen.
        let _ = self.fs.known_at(path.as_bytes());
    }
}
