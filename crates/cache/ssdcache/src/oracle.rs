// long: the model of the whole cache and the random test that compares them.
//! The metadata on a device that loses power, against a plain map of versions.
//!
//! Or whose leader dies, at any write and at any store to the map that others see, and leaves what it wrote with the device,
//! flushed or not. File 0 is the cache's own.
//!
//! A page's bytes are its version. The model knows the versions a reader may see: from the one that the last flush of its file
//! covered to the latest; exactly the latest if it was written since the last crash. Below is never lost, which is the
//! hardest for the cache: what it holds may be old at once. A run is replayed with SEED=n.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use shm::{PageSize, Region};

use crate::shared::death;
use crate::*;

const FILES: u64 = 3;
const PAGES: u64 = 40;
const SHAPE: Shape = Shape { segment_pages: 16, segments: 8 };
const UUID: [u8; 16] = [9; 16];
const SECTOR: usize = 512;

pub(crate) fn bytes_of(version: u64, key: FileKey, page: u64) -> Page {
    let mut bytes = [0; PAGE_BYTES];
    for chunk in bytes.chunks_mut(32) {
        for (to, value) in chunk.chunks_mut(8).zip([version, key.0, page, !version]) {
            to.copy_from_slice(&value.to_le_bytes());
        }
    }
    bytes
}

fn version_of(bytes: &Page, key: FileKey, page: u64) -> u64 {
    let version = u64::from_le_bytes(bytes[..8].try_into().expect("eight"));
    assert!(*bytes == bytes_of(version, key, page), "a page of another name, or of two versions");
    version
}

/// Pages on the medium, and written but not flushed.
pub(crate) struct Disk {
    pub(crate) media: Vec<Page>,
    pending: Vec<(u64, Page)>,
}

impl Disk {
    pub(crate) fn new(pages: u64) -> Disk {
        Disk { media: vec![[0; PAGE_BYTES]; pages as usize], pending: Vec::new() }
    }

    pub(crate) fn write(&mut self, at: DevicePage, bytes: &Page) {
        self.pending.push((at.0, *bytes));
    }

    pub(crate) fn flush(&mut self) {
        for (at, bytes) in self.pending.drain(..) {
            self.media[at as usize] = bytes;
        }
    }

    fn read(&self, at: DevicePage) -> Page {
        let pending = self.pending.iter().rev().find(|(other, _)| *other == at.0);
        pending.map_or(self.media[at.0 as usize], |(_, bytes)| *bytes)
    }

    /// Power goes: none, all, the first, or any of the writes arrive, by sectors.
    fn cut(&mut self, rng: &mut fastrand::Rng) {
        let kind = rng.u8(..5);
        let (first, share) = (rng.usize(..=self.pending.len()), rng.f64());
        for (n, (at, bytes)) in std::mem::take(&mut self.pending).into_iter().enumerate() {
            let whole = match kind {
                0 => false,
                1 => true,
                2 => n < first,
                _ => rng.f64() < share,
            };
            let torn = kind == 4 || (kind == 2 && n == first);
            for (to, from) in self.media[at as usize].chunks_mut(SECTOR).zip(bytes.chunks(SECTOR)) {
                if if torn { rng.bool() } else { whole } {
                    to.copy_from_slice(from);
                }
            }
        }
    }
}

#[derive(Clone, Copy, Default, Debug)]
struct KnownSegment {
    floor: u64,
    latest: u64,
    /// Written since the last crash.
    fresh: bool,
}

type PageName = (u64, u64);
struct Crash;

struct TestWorld {
    rng: fastrand::Rng,
    disk: Disk,
    cache: SsdCache,
    below: BTreeMap<PageName, u64>,
    model: BTreeMap<PageName, KnownSegment>,
    /// Bytes of the open batch and of those not written yet, by place.
    held: Vec<(DevicePage, Page)>,
    sealed: Vec<(Stamp, Vec<(DevicePage, Page)>)>,
    /// Bytes that were written, or not, since the last flush.
    ended: Vec<(DevicePage, Page)>,
    /// What is being put: it is in a marked frame, too.
    putting: Option<PageName>,
    region: Arc<Region>,
    view: View,
    numbers: Vec<(FileKey, u32)>,
    fuel: u32,
    kept: (u64, u64),
    failures: u64,
}

