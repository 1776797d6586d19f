//! All of them.

mod async_blocks;
mod block;
mod policies;

use crate::experiment::Experiment;

/// In the order of `bench list`.
pub const ALL: &[Experiment] = &[block::EXPERIMENT, async_blocks::EXPERIMENT, policies::EXPERIMENT];
