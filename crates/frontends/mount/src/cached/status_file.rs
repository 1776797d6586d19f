//! Small files beside the segment of a cache, in which the daemon of a cached mount tells `hotshelf status` of itself.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use cachedfs::Config;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::presence;

/// A file has fewer bytes.
const BYTES_MAX: u64 = 32 << 10;

/// Writes a file, so that a reader sees all of the old or all of the new one. Never waits for whatever is in the way there: the users of a
/// group's cache may write to its directory.
///
/// # Errors
/// As unlink(2), open(2), write(2), rename(2).
pub fn write(path: &Path, content: &impl Serialize) -> std::io::Result<()> {
    let text = serde_json::to_vec(content)?;
    let mut temporary = path.to_owned().into_os_string();
    temporary.push(".new");
    match rustix::fs::unlink(&temporary) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(&temporary, flags, Mode::RUSR | Mode::WUSR)?);
    file.write_all(&text)?;
    std::fs::rename(&temporary, path)
}

/// Returns what the daemon of this user's mount with this device number (`major:minor`) wrote to a file, while it runs. None: it did not,
/// or the file or the mount is another user's, who may write anything.
pub fn read<T: DeserializeOwned>(cache: &Config, device: &str, path: &Path) -> Option<T> {
    if !presence::is_served(cache, device) {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    if !presence::is_own_file(&file) {
        return None;
    }
    let mut text = Vec::new();
    File::from(file).take(BYTES_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod test {
    use super::*;
    use rustix::fs::FileType;

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("mount-0:5.side");
        for content in [vec![1], vec![2, 3]] {
            write(&path, &content).expect("written");
            assert_eq!(serde_json::from_slice::<Vec<u32>>(&std::fs::read(&path).expect("read")).expect("sane"), content);
        }
        assert_eq!(std::fs::read_dir(dir.path()).expect("read").count(), 1);
    }

    #[test]
    fn what_others_put_in_the_way_is_replaced_and_never_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, temporary, victim) = (dir.path().join("side"), dir.path().join("side.new"), dir.path().join("victim"));
        let written = || {
            write(&path, &[3, 4]).expect("written");
            assert_eq!(std::fs::read(&path).expect("read"), b"[3,4]");
        };
        rustix::fs::mknodat(rustix::fs::CWD, &temporary, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
        written();
        std::fs::write(&victim, "kept").expect("written");
        std::os::unix::fs::symlink(&victim, &temporary).expect("linked");
        written();
        assert_eq!(std::fs::read(&victim).expect("read"), b"kept");
        std::fs::create_dir(&temporary).expect("made");
        assert!(write(&path, &[3, 4]).is_err());
    }
}
