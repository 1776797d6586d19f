//! Tests that every driver must pass, as functions over any [`Device`]. They run with each driver and each kind of file that this
//! machine has; the output names the skipped ones.
//!
//! On a selected NVMe node or block device (all data on it is lost):
//! `HOTSHELF_TEST_DEVICE=/dev/ng0n1 cargo test -p block --test drivers`.

mod cases;
mod kinds;
mod nvme;
mod own;
mod shared;
