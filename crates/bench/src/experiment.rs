//! What an experiment is.

use std::path::PathBuf;
use std::time::Duration;

use indicatif::ProgressBar;
use stack::DeviceName;

use crate::replay::CacheSize;
use crate::row::Row;

/// One measurement that can be repeated by name.
pub struct Experiment {
    /// As typed.
    pub name: &'static str,
    /// What it shows, one line.
    pub about: &'static str,
    /// The paper and figure it repeats, if any.
    pub source: &'static str,
    /// What a machine must have.
    pub needs: &'static str,
    /// Measures.
    pub run: fn(&Context) -> anyhow::Result<Outcome>,
}

/// How much of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
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
    pub extent: Extent,
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
}

impl Context {
    /// How long one measurement takes, and its warm-up before.
    pub fn duration(&self) -> (Duration, Duration) {
        match self.extent {
            Extent::Small => (Duration::from_millis(100), Duration::from_millis(20)),
            Extent::Full => (Duration::from_secs(4), Duration::from_secs(1)),
        }
    }
}

/// What came of it.
#[derive(Default)]
pub struct Outcome {
    /// Every figure.
    pub rows: Vec<Row>,
    /// What was left out and why, and what the reader must know.
    pub notes: Vec<String>,
    /// To look at.
    pub plots: Vec<Plot>,
}

/// A line chart.
pub struct Plot {
    /// File name without its end.
    pub name: String,
    /// Above it.
    pub title: String,
    /// Of the horizontal axis, with its unit.
    pub x: String,
    /// Of the vertical axis, with its unit.
    pub y: String,
    /// The lines.
    pub series: Vec<Series>,
}

/// One line of a chart.
pub struct Series {
    /// In the legend.
    pub name: String,
    /// In order of x.
    pub points: Vec<(f64, f64)>,
}
