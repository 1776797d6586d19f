//! A directory as a mount whose file data goes through a cache (`hotshelf mount --cache`).

mod data;
mod filesystem;
mod kernel_pages;
mod presence;
mod removed_files;
mod session;

pub use presence::is_served;
pub use session::{CachedMount, CachedMountError, CachedOptions, mount_at, mounts, run};
