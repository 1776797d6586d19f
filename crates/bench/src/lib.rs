//! The experiments behind every claim (`hotshelf bench`).
//!
//! An [`Experiment`] measures one thing and its peers in the same run, interleaved, several times, and hands back [`Row`]s:
//! every single value with its median and spread. [`report`] writes them as JSON lines and CSV beside the machine's
//! description, and as plots. Speeds are never asserted: they are shown, with what they were measured on.
#![forbid(unsafe_code)]

mod csv;
mod experiment;
mod experiments;
mod fio;
pub mod fs;
pub mod load;
mod machine;
mod plot;
pub mod replay;
pub mod report;
mod row;
pub mod write_path;

pub use experiment::{Context, Experiment, Extent, Outcome, Plot, Series};
pub use experiments::ALL;
pub use machine::Machine;
pub use row::Row;

/// An experiment by its name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    ALL.iter().find(|experiment| experiment.name == name)
}
