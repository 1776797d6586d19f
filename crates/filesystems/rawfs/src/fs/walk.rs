//! From a path to a name: one lookup of the whole path if it can be, else directory by directory, as Linux walks.

use std::sync::Arc;

use rustix::io::Errno;

use super::core::{FsCore, HeldInode};
use super::creds::{Creds, EXEC};
use super::error::{Error, Result};
use super::key::{ENC_MAX, FileItem};
use super::locks::SharedNames;
use super::name::{self, Name};
use super::record::{FileKind, NameValue, Record, RecordBody};
use super::{NAME_MAX, PATH_MAX, key};

/// Symbolic links on one way, at most.
const LINKS_MAX: u32 = 40;

/// What a path leads to.
pub enum WalkResult {
    /// A directory, by `.`, `..` or nothing but slashes.
    Dir(Arc<Name>),
    /// A name in a directory, and what it leads to.
    Entry {
        /// The directory.
        dir: Arc<Name>,
        /// The name.
        name: Vec<u8>,
        /// `None`: there is none.
        value: Option<NameValue>,
        /// A slash follows.
        slash: bool,
    },
}

/// A path but for its last part.
pub struct PathTail {
    /// The directory that holds the last component.
    pub dir: Arc<Name>,
    /// The last component of the path.
    pub last: LastComponent,
    /// The path ends with a slash.
    pub slash: bool,
}

/// The last part of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LastComponent {
    Name(Vec<u8>),
    Dot,
    DotDot,
    Root,
}

/// Where the parts of a path are: no two slashes in a row count.
fn parts(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty())
}

/// What is before the last part of a path, with the slash.
fn above<'p>(path: &'p [u8], last: &[u8]) -> &'p [u8] {
    &path[..path.len() - path.iter().rev().take_while(|byte| **byte == b'/').count() - last.len()]
}

/// Refuses what no path can be.
fn allowed(path: &[u8]) -> Result<()> {
    match path.len() {
        0 => Err(Errno::NOENT.into()),
        len if len > PATH_MAX => Err(Errno::NAMETOOLONG.into()),
        _ if path.contains(&0) => Err(Errno::INVAL.into()),
        _ => Ok(()),
    }
}

impl FsCore {
    /// What is at the end of a path. `follow`: through a symbolic link there.
    pub fn find(&self, base: &Arc<Name>, path: &[u8], follow: bool, creds: &Creds) -> Result<WalkResult> {
        if !creds.checks_access()
            && let Some(found) = self.find_at_once(base, path, follow)?
        {
            return Ok(found);
        }
        self.find_slowly(base, path, follow, creds, &mut 0)
    }

    /// All of it but the last part.
    pub fn tail(&self, base: &Arc<Name>, path: &[u8], creds: &Creds) -> Result<PathTail> {
        if !creds.checks_access()
            && let Some(tail) = self.tail_at_once(base, path)?
        {
            return Ok(tail);
        }
        self.walk(base, path, creds, &mut 0)
    }

    fn begin<'a>(&'a self, base: &'a Arc<Name>, path: &[u8]) -> &'a Arc<Name> {
        if path.first() == Some(&b'/') { &self.root } else { base }
    }

    /// A hit shows that all above are directories, and none a symbolic link or a zone.
    fn find_at_once(&self, base: &Arc<Name>, path: &[u8], follow: bool) -> Result<Option<WalkResult>> {
        let slash = path.last() == Some(&b'/');
        let (known, moves) = (self.recent_dir(base, path)?, name::moves());
        let (key, name) = match &known {
            Some((dir, name)) => (dir.entry(name), *name),
            None => match self.whole_key(base, path)? {
                Some((enc, name)) => (enc.entry(name), name),
                None => return Ok(None),
            },
        };
        let value = self.entry_at(&key)?;
        if value.as_ref().is_none_or(|value| value.kind() == FileKind::Symlink && (follow || slash)) {
            return Ok(None);
        }
        let dir = match known {
            Some((dir, _)) => dir,
            None => {
                let dir = self.chain(base, path);
                if Arc::ptr_eq(self.begin(base, path), &self.root) {
                    self.recent.put(above(path, name), &dir, moves);
                }
                dir
            }
        };
        Ok(Some(WalkResult::Entry { dir, name: name.to_vec(), value, slash }))
    }

