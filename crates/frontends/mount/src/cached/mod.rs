//! A directory as a mount whose file data goes through a cache (`hotshelf mount --cache`).

mod data;
mod filesystem;
mod kernel_pages;
mod presence;
mod removed_files;
mod session;
mod side_status;
mod slow_side;

pub use presence::is_served;
pub use session::{CachedMount, CachedMountError, CachedOptions, mount_at, mounts, run};
pub use side_status::{SideStatus, read as side_status};
pub use slow_side::OfflinePolicy;
