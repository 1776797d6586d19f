//! A raw image as a mount, so that ordinary tools can look in (`hotshelf fs mount`).

mod image_filesystem;
mod nodes;
mod session;

pub use session::{RawMountError, image_at, is_in_use, run};
