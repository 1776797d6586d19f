//! A directory as a mount whose file data goes through a cache (`hotshelf mount --cache`).

mod data;
mod filesystem;
mod kernel_pages;
mod name_checks;
mod names_file;
mod open_handle;
mod presence;
mod removed_files;
mod session;

pub use presence::is_served;
pub use session::{CachedMount, CachedMountError, CachedOptions, NamesMode, mount_at, mounts, run};
