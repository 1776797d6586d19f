//! Puts right what [`super::check`] finds, without giving away what can still be read.
//!
//! Each step is one batch, so a crash leaves an image that can be repaired again. What belongs nowhere any more goes to the
//! directory `lost+found`. One step may bring the next one to light, so it goes in rounds until nothing is found, or nothing of
//! what is found can be mended.

mod blocks;
mod found;
mod names;

use std::collections::{HashMap, HashSet};

use super::check::{self, CheckReport, Finding};
use super::core::{FsCore, ROOT};
use super::error::{Error, Result};
use super::key::{self, FileItem, KeyPrefix};
use super::record::{self, FileKind, NameValue, Record, RecordBody};
use super::relocate::RecordPlace;
use super::scrub::BadBlocks;
use super::settings::FsSettings;
use super::time::Timestamp;
use crate::{Batch, ScanStep, Store, TreeId};

/// More rounds than any damage needs; a forged image could want them for ever.
const ROUNDS: usize = 64;

/// What was done about a finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RepairAction {
    /// The finding that was acted on.
    pub finding: Finding,
    /// What the repair did about it.
    pub done: String,
}

struct Repair {
    core: FsCore,
    now: Timestamp,
    /// By number: what was located for this round.
    places: HashMap<u64, Vec<RecordPlace>>,
    /// Files whose items were dealt with in this round.
    done: HashSet<u64>,
    /// Named in this round.
    names: HashSet<Vec<u8>>,
}

/// Mends what can be mended; returns the store, what is left, and tells each step.
///
/// # Errors
/// The store's; no space.
pub fn repair(store: Store, on_repair: &mut dyn FnMut(RepairAction)) -> Result<(Store, CheckReport)> {
    let now = Timestamp::now();
    ground(&store, now)?;
    let core = FsCore::new(store, FsSettings::default())?;
    let mut repair = Repair { core, now, places: HashMap::new(), done: HashSet::new(), names: HashSet::new() };
    let mut report = check::check(&repair.core.store)?;
    for _ in 0..ROUNDS {
        if report.findings.is_empty() || repair.round(&report, on_repair)? == 0 {
            break;
        }
        // What was freed is free for the next round.
        repair.core.store.sync(repair.core.last())?;
        report = check::check(&repair.core.store)?;
    }
    Ok((repair.core.store, report))
}

/// Makes what lies on the device count, where it is not what was written: reading it is no error any more. Returns how many rows of
/// blocks that were. What the files had there is lost then, unless only the checksum was wrong.
///
/// # Errors
/// The store's.
pub fn accept_data(store: Store, bad: &[BadBlocks]) -> Result<(Store, usize)> {
    let core = FsCore::new(store, FsSettings::default())?;
    let mut repair = Repair { core, now: Timestamp::now(), places: HashMap::new(), done: HashSet::new(), names: HashSet::new() };
    let mut accepted = 0;
    for bad in bad {
        // Each changes the record that the next one looks at.
        repair.locate(&[Finding::Blocks { ino: bad.ino, says: 0, are: 0 }])?;
        accepted += usize::from(repair.accept(bad)?);
    }
    repair.core.store.sync(repair.core.last())?;
    Ok((repair.core.store, accepted))
}

/// The top directory, and numbers for new files, without which nothing can be done.
fn ground(store: &Store, now: Timestamp) -> Result<()> {
    let mut most = ROOT;
    let mut see = |ino: u64| most = most.max(if ino < record::INO_END { ino } else { 0 });
    store.scan(TreeId::Names, &[], &[0xff; 16], &mut |_, value| {
        if let Ok(value) = NameValue::parse(value) {
            see(value.ino());
        }
        ScanStep::Go
    })?;
    store.scan(TreeId::Files, &[], &[0xff; 18], &mut |key, _| {
        if let Some((ino, ..)) = key::file_parts(key) {
            see(ino);
        }
        ScanStep::Go
    })?;
    let (mut batch, mut value) = (Batch::new(), Vec::new());
    let numbers = key::file(0, FileItem::Numbers, 0);
    let next = if store.get(TreeId::Files, &numbers, &mut value)? { value[..].try_into().ok().map(u64::from_le_bytes) } else { None };
    if next.is_none_or(|next| next <= most || next >= record::INO_END) {
        batch.put(TreeId::Files, &numbers, &(most + 1).to_le_bytes());
    }
    let top = key::file(ROOT, FileItem::Record, 0);
    let there = store.get(TreeId::Files, &top, &mut value)?;
    let right = Record::parse(&value).is_ok_and(|record| record.ino == ROOT && record.kind == FileKind::Dir && !record.zone);
    if !there || !right {
        let kept = Record::mend(&value).filter(|record| record.kind == FileKind::Dir);
        let mut record = kept.unwrap_or_else(|| Record::new(FileKind::Dir, ROOT, 0o755, (0, 0), now));
        (record.ino, record.zone) = (ROOT, false);
        batch.put(TreeId::Files, &top, &record.bytes());
    }
    if batch.is_empty() {
        return Ok(());
    }
    let lsn = store.apply(batch)?;
    Ok(store.sync(lsn)?)
}

