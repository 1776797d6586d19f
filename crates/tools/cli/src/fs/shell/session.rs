//! What commands work on: an image, a working directory, and where output goes.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use clap::Parser;
use stack::rawfs::fs::{Atime, Creds, Fs, FsSettings};
use stack::rawfs::{DiskSettings, Error, Settings, Store};
use stack::{DeviceName, DeviceOptions};

use super::gather::OpenTransaction;
use super::verbs::{HelpArgs, Line, OnePath, Verb, VerbEffect};
use super::{attrs, benches, content, definitions, gather, image, look, names, transfer};

/// Holds the state of one shell: the image, the working directory and the output.
pub struct Session {
    /// Name of the device or image file, as the user gave it.
    pub image: DeviceName,
    /// The open device, locked against other users.
    pub device: Option<Arc<dyn block::Device>>,
    /// None: there is none in the image yet.
    pub fs: Option<Fs>,
    /// Whether commands that change the image are refused.
    pub read_only: bool,
    /// The working directory: an absolute path without dots.
    pub dir: Vec<u8>,
    /// Credentials with which the shell accesses files.
    pub creds: Creds,
    /// The open transaction, if `begin` was called.
    pub gathered: Option<OpenTransaction>,
    /// The command lines of this session, oldest first.
    pub history: Vec<String>,
    /// Set by a signal: what is under way stops.
    pub stop: Arc<AtomicBool>,
    /// Receives the output of the commands.
    pub out: Box<dyn Write>,
    /// Whether long commands show a progress bar.
    pub shows_progress: bool,
}

/// Whether there is more to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    Go,
    Quit,
}

impl Session {
    /// With what is in the image. One that is not there, or holds no file system, can be made one with `mkfs`.
    pub fn open(image: DeviceName, read_only: bool, out: Box<dyn Write>) -> anyhow::Result<Session> {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        // Who may write the image may do everything in it.
        let creds = Creds { uid, gid, groups: Vec::new(), umask: 0o022, check: false };
        let (dir, stop) = (b"/".to_vec(), Arc::new(AtomicBool::new(false)));
        let mut session = Session {
            image,
            device: None,
            fs: None,
            read_only,
            dir,
            creds,
            gathered: None,
            history: Vec::new(),
            stop,
            out,
            shows_progress: false,
        };
        if !matches!(&session.image, DeviceName::Path(path) if !path.exists()) {
            session.attach()?;
        }
        Ok(session)
    }

    /// Opens the device, unless it is, and the file system on it, if there is one.
    pub fn attach(&mut self) -> anyhow::Result<()> {
        let named = || format!("{}", self.image);
        let device = match &self.device {
            Some(device) => Arc::clone(device),
            None => self
                .image
                .open_with(&DeviceOptions { read_only: self.read_only, alone: true, ..DeviceOptions::default() })
                .with_context(named)?,
        };
        let disk = stack::disk_on(&*device, &DiskSettings::default()).with_context(named)?;
        self.device = Some(device);
        let settings = Settings { read_only: self.read_only, ..Settings::default() };
        let (store, recovery) = match Store::open(disk, &settings) {
            Err(Error::NoImage) => return Ok(()),
            other => other.with_context(named)?,
        };
        if !recovery.clean && !self.read_only {
            complain!("{}: not unmounted cleanly: {} changes were replayed from the log", self.image, recovery.replayed);
        }
        let mut settings = FsSettings::default();
        if self.read_only {
            (settings.atime, settings.write_back) = (Atime::Never, std::time::Duration::ZERO);
        }
        self.fs = Some(Fs::open(store, settings).with_context(named)?.0);
        Ok(())
    }

    /// Closes the file system, not the device.
    pub fn detach(&mut self) -> anyhow::Result<()> {
        self.gathered = None;
        self.dir = b"/".to_vec();
        match self.fs.take() {
            // There is nothing to be written.
            Some(_) if self.read_only => Ok(()),
            Some(fs) => Ok(fs.close()?),
            None => Ok(()),
        }
    }

    /// Ends the session. An open transaction is aborted.
    pub fn close(mut self) -> anyhow::Result<()> {
        let forgotten = self.gathered.take().is_some();
        let outcome = self.detach().and(self.out.flush().or_else(ignore_broken_pipe));
        if forgotten {
            bail!("the transaction was not committed: none of its changes were made");
        }
        outcome
    }

    /// Returns the open file system, or an error if the image holds none.
    pub fn fs(&self) -> anyhow::Result<&Fs> {
        self.fs.as_ref().with_context(|| format!("{} holds no hotshelf file system: make one with `mkfs` (see `help mkfs`)", self.image))
    }

