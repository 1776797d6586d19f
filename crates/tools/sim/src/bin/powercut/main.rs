//! Simulated power cuts below a hotshelf mount.
//!
//! A seeded workload runs on a pair of ext4 file systems whose disks are recorded. The power is cut at positions chosen by the seed: the
//! disks are created as they may be afterwards, mounted and recovered, and every file is compared with the guarantees of
//! docs/durability.md. Needs root, loop devices and FUSE.
#![forbid(unsafe_code)]

mod shell;
mod verify;
mod workload;

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Parser;
use sim::disk_log::{DiskEvent, DiskLog};
use sim::durability::DurabilityOracle;
use sim::power_cut::{CacheLoss, PowerCut, SECTOR};
use sim::recording::{RecordedDisk, serve};
use sim::stamped;

use crate::shell::{Mounts, run};

/// Cut the power of a hotshelf pair at many positions, and verify the result.
#[derive(Debug, Parser)]
struct Args {
    /// The hotshelf program.
    #[arg(long)]
    hotshelf: PathBuf,
    /// An empty working directory.
    #[arg(long)]
    scratch: PathBuf,
    /// Total number of power cuts.
    #[arg(long, default_value_t = 100)]
    cuts: usize,
    /// Power cuts for each recording.
    #[arg(long, default_value_t = 100)]
    each: usize,
    /// Operations of a recording.
    #[arg(long, default_value_t = 250)]
    operations: usize,
    /// Random seed; printed if none is given.
    #[arg(long)]
    seed: Option<u64>,
    /// Directory in which the disks of a failure are kept.
    #[arg(long)]
    keep: PathBuf,
}

/// Small enough to write for each cut, large enough for ext4 with its journal.
const DISK_BYTES: u64 = 48 << 20;
const DISKS: [&str; 2] = ["ssd", "hdd"];

fn main() -> Result<()> {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("seed {seed}");
    let mut done = 0;
    for round in 0.. {
        if done >= args.cuts {
            break;
        }
        let cuts = args.each.min(args.cuts - done);
        one_recording(&args, seed + round, cuts).with_context(|| format!("--seed {}", seed + round))?;
        done += cuts;
    }
    println!("{done} power cuts survived");
    Ok(())
}

fn one_recording(args: &Args, seed: u64, cuts: usize) -> Result<()> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let place = args.scratch.join("recording");
    let (before, events, begin) = record(args, &place, &mut rng)?;
    std::fs::remove_dir_all(&place)?;
    let writes = events.iter().filter(|event| matches!(event, DiskEvent::Write { .. })).count();
    let flushes = events.iter().filter(|event| matches!(event, DiskEvent::Flush { .. })).count();
    println!("recorded {writes} writes and {flushes} flushes");
    let mut places: Vec<usize> = (0..cuts).map(|_| rng.usize(begin..=events.len())).collect();
    places.sort_unstable();
    let mut cut = PowerCut::new(&events, before);
    let mut promises = DurabilityOracle::default();
    let mut at = 0;
    for place in places {
        cut.advance(place);
        for event in &events[at..place] {
            if let DiskEvent::DurabilityMark(mark) = event {
                promises.apply(mark);
            }
        }
        at = place;
        let cache =
            rng.choice([CacheLoss::Lost, CacheLoss::Kept, CacheLoss::Prefix, CacheLoss::Any, CacheLoss::Any]).unwrap_or(CacheLoss::Any);
        let disks = cut.disks(cache, &mut rng);
        // Sometimes recovery itself is interrupted, and must succeed the second time.
        let crash_at = (rng.u8(0..4) == 0).then(|| rng.u8(1..6));
        let scratch = args.scratch.join("cut");
        if let Err(error) = verify::verify(&args.hotshelf, &scratch, &disks, &promises, crash_at) {
            keep(&args.keep, &disks, &events[..place])?;
            bail!(
                "cut before event {place} of {}, {cache:?}, recovery cut at {crash_at:?}: {error:#}; disks: {:?}",
                events.len(),
                args.keep
            );
        }
    }
    Ok(())
}

/// The initial disks, the log, and the start of the workload in it.
type Recording = (Vec<Vec<u8>>, Vec<DiskEvent>, usize);

fn record(args: &Args, place: &Path, rng: &mut fastrand::Rng) -> Result<Recording> {
    std::fs::create_dir_all(place)?;
    let mut mounts = Mounts::default();
    let log = Arc::new(DiskLog::default());
    let disks_at = mounts.directory(place.join("disks"))?;
    let mut disks = Vec::new();
    let mut before = Vec::new();
    for name in DISKS {
        let path = place.join(format!("{name}.img"));
        make_disk(&path)?;
        before.push(std::fs::read(&path)?);
        let image = OpenOptions::new().read(true).write(true).open(&path)?;
        disks.push(RecordedDisk { name: name.into(), image, bytes: DISK_BYTES });
    }
    let session = serve(disks, log.clone(), &disks_at).context("serving the recorded disks")?;
    let sides = mount_sides(&mut mounts, place, |name| disks_at.join(name))?;
    let mountpoint = mounts.directory(place.join("mnt"))?;
    mounts.pair(&args.hotshelf, &sides, &mountpoint, &["--promotion", "never"], None)?;
    let begin = workload::run(&args.hotshelf, &mountpoint, &log, args.operations, rng)?;
    mounts.unmount_all()?;
    session.umount_and_join().context("ending the recorded disks")?;
    Ok((before, log.take(), begin))
}

/// Loop mounts of the disks, on directories named like them.
fn mount_sides(mounts: &mut Mounts, place: &Path, disk: impl Fn(&str) -> PathBuf) -> Result<[PathBuf; 2]> {
    let mut sides = Vec::new();
    for name in DISKS {
        let side = mounts.directory(place.join(name))?;
        mounts.disk(&disk(name), &side)?;
        sides.push(side);
    }
    let [ssd, hdd] = <[PathBuf; 2]>::try_from(sides).expect("as many as there are disks");
    Ok([ssd, hdd])
}

fn make_disk(path: &Path) -> Result<()> {
    File::create(path)?.set_len(DISK_BYTES)?;
    let lazy = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
    run("mkfs.ext4", ["-q", "-F", "-m", "0", "-E", lazy].map(AsRef::as_ref).into_iter().chain([path.as_os_str()]))
}

/// Keeps what is needed to analyse a failure: the disks after the cut, and the events before it.
fn keep(at: &Path, disks: &[Vec<u8>], before: &[DiskEvent]) -> Result<()> {
    std::fs::create_dir_all(at)?;
    for (name, disk) in DISKS.iter().zip(disks) {
        std::fs::write(at.join(format!("{name}.img")), disk)?;
    }
    let mut story = String::new();
    for (n, event) in before.iter().enumerate() {
        story += &match event {
            DiskEvent::DurabilityMark(mark) => format!("{n} {mark:?}\n"),
            DiskEvent::Flush { disk } => format!("{n} flush {}\n", DISKS[*disk]),
            DiskEvent::Write { disk, offset, data } => {
                let stamp = stamped::read_stamp(&data[..data.len().min(SECTOR)]);
                format!("{n} write {} at {offset}, {} bytes, {stamp:?}\n", DISKS[*disk], data.len())
            }
        };
    }
    std::fs::write(at.join("story"), story)?;
    Ok(())
}
