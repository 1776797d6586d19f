//! Damage of each kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rawfs::fs::repair::{accept_data, repair};
use rawfs::fs::scrub::{BadBlocks, scrub};
use rawfs::fs::{Creds, Fs, check};
use rawfs::layout::Superblock;
use rawfs::store::salvage::Damage;
use rawfs::{BLOCK_BYTES, Settings, Store};
use rustix::fs::OFlags;

use super::machine::Machine;
use super::{clean, content, fs_settings, image, name, one_in, open, right_files, settings};

const FILES: usize = 240;

fn superblock(image: &[u8]) -> Superblock {
    let machine = Machine::new(image.to_vec());
    let superblocks = Store::superblocks(&machine.disk()).expect("two blocks");
    superblocks.into_iter().flatten().next().expect("one is whole")
}

/// Where the root of a tree lies, and its first child if it has any.
fn nodes(image: &[u8], tree: usize) -> (usize, Option<usize>) {
    let superblock = superblock(image);
    let byte = |slot| superblock.shape.node_at(slot).expect("a node").byte() as usize;
    let root = byte(superblock.roots[tree].at.slot);
    let child = u32::from_le_bytes(image[root + 38..root + 42].try_into().expect("four bytes"));
    (root, (superblock.roots[tree].level > 0).then(|| byte(child)))
}

fn repaired(machine: &Arc<Machine>) -> Vec<Damage> {
    let (store, _, damages) = Store::salvage(machine.disk(), &settings(), &check::owns).expect("salvaged");
    let (store, report) = repair(store, &mut |_| {}).expect("repaired");
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    let (fs, _) = Fs::open(store, fs_settings()).expect("opened");
    fs.close().expect("closed");
    let fs = open(machine);
    clean(fs.store());
    damages
}

fn damages(machine: &Arc<Machine>) -> Vec<Damage> {
    let settings = Settings { read_only: true, ..settings() };
    Store::salvage(machine.disk(), &settings, &check::owns).expect("salvaged").2
}

#[test]
fn a_damaged_superblock_is_made_again_from_the_other() {
    for copy in 0..2 {
        let mut image = image(4096, 12);
        image[copy * BLOCK_BYTES + 100] ^= 1;
        let machine = Machine::new(image);
        assert!(matches!(damages(&machine)[..], [Damage::Superblock { at, .. }] if at.0 == copy as u64));
        repaired(&machine);
        assert_eq!(damages(&machine), []);
        assert_eq!(right_files(&open(&machine)).len(), 12);
    }
}

#[test]
fn bitmaps_are_made_again_from_the_trees() {
    let whole = image(4096, FILES);
    let shape = superblock(&whole).shape;
    for page in 0..shape.node_pages() + shape.data_pages() {
        let mut image = whole.clone();
        let at = shape.page_at(page).byte() as usize;
        for byte in [at + 100, at + BLOCK_BYTES + 100] {
            image[byte] ^= 1;
        }
        let machine = Machine::new(image);
        assert!(Store::open(machine.disk(), &settings()).is_err());
        assert!(matches!(damages(&machine)[..], [Damage::Bitmap { .. }]));
        repaired(&machine);
        assert_eq!(right_files(&open(&machine)), (0..FILES).collect::<Vec<_>>());
    }
}

#[test]
fn of_a_damaged_leaf_only_its_own_entries_are_lost() {
    let mut image = image(4096, FILES);
    let leaf = nodes(&image, 0).1.expect("two levels");
    image[leaf + 1000] ^= 1;
    let machine = Machine::new(image);
    let damages = damages(&machine);
    assert!(matches!(damages[..], [Damage::Node { level: 0, .. }, ..]), "{damages:?}");
    repaired(&machine);
    let left = right_files(&open(&machine));
    assert!(left.len() > FILES / 2 && left.len() < FILES, "{} of {FILES}", left.len());
}

#[test]
fn below_a_damaged_root_everything_is_found_and_goes_to_lost_and_found() {
    let mut image = image(4096, FILES);
    let (root, child) = nodes(&image, 0);
    assert!(child.is_some(), "two levels");
    image[root + 1000] ^= 1;
    let machine = Machine::new(image);
    let damages = repaired(&machine);
    assert!(damages.iter().any(|damage| matches!(damage, Damage::Found { .. })), "{damages:?}");
    let fs = open(&machine);
    assert_eq!(right_files(&fs).len(), FILES);
    fs.lookup(fs.root(), b"/lost+found", false, &Creds::root()).expect("there");
}

