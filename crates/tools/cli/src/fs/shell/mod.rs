//! `hotshelf fs shell`: a file system at the fingertips, as testFS's shell was, also for scripts.
//!
//! `words` parses text into commands, `verbs` defines the commands, `session` holds their state, `dispatch` runs them. They are
//! implemented in `look`, `names`, `content`, `attrs`, `transfer`, `gather`, `image`, `benches`. `prompt` and `complete` serve people,
//! `script` serves programs.

mod attrs;
mod benches;
mod complete;
mod content;
mod dispatch;
mod gather;
mod image;
mod look;
mod names;
mod open_transaction;
mod prompt;
mod script;
mod session;
#[cfg(test)]
mod test;
mod transfer;
mod verbs;
mod walk;
mod words;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, CommandFactory};
use stack::DeviceName;

use session::Session;

/// Holds the arguments of `hotshelf fs shell`.
#[derive(Debug, Args)]
pub struct ShellArgs {
    /// The file or block device; `memory:SIZE` is one that is gone at the end
    #[arg(value_name = "IMAGE")]
    pub image: DeviceName,
    /// Do these, parted by `;` or new lines, and end
    #[arg(short = 'c', value_name = "COMMANDS")]
    pub commands: Option<String>,
    /// End at the first command that fails
    #[arg(short = 'e')]
    pub end_at_failure: bool,
    /// Refuse every change; others may look at the image too
    #[arg(long)]
    pub read_only: bool,
    /// Keep the history of commands here [default: hotshelf/fs-shell-history in the user's state directory]
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
}

/// What the manual says of the commands, made from their definitions.
pub fn manual() -> String {
    format!(
        "Commands (`help COMMAND` shows details):\n{}\n\
         Words are read as by sh: quotes and backslashes, `;` between commands, # for comments; nothing is expanded.\n\
         Without a terminal there is no prompt: errors go to standard error with their line; the exit code is 1 if any failed.\n\n\
         Example:\n  hotshelf fs shell /ssd/image\n  hotshelf fs shell /ssd/image -c 'mkdir a; import notes.txt a; ls -l a'\n  \
         hotshelf fs shell memory:1GiB -c 'mkfs; bench e2e_write 100 5 50'",
        dispatch::verbs_table()
    )
}

/// Serves until the end of the input.
pub fn shell(args: &ShellArgs) -> anyhow::Result<bool> {
    let on_terminal = args.commands.is_none() && std::io::stdin().is_terminal();
    let mut session = Session::open(args.image.clone(), args.read_only, Box::new(std::io::stdout()))?;
    session.shows_progress = std::io::stderr().is_terminal();
    let outcome = match &args.commands {
        Some(commands) => script::text(&mut session, commands.as_bytes(), args.end_at_failure),
        None if on_terminal => prompt::serve(&mut session, args.history.as_deref()),
        None => script::stdin(&mut session, args.end_at_failure),
    };
    let closed = session.close();
    let well = outcome?;
    closed.with_context(|| format!("{}", args.image))?;
    Ok(well)
}

/// One line of an error, with its causes.
fn in_a_line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            text = if text.is_empty() { cause } else { format!("{text}: {cause}") };
        }
    }
    // The number of an errno tells people nothing.
    while let Some(at) = text.find(" (os error ") {
        let end = text[at..].find(')').map_or(text.len(), |end| at + end + 1);
        text.replace_range(at..end, "");
    }
    crate::terminal::line(&text.replace('\n', " ")).into_owned()
}

/// Names as they can be shown: what a terminal would act on is escaped.
fn shown(name: &[u8]) -> String {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        for sign in chunk.valid().chars() {
            if sign.is_control() {
                text.extend(sign.to_string().bytes().map(|byte| format!("\\x{byte:02x}")));
            } else {
                text.push(sign);
            }
        }
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

fn definitions() -> clap::Command {
    verbs::Line::command()
}

/// Whoever reads may have read enough.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// To standard error.
fn complain(line: Option<usize>, error: &anyhow::Error) {
    let place = line.map_or(String::new(), |line| format!("hotshelf: line {}: ", line + 1));
    // Nobody may be there to hear it.
    let _ = writeln!(std::io::stderr(), "{place}{}", in_a_line(error));
}
