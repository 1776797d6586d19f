//! What an experiment sets up on the machine, and its removal, also after `kill -9`, at the next start.
//!
//! Before anything is created, an undo step is written to a journal of this process in the user's state directory, which stays locked
//! while the process lives. A journal without a lock belongs to a dead run: its steps are undone, last first.

mod disk;
mod group;
mod journal;
pub mod memory;
mod mount;
pub mod throttle;
mod undo;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::Context as _;

pub use disk::{Counters, Disk};
pub use mount::MountedPair;
pub use throttle::DriveSpeed;

use crate::experiment::Context;
use journal::Journal;
use undo::UndoStep;

/// An environment in which an experiment may set up anything. Dropping it removes everything.
pub struct Lab<'c> {
    context: &'c Context,
    dir: PathBuf,
    journal: Journal,
    done: Vec<UndoStep>,
}

impl<'c> Lab<'c> {
    /// Creates an empty scratch directory and a journal.
    ///
    /// # Errors
    /// One of them cannot be created.
    pub fn new(context: &'c Context) -> anyhow::Result<Lab<'c>> {
        let journal = Journal::new(&state_dir()?)?;
        let below = context.dir.canonicalize().with_context(|| format!("{}", context.dir.display()))?;
        let dir = below.join(format!("hotshelf-bench-{}", journal.name()));
        let mut lab = Lab { context, dir: dir.clone(), journal, done: Vec::new() };
        lab.will(UndoStep::Dir(dir.clone()))?;
        std::fs::create_dir(&dir).with_context(|| format!("{}", dir.display()))?;
        Ok(lab)
    }

    /// Returns the path of the scratch directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the context of the experiment.
    pub fn context(&self) -> &'c Context {
        self.context
    }

    /// Records an undo step before the action.
    pub(crate) fn will(&mut self, undo: UndoStep) -> anyhow::Result<()> {
        self.journal.add(&undo)?;
        self.done.push(undo);
        Ok(())
    }

    /// Records an undo step unless it exists already.
    pub(crate) fn will_once(&mut self, undo: UndoStep) -> anyhow::Result<()> {
        if self.has(&undo) { Ok(()) } else { self.will(undo) }
    }

    /// Returns whether the step is recorded.
    pub(crate) fn has(&self, undo: &UndoStep) -> bool {
        self.done.contains(undo)
    }

    /// Returns the memory groups that were created.
    pub(crate) fn memory_groups(&self) -> Vec<PathBuf> {
        let of = |undo: &UndoStep| match undo {
            UndoStep::Group(path) if memory::is_one(path) => Some(path.clone()),
            _ => None,
        };
        self.done.iter().filter_map(of).collect()
    }

    /// Records that a started program is to be killed at the end.
    ///
    /// # Errors
    /// The step cannot be recorded.
    pub fn will_end(&mut self, child: &std::process::Child) -> anyhow::Result<()> {
        let pid = i32::try_from(child.id()).context("a process number")?;
        let Some(when) = undo::began(pid) else { return Ok(()) };
        self.will(UndoStep::Process(pid, when))
    }

    /// Returns the number of undo steps, for [`Lab::back_to`].
    pub fn mark(&self) -> usize {
        self.done.len()
    }

    /// Undoes the steps after the mark.
    ///
    /// # Errors
    /// A step cannot be undone.
    pub fn back_to(&mut self, mark: usize) -> anyhow::Result<()> {
        while self.done.len() > mark {
            let undo = self.done.pop().expect("there is one");
            undo.run()?;
        }
        Ok(())
    }
}

impl Drop for Lab<'_> {
    fn drop(&mut self) {
        let mut all = true;
        if self.context.check_stopped().is_err() {
            // Descendants of our programs may still be running.
            undo::end_users(&self.dir);
        }
        while let Some(undo) = self.done.pop() {
            if let Err(error) = undo.run() {
                eprintln!("hotshelf: cannot take away {undo}: {error:#}");
                all = false;
            }
        }
        // Remaining steps are retried at the next start.
        if all {
            self.journal.forget();
        } else {
            LEFT.store(true, Relaxed);
        }
    }
}

static LEFT: AtomicBool = AtomicBool::new(false);

/// Returns whether a step of this process could not be undone.
pub fn has_left_something() -> bool {
    LEFT.load(Relaxed)
}

/// Undoes the steps of this user's dead runs and returns their descriptions, including those that failed.
///
/// # Errors
/// The state directory cannot be read.
pub fn clean_up() -> anyhow::Result<Vec<String>> {
    let mut undone = Vec::new();
    for (journal, left) in Journal::dead(&state_dir()?)? {
        let mut all = true;
        for undo in &left {
            if let UndoStep::Dir(dir) = undo {
                undone.extend(undo::end_users(dir).into_iter().map(|pid| format!("process {pid}")));
            }
        }
        for undo in left.iter().rev() {
            match undo.run() {
                Ok(true) => undone.push(undo.to_string()),
                Ok(false) => {}
                Err(error) => {
                    all = false;
                    undone.push(format!("{undo}: it does not go away: {error:#}"));
                }
            }
        }
        if all {
            journal.forget();
        }
    }
    Ok(undone)
}

/// Returns the directory of the journals.
fn state_dir() -> anyhow::Result<PathBuf> {
    let given = shm::environment::absolute_path("XDG_STATE_HOME");
    let home = || shm::environment::path("HOME").map(|home| home.join(".local/state"));
    let dir = given.or_else(home).unwrap_or_else(shm::environment::temporary_dir).join("hotshelf/bench");
    std::fs::create_dir_all(&dir).with_context(|| format!("{}", dir.display()))?;
    Ok(dir)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn nothing_is_left_of_a_lab() {
        let dir = tempfile::tempdir().expect("a directory");
        let context = Context::small(dir.path().to_owned());
        let mut lab = Lab::new(&context).expect("a lab");
        std::fs::write(lab.dir().join("data"), b"x").expect("written");
        let (mark, inner) = (lab.mark(), lab.dir().join("inner"));
        lab.will(UndoStep::Dir(inner.clone())).expect("noted");
        std::fs::create_dir(&inner).expect("made");
        lab.back_to(mark).expect("undone");
        assert!(!inner.exists() && lab.dir().join("data").exists());
        drop(lab);
        assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 0);
    }
}