#[test]
fn a_lost_tree_of_files_gives_a_top_directory_again() {
    let mut image = image(4096, FILES);
    let (root, _) = nodes(&image, 1);
    image[root + 40] ^= 1;
    let machine = Machine::new(image);
    repaired(&machine);
    assert_eq!(right_files(&open(&machine)).len(), FILES);
}

fn bad(machine: &Arc<Machine>) -> Vec<BadBlocks> {
    let (store, ..) = Store::salvage(machine.disk(), &Settings { read_only: true, ..settings() }, &check::owns).expect("salvaged");
    let mut bad = Vec::new();
    scrub(&store, &mut |row| bad.push(row), &mut |_| {}).expect("read");
    bad
}

#[test]
fn damaged_data_is_reported_by_file_and_place_and_stays_an_error_until_it_is_accepted() {
    let mut image = image(4096, 12);
    let place = {
        let machine = Machine::new(image.clone());
        let fs = open(&machine);
        let path = format!("/dir 3/{}", name(3));
        let shown = rawfs::fs::show::show(fs.store(), path.as_bytes()).expect("read").expect("there");
        shown.runs[0].start.after(1).byte() as usize
    };
    image[place + 5] ^= 1;
    let machine = Machine::new(image);
    let damages = bad(&machine);
    assert!(matches!(damages[..], [BadBlocks { at: 1, blocks: 1, unreadable: false, .. }]), "{damages:?}");
    repaired(&machine);
    let read = || {
        let fs = open(&machine);
        let path = format!("/dir 3/{}", name(3));
        let file = fs.open_at(fs.root(), path.as_bytes(), OFlags::RDONLY, 0, &Creds::root()).expect("opened");
        let mut bytes = vec![0; 4096];
        file.read_at(&mut bytes, 4096).map(|done| bytes[..done].to_vec())
    };
    assert_eq!(read().map_err(|error| error.errno()), Err(rustix::io::Errno::IO), "not zeros, and not other bytes");
    let (store, ..) = Store::salvage(machine.disk(), &settings(), &check::owns).expect("salvaged");
    let (store, accepted) = accept_data(store, &damages).expect("accepted");
    assert_eq!(accepted, 1);
    store.close().expect("closed");
    let mut wanted = content(&name(3))[4096..8192].to_vec();
    wanted[5] ^= 1;
    assert_eq!(read().expect("read"), wanted);
    assert_eq!(bad(&machine), []);
}

#[test]
fn a_repair_that_is_cut_off_can_be_done_again() {
    let whole = image(4096, FILES);
    let (cuts, mut rng) = (Arc::new(AtomicU64::new(0)), fastrand::Rng::with_seed(7));
    for round in 0..3 {
        let mut image = whole.clone();
        let (root, child) = nodes(&image, 0);
        image[if round == 0 { root } else { child.expect("two levels") } + 1000] ^= 1;
        if round == 2 {
            image[100] ^= 1;
            let page = superblock(&image).shape.page_at(1).byte() as usize;
            image[page + 100] ^= 1;
            image[page + BLOCK_BYTES + 100] ^= 1;
        }
        let undisturbed = {
            let machine = Machine::new(image.clone());
            repaired(&machine);
            right_files(&open(&machine))
        };
        let machine = Machine::new(image);
        let (medium, mut chance, counted, one_in, wanted) =
            (machine.medium.clone(), rng.fork(), Arc::clone(&cuts), one_in(15, 1), undisturbed.clone());
        machine.set_moment(Some(Box::new(move || {
            if chance.u8(..one_in) == 0 {
                counted.fetch_add(1, Ordering::Relaxed);
                let again = Machine::new(medium.power_cut(chance.u64(..)));
                repaired(&again);
                assert_eq!(right_files(&open(&again)), wanted, "round {round}");
            }
        })));
        let (store, ..) = Store::salvage(machine.disk(), &settings(), &check::owns).expect("salvaged");
        let (store, _) = repair(store, &mut |_| {}).expect("repaired");
        store.close().expect("closed");
        machine.set_moment(None);
        assert_eq!(right_files(&open(&machine)), undisturbed);
    }
    assert!(cuts.load(Ordering::Relaxed) > 3, "the test looks at what it should");
}
