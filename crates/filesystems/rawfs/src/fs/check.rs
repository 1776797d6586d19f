//! Whether a file system is what it says: every name leads to a sane record, links are counted right, no block belongs to two
//! files, and all blocks in use belong to one.
//!
//! It reads the whole store once, in order, and keeps a few words for each file and run.

mod finding;

use std::collections::{BTreeMap, HashMap, HashSet};

use super::core::ROOT;
use super::error::Result;
use super::extent::Run;
use super::key::{self, FileItem, KeyParts, KeyPrefix};
use super::record::{FileKind, NameValue, Record, RecordBody};
use crate::store::salvage::found_parts;
use crate::{Block, Extent, ScanStep, Store, TreeId};
pub use finding::Finding;

/// What there is, and what is wrong.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckReport {
    /// The number of names that were read.
    pub names: u64,
    /// The number of directories, the root included.
    pub dirs: u64,
    /// The number of files that are no directories.
    pub files: u64,
    /// Files without a name that the next open removes.
    pub orphans: u64,
    /// The number of blocks that files have.
    pub blocks: u64,
    /// Everything that is wrong with the file system.
    pub findings: Vec<Finding>,
}

/// What is remembered of a file.
struct FileTally {
    kind: FileKind,
    nlink: u32,
    blocks: u64,
    items: bool,
    xattrs: bool,
    /// What was counted.
    counted: u64,
    links: u32,
    has_xattrs: bool,
    has_target: bool,
}

#[derive(Default)]
struct Checker {
    report: CheckReport,
    seen: HashMap<u64, FileTally>,
    /// Directories by what their keys begin with: number, what their own key's beginning is, directories in them.
    dirs: HashMap<Vec<u8>, (u64, Vec<u8>, u32)>,
    /// Beginnings that names have, with one of the names.
    begins: BTreeMap<Vec<u8>, String>,
    links: HashMap<u64, u32>,
    /// What names say of the kind of their file, with one of the names.
    kinds: HashMap<(u64, FileKind), Vec<u8>>,
    /// Marked for removal or cutting, from a block on.
    marks: HashMap<u64, u64>,
    runs: Vec<(u64, u32, u64)>,
    next: u64,
}

/// Looks over a store nobody changes meanwhile.
///
/// # Errors
/// Nodes that cannot be read. What is wrong with what could be read is in the report.
pub fn check(store: &Store) -> Result<CheckReport> {
    let mut check = Checker::default();
    store.scan(TreeId::Names, &[], &[0xff; 16], &mut |key, value| {
        check.name(key, value);
        ScanStep::Go
    })?;
    store.scan(TreeId::Files, &[], &[0xff; 18], &mut |key, value| {
        check.first(key, value);
        ScanStep::Go
    })?;
    // Items of a file may come before its record is known to be there.
    store.scan(TreeId::Files, &[], &[0xff; 18], &mut |key, value| {
        check.item(key, value);
        ScanStep::Go
    })?;
    check.reach();
    check.counts();
    check.blocks(store);
    Ok(check.report)
}

/// Tells the blocks that an entry names, whether or not anything leads to it.
pub fn owns(tree: TreeId, key: &[u8], value: &[u8], each: &mut dyn FnMut(Extent)) {
    let record = match tree {
        TreeId::Names => match NameValue::parse(value) {
            Ok(NameValue::Here(record)) => Some(record),
            _ => None,
        },
        TreeId::Files => match key::file_parts(key).map(|parts| parts.1) {
            Some(FileItem::Record) => Record::parse(value).ok(),
            Some(FileItem::Extent) => return Run::parse(value).into_iter().for_each(|run| each(run.extent())),
            Some(_) => None,
            // Of a node whose way is lost: which item it was is in the rest of the key.
            None => match found_parts(tree, key).map(|(_, end)| end) {
                Some([.., kind, _, _, _, _, _, _, _, _]) if *kind != FileItem::Extent as u8 && *kind != FileItem::Record as u8 => None,
                Some(_) => match Run::parse(value) {
                    Ok(run) => return each(run.extent()),
                    Err(_) => Record::parse(value).ok(),
                },
                None => None,
            },
        },
    };
    if let Some(RecordBody::Runs(runs)) = record.map(|record| record.body) {
        runs.iter().for_each(|run| each(run.extent()));
    }
}

