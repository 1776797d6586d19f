//! All of them.

mod block;

use crate::experiment::Experiment;

/// In the order of `bench list`.
pub const ALL: &[Experiment] = &[block::EXPERIMENT];
