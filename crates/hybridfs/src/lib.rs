//! One namespace over an SSD directory and an HDD directory (paper 003, HyCache).
//!
//! Knows nothing of FUSE: the front door in `mount` translates requests into calls on [`Hybrid`].
#![forbid(unsafe_code)]

pub mod config;
pub mod persist;
pub mod report;

pub use config::{Config, Promotion, Size};
