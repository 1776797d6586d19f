//! The list of all experiments.

mod async_blocks;
mod async_files;
mod block;
mod cache_hits;
mod drives;
mod fuse_memory;
mod kv;
mod metadata;
mod mobile;
mod mount_bandwidth;
mod mount_iops;
mod mount_scaling;
mod nocache;
mod policies;
mod postmark;
mod result_table;
mod small_files;
mod tpch;

use crate::experiment::Experiment;

/// All experiments in the order of `bench list`, grouped by paper.
pub const ALL: &[Experiment] = &[
    cache_hits::EXPERIMENT,
    block::EXPERIMENT,
    kv::EXPERIMENT,
    small_files::EXPERIMENT,
    mobile::EXPERIMENT,
    async_blocks::EXPERIMENT,
    async_files::EXPERIMENT,
    fuse_memory::EXPERIMENT,
    mount_bandwidth::EXPERIMENT,
    mount_iops::EXPERIMENT,
    mount_scaling::EXPERIMENT,
    metadata::EXPERIMENT,
    postmark::EXPERIMENT,
    tpch::EXPERIMENT,
    nocache::EXPERIMENT,
    policies::EXPERIMENT,
];