/// The first steps of a leader, up to its superblock, which is not flushed yet.
fn begin(disk: &mut Disk, region: &Arc<Region>, held: &[(FileKey, u32)]) -> SsdCache {
    let opened = recover(SHAPE.device_pages(), Some(UUID), 8, Some((region, 64)), held, |wanted, each| {
        wanted.iter().enumerate().for_each(|(n, at)| each(n, &disk.read(*at)));
    });
    let (mut cache, found) = opened.expect("a superblock is whole at any time");
    assert_eq!((found.damaged, found.suspect.len(), found.crowded), (0, 0, 0), "a power cut is no damage");
    let mut page = [0; PAGE_BYTES];
    let at = cache.superblock(&mut page);
    disk.write(at, &page);
    cache
}

fn open(disk: &mut Disk, region: &Arc<Region>, held: &[(FileKey, u32)]) -> SsdCache {
    let mut cache = begin(disk, region, held);
    disk.flush();
    cache.superblock_written();
    cache
}

impl TestWorld {
    fn new(seed: u64) -> TestWorld {
        let mut disk = Disk::new(SHAPE.device_pages());
        disk.media[..2].copy_from_slice(&SsdCache::format(UUID, SHAPE));
        let bytes = 64 + shared_bytes(SHAPE);
        let region = Arc::new(Region::private(bytes, PageSize::Small).expect("memory"));
        format_shared(&region, 64, SHAPE);
        let view = View::attach(&region, 64, bytes - 64).expect("formatted");
        assert_eq!(view.lookup(0, FileKey(0), PageIndex(0)), ViewLookup::Unsure, "nobody has published");
        let mut cache = open(&mut disk, &region, &[]);
        let numbers = (0..FILES).rev().map(|file| (FileKey(file), cache.hold(FileKey(file)).expect("room"))).collect();
        TestWorld {
            rng: fastrand::Rng::with_seed(seed),
            disk,
            cache,
            below: BTreeMap::new(),
            model: BTreeMap::new(),
            held: Vec::new(),
            sealed: Vec::new(),
            ended: Vec::new(),
            putting: None,
            region,
            view,
            numbers,
            fuel: 0,
            kept: (0, 0),
            failures: 0,
        }
    }

    /// Power may go here.
    fn step(&mut self) -> Result<(), Crash> {
        self.fuel = self.fuel.saturating_sub(1);
        if self.fuel == 0 { Err(Crash) } else { Ok(()) }
    }

    fn seal(&mut self) -> Result<(), Crash> {
        let mut summary = [0; PAGE_BYTES];
        if let Some(sealed) = self.cache.seal(&mut summary) {
            let mut writes = std::mem::take(&mut self.held);
            assert_eq!(writes.len(), sealed.pages as usize);
            writes.insert(0, (sealed.at, summary));
            assert!(writes.iter().enumerate().all(|(n, (at, _))| at.0 == sealed.at.0 + n as u64), "one piece");
            self.sealed.push((sealed.stamp, writes));
        }
        self.step()
    }

    fn write_out(&mut self) -> Result<(), Crash> {
        while !self.sealed.is_empty() {
            let (stamp, writes) = self.sealed.swap_remove(self.rng.usize(..self.sealed.len()));
            let fails = self.failures > 0 && self.rng.u64(..self.failures) == 0;
            for (at, bytes) in writes {
                if !fails || self.rng.bool() {
                    self.disk.write(at, &bytes);
                }
                self.ended.push((at, bytes));
            }
            self.cache.ended(stamp, !fails);
            self.step()?;
        }
        Ok(())
    }

