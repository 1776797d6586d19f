//! The experiments behind every published figure (`hotshelf bench`).
//!
//! An [`Experiment`] measures one thing and its peers in the same run, interleaved and repeated. It returns [`Row`]s (all values with
//! median and spread) and [`Claim`]s (our ratio to a peer beside the paper's). [`results`] writes them as JSON lines and CSV with a
//! description of the machine, [`report`] makes a page, [`compare`] lists regressions. A [`lab::Lab`] owns everything that an experiment
//! sets up, and removes it however the run ends. Speeds are never asserted, only reported.
#![forbid(unsafe_code)]

pub mod compare;
mod csv;
mod experiment;
mod experiments;
mod files;
mod fio;
pub mod fs;
pub mod lab;
pub mod load;
mod machine;
mod measure;
mod needs;
mod numbers;
mod outcome;
mod plot;
pub mod programs;
pub mod replay;
pub mod report;
pub mod results;
mod row;
mod svg;
pub mod write_path;

pub use experiment::{Context, Experiment, Need, RunScale, StoppedError};
pub use experiments::ALL;
pub use machine::Machine;
pub use outcome::{Claim, Missing, Outcome, Plot, Series};
pub use row::{Better, OURS, Row, Spread};

/// Returns the experiment with this name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    ALL.iter().find(|experiment| experiment.name == name)
}
