//! Growing and shrinking.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rawfs::fs::resize::{least_blocks, resize};
use rawfs::fs::{Creds, Fs};
use rawfs::{BLOCK_BYTES, Store};
use rustix::io::Errno;

use super::machine::Machine;
use super::{clean, fs_settings, image, one_in, open, right_files, settings};

const FILES: usize = 60;

/// The state after a cut: all files, in an image of the old size or the new one.
fn after_cut(content: Vec<u8>, sizes: [u64; 2]) {
    let machine = Machine::new(content);
    let fs = open(&machine);
    clean(fs.store());
    let blocks = fs.store().shape().blocks;
    assert!(sizes.contains(&blocks), "{blocks}");
    assert_eq!(right_files(&fs), (0..FILES).collect::<Vec<_>>());
}

/// Resizes on a device of so many blocks, with cuts, and returns what is there.
fn resized(mut content: Vec<u8>, device: u64, blocks: u64, cuts: &Arc<AtomicU64>, rng: &mut fastrand::Rng) -> Vec<u8> {
    content.resize(content.len().max(device as usize * BLOCK_BYTES), 0);
    let machine = Machine::new(content);
    let fs = open(&machine);
    let sizes = [fs.store().shape().blocks, blocks];
    let (medium, mut chance, counted, one_in) = (machine.medium.clone(), rng.fork(), Arc::clone(cuts), one_in(10, 1));
    machine.set_moment(Some(Box::new(move || {
        if chance.u8(..one_in) == 0 {
            counted.fetch_add(1, Ordering::Relaxed);
            after_cut(medium.power_cut(chance.u64(..)), sizes);
        }
    })));
    resize(fs, blocks, &mut |_| {}).expect("resized");
    machine.set_moment(None);
    let mut content = machine.content();
    content.truncate(blocks as usize * BLOCK_BYTES);
    after_cut(content.clone(), [blocks; 2]);
    content
}

#[test]
fn an_image_grows_and_shrinks_and_has_all_its_files_at_any_time() {
    let (cuts, mut rng) = (Arc::new(AtomicU64::new(0)), fastrand::Rng::with_seed(3));
    let mut content = image(4096, FILES);
    let least = least_blocks(&open(&Machine::new(content.clone())));
    assert!(least < 1024);
    // The last two do not fit into the bitmaps that it was made with.
    for blocks in [2000, least, 1024, 40_000, 80_000, 40_500, least, 900] {
        content = resized(content, blocks, blocks, &cuts, &mut rng);
    }
    assert!(cuts.load(Ordering::Relaxed) > 3, "the test looks at what it should");
}

#[test]
fn what_is_too_small_is_refused_and_nothing_has_changed() {
    let content = image(4096, FILES);
    let machine = Machine::new(content.clone());
    let fs = open(&machine);
    let least = least_blocks(&fs);
    let refused = resize(fs, least - 1, &mut |_| {}).expect_err("too small");
    assert_eq!(refused.errno(), Errno::NOSPC);
    after_cut(machine.content(), [1024; 2]);
    let larger = resize(open(&machine), 1025, &mut |_| {}).expect_err("larger than the device");
    assert_eq!(larger.errno(), Errno::INVAL);
    after_cut(machine.content(), [1024; 2]);
}

#[test]
fn what_is_held_is_not_resized() {
    let machine = Machine::new(image(4096, 6));
    let (store, _) = Store::open(machine.disk(), &settings()).expect("opened");
    let (fs, _) = Fs::open(store, fs_settings()).expect("opened");
    let node = fs.lookup(fs.root(), b"/dir 1", false, &Creds::root()).expect("there");
    assert_eq!(resize(fs, 1000, &mut |_| {}).map_err(|error| error.errno()), Err(Errno::BUSY));
    drop(node);
}
