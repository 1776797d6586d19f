//! Computes which files and contents are legal after a power cut (docs/durability.md).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::durability_mark::{DurabilityMark, FileId};
use crate::power_cut::SECTOR;
use crate::stamped::read_stamp;

/// The biggest block of ext4 where pages have 4 KiB.
const BLOCK_SECTORS: u64 = 8;

#[derive(Clone, Debug, Default)]
struct File {
    /// The current path.
    path: String,
    /// Paths at which it may be found.
    paths: BTreeSet<String>,
    /// Its existence was acknowledged as durable.
    must_exist: bool,
    /// It is being removed or replaced.
    leaving: bool,
    /// The file that replaced it.
    replaced_by: Option<FileId>,
    /// Legal versions of each sector, newest last.
    versions: Vec<Vec<u32>>,
    /// Sectors that were never synced may read as zeroes.
    synced_sectors: u64,
    /// So may the rest of the block in which a file was truncated: ext4 zeroes it before the length is durable.
    cut: Range<u64>,
    sectors: u64,
    sectors_min: u64,
    sectors_max: u64,
}

/// The durability state of all files.
#[derive(Clone, Debug, Default)]
pub struct DurabilityOracle {
    files: BTreeMap<FileId, File>,
    gone: BTreeSet<FileId>,
    /// A path that had a file and is being given to others: one of them must be present.
    held: Vec<(String, BTreeSet<FileId>)>,
    dir_rename: Option<(String, String)>,
}

/// A regular file found after the cut.
#[derive(Clone, Debug)]
pub struct FoundFile {
    /// Path of the file, relative to the mount.
    pub path: String,
    /// Content of the file, in bytes.
    pub bytes: Vec<u8>,
}

fn moved(path: &str, from: &str, to: &str) -> Option<String> {
    path.strip_prefix(from).filter(|rest| rest.starts_with('/')).map(|rest| format!("{to}{rest}"))
}

impl DurabilityOracle {
    /// Applies the next mark to the state.
    // long: one match over all marks, a few lines each.
    pub fn apply(&mut self, mark: &DurabilityMark) {
        match mark {
            DurabilityMark::CreateStarted { id, path } => {
                let file = File { path: path.clone(), paths: [path.clone()].into(), ..File::default() };
                self.files.insert(*id, file);
            }
            DurabilityMark::WriteStarted { id, sectors, version } => {
                let file = self.file(*id);
                let end = sectors.end as usize;
                if file.versions.len() < end {
                    file.versions.resize(end, Vec::new());
                }
                sectors.clone().for_each(|sector| file.versions[sector as usize].push(*version));
                file.sectors = file.sectors.max(sectors.end);
                file.sectors_max = file.sectors_max.max(file.sectors);
            }
            DurabilityMark::TruncateStarted { id, sectors } => {
                let file = self.file(*id);
                file.sectors = *sectors;
                file.sectors_min = file.sectors_min.min(*sectors);
                file.cut = *sectors..sectors.next_multiple_of(BLOCK_SECTORS);
            }
            DurabilityMark::Synced { id } => {
                let file = self.file(*id);
                file.must_exist = true;
                file.cut = 0..0;
                (file.sectors_min, file.sectors_max, file.synced_sectors) = (file.sectors, file.sectors, file.sectors);
                file.versions.truncate(file.sectors as usize);
                for versions in &mut file.versions {
                    versions.drain(..versions.len().saturating_sub(1));
                }
            }
            DurabilityMark::RenameStarted { id, to } => self.rename(*id, to),
            DurabilityMark::RenameSynced { id } => {
                let file = self.file(*id);
                file.paths = [file.path.clone()].into();
                self.held.retain(|(_, files)| !files.contains(id));
                let replaced: Vec<FileId> =
                    self.files.iter().filter(|(_, file)| file.replaced_by == Some(*id)).map(|(id, _)| *id).collect();
                for old in replaced {
                    self.files.remove(&old);
                    self.gone.insert(old);
                }
            }
            DurabilityMark::RemoveStarted { id } => {
                self.file(*id).leaving = true;
                self.held.retain(|(_, files)| !files.contains(id));
            }
            DurabilityMark::RemoveKept { id } => {
                self.files.remove(id);
                self.gone.insert(*id);
            }
            DurabilityMark::DirRenameStarted { from, to } => {
                for file in self.files.values_mut() {
                    let more: Vec<String> = file.paths.iter().filter_map(|path| moved(path, from, to)).collect();
                    file.paths.extend(more);
                    file.path = moved(&file.path, from, to).unwrap_or_else(|| file.path.clone());
                }
                self.held.retain(|(path, ..)| moved(path, from, to).is_none());
                self.dir_rename = Some((from.clone(), to.clone()));
            }
            DurabilityMark::DirRenameSynced => {
                if let Some((from, to)) = self.dir_rename.take() {
                    self.files.values_mut().for_each(|file| file.paths.retain(|path| moved(path, &from, &to).is_none()));
                }
            }
        }
    }

