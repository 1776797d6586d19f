//! Making, looking over, changing and removing, on files; and what damage does.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use ssdcache::{DevicePage, FileKey, LookupResult, PAGE_BYTES, PageIndex, PageVersion};

use super::disk::Disk;
use super::log::Log;
use super::*;
use crate::Size;

const PAGE: u64 = PAGE_BYTES as u64;

fn make(path: &Path, bytes: u64) -> Result<Made, Error> {
    create(path, &Options { size: Some(Size::Bytes(bytes)), ..Options::default() }, &mut |_, _| {})
}

/// Pages 0..count of file 7, every fifth dirty, and two of the catalogue.
fn fill(path: &Path, count: u64) {
    let disk = Disk::alone(path).expect("opened");
    let (mut cache, ..) = inspect::recover(&disk).expect("a cache");
    let mut log = Log::open(&disk, &mut cache).expect("a life");
    for page in 0..2 {
        log.put(&[0xcc; PAGE_BYTES], |metadata| {
            metadata.put(datapath::engine::CATALOGUE, PageIndex(page), PageVersion::Dirty, &[0xcc; PAGE_BYTES])
        })
        .expect("put");
    }
    for page in 0..count {
        let (bytes, version) = (bytes_of(page), if page % 5 == 0 { PageVersion::Dirty } else { PageVersion::Clean });
        log.put(&bytes, |metadata| metadata.put(FileKey(7), PageIndex(page), version, &bytes)).expect("put");
    }
    log.end().expect("durable");
}

fn bytes_of(page: u64) -> [u8; PAGE_BYTES] {
    [page as u8 ^ 0x5a; PAGE_BYTES]
}

/// How many of the pages are there, each with its bytes.
fn present(path: &Path, count: u64) -> u64 {
    let disk = Disk::alone(path).expect("opened");
    let (cache, ..) = inspect::recover(&disk).expect("a cache");
    let mut page = [0; PAGE_BYTES];
    let there = (0..count).filter(|number| match cache.lookup(FileKey(7), PageIndex(*number)) {
        LookupResult::Hit(item) => {
            disk.read(item.at, &mut page).expect("read");
            assert_eq!(page, bytes_of(*number), "page {number}");
            true
        }
        _ => false,
    });
    there.count() as u64
}

fn kinds(checked: &Checked) -> Vec<&'static str> {
    checked.findings.iter().map(|finding| finding.kind).collect()
}

#[test]
fn a_new_file_has_its_blocks_its_bits_and_no_pages() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("c");
    let made = make(&path, (8 << 20) + 77).expect("made");
    assert_eq!((made.bytes, made.replaced), (8 << 20, None));
    let stat = path.metadata().expect("there");
    assert_eq!((stat.len(), stat.permissions().mode() & 0o777), (8 << 20, 0o600));
    assert!(stat.blocks() * 512 >= 8 << 20, "not preallocated");
    let contents = inspect(&path).expect("a cache");
    assert_eq!((contents.pages, contents.dirty_pages, contents.damaged_segments, contents.uuid), (0, 0, 0, made.uuid));
    assert_eq!(std::fs::read_dir(dir.path()).expect("read").count(), 1);
    remove(&path, false).expect("removed");
    assert!(!path.exists());
}

#[test]
fn what_cannot_be_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("c");
    let said = |made: Result<Made, Error>| made.expect_err("refused").to_string();
    assert!(said(make(&path, 1000)).contains("too few"));
    assert!(said(make(&path, 1 << 60)).contains("smaller --size"));
    assert!(said(create(&path, &Options::default(), &mut |_, _| {})).contains("--size"));
    assert!(said(make(&dir.path().join("none/c"), 1 << 20)).contains("create it"));
    assert!(said(make(dir.path(), 1 << 20)).contains("is a directory"));
    assert!(said(make(Path::new("/dev/null"), 1 << 20)).contains("neither a file"));
    assert_eq!(std::fs::read_dir(dir.path()).expect("read").count(), 0, "something is left");
    // Somebody's data.
    std::fs::write(&path, b"precious".repeat(100_000)).expect("written");
    assert!(said(make(&path, 1 << 20)).contains("--force"));
    assert!(inspect(&path).expect_err("no cache").to_string().contains("no cache here"));
    assert!(remove(&path, true).is_err());
    assert_eq!(std::fs::read(&path).expect("still there").len(), 800_000);
    let forced = Options { size: Some(Size::Bytes(1 << 20)), force: true, group: None };
    assert!(create(&path, &forced, &mut |_, _| {}).expect("forced").replaced.is_some());
    assert!(said(make(&path, 1 << 20)).contains("a hotshelf cache"));
}