    /// Holds what a path leads to, if its directory was looked for of late: one lookup, under the directory's lock. `None`: it has to be
    /// looked for otherwise.
    pub fn hold_at_once(
        &self,
        names: &SharedNames<'_>,
        base: &Arc<Name>,
        path: &[u8],
        follow: bool,
        creds: &Creds,
    ) -> Result<Option<HeldInode<'_>>> {
        if creds.checks_access() {
            return Ok(None);
        }
        let Some((dir, name)) = self.recent_dir(base, path)? else { return Ok(None) };
        let _dir = self.locks.look(names, &dir);
        // Who removes a directory has its lock.
        if dir.is_gone() {
            return Ok(None);
        }
        let epoch = self.table.epoch();
        let Some(value) = self.entry(&dir, name)? else { return Ok(None) };
        let slash = path.last() == Some(&b'/');
        match value.kind() {
            FileKind::Symlink if follow || slash => Ok(None),
            FileKind::Dir => self.hold_value(&dir, name, &value, epoch).map(Some),
            _ if slash => Err(Errno::NOTDIR.into()),
            _ => self.hold_value(&dir, name, &value, epoch).map(Some),
        }
    }

    fn tail_at_once(&self, base: &Arc<Name>, path: &[u8]) -> Result<Option<PathTail>> {
        if let Some((dir, name)) = self.recent_dir(base, path)? {
            return Ok(Some(PathTail { dir, last: LastComponent::Name(name.to_vec()), slash: path.last() == Some(&b'/') }));
        }
        let moves = name::moves();
        let Some((_, name)) = self.whole_key(base, path)? else { return Ok(None) };
        let above = above(path, name);
        let slash = path.last() == Some(&b'/');
        let tail = |dir| Some(PathTail { dir, last: LastComponent::Name(name.to_vec()), slash });
        if parts(above).next().is_none() {
            return Ok(tail(Arc::clone(self.begin(base, path))));
        }
        match self.find_at_once(base, above, true)? {
            Some(WalkResult::Entry { dir, name: last, value: Some(NameValue::Here(record)), .. }) if record.kind == FileKind::Dir => {
                let dir = dir.child(&last, record.zone.then_some(record.ino));
                if Arc::ptr_eq(self.begin(base, path), &self.root) {
                    self.recent.put(above, &dir, moves);
                }
                Ok(tail(dir))
            }
            _ => Ok(None),
        }
    }

    /// The directory of a path's last part, if it was looked for of late, and that part.
    fn recent_dir<'p>(&self, base: &Arc<Name>, path: &'p [u8]) -> Result<Option<(Arc<Name>, &'p [u8])>> {
        allowed(path)?;
        let slashes = path.iter().rev().take_while(|byte| **byte == b'/').count();
        let whole = &path[..path.len() - slashes];
        let Some(slash) = whole.iter().rposition(|byte| *byte == b'/') else { return Ok(None) };
        let (above, name) = whole.split_at(slash + 1);
        if name == b"." || name == b".." || name.len() > NAME_MAX || !Arc::ptr_eq(self.begin(base, path), &self.root) {
            return Ok(None);
        }
        Ok(self.recent.get(above).map(|dir| (dir, name)))
    }

    /// The key of a whole path, in two pieces; `None` if it has to be walked.
    fn whole_key<'p>(&self, base: &Arc<Name>, path: &'p [u8]) -> Result<Option<(key::KeyPrefix, &'p [u8])>> {
        allowed(path)?;
        let begin = self.begin(base, path);
        let plain = parts(path).all(|part| part != b"." && part != b".." && part.len() <= NAME_MAX);
        let Some(last) = parts(path).next_back().filter(|_| plain && !begin.is_gone()) else { return Ok(None) };
        let mut enc = begin.enc();
        let count = parts(path).count();
        for part in parts(path).take(count - 1) {
            if enc.len_below(part) > ENC_MAX {
                return Ok(None);
            }
            enc.push_below(part);
        }
        Ok(Some((enc, last)))
    }

    /// The names of the directories above the last part, which are known to be directories.
    fn chain(&self, base: &Arc<Name>, path: &[u8]) -> Arc<Name> {
        let mut dir = Arc::clone(self.begin(base, path));
        let mut above = parts(path);
        above.next_back();
        above.for_each(|part| dir = dir.child(part, None));
        dir
    }

    /// As [`FsCore::find`], directory by directory; `links`: how many were followed.
    pub fn find_slowly(&self, base: &Arc<Name>, path: &[u8], follow: bool, creds: &Creds, links: &mut u32) -> Result<WalkResult> {
        let PathTail { dir, last, slash } = self.walk(base, path, creds, links)?;
        let name = match last {
            LastComponent::Root | LastComponent::Dot => return Ok(WalkResult::Dir(dir)),
            LastComponent::DotDot => return Ok(WalkResult::Dir(dir.parent())),
            LastComponent::Name(name) => name,
        };
        let value = self.step(&dir, &name, creds)?;
        if let Some(link) = value.as_ref().filter(|value| value.kind() == FileKind::Symlink && (follow || slash)) {
            let mut target = self.followed(&self.stored(link.clone())?, links)?;
            if slash {
                target.push(b'/');
            }
            return self.find_slowly(&dir, &target, true, creds, links);
        }
        Ok(WalkResult::Entry { dir, name, value, slash })
    }

    /// One name, with the checks of a walk.
    fn step(&self, dir: &Arc<Name>, name: &[u8], creds: &Creds) -> Result<Option<NameValue>> {
        if creds.checks_access() {
            self.may(creds, &self.dir_or_gone(dir)?, EXEC)?;
        }
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        if dir.is_gone() {
            return Err(Errno::NOENT.into());
        }
        self.entry(dir, name)
    }

    fn followed(&self, link: &Record, links: &mut u32) -> Result<Vec<u8>> {
        *links += 1;
        if *links > LINKS_MAX {
            return Err(Errno::LOOP.into());
        }
        self.target(link)
    }

    /// Where a symbolic link leads.
    pub fn target(&self, link: &Record) -> Result<Vec<u8>> {
        match &link.body {
            RecordBody::Inline(target) => Ok(target.clone()),
            _ => {
                let target = self.get_long(link.ino, FileItem::Target)?;
                let right = target.len() as u64 == link.size && !target.contains(&0);
                right.then_some(target).ok_or(Error::Malformed { ino: link.ino, what: "a symbolic link without its target" })
            }
        }
    }

    /// Through all but the last part of a path.
    fn walk(&self, base: &Arc<Name>, path: &[u8], creds: &Creds, links: &mut u32) -> Result<PathTail> {
        allowed(path)?;
        let mut dir = Arc::clone(self.begin(base, path));
        let slash = path.last() == Some(&b'/');
        let mut all = parts(path).peekable();
        if all.peek().is_none() {
            return Ok(PathTail { dir, last: LastComponent::Root, slash });
        }
        while let Some(part) = all.next() {
            if all.peek().is_none() {
                let last = match part {
                    b"." => LastComponent::Dot,
                    b".." => LastComponent::DotDot,
                    name => LastComponent::Name(name.to_vec()),
                };
                if creds.checks_access() {
                    self.may(creds, &self.dir_or_gone(&dir)?, EXEC)?;
                }
                return Ok(PathTail { dir, last, slash });
            }
            dir = match part {
                b"." => dir,
                b".." => dir.parent(),
                name => self.enter_dir(&dir, name, creds, links)?,
            };
        }
        unreachable!("the last part returns")
    }

    /// Into a directory on the way, through symbolic links.
    fn enter_dir(&self, dir: &Arc<Name>, name: &[u8], creds: &Creds, links: &mut u32) -> Result<Arc<Name>> {
        let record = self.stored(self.step(dir, name, creds)?.ok_or(Errno::NOENT)?)?;
        match record.kind {
            FileKind::Dir => Ok(dir.child(name, record.zone.then_some(record.ino))),
            FileKind::Symlink => {
                let target = self.followed(&record, links)?;
                match self.find_slowly(dir, &target, true, creds, links)? {
                    WalkResult::Dir(dir) => Ok(dir),
                    WalkResult::Entry { dir, name, value: Some(NameValue::Here(record)), .. } if record.kind == FileKind::Dir => {
                        Ok(dir.child(&name, record.zone.then_some(record.ino)))
                    }
                    WalkResult::Entry { value: Some(_), .. } => Err(Errno::NOTDIR.into()),
                    WalkResult::Entry { value: None, .. } => Err(Errno::NOENT.into()),
                }
            }
            _ => Err(Errno::NOTDIR.into()),
        }
    }
}