fn shown(parts: &KeyParts) -> String {
    let begin = parts.zone.map_or_else(String::new, |zone| format!("(zone {zone})"));
    let names = parts.dirs.iter().chain([&parts.name]);
    names.fold(begin, |path, name| format!("{path}/{}", String::from_utf8_lossy(name)))
}

impl Checker {
    fn found(&mut self, finding: Finding) {
        self.report.findings.push(finding);
    }

    fn name(&mut self, key: &[u8], value: &[u8]) {
        self.report.names += 1;
        let Some(parts) = KeyParts::of(key) else { return self.nameless(TreeId::Names, key, value) };
        let path = shown(&parts);
        let enc = parts.enc();
        let value = match NameValue::parse(value) {
            Ok(value) => value,
            Err(malformed) => return self.found(Finding::Value { tree: TreeId::Names, key: key.to_vec(), path, what: malformed.0 }),
        };
        self.begins.entry(enc.bytes().to_vec()).or_insert(path);
        match value {
            NameValue::Link { ino, kind } => {
                *self.links.entry(ino).or_default() += 1;
                self.kinds.entry((ino, kind)).or_insert_with(|| key.to_vec());
            }
            NameValue::Here(record) => {
                if record.kind == FileKind::Dir {
                    self.dir(&enc, &parts.name, &record);
                }
                self.record(&record, 1);
            }
        }
    }

    /// A key of no file; what it names belongs to it all the same.
    fn nameless(&mut self, tree: TreeId, key: &[u8], value: &[u8]) {
        owns(tree, key, value, &mut |extent| self.runs.push((extent.start.0, extent.blocks, 0)));
        self.found(Finding::Key { tree, key: key.to_vec() });
    }

    fn dir(&mut self, parent: &KeyPrefix, name: &[u8], record: &Record) {
        let enc = if record.zone { KeyPrefix::zone(record.ino) } else { parent.below(name) };
        let own = self.dirs.get(enc.bytes()).map_or(0, |dir| dir.2);
        self.dirs.insert(enc.bytes().to_vec(), (record.ino, parent.bytes().to_vec(), own));
        // The parent may come later, if it is in a zone.
        self.dirs.entry(parent.bytes().to_vec()).or_insert_with(|| (0, Vec::new(), 0)).2 += 1;
    }

    fn record(&mut self, record: &Record, links: u32) {
        let items = record.body == RecordBody::Items;
        let seen = FileTally {
            kind: record.kind,
            nlink: record.nlink,
            blocks: record.blocks,
            items,
            xattrs: record.xattrs,
            counted: 0,
            links,
            has_xattrs: false,
            has_target: false,
        };
        if record.kind == FileKind::Dir {
            self.report.dirs += 1
        } else {
            self.report.files += 1
        }
        if self.seen.insert(record.ino, seen).is_some() {
            self.found(Finding::Twice { ino: record.ino });
        }
        if let RecordBody::Runs(runs) = &record.body {
            runs.iter().for_each(|run| self.run(record.ino, run));
        }
    }

    fn run(&mut self, ino: u64, run: &Run) {
        self.runs.push((run.start.0, run.blocks, ino));
        self.report.blocks += u64::from(run.blocks);
        if let Some(seen) = self.seen.get_mut(&ino) {
            seen.counted += u64::from(run.blocks);
        }
    }

