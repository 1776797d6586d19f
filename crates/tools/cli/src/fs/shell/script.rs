//! Commands of a program: a text, or standard input as it comes.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, anyhow};
use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::dispatch::{self, Next};
use super::session::Session;
use super::words::{self, QuotingError};
use super::{complain, is_broken_pipe};

/// Longest command, in bytes: who forgot a quote hears of it before memory is full.
const COMMAND_MAX: usize = 1 << 20;

/// How a script goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ScriptProgress {
    On,
    /// Quit, or the first failure with `-e`, or a signal.
    Over,
}

struct Script<'s> {
    session: &'s mut Session,
    ends_at_failure: bool,
    /// Lines before the text that is looked at.
    line: usize,
    well: bool,
}

/// Does the commands of a text; false: one failed.
pub fn text(session: &mut Session, text: &[u8], ends_at_failure: bool) -> anyhow::Result<bool> {
    stop_at_signals(session)?;
    let mut script = Script { session, ends_at_failure, line: 0, well: true };
    if script.take(text)? == ConsumedInput::Unfinished {
        script.failed(0, &unfinished());
    }
    Ok(script.well)
}

/// Does the commands of standard input, each line when it has come.
pub fn stdin(session: &mut Session, ends_at_failure: bool) -> anyhow::Result<bool> {
    let wake = stop_at_signals(session)?;
    let mut script = Script { session, ends_at_failure, line: 0, well: true };
    let (mut input, mut text) = (std::io::stdin().lock(), Vec::new());
    let mut piece = [0; 4096];
    loop {
        let got = match next(&mut input, &wake, &mut piece) {
            Ok(Some(got)) => got,
            Ok(None) => break,
            Err(error) => return Err(error).context("standard input"),
        };
        text.extend_from_slice(&piece[..got]);
        // Up to the end of the last line, or all there is.
        let whole = if got == 0 { text.len() } else { text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1) };
        match script.take(&text[..whole])? {
            ConsumedInput::Over => return Ok(script.well),
            ConsumedInput::All => drop(text.drain(..whole)),
            ConsumedInput::Unfinished if got == 0 || text.len() > COMMAND_MAX => {
                script.failed(script.line, &unfinished());
                break;
            }
            ConsumedInput::Unfinished => {}
        }
        if got == 0 {
            break;
        }
    }
    if script.session.stop.load(Ordering::Relaxed) {
        let line = script.line;
        script.failed(line, &anyhow!("interrupted"));
    }
    Ok(script.well)
}

fn unfinished() -> anyhow::Error {
    anyhow!("a quote or a backslash has no end: close it, or put it in quotes")
}

/// A signal sets the session's flag, and makes the other end readable.
fn stop_at_signals(session: &Session) -> anyhow::Result<UnixStream> {
    let (wake, woken) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&session.stop))?;
        signal_hook::low_level::pipe::register(signal, woken.try_clone()?)?;
    }
    Ok(wake)
}

/// What has come; none: a signal came first.
fn next(input: &mut std::io::StdinLock<'_>, wake: &UnixStream, piece: &mut [u8]) -> anyhow::Result<Option<usize>> {
    loop {
        let mut ready = [PollFd::new(wake, PollFlags::IN), PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN)];
        match poll(&mut ready, None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        if ready[0].revents().contains(PollFlags::IN) {
            return Ok(None);
        }
        match input.read(piece) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            got => return Ok(Some(got?)),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ConsumedInput {
    All,
    /// More has to come before anything of it can be done.
    Unfinished,
    Over,
}

impl Script<'_> {
    /// Does the commands of a text that begins with a command. If its end is missing, what is whole before it is done when it comes.
    fn take(&mut self, text: &[u8]) -> anyhow::Result<ConsumedInput> {
        match words::commands(text) {
            Ok(commands) => {
                for typed in commands {
                    if self.carry_out(self.line + typed.line, &typed.words)? == ScriptProgress::Over {
                        return Ok(ConsumedInput::Over);
                    }
                }
            }
            Err(QuotingError::Unfinished) => return Ok(ConsumedInput::Unfinished),
            Err(QuotingError::Operator { line, byte }) => return self.without_line(text, line, byte),
        }
        self.line += text.iter().filter(|byte| **byte == b'\n').count();
        Ok(ConsumedInput::All)
    }

    /// A line that cannot be read counts as one failure: those before and after it count.
    fn without_line(&mut self, text: &[u8], bad: usize, byte: u8) -> anyhow::Result<ConsumedInput> {
        let starts: Vec<usize> = std::iter::once(0).chain((0..text.len()).filter(|at| text[*at] == b'\n').map(|at| at + 1)).collect();
        let (begin, end) = (starts[bad], starts.get(bad + 1).copied().unwrap_or(text.len()));
        if begin > 0 {
            match self.take(&text[..begin])? {
                ConsumedInput::All => {}
                // What the quote hides is one command with the bad line.
                ConsumedInput::Unfinished => self.line += bad,
                ConsumedInput::Over => return Ok(ConsumedInput::Over),
            }
        }
        let error = anyhow!("`{}` has no meaning here: put it in quotes", char::from(byte));
        if self.failed(self.line, &error) == ScriptProgress::Over {
            return Ok(ConsumedInput::Over);
        }
        self.line += 1;
        self.take(&text[end..])
    }

    fn carry_out(&mut self, line: usize, words: &[Vec<u8>]) -> anyhow::Result<ScriptProgress> {
        let outcome = dispatch::run(self.session, words).and_then(|next| {
            self.session.out.flush()?;
            Ok(next)
        });
        match outcome {
            Ok(Next::Go) => Ok(ScriptProgress::On),
            Ok(Next::Quit) => Ok(ScriptProgress::Over),
            Err(error) if is_broken_pipe(&error) => Ok(ScriptProgress::Over),
            Err(error) => Ok(self.failed(line, &error)),
        }
    }

    fn failed(&mut self, line: usize, error: &anyhow::Error) -> ScriptProgress {
        complain(Some(line), error);
        self.well = false;
        if self.ends_at_failure || self.session.stop.load(Ordering::Relaxed) { ScriptProgress::Over } else { ScriptProgress::On }
    }
}