    fn file(&mut self, id: FileId) -> &mut File {
        self.files.get_mut(&id).expect("a mark about a file that was made")
    }

    fn rename(&mut self, id: FileId, to: &str) {
        self.held.retain(|(_, files)| !files.contains(&id));
        for (_, files) in self.held.iter_mut().filter(|(path, _)| path == to) {
            files.insert(id);
        }
        if let Some(old) = self.at(to).filter(|old| *old != id) {
            let replaced = self.file(old);
            let sure = replaced.must_exist && replaced.paths.len() == 1;
            replaced.leaving = true;
            replaced.replaced_by = Some(id);
            if sure {
                self.held.push((to.to_owned(), [old, id].into()));
            }
        }
        let file = self.file(id);
        file.paths.insert(to.to_owned());
        file.path = to.to_owned();
    }

    /// Returns the file that is currently at a path.
    pub fn at(&self, path: &str) -> Option<FileId> {
        self.files.iter().find(|(_, file)| !file.leaving && file.path == path).map(|(id, _)| *id)
    }

    /// Returns the current files: id, path, length in sectors.
    pub fn present(&self) -> Vec<(FileId, String, u64)> {
        let present = self.files.iter().filter(|(_, file)| !file.leaving);
        present.map(|(id, file)| (*id, file.path.clone(), file.sectors)).collect()
    }

    /// Checks that these files and directories are legal after a power cut. `dirs`: the directories found.
    pub fn check(&self, found: &[FoundFile], dirs: &BTreeSet<String>) -> Result<(), String> {
        let mut seen: BTreeMap<FileId, &str> = BTreeMap::new();
        for one in found {
            let Some(id) = self.whose(one)? else { continue };
            if let Some(other) = seen.insert(id, &one.path) {
                return Err(format!("file {id} is there twice: {other} and {}", one.path));
            }
            let Some(file) = self.files.get(&id) else {
                return Err(format!("{}: file {id} was removed durably", one.path));
            };
            if !file.paths.contains(&one.path) {
                return Err(format!("file {id} is at {}, not at one of {:?}", one.path, file.paths));
            }
            content(file, id, one)?;
        }
        for (id, file) in &self.files {
            if file.must_exist && !file.leaving && !seen.contains_key(id) && !self.empty_at(file, found) {
                return Err(format!("file {id} is lost; it was at {:?}", file.paths));
            }
        }
        for (path, files) in &self.held {
            if !files.iter().any(|id| seen.get(id).is_some_and(|at| at == path)) {
                return Err(format!("{path} has none of {files:?}, the file it had and those that replaced it"));
            }
        }
        match &self.dir_rename {
            Some((from, to)) if dirs.contains(from) == dirs.contains(to) => Err(format!("a rename of {from} to {to} is half done")),
            _ => Ok(()),
        }
    }

    /// Returns the file that a found one is, by its first sector. `None`: it is empty, which is legal there.
    fn whose(&self, one: &FoundFile) -> Result<Option<FileId>, String> {
        if !one.bytes.len().is_multiple_of(SECTOR) {
            return Err(format!("{} has {} bytes, no whole sectors", one.path, one.bytes.len()));
        }
        let stamps = one.bytes.chunks(SECTOR).filter_map(read_stamp);
        let ids: BTreeSet<FileId> = stamps.map(|stamp| stamp.file).collect();
        match ids.len() {
            1 => Ok(ids.first().copied()),
            0 => {
                let unsynced = |file: &File| file.paths.contains(&one.path) && file.synced_sectors == 0;
                let zeros = one.bytes.iter().all(|byte| *byte == 0);
                if zeros && self.files.values().any(unsynced) {
                    return Ok(None);
                }
                Err(format!("{} has {} bytes that nobody wrote there", one.path, one.bytes.len()))
            }
            _ => Err(format!("{} has sectors of several files: {ids:?}", one.path)),
        }
    }

    fn empty_at(&self, file: &File, found: &[FoundFile]) -> bool {
        file.sectors_min == 0 && found.iter().any(|one| one.bytes.is_empty() && file.paths.contains(&one.path))
    }
}

