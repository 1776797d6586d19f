//! A note about the SSD that is not on the SSD, for the case that the SSD cannot be read.
//!
//! `clean`: the SSD has no dirty pages; the note is changed before it gets one. `dirty`: it may have dirty pages. `void`: it failed in use
//! and files were written without it, so its pages are old and must not be used. `lost`: the same, and it had dirty pages that the user has
//! not discarded yet. No note: unknown. Notes are durable when the call returns. They are in $XDG_STATE_HOME, /var/lib for root or
//! ~/.local/state, one for each path. docs/formats.md has the format.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The state that a note records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoteContent {
    /// The SSD has no dirty pages.
    Clean,
    /// The SSD may have dirty pages.
    Dirty,
    /// The SSD failed while it was in use.
    Void,
    /// The SSD failed with dirty pages that the user has not discarded.
    Lost,
}

const WORDS: [(NoteContent, &[u8; 6]); 4] =
    [(NoteContent::Clean, b"clean "), (NoteContent::Dirty, b"dirty "), (NoteContent::Void, b"void  "), (NoteContent::Lost, b"lost  ")];

/// The note of one SSD.
#[derive(Clone, Debug)]
pub struct Note {
    path: PathBuf,
    /// The path of the SSD, which is written into the note for the reader.
    ssd: PathBuf,
}

impl Note {
    /// Returns the note of the SSD at a path, or none if there is no directory for notes.
    pub fn of(ssd: &Path) -> Option<Note> {
        Some(Note::at(&state_directory()?, ssd))
    }

    fn at(dir: &Path, ssd: &Path) -> Note {
        let ssd = crate::user_space_nvme::absolute(ssd);
        // Links are not resolved: their target may be gone when the note is read.
        let parent = ssd.parent().and_then(|parent| fs::canonicalize(parent).ok());
        let ssd = parent.zip(ssd.file_name()).map_or(ssd.clone(), |(parent, name)| parent.join(name));
        Note { path: dir.join(format!("ssd-{:016x}", path_hash(&ssd))), ssd }
    }

    /// Reads the state that it records; a note of another SSD records none.
    pub fn read(&self) -> Option<NoteContent> {
        let text = fs::read(&self.path).ok()?;
        let (word, rest) = text.split_at_checked(6)?;
        if rest.strip_suffix(b"\n") != Some(self.ssd.as_os_str().as_bytes()) {
            return None;
        }
        WORDS.iter().find(|(_, known)| *known == word).map(|(said, _)| *said)
    }

    /// Records that pages may be dirty from now on. Without a directory for notes there is no note that could be wrong.
    ///
    /// # Errors
    /// The note says that no page is dirty, and it cannot be changed.
    pub fn write_dirty(&self) -> io::Result<()> {
        self.write(Some(NoteContent::Dirty)).or_else(|error| if self.read() == Some(NoteContent::Clean) { Err(error) } else { Ok(()) })
    }

    /// Records this state; none removes the note.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn write(&self, said: Option<NoteContent>) -> io::Result<()> {
        if self.read() == said && (said.is_some() || !self.path.exists()) {
            return Ok(());
        }
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        let Some((_, word)) = WORDS.iter().find(|(known, _)| Some(*known) == said) else {
            fs::remove_file(&self.path)?;
            return File::open(dir)?.sync_all();
        };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let new = self.path.with_extension(std::process::id().to_string());
        // A killed process may have left this file; a new one follows no link.
        let _ = fs::remove_file(&new);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(&[&word[..], self.ssd.as_os_str().as_bytes(), b"\n"].concat())?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        File::open(dir)?.sync_all()
    }
}

/// Returns a hash of a path (FNV-1a), by which files that belong to it are named. It stays the same in all versions.
pub fn path_hash(path: &Path) -> u64 {
    let bytes = path.as_os_str().as_bytes().iter();
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Returns the directory of what is remembered of caches while nobody uses them: $XDG_STATE_HOME/hotshelf, else /var/lib/hotshelf for root
/// and ~/.local/state/hotshelf for others. None: the user has no such directory.
pub fn state_directory() -> Option<PathBuf> {
    let of = |name: &str| shm::environment::absolute_path(name);
    let state = of("XDG_STATE_HOME");
    if rustix::process::geteuid().is_root() {
        return Some(state.unwrap_or_else(|| "/var/lib".into()).join("hotshelf"));
    }
    Some(state.or_else(|| Some(of("HOME")?.join(".local/state")))?.join("hotshelf"))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_hash_of_a_path_is_fnv_1a() {
        assert_eq!(
            ["", "a", "foobar"].map(|path| path_hash(Path::new(path))),
            [0xcbf2_9ce4_8422_2325, 0xaf63_dc4c_8601_ec8c, 0x8594_4171_f739_67e8]
        );
    }

    #[test]
    fn a_note_says_what_was_written_last_and_nothing_of_another_ssd() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = dir.path().join("state/hotshelf");
        let note = Note::at(&state, &dir.path().join("ssd"));
        assert_eq!(note.read(), None);
        note.write(None).expect("nothing to remove");
        for said in [
            Some(NoteContent::Clean),
            Some(NoteContent::Clean),
            Some(NoteContent::Lost),
            None,
            Some(NoteContent::Dirty),
            Some(NoteContent::Void),
        ] {
            note.write(said).expect("written");
            assert_eq!(note.read(), said);
        }
        let other = Note { ssd: "/another".into(), ..note.clone() };
        assert_eq!(other.read(), None);
        fs::write(&note.path, "clean").expect("damaged");
        assert_eq!(note.read(), None);
        assert_eq!(fs::read_dir(&state).expect("there").count(), 1, "nothing else is left");
    }
}
