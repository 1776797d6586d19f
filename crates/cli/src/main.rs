//! The hotshelf command.
#![forbid(unsafe_code)]

mod args;
mod check;
mod config_file;
mod daemon;
mod doctor;
mod generate;
mod mount_cmd;
mod show;
mod talk;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    let given: Vec<std::ffi::OsString> = std::env::args_os().collect();
    let cli = match mount_cmd::as_mount_helper(&given) {
        Some(Ok(rewritten)) => Cli::try_parse_from(rewritten),
        Some(Err(error)) => return fail(&error),
        None => Cli::try_parse_from(given),
    };
    let cli = match cli {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let outcome = match cli.command {
        Command::Mount(args) => mount_cmd::mount(*args),
        Command::Unmount(args) => talk::unmount(&args),
        Command::Status(args) => talk::status(&args),
        Command::Why(args) => talk::why(&args),
        Command::Pin(args) => talk::pin(&args.path, true),
        Command::Unpin(args) => talk::pin(&args.path, false),
        Command::Migrate(args) => talk::migrate(&args),
        Command::Check(args) => check::check(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Generate(args) => generate::generate(&args),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => fail(&error),
    }
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
        println!("{text}");
    }
    eprintln!("hotshelf: {text}");
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
