//! Process slots and locks with real processes that are killed and stopped.
//!
//! How long things take is printed, never asserted.

mod death;
mod files;
mod leading;
mod process;
mod process_slots;
mod setting;
