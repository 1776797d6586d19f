//! What a user can do about files with dirty pages that cannot be written.

use rustix::io::Errno;

/// Says what a conflict is, and what the user can do.
pub const CONFLICT: &str = "another program changed it while the cache held newer pages of it; nothing was merged. `hotshelf cache export \
                            FILE TO` saves what the cache has, `hotshelf cache discard FILE` gives that up, `hotshelf cache force FILE` \
                            writes it over the file";

const MISSING: &str = "another program moved or removed it while the cache held newer pages of it: move it back to where it was, or \
                       `hotshelf cache export FILE TO` saves what the cache has and `hotshelf cache discard FILE` gives that up";

/// Returns what an errno of writing everything means, and what the user can do.
pub fn sentence(errno: Errno) -> &'static str {
    if errno == Errno::STALE { CONFLICT } else { MISSING }
}
