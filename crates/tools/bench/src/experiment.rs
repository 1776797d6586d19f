//! What an experiment is.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::ProgressBar;
use stack::DeviceName;

use crate::needs::Need;
use crate::outcome::Outcome;
use crate::replay::CacheSize;

/// One measurement that can be repeated by name.
pub struct Experiment {
    /// As typed.
    pub name: &'static str,
    /// What it shows, one line.
    pub about: &'static str,
    /// The paper and figure it repeats, if any.
    pub source: &'static str,
    /// What the paper found, in a sentence.
    pub paper: &'static str,
    /// Whom it stands beside.
    pub peers: &'static str,
    /// What it runs on, and what stands in for what the machine lacks.
    pub devices: &'static str,
    /// What a machine must have.
    pub needs: &'static [Need],
    /// Room for scratch files, MiB: small, full.
    pub room_mib: (u64, u64),
    /// About how many seconds it takes: small, full.
    pub takes: (u64, u64),
    /// Measures.
    pub run: fn(&Context) -> anyhow::Result<Outcome>,
}

/// How much of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunScale {
    /// Under a minute: shows that it works, its figures mean little.
    Small,
    /// What is published.
    Full,
}

/// What an experiment is given.
pub struct Context {
    /// The device to measure; a scratch file in `dir` if none is named.
    pub device: Option<DeviceName>,
    /// Writes may destroy what is on `device`.
    pub destroy_data: bool,
    /// Where scratch files are made; they are removed afterwards.
    pub dir: PathBuf,
    /// How much.
    pub scale: RunScale,
    /// Times everything is measured.
    pub runs: u32,
    /// Of the random choices.
    pub seed: u64,
    /// Traces to replay; made-up ones if none is named.
    pub traces: Vec<PathBuf>,
    /// Sizes of caches to replay them with; the experiment's own if none is named.
    pub cache_sizes: Vec<CacheSize>,
    /// Shows how far it is.
    pub progress: ProgressBar,
    /// The `hotshelf` command, for what it mounts.
    pub program: PathBuf,
    /// Set from outside: end soon, and leave nothing.
    pub stopped: &'static AtomicBool,
}

/// The measuring was stopped from outside.
#[derive(Debug)]
pub struct StoppedError;

impl std::fmt::Display for StoppedError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("stopped")
    }
}

impl std::error::Error for StoppedError {}

impl Context {
    /// For a run nobody stops, in this directory, with nothing named.
    pub fn small(dir: PathBuf) -> Context {
        static NEVER: AtomicBool = AtomicBool::new(false);
        Context {
            device: None,
            destroy_data: false,
            dir,
            scale: RunScale::Small,
            runs: 1,
            seed: 1,
            traces: Vec::new(),
            cache_sizes: Vec::new(),
            progress: ProgressBar::hidden(),
            program: "hotshelf".into(),
            stopped: &NEVER,
        }
    }

    /// How long one measurement takes, and its warm-up before.
    pub fn duration(&self) -> (Duration, Duration) {
        self.pick((Duration::from_millis(100), Duration::from_millis(20)), (Duration::from_secs(4), Duration::from_secs(1)))
    }

    /// One of two, by how much is wanted.
    pub fn pick<T>(&self, small: T, full: T) -> T {
        if self.scale == RunScale::Small { small } else { full }
    }

    /// Whether to go on.
    ///
    /// # Errors
    /// [`StoppedError`].
    pub fn check_stopped(&self) -> Result<(), StoppedError> {
        if self.stopped.load(Ordering::Relaxed) { Err(StoppedError) } else { Ok(()) }
    }

    /// Every side in turn, as often as wanted, the first one another each time; `measure` is told the run and the side.
    ///
    /// # Errors
    /// What `measure` says; [`StoppedError`].
    pub fn interleave(&self, sides: usize, mut measure: impl FnMut(u32, usize) -> anyhow::Result<()>) -> anyhow::Result<()> {
        for run in 0..self.runs {
            for at in 0..sides {
                self.check_stopped()?;
                measure(run, (at + run as usize) % sides)?;
                self.progress.inc(1);
            }
        }
        Ok(())
    }
}
