//! `hotshelf queue`: the broker, its policy, and what is known of its queues.

pub mod args;
mod policy;
mod record;
mod serve;
mod show;
mod trial;
mod who;

pub use self::show::table;

use std::path::PathBuf;

use anyhow::Context;
use block::broker::client::Admin;

use crate::Usage;

use self::args::{QueueArgs, QueueCommand, SocketArgs, StatArgs};

/// Runs the given `hotshelf queue` command.
pub fn queue(args: &QueueArgs) -> anyhow::Result<bool> {
    match &args.command {
        QueueCommand::List(args) => policy::list(args),
        QueueCommand::Grant(args) => policy::grant(args),
        QueueCommand::Revoke(args) => policy::revoke(args),
        QueueCommand::Stat(args) => stat(args),
        QueueCommand::Serve(args) => serve::serve(args),
        QueueCommand::Try(args) => trial::trial(args),
        QueueCommand::Record(args) => record::record(args),
    }
}

fn stat(args: &StatArgs) -> anyhow::Result<bool> {
    let socket = socket(&args.socket);
    let mut admin = Admin::connect(&socket).context("no queue is open without a broker: `hotshelf queue serve` starts one")?;
    let queues = admin.stat().map_err(anyhow::Error::from)?;
    if args.json {
        say_lines!("{}", serde_json::to_string_pretty(&queues)?);
    } else {
        show::queues(&queues);
    }
    Ok(true)
}

/// Where the broker is: as said, or our own, or the machine's.
fn socket(args: &SocketArgs) -> PathBuf {
    args.socket.clone().unwrap_or_else(block::broker::client::default_socket)
}

/// Where a broker of this user keeps its grants.
fn default_journal() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return "/var/lib/hotshelf/grants".into();
    }
    let state = shm::environment::absolute_path("XDG_STATE_HOME");
    let home = || shm::environment::path("HOME").unwrap_or_else(|| "/".into()).join(".local/state");
    state.unwrap_or_else(home).join("hotshelf/grants")
}

/// A user by name or number.
pub fn user_id(user: &str) -> anyhow::Result<u32> {
    match who::parse(user)? {
        block::broker::Who::User(number) => Ok(number),
        _ => Err(Usage(format!("{user} is a group: name a user")).into()),
    }
}

/// A group by its name or number.
pub fn group_id(group: &str) -> anyhow::Result<u32> {
    match who::parse(&format!("@{}", group.trim_start_matches('@')))? {
        block::broker::Who::Group(number) => Ok(number),
        _ => Err(Usage(format!("{group} is no group")).into()),
    }
}

/// A device's name: for a file its path without links, so that each has one name.
fn device_name(given: &str) -> String {
    let real = std::fs::canonicalize(given).ok().and_then(|path| path.into_os_string().into_string().ok());
    real.unwrap_or_else(|| given.to_owned())
}
