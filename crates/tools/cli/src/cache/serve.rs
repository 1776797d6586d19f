//! `hotshelf cache serve`, `attach` and `detach`: a process that takes part for the cache's own sake.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use cachedfs::{Instance, Status};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::args::{AttachArgs, DetachArgs, LogArgs, ServeArgs};
use super::locate::{self, Located};

/// What the one in the background says when the cache is there.
const READY: &str = "serving ";

/// Takes part until a signal ends it.
pub fn serve(args: &ServeArgs) -> anyhow::Result<bool> {
    start_log(&args.log)?;
    let located = locate::which(&args.which)?;
    let instance = Instance::open(&located.config)?;
    // From here on a signal ends the process cleanly; before, it does no harm.
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP]).context("waiting for signals")?;
    let status = instance.status();
    let pages = status.ssd.as_ref().map_or(0, |ssd| ssd.pages);
    say!("{READY}{}: {pages} pages on its SSD, {} processes take part", located.shown(), status.processes.len());
    if args.ready_pipe
        && let Ok(null) = OpenOptions::new().write(true).open("/dev/null")
    {
        // Nobody reads the pipe any more; what is written there later must not end us.
        let _ = rustix::stdio::dup2_stdout(null);
    }
    tracing::info!(cache = located.shown(), name = located.config.name, "attached");
    let signal = signals.forever().next();
    tracing::info!(?signal, "ending");
    instance.detach()?;
    Ok(true)
}

/// `serve` in the background; returns when the cache is there.
pub fn attach(args: &AttachArgs) -> anyhow::Result<bool> {
    let located = locate::which(&args.which)?;
    if let Some(pid) = Instance::look(&located.config)?.as_ref().and_then(server) {
        tell!("{} is attached already, by process {pid}", located.shown());
        return Ok(true);
    }
    let mut command = Command::new(std::env::current_exe().context("finding this program's own file")?);
    command.args(["cache", "serve", "--ready-pipe"]);
    command.args(args.which.cache.iter().map(|cache| cache.as_os_str()));
    if let Some(config) = &args.which.config {
        command.arg("--config").arg(config);
    }
    if args.log.log_json {
        command.arg("--log-json");
    }
    command.args(args.log.log_level.iter().flat_map(|level| ["--log-level", level]));
    crate::daemon::log_filter(args.log.log_level.as_deref(), "cache attach")?;
    let log = args.log_file.as_deref().map(crate::daemon::open_log).transpose()?.map_or_else(Stdio::null, Stdio::from);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).process_group(0).spawn().context("starting the process")?;
    let mut message = String::new();
    BufReader::new(child.stdout.take().context("the process's pipe")?).read_line(&mut message).context("reading what the process says")?;
    if message.starts_with(READY) {
        tell!("{} is attached by process {}: `hotshelf cache detach` ends it", located.shown(), child.id());
        return Ok(true);
    }
    let status = child.wait().context("waiting for the process")?;
    bail!("{}", if message.is_empty() { format!("the process status ({status}) without a word") } else { message.trim().to_owned() });
}

/// Ends the process that serves the cache in the background.
pub fn detach(args: &DetachArgs) -> anyhow::Result<bool> {
    let located = locate::which(&args.which)?;
    let status = Instance::look(&located.config)?;
    let Some(pid) = status.as_ref().and_then(server) else {
        bail!("{} is not attached: `hotshelf cache status` shows who uses it", located.shown());
    };
    let process = Pid::from_raw(pid.cast_signed()).context("the process's number")?;
    kill_process(process, Signal::TERM).with_context(|| format!("ending process {pid}"))?;
    let deadline = Instant::now() + args.timeout.0;
    while crate::talk::is_running(pid) {
        if Instant::now() > deadline {
            bail!("process {pid} still writes dirty data to the backing files: try again, or give a longer --timeout");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    tell!("{} is detached", located.shown());
    Ok(true)
}

/// The process that takes part for the cache's own sake, if there is one.
fn server(status: &Status) -> Option<u32> {
    let serves = |pid: u32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).skip(1).take(2).eq([&b"cache"[..], b"serve"])
    };
    status.processes.iter().filter(|process| process.alive).map(|process| process.pid).find(|pid| serves(*pid))
}

/// Whether a cache is used, and by whom: for commands that need it for themselves.
pub fn refuse_if_used(located: &Located) -> anyhow::Result<()> {
    // A segment that cannot be read is nobody's.
    let Ok(Some(status)) = Instance::look(&located.config) else { return Ok(()) };
    let users: Vec<String> = status.processes.iter().filter(|process| process.alive).map(|process| process.pid.to_string()).collect();
    if users.is_empty() {
        return Ok(());
    }
    let how = if server(&status).is_some() { "`hotshelf cache detach` it, and end the other programs" } else { "end them first" };
    bail!("{} is in use by process {}: {how}", located.shown(), users.join(", "));
}

/// [`refuse_if_used`], and what programs that died left in memory goes, too, if it is nothing that is needed: it would not fit what is to
/// be made of the SSD. Dirty pages of the SSD are there still.
pub fn take_down(located: &Located) -> anyhow::Result<()> {
    refuse_if_needed(located)?;
    Ok(Instance::destroy(&located.config, true)?)
}

/// Somebody uses it, or its memory holds what is nowhere else.
pub fn refuse_if_needed(located: &Located) -> anyhow::Result<()> {
    refuse_if_used(located)?;
    if let Ok(Some(status)) = Instance::look(&located.config)
        && status.memory.dirty_pages > 0
    {
        bail!(
            "{}: {} in its memory are in no file yet: `hotshelf cache flush` writes them first",
            located.shown(),
            super::size(status.memory.dirty_pages * 4096)
        );
    }
    Ok(())
}

fn start_log(args: &LogArgs) -> anyhow::Result<()> {
    let filter = crate::daemon::log_filter(args.log_level.as_deref(), "cache serve")?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_target(false).with_writer(std::io::stderr);
    let started = if args.log_json { builder.json().try_init() } else { builder.try_init() };
    started.map_err(|error| anyhow::anyhow!("starting the log: {error}"))
}
