//! The benchmarks of testFS with SPDK (section 5) on our file system: asynchronous and synchronous writes, and raw blocks.
//!
//! All modes end in the same state: everything is durable, and metadata was written once, at the end.
//!
//! - *synchronous* ([`WriteMode::Sync`]), the paper's baseline: the same write path, but each block is on the device before the next one
//!   is submitted (`O_DIRECT`); then one sync.
//! - *asynchronous* ([`WriteMode::Async`]): all blocks are submitted as futures (a transaction for several files), then one wait for the
//!   last.
//! - *durable each* ([`WriteMode::Each`]), not in the paper: each block is written with `O_DSYNC`, as a careful program without futures
//!   does.

mod appends;
mod blocks;
pub mod model;
mod sample;
mod sweep;
#[cfg(test)]
mod test;

pub use appends::{AppendShape, appends};
pub use blocks::{BlockAccess, raw};
pub use sample::{Sample, WriteMode};
pub use sweep::{SWEEPS, Sweep, Sweeps};

use std::time::Duration;

use stack::rawfs::fs::Fs;

/// What is measured, and by which clock.
pub struct WritePathBench<'a> {
    /// The file system; files are created in its root directory and removed.
    pub fs: &'a Fs,
    /// Returns the elapsed time since a fixed moment.
    pub now: &'a dyn Fn() -> Duration,
    /// Block size of files in bytes; the paper's is 512, ours 4096.
    pub block_bytes: usize,
    /// How often everything is measured.
    pub trials: u32,
    /// Returns whether measuring must stop.
    pub stopped: &'a dyn Fn() -> bool,
}

impl WritePathBench<'_> {
    /// Returns the duration of a call.
    fn time(&self, what: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
        let begin = (self.now)();
        what()?;
        Ok((self.now)().saturating_sub(begin))
    }

    /// Measures every mode in turn, `trials` times.
    fn trials(&self, sides: &[WriteMode], mut run: impl FnMut(WriteMode) -> anyhow::Result<Duration>) -> anyhow::Result<Sample> {
        let mut sample = Sample::default();
        for _ in 0..self.trials {
            for side in sides {
                anyhow::ensure!(!(self.stopped)(), "interrupted");
                let took = run(*side)?;
                sample.of(*side).push(took.as_secs_f64() * 1e6);
            }
        }
        Ok(sample)
    }
}
