//! `hotshelf cache evict`: files leave the cache.

use serde_json::json;

use super::args::EvictArgs;
use super::files::AttachedCaches;
use super::size;
use super::walk::for_each;

/// Writes the files back, and removes them from memory and SSD.
pub fn evict(args: &EvictArgs) -> anyhow::Result<bool> {
    let mut caches = AttachedCaches::new(&args.of);
    let (mut files, mut bytes) = (0_u64, 0_u64);
    let is_well = for_each(&args.paths, &mut caches, None, &mut |file, _| {
        let cached = file.residency(1)?.map_or(0, |found| found.cached_bytes);
        file.evict()?;
        files += 1;
        bytes += cached;
        Ok(())
    });
    if args.of.json {
        say!("{}", json!({ "files": files, "bytes": bytes }));
    } else if is_well || files > 0 {
        tell!("{} left the cache: {files} files", size(bytes));
    }
    Ok(is_well)
}
