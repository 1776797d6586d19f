//! All of them.

mod async_blocks;
mod async_files;
mod block;
mod policies;

use crate::experiment::Experiment;

/// In the order of `bench list`.
pub const ALL: &[Experiment] = &[block::EXPERIMENT, async_blocks::EXPERIMENT, async_files::EXPERIMENT, policies::EXPERIMENT];
