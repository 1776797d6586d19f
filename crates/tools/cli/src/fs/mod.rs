//! `hotshelf fs`: file systems on raw devices and images.

pub mod args;
mod check;
mod df;
mod dump;
mod export;
mod import;
mod mkfs;
mod mount;
mod resize;
pub mod shell;
mod staging;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use hybridfs::Size;
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use stack::DeviceName;
use stack::rawfs::{Disk, DiskSettings};

use self::args::{FsArgs, FsCommand};
use crate::Usage;
use crate::verbosity::{is_verbose, shows_progress};

/// Runs the given command of `hotshelf fs`.
pub fn fs(args: &FsArgs) -> anyhow::Result<bool> {
    run(args).map_err(|error| match args.command.image() {
        Some(image) => recognise(image, error),
        None => error,
    })
}

fn run(args: &FsArgs) -> anyhow::Result<bool> {
    match &args.command {
        FsCommand::Mkfs(args) => mkfs::mkfs(args),
        FsCommand::Mount(args) => mount::mount(args),
        FsCommand::Check(args) => check::check(args),
        FsCommand::Df(args) => df::df(args),
        FsCommand::Dump(args) => dump::dump(args),
        FsCommand::Resize(args) => resize::resize(args),
        FsCommand::Import(args) => import::import(args),
        FsCommand::Export(args) => export::export(args),
        FsCommand::Shell(args) => shell::shell(args),
    }
}

/// Says what an image is that cannot be opened as a hotshelf image. Advice never destroys: it is most likely the wrong path.
fn recognise(image: &Path, error: anyhow::Error) -> anyhow::Error {
    let text = format!("{error:#}");
    if !is_path(image) || !(text.contains("no file system of hotshelf is here") || text.contains("nor the image of one")) {
        return error;
    }
    let shown = image.display();
    let what = match stack::cachedfs::image::what_is_there(image) {
        // Damaged, then; what else is needed the error says.
        Ok(Some(what)) if what.contains("hotshelf file system") => return error,
        Ok(Some(what)) => what,
        Ok(None) => return error.context(format!("{shown} is blank at both ends (see `hotshelf fs mkfs --help`)")),
        Err(_) => return error,
    };
    let hint = match &*what {
        what if what.contains("hotshelf cache") => format!(": `hotshelf cache status {shown}` shows it"),
        what if what.contains("partition table") => ": name one of its partitions".to_owned(),
        what if what.contains("LUKS") => ": open it with cryptsetup(8) first".to_owned(),
        what if what.contains("file system") => ": use it with mount(8)".to_owned(),
        _ => String::new(),
    };
    error.context(format!("{shown} holds {what}{hint}"))
}

/// What is named as a controller's is no path; `./nvme:x` is one.
fn is_path(image: &Path) -> bool {
    let is_drive = |name: &str| ["nvme:", "vfio-user:"].iter().any(|kind| name.starts_with(kind));
    !image.to_str().is_some_and(is_drive)
}

fn open(image: &Path, read_only: bool) -> anyhow::Result<Disk> {
    let name = match image.to_str() {
        Some(name) if !is_path(image) => name.parse()?,
        _ => DeviceName::Path(image.to_owned()),
    };
    stack::open_disk(&name, read_only, &DiskSettings::default()).with_context(|| format!("{}", image.display()))
}

fn bytes(size: Option<Size>, flag: &str) -> anyhow::Result<Option<u64>> {
    match size {
        None => Ok(None),
        Some(Size::Bytes(bytes)) => Ok(Some(bytes)),
        Some(Size::Percent(_)) => Err(Usage(format!("{flag} must be a size such as 64MiB; see `hotshelf fs --help`")).into()),
    }
}

/// While it is not known how much there is to do.
fn spinner(what: &'static str) -> ProgressBar {
    let bar = if shows_progress() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    bar.enable_steady_tick(Duration::from_millis(100));
    bar.with_message(what)
}

/// So many bytes are to be done.
fn bar(bytes: u64, what: &'static str) -> ProgressBar {
    let bar = if shows_progress() { ProgressBar::new(bytes) } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_message(what)
}

/// How far a copy of trees is.
struct Progress {
    bar: ProgressBar,
    files: u64,
    bytes: u64,
    /// Since something was last written back.
    since: u64,
    /// Set by the signals that end a program.
    stop: Arc<AtomicBool>,
}

/// A signal ended a copy of trees.
#[derive(Debug)]
struct Stopped;

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("stopped by a signal")
    }
}

impl std::error::Error for Stopped {}

impl Progress {
    fn start(bytes: u64) -> anyhow::Result<Progress> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&stop)).context("waiting for signals")?;
        }
        Ok(Progress { bar: bar(bytes, "copying"), files: 0, bytes: 0, since: 0, stop })
    }

    /// Ends the copy after a signal; what is not whole yet has no name.
    fn go_on(&self) -> Result<(), Stopped> {
        if self.stop.load(Ordering::Relaxed) { Err(Stopped) } else { Ok(()) }
    }

    fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.since += bytes;
        self.bar.inc(bytes);
    }

    fn file(&mut self, path: &dyn std::fmt::Display) {
        self.files += 1;
        if is_verbose() {
            self.say(&path.to_string());
        }
    }

    /// Now and then.
    fn due(&mut self) -> bool {
        const OFTEN: u64 = 64 << 20;
        let due = self.since >= OFTEN;
        self.since = if due { 0 } else { self.since };
        due
    }

    /// Past the bar.
    fn say(&self, line: &str) {
        self.bar.suspend(|| complain!("{line}"));
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn files(&self) -> u64 {
        self.files
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Bytes as people read them.
fn human(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}