    /// Seals, writes and flushes; what was lost goes below instead.
    fn flush(&mut self) -> Result<(), Crash> {
        loop {
            self.seal()?;
            self.write_out()?;
            let began = self.cache.flush_begins();
            let fails = self.failures > 0 && self.rng.u64(..self.failures) == 0;
            if !fails {
                self.disk.flush();
            }
            self.step()?;
            self.cache.flush_ended(began, !fails);
            if self.cache.head.failed.is_none() {
                self.ended.clear();
                return Ok(());
            }
            let (mut dropped, mut lost) = (Vec::new(), Vec::new());
            self.cache.cut(&mut dropped, &mut lost).expect("all have ended");
            self.failures += 20;
            for item in &lost {
                let name = (item.key.0, item.page.0);
                let writes = self.held.iter().chain(self.sealed.iter().flat_map(|(_, writes)| writes)).chain(&self.ended);
                let (_, bytes) = writes.rev().find(|(at, _)| *at == item.at).expect("kept until it is durable");
                let version = version_of(bytes, item.key, item.page.0);
                let old = self.below.get(&name).copied().unwrap_or(0);
                self.below.insert(name, version.max(old));
            }
            self.held.clear();
            self.ended.clear();
            for (key, pages) in dropped {
                self.drop_pages(key, pages)?;
            }
            for item in lost {
                self.drop_pages(item.key, item.page.0..item.page.0 + 1)?;
            }
        }
    }

    fn resolve(&mut self, refused: CacheError) -> Result<(), Crash> {
        match refused {
            CacheError::Seal => {
                self.seal()?;
                if self.rng.bool() { self.write_out() } else { Ok(()) }
            }
            CacheError::Flush | CacheError::Failed => self.flush(),
            CacheError::Superblock => {
                let mut page = [0; PAGE_BYTES];
                let at = self.cache.superblock(&mut page);
                self.disk.write(at, &page);
                self.step()?;
                self.disk.flush();
                self.step()?;
                self.cache.superblock_written();
                Ok(())
            }
            CacheError::Reclaim => self.reclaim(),
            other => panic!("{other}"),
        }
    }

    fn read_item(&self, item: &Item) -> Option<u64> {
        let writes = self.sealed.iter().flat_map(|(_, writes)| writes);
        let bytes = self.held.iter().chain(writes).chain(&self.ended).find(|(at, _)| *at == item.at);
        let bytes = bytes.map_or_else(|| self.disk.read(item.at), |(_, bytes)| *bytes);
        (self.cache.verify(item, &bytes) == VerifyResult::Good).then(|| version_of(&bytes, item.key, item.page.0))
    }

    fn write_back(&mut self, scope: CollectScope) -> Result<(), Crash> {
        let mut dirty = Vec::new();
        self.cache.collect_dirty(scope, 5, &mut dirty);
        assert!(dirty.is_sorted());
        for item in dirty {
            let version = self.read_item(&item).expect("a durable dirty page is whole");
            assert!(item.key != FileKey::OWN || scope == CollectScope::File(FileKey::OWN));
            self.below.insert((item.key.0, item.page.0), version);
            self.step()?;
            assert!(self.cache.written_back(&item));
        }
        Ok(())
    }

    fn reclaim(&mut self) -> Result<(), Crash> {
        loop {
            match self.cache.reclaim() {
                Ok(_) => return self.step(),
                Err(CacheError::Dirty) => {
                    self.reinsert_own()?;
                    self.write_back(CollectScope::Oldest(1))?;
                }
                Err(refused) => self.resolve(refused)?,
            }
        }
    }

    fn reinsert_hot(&mut self) -> Result<(), Crash> {
        let mut hot = Vec::new();
        self.cache.collect_hot(4, &mut hot);
        for item in hot {
            let Some(version) = self.read_item(&item) else { continue };
            let bytes = bytes_of(version, item.key, item.page.0);
            match self.cache.reinsert(&item, &bytes) {
                Ok(put) => self.held.push((put.at, bytes)),
                Err(_) => break,
            }
            self.step()?;
        }
        Ok(())
    }

