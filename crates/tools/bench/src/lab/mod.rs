//! What an experiment sets up on the machine, and how all of it goes away: also after a `kill -9`, at the next start.
//!
//! Before anything is made it is written down in a journal of this process, below the user's state directory, which stays
//! locked while we live. A journal that nobody holds is a dead run's: what it names is taken away, last first.

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

/// Where an experiment may make what it likes. All of it goes when this is dropped.
pub struct Lab<'c> {
    context: &'c Context,
    dir: PathBuf,
    journal: Journal,
    done: Vec<UndoStep>,
}

impl<'c> Lab<'c> {
    /// An empty scratch directory, and a journal.
    ///
    /// # Errors
    /// One of them cannot be made.
    pub fn new(context: &'c Context) -> anyhow::Result<Lab<'c>> {
        let journal = Journal::new(&state_dir()?)?;
        let below = context.dir.canonicalize().with_context(|| format!("{}", context.dir.display()))?;
        let dir = below.join(format!("hotshelf-bench-{}", journal.name()));
        let mut lab = Lab { context, dir: dir.clone(), journal, done: Vec::new() };
        lab.will(UndoStep::Dir(dir.clone()))?;
        std::fs::create_dir(&dir).with_context(|| format!("{}", dir.display()))?;
        Ok(lab)
    }

    /// The scratch directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// For whom.
    pub fn context(&self) -> &'c Context {
        self.context
    }

    /// Written down before it is done.
    pub(crate) fn will(&mut self, undo: UndoStep) -> anyhow::Result<()> {
        self.journal.add(&undo)?;
        self.done.push(undo);
        Ok(())
    }

    /// The same, unless it is there already.
    pub(crate) fn will_once(&mut self, undo: UndoStep) -> anyhow::Result<()> {
        if self.has(&undo) { Ok(()) } else { self.will(undo) }
    }

    /// Whether it is to be undone.
    pub(crate) fn has(&self, undo: &UndoStep) -> bool {
        self.done.contains(undo)
    }

    /// The groups with little memory that were made.
    pub(crate) fn memory_groups(&self) -> Vec<PathBuf> {
        let of = |undo: &UndoStep| match undo {
            UndoStep::Group(path) if memory::is_one(path) => Some(path.clone()),
            _ => None,
        };
        self.done.iter().filter_map(of).collect()
    }

    /// A program that was started ends with us.
    ///
    /// # Errors
    /// It cannot be written down.
    pub fn will_end(&mut self, child: &std::process::Child) -> anyhow::Result<()> {
        let pid = i32::try_from(child.id()).context("a process number")?;
        let Some(when) = undo::began(pid) else { return Ok(()) };
        self.will(UndoStep::Process(pid, when))
    }

    /// How much there is; for [`Lab::back_to`].
    pub fn mark(&self) -> usize {
        self.done.len()
    }

    /// Takes away what came after the mark.
    ///
    /// # Errors
    /// Something does not go away.
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
            // What our programs had started themselves may go on for a while.
            undo::end_users(&self.dir);
        }
        while let Some(undo) = self.done.pop() {
            if let Err(error) = undo.run() {
                eprintln!("hotshelf: cannot take away {undo}: {error:#}");
                all = false;
            }
        }
        // What is left is tried again at the next start.
        if all {
            self.journal.forget();
        } else {
            LEFT.store(true, Relaxed);
        }
    }
}

static LEFT: AtomicBool = AtomicBool::new(false);

/// Whether something of this process did not go away.
pub fn has_left_something() -> bool {
    LEFT.load(Relaxed)
}

/// Takes away what dead runs of this user have left; returns what that was.
///
/// # Errors
/// The state directory cannot be read. What does not go away is told in the list.
pub fn clean_up() -> anyhow::Result<Vec<String>> {
    let mut told = Vec::new();
    for (journal, left) in Journal::dead(&state_dir()?)? {
        let mut all = true;
        for undo in &left {
            if let UndoStep::Dir(dir) = undo {
                told.extend(undo::end_users(dir).into_iter().map(|pid| format!("process {pid}")));
            }
        }
        for undo in left.iter().rev() {
            match undo.run() {
                Ok(true) => told.push(undo.to_string()),
                Ok(false) => {}
                Err(error) => {
                    all = false;
                    told.push(format!("{undo}: it does not go away: {error:#}"));
                }
            }
        }
        if all {
            journal.forget();
        }
    }
    Ok(told)
}

/// Where journals are.
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
