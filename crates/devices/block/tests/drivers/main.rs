//! What every driver has to do, as plain functions over any [`Device`]; run over each driver and each kind of file that this
//! machine has. What it has not is skipped, and said.
//!
//! On an NVMe node or a block device of choice (all data on it is lost):
//! `HOTSHELF_TEST_DEVICE=/dev/ng0n1 cargo test -p block --test drivers`.

mod cases;
mod kinds;
mod nvme;
mod own;
mod shared;