    fn reinsert_own(&mut self) -> Result<(), Crash> {
        let mut own = Vec::new();
        self.cache.collect_own(&mut own);
        for item in own {
            assert_eq!(item.key, FileKey::OWN);
            if !self.cache.is_current(&item) {
                continue;
            }
            let version = self.read_item(&item).expect("a page of our own is whole");
            let bytes = bytes_of(version, item.key, item.page.0);
            loop {
                match self.cache.reinsert(&item, &bytes) {
                    Ok(put) => break self.held.push((put.at, bytes)),
                    Err(CacheError::Changed) => break,
                    Err(CacheError::Reclaim) => panic!("no place for a page of our own"),
                    Err(refused) => self.resolve(refused)?,
                }
            }
            self.step()?;
        }
        Ok(())
    }

    fn put(&mut self, name: PageName, version: PageVersion, number: u64) -> Result<(), Crash> {
        let key = FileKey(name.0);
        let bytes = bytes_of(number, key, name.1);
        self.putting = Some(name);
        loop {
            match self.cache.put(key, PageIndex(name.1), version, &bytes) {
                Ok(put) => {
                    self.held.push((put.at, bytes));
                    return self.step();
                }
                Err(refused) => self.resolve(refused)?,
            }
        }
    }

    /// Before the backing file becomes newer than the cache: to make room for the drop could write an old version back over it.
    fn prepare(&mut self) -> Result<(), Crash> {
        while let Err(refused) = self.cache.prepare(1) {
            self.resolve(refused)?;
        }
        self.step()
    }

    fn drop_pages(&mut self, key: FileKey, pages: std::ops::Range<u64>) -> Result<(), Crash> {
        loop {
            match self.cache.invalidate(key, pages.clone()) {
                Ok(_) => return self.step(),
                Err(refused) => self.resolve(refused)?,
            }
        }
    }

    fn next_version(&mut self, name: PageName) -> u64 {
        let known = self.model.entry(name).or_default();
        (known.latest, known.fresh) = (known.latest + 1, true);
        known.latest
    }

    fn read(&self, name: PageName) -> u64 {
        let key = FileKey(name.0);
        let below = self.below.get(&name).copied().unwrap_or(0);
        match self.cache.lookup(key, PageIndex(name.1)) {
            LookupResult::Miss => below,
            LookupResult::Hit(item) | LookupResult::Pending(item) => match self.read_item(&item) {
                Some(version) => version,
                None => {
                    assert!(!self.cache.is_dirty(key, PageIndex(name.1)), "a dirty page was lost");
                    below
                }
            },
        }
    }

    fn check(&self, name: PageName) {
        let known = self.model.get(&name).copied().unwrap_or_default();
        let version = self.read(name);
        let right = if known.fresh { version == known.latest } else { (known.floor..=known.latest).contains(&version) };
        assert!(right, "{name:?}: version {version} of {known:?}");
        // Others see the same, but for what is not all written.
        let seen = self.see(name);
        match self.cache.lookup(FileKey(name.0), PageIndex(name.1)) {
            LookupResult::Hit(item) => match seen {
                ViewLookup::Hit(found) => assert_eq!(found.item, item),
                ViewLookup::Miss => assert!(self.cache.place(item.slot).1 >= self.cache.head.written_end()),
                ViewLookup::Unsure => panic!("nobody exchanges the map"),
            },
            _ => assert_eq!(seen, ViewLookup::Miss),
        }
    }

    fn see(&self, name: PageName) -> ViewLookup {
        let number = self.numbers.iter().find(|(key, _)| key.0 == name.0).expect("held").1;
        self.view.lookup(number, FileKey(name.0), PageIndex(name.1))
    }

