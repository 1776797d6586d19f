//! The SSD as a drive in user space: `nvme-sim` beside this program, behind a vfio-user socket, with a volatile write cache.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// Size of the drive.
const SIZE: &str = "24MiB";

/// The simulated drive, a child process.
pub struct Drive {
    dir: PathBuf,
    child: Child,
    words: BufReader<ChildStdout>,
    seed: u64,
    /// Number of power cuts so far.
    pub cuts: u32,
}

/// Returns the device name of the drive in a directory.
pub fn name(dir: &Path) -> PathBuf {
    format!("vfio-user:{}/1", dir.join("drive.sock").display()).into()
}

impl Drive {
    /// Starts the drive in a directory.
    pub fn start(dir: &Path, seed: u64) -> Result<Drive> {
        let (child, words) = spawn(dir, seed)?;
        Ok(Drive { dir: dir.to_owned(), child, words, seed, cuts: 0 })
    }

    /// Simulates a power cut: any part of the unflushed data survives. No process uses the drive.
    pub fn cut(&mut self) -> Result<()> {
        self.end(Signal::USR1)?;
        self.seed = self.seed.wrapping_add(1);
        self.cuts += 1;
        (self.child, self.words) = spawn(&self.dir, self.seed)?;
        Ok(())
    }

    /// Stops the drive and verifies that no host violated the specification.
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
