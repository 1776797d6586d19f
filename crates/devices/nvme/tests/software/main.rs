//! The driver over the software controller.
//!
//! FULL=1 tries much more; SEED=n one seed alone, as a failure names it.

#[path = "../../../../devices/block/tests/drivers/cases.rs"]
mod cases;
mod fuzz;
mod kinds;
mod ladder;
mod once;
#[path = "../../../../tools/sim/tests/exactly_once/oracle.rs"]
#[allow(dead_code, reason = "buffers are in pieces here")]
mod oracle;
mod setting;

/// Of the namespace that the oracle knows.
const BLOCK: usize = 512;
const BLOCKS: u64 = 256;