    /// Records and marks.
    fn first(&mut self, key: &[u8], value: &[u8]) {
        let Some((ino, item, offset)) = key::file_parts(key) else { return self.nameless(TreeId::Files, key, value) };
        let wrong = |what| Finding::Value { tree: TreeId::Files, key: key.to_vec(), path: format!("file {ino}"), what };
        let number = value.try_into().ok().map(u64::from_le_bytes);
        match (item, number) {
            (FileItem::Record, _) => match Record::parse(value) {
                Ok(record) if record.ino == ino => {
                    let links = self.links.remove(&ino).unwrap_or(0);
                    if ino == ROOT {
                        let enc = KeyPrefix::root();
                        let own = self.dirs.get(enc.bytes()).map_or(0, |dir| dir.2);
                        self.dirs.insert(enc.bytes().to_vec(), (ROOT, Vec::new(), own));
                    }
                    self.record(&record, if ino == ROOT { 1 } else { links });
                }
                Ok(_) => self.found(Finding::Twice { ino }),
                Err(malformed) => self.found(wrong(malformed.0)),
            },
            (FileItem::Numbers, Some(next)) => self.next = next,
            (FileItem::Orphan, Some(from)) => {
                self.marks.insert(offset, from);
                self.report.orphans += 1;
            }
            (FileItem::Numbers | FileItem::Orphan, None) => self.found(Finding::Key { tree: TreeId::Files, key: key.to_vec() }),
            _ => {}
        }
    }

    /// What belongs to a record.
    fn item(&mut self, key: &[u8], value: &[u8]) {
        let Some((ino, item, offset)) = key::file_parts(key) else { return };
        let wrong = |what| Finding::Value { tree: TreeId::Files, key: key.to_vec(), path: format!("file {ino}"), what };
        let seen = self.seen.get_mut(&ino);
        match (item, seen) {
            (FileItem::Record | FileItem::Orphan | FileItem::Numbers, _) => {}
            (FileItem::Extent, Some(seen)) if seen.items && seen.kind == FileKind::File => match Run::parse(value) {
                Ok(run) if run.at == offset => self.run(ino, &run),
                Ok(_) => self.found(wrong("a run of blocks in a wrong place")),
                Err(malformed) => self.found(wrong(malformed.0)),
            },
            (FileItem::Xattrs, Some(seen)) if seen.xattrs => seen.has_xattrs = true,
            (FileItem::Target, Some(seen)) if seen.items && seen.kind == FileKind::Symlink => seen.has_target = true,
            (what, _) => self.found(Finding::Stray { ino, what }),
        }
    }

    /// Every name's directory is there, and is reached from the top.
    fn reach(&mut self) {
        if !self.seen.contains_key(&ROOT) {
            // That is a separate finding; without it nothing is reached.
            return;
        }
        let mut reached: HashSet<&[u8]> = HashSet::new();
        let mut children: HashMap<&[u8], Vec<&[u8]>> = HashMap::new();
        for (enc, (ino, parent, _)) in &self.dirs {
            if *ino != ROOT && *ino != 0 {
                children.entry(parent).or_default().push(enc);
            }
        }
        let mut left: Vec<&[u8]> = vec![&[]];
        while let Some(enc) = left.pop() {
            if self.dirs.get(enc).is_some_and(|dir| dir.0 != 0) && reached.insert(enc) {
                left.extend(children.get(enc).into_iter().flatten());
            }
        }
        let lost: Vec<Finding> = self
            .begins
            .iter()
            .filter(|(enc, _)| !reached.contains(enc.as_slice()))
            .map(|(begin, path)| {
                let dir = self.dirs.get(begin).map(|dir| dir.0).filter(|ino| *ino != 0);
                Finding::Lost { path: path.clone(), begin: begin.clone(), dir }
            })
            .collect();
        self.report.findings.extend(lost);
    }

