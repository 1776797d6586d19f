//! The SSD as a drive that the processes drive themselves: `nvme-sim` beside this program, behind a vfio-user socket, with a write
//! cache that a loss of power empties.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// Bytes of it.
const SIZE: &str = "24MiB";

/// See the module.
pub struct Drive {
    dir: PathBuf,
    child: Child,
    words: BufReader<ChildStdout>,
    seed: u64,
    /// How often its power went.
    pub cuts: u32,
}

/// What a cache on the drive in a directory names.
pub fn name(dir: &Path) -> PathBuf {
    format!("vfio-user:{}/1", dir.join("drive.sock").display()).into()
}

impl Drive {
    /// Starts it.
    pub fn start(dir: &Path, seed: u64) -> Result<Drive> {
        let (child, words) = spawn(dir, seed)?;
        Ok(Drive { dir: dir.to_owned(), child, words, seed, cuts: 0 })
    }

    /// The power goes and comes back: of what was not flushed anything may be there. Nobody uses it.
    pub fn cut(&mut self) -> Result<()> {
        self.end(Signal::USR1)?;
        self.seed = self.seed.wrapping_add(1);
        self.cuts += 1;
        (self.child, self.words) = spawn(&self.dir, self.seed)?;
        Ok(())
    }

    /// It ends, and no host did what a driver must not do.
    pub fn end(&mut self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal)?;
        let mut said = String::new();
        self.words.read_line(&mut said)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "the drive ends with {status}: {said}");
        Ok(())
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(dir: &Path, seed: u64) -> Result<(Child, BufReader<ChildStdout>)> {
    let program = std::env::current_exe()?.with_file_name("nvme-sim");
    let block = if seed.is_multiple_of(2) { "512" } else { "4096" };
    let mut command = Command::new(&program);
    command.arg("--socket").arg(dir.join("drive.sock")).arg("--file").arg(dir.join("drive")).args(["--size", SIZE, "--block", block]);
    command.args(["--volatile-cache", "--end-at-power-cut", "--queues", "64", "--seed", &seed.to_string()]).stdout(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("{}", program.display()))?;
    let mut words = BufReader::new(child.stdout.take().context("a pipe")?);
    let mut said = String::new();
    words.read_line(&mut said)?;
    ensure!(said.contains("at vfio-user:"), "the drive says {said:?}");
    Ok((child, words))
}
