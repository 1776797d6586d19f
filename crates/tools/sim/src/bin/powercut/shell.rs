//! Runs system programs, and undoes mounts.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Runs a program; an error contains its output.
pub fn run<'a>(program: &str, arguments: impl IntoIterator<Item = &'a OsStr>) -> Result<()> {
    ran(Command::new(program).args(arguments)).map(drop)
}

/// Runs a command and returns its output.
pub fn ran(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    if !output.status.success() {
        bail!("{command:?}: {}: {text}", output.status);
    }
    Ok(text)
}

/// A stack of mounts, undone in reverse on drop.
#[derive(Debug, Default)]
pub struct Mounts {
    done: Vec<Undo>,
}

#[derive(Debug)]
enum Undo {
    Unmount(PathBuf),
    Pair(PathBuf, PathBuf),
}

impl Mounts {
    /// Creates a directory as a mount point.
    pub fn directory(&mut self, path: PathBuf) -> Result<PathBuf> {
        std::fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// Mounts an image through a loop device.
    pub fn disk(&mut self, image: &Path, at: &Path) -> Result<()> {
        let options = ["-o", "loop,nodiscard"].map(OsStr::new);
        run("mount", options.into_iter().chain([image.as_os_str(), at.as_os_str()]))?;
        self.done.push(Undo::Unmount(at.to_owned()));
        Ok(())
    }

    /// Mounts a pair; `crash_at`: the step of recovery at which the daemon exits.
    pub fn pair(&mut self, hotshelf: &Path, sides: &[PathBuf; 2], at: &Path, flags: &[&str], crash_at: Option<u8>) -> Result<()> {
        let mut command = Command::new(hotshelf);
        command.arg("mount").arg("--ssd").arg(&sides[0]).arg("--hdd").arg(&sides[1]).args(flags).arg(at);
        if let Some(step) = crash_at {
            command.env("HOTSHELF_CRASH_AT", step.to_string());
        }
        ran(&mut command)?;
        self.done.push(Undo::Pair(hotshelf.to_owned(), at.to_owned()));
        Ok(())
    }

    /// Unmounts what was mounted last.
    pub fn unmount_last(&mut self) -> Result<()> {
        self.done.pop().map_or(Ok(()), |undo| undo.run())
    }

    /// Unmounts everything, the last mount first.
    pub fn unmount_all(&mut self) -> Result<()> {
        while !self.done.is_empty() {
            self.unmount_last()?;
        }
        Ok(())
    }
}

impl Undo {
    fn run(&self) -> Result<()> {
        match self {
            Undo::Unmount(at) => run("umount", [at.as_os_str()]),
            Undo::Pair(hotshelf, at) => ran(Command::new(hotshelf).arg("unmount").arg(at)).map(drop),
        }
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        while let Some(undo) = self.done.pop() {
            if undo.run().is_err() {
                let (Undo::Unmount(at) | Undo::Pair(_, at)) = &undo;
                let _ = run("umount", [OsStr::new("-l"), at.as_os_str()]);
            }
        }
    }
}
