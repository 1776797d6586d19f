//! Completion: names of commands, and paths; of the image, or of the machine where a command says so.

use std::cell::RefCell;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::rc::Rc;

use rustyline::completion::{Completer, Pair};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};

use super::session::{Session, join};
use super::words::{self, Partial, QuotingError};
use super::{definitions, shown};
use stack::rawfs::fs::FileKind;

/// Completes command names and paths for the line editor.
pub struct Helper<'s> {
    session: Rc<RefCell<&'s mut Session>>,
}

impl<'s> Helper<'s> {
    /// Creates a completer for the session.
    pub fn new(session: Rc<RefCell<&'s mut Session>>) -> Helper<'s> {
        Helper { session }
    }
}

impl rustyline::Helper for Helper<'_> {}
impl Highlighter for Helper<'_> {}
impl Hinter for Helper<'_> {
    type Hint = String;
}

impl Validator for Helper<'_> {
    /// A quote that is open goes on in the next line.
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let open = words::commands(context.input().as_bytes()) == Err(QuotingError::Unfinished);
        Ok(if open { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

impl Completer for Helper<'_> {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, _: &rustyline::Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        Ok(candidates(&self.session.borrow(), &line[..at]))
    }
}

/// Where the word begins that is at the end of a line, and what it may become.
pub fn candidates(session: &Session, line: &str) -> (usize, Vec<Pair>) {
    let Some(partial) = words::partial(line.as_bytes()) else { return (line.len(), Vec::new()) };
    let pairs = match partial.before.as_slice() {
        [] => names(&partial, &definitions()),
        [help] if help == b"help" => names(&partial, &definitions()),
        [bench] if bench == b"bench" => definitions().find_subcommand("bench").map_or(Vec::new(), |bench| names(&partial, bench)),
        before if is_machines(before) => machine(&partial.word),
        _ => image(session, &partial.word),
    };
    (partial.start, pairs)
}

/// Whether a file of the machine comes next.
fn is_machines(before: &[Vec<u8>]) -> bool {
    let paths = before[1..].iter().filter(|word| !word.starts_with(b"-")).count();
    match before[0].as_slice() {
        b"import" | b"run-experiments" => paths == 0,
        b"export" => paths == 1,
        b"bench" => paths == 1 && before[1] == b"e2e_write",
        _ => false,
    }
}

fn names(partial: &Partial, of: &clap::Command) -> Vec<Pair> {
    let all = of.get_subcommands().map(clap::Command::get_name).filter(|name| name.as_bytes().starts_with(&partial.word));
    all.map(|name| Pair { display: name.to_owned(), replacement: format!("{name} ") }).collect()
}

fn image(session: &Session, word: &[u8]) -> Vec<Pair> {
    let (typed, begin) = split(word);
    let Ok(entries) = session.entries(&join(&session.dir, if typed.is_empty() { b"." } else { typed })) else { return Vec::new() };
    let found = entries.into_iter().filter(|entry| entry.name.starts_with(begin));
    found.filter_map(|entry| pair(typed, &entry.name, entry.kind == FileKind::Dir)).collect()
}

fn machine(word: &[u8]) -> Vec<Pair> {
    let (typed, begin) = split(word);
    let dir = OsString::from_vec(if typed.is_empty() { b".".to_vec() } else { typed.to_vec() });
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let found = entries.flatten().filter(|entry| entry.file_name().as_bytes().starts_with(begin));
    let mut all: Vec<Pair> =
        found.filter_map(|entry| pair(typed, entry.file_name().as_bytes(), entry.file_type().is_ok_and(|kind| kind.is_dir()))).collect();
    all.sort_by(|a, b| a.display.cmp(&b.display));
    all
}

/// The directory as typed, with its slash, and the begin of the name.
fn split(word: &[u8]) -> (&[u8], &[u8]) {
    word.split_at(word.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1))
}

/// None for what cannot be typed.
fn pair(typed: &[u8], name: &[u8], is_dir: bool) -> Option<Pair> {
    let path = [typed, name].concat();
    let path = String::from_utf8(path).ok().filter(|path| !path.chars().any(char::is_control))?;
    let (slash, blank) = if is_dir { ("/", "") } else { ("", " ") };
    Some(Pair { display: format!("{}{slash}", shown(name)), replacement: format!("{}{slash}{blank}", words::quoted(&path)) })
}