    fn counts(&mut self) {
        let mut findings = Vec::new();
        let subdirs: HashMap<u64, u32> = self.dirs.values().map(|(ino, _, count)| (*ino, *count)).collect();
        for (ino, seen) in &self.seen {
            let ino = *ino;
            let mark = self.marks.get(&ino);
            let links = if seen.kind == FileKind::Dir { 2 + subdirs.get(&ino).copied().unwrap_or(0) } else { seen.links };
            if seen.nlink != links || links == 0 && mark.is_none() {
                findings.push(Finding::Links { ino, says: seen.nlink, are: links });
            }
            // A marked file's record says what will be left of it.
            if seen.blocks != seen.counted && mark.is_none() {
                findings.push(Finding::Blocks { ino, says: seen.blocks, are: seen.counted });
            }
            if seen.xattrs && !seen.has_xattrs {
                findings.push(Finding::Missing { ino, what: FileItem::Xattrs });
            }
            if seen.kind == FileKind::Symlink && seen.items && !seen.has_target {
                findings.push(Finding::Missing { ino, what: FileItem::Target });
            }
            if ino >= self.next {
                findings.push(Finding::Number { ino });
            }
        }
        for ((ino, kind), key) in &self.kinds {
            if self.seen.get(ino).is_some_and(|seen| seen.kind != *kind) {
                let path = KeyParts::of(key).map_or_else(String::new, |parts| shown(&parts));
                let what = "its name says another kind of file than its record";
                findings.push(Finding::Value { tree: TreeId::Names, key: key.clone(), path, what });
            }
        }
        if !self.seen.contains_key(&ROOT) {
            findings.push(Finding::Missing { ino: ROOT, what: FileItem::Record });
        }
        // Names that lead to no record.
        findings.extend(self.links.keys().map(|ino| Finding::Missing { ino: *ino, what: FileItem::Record }));
        findings.sort_by_key(ToString::to_string);
        self.report.findings.extend(findings);
    }

    /// Each block has one owner, and is in use.
    fn blocks(&mut self, store: &Store) {
        self.runs.sort_unstable();
        let mut findings = Vec::new();
        for pair in self.runs.windows(2) {
            let ((start, blocks, a), (next, more, b)) = (pair[0], pair[1]);
            if start + u64::from(blocks) > next {
                let extent = Extent::new(Block(next), more.min(u32::try_from(start + u64::from(blocks) - next).unwrap_or(more)));
                findings.push(Finding::Shared { extent, files: [a, b] });
            }
        }
        let mut used = Vec::new();
        store.each_used(|extent| used.push((extent.start.0, extent.start.0 + u64::from(extent.blocks))));
        findings.extend(compare(&self.runs, &used));
        self.report.findings.extend(findings);
    }
}

/// What files have against what is in use, both in order.
fn compare(runs: &[(u64, u32, u64)], used: &[(u64, u64)]) -> Vec<Finding> {
    let extent = |(from, to): (u64, u64)| Extent::new(Block(from), u32::try_from(to - from).unwrap_or(u32::MAX));
    let mut owned: Vec<(u64, u64)> = Vec::new();
    for (start, blocks, _) in runs {
        let end = start + u64::from(*blocks);
        match owned.last_mut() {
            Some(last) if last.1 >= *start => last.1 = last.1.max(end),
            _ => owned.push((*start, end)),
        }
    }
    let owner = |at: u64| runs[runs.partition_point(|run| run.0 <= at).saturating_sub(1)].2;
    let free = minus(&owned, used).into_iter().map(|row| Finding::Free { extent: extent(row), ino: owner(row.0) });
    let leaked = minus(used, &owned).into_iter().map(|row| Finding::Leaked { extent: extent(row) });
    free.chain(leaked).collect()
}

/// What is in the first rows and not in the second. Rows are in order, none over another.
fn minus(rows: &[(u64, u64)], without: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut left = Vec::new();
    let mut skip = 0;
    for (start, end) in rows {
        let mut at = *start;
        while without.get(skip).is_some_and(|row| row.1 <= at) {
            skip += 1;
        }
        for (from, to) in without[skip..].iter().take_while(|row| row.0 < *end) {
            if *from > at {
                left.push((at, *from));
            }
            at = at.max(*to);
        }
        if at < *end {
            left.push((at, *end));
        }
    }
    left
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn rows_minus_rows() {
        assert_eq!(minus(&[(0, 10), (20, 30)], &[(2, 4), (8, 22), (29, 40)]), [(0, 2), (4, 8), (22, 29)]);
        assert_eq!(minus(&[(5, 6)], &[]), [(5, 6)]);
        assert_eq!(minus(&[(0, 4), (4, 8)], &[(0, 8)]), []);
    }
}