fn content(file: &File, id: FileId, one: &FoundFile) -> Result<(), String> {
    let sectors = (one.bytes.len() / SECTOR) as u64;
    if sectors < file.sectors_min || sectors > file.sectors_max {
        return Err(format!("{} (file {id}) has {sectors} sectors, not {} to {}", one.path, file.sectors_min, file.sectors_max));
    }
    for (n, bytes) in one.bytes.chunks(SECTOR).enumerate() {
        let at = format!("{} (file {id}) sector {n} of {sectors}", one.path);
        match read_stamp(bytes) {
            Some(stamp) if stamp.sector != n as u64 => return Err(format!("{at} belongs to sector {}", stamp.sector)),
            Some(stamp) if !file.versions[n].contains(&stamp.version) => {
                return Err(format!("{at} has version {}, not one of {:?}", stamp.version, file.versions[n]));
            }
            Some(_) => {}
            None if bytes.iter().any(|byte| *byte != 0) => return Err(format!("{at} is damaged")),
            None if n as u64 >= file.synced_sectors || file.cut.contains(&(n as u64)) => {}
            None => return Err(format!("{at} is zeros, {} were synced", file.synced_sectors)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::stamped::sectors;

    fn found(path: &str, bytes: Vec<u8>) -> FoundFile {
        FoundFile { path: path.into(), bytes }
    }

    fn after(marks: &[DurabilityMark]) -> DurabilityOracle {
        let mut promises = DurabilityOracle::default();
        marks.iter().for_each(|mark| promises.apply(mark));
        promises
    }

    fn made(id: FileId, path: &str) -> Vec<DurabilityMark> {
        let create = DurabilityMark::CreateStarted { id, path: path.into() };
        vec![create, DurabilityMark::WriteStarted { id, sectors: 0..2, version: id as u32 }, DurabilityMark::Synced { id }]
    }

    #[test]
    fn a_synced_file_must_be_there_with_its_content() {
        let promises = after(&made(1, "a/x"));
        let no_dirs = BTreeSet::new();
        let good = sectors(1, 0, 2, 1);
        assert_eq!(promises.check(&[found("a/x", good.clone())], &no_dirs), Ok(()));
        for (bad, why) in [
            (vec![], "lost"),
            (vec![found("a/y", good.clone())], "not at one of"),
            (vec![found("a/x", good.clone()), found("a/y", good.clone())], "twice"),
            (vec![found("a/x", good[..SECTOR].to_vec())], "has 1 sectors"),
            (vec![found("a/x", [&good[..SECTOR], &[0; SECTOR]].concat())], "zeros"),
            (vec![found("a/x", [&good[..SECTOR], &[7; SECTOR]].concat())], "damaged"),
            (vec![found("a/x", sectors(1, 0, 2, 3))], "version 3"),
            (vec![found("a/x", good.clone()), found("a/z", vec![])], "nobody wrote"),
        ] {
            let error = promises.check(&bad, &no_dirs).expect_err(why);
            assert!(error.contains(why), "{error} does not say {why}");
        }
    }

    #[test]
    fn a_replacement_is_the_old_or_the_new_never_neither() {
        let mut marks = [made(1, "x"), made(2, "new")].concat();
        marks.push(DurabilityMark::RenameStarted { id: 2, to: "x".into() });
        let promises = after(&marks);
        let none = BTreeSet::new();
        let (old, new) = (sectors(1, 0, 2, 1), sectors(2, 0, 2, 2));
        assert_eq!(promises.check(&[found("x", old.clone()), found("new", new.clone())], &none), Ok(()));
        assert_eq!(promises.check(&[found("x", new.clone())], &none), Ok(()));
        assert!(promises.check(&[found("new", new.clone())], &none).expect_err("neither").contains("has none of"));
        marks.push(DurabilityMark::RenameSynced { id: 2 });
        assert!(after(&marks).check(&[found("x", old)], &none).is_err());
        assert_eq!(after(&marks).check(&[found("x", new)], &none), Ok(()));
    }

    #[test]
    fn a_renamed_directory_is_at_one_place() {
        let mut marks = [made(1, "a/x"), made(2, "a/y")].concat();
        marks.push(DurabilityMark::DirRenameStarted { from: "a".into(), to: "b".into() });
        let promises = after(&marks);
        let (x, y) = (sectors(1, 0, 2, 1), sectors(2, 0, 2, 2));
        let dirs = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<BTreeSet<String>>();
        let both = |one: &str, other: &str| [found(one, x.clone()), found(other, y.clone())];
        assert_eq!(promises.check(&both("a/x", "a/y"), &dirs(&["a"])), Ok(()));
        assert_eq!(promises.check(&both("b/x", "b/y"), &dirs(&["b"])), Ok(()));
        assert!(promises.check(&both("a/x", "b/y"), &dirs(&["a", "b"])).is_err());
        marks.push(DurabilityMark::DirRenameSynced);
        assert!(after(&marks).check(&both("a/x", "a/y"), &dirs(&["a"])).is_err());
    }

    #[test]
    fn unsynced_writes_may_be_there_in_part() {
        let mut marks = made(1, "x");
        marks.push(DurabilityMark::WriteStarted { id: 1, sectors: 1..4, version: 9 });
        let promises = after(&marks);
        let (old, new) = (sectors(1, 0, 2, 1), sectors(1, 0, 4, 9));
        let none = BTreeSet::new();
        let mixed = [&old[..SECTOR], &new[SECTOR..2 * SECTOR], &[0; SECTOR]].concat();
        assert_eq!(promises.check(&[found("x", mixed)], &none), Ok(()));
        assert!(promises.check(&[found("x", new)], &none).is_err(), "sector 0 was not written anew");
    }
}
