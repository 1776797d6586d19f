//! A directory as a mount whose file data goes through a cache (`hotshelf mount --cache`).

mod change_listener;
mod data;
mod filesystem;
mod handover;
mod hold;
mod kernel_pages;
mod listener_thread;
mod mount_counts;
mod mount_error;
mod mounted;
mod name_checks;
mod names_file;
mod open_handle;
mod options;
mod presence;
mod removed_files;
mod restart;
mod session;
mod session_end;
mod shared;
mod side_status;
mod slow_side;
mod status_file;
mod stuck_threads;
mod takeover_limit;

pub use handover::program::{COMMAND as TAKEOVER_COMMAND, OWN_VERSION, reply_to_check};
pub use hold::{HeldMount, hold};
pub use mount_counts::{MountCounts, TierReads, read as mount_counts};
pub use mount_error::CachedMountError;
pub use mounted::{CachedMount, mount_at, mounts};
pub use options::{CachedOptions, NamesMode};
pub use presence::is_served;
pub use restart::{RestartReply, restart};
pub use session::{run, take_over};
pub use side_status::{SideStatus, read as side_status};
pub use slow_side::OfflinePolicy;
