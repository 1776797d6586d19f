//! Images that somebody has damaged: errors, and neither a panic nor a hang.

use std::sync::Arc;

use rawfs::{BLOCK_BYTES, Batch, Error, ScanStep, Store, TreeId};

use super::driver::{BYTES, Driver, formatted, key, settings};
use super::machine::Machine;
use super::model::Model;
use super::{Named, open, seeds};

/// An image with something in it: closed cleanly, or cut off with a log.
fn image(seed: u64, clean: bool) -> Vec<u8> {
    let machine = Machine::new(formatted());
    let (store, _) = open(&machine).expect("opened");
    let mut driver = Driver::new(store, Model::default(), seed);
    for _ in 0..60 {
        driver.turn().expect("a healthy device");
    }
    driver.sync().expect("a healthy device");
    if clean {
        driver.store.close().expect("closed");
    }
    machine.content()
}

/// Opens it and uses everything that a store has.
fn use_all(machine: &Arc<Machine>, seed: u64) -> Result<(), Error> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (store, _) = open(machine)?;
    let mut failed = Ok(());
    for tree in TreeId::ALL {
        let mut count = 0;
        failed = failed.and(store.scan(tree, &[], &[0xff; 16], &mut |_, _| {
            count += 1;
            if count < 100_000 { ScanStep::Go } else { ScanStep::Stop }
        }));
    }
    failed = failed.and(store.check().map(drop));
    let mut value = Vec::new();
    for _ in 0..30 {
        failed = failed.and(store.get(TreeId::Names, &key(&mut rng), &mut value).map(drop));
        let mut batch = Batch::new();
        match rng.u8(..4) {
            0 => batch.move_range(TreeId::Names, &key(&mut rng), &key(&mut rng)),
            1 => batch.delete(TreeId::Names, &key(&mut rng)),
            _ => batch.put(TreeId::Names, &key(&mut rng), &[1; 100]),
        }
        failed = failed.and(store.apply(batch).map(drop));
        if let Ok(extent) = store.allocate(None, 3) {
            store.abandon(extent);
        }
    }
    failed.and(store.checkpoint()).and(store.close())
}

#[test]
fn flipped_bytes_are_errors_or_harmless() {
    for seed in seeds(60, 20_000) {
        let _named = Named("flips", seed);
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut image = image(seed % 8, rng.bool());
        for _ in 0..rng.usize(1..20) {
            // Half of them where the metadata is.
            let at = if rng.bool() { rng.usize(..image.len()) } else { rng.usize(..image.len() / 2) };
            image[at] ^= 1 << rng.u8(..8);
        }
        let _ = use_all(&Machine::new(image), seed);
    }
}

/// Where the blocks are that begin so.
fn find(image: &[u8], magic: &[u8]) -> Vec<usize> {
    (0..image.len() / BLOCK_BYTES).map(|block| block * BLOCK_BYTES).filter(|at| image[*at..].starts_with(magic)).collect()
}

fn seal(block: &mut [u8]) {
    let sum = crc32c::crc32c_append(crc32c::crc32c(&block[..4]), &block[8..]);
    block[4..8].copy_from_slice(&sum.to_le_bytes());
}

/// The same, by somebody who knows how sums are made: only what the numbers mean can tell.
#[test]
fn forged_numbers_are_errors_or_harmless() {
    for seed in seeds(120, 60_000) {
        let _named = Named("forged", seed);
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut image = image(seed % 8, rng.u8(..3) == 0);
        let magic: &[u8] = [&b"hsfS"[..], b"hsfL", b"hsfB", b"hsfL"][rng.usize(..4)];
        let places = find(&image, magic);
        let Some(at) = places.get(rng.usize(..places.len().max(1))).copied() else { continue };
        let len = match magic {
            b"hsfS" => 512,
            b"hsfL" => {
                let bytes = u32::from_le_bytes(image[at + 52..at + 56].try_into().expect("four bytes")) as usize;
                (64 + bytes).next_multiple_of(BLOCK_BYTES)
            }
            _ => BLOCK_BYTES,
        };
        let Some(block) = image.get_mut(at..at + len) else { continue };
        for _ in 0..rng.usize(1..4) {
            let at = if magic == b"hsfL" && rng.bool() { rng.usize(64..len.min(600)) } else { rng.usize(8..160) };
            block[at] = if rng.bool() { rng.u8(..) } else { [0, 1, 0x7f, 0x80, 0xff][rng.usize(..5)] };
        }
        seal(block);
        if magic == b"hsfS" {
            // Both copies, or the other one is taken.
            let mut copy = image[at..at + 512].to_vec();
            let other = if at == 0 { BLOCK_BYTES } else { 0 };
            copy[8..16].copy_from_slice(&(other as u64 / BLOCK_BYTES as u64).to_le_bytes());
            seal(&mut copy);
            image[other..other + 512].copy_from_slice(&copy);
        }
        let _ = use_all(&Machine::new(image), seed);
    }
}

#[test]
fn a_cut_off_image_is_reported() {
    let whole = image(1, true);
    for blocks in [0, 1, 2, 3, 100, BYTES / BLOCK_BYTES - 1] {
        let image = whole[..(blocks * BLOCK_BYTES).max(512)].to_vec();
        let opened = open(&Machine::new(image)).map(drop);
        let wanted = match blocks {
            0 | 1 => Error::NoImage,
            _ => Error::Truncated { image: (BYTES / BLOCK_BYTES) as u64, device: blocks as u64 },
        };
        assert_eq!(opened, Err(wanted), "{blocks} blocks");
    }
}