/// Findings are mended in this order, and looked for anew when something was: a value that can be read again explains others.
fn phase(finding: &Finding) -> u8 {
    match finding {
        Finding::Key { .. } | Finding::Value { .. } => 0,
        Finding::Twice { .. } | Finding::Number { .. } | Finding::Missing { .. } => 1,
        Finding::Stray { .. } => 2,
        Finding::Lost { .. } => 3,
        Finding::Links { .. } | Finding::Blocks { .. } => 4,
        Finding::Shared { .. } | Finding::Free { .. } => 5,
        Finding::Leaked { .. } => 6,
    }
}
const PHASES: u8 = 7;

impl Repair {
    /// How many findings were mended.
    fn round(&mut self, report: &CheckReport, on_repair: &mut dyn FnMut(RepairAction)) -> Result<u64> {
        self.locate(&report.findings)?;
        self.done.clear();
        self.names.clear();
        for phase_now in 0..PHASES {
            let mut mended = 0;
            // Blocks of something that nobody could make sense of are left alone.
            if phase_now == PHASES - 1 && report.findings.iter().any(|finding| phase(finding) != phase_now) {
                break;
            }
            for finding in report.findings.iter().filter(|finding| phase(finding) == phase_now) {
                if let Some(done) = self.mend(finding, report)? {
                    mended += 1;
                    on_repair(RepairAction { finding: finding.clone(), done });
                }
            }
            if mended > 0 {
                return Ok(mended);
            }
        }
        Ok(0)
    }

    fn mend(&mut self, finding: &Finding, report: &CheckReport) -> Result<Option<String>> {
        match finding {
            Finding::Key { tree: TreeId::Names, key } => self.adopt_name(key),
            Finding::Key { tree: TreeId::Files, key } => self.adopt_item(key),
            Finding::Value { tree, key, .. } => self.mend_value(*tree, key),
            Finding::Lost { begin, dir, .. } => self.lost(begin, *dir, report),
            Finding::Twice { ino } => self.twice(*ino),
            // Mended before the round began, if it can be.
            Finding::Number { .. } => {
                ground(&self.core.store, self.now)?;
                Ok(Some("numbers of new files begin behind it".to_owned()))
            }
            Finding::Links { ino, are, .. } => self.set_links(*ino, *are),
            Finding::Blocks { ino, are, .. } => self.set_blocks(*ino, *are),
            Finding::Stray { ino, what } => self.stray(*ino, *what),
            Finding::Missing { ino, what } => self.missing(*ino, *what),
            Finding::Shared { extent, files } => self.part_shared(*extent, *files),
            Finding::Free { extent, ino } => self.part_free(*extent, *ino),
            Finding::Leaked { extent } => self.free_leaked(*extent),
        }
    }