#[test]
fn who_has_it_open_is_not_disturbed() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("c");
    make(&path, 1 << 20).expect("made");
    let user = File::open(&path).expect("opened");
    rustix::fs::flock(&user, rustix::fs::FlockOperation::LockShared).expect("locked");
    let me = format!("in use by process {}", std::process::id());
    let forced = Options { force: true, ..Options::default() };
    for said in [
        inspect(&path).expect_err("in use").to_string(),
        check(&path, true, &mut |_, _| {}).expect_err("in use").to_string(),
        resize(&path, Size::Bytes(2 << 20), &mut |_, _| {}).expect_err("in use").to_string(),
        remove(&path, true).expect_err("in use").to_string(),
        create(&path, &forced, &mut |_, _| {}).expect_err("in use").to_string(),
    ] {
        // The list of locks is read while others change it: it may not tell.
        assert!(said.contains(&me) || said.contains("is in use: "), "{said}");
    }
    drop(user);
    inspect(&path).expect("free again");
}

#[test]
fn a_making_that_was_cut_off_is_no_cache() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("c");
    make(&path, 1 << 20).expect("made");
    fill(&path, 20);
    // As `create --force` begins: what was there is gone first.
    Disk::alone(&path).expect("opened").erase().expect("erased");
    assert!(inspect(&path).expect_err("no cache").to_string().contains("no cache here"));
    make(&path, 1 << 20).expect_err("its pages are there still: not ours to overwrite");
    create(&path, &Options { force: true, ..Options::default() }, &mut |_, _| {}).expect("anew");
    assert_eq!(inspect(&path).expect("a cache").pages, 0, "pages of the one before");
}

#[test]
fn dirty_pages_are_not_thrown_away() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("c");
    make(&path, 1 << 20).expect("made");
    fill(&path, 20);
    let contents = inspect(&path).expect("a cache");
    assert_eq!((contents.pages, contents.dirty_pages, contents.catalogue_pages), (20, 4, 2));
    check_removal(&path, true).expect("it would be given up");
    assert!(check_removal(&path, false).expect_err("dirty").to_string().contains("4 pages"));
    let said = remove(&path, false).expect_err("dirty").to_string();
    assert!(said.contains("4 pages are on this SSD only") && said.contains("--discard"), "{said}");
    remove(&path, true).expect("given up");
}

#[test]
fn a_whole_cache_is_clean_and_a_damaged_page_is_found_and_dropped() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("c");
    make(&path, 4 << 20).expect("made");
    fill(&path, 300);
    let checked = check(&path, false, &mut |_, _| {}).expect("checked");
    assert_eq!((checked.findings.len(), checked.verified_pages, checked.files), (0, 302, 1));

    let at = |number: u64| {
        let disk = Disk::alone(&path).expect("opened");
        let (cache, ..) = inspect::recover(&disk).expect("a cache");
        let LookupResult::Hit(item) = cache.lookup(FileKey(7), PageIndex(number)) else { panic!("page {number} is not there") };
        item.at
    };
    let damage =
        |at: DevicePage| File::options().write(true).open(&path).expect("opened").write_all_at(b"x", at.0 * PAGE + 99).expect("damaged");
    damage(at(31));
    damage(at(50));
    let checked = check(&path, false, &mut |_, _| {}).expect("checked");
    assert_eq!(kinds(&checked), ["damaged", "lost"]);
    assert!(checked.findings[1].detail.contains("file 0000000000000007, bytes 204800 to 208896"), "{:?}", checked.findings);
    let repaired = check(&path, true, &mut |_, _| {}).expect("repaired");
    assert!(repaired.findings.iter().all(|finding| finding.repaired));
    assert_eq!(check(&path, false, &mut |_, _| {}).expect("checked").findings, []);
    assert_eq!(present(&path, 300), 298);
}

