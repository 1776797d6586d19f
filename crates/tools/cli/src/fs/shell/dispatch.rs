//! Runs commands: each verb leads to the function that carries it out.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use anyhow::{Context, bail};
use clap::Parser;

use super::session::Session;
use super::verbs::{HelpArgs, Line, OnePath, Verb, VerbEffect};
use super::{attrs, benches, content, definitions, gather, image, look, names, shown, transfer};

/// What the shell does after a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Reads the next command.
    Go,
    /// Ends.
    Quit,
}

/// Parses the words of a command and runs it.
pub fn run(session: &mut Session, words: &[Vec<u8>]) -> anyhow::Result<Next> {
    let name = String::from_utf8_lossy(words.first().map_or(&b""[..], |word| word)).into_owned();
    match Line::try_parse_from(words.iter().map(|word| OsString::from_vec(word.clone()))) {
        Ok(line) => carry_out(session, &line.verb).with_context(|| name),
        Err(error) if error.kind() == clap::error::ErrorKind::DisplayHelp => {
            write!(session.out, "{error}")?;
            Ok(Next::Go)
        }
        Err(error) => bail!("{}", refusal(&error, &name)),
    }
}

fn carry_out(session: &mut Session, verb: &Verb) -> anyhow::Result<Next> {
    let does = verb.does();
    if does != VerbEffect::NeedsNone {
        session.fs()?;
    }
    if session.read_only && (matches!(does, VerbEffect::Writes | VerbEffect::Changes) || matches!(verb, Verb::Mkfs(_))) {
        bail!("this would change the image: it is opened with --read-only");
    }
    if session.gathered.is_some() && (does == VerbEffect::Changes || matches!(verb, Verb::Mkfs(_))) {
        bail!("not allowed inside a transaction: `commit` or `abort` first");
    }
    session.go_on()?;
    match verb {
        Verb::Quit => return Ok(Next::Quit),
        Verb::Help(args) => help(session, args)?,
        Verb::History => history(session)?,
        Verb::Mkfs(args) => image::mkfs(session, args)?,
        Verb::Cd(args) => cd(session, args)?,
        Verb::Pwd => writeln!(session.out, "{}", shown(&session.dir))?,
        Verb::Ls(_) | Verb::Lsr(_) | Verb::Tree(_) | Verb::Du(_) | Verb::Stat(_) | Verb::Readlink(_) => look::run(session, verb)?,
        Verb::Rm(_) | Verb::Mkdir(_) | Verb::Rmdir(_) | Verb::Mv(_) | Verb::Ln(_) | Verb::Cp(_) => names::run(session, verb)?,
        Verb::Cat(_) | Verb::Catr(_) | Verb::Write(_) | Verb::Append(_) | Verb::Owrite(_) | Verb::Truncate(_) | Verb::Touch(_) => {
            content::run(session, verb)?;
        }
        Verb::Chmod(_) | Verb::Chown(_) => attrs::run(session, verb)?,
        Verb::Df => image::df(session)?,
        Verb::Checkfs => image::check(session)?,
        Verb::Sync => session.fs()?.sync()?,
        Verb::Begin => gather::begin(session)?,
        Verb::Commit => gather::commit(session)?,
        Verb::Abort => gather::abort(session)?,
        Verb::Import(args) => transfer::import(session, args)?,
        Verb::Export(args) => transfer::export(session, args)?,
        Verb::Bench(args) => benches::bench(session, &args.what)?,
        Verb::RunExperiments(args) => benches::experiments(session, args)?,
    }
    Ok(Next::Go)
}

/// What clap says on several lines.
fn refusal(error: &clap::Error, name: &str) -> String {
    let text = error.to_string();
    let said = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"));
    let said: Vec<&str> = said.filter(|line| !line.is_empty()).collect();
    let said = said.join(" ");
    let said = said.strip_prefix("error: ").unwrap_or(&said).replace("subcommand", "command");
    let known = definitions().find_subcommand(name).is_some();
    let see = if known { format!("help {name}") } else { "help".to_owned() };
    if known { format!("{name}: {said}; see `{see}`") } else { format!("{said}; see `{see}`") }
}

/// Every command with what it does.
pub fn verbs_table() -> String {
    let line = |verb: &clap::Command| {
        let about = verb.get_about().map_or(String::new(), ToString::to_string);
        format!("  {:<16} {about}\n", verb.get_name())
    };
    definitions().get_subcommands().map(line).collect()
}

fn help(session: &mut Session, args: &HelpArgs) -> anyhow::Result<()> {
    let Some(name) = &args.command else {
        write!(session.out, "{}", verbs_table())?;
        writeln!(session.out, "\n`help COMMAND` shows details. Quoting works as in sh; nothing is expanded.")?;
        return Ok(());
    };
    match Line::try_parse_from([name, "--help"]) {
        Err(error) if error.kind() == clap::error::ErrorKind::DisplayHelp => Ok(write!(session.out, "{error}")?),
        _ => bail!("there is no command `{name}`: `help` lists them"),
    }
}

fn history(session: &mut Session) -> anyhow::Result<()> {
    for (n, line) in session.history.iter().enumerate() {
        writeln!(session.out, "{:>5}  {line}", n + 1)?;
    }
    Ok(())
}

fn cd(session: &mut Session, args: &OnePath) -> anyhow::Result<()> {
    let path = match &args.path {
        Some(path) => session.path(path)?,
        None => b"/".to_vec(),
    };
    let fs = session.fs()?;
    let node = fs.lookup(fs.root(), &path, true, &session.creds).with_context(|| shown(&path))?;
    if node.kind() != stack::rawfs::fs::FileKind::Dir {
        bail!("{}: not a directory", shown(&path));
    }
    drop(node);
    session.dir = path;
    Ok(())
}
