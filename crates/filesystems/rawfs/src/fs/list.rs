//! Listing of directories.
//!
//! The store keeps names in their own order, not in that of positions ([`super::dir_window`]). So a listing reads the whole directory and
//! keeps as many entries as there is memory for ([`WINDOW_MAX`]); a larger directory is read several times. A listing that resumes on
//! another handle uses the entries that were read last, unless a name has changed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::core::{FsCore, ROOT};
use super::dir_window::{CachedWindow, DirEntry, DirWindow, position};
use super::error::{Error, Result};
use super::key::{BELOW, ENTRY, unescape};
use super::name::Name;
use super::record::{FileKind, NameValue};
use super::table::{Inode, InodeState, RecordLocation};
use crate::{ScanStep, TreeId};

/// Entries of a window, about.
const WINDOW_MAX: usize = 1 << 16;
/// Windows that are kept for the next handle.
const WINDOWS: usize = 4;
impl FsCore {
    /// The entries from a position on, as many as a window has. `shared`: one that was read before is as good.
    pub fn window(&self, dir: &Arc<Name>, ino: u64, from: u64, shared: bool) -> Result<Arc<DirWindow>> {
        let version = {
            // With the lock: of a change that is under way nothing is counted yet, or all of it is there.
            let names = self.locks.shared();
            let _dir = self.locks.look(&names, dir);
            self.names_changed.load(Ordering::SeqCst)
        };
        let is_known = |known: &CachedWindow| known.ino == ino && known.version == version && known.window.covers(from);
        if shared && let Some(known) = self.windows.lock().iter().find(|known| is_known(known)) {
            return Ok(Arc::clone(&known.window));
        }
        let window = Arc::new(self.read_window(dir, from)?);
        let mut known = self.windows.lock();
        known.retain(|known| known.ino != ino);
        known.push_front(CachedWindow { ino, version, window: Arc::clone(&window) });
        known.truncate(WINDOWS);
        Ok(window)
    }

    fn read_window(&self, dir: &Name, from: u64) -> Result<DirWindow> {
        let _names = self.locks.shared();
        let mut window = DirWindow::new(from);
        if dir.is_gone() {
            return Ok(window);
        }
        let enc = dir.enc();
        let begin = enc.prefix(ENTRY).len();
        let mut wrong = None;
        let scanned = self.store.scan(TreeId::Names, &enc.prefix(ENTRY), &enc.prefix(BELOW), &mut |key, value| {
            match (unescape(&key[begin.min(key.len())..]), NameValue::parse(value)) {
                (Some(name), Ok(value)) => window.add(position(&name), DirEntry { name, ino: value.ino(), kind: value.kind() }, WINDOW_MAX),
                (_, Err(malformed)) => wrong = Some(malformed.0),
                (None, _) => wrong = Some("a name that is none"),
            }
            ScanStep::Go
        });
        let wrong = wrong.map(|what| Error::Malformed { ino: 0, what });
        // What could be read is listed first.
        window.set_error(scanned.err().map(Error::from).or(wrong));
        window.finish(WINDOW_MAX);
        Ok(window)
    }

    /// The numbers of a directory, and of the one it is in.
    pub fn dots(&self, dir: &Arc<Name>) -> Result<[u64; 2]> {
        let number = |name: &Name| if name.is_root() { Ok(ROOT) } else { self.dir_record(name).map(|record| record.ino) };
        let above = number(&dir.parent());
        Ok([number(dir)?, above?])
    }

    /// Returns the name of a directory in use.
    pub fn dir_of(&self, inode: &Inode) -> Result<Arc<Name>> {
        match &*inode.state.read() {
            InodeState { record, at: Some(RecordLocation::Name(name)), .. } if record.kind == FileKind::Dir => Ok(Arc::clone(name)),
            _ => Err(Errno::NOTDIR.into()),
        }
    }
}
