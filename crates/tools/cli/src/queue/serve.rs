//! `hotshelf queue serve`: the broker in the foreground.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use block::Device;
use block::broker::{Journal, Server, ServerOptions};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use stack::{DeviceName, DeviceOptions};

use super::args::ServeArgs;
use super::policy::make_parent;
use super::{default_journal, device_name};
use crate::Usage;

/// As long as the kernel gives an NVMe drive to abort a command, about.
const RESET_AFTER: Duration = Duration::from_secs(5);

/// Serves until a signal ends it.
pub fn serve(args: &ServeArgs) -> anyhow::Result<bool> {
    start_log(args)?;
    // From here on a signal ends the broker cleanly.
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP]).context("waiting for signals")?;
    let mut devices: Vec<(String, Arc<dyn Device>)> = Vec::new();
    for given in &args.devices {
        let (name, device) = open(given, args)?;
        if devices.iter().any(|(known, _)| *known == name) {
            return Err(Usage(format!("{given} is named twice; see `hotshelf queue serve --help`")).into());
        }
        tracing::info!(device = name, blocks = device.geometry().blocks, block_bytes = device.geometry().block_bytes, "owned");
        devices.push((name, device));
    }
    let journal = args.journal.clone().unwrap_or_else(default_journal);
    make_parent(&journal, 0o700)?;
    let socket = args.socket.clone().unwrap_or_else(block::broker::client::own_socket);
    make_parent(&socket, 0o755)?;
    let count = devices.len();
    let journal = Journal::open(&journal)?;
    let grants = journal.policy().grants().count();
    let options = ServerOptions { socket: socket.clone(), journal, devices, spin: spin(args), reset_timeout: RESET_AFTER };
    let server = Server::start(options).with_context(|| format!("{}: the socket cannot be made", socket.display()))?;
    say!("serving {count} devices at {}, {grants} grants are in force", socket.display());
    let signal = signals.forever().next();
    tracing::info!(?signal, "ending");
    drop(server);
    Ok(true)
}

/// On a single CPU, polling would take the CPU time that the client needs.
fn spin(args: &ServeArgs) -> Duration {
    let several = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
    Duration::from_micros(args.spin.unwrap_or(if several { 50 } else { 0 }))
}

/// A device and the name it has in grants.
fn open(given: &str, args: &ServeArgs) -> anyhow::Result<(String, Arc<dyn Device>)> {
    let name = given.parse::<DeviceName>().map_err(|error| Usage(format!("{error}; see `hotshelf queue serve --help`")))?;
    let read_only = args.read_only;
    if read_only && !matches!(name, DeviceName::Path(_) | DeviceName::Nvme { .. }) {
        return Err(Usage(format!("{given} cannot be opened for reading only; see `hotshelf queue serve --help`")).into());
    }
    let shown = if matches!(name, DeviceName::Path(_)) { device_name(given) } else { given.to_owned() };
    Ok((shown, name.open_with(&DeviceOptions { read_only, record_file: args.record_file.clone(), ..DeviceOptions::default() })?))
}

fn start_log(args: &ServeArgs) -> anyhow::Result<()> {
    let filter = crate::daemon::log_filter(args.log_level.as_deref(), "queue serve")?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_target(false).with_writer(std::io::stderr);
    let started = if args.log_json { builder.json().try_init() } else { builder.try_init() };
    started.map_err(|error| anyhow::anyhow!("starting the log: {error}"))
}
