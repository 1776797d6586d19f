//! Stand-ins for drives: loop devices over files, optionally throttled, with a file system.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::undo::{UndoStep, loops_of};
use super::{DriveSpeed, Lab, throttle};
use crate::programs::run;

/// A loop device over a scratch file.
pub struct Disk {
    /// Path of the device node.
    pub device: PathBuf,
    /// Mount point, if it is mounted.
    pub dir: PathBuf,
}

/// The kernel's I/O counters of a device.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Total number of read requests.
    pub reads: u64,
    /// Total number of bytes read.
    pub read_bytes: u64,
    /// Number of write requests, without flushes.
    pub writes: u64,
    /// Total number of bytes written.
    pub written_bytes: u64,
    /// Total number of flush requests.
    pub flushes: u64,
}

impl Disk {
    /// Returns the counters of the device.
    ///
    /// # Errors
    /// The kernel has no counters for it.
    pub fn counters(&self) -> anyhow::Result<Counters> {
        let name = self.device.file_name().context("a device has a name")?;
        let text = std::fs::read_to_string(Path::new("/sys/block").join(name).join("stat"))?;
        let all: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect();
        let at = |index: usize| all.get(index).copied().unwrap_or(0);
        // The kernel counts a flush also as a write request.
        let (writes, flushes) = (at(4).saturating_sub(at(15)), at(15));
        Ok(Counters { reads: at(0), read_bytes: at(2) * 512, writes, written_bytes: at(6) * 512, flushes })
    }
}

impl Counters {
    /// Returns the difference to earlier counters.
    #[must_use]
    pub fn since(&self, before: &Counters) -> Counters {
        Counters {
            reads: self.reads - before.reads,
            read_bytes: self.read_bytes - before.read_bytes,
            writes: self.writes.saturating_sub(before.writes),
            written_bytes: self.written_bytes - before.written_bytes,
            flushes: self.flushes - before.flushes,
        }
    }
}

impl Lab<'_> {
    /// Creates a loop device of `mib` MiB over a scratch file.
    ///
    /// # Errors
    /// It cannot be created; no space.
    pub fn loop_device(&mut self, name: &str, mib: u64) -> anyhow::Result<Disk> {
        let file = self.dir().join(format!("{name}.img"));
        File::create(&file).and_then(|file| file.set_len(mib << 20)).with_context(|| format!("{}", file.display()))?;
        self.will(UndoStep::Loop(file.clone()))?;
        let on = |mode: &str| run(self.context(), "losetup", &["--find".as_ref(), mode.as_ref(), file.as_os_str()]);
        // Direct I/O on the backing file where possible, so that pages are cached once.
        if on("--direct-io=on").is_err() {
            self.context().check_stopped()?;
            on("--direct-io=off")?;
        }
        let Some(device) = loops_of(&file).pop() else { bail!("no loop device was made of {}", file.display()) };
        let dir = self.dir().join(name);
        Ok(Disk { device, dir })
    }

    /// Creates a throttled loop device with a mounted ext4. Creation and removal are not throttled.
    ///
    /// # Errors
    /// One of these steps fails.
    pub fn drive(&mut self, name: &str, mib: u64, speed: &DriveSpeed) -> anyhow::Result<Disk> {
        let disk = self.loop_device(name, mib)?;
        self.ext4(&disk)?;
        self.set_speed(&disk, speed)?;
        Ok(disk)
    }

    /// Sets the speed limit of the device.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn set_speed(&mut self, disk: &Disk, speed: &DriveSpeed) -> anyhow::Result<()> {
        throttle::limit(self, &disk.device, speed)
    }

    /// Limits the dirty pages of the device, in bytes; `None`: no limit. Returns `false` if the kernel has no such limit (before Linux
    /// 6.2).
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn limit_dirty(&mut self, disk: &Disk, bytes: Option<u64>) -> anyhow::Result<bool> {
        let dir = Path::new("/sys/class/bdi").join(throttle::number_of(&disk.device)?);
        let [strict, most, share] = ["strict_limit", "max_bytes", "max_ratio"].map(|name| dir.join(name));
        if !strict.exists() || !most.exists() {
            return Ok(false);
        }
        let set = |file: &Path, word: &str| std::fs::write(file, word).with_context(|| format!("{}", file.display()));
        let off = [(&strict, "0"), (&share, "100")];
        match bytes {
            None => off.iter().try_for_each(|(file, word)| set(file, word))?,
            Some(bytes) => {
                off.iter().try_for_each(|(file, word)| self.will_once(UndoStep::Limit(file.to_path_buf(), (*word).to_owned())))?;
                set(&strict, "1")?;
                set(&most, &bytes.to_string())?;
            }
        }
        Ok(true)
    }

    /// Creates an ext4 on the device and mounts it.
    ///
    /// # Errors
    /// One of these steps fails.
    pub fn ext4(&mut self, disk: &Disk) -> anyhow::Result<()> {
        let quiet = ["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"].map(std::ffi::OsStr::new);
        let words: Vec<&std::ffi::OsStr> = quiet.into_iter().chain([disk.device.as_os_str()]).collect();
        run(self.context(), "mkfs.ext4", &words)?;
        std::fs::create_dir_all(&disk.dir).with_context(|| format!("{}", disk.dir.display()))?;
        self.will(UndoStep::Mount(disk.dir.clone()))?;
        let words = ["-t".as_ref(), "ext4".as_ref(), disk.device.as_os_str(), disk.dir.as_os_str()];
        run(self.context(), "mount", &words).map(drop)
    }

    /// Mounts a tmpfs and returns its directory.
    ///
    /// # Errors
    /// The mount fails.
    pub fn tmpfs(&mut self, name: &str, mib: u64) -> anyhow::Result<PathBuf> {
        let dir = self.dir().join(name);
        std::fs::create_dir_all(&dir).with_context(|| format!("{}", dir.display()))?;
        self.will(UndoStep::Mount(dir.clone()))?;
        let size = format!("size={mib}m");
        let words = ["-t".as_ref(), "tmpfs".as_ref(), "-o".as_ref(), size.as_ref(), "tmpfs".as_ref(), dir.as_os_str()];
        run(self.context(), "mount", &words)?;
        Ok(dir)
    }

    /// Unmounts this directory now.
    ///
    /// # Errors
    /// The directory is busy.
    pub fn unmount(&mut self, dir: &Path) -> anyhow::Result<()> {
        UndoStep::Mount(dir.to_owned()).run().map(drop)
    }
}
