//! A software NVMe controller behind a vfio-user socket, for `vfio-user:SOCKET` as a device's name.
//!
//! It serves one host at a time. SIGUSR1 simulates a power cut, SIGUSR2 removes the drive until the next host connects. SIGTERM and SIGINT
//! end the program, which then prints its counters. Exit status 0; 1: a host violated the specification; 2: the program could not start.
#![forbid(unsafe_code)]

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Parser;
use nvme::Status;
use parking_lot::Mutex;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use sim::nvme::faults::{ControllerFaultRule, Fault};
use sim::nvme::served::Server;
use sim::nvme::{CommandTiming, ControllerConfig, NamespaceConfig};
use sizes::Size;

/// A software NVMe controller behind a vfio-user socket.
#[derive(Parser)]
#[command(name = "nvme-sim", max_term_width = 100)]
struct Args {
    /// Path of the socket; only the same user can connect
    #[arg(long)]
    socket: PathBuf,
    /// Size of each namespace
    #[arg(long, default_value = "256MiB")]
    size: Size,
    /// Block size: 512 or 4096
    #[arg(long, default_value_t = 4096, value_parser = block_size)]
    block: u32,
    /// Number of namespaces, 1 to 16
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    namespaces: u32,
    /// Keep the first namespace in this file, created or extended to --size
    #[arg(long)]
    file: Option<PathBuf>,
    /// Have a volatile write cache: unflushed data may be lost at SIGUSR1. Needs the memory of all namespaces twice
    #[arg(long)]
    volatile_cache: bool,
    /// Exit at a power cut, so that hosts notice at once
    #[arg(long, requires = "file")]
    end_at_power_cut: bool,
    /// Random seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Latency of commands: a range in microseconds
    #[arg(long, value_names = ["LEAST", "MOST"], num_args = 2)]
    latency_us: Vec<u64>,
    /// Do not support doorbells in host memory
    #[arg(long)]
    no_doorbell_buffer: bool,
    /// Number of queue pairs, 1 to 256
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    queues: u16,
    /// Poll doorbells for this long after activity, in microseconds
    #[arg(long, default_value_t = 50)]
    spin_us: u64,
    /// Faults. Of one I/O command in ONE_IN: drop, drop-answer, delay=MS, status=HEX, wrong-id, wrong-queue, twice; of the controller:
    /// stuck-ready, stuck-not-ready, frozen
    #[arg(long, value_name = "FAULT[@ONE_IN]")]
    fault: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("nvme-sim: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Size::Bytes(bytes) = args.size else { anyhow::bail!("--size takes bytes") };
    let blocks = bytes / u64::from(args.block);
    ensure!(blocks > 0 && bytes <= 1 << 40, "--size: one block to 1 TiB");
    let mut signals = Signals::new([SIGUSR1, SIGUSR2, SIGTERM, SIGINT])?;
    let server = Server::bind(&args.socket, shape(args, blocks), args.seed, Duration::from_micros(args.spin_us.min(1_000_000)));
    let server = Arc::new(server.with_context(|| args.socket.display().to_string())?);
    for fault in &args.fault {
        add_fault(&server, fault).with_context(|| format!("--fault {fault}"))?;
    }
    if let Some(path) = &args.file {
        let bytes = blocks * u64::from(args.block);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let put = file.and_then(|file| file.set_len(bytes).and_then(|()| server.put_into(1, file)));
        put.with_context(|| path.display().to_string())?;
    }
    let ours = Arc::clone(&server);
    let (seed, ends) = (Mutex::new(args.seed), args.end_at_power_cut);
    std::thread::spawn(move || signals.forever().for_each(|signal| handle(&ours, signal, (&seed, ends))));
    println!("{} namespaces of {blocks} blocks of {} bytes at vfio-user:{}", args.namespaces, args.block, args.socket.display());
    server.run().context("serving")?;
    Ok(report(&server))
}

fn shape(args: &Args, blocks: u64) -> ControllerConfig {
    let timing = match args.latency_us[..] {
        [least, most] => CommandTiming::Between(least.saturating_mul(1000), most.saturating_mul(1000)),
        _ => CommandTiming::Instant,
    };
    ControllerConfig {
        namespaces: vec![NamespaceConfig::plain(args.block, blocks); args.namespaces as usize],
        queues: args.queues,
        vectors: args.queues + 1,
        volatile_cache: args.volatile_cache,
        tracks_durability: args.volatile_cache,
        doorbell_buffer: !args.no_doorbell_buffer,
        timing,
        ..ControllerConfig::default()
    }
}

fn handle(server: &Server, signal: i32, (seed, ends): (&Mutex<u64>, bool)) {
    match signal {
        SIGUSR1 => {
            let mut seed = seed.lock();
            *seed = seed.wrapping_add(1);
            if let Err(error) = server.power_cut(*seed) {
                eprintln!("nvme-sim: the power went: {error}");
            }
            if ends {
                server.end();
            }
        }
        SIGUSR2 => server.controller().remove(),
        _ => server.end(),
    }
}

fn add_fault(server: &Server, text: &str) -> anyhow::Result<()> {
    let (what, one_in) = match text.split_once('@') {
        Some((what, number)) => (what, number.parse().context("one in how many")?),
        None => (text, 1),
    };
    let of_controller = server.controller().with_faults(|faults| {
        let place = match what {
            "stuck-ready" => &mut faults.stuck_ready,
            "stuck-not-ready" => &mut faults.stuck_not_ready,
            "frozen" => &mut faults.frozen,
            _ => return false,
        };
        *place = true;
        true
    });
    if of_controller {
        return Ok(());
    }
    let fault = match what.split_once('=').unwrap_or((what, "")) {
        ("drop", "") => Fault::Drop,
        ("drop-answer", "") => Fault::DropAnswer,
        ("delay", ms) => Fault::Delay(Duration::from_millis(ms.parse().context("milliseconds")?)),
        ("status", hex) => Fault::Status(Status(u16::from_str_radix(hex, 16).context("a status in hexadecimal")?)),
        ("wrong-id", "") => Fault::WrongId,
        ("wrong-queue", "") => Fault::WrongQueue,
        ("twice", "") => Fault::Twice(Duration::from_millis(1)),
        _ => anyhow::bail!("there is no such fault"),
    };
    server.controller().with_faults(|faults| faults.rules.push(ControllerFaultRule::one_in(one_in, fault)));
    Ok(())
}

fn report(server: &Server) -> ExitCode {
    let (done, violations) = (server.controller().done(), server.controller().violations());
    println!(
        "{} hosts, {} commands, {} answers, {} resets, {} shutdowns, {} faults, {} violations",
        server.sessions(),
        done.fetched,
        done.answered,
        done.resets,
        done.shutdowns,
        done.faults,
        violations.len()
    );
    violations.iter().for_each(|what| println!("violation: {what}"));
    ExitCode::from(u8::from(!violations.is_empty()))
}

fn block_size(text: &str) -> Result<u32, String> {
    match text {
        "512" => Ok(512),
        "4096" => Ok(4096),
        _ => Err("512 or 4096".to_owned()),
    }
}
