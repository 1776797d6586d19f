//! `hotshelf fs dump`.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use stack::rawfs::fs::{check, describe, show};
use stack::rawfs::store::show::LogGroup;
use stack::rawfs::{Error, ScanStep, Settings, Store, TreeId};

use super::args::DumpArgs;
use super::open;

/// Shows what lies on the device, also of an image that is damaged; `false` if it is.
pub fn dump(args: &DumpArgs) -> anyhow::Result<bool> {
    let named = || format!("{}", args.image.display());
    let disk = open(&args.image, false)?;
    let superblocks = Store::superblocks(&disk).with_context(named)?.map(|copy| copy.map_err(|error| error.to_string()));
    let groups = Store::log_groups(&disk);
    let settings = Settings { read_only: true, ..Settings::default() };
    let salvaged = Store::salvage(disk, &settings, &check::owns);
    if let Some(path) = &args.path {
        let (store, ..) = salvaged.with_context(named)?;
        return one(&store, path, args.json);
    }
    let mut whole = superblocks.iter().all(Result::is_ok);
    let blocks: Vec<Value> = superblocks.iter().enumerate().map(|(copy, superblock)| superblock_json(copy, superblock)).collect();
    if args.json {
        say!("{{\"superblocks\": {}, \"log\": {},", Value::from(blocks), log_json(&groups));
    } else {
        blocks.iter().for_each(|block| tell_fields("superblock", block));
        tell_log(&groups);
    }
    match salvaged {
        Ok((store, _, damages)) => {
            whole &= damages.is_empty();
            let damages: Vec<String> = damages.iter().map(describe::damage).collect();
            if args.json {
                say!("\"damages\": {},", json!(damages));
            } else {
                damages.iter().for_each(|damage| say!("damage: {damage}"));
            }
            entries(&store, args.json).with_context(named)?;
        }
        Err(error) => {
            whole = false;
            if args.json {
                say!("\"error\": {}}}", json!(error.to_string()));
            } else {
                say!("the trees cannot be looked at: {error}");
            }
        }
    }
    Ok(whole)
}

fn superblock_json(copy: usize, superblock: &Result<stack::rawfs::layout::Superblock, String>) -> Value {
    match superblock {
        Err(error) => json!({ "block": copy, "error": error }),
        Ok(superblock) => {
            let shape = superblock.shape;
            let uuid: String = superblock.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
            let root = |index: usize| {
                let root = superblock.roots[index];
                json!({ "slot": root.at.slot, "level": root.level, "sum": format!("{:08x}", root.at.sum) })
            };
            json!({
                "block": copy, "uuid": uuid, "generation": superblock.generation, "clean": superblock.clean, "life": superblock.life,
                "change": superblock.lsn.0, "log_position": superblock.log_position, "blocks": shape.blocks,
                "log_start": shape.log_start().0, "log_blocks": shape.log_blocks, "bitmaps_start": shape.page_at(0).0,
                "nodes_start": shape.node_at(0).map(|at| at.0), "nodes": shape.nodes, "data_start": shape.data_start().0,
                "data_blocks": shape.data_blocks, "root_of_names": root(0), "root_of_files": root(1),
            })
        }
    }
}

fn tell_fields(what: &str, fields: &Value) {
    let fields = fields.as_object().into_iter().flatten().map(|(name, value)| match value {
        Value::String(text) => format!("{name} {text}"),
        value => format!("{name} {value}"),
    });
    say!("{what}: {}", fields.collect::<Vec<_>>().join(", "));
}

fn log_json(groups: &Result<Vec<LogGroup>, Error>) -> Value {
    match groups {
        Err(error) => json!({ "error": error.to_string() }),
        Ok(groups) => groups
            .iter()
            .map(|group| {
                let LogGroup { position, blocks, first, batches, durable } = *group;
                json!({ "position": position, "blocks": blocks, "first": first.0, "changes": batches, "durable": durable.0 })
            })
            .collect(),
    }
}

fn tell_log(groups: &Result<Vec<LogGroup>, Error>) {
    match groups {
        Err(error) => say!("log: {error}"),
        Ok(groups) if groups.is_empty() => say!("log: nothing behind the checkpoint"),
        Ok(groups) => {
            for group in groups {
                let last = group.first.0 + u64::from(group.batches);
                let durable = group.durable.0;
                say!(
                    "log: position {}, {} blocks: changes {} to {}, durable up to {durable}",
                    group.position,
                    group.blocks,
                    group.first.0,
                    last.saturating_sub(1)
                );
            }
        }
    }
}

/// Every key and value of both trees.
fn entries(store: &Store, as_json: bool) -> Result<(), Error> {
    if as_json {
        say!("\"entries\": [");
    }
    let mut first = true;
    for tree in TreeId::ALL {
        store.scan(tree, &[], &[0xff; 18], &mut |key, value| {
            let (name, what) = (describe::key(tree, key), describe::value(tree, key, value));
            if as_json {
                let comma = if std::mem::take(&mut first) { "" } else { "," };
                say!("{comma}{}", json!({ "tree": format!("{tree:?}"), "key": name, "value": what }));
            } else {
                say!("{tree:?} {name}: {what}");
            }
            ScanStep::Go
        })?;
    }
    if as_json {
        say!("]}}");
    }
    Ok(())
}

fn one(store: &Store, path: &Path, as_json: bool) -> anyhow::Result<bool> {
    let Some(shown) = show::show(store, path.as_os_str().as_bytes())? else { bail!("{}: no such file in the image", path.display()) };
    let record = shown.record.as_ref().map_or_else(|| "(damaged: its record cannot be read)".to_owned(), describe::record);
    let runs: Vec<String> = shown.runs.iter().map(describe::run).collect();
    if as_json {
        let report = json!({
            "path": path, "key": shown.key.escape_ascii().to_string(), "record_in_files": shown.linked, "record": record,
            "runs": runs, "xattr_bytes": shown.xattr_bytes,
        });
        say_lines!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        say!("key: {}", shown.key.escape_ascii());
        say!("record ({}): {record}", if shown.linked { "in Files" } else { "with the name" });
        runs.iter().for_each(|run| say!("run: {run}"));
        if shown.xattr_bytes > 0 {
            say!("extended attributes: {} bytes", shown.xattr_bytes);
        }
    }
    Ok(shown.record.is_some())
}
