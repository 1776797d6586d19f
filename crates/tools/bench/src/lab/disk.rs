//! Stand-ins for drives: loop devices over files, slowed down if wanted, with a file system on them.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::undo::{UndoStep, loops_of};
use super::{DriveSpeed, Lab, throttle};
use crate::programs::run;

/// A loop device.
pub struct Disk {
    /// Its node.
    pub device: PathBuf,
    /// Where it is mounted, if it is.
    pub dir: PathBuf,
}

/// What the kernel has counted of a device.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Read requests.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write requests, flushes without data not among them.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
}

impl Disk {
    /// What the device has done up to now.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn counters(&self) -> anyhow::Result<Counters> {
        let name = self.device.file_name().context("a device has a name")?;
        let text = std::fs::read_to_string(Path::new("/sys/block").join(name).join("stat"))?;
        let all: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect();
        let at = |index: usize| all.get(index).copied().unwrap_or(0);
        // The kernel counts a flush as a write request, too.
        let (writes, flushes) = (at(4).saturating_sub(at(15)), at(15));
        Ok(Counters { reads: at(0), read_bytes: at(2) * 512, writes, written_bytes: at(6) * 512, flushes })
    }
}

impl Counters {
    /// Since then.
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
    /// A loop device of so many MiB over a file of the scratch directory.
    ///
    /// # Errors
    /// It cannot be made; there is no room.
    pub fn loop_device(&mut self, name: &str, mib: u64) -> anyhow::Result<Disk> {
        let file = self.dir().join(format!("{name}.img"));
        File::create(&file).and_then(|file| file.set_len(mib << 20)).with_context(|| format!("{}", file.display()))?;
        self.will(UndoStep::Loop(file.clone()))?;
        let on = |way: &str| run(self.context(), "losetup", &["--find".as_ref(), way.as_ref(), file.as_os_str()]);
        // Past the page cache of the file system below, where it can: a page is then in memory once.
        if on("--direct-io=on").is_err() {
            self.context().check_stopped()?;
            on("--direct-io=off")?;
        }
        let Some(device) = loops_of(&file).pop() else { bail!("no loop device was made of {}", file.display()) };
        let dir = self.dir().join(name);
        Ok(Disk { device, dir })
    }

    /// A loop device with an ext4 on it, mounted, and from then on so fast: neither its making nor its end waits for a slow drive.
    ///
    /// # Errors
    /// One of that fails.
    pub fn drive(&mut self, name: &str, mib: u64, speed: &DriveSpeed) -> anyhow::Result<Disk> {
        let disk = self.loop_device(name, mib)?;
        self.ext4(&disk)?;
        self.set_speed(&disk, speed)?;
        Ok(disk)
    }

    /// From now on the device is so fast.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn set_speed(&mut self, disk: &Disk, speed: &DriveSpeed) -> anyhow::Result<()> {
        throttle::limit(self, &disk.device, speed)
    }

    /// How many bytes that wait to be written to the device may be in memory; none: as many as the machine lets. `false`: the kernel
    /// has no such limit (Linux 6.2 has).
    ///
    /// # Errors
    /// It refuses it.
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

    /// Makes an ext4 on it, anew, and mounts it.
    ///
    /// # Errors
    /// One of that fails.
    pub fn ext4(&mut self, disk: &Disk) -> anyhow::Result<()> {
        let quiet = ["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"].map(std::ffi::OsStr::new);
        let words: Vec<&std::ffi::OsStr> = quiet.into_iter().chain([disk.device.as_os_str()]).collect();
        run(self.context(), "mkfs.ext4", &words)?;
        std::fs::create_dir_all(&disk.dir).with_context(|| format!("{}", disk.dir.display()))?;
        self.will(UndoStep::Mount(disk.dir.clone()))?;
        let words = ["-t".as_ref(), "ext4".as_ref(), disk.device.as_os_str(), disk.dir.as_os_str()];
        run(self.context(), "mount", &words).map(drop)
    }

    /// A file system in memory, mounted.
    ///
    /// # Errors
    /// It cannot be.
    pub fn tmpfs(&mut self, name: &str, mib: u64) -> anyhow::Result<PathBuf> {
        let dir = self.dir().join(name);
        std::fs::create_dir_all(&dir).with_context(|| format!("{}", dir.display()))?;
        self.will(UndoStep::Mount(dir.clone()))?;
        let size = format!("size={mib}m");
        let words = ["-t".as_ref(), "tmpfs".as_ref(), "-o".as_ref(), size.as_ref(), "tmpfs".as_ref(), dir.as_os_str()];
        run(self.context(), "mount", &words)?;
        Ok(dir)
    }

    /// Unmounts what is mounted there, now.
    ///
    /// # Errors
    /// It does not go.
    pub fn unmount(&mut self, dir: &Path) -> anyhow::Result<()> {
        UndoStep::Mount(dir.to_owned()).run().map(drop)
    }
}