    /// Absolute, for the calls of the file system.
    pub fn path(&self, path: &OsString) -> anyhow::Result<Vec<u8>> {
        let path = path.as_bytes();
        if path.is_empty() {
            bail!("a path must not be empty");
        }
        Ok(join(&self.dir, path))
    }

    /// An error as soon as somebody wants this to end.
    pub fn go_on(&self) -> anyhow::Result<()> {
        if self.stop.load(Ordering::Relaxed) { bail!("interrupted") } else { Ok(()) }
    }

    /// Parses the words of a command and runs it.
    pub fn run(&mut self, words: &[Vec<u8>]) -> anyhow::Result<Next> {
        let name = String::from_utf8_lossy(words.first().map_or(&b""[..], |word| word)).into_owned();
        match Line::try_parse_from(words.iter().map(|word| OsString::from_vec(word.clone()))) {
            Ok(line) => self.carry_out(&line.verb).with_context(|| name),
            Err(error) if error.kind() == clap::error::ErrorKind::DisplayHelp => {
                write!(self.out, "{error}")?;
                Ok(Next::Go)
            }
            Err(error) => bail!("{}", refusal(&error, &name)),
        }
    }

    fn carry_out(&mut self, verb: &Verb) -> anyhow::Result<Next> {
        let does = verb.does();
        if does != VerbEffect::NeedsNone {
            self.fs()?;
        }
        if self.read_only && (matches!(does, VerbEffect::Writes | VerbEffect::Changes) || matches!(verb, Verb::Mkfs(_))) {
            bail!("this would change the image: it is opened with --read-only");
        }
        if self.gathered.is_some() && (does == VerbEffect::Changes || matches!(verb, Verb::Mkfs(_))) {
            bail!("not allowed inside a transaction: `commit` or `abort` first");
        }
        self.go_on()?;
        match verb {
            Verb::Quit => return Ok(Next::Quit),
            Verb::Help(args) => help(self, args)?,
            Verb::History => history(self)?,
            Verb::Mkfs(args) => image::mkfs(self, args)?,
            Verb::Cd(args) => cd(self, args)?,
            Verb::Pwd => writeln!(self.out, "{}", super::shown(&self.dir))?,
            Verb::Ls(_) | Verb::Lsr(_) | Verb::Tree(_) | Verb::Du(_) | Verb::Stat(_) | Verb::Readlink(_) => look::run(self, verb)?,
            Verb::Rm(_) | Verb::Mkdir(_) | Verb::Rmdir(_) | Verb::Mv(_) | Verb::Ln(_) | Verb::Cp(_) => names::run(self, verb)?,
            Verb::Cat(_) | Verb::Catr(_) | Verb::Write(_) | Verb::Append(_) | Verb::Owrite(_) | Verb::Truncate(_) | Verb::Touch(_) => {
                content::run(self, verb)?;
            }
            Verb::Chmod(_) | Verb::Chown(_) => attrs::run(self, verb)?,
            Verb::Df => image::df(self)?,
            Verb::Checkfs => image::check(self)?,
            Verb::Sync => self.fs()?.sync()?,
            Verb::Begin => gather::begin(self)?,
            Verb::Commit => gather::commit(self)?,
            Verb::Abort => gather::abort(self)?,
            Verb::Import(args) => transfer::import(self, args)?,
            Verb::Export(args) => transfer::export(self, args)?,
            Verb::Bench(args) => benches::bench(self, &args.what)?,
            Verb::RunExperiments(args) => benches::experiments(self, args)?,
        }
        Ok(Next::Go)
    }
}

fn ignore_broken_pipe(error: std::io::Error) -> anyhow::Result<()> {
    if error.kind() == std::io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error.into()) }
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
    let node = fs.lookup(fs.root(), &path, true, &session.creds).with_context(|| super::shown(&path))?;
    if node.kind() != stack::rawfs::fs::FileKind::Dir {
        bail!("{}: not a directory", super::shown(&path));
    }
    drop(node);
    session.dir = path;
    Ok(())
}

/// A path from a directory, both without dots: `..` takes off a name, as `cd` does in sh.
pub fn join(dir: &[u8], path: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    let base = if path.first() == Some(&b'/') { &b""[..] } else { dir };
    for part in base.split(|byte| *byte == b'/').chain(path.split(|byte| *byte == b'/')) {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let mut all = vec![b'/'];
    all.extend(parts.join(&b'/'));
    all
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn paths_are_joined_without_dots() {
        let joined = |dir: &str, path: &str| String::from_utf8(join(dir.as_bytes(), path.as_bytes())).expect("text");
        assert_eq!(joined("/", "a"), "/a");
        assert_eq!(joined("/a/b", "../c/./d//"), "/a/c/d");
        assert_eq!(joined("/a", "/x/../.."), "/");
        assert_eq!(joined("/a", "../../.."), "/");
    }
}
