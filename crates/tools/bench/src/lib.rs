//! The experiments behind every claim (`hotshelf bench`).
//!
//! An [`Experiment`] measures one thing and its peers in the same run, interleaved, several times, and hands back [`Row`]s:
//! every single value with its median and spread, and [`Claim`]s: ours by a peer's, beside the paper's. [`results`] writes them as JSON
//! lines and CSV beside the machine's description, [`report`] makes a page of them, [`compare`] says what has become worse. What an
//! experiment sets up on the machine is a [`lab::Lab`]'s, and goes away whatever happens. Speeds are never asserted: they are shown,
//! with what they were measured on.
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
pub mod needs;
mod outcome;
mod plot;
pub mod programs;
pub mod replay;
pub mod report;
pub mod results;
mod row;
mod svg;
pub mod write_path;

pub use experiment::{Context, Experiment, RunScale, StoppedError};
pub use experiments::ALL;
pub use machine::Machine;
pub use outcome::{Claim, Missing, Outcome, Plot, Series};
pub use row::{Better, OURS, Row, Spread};

/// An experiment by its name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    ALL.iter().find(|experiment| experiment.name == name)
}
