//! `hotshelf cache export`, `discard` and `force`: what becomes of dirty pages whose file another program changed, moved or removed.

use std::sync::Arc;

use cachedfs::Instance;
use serde_json::json;

use super::args::{CacheOf, ExportArgs, StrandedArgs, Which};
use super::{locate, size};

/// Takes part in the cache for one call.
fn with<T>(of: &CacheOf, call: impl FnOnce(&Arc<Instance>) -> Result<T, cachedfs::Error>) -> anyhow::Result<T> {
    let located = locate::which(&Which { cache: of.cache.clone(), config: of.config.clone() })?;
    let instance = Instance::open(&located.config)?;
    let done = call(&instance);
    // What else cannot be written is not this command's matter: it stays, and status names it.
    let _ = instance.detach();
    Ok(done?)
}

/// Saves a file as the cache has it.
pub fn export(args: &ExportArgs) -> anyhow::Result<bool> {
    let exported = with(&args.of, |instance| instance.export(&args.file, &args.to))?;
    let (file, to) = (args.file.display(), args.to.display());
    if args.of.json {
        let missing = exported.missing_bytes;
        say!("{}", json!({ "file": args.file, "to": args.to, "bytes": exported.bytes, "missing_bytes": missing }));
    } else if exported.missing_bytes > 0 {
        say!("{to}: {} of {file}; {} of it were not in the cache and are holes", size(exported.bytes), size(exported.missing_bytes));
    } else {
        say!("{to}: {} of {file}", size(exported.bytes));
    }
    Ok(true)
}

/// Gives up what the cache has.
pub fn discard(args: &StrandedArgs) -> anyhow::Result<bool> {
    with(&args.of, |instance| instance.discard(&args.file))?;
    decided(args, "discarded");
    Ok(true)
}

/// Writes it over the file.
pub fn force(args: &StrandedArgs) -> anyhow::Result<bool> {
    with(&args.of, |instance| instance.force(&args.file))?;
    decided(args, "forced");
    Ok(true)
}

fn decided(args: &StrandedArgs, how: &str) {
    let file = args.file.display();
    match how {
        _ if args.of.json => say!("{}", json!({ "file": args.file, "done": how })),
        "forced" => say!("{file}: what the cache had is written"),
        _ => say!("{file}: what the cache had is given up"),
    }
}
