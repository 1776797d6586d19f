//! Memory that others change while we look: devices that read and write it on their own, and other processes.
//!
//! One of the walls around unsafe code (docs: ARCHITECTURE.md). A [`Region`] is mapped once and stays where it is. Nobody
//! gets a reference to its bytes: they are copied in and out, or are atomics. So whatever the other side does at the same
//! moment, the worst is bytes of no meaning, which whoever reads them has to check for.

mod bytes;
pub mod environment;
mod file;
mod fork_counter;
pub mod futex;
mod handle;
mod lock;
mod notifier;
mod process_slots;
mod region;
pub mod ring;
mod shared_slice;
mod starvation;

pub use file::FileAccess;
pub use fork_counter::ForkCounter;
pub use handle::FileHandle;
pub use lock::{OwnedLock, OwnedLockGuard};
pub use notifier::{Notifier, NotifyCount};
pub use process_slots::{LivenessWatch, ProcessSlot, ProcessSlotError, ProcessSlots};
pub use region::{AttachError, PageSize, Region};
pub use shared_slice::{SharedRef, SharedSlice, SharedValue};
