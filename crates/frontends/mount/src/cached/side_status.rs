//! What the daemon of a cached mount tells `hotshelf status` of its slow side: a small file beside the segment of the cache.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use cachedfs::Config;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::presence;

/// A status has fewer bytes.
const BYTES_MAX: u64 = 4096;

/// The state of the slow side of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SideStatus {
    /// Since when the side has not replied, in seconds since the epoch, if it is away.
    pub away_since: Option<u64>,
    /// Requests that timed out since the side went away, or last did.
    pub timed_out: u64,
    /// Calls on the side that have not returned yet, although their requests were replied to.
    pub unfinished: usize,
}

/// Writes the state, so that a reader sees all of the old or all of the new one. Never waits for whatever is in the way there: the users of
/// a group's cache may write to its directory.
///
/// # Errors
/// As unlink(2), open(2), write(2), rename(2).
pub fn write(path: &Path, status: &SideStatus) -> std::io::Result<()> {
    let text = serde_json::to_vec(status)?;
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

/// Returns the state of the slow side of this user's mount with this device number (`major:minor`), while its daemon runs. None: it has no
/// deadline, or the mount is another user's, who may write anything.
pub fn read(cache: &Config, device: &str) -> Option<SideStatus> {
    if !presence::is_served(cache, device) {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(presence::side_path(cache, device)?, flags, Mode::empty()).ok()?;
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
    fn a_state_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("mount-0:5.side");
        for status in [SideStatus::default(), SideStatus { away_since: Some(7), timed_out: 3, unfinished: 2 }] {
            write(&path, &status).expect("written");
            assert_eq!(serde_json::from_slice::<SideStatus>(&std::fs::read(&path).expect("read")).expect("sane"), status);
        }
        assert_eq!(std::fs::read_dir(dir.path()).expect("read").count(), 1);
    }

    #[test]
    fn what_others_put_in_the_way_is_replaced_and_never_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, temporary, victim) = (dir.path().join("side"), dir.path().join("side.new"), dir.path().join("victim"));
        let status = SideStatus { timed_out: 3, ..SideStatus::default() };
        let written = || {
            write(&path, &status).expect("written");
            assert_eq!(serde_json::from_slice::<SideStatus>(&std::fs::read(&path).expect("read")).expect("sane"), status);
        };
        rustix::fs::mknodat(rustix::fs::CWD, &temporary, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
        written();
        std::fs::write(&victim, "kept").expect("written");
        std::os::unix::fs::symlink(&victim, &temporary).expect("linked");
        written();
        assert_eq!(std::fs::read(&victim).expect("read"), b"kept");
        std::fs::create_dir(&temporary).expect("made");
        assert!(write(&path, &status).is_err());
    }
}
