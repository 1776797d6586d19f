//! The driver on a drive behind VFIO; all data on it is lost. tests/vm runs these on emulated drives:
//!
//! `HOTSHELF_TEST_NVME=0000:03:00.0 cargo test -p nvme --test hardware -- --test-threads 1`
//!
//! Some want the drive to be removed, or memory to be short, and are run only when HOTSHELF_TEST_CASE names them.

#[path = "../../../../devices/block/tests/drivers/cases.rs"]
mod cases;
mod conform;
mod events;
mod memory;
mod reset;
mod setting;
