//! Several processes at once, each with its own file.

use super::drives::{Drives, NEEDS, size};
use super::result_table::{BANDWIDTH, ResultTable};
use crate::experiment::{Context, Experiment};
use crate::fio::FileJob;
use crate::lab::{DriveSpeed, Lab, throttle};
use crate::outcome::{Outcome, Plot, Series};

const NAME: &str = "mount-scaling";

/// The experiment as `hotshelf bench` lists it.
pub const EXPERIMENT: Experiment = Experiment {
    name: NAME,
    about: "1 to 24 processes each read a file of their own in sequence, by 4 and 64 KiB: all together, the mount and ext4 on the HDD",
    source: "HyCache, Fig. 9",
    paper: "306 MB/s at 4 KiB and 578 MB/s at 64 KiB; with 12 processes at 64 KiB 7 times ext4 on the HDD (86 MB/s)",
    peers: "ext4 on the same HDD stand-in",
    devices: "loop devices over files in --dir: HDD 144 MB/s without the cost of its head's moves, SSD 480 MB/s, by a control group",
    needs: NEEDS,
    room_mib: (400, 2600),
    takes: (8, 400),
    run,
};

const SIDES: [&str; 2] = ["hotshelf", "ext4 on the HDD"];

fn run(context: &Context) -> anyhow::Result<Outcome> {
    let mut lab = Lab::new(context)?;
    let most: &[u32] = context.pick(&[1, 4, 12], &[1, 2, 4, 6, 8, 12, 16, 20, 24]);
    let file_mib = context.pick(8, 32);
    let room = file_mib * u64::from(most.iter().copied().max().unwrap_or(1)) * 3 / 2 + 64;
    let drives = Drives::new(&mut lab, (room, room), &DriveSpeed::SSD, &DriveSpeed::HDD_SEQUENTIAL, &[])?;
    let dirs = [drives.pair.dir.join("many"), drives.plain_hdd()?.join("many")];
    let below = drives.pair.ssd.join("many");
    dirs.iter().try_for_each(std::fs::create_dir_all)?;
    let mut table = ResultTable::new(NAME);
    context.progress.set_length(most.len() as u64 * 2 * 2 * u64::from(context.runs));
    for bytes in [4 << 10, 64 << 10] {
        for processes in most {
            let case = case(bytes, *processes);
            context.progress.set_message(case.clone());
            context.interleave(SIDES.len(), |run, side| {
                let seed = context.seed + u64::from(run);
                // With one process, fio takes a directory as a file name: name the file.
                let file;
                let path = if *processes > 1 {
                    &dirs[side]
                } else {
                    file = dirs[side].join("bench.0.0");
                    &file
                };
                let job =
                    |rw| FileJob { path, rw, request_bytes: bytes, file_mib, processes: *processes, direct: false, duration: None, seed };
                if run == 0 {
                    job("write").run(context)?;
                }
                drop_all_page_cache(&[&dirs[side], &below])?;
                let load = job("read").run(context)?;
                table.add_by(SIDES[side], &case, BANDWIDTH, load.bandwidth / 1e6, Some(load.command));
                Ok(())
            })?;
        }
    }
    Ok(outcome(&table, most))
}

fn case(bytes: u64, processes: u32) -> String {
    format!("read, {}, {processes} processes", size(bytes))
}

fn drop_all_page_cache(dirs: &[&std::path::PathBuf]) -> anyhow::Result<()> {
    for dir in dirs {
        let files: Vec<_> = std::fs::read_dir(dir)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
        super::drives::drop_page_cache(&files)?;
    }
    Ok(())
}

fn outcome(table: &ResultTable, most: &[u32]) -> Outcome {
    let mut outcome = Outcome { rows: table.rows(), ..Outcome::default() };
    for bytes in [4 << 10, 64 << 10] {
        let cases: Vec<(f64, String)> = most.iter().map(|count| (f64::from(*count), case(bytes, *count))).collect();
        let series = SIDES.iter().map(|side| Series { name: (*side).into(), points: table.line(side, BANDWIDTH, &cases) }).collect();
        let title = format!("Reading in pieces of {}, all processes together", size(bytes));
        let name = format!("{NAME}-{}k", bytes >> 10);
        outcome.plots.push(Plot { name, title, x: "processes".into(), y: "MB/s".into(), log_x: false, series });
    }
    let why = "the stand-in's limit is in bytes: it does not lose time between places as the paper's disk did (86 MB/s), so at most 3.3";
    let claim = table.claim(&case(64 << 10, 12), BANDWIDTH, "hotshelf", "ext4 on the HDD");
    outcome.claims.extend(claim.map(|claim| claim.paper(578.0 / 86.0).why(why)));
    outcome.notes.push(format!("the drives are slowed down by {}; files are dropped from the page cache before", throttle::how()));
    outcome
}
