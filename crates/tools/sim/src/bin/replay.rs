//! Prints recordings of queues, and replays them on models of other devices.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use block::driver::null::NullDevice;
use block::{Geometry, Queue};
use clap::{Parser, Subcommand, ValueEnum};
use sim::device::clock::{Virtual, VirtualClock};
use sim::device::model::fixed::Reservations;
use sim::device::model::presets::{HDDS, SSDS};
use sim::device::model::{DeviceModel, HddModel, SsdModel, TimedQueue};
use sim::device::record::{QueueEvent, Recording, ReplayPace, replay};

/// Print recordings of block queues, and replay them on the model of another device.
///
/// Example: replay run trace.hsqr --on nytro-5000-400gb
#[derive(Parser)]
#[command(name = "replay")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print every event of a recording, one in a line.
    Show {
        /// The recording.
        file: PathBuf,
    },
    /// Replay a recording on the model of a device, in virtual time.
    Run {
        /// The recording.
        file: PathBuf,
        /// The device model: see `replay devices`.
        #[arg(long, value_name = "DEVICE")]
        on: String,
        /// When requests are submitted.
        #[arg(long, value_enum, default_value = "fast")]
        pace: PaceArg,
    },
    /// List the device models.
    Devices,
}

#[derive(Clone, Copy, ValueEnum)]
enum PaceArg {
    /// As soon as earlier completions allow.
    Fast,
    /// At their recorded times.
    Recorded,
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Show { file } => show(&file),
        Command::Run { file, on, pace } => run(&file, &on, pace),
        Command::Devices => {
            let names = SSDS.iter().map(|preset| preset.name).chain(HDDS.iter().map(|preset| preset.name));
            names.for_each(|name| println!("{name}"));
            Ok(())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("replay: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn read(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("reading {}", file.display()))
}

fn show(file: &Path) -> Result<()> {
    let bytes = read(file)?;
    let recording = Recording::new(&bytes)?;
    let header = recording.header();
    println!("{} blocks of {} bytes, depth {}", header.geometry.blocks, header.geometry.block_bytes, header.depth);
    for event in recording {
        let event = event?;
        let at = event.time().0 as f64 / 1000.0;
        match event {
            QueueEvent::Submit(_, request) => {
                let fua = if request.fua { " fua" } else { "" };
                let (tag, lba, blocks) = (request.tag.0, request.lba.0, request.blocks);
                println!("{at:.3} us submit {tag}: {:?}{fua} {blocks} at {lba}", request.op);
            }
            QueueEvent::Ring(_) => println!("{at:.3} us ring"),
            QueueEvent::Complete(_, tag, status) => println!("{at:.3} us complete {}: {status:?}", tag.0),
            QueueEvent::Cancel(_, tag) => println!("{at:.3} us cancel {}", tag.0),
            QueueEvent::Reset(_, status) => println!("{at:.3} us reset: {status:?}"),
        }
    }
    Ok(())
}

fn run(file: &Path, on: &str, pace: PaceArg) -> Result<()> {
    let bytes = read(file)?;
    let recording = Recording::new(&bytes)?;
    let header = recording.header();
    let clock = VirtualClock::default();
    let (model, depth) = model(on, &header.geometry, header.depth)?;
    let queue = NullDevice::new(header.geometry.clone()).open_queue(depth);
    let mut queue = TimedQueue::new(queue, model, Virtual::new(&clock));
    let pace = match pace {
        PaceArg::Fast => ReplayPace::Fast,
        PaceArg::Recorded => ReplayPace::Recorded,
    };
    let result = match replay(recording, &mut queue as &mut dyn Queue, &clock, pace) {
        Ok(result) => result,
        Err((bad, before)) => bail!("{bad}; the {} requests before that were replayed", before.requests),
    };
    println!("{} requests: {:?} recorded, {:?} on {on}", result.requests, result.recorded, result.took);
    for difference in result.differences.iter().take(20) {
        println!("differs: {difference:?}");
    }
    if result.differ > 0 {
        bail!("{} requests ended otherwise than recorded", result.differ);
    }
    Ok(())
}

/// Creates a model with the blocks of the recording and the depth that it supports.
fn model(name: &str, geometry: &Geometry, depth: u32) -> Result<(Box<dyn DeviceModel>, u32)> {
    if let Some(preset) = SSDS.iter().find(|preset| preset.name == name) {
        let depth = depth.min(preset.depth_max);
        return Ok((Box::new(Reservations::new(SsdModel::new(preset.params, geometry), depth)), depth));
    }
    if let Some(preset) = HDDS.iter().find(|preset| preset.name == name) {
        let depth = depth.min(32);
        return Ok((Box::new(HddModel::new(preset.params, geometry, depth)), depth));
    }
    bail!("there is no model of {name}: `replay devices` names them");
}
