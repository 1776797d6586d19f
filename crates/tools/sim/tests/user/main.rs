//! The driver over the software controller in another process, behind a vfio-user socket.
//!
//! FULL=1 runs more seeds; SEED=n runs one, as a failure names it.

#[path = "../../../../devices/block/tests/drivers/cases.rs"]
#[allow(dead_code, reason = "some cases are for other drivers")]
mod cases;
mod ends;
mod hostile;
mod kinds;
mod lies;
mod setting;
