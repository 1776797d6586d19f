//! Kills processes that share one cache at any moment.
//!
//! Several processes read, write, append, truncate, punch and sync the same files through one cache. Each cell of 512 bytes has one
//! writer, which versions it; all processes read everything. Killed processes are replaced. No process may ever see a foreign cell, a
//! version older than the acknowledged one, or a torn cell (unless its writer was killed during the write). Data acknowledged as durable
//! survives the loss of all shared memory, and in the end every byte is in the backing files.
#![forbid(unsafe_code)]

mod audit;
mod cells;
mod child;
mod drive;
mod parent;
mod stalls;
mod verify;
mod version_table;
mod work_dir;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use cachedfs::Mode;
use clap::Parser;

use crate::drive::Drive;
use crate::parent::Parent;
use crate::version_table::VersionTable;
use crate::work_dir::WorkDir;

/// Kill processes that share a cache, and verify the result.
#[derive(Debug, Parser)]
struct Args {
    /// Working directory; remains of an earlier run are removed.
    #[arg(long)]
    dir: PathBuf,
    /// Directory of the shared memory; by default in the working directory.
    #[arg(long)]
    runtime: Option<PathBuf>,
    /// Total number of kills.
    #[arg(long, default_value_t = 200)]
    kills: u32,
    /// Kills between two clean ends with a full verification.
    #[arg(long, default_value_t = 50)]
    each: u32,
    /// Random seed; printed if none is given.
    #[arg(long)]
    seed: Option<u64>,
    /// Use a drive behind a vfio-user socket as the SSD, owned by the leader; it loses power when all memory is lost.
    #[arg(long)]
    drive: bool,
    /// Run only this configuration.
    #[arg(long)]
    only: Option<usize>,
    /// Run as a child process.
    #[arg(long, hide = true)]
    child: Option<u32>,
}

/// The tested configurations, in order.
const WORLDS: [(Mode, bool); 4] = [(Mode::WriteBack, true), (Mode::WriteThrough, true), (Mode::WriteBack, false), (Mode::WriteBack, true)];

/// The configurations with a drive.
const DRIVEN: [(Mode, bool); 3] = [(Mode::WriteBack, true), (Mode::WriteThrough, true), (Mode::WriteBack, true)];

fn main() -> Result<()> {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    if let Some(slot) = args.child {
        return child::run(WorkDir { dir: args.dir }, slot, seed);
    }
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut killed = 0;
    for round in 0.. {
        if killed >= args.kills {
            break;
        }
        let worlds = if args.drive { &DRIVEN[..] } else { &WORLDS[..] };
        let world = worlds[args.only.unwrap_or(round) % worlds.len()];
        let kills = args.each.min(args.kills - killed);
        killed += one_round(&args, world, kills, rng.u64(..)).with_context(|| format!("--seed {seed}, round {round}, {world:?}"))?;
    }
    println!("{killed} kills survived");
    Ok(())
}

fn one_round(args: &Args, (mode, has_ssd): (Mode, bool), kills: u32, seed: u64) -> Result<u32> {
    let begun = Instant::now();
    let work_dir = WorkDir { dir: args.dir.join("work") };
    let runtime = args.runtime.clone().unwrap_or_else(|| args.dir.join("shm"));
    for old in [&work_dir.dir, &runtime.join(format!("hotshelf-{}", rustix::process::geteuid().as_raw()))] {
        if old.exists() {
            std::fs::remove_dir_all(old).context("removing what is left of an earlier run")?;
        }
    }
    std::fs::create_dir_all(&work_dir.dir)?;
    let drive = if args.drive { Some(Drive::start(&work_dir.dir, seed)?) } else { None };
    let ssd = if args.drive { drive::name(&work_dir.dir) } else { work_dir.ssd() };
    if args.drive {
        cachedfs::image::create(&ssd, &cachedfs::image::Options::default(), &mut |_, _| ())?;
    }
    work_dir.prepare(&runtime, mode, has_ssd.then_some(ssd))?;
    let table = VersionTable::create(&work_dir.version_table())?;
    let mut parent = Parent::new(&work_dir, &table, seed, drive)?;
    parent.start_all()?;
    let mut killed = 0;
    while killed < kills {
        killed += parent.some_kills()?;
    }
    parent.end()?;
    audit::at_the_end(&work_dir, &table)?;
    let calls = parent.calls();
    println!(
        "{mode:?}{}: {killed} kills, {} of leaders, {} losses of all memory, {calls} calls, {:.1} s",
        if args.drive {
            " with a drive"
        } else if has_ssd {
            " with an SSD"
        } else {
            ""
        },
        parent.leaders_killed,
        parent.wipes,
        begun.elapsed().as_secs_f64()
    );
    parent.stalls.print();
    if let Some(mut drive) = parent.drive.take() {
        drive.end(rustix::process::Signal::TERM)?;
        println!("{} losses of the drive's power", drive.cuts);
    }
    Ok(killed)
}
