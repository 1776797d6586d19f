//! The benches of paper 002 (section 5) on our file system: asynchronous against synchronous writing, and raw blocks.
//!
//! What the sides are. All end in the same state: everything is durable, metadata was written once, at the end.
//!
//! - *synchronous* ([`WriteMode::Sync`]), the paper's baseline: the same write path, but each block is on the device before the next one
//!   is asked for (`O_DIRECT`); then one sync.
//! - *asynchronous* ([`WriteMode::Async`]): all blocks are handed over as futures (a transaction, if there are several files), then one
//!   wait for the one that ends last.
//! - *durable each* ([`WriteMode::Each`]), which the paper does not have: each block is written `O_DSYNC`, what a careful program without
//!   futures does.

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
    /// Files are made in its top directory, and removed.
    pub fs: &'a Fs,
    /// Time since some moment.
    pub now: &'a dyn Fn() -> Duration,
    /// Bytes of a block of a file; the paper's are 512, ours 4096.
    pub block_bytes: usize,
    /// Times everything is measured.
    pub trials: u32,
    /// True: stop.
    pub stopped: &'a dyn Fn() -> bool,
}

impl WritePathBench<'_> {
    /// How long something takes.
    fn time(&self, what: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
        let begin = (self.now)();
        what()?;
        Ok((self.now)().saturating_sub(begin))
    }

    /// Every side in turn, as often as is wanted.
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