    /// Finds the records of all files that something is wrong with.
    fn locate(&mut self, findings: &[Finding]) -> Result<()> {
        let mut wanted: HashSet<u64> = HashSet::new();
        for finding in findings {
            match finding {
                Finding::Twice { ino } | Finding::Links { ino, .. } | Finding::Blocks { ino, .. } => drop(wanted.insert(*ino)),
                Finding::Stray { ino, .. } | Finding::Missing { ino, .. } | Finding::Free { ino, .. } => drop(wanted.insert(*ino)),
                Finding::Shared { files, .. } => wanted.extend(files),
                Finding::Lost { dir, begin, .. } => wanted.extend(dir.or_else(|| names::zone(begin))),
                _ => {}
            }
        }
        self.places.clear();
        let places = &mut self.places;
        let mut take = |tree: TreeId, key: &[u8], record: Record| {
            if wanted.contains(&record.ino) {
                places.entry(record.ino).or_default().push((tree, key.to_vec(), record));
            }
        };
        self.core.store.scan(TreeId::Files, &[], &[0xff; 18], &mut |key, value| {
            if let (Some((_, FileItem::Record, _)), Ok(record)) = (key::file_parts(key), Record::parse(value)) {
                take(TreeId::Files, key, record);
            }
            ScanStep::Go
        })?;
        self.core.store.scan(TreeId::Names, &[], &[0xff; 16], &mut |key, value| {
            if let (true, Ok(NameValue::Here(record))) = (key::KeyParts::of(key).is_some(), NameValue::parse(value)) {
                take(TreeId::Names, key, record);
            }
            ScanStep::Go
        })?;
        Ok(())
    }

    /// Where a file's record is, if it is still as it was located: what one step changes, the next round sees.
    fn place(&self, ino: u64) -> Result<Option<RecordPlace>> {
        let Some((tree, key, record)) = self.places.get(&ino).and_then(|places| places.first()) else { return Ok(None) };
        let now = self.core.get(*tree, key)?;
        Ok((now.as_deref() == Some(&record.bytes())).then(|| (*tree, key.clone(), record.clone())))
    }

    /// What can be kept of a record, with a new number if it has none.
    fn mended(&self, bytes: &[u8]) -> Result<Option<Record>> {
        let mut record = Record::mend(bytes);
        if let Some(record) = record.as_mut().filter(|record| record.ino == 0) {
            record.ino = self.core.number()?;
        }
        Ok(record)
    }

    fn apply(&self, batch: Batch) -> Result<()> {
        self.core.apply(batch).map(drop)
    }

    /// What entries of `lost+found` begin with; made if it is not there.
    fn lost_found(&self) -> Result<KeyPrefix> {
        for n in 0..1000_u32 {
            let name = if n == 0 { "lost+found".to_owned() } else { format!("lost+found.{n}") };
            let enc = KeyPrefix::root().below(name.as_bytes());
            match self.core.entry_at(&KeyPrefix::root().entry(name.as_bytes())) {
                Ok(Some(NameValue::Here(record))) if record.kind == FileKind::Dir => {
                    return Ok(if record.zone { KeyPrefix::zone(record.ino) } else { enc });
                }
                Ok(None) => {
                    let record = Record::new(FileKind::Dir, self.core.number()?, 0o700, (0, 0), self.now);
                    let mut batch = Batch::new();
                    batch.put(TreeId::Names, &KeyPrefix::root().entry(name.as_bytes()), &record.bytes());
                    self.apply(batch)?;
                    return Ok(enc);
                }
                Ok(Some(_)) | Err(Error::Malformed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Malformed { ino: 0, what: "no name is left for lost+found" })
    }

    /// A free name in `lost+found`, with what is known of the old one.
    fn lost_name(&mut self, ino: u64, name: &[u8]) -> Result<(Vec<u8>, String)> {
        let enc = self.lost_found()?;
        for n in 0..u64::MAX {
            let again = if n == 0 { String::new() } else { format!(".{n}") };
            let mut new = format!("#{ino}{again}").into_bytes();
            if !name.is_empty() {
                new.push(b'-');
                new.extend_from_slice(&name[..name.len().min(super::NAME_MAX - new.len())]);
            }
            let key = enc.entry(&new);
            if self.core.get(TreeId::Names, &key)?.is_none() && self.names.insert(key.clone()) {
                return Ok((key, format!("lost+found/{}", String::from_utf8_lossy(&new))));
            }
        }
        unreachable!("some name is free")
    }
}

/// A record for a file of which only its blocks are known.
fn bare(ino: u64, blocks: u64, end: u64, now: Timestamp) -> Record {
    let mut record = Record::new(FileKind::File, ino, 0o600, (0, 0), now);
    (record.size, record.blocks, record.body) = (end.min(super::BLOCKS_MAX) * crate::BLOCK_BYTES as u64, blocks, RecordBody::Items);
    record
}

fn link(record: &Record) -> [u8; 16] {
    record::link(record.ino, record.kind)
}
