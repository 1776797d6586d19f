//! Cache hits in memory: through our cache, and through system calls and the page cache.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use cachedfs::{Config, Instance, Options, Size};
use rustix::fs::{CWD, Mode, OFlags};

use super::result_table::{BANDWIDTH, IOPS, ResultTable};
use crate::experiment::{Context, Experiment};
use crate::lab::Lab;
use crate::outcome::Outcome;

const NAME: &str = "cache-hits";

/// The experiment as `hotshelf bench` lists it.
pub const EXPERIMENT: Experiment = Experiment {
    name: NAME,
    about: "random reads of 4 KiB and 64 bytes, and writes of 4 KiB, of a file in memory: through our cache, and by pread and pwrite",
    source: "SPDK-based user-level SSD cache, Fig. 3 and 4",
    paper: "more IOPS and bandwidth than dm-cache if the whole 1 GiB file is cached; the text has no number",
    peers: "pread and pwrite of a file in the kernel's page cache; dm-cache and bcache in a guest (bench/vm-peers.sh)",
    devices: "none: every access is a hit in memory; the file is in --dir",
    needs: &[],
    room_mib: (80, 2200),
    takes: (4, 60),
    run,
};

/// Calls between two clock reads.
const BATCH: u32 = 256;
const PAGE: usize = 4096;

/// The measured call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AccessKind {
    Read,
    ReadFew,
    Write,
}

const ACCESS_KINDS: [(AccessKind, &str); 3] =
    [(AccessKind::Read, "read 4 KiB"), (AccessKind::ReadFew, "read 64 bytes"), (AccessKind::Write, "write 4 KiB")];

impl AccessKind {
    fn bytes(self) -> usize {
        if self == AccessKind::ReadFew { 64 } else { PAGE }
    }
}

/// Two files of the same content: one through our cache, one through the kernel.
struct FilePair {
    ours: cachedfs::File,
    kernel: File,
    pages: u64,
}

fn run(context: &Context) -> anyhow::Result<Outcome> {
    let lab = Lab::new(context)?;
    let mib = context.pick(16, 1024);
    let (ours, kernel) = (lab.dir().join("ours"), lab.dir().join("kernel"));
    context.progress.set_message("filling the files");
    crate::files::fill(context, &ours, mib, context.seed)?;
    crate::files::fill(context, &kernel, mib, context.seed)?;
    let instance = Instance::open(&config(&lab, mib))?;
    let pair = FilePair { ours: open(&instance, &ours)?, kernel: File::options().read(true).write(true).open(&kernel)?, pages: mib * 256 };
    pair.warm(context)?;
    let (mut table, mut random) = (ResultTable::new(NAME), fastrand::Rng::with_seed(context.seed));
    context.progress.set_length(ACCESS_KINDS.len() as u64 * 2 * u64::from(context.runs));
    for (call, case) in ACCESS_KINDS {
        context.progress.set_message(case);
        context.interleave(2, |_, side| {
            let (who, rate) = if side == 0 {
                ("hotshelf", pair.ours_rate(context, call, &mut random)?)
            } else {
                ("page cache", pair.kernel_rate(context, call, &mut random)?)
            };
            table.add(who, case, IOPS, rate);
            table.add(who, case, BANDWIDTH, rate * call.bytes() as f64 / 1e6);
            Ok(())
        })?;
    }
    drop(pair);
    Instance::destroy(instance.config(), true).ok();
    Ok(outcome(&table))
}

fn outcome(table: &ResultTable) -> Outcome {
    let mut outcome = Outcome { rows: table.rows(), ..Outcome::default() };
    for (_, case) in ACCESS_KINDS {
        let why = "the paper's bars have no numbers, and its peer is dm-cache: this one is the kernel's best case, a page-cache hit";
        outcome.claims.extend(table.claim(case, IOPS, "hotshelf", "page cache").map(|claim| claim.why(why)));
    }
    outcome.mark_missing(
        "dm-cache and bcache",
        "they need block devices of a kernel that has them: bench/vm-peers.sh measures them in a guest",
    );
    outcome.mark_missing("foyer", "its crate is not part of this program: bench/foyer.sh measures it from a checkout, on the same pages");
    outcome.notes.push("one thread; no system call on our side, one a request on the other; every page was read twice before".into());
    outcome
}

/// A private cache with room for the whole file and no write-back during the measurement.
fn config(lab: &Lab<'_>, mib: u64) -> Config {
    Config {
        name: format!("bench-{}", lab.dir().file_name().unwrap_or_default().to_string_lossy()),
        memory: Some(Size::Bytes((mib * 5 / 4 + 32) << 20)),
        dirty_limit: Size::Percent(90),
        dirty_age: cachedfs::Age(std::time::Duration::from_secs(3600)),
        private: true,
        ..Config::default()
    }
}

fn open(instance: &Arc<Instance>, path: &Path) -> anyhow::Result<cachedfs::File> {
    Ok(instance.open_file(CWD, path, OFlags::RDWR, Mode::empty(), &Options::default())?)
}

impl FilePair {
    /// Reads every page twice through both caches and compares the bytes.
    fn warm(&self, context: &Context) -> anyhow::Result<()> {
        let (mut one, mut other) = ([0; PAGE], [0; PAGE]);
        for _ in 0..2 {
            for page in 0..self.pages {
                if page % 4096 == 0 {
                    context.check_stopped()?;
                }
                self.ours.read_at(page * PAGE as u64, &mut one)?;
                self.kernel.read_exact_at(&mut other, page * PAGE as u64).context("pread")?;
                ensure!(one == other, "page {page} is not the same through both");
            }
        }
        Ok(())
    }

    fn ours_rate(&self, context: &Context, call: AccessKind, random: &mut fastrand::Rng) -> anyhow::Result<f64> {
        let mut page = [7; PAGE];
        let piece = &mut page[..call.bytes()];
        rate(context, || {
            let at = random.u64(..self.pages) * PAGE as u64;
            let done = if call == AccessKind::Write { self.ours.write_at(at, piece)? } else { self.ours.read_at(at, piece)? };
            ensure!(done == piece.len(), "a short transfer");
            Ok(())
        })
    }

    fn kernel_rate(&self, context: &Context, call: AccessKind, random: &mut fastrand::Rng) -> anyhow::Result<f64> {
        let mut page = [7; PAGE];
        let piece = &mut page[..call.bytes()];
        rate(context, || {
            let at = random.u64(..self.pages) * PAGE as u64;
            let done = if call == AccessKind::Write { self.kernel.write_at(piece, at)? } else { self.kernel.read_at(piece, at)? };
            ensure!(done == piece.len(), "a short transfer");
            Ok(())
        })
    }
}

/// Returns the calls per second, after a warm-up.
fn rate(context: &Context, mut call: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let (duration, warm_up) = context.duration();
    let mut during = |long: std::time::Duration| -> anyhow::Result<f64> {
        let (begun, mut calls) = (Instant::now(), 0.0);
        while begun.elapsed() < long {
            (0..BATCH).try_for_each(|_| call())?;
            calls += f64::from(BATCH);
        }
        Ok(calls / begun.elapsed().as_secs_f64())
    };
    during(warm_up)?;
    during(duration)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn both_ways_are_measured() {
        let dir = tempfile::tempdir().expect("a directory");
        let outcome = run(&Context::small(dir.path().to_owned())).expect("it runs");
        assert_eq!(outcome.rows.len(), 12);
        assert_eq!(outcome.claims.len(), 3);
        assert!(outcome.rows.iter().all(|row| row.median > 0.0));
        assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 0);
    }
}