#[test]
fn one_damaged_superblock_is_made_again_and_two_are_reported() {
    let whole = image(2, true);
    for copy in 0..2 {
        let mut image = whole.clone();
        image[copy * BLOCK_BYTES + 100] ^= 1;
        let machine = Machine::new(image.clone());
        let (store, recovery) = open(&machine).expect("the other copy is right");
        assert!(recovery.repaired && recovery.clean);
        store.close().expect("closed");
        let (_, recovery) = open(&machine).expect("opened");
        assert!(!recovery.repaired);
        image[(1 - copy) * BLOCK_BYTES + 100] ^= 1;
        assert_eq!(open(&Machine::new(image)).map(drop), Err(Error::NoImage));
    }
}

#[test]
fn a_later_version_and_another_image_are_reported() {
    let mut image = image(3, true);
    let other = rawfs::Settings { uuid: Some([7; 16]), ..settings() };
    assert_eq!(Store::open(Machine::new(image.clone()).disk(), &other).map(drop), Err(Error::Uuid));
    for at in [0, BLOCK_BYTES] {
        image[at + 32..at + 36].copy_from_slice(&9_u32.to_le_bytes());
        seal(&mut image[at..at + 512]);
    }
    assert!(matches!(open(&Machine::new(image)).map(drop), Err(Error::Later { version: 9, .. })));
    assert_eq!(open(&Machine::new(vec![0; BYTES])).map(drop), Err(Error::NoImage));
}

/// A checkpoint was cut off after it had written a page: the next one has the same number, and must not bring that page to life.
#[test]
fn a_page_of_a_checkpoint_that_never_was_does_not_count() {
    let mut image = image(4, true);
    let pages = find(&image, b"hsfB");
    let generation = |image: &[u8], at: usize| u64::from_le_bytes(image[at + 16..at + 24].try_into().expect("eight bytes"));
    let superblock = generation(&image, 0);
    let counts = pages.iter().copied().max_by_key(|at| (*at / BLOCK_BYTES / 2, generation(&image, *at))).expect("there are pages");
    // Slots lie in pairs behind the log's 32 blocks, from an even block on.
    let other = counts ^ BLOCK_BYTES;
    let mut page = vec![0xff; BLOCK_BYTES];
    page[..32].copy_from_slice(&image[counts..counts + 32]);
    page[8..16].copy_from_slice(&(other as u64 / BLOCK_BYTES as u64).to_le_bytes());
    page[16..24].copy_from_slice(&(superblock + 1).to_le_bytes());
    seal(&mut page);
    image[other..other + BLOCK_BYTES].copy_from_slice(&page);
    let used = |store: &Store| {
        let mut rows = Vec::new();
        store.each_used(|extent| rows.push(extent));
        rows
    };
    let machine = Machine::new(image);
    let (store, _) = open(&machine).expect("opened");
    let before = used(&store);
    assert!(!before.is_empty());
    drop(store);
    for _ in 0..3 {
        let (store, _) = open(&machine).expect("opened again");
        assert_eq!(used(&store), before);
    }
}

/// The group before it was torn, so it is no part of the log; a new one of the same size in its place must not make it one again.
#[test]
fn a_group_of_an_earlier_life_does_not_come_back() {
    let machine = Machine::new(formatted());
    let (store, _) = open(&machine).expect("opened");
    let put = |store: &Store, key: &[u8]| {
        let mut batch = Batch::new();
        batch.put(TreeId::Names, key, &[9; 100]);
        store.sync(store.apply(batch).expect("applied")).expect("synced");
    };
    [b"1", b"2", b"3"].into_iter().for_each(|key| put(&store, key));
    drop(store);
    let mut image = machine.content();
    let groups = find(&image, b"hsfL");
    assert_eq!(groups.len(), 3);
    image[groups[1] + 100] ^= 1;
    let machine = Machine::new(image);
    let (store, recovery) = open(&machine).expect("opened");
    assert_eq!(recovery.replayed, 1);
    put(&store, b"4");
    drop(store);
    assert_eq!(find(&machine.content(), b"hsfL"), groups, "in the place of the torn one");
    let (store, recovery) = open(&machine).expect("opened");
    assert_eq!(recovery.replayed, 1);
    let there = |key: &[u8]| store.get(TreeId::Names, key, &mut Vec::new()).expect("read");
    assert_eq!([b"1", b"2", b"3", b"4"].map(|key| there(key)), [true, false, false, true]);
}

#[test]
fn an_image_is_looked_at_without_a_write() {
    let image = image(6, false);
    let machine = Machine::new(image.clone());
    let settings = rawfs::Settings { read_only: true, ..settings() };
    let (store, recovery) = Store::open(machine.disk(), &settings).expect("opened");
    assert!(!recovery.clean && store.check().expect("checked").leaked.is_empty());
    let mut seen = Vec::new();
    let mut take = |key: &[u8], _: &[u8]| {
        seen.push(key.to_vec());
        ScanStep::Go
    };
    store.scan(TreeId::Names, &[], &[0xff; 16], &mut take).expect("scanned");
    let mut batch = Batch::new();
    batch.put(TreeId::Names, b"1", b"");
    assert_eq!(store.apply(batch), Err(Error::Failed(block::Error::ReadOnly)));
    assert_eq!(store.checkpoint(), Err(Error::Failed(block::Error::ReadOnly)));
    store.close().expect("nothing to be done");
    assert!(machine.content() == image, "nothing was written");
    let (store, written) = open(&machine).expect("opened");
    assert_eq!((written.lsn, written.replayed), (recovery.lsn, recovery.replayed));
    seen.iter().for_each(|key| assert!(store.get(TreeId::Names, key, &mut Vec::new()).expect("read")));
}
