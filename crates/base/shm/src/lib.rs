//! Memory that others change while we look: devices that read and write it on their own, and other processes.
//!
//! One of the walls around unsafe code (docs: ARCHITECTURE.md). A [`Region`] is mapped once and stays where it is. Nobody
//! gets a reference to its bytes: they are copied in and out, or are atomics. So whatever the other side does at the same
//! moment, the worst is bytes of no meaning, which whoever reads them has to check for.

mod bell;
mod bytes;
pub mod environment;
mod file;
mod forked;
pub mod futex;
mod handle;
mod lock;
mod region;
pub mod ring;
mod seats;
mod words;

pub use bell::{Bell, Rings};
pub use file::Sharing;
pub use forked::Generations;
pub use handle::FileHandle;
pub use lock::{Held, OwnedLock};
pub use region::{AttachError, Pages, Region};
pub use seats::{NoSeat, SeatNo, Seats, Watch};
pub use words::{One, Word, Words};
