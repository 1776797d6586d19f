//! `hotshelf fs df`.

use anyhow::Context;
use serde_json::json;
use stack::rawfs::{BLOCK_BYTES, Settings, Store};

use super::args::DfArgs;
use super::{human, open};

/// Tells how full it is.
pub fn df(args: &DfArgs) -> anyhow::Result<bool> {
    let disk = open(&args.image, false)?;
    let (store, recovery) = Store::open(disk, &Settings::default()).with_context(|| format!("{}", args.image.display()))?;
    let usage = store.usage();
    store.close()?;
    let block = BLOCK_BYTES as u64;
    let rows =
        [("data", usage.blocks * block, usage.blocks_free * block), ("metadata", usage.nodes * 4 * block, usage.nodes_free * 4 * block)];
    if args.json {
        let of = |(_, all, free): (_, u64, u64)| json!({ "bytes": all, "free": free });
        let report =
            json!({ "image": args.image, "clean": recovery.clean, "data": of(rows[0]), "metadata": of(rows[1]), "log": usage.log_bytes });
        say_lines!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(true);
    }
    for (what, all, free) in rows {
        let percent = ((all - free) * 100).checked_div(all).unwrap_or(0);
        say!("{what:9} {:>12} {:>12} free, {percent:>3}% used", human(all), human(free));
    }
    Ok(true)
}
