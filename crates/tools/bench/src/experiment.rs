//! Experiments and the context they run in.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::ProgressBar;
use stack::DeviceName;

use crate::outcome::Outcome;
use crate::replay::CacheSize;

/// One measurement that can be repeated by name.
pub struct Experiment {
    /// Name on the command line.
    pub name: &'static str,
    /// What it shows, in one line.
    pub about: &'static str,
    /// The paper and figure that it repeats, if any.
    pub source: &'static str,
    /// The paper's result, in one sentence.
    pub paper: &'static str,
    /// The peers measured beside ours.
    pub peers: &'static str,
    /// The devices, and the stand-ins for missing ones.
    pub devices: &'static str,
    /// Requirements that the machine must meet.
    pub needs: &'static [Need],
    /// Scratch space, MiB: small, full.
    pub room_mib: (u64, u64),
    /// Approximate duration in seconds: small, full.
    pub takes: (u64, u64),
    /// The function that runs the measurement.
    pub run: fn(&Context) -> anyhow::Result<Outcome>,
}

/// One requirement of an experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// Root privileges.
    Root,
    /// Loop devices.
    Loop,
    /// `/dev/fuse`.
    Fuse,
    /// A program and its Debian package.
    Program(&'static str, &'static str),
    /// A control group that limits the I/O rate of a device.
    Throttle,
    /// A control group that limits memory.
    LittleMemory,
}

impl Need {
    /// Returns a description for the terminal.
    pub fn name(self) -> String {
        match self {
            Need::Root => "root".into(),
            Need::Loop => "loop devices".into(),
            Need::Fuse => "FUSE".into(),
            Need::Program(program, _) => program.into(),
            Need::Throttle => "a control group that limits devices".into(),
            Need::LittleMemory => "a control group that limits memory".into(),
        }
    }
}

/// The scale of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunScale {
    /// Under a minute: a functional test whose figures mean little.
    Small,
    /// The scale of published figures.
    Full,
}

/// Settings of one run of an experiment.
pub struct Context {
    /// The device to measure; a scratch file in `dir` if none is named.
    pub device: Option<DeviceName>,
    /// Writes may destroy the data on `device`.
    pub destroy_data: bool,
    /// Directory of scratch files, which are removed afterwards.
    pub dir: PathBuf,
    /// The scale of the run.
    pub scale: RunScale,
    /// How often each case is measured.
    pub runs: u32,
    /// Seed of the random number generator.
    pub seed: u64,
    /// Traces to replay; synthetic ones if empty.
    pub traces: Vec<PathBuf>,
    /// Cache sizes of the replay; the experiment's own if empty.
    pub cache_sizes: Vec<CacheSize>,
    /// Shows the progress of the run.
    pub progress: ProgressBar,
    /// The `hotshelf` command that is measured.
    pub program: PathBuf,
    /// Set by a signal handler: stop soon and clean up.
    pub stopped: &'static AtomicBool,
}

/// The error of a run that a signal stopped.
#[derive(Debug)]
pub struct StoppedError;

impl std::fmt::Display for StoppedError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("stopped")
    }
}

impl std::error::Error for StoppedError {}

impl Context {
    /// Creates a small run in this directory with default settings.
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

    /// Returns the duration of one measurement and of its warm-up.
    pub fn duration(&self) -> (Duration, Duration) {
        self.pick((Duration::from_millis(100), Duration::from_millis(20)), (Duration::from_secs(4), Duration::from_secs(1)))
    }

    /// Returns the value for the scale of this run.
    pub fn pick<T>(&self, small: T, full: T) -> T {
        if self.scale == RunScale::Small { small } else { full }
    }

    /// Returns an error if the run was stopped.
    ///
    /// # Errors
    /// [`StoppedError`].
    pub fn check_stopped(&self) -> Result<(), StoppedError> {
        if self.stopped.load(Ordering::Relaxed) { Err(StoppedError) } else { Ok(()) }
    }

    /// Measures all sides in turn, `runs` times, each time starting with another side. `measure` gets the run and the side.
    ///
    /// # Errors
    /// Errors of `measure`; [`StoppedError`].
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
