//! Tests specific to NVMe drives. They need a drive that may be overwritten: its character node in HOTSHELF_TEST_NODE, its block
//! device in HOTSHELF_TEST_BLOCK (tests/vm/20-passthrough.sh).

use std::path::PathBuf;

use block::driver::uring::probe::probe;
use block::driver::{FileDevice, FileOptions, Passthrough};
use block::{Device, Error, Lba, QueueOptions, Request, Tag};

use crate::cases::Bench;

fn drive() -> Option<(PathBuf, PathBuf)> {
    let found = std::env::var_os("HOTSHELF_TEST_NODE").zip(std::env::var_os("HOTSHELF_TEST_BLOCK"));
    if found.is_none() {
        println!("SKIP: HOTSHELF_TEST_NODE and HOTSHELF_TEST_BLOCK name no drive");
    }
    found.map(|(node, block)| (node.into(), block.into()))
}

#[test]
fn nvme_passthrough_and_block_device_are_the_same_blocks() {
    let Some((node, block)) = drive() else { return };
    let through = Passthrough::open(&node, false).expect("opened");
    let kernel = FileDevice::open(&block, &FileOptions::default()).expect("opened");
    assert!(kernel.direct());
    let (ours, theirs) = (through.geometry(), kernel.geometry());
    assert_eq!((ours.block_bytes, ours.blocks), (theirs.block_bytes, theirs.blocks));
    assert_eq!(ours.volatile_cache, theirs.volatile_cache);
    let options = QueueOptions::default();
    let (mut ours, mut theirs) = (Bench::new(&through, &options), Bench::new(&kernel, &options));
    let block_bytes = through.geometry().block_bytes;
    for lba in [0, 1, 77, through.geometry().blocks - 1] {
        let (from, to) =
            (ours.arena.allocate(block_bytes as usize).expect("room"), theirs.arena.allocate(block_bytes as usize).expect("room"));
        from.write(0, &vec![lba.to_ne_bytes()[0].wrapping_add(1); block_bytes as usize]);
        assert_eq!(ours.run(Request::write_fua(Tag(1), Lba(lba), 1), &[from.span()]), Ok(()));
        assert_eq!(theirs.run(Request::read(Tag(2), Lba(lba), 1), &[to.span()]), Ok(()));
        assert_eq!(from.to_vec(), to.to_vec(), "block {lba}");
    }
}

/// A command has only 16 bits for the number of blocks.
#[test]
fn nvme_zeroes_more_than_one_command_takes() {
    let Some((node, _)) = drive() else { return };
    let device = Passthrough::open(&node, false).expect("opened");
    let geometry = device.geometry();
    assert!(geometry.blocks > 1 << 16 && geometry.write_zeroes, "{geometry:?}");
    let mut bench = Bench::new(&device, &QueueOptions::default());
    let buf = bench.arena.allocate(geometry.block_bytes as usize).expect("room");
    let blocks = u32::try_from(geometry.blocks).expect("small");
    let marks = [0, 65_535, 65_536, geometry.blocks - 2, geometry.blocks - 1];
    for lba in marks {
        buf.write(0, &vec![0xaa; buf.len()]);
        assert_eq!(bench.run(Request::write(Tag(1), Lba(lba), 1), &[buf.span()]), Ok(()));
    }
    assert_eq!(bench.run(Request::write_zeroes(Tag(2), Lba(0), blocks - 1), &[]), Ok(()));
    for lba in marks {
        assert_eq!(bench.run(Request::read(Tag(3), Lba(lba), 1), &[buf.span()]), Ok(()));
        let expected = if lba == geometry.blocks - 1 { 0xaa } else { 0 };
        assert!(buf.to_vec().iter().all(|byte| *byte == expected), "block {lba}");
    }
}

#[test]
fn nvme_nodes_are_distinguished_from_others_and_from_what_is_forbidden() {
    let Some((node, block)) = drive() else { return };
    let error = Passthrough::open(&block, false).expect_err("refused").to_string();
    assert!(error.contains("name the character node beside it"), "{error}");
    let error = FileDevice::open(&node, &FileOptions::default()).expect_err("refused").to_string();
    assert!(error.contains("are opened as passthrough"), "{error}");
    let device = Passthrough::open(&node, true).expect("opened");
    let mut bench = Bench::new(&device, &QueueOptions::default());
    let buf = bench.arena.allocate(device.geometry().block_bytes as usize).expect("room");
    assert_eq!(bench.run(Request::write(Tag(1), Lba(0), 1), &[buf.span()]), Err(Error::ReadOnly));
    assert_eq!(bench.run(Request::read(Tag(2), Lba(0), 1), &[buf.span()]), Ok(()));
    let found = probe();
    assert!(found.commands && found.nodes.iter().any(|found| found.path == node && found.usable), "{found}");
}
