//! The state that commands work on: an image, a working directory, and where output goes.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use stack::rawfs::fs::{Atime, Creds, Fs, FsSettings};
use stack::rawfs::{DiskSettings, Error, Settings, Store};
use stack::{DeviceName, DeviceOptions};

use super::open_transaction::OpenTransaction;

/// Holds the state of one shell: the image, the working directory and the output.
pub struct Session {
    /// Name of the device or image file, as the user gave it.
    pub image: DeviceName,
    /// The open device, locked against other users.
    pub device: Option<Arc<dyn block::Device>>,
    /// None: there is none in the image yet.
    pub fs: Option<Fs>,
    /// Whether commands that change the image are refused.
    pub read_only: bool,
    /// The working directory: an absolute path without dots.
    pub dir: Vec<u8>,
    /// Credentials with which the shell accesses files.
    pub creds: Creds,
    /// The open transaction, if `begin` was called.
    pub gathered: Option<OpenTransaction>,
    /// The command lines of this session, oldest first.
    pub history: Vec<String>,
    /// Set by a signal: what is under way stops.
    pub stop: Arc<AtomicBool>,
    /// Receives the output of the commands.
    pub out: Box<dyn Write>,
    /// Whether long commands show a progress bar.
    pub shows_progress: bool,
}

impl Session {
    /// With what is in the image. One that is not there, or holds no file system, can be made one with `mkfs`.
    pub fn open(image: DeviceName, read_only: bool, out: Box<dyn Write>) -> anyhow::Result<Session> {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        // Who may write the image may do everything in it.
        let creds = Creds { uid, gid, groups: Vec::new(), umask: 0o022, check: false };
        let (dir, stop) = (b"/".to_vec(), Arc::new(AtomicBool::new(false)));
        let mut session = Session {
            image,
            device: None,
            fs: None,
            read_only,
            dir,
            creds,
            gathered: None,
            history: Vec::new(),
            stop,
            out,
            shows_progress: false,
        };
        if !matches!(&session.image, DeviceName::Path(path) if !path.exists()) {
            session.attach()?;
        }
        Ok(session)
    }

    /// Opens the device, unless it is, and the file system on it, if there is one.
    pub fn attach(&mut self) -> anyhow::Result<()> {
        let named = || format!("{}", self.image);
        let device = match &self.device {
            Some(device) => Arc::clone(device),
            None => self
                .image
                .open_with(&DeviceOptions { read_only: self.read_only, alone: true, ..DeviceOptions::default() })
                .with_context(named)?,
        };
        let disk = stack::disk_on(&*device, &DiskSettings::default()).with_context(named)?;
        self.device = Some(device);
        let settings = Settings { read_only: self.read_only, ..Settings::default() };
        let (store, recovery) = match Store::open(disk, &settings) {
            Err(Error::NoImage) => return Ok(()),
            other => other.with_context(named)?,
        };
        if !recovery.clean && !self.read_only {
            complain!("{}: not unmounted cleanly: {} changes were replayed from the log", self.image, recovery.replayed);
        }
        let mut settings = FsSettings::default();
        if self.read_only {
            (settings.atime, settings.write_back) = (Atime::Never, std::time::Duration::ZERO);
        }
        self.fs = Some(Fs::open(store, settings).with_context(named)?.0);
        Ok(())
    }

    /// Closes the file system, not the device.
    pub fn detach(&mut self) -> anyhow::Result<()> {
        self.gathered = None;
        self.dir = b"/".to_vec();
        match self.fs.take() {
            // There is nothing to be written.
            Some(_) if self.read_only => Ok(()),
            Some(fs) => Ok(fs.close()?),
            None => Ok(()),
        }
    }

    /// Ends the session. An open transaction is aborted.
    pub fn close(mut self) -> anyhow::Result<()> {
        let forgotten = self.gathered.take().is_some();
        let outcome = self.detach().and(self.out.flush().or_else(ignore_broken_pipe));
        if forgotten {
            bail!("the transaction was not committed: none of its changes were made");
        }
        outcome
    }

    /// Returns the open file system, or an error if the image holds none.
    pub fn fs(&self) -> anyhow::Result<&Fs> {
        self.fs.as_ref().with_context(|| format!("{} holds no hotshelf file system: make one with `mkfs` (see `help mkfs`)", self.image))
    }

    /// Absolute, for the calls of the file system.
    pub fn path(&self, path: &OsString) -> anyhow::Result<Vec<u8>> {
        let path = path.as_bytes();
        if path.is_empty() {
            bail!("a path must not be empty");
        }
        Ok(join(&self.dir, path))
    }

    /// An error as soon as somebody wants this to end.
    pub fn go_on(&self) -> anyhow::Result<()> {
        if self.stop.load(Ordering::Relaxed) { bail!("interrupted") } else { Ok(()) }
    }
}

fn ignore_broken_pipe(error: std::io::Error) -> anyhow::Result<()> {
    if error.kind() == std::io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error.into()) }
}

/// A path from a directory, both without dots: `..` takes off a name, as `cd` does in sh.
pub fn join(dir: &[u8], path: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    let base = if path.first() == Some(&b'/') { &b""[..] } else { dir };
    for part in base.split(|byte| *byte == b'/').chain(path.split(|byte| *byte == b'/')) {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let mut all = vec![b'/'];
    all.extend(parts.join(&b'/'));
    all
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn paths_are_joined_without_dots() {
        let joined = |dir: &str, path: &str| String::from_utf8(join(dir.as_bytes(), path.as_bytes())).expect("text");
        assert_eq!(joined("/", "a"), "/a");
        assert_eq!(joined("/a/b", "../c/./d//"), "/a/c/d");
        assert_eq!(joined("/a", "/x/../.."), "/");
        assert_eq!(joined("/a", "../../.."), "/");
    }
}