    /// What others read while nobody leads: frames, the map, below.
    fn check_views(&self, may_be_unsure: bool) {
        let writes = self.held.iter().chain(self.sealed.iter().flat_map(|(_, writes)| writes));
        let name_of = |bytes: &Page| {
            let word = |n: usize| u64::from_le_bytes(bytes[8 * n..8 * n + 8].try_into().expect("eight"));
            (word(1), word(2))
        };
        let framed: BTreeSet<PageName> = writes.chain(&self.ended).map(|(_, bytes)| name_of(bytes)).chain(self.putting).collect();
        for name in (0..FILES).flat_map(|file| (0..PAGES).map(move |page| (file, page))) {
            let version = match self.see(name) {
                ViewLookup::Hit(found) => {
                    let bytes = self.disk.read(found.item.at);
                    assert_eq!(self.view.verify(&found, &bytes), VerifyResult::Good, "{name:?}");
                    version_of(&bytes, FileKey(name.0), name.1)
                }
                ViewLookup::Miss if name.0 == FileKey::OWN.0 || framed.contains(&name) => continue,
                ViewLookup::Miss => self.below.get(&name).copied().unwrap_or(0),
                ViewLookup::Unsure => {
                    assert!(may_be_unsure);
                    continue;
                }
            };
            let known = self.model.get(&name).copied().unwrap_or_default();
            assert!((known.floor..=known.latest).contains(&version), "{name:?}: others see {version} of {known:?}");
        }
    }

    fn act(&mut self) -> Result<(), Crash> {
        self.putting = None;
        let name = (self.rng.u64(..FILES), self.rng.u64(..PAGES));
        let key = FileKey(name.0);
        match self.rng.u8(..100) {
            0..30 => {
                let version = self.next_version(name);
                self.put(name, PageVersion::Dirty, version)?;
            }
            30..50 if self.cache.lookup(key, PageIndex(name.1)) == LookupResult::Miss => {
                let version = self.read(name);
                self.put(name, PageVersion::Clean, version)?;
            }
            50..60 => {
                self.prepare()?;
                let version = self.next_version(name);
                self.below.insert(name, version);
                self.drop_pages(key, name.1..name.1 + 1)?;
            }
            60..62 => {
                let end = if self.rng.bool() { u64::MAX } else { name.1 + self.rng.u64(1..8) };
                self.prepare()?;
                for page in name.1..end.min(PAGES) {
                    let version = self.next_version((name.0, page));
                    self.below.insert((name.0, page), version);
                }
                self.drop_pages(key, name.1..end)?;
            }
            62..68 => {
                self.flush()?;
                for (_, known) in self.model.range_mut((name.0, 0)..(name.0 + 1, 0)).filter(|(_, known)| known.fresh) {
                    known.floor = known.latest;
                }
            }
            68..72 => {
                let scope = if self.rng.bool() { CollectScope::File(key) } else { CollectScope::All };
                self.write_back(scope)?;
            }
            72..76 => self.reinsert_hot()?,
            76..79 => self.seal()?,
            79..82 => self.write_out()?,
            82..83 => _ = self.cache.reclaim(),
            _ => {
                if let LookupResult::Hit(item) = self.cache.lookup(key, PageIndex(name.1)) {
                    self.cache.touch(&item);
                }
                self.check(name);
            }
        }
        Ok(())
    }

    /// The clean pages that are durable.
    fn clean(&self) -> Vec<PageName> {
        let head = &self.cache.head;
        let is_durable = |item: &Item| {
            let (place, position) = self.cache.place(item.slot);
            (place != self.cache.place_of(head.seq) || position < head.durable_end()) && self.read_item(item).is_some()
        };
        let names = (0..FILES).flat_map(|file| (0..PAGES).map(move |page| (file, page)));
        let is_clean = |(file, page): &PageName| {
            let (key, page) = (FileKey(*file), PageIndex(*page));
            matches!(self.cache.lookup(key, page), LookupResult::Hit(item) if is_durable(&item)) && !self.cache.is_dirty(key, page)
        };
        names.filter(is_clean).collect()
    }

