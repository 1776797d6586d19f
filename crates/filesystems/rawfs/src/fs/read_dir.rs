//! Reading of directories through a handle.

use std::sync::Arc;

use rustix::io::Errno;

use super::dir_cursor::DirCursor;
use super::dir_window::{DOTS, DirEntry};
use super::error::Result;
use super::file::File;
use super::record::{FileKind, Record};
use crate::Batch;

impl File {
    /// The next entries of a directory, `.` and `..` first, each with the place behind it; `each` returns whether there is room
    /// for more, and one it had no room for comes again.
    ///
    /// # Errors
    /// ENOTDIR; EIO for metadata that is damaged.
    pub fn read_dir(&self, each: &mut dyn FnMut(&DirEntry, u64) -> bool) -> Result<()> {
        let core = self.core();
        let dir = core.dir_of(self.inode())?;
        if dir.is_gone() {
            return Err(Errno::NOENT.into());
        }
        self.accessed_dir()?;
        let mut at = self.at.lock();
        let mut list = self.list.lock();
        let begin = *at;
        if *at < 2 {
            let dots = {
                let _names = core.locks.shared();
                core.dots(&dir)?
            };
            while *at < 2 {
                let which = usize::try_from(*at).expect("below 2");
                let entry = DirEntry { name: [&b"."[..], b".."][which].to_vec(), ino: dots[which], kind: FileKind::Dir };
                if !each(&entry, *at + 1) {
                    return Ok(());
                }
                *at += 1;
            }
        }
        if *at <= DOTS {
            *list = DirCursor::default();
        }
        loop {
            let window = match list.window.take().filter(|window| window.covers(*at)) {
                Some(window) => window,
                // Behind the dots is the begin: what is there now is listed.
                None => {
                    list.next = (0, 0);
                    core.window(&dir, self.node().ino(), *at, *at > DOTS)?
                }
            };
            let mut n = list.next_at(&window, *at);
            list.window = Some(Arc::clone(&window));
            while let Some((entry, behind)) = window.get(n) {
                if !each(entry, behind) {
                    list.next = (*at, n);
                    return Ok(());
                }
                *at = behind;
                n += 1;
                list.next = (*at, n);
            }
            match window.end() {
                Some(end) => *at = end,
                // What could be read is listed first; the error comes when it goes on.
                None if *at > begin => return Ok(()),
                None => return window.outcome(),
            }
        }
    }

    fn accessed_dir(&self) -> Result<()> {
        let now = self.core().now();
        let due = {
            let _names = self.core().locks.shared();
            self.is_due(&self.core().record(self.inode())?.0)
        };
        let set = |record: &mut Record, _: &mut Batch| {
            record.atime = now;
            Ok(true)
        };
        if due { self.core().change(self.inode(), &mut { set }) } else { Ok(()) }
    }
}