#[test]
fn a_damaged_log_gives_less_names_what_was_lost_and_can_be_repaired() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("c");
    make(&path, 4 << 20).expect("made");
    fill(&path, 300);
    // The first summary of the log: segment 1, at place 1.
    let at = (2 + u64::from(inspect(&path).expect("a cache").segment_pages)) * PAGE;
    File::options().write(true).open(&path).expect("opened").write_all_at(&[0; 64], at).expect("damaged");
    let checked = check(&path, false, &mut |_, _| {}).expect("checked");
    assert!(checked.contents.damaged_segments > 0 && kinds(&checked).contains(&"damaged"), "{checked:?}");
    check(&path, true, &mut |_, _| {}).expect("repaired");
    let after = check(&path, false, &mut |_, _| {}).expect("checked");
    assert_eq!(after.findings, [], "{after:?}");
    fill(&path, 50);
    assert_eq!(present(&path, 50), 50);
}

#[test]
fn damage_anywhere_is_an_answer_and_never_a_crash() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, seed) = (dir.path().join("c"), fastrand::u64(..));
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    make(&path, 1 << 20).expect("made");
    fill(&path, 100);
    let good = std::fs::read(&path).expect("read");
    for _ in 0..60 {
        let mut bad = good.clone();
        for _ in 0..random.usize(1..20) {
            let at = if random.bool() { random.usize(..3 * PAGE_BYTES) } else { random.usize(..bad.len()) };
            bad[at] = random.u8(..);
        }
        bad.truncate(if random.u8(..) < 30 { random.usize(..bad.len()) } else { bad.len() });
        std::fs::write(&path, bad).expect("written");
        let Ok(_) = check(&path, true, &mut |_, _| {}) else { continue };
        let after = check(&path, false, &mut |_, _| {}).expect("still a cache");
        assert_eq!(after.findings, [], "repaired");
        present(&path, 100);
    }
}

#[test]
fn another_size_keeps_what_is_cached_and_the_newest_if_not_all_fits() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("c");
    make(&path, 4 << 20).expect("made");
    fill(&path, 500);
    let planned = plan_resize(&path, Size::Bytes(16 << 20)).expect("it would fit");
    assert_eq!((planned.bytes_before, planned.bytes, planned.pages), (4 << 20, 16 << 20, 502));
    assert_eq!((path.metadata().expect("there").len(), present(&path, 500)), (4 << 20, 500));
    let bigger = resize(&path, Size::Bytes(16 << 20), &mut |_, _| {}).expect("bigger");
    assert_eq!((bigger.bytes, bigger.pages, bigger.left_out), (16 << 20, 502, 0));
    assert_eq!((path.metadata().expect("there").len(), present(&path, 500)), (16 << 20, 500));
    let before = inspect(&path).expect("a cache");
    assert_eq!((before.dirty_pages, before.catalogue_pages), (100, 2));

    let smaller = resize(&path, Size::Bytes(2 << 20), &mut |_, _| {}).expect("smaller");
    assert!(smaller.left_out > 0 && smaller.pages + smaller.left_out == 502, "{smaller:?}");
    let after = inspect(&path).expect("a cache");
    assert_eq!((after.dirty_pages, after.catalogue_pages), (100, 2));
    assert_eq!(present(&path, 500) + 2, smaller.pages);
    assert_eq!(check(&path, false, &mut |_, _| {}).expect("checked").findings, []);

    assert!(plan_resize(&path, Size::Bytes(512 << 10)).expect_err("too small").to_string().contains("100 pages"));
    let said = resize(&path, Size::Bytes(512 << 10), &mut |_, _| {}).expect_err("too small").to_string();
    assert!(said.contains("100 pages are on this SSD only") && said.contains("flush"), "{said}");
    assert_eq!(std::fs::read_dir(dir.path()).expect("read").count(), 1, "something is left");
}

#[test]
fn in_place_more_room_keeps_what_is_cached_and_less_only_what_is_below() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("c");
    make(&path, 2 << 20).expect("made");
    fill(&path, 100);
    File::options().write(true).open(&path).expect("opened").set_len(8 << 20).expect("longer");
    let grown = resize::in_place(&Disk::alone(&path).expect("opened"), 8 << 20, false).expect("grown");
    assert_eq!((grown.pages, grown.left_out), (102, 0));
    assert!(grown.bytes > 7 << 20 && present(&path, 100) == 100);
    fill(&path, 1000);
    assert_eq!((present(&path, 1000), check(&path, false, &mut |_, _| {}).expect("checked").findings), (1000, vec![]));
    let said = resize::in_place(&Disk::alone(&path).expect("opened"), 4 << 20, false).expect_err("dirty").to_string();
    assert!(said.contains("200 dirty pages") && said.contains("flush"), "{said}");
}