    fn crash(&mut self) {
        let before = self.clean();
        let power = self.rng.bool();
        if power {
            self.disk.cut(&mut self.rng);
        } else {
            self.die();
        }
        self.take_over(power);
        // Till now they were in frames.
        self.held.clear();
        self.sealed.clear();
        self.ended.clear();
        self.model.values_mut().for_each(|known| known.fresh = false);
        // A page whose mark of write-back was lost is dirty again, and kept.
        let lookup = |name: &PageName| self.cache.lookup(FileKey(name.0), PageIndex(name.1));
        let is_here = |name: &&PageName| matches!(lookup(name), LookupResult::Hit(item) if self.read_item(&item).is_some());
        self.kept = (self.kept.0 + before.iter().filter(is_here).count() as u64, self.kept.1 + before.len() as u64);
        (0..FILES).for_each(|file| (0..PAGES).for_each(|page| self.check((file, page))));
    }

    /// The leader dies, perhaps in the middle of a write; all that it wrote can be read.
    fn die(&mut self) {
        if self.rng.bool()
            && let Some((_, writes)) = self.sealed.pop()
        {
            for (at, bytes) in &writes {
                let mut torn = self.disk.read(*at);
                for (to, from) in torn.chunks_mut(SECTOR).zip(bytes.chunks(SECTOR)).filter(|_| self.rng.u8(..8) > 0) {
                    to.copy_from_slice(from);
                }
                self.disk.write(*at, &torn);
            }
            self.sealed.push((Stamp::default(), writes));
        }
        self.check_views(false);
    }

    /// The next leader, and the next if it dies too; or the power goes meanwhile.
    fn take_over(&mut self, mut power: bool) {
        loop {
            if self.rng.u8(..3) == 0 {
                death::after(self.rng.u32(1..600));
            }
            let begun = catch_unwind(AssertUnwindSafe(|| begin(&mut self.disk, &self.region, &self.numbers)));
            death::after(0);
            match begun {
                Ok(cache) if self.rng.u8(..4) > 0 => {
                    self.cache = cache;
                    break;
                }
                Ok(_) => {}
                Err(died) if died.is::<death::LeaderDied>() => {}
                Err(wrong) => resume_unwind(wrong),
            }
            if self.rng.bool() {
                self.disk.cut(&mut self.rng);
                power = true;
            } else if !power {
                self.check_views(true);
            }
        }
        self.disk.flush();
        self.cache.superblock_written();
        for (key, number) in &self.numbers {
            assert_eq!(self.cache.hold(*key), Some(*number), "a file that is open keeps its number");
        }
        // Again: recovery changes nothing but the superblock.
        let first = self.cache.len();
        self.cache = open(&mut self.disk, &self.region, &self.numbers);
        assert_eq!(first, self.cache.len());
    }
}

fn run(seed: u64, crashes: u32) -> (u64, u64) {
    let mut world = TestWorld::new(seed);
    world.failures = if seed.is_multiple_of(3) { 40 } else { 0 };
    for _ in 0..crashes {
        world.fuel = world.rng.u32(1..400);
        let dies = world.rng.bool();
        death::after(if dies { world.rng.u32(1..3000) } else { 0 });
        loop {
            match catch_unwind(AssertUnwindSafe(|| world.act())) {
                Ok(Ok(())) => {}
                Ok(Err(Crash)) => break,
                Err(died) if died.is::<death::LeaderDied>() => break,
                Err(wrong) => resume_unwind(wrong),
            }
        }
        death::after(0);
        world.crash();
    }
    world.kept
}

