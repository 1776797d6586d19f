//! Commands of a person at a terminal: editing, history, completion.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::anyhow;
use rustyline::config::Configurer;
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{CompletionType, Editor};
use signal_hook::consts::{SIGHUP, SIGINT};

use super::complete::Helper;
use super::dispatch::{self, Next};
use super::session::Session;
use super::words::{self, QuotingError};
use super::{complain, is_broken_pipe, shown};

/// Lines remembered.
const HISTORY_LINES: usize = 1000;

/// Serves until the end of the input. It went well, whatever commands failed: who typed them has seen it.
pub fn serve(session: &mut Session, history: Option<&Path>) -> anyhow::Result<bool> {
    // At the prompt Ctrl-C is a key; while a command runs it is a signal, which ends that alone. A terminal that goes away is the
    // end of the input.
    for signal in [SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&session.stop))?;
    }
    let mut editor: Editor<Helper<'_>, DefaultHistory> = Editor::new()?;
    editor.set_completion_type(CompletionType::List);
    editor.set_max_history_size(HISTORY_LINES)?;
    let file = history.map(Path::to_owned).or_else(usual_history);
    if let Some(file) = &file {
        // The first time there is none.
        let _ = editor.load_history(file);
    }
    session.history = editor.history().iter().cloned().collect();
    if session.fs.is_none() {
        writeln!(session.out, "{} holds no hotshelf file system: make one with `mkfs` (see `help mkfs`)", session.image)?;
    }
    let shared = Rc::new(RefCell::new(session));
    editor.set_helper(Some(Helper::new(Rc::clone(&shared))));
    let outcome = lines(&mut editor, &shared);
    if let Some(file) = &file {
        let _ = file.parent().map(std::fs::create_dir_all);
        if let Err(error) = editor.save_history(file) {
            complain(None, &anyhow!("{}: the history is not saved: {error}", file.display()));
        }
    }
    outcome.map(|()| true)
}

fn usual_history() -> Option<PathBuf> {
    let home = || shm::environment::path("HOME").map(|home| home.join(".local/state"));
    let state = shm::environment::absolute_path("XDG_STATE_HOME").or_else(home)?;
    Some(state.join("hotshelf/fs-shell-history"))
}

fn lines<'s>(editor: &mut Editor<Helper<'s>, DefaultHistory>, session: &RefCell<&'s mut Session>) -> anyhow::Result<()> {
    loop {
        let prompt = format!("{}{} ", shown(&session.borrow().dir), if session.borrow().gathered.is_some() { " (begun)%" } else { "%" });
        let line = match editor.readline(&prompt) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if line.trim().is_empty() {
            continue;
        }
        let _ = editor.add_history_entry(line.as_str());
        let mut session = session.borrow_mut();
        session.history.push(line.clone());
        session.stop.store(false, Ordering::Relaxed);
        match one(&mut session, &line) {
            Ok(Next::Go) => {}
            Ok(Next::Quit) => return Ok(()),
            Err(error) if is_broken_pipe(&error) => return Ok(()),
            Err(error) => complain(None, &error),
        }
    }
}

/// The commands of a line, until one fails.
fn one(session: &mut Session, line: &str) -> anyhow::Result<Next> {
    let commands = words::commands(line.as_bytes()).map_err(|bad| match bad {
        QuotingError::Unfinished => anyhow!("a quote or a backslash has no end"),
        QuotingError::Operator { byte, .. } => anyhow!("`{}` has no meaning here: put it in quotes", char::from(byte)),
    })?;
    for typed in commands {
        let next = dispatch::run(session, &typed.words)?;
        session.out.flush()?;
        if next == Next::Quit {
            return Ok(Next::Quit);
        }
    }
    Ok(Next::Go)
}
