//! The undo journal on disk: one JSON line for each step, in a file that its process keeps locked.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context;
use rustix::fs::{FlockOperation, flock};

use super::undo::UndoStep;

/// An undo journal, locked by us.
pub struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Creates a new journal for this process.
    pub fn new(dir: &Path) -> anyhow::Result<Journal> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = dir.join(format!("{name}.journal"));
        // An existing file of this name is from a dead process and was handled before.
        let file = OpenOptions::new().append(true).create(true).open(&path).with_context(|| format!("{}", path.display()))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).with_context(|| format!("{}", path.display()))?;
        Ok(Journal { path, file })
    }

    /// Returns a name that no other live process uses.
    pub fn name(&self) -> String {
        self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Appends an undo step to the journal.
    pub fn add(&mut self, undo: &UndoStep) -> anyhow::Result<()> {
        let line = serde_json::to_string(undo)? + "\n";
        self.file.write_all(line.as_bytes()).with_context(|| format!("{}", self.path.display()))
    }

    /// Removes the journal after everything was undone.
    pub fn forget(&self) {
        // The file may be gone already.
        let _ = std::fs::remove_file(&self.path);
    }

    /// Returns and locks the journals of dead processes, with their steps.
    pub fn dead(dir: &Path) -> anyhow::Result<Vec<(Journal, Vec<UndoStep>)>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(dir).with_context(|| format!("{}", dir.display()))? {
            let path = entry?.path();
            if path.extension().is_none_or(|end| end != "journal") {
                continue;
            }
            // Removed meanwhile: its owner ended normally.
            let Ok(mut file) = OpenOptions::new().read(true).append(true).open(&path) else { continue };
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            let mut text = String::new();
            // A file without valid text is not a journal.
            if file.read_to_string(&mut text).is_ok() {
                // The last line may be truncated; its step was not started.
                let left = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
                found.push((Journal { path, file }, left));
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_dead_journal_is_found_and_a_living_one_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut journal = Journal::new(dir.path()).expect("made");
        journal.add(&UndoStep::Dir("/a/hotshelf-bench-1".into())).expect("written");
        assert!(Journal::dead(dir.path()).expect("read").is_empty());
        journal.file.write_all(b"{\"dir\":\"/b").expect("a line cut off");
        drop(journal);
        std::fs::write(dir.path().join("other.journal"), [0xff, 0xfe]).expect("written");
        let dead = Journal::dead(dir.path()).expect("read");
        assert_eq!(dead.len(), 1);
        assert_eq!(dead[0].1, [UndoStep::Dir("/a/hotshelf-bench-1".into())]);
    }
}
