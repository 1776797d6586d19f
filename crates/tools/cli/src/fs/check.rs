//! `hotshelf fs check`.

use std::collections::{HashMap, HashSet};

use anyhow::Context;
use serde_json::json;
use stack::rawfs::fs::check::{self, CheckReport, Finding};
use stack::rawfs::fs::repair::{RepairAction, accept_data, repair};
use stack::rawfs::fs::scrub::{BadBlocks, scrub};
use stack::rawfs::fs::{Fs, FsSettings, describe};
use stack::rawfs::store::salvage::Damage;
use stack::rawfs::{BLOCK_BYTES, Recovery, Settings, Store};

use super::args::CheckArgs;
use super::{bar, open, spinner};

/// What was found without a write.
struct Seen {
    recovery: Recovery,
    damages: Vec<Damage>,
    report: CheckReport,
    bad: Vec<BadBlocks>,
    /// Of files that something is wrong with.
    paths: HashMap<u64, String>,
}

/// Looks over a file system that is not in use, and puts it right if that is wanted; `false` when something is wrong in the end.
pub fn check(args: &CheckArgs) -> anyhow::Result<bool> {
    let named = || format!("{}", args.image.display());
    let mut seen = look(args).with_context(named)?;
    let (mut mended, first) = (Vec::new(), seen.lines());
    if args.repairs() && (!first.is_empty() || !seen.recovery.clean) {
        mended = mend(args, &seen).with_context(named)?;
        let recovery = seen.recovery;
        seen = Seen { recovery, ..look(args).with_context(named)? };
    }
    let (left, report) = (seen.lines(), &seen.report);
    if args.json {
        let report = json!({
            "image": args.image, "clean": seen.recovery.clean, "batches_from_log": seen.recovery.replayed, "unnamed": report.orphans,
            "names": report.names, "directories": report.dirs, "files": report.files, "blocks": report.blocks,
            "findings": left, "mended": mended,
        });
        say_lines!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(left.is_empty());
    }
    tell(&seen, &first, &mended, &left, args);
    Ok(left.is_empty())
}

fn tell(seen: &Seen, first: &[String], mended: &[String], left: &[String], args: &CheckArgs) {
    if !seen.recovery.clean {
        let what = if args.repairs() { "were replayed from the log" } else { "in the log will be replayed at the next mount" };
        say!("not unmounted cleanly: {} changes {what}", seen.recovery.replayed);
    }
    first.iter().for_each(|finding| say!("{finding}"));
    mended.iter().for_each(|mended| say!("mended: {mended}"));
    if args.repairs() && !first.is_empty() {
        left.iter().for_each(|finding| say!("left: {finding}"));
    }
    let verdict = match (left.len(), first.len()) {
        (0, 0) => "clean".to_owned(),
        (0, found) => format!("clean, after {found} findings were mended"),
        (left, _) if args.repairs() => format!("{left} findings are left"),
        (left, _) => format!("{left} findings; --repair mends what can be mended"),
    };
    let report = &seen.report;
    say!("{} names in {} directories, {} files, {} blocks: {verdict}", report.names, report.dirs, report.files, report.blocks);
}

impl Seen {
    /// For people.
    fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.damages.iter().map(describe::damage).collect();
        lines.extend(self.report.findings.iter().map(|finding| {
            let paths: Vec<&str> = finding.files().iter().filter_map(|ino| self.paths.get(ino)).map(String::as_str).collect();
            if paths.is_empty() { finding.to_string() } else { format!("{finding} [{}]", paths.join(", ")) }
        }));
        lines.extend(self.bad.iter().map(|bad| {
            let file = self.paths.get(&bad.ino).map_or_else(|| format!("file {}", bad.ino), |path| format!("{path} (file {})", bad.ino));
            let (from, to) = (bad.at * BLOCK_BYTES as u64, (bad.at + bad.blocks) * BLOCK_BYTES as u64 - 1);
            let why = if bad.unreadable { "cannot be read" } else { "are not what was written" };
            let rest = "reading them is an error until they are written anew; get the file from a backup";
            format!("{file}: bytes {from} to {to} {why} (blocks from {} on): {rest}", bad.start.0)
        }));
        lines
    }
}

/// Looks at everything, and writes nothing: also at what cannot be opened any more.
fn look(args: &CheckArgs) -> anyhow::Result<Seen> {
    let spinner = spinner("reading names and attributes");
    let settings = Settings { read_only: true, ..Settings::default() };
    let (store, recovery, damages) = Store::salvage(open(&args.image, false)?, &settings, &check::owns)?;
    let report = check::check(&store)?;
    spinner.finish_and_clear();
    let mut bad = Vec::new();
    if !args.no_data {
        let bar = bar(report.blocks * BLOCK_BYTES as u64, "reading data");
        scrub(&store, &mut |row| bad.push(row), &mut |blocks| bar.inc(blocks * BLOCK_BYTES as u64))?;
        bar.finish_and_clear();
    }
    let wanted: HashSet<u64> = report.findings.iter().flat_map(Finding::files).chain(bad.iter().map(|bad| bad.ino)).collect();
    let paths = describe::paths(&store, &wanted)?;
    Ok(Seen { recovery, damages, report, bad, paths })
}

/// Puts right what can be put right; says what was done.
fn mend(args: &CheckArgs, seen: &Seen) -> anyhow::Result<Vec<String>> {
    let spinner = spinner("repairing");
    let (store, _, damages) = Store::salvage(open(&args.image, false)?, &Settings::default(), &check::owns)?;
    let mut mended: Vec<String> = damages.iter().map(|damage| format!("{}: what can be read is kept", describe::damage(damage))).collect();
    let (mut store, _) = repair(store, &mut |RepairAction { finding, done }| {
        spinner.tick();
        mended.push(format!("{finding}: {done}"));
    })?;
    if args.accept_data && !seen.bad.is_empty() {
        let accepted;
        (store, accepted) = accept_data(store, &seen.bad)?;
        mended.push(format!("{accepted} rows of blocks: what is on the device counts from now on"));
    }
    let (fs, orphans) = Fs::open(store, FsSettings::default())?;
    if orphans > 0 {
        mended.push(format!("{orphans} files without a name are removed"));
    }
    fs.close()?;
    spinner.finish_and_clear();
    Ok(mended)
}