#[test]
fn no_version_is_wrong_and_none_that_was_flushed_is_lost() {
    let full = std::env::var("FULL").is_ok_and(|full| full == "1");
    let seeds: Vec<u64> = match std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (0..if full { 3000 } else { 24 }).collect(),
    };
    let mut kept = (0, 0);
    for seed in seeds {
        let one = std::panic::catch_unwind(|| run(seed, 12)).unwrap_or_else(|_| panic!("replay with SEED={seed}"));
        kept = (kept.0 + one.0, kept.1 + one.1);
    }
    println!("clean pages kept: {} of {}", kept.0, kept.1);
    assert!(kept.0 * 100 >= kept.1 * 95, "{kept:?}");
}

/// Random 4 KiB writes in write-back mode over twice the cache, and reads of a hot tenth.
#[test]
fn figures_of_a_random_write_workload() {
    let shape = Shape { segment_pages: 512, segments: 16 };
    let mut disk = Disk::new(shape.device_pages());
    disk.media[..2].copy_from_slice(&SsdCache::format(UUID, shape));
    let (mut cache, _) = recover(shape.device_pages(), None, 8, None, &[], |wanted, each| {
        wanted.iter().enumerate().for_each(|(n, at)| each(n, &disk.media[at.0 as usize]));
    })
    .expect("fresh");
    cache.superblock(&mut [0; PAGE_BYTES]);
    cache.superblock_written();
    let (mut rng, mut summary, bytes, mut items) = (fastrand::Rng::with_seed(1), [0; PAGE_BYTES], [7; PAGE_BYTES], Vec::new());
    let flush = |cache: &mut SsdCache, summary: &mut Page| {
        if let Some(sealed) = cache.seal(summary) {
            cache.ended(sealed.stamp, true);
        }
        cache.flush_ended(cache.flush_begins(), true);
    };
    let (mut written_back, mut runs) = (0_u64, 0_u64);
    for n in 0..60_000_u64 {
        let page = PageIndex(if n.is_multiple_of(4) { rng.u64(..800) } else { rng.u64(..16_000) });
        if let LookupResult::Hit(item) = cache.lookup(FileKey(1), page) {
            cache.touch(&item);
        }
        while let Err(refused) = cache.put(FileKey(1), page, PageVersion::Dirty, &bytes) {
            match refused {
                CacheError::Seal | CacheError::Flush | CacheError::Reclaim => {
                    flush(&mut cache, &mut summary);
                    if !cache.is_full() {
                        continue;
                    }
                    cache.collect_dirty(CollectScope::Oldest(4), usize::MAX, &mut items);
                    runs += items.iter().enumerate().filter(|(n, item)| *n == 0 || items[n - 1].page.0 + 1 != item.page.0).count() as u64;
                    for marks in items.chunks(126) {
                        written_back += marks.iter().filter(|item| cache.written_back(item)).count() as u64;
                        flush(&mut cache, &mut summary);
                    }
                    assert!(cache.reclaim().is_ok());
                }
                other => panic!("{other}"),
            }
        }
    }
    let stats = cache.stats();
    let metadata = stats.summaries as f64 / (stats.put + stats.reinserted) as f64;
    println!("write amplification {:.4}, metadata {:.2} % of data", stats.write_amplification(), metadata * 100.0);
    println!("{written_back} pages written back in {runs} pieces, of {} writes; {stats:?}", stats.put);
    assert!(stats.write_amplification() < 1.03 && metadata < 0.02);
    // Memory, for 4 GiB to 1 TiB: per slot, and a hundredth of the slots are summaries.
    for segments in [2048, 65_536, 524_000] {
        let shape = Shape { segment_pages: 512, segments };
        let slots = shape.slots();
        let ghosts = Admission::memory_bytes(&AdmissionLimits::new(slots));
        let per_page = (SsdCache::memory_bytes(shape, slots / 512) + ghosts) as f64 / (f64::from(slots) * 126.0 / 127.0);
        println!("{per_page:.2} bytes of memory for each cached page of {slots} slots");
        assert!(per_page <= 16.0);
    }
}
