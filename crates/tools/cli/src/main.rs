//! The hotshelf command.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

// First: its macros are used by the others.
#[macro_use]
mod terminal;

/// Confirms what was done; not with --quiet.
macro_rules! tell {
    ($($word:tt)*) => {{
        if !$crate::verbosity::is_quiet() {
            say!($($word)*);
        }
    }};
}

mod args;
mod bench_cmd;
mod cache;
mod cached_counts;
mod cached_mount;
mod check;
mod completion;
mod daemon;
mod doctor;
mod fs;
mod generate;
mod hidden_files;
mod mount_args;
mod mount_cmd;
mod mount_helper;
mod mount_settings;
mod nocache;
mod nvme;
mod prometheus;
mod queue;
mod restart;
mod retire;
mod show;
mod suggested;
mod talk;
mod verbosity;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use crate::args::{Cli, Command};

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // Its options name files to write and programs to load: no set of rights makes that safe for a caller who lacks them.
    if shm::environment::is_secure_execution() {
        complain!(
            "refuses to run set-uid, set-gid or with file capabilities: remove them (chmod ug-s, setcap -r), and give the \
             rights to the caller (sudo, or AmbientCapabilities= of a service)"
        );
        return ExitCode::FAILURE;
    }
    let given: Vec<std::ffi::OsString> = std::env::args_os().collect();
    let cli = match mount_helper::as_own_command(&given) {
        Some(Ok(rewritten)) => Cli::try_parse_from(rewritten),
        Some(Err(error)) => return fail(&error),
        None => Cli::try_parse_from(given),
    };
    let cli = match cli {
        Ok(cli) => cli,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            // Piped into a program that has read enough, it is no failure.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            return ExitCode::from(2);
        }
        Err(error) => return fail(&Usage(in_one_line(&error)).into()),
    };
    verbosity::set(cli.quiet, cli.verbose);
    let outcome = match cli.command {
        Command::Mount(args) => mount_cmd::mount(&args),
        Command::Unmount(args) => talk::unmount(&args),
        Command::Status(args) => talk::status(&args),
        Command::Why(args) => talk::why(&args),
        Command::Pin(args) => talk::pin(&args.paths, true),
        Command::Unpin(args) => talk::pin(&args.paths, false),
        Command::Migrate(args) => talk::migrate(&args),
        Command::Retire(args) => retire::retire(&args),
        Command::Restart(args) => restart::restart(&args),
        Command::Takeover(args) => restart::take_over(&args),
        Command::Set(args) => talk::set(&args),
        Command::Check(args) => check::check(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Bench(args) => bench_cmd::bench(&args),
        Command::Cache(args) => cache::cache(&args),
        Command::Fs(args) => fs::fs(&args),
        Command::Nvme(args) => nvme::nvme(&args),
        Command::Queue(args) => queue::queue(&args),
        Command::Nocache(args) => nocache::nocache(&args),
        Command::Complete(args) => completion::complete(&args),
        Command::Generate(args) => generate::generate(&args),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => fail(&error),
    }
}

/// What clap says on several lines, and where to read on.
fn in_one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let message = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"));
    let message: Vec<&str> = message.filter(|line| !line.is_empty()).collect();
    let message = message.join(" ");
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    // The usage names the command that was being read.
    let usage = text.lines().find_map(|line| line.strip_prefix("Usage: hotshelf "));
    let word = usage.and_then(|rest| rest.split_whitespace().next()).filter(|word| word.bytes().all(|byte| byte.is_ascii_lowercase()));
    let given = std::env::args().nth(1).filter(|word| Cli::command().find_subcommand(word).is_some());
    let command = word.map(str::to_owned).or(given).map_or(String::new(), |word| format!("{word} "));
    format!("{message}; see `hotshelf {command}--help`")
}

/// One line: what happened, to what, and what to do.
fn fail(error: &anyhow::Error) -> ExitCode {
    let usage = error.downcast_ref::<Usage>().is_some();
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        // Most of our errors name their cause in their own sentence.
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    let text = text.replace('\n', " ");
    // The daemon's parent is waiting for this line.
    if std::env::args_os().any(|word| word == "--ready-pipe") {
        say!("{text}");
    }
    complain!("{text}");
    ExitCode::from(if usage { 2 } else { 1 })
}

/// The command was given wrongly.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}
