//! Looking over all of an SSD: the superblocks, the log, and the bytes of each page.

use std::path::Path;

use std::collections::HashMap;
use std::path::PathBuf;

use datapath::engine::{CATALOGUE, Entry};
use serde::Serialize;
use ssdcache::{FileKey, Item, PAGE_BYTES, PageVersion, SsdCache, VerifyResult};

use super::disk::Disk;
use super::inspect::{self, SsdContents};
use super::{Progress, log};
use crate::error::Error;

/// Something that is not as it should be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// `damaged` (the cache gives less), `lost` (a file lost something that is nowhere else), `limit`.
    pub kind: &'static str,
    /// What was found, and where.
    pub detail: String,
    /// Whether it is put right.
    pub repaired: bool,
}

/// The result of checking a cache.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Checked {
    /// What a start of the cache finds.
    #[serde(flatten)]
    pub contents: SsdContents,
    /// Pages whose bytes were read and compared.
    pub verified_pages: u64,
    /// Files that have pages here.
    pub files: u64,
    /// What is wrong; nothing: the cache is whole.
    pub findings: Vec<Finding>,
}

/// Checks a cache that no process uses. With `repair`, damaged parts are dropped from the log.
///
/// # Errors
/// [`crate::Kind::Device`]: it is in use, no cache, or of a later version. [`crate::Kind::System`]: it cannot be written.
pub fn check(path: &Path, repair: bool, progress: Progress<'_>) -> Result<Checked, Error> {
    let disk = Disk::alone(path)?;
    let (mut cache, recovered, contents) = inspect::recover(&disk)?;
    let mut verified = Verify::default();
    verified.all(&disk, &cache, contents.pages + contents.catalogue_pages, progress);
    let Verify { bad, paths, done: verified_pages } = verified;
    let files = files(&cache);
    let mut findings = whole(&contents);
    findings.extend(bad.iter().map(|(item, version)| page(item, *version, &paths)));
    findings.extend(recovered.suspect.iter().filter(|item| item.key != CATALOGUE).map(|item| suspect(item, &paths)));
    if repair && !findings.is_empty() {
        let items: Vec<Item> = bad.iter().map(|(item, _)| *item).chain(recovered.suspect.iter().copied()).collect();
        log::repair(&disk, &mut cache, &items, contents.damaged_segments > 0)?;
        findings.iter_mut().for_each(|finding| finding.repaired = true);
    }
    Ok(Checked { contents, verified_pages, files, findings })
}

/// Files by their keys, as the catalogue has them.
type Paths = HashMap<FileKey, PathBuf>;

/// The bytes of all pages.
#[derive(Default)]
struct Verify {
    bad: Vec<(Item, PageVersion)>,
    paths: Paths,
    done: u64,
}

impl Verify {
    fn all(&mut self, disk: &Disk, cache: &SsdCache, of: u64, progress: Progress<'_>) {
        let mut page = [0; PAGE_BYTES];
        for (item, version) in cache.items() {
            let is_good = disk.read(item.at, &mut page).is_ok() && cache.verify(&item, &page) == VerifyResult::Good;
            if !is_good {
                self.bad.push((item, version));
            } else if item.key == CATALOGUE
                && let Some(entry) = Entry::decode(&page)
            {
                self.paths.insert(entry.key, entry.path);
            }
            self.done += 1;
            if self.done.is_multiple_of(256) || self.done == of {
                progress(self.done, of);
            }
        }
    }
}

fn files(cache: &SsdCache) -> u64 {
    let mut keys: Vec<u64> = cache.items().map(|(item, _)| item.key.0).filter(|key| *key != CATALOGUE.0).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.len() as u64
}

/// Of the log as a whole.
fn whole(contents: &SsdContents) -> Vec<Finding> {
    let one = |count: u64, detail: String| (count > 0).then_some(Finding { kind: "damaged", detail, repaired: false });
    let segments = one(
        contents.damaged_segments,
        format!("of {} segments something is missing: older pages were given up", contents.damaged_segments),
    );
    let reads = one(contents.failed_reads, format!("{} pages of metadata cannot be read: the device fails", contents.failed_reads));
    let crowded = one(contents.crowded_pages, format!("{} pages of files beyond the limit were given up", contents.crowded_pages));
    [segments, reads, crowded].into_iter().flatten().collect()
}

fn page(item: &Item, version: PageVersion, paths: &Paths) -> Finding {
    let (kind, what) = match version {
        PageVersion::Clean => ("damaged", "its bytes are not what was written; the file below has them"),
        PageVersion::Dirty => ("lost", "its bytes are not what was written, and it was newer than the file below"),
    };
    Finding { kind, detail: format!("{}: {what}", place(item, paths)), repaired: false }
}

fn suspect(item: &Item, paths: &Paths) -> Finding {
    let detail = format!("{}: unwritten data was discarded; a newer version may be missing", place(item, paths));
    Finding { kind: "lost", detail, repaired: false }
}

fn place(item: &Item, paths: &Paths) -> String {
    let page = item.page.0;
    if item.key == CATALOGUE {
        return format!("catalogue page {page} at page {}", item.at.0);
    }
    let name = paths.get(&item.key).map_or_else(|| format!("file {:016x}", item.key.0), |path| path.display().to_string());
    format!("{name}, bytes {} to {}, at page {}", page * PAGE_BYTES as u64, (page + 1) * PAGE_BYTES as u64, item.at.0)
}
