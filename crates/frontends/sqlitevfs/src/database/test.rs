use std::path::Path;

use block::driver::MemoryDevice;
use rawfs::fs::{Fs, FsSettings, Timestamp};
use rawfs::{Disk, DiskSettings, FormatOptions, Settings, Store};
use rustix::fs::OFlags;

use super::*;
use crate::image;

pub(crate) fn memory(name: &str) -> Database {
    let device = MemoryDevice::new(512, 32 << 20).expect("memory");
    let disk = || Disk::open(&device, &DiskSettings { buffer_bytes: 1 << 20, ..DiskSettings::default() }).expect("queues");
    Store::format(&disk(), &FormatOptions::default()).expect("formatted");
    let (store, _) = Store::open(disk(), &Settings::default()).expect("opened");
    Fs::format(&store, Timestamp::default()).expect("made");
    let (fs, _) = Fs::open(store, FsSettings::default()).expect("opened");
    image::mount(Path::new(name), fs).expect("mounted");
    let image = image::hold(Path::new(name), None).expect("held");
    let file = image.fs.open_at(image.fs.root(), b"/db", OFlags::RDWR | OFlags::CREATE, 0o644, &image.creds).expect("made");
    Database::new(image, b"/db".to_vec(), file).expect("a database")
}

fn below(database: &Database) -> Vec<u8> {
    let mut bytes = vec![0; database.file.node().stat().expect("there").size as usize];
    let done = database.file.read_at(&mut bytes, 0).expect("read");
    bytes.truncate(done);
    bytes
}

fn seen(database: &Database) -> Vec<u8> {
    let mut bytes = vec![0; database.len() as usize];
    assert_eq!(database.read(&mut bytes, 0), Ok(bytes.len()));
    bytes
}

/// Against a plain vector: readers see what was written, and the file has what was committed.
#[test]
fn it_is_a_file_that_changes_below_at_commits() {
    let database = memory("/memory-random");
    let mut rng = fastrand::Rng::with_seed(11);
    let (mut model, mut committed) = (Vec::new(), Vec::new());
    let magic = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
    for step in 0..1500 {
        if rng.u8(..8) == 0 {
            assert_eq!(database.write_journal(&[0; 28], 0), Ok(()));
            committed.clone_from(&model);
        }
        if database.journal_len() == Ok(0) {
            assert_eq!(database.write_journal(&magic, 0), Ok(()));
        }
        if rng.u8(..6) == 0 {
            let len = rng.usize(..60_000);
            assert_eq!(database.set_len(len as u64), Ok(()));
            model.resize(len, 0);
        } else {
            let (at, bytes) = (rng.usize(..50_000), vec![step as u8; rng.usize(1..9000)]);
            assert_eq!(database.write(&bytes, at as u64), Ok(()));
            model.resize(model.len().max(at + bytes.len()), 0);
            model[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        assert_eq!(database.sync(), Ok(()));
        assert!(seen(&database) == model && below(&database) == committed, "step {step}");
    }
}

#[test]
fn a_batch_is_whole_or_taken_back() {
    let database = memory("/memory-batch");
    assert_eq!((database.write(b"one", 0), database.sync()), (Ok(()), Ok(())));
    database.begin_batch();
    assert_eq!((database.write(b"two", 0), database.set_len(2)), (Ok(()), Ok(())));
    database.is_over();
    assert_eq!((seen(&database), below(&database)), (b"tw".to_vec(), b"one".to_vec()));
    database.undo_batch();
    assert_eq!(seen(&database), b"one");
    database.begin_batch();
    assert_eq!((database.write(b"2", 1), database.end_batch(), database.sync()), (Ok(()), Ok(()), Ok(())));
    assert_eq!(below(&database), b"o2e");
}

const MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];

fn is_on_device(database: &Database) -> bool {
    database.image.fs.stat(database.image.fs.root(), b"/db-journal", true, &database.image.creds).is_ok()
}

/// With `journal_mode` MEMORY or OFF, or in exclusive locking mode, no journal is opened before the next transaction.
#[test]
fn a_journal_that_stays_does_not_undo_what_is_committed_later() {
    let database = memory("/memory-stays");
    assert_eq!((database.write(&[1; 4096], 0), database.sync()), (Ok(()), Ok(())));
    database.is_over();
    drop(database.put_journal(&MAGIC).expect("written"));
    database.inner.write().stays = true;
    assert_eq!((database.has_journal(), seen(&database)), (Some(false), vec![1; 4096]));
    assert!(is_on_device(&database));
    assert_eq!((database.write(&[2; 4096], 0), database.sync()), (Ok(()), Ok(())));
    assert!(below(&database) == [2; 4096] && !is_on_device(&database));
}

#[test]
fn what_is_in_memory_is_committed_beside_a_part_of_a_journal() {
    let database = memory("/memory-part");
    assert_eq!((database.write(&[1; 4096], 0), database.sync()), (Ok(()), Ok(())));
    assert_eq!(database.open_the_journal(true), Ok(true));
    assert_eq!((database.write_journal(&MAGIC, 0), database.write(&[2; 4096], 0)), (Ok(()), Ok(())));
    // A spill has failed, as has the removal of what it wrote.
    drop(database.put_journal(&MAGIC).expect("written"));
    database.inner.write().stays = true;
    assert_eq!((database.sync(), database.remove_journal()), (Ok(()), Ok(true)));
    assert_eq!((database.has_journal(), is_on_device(&database)), (None, false));
    assert!(below(&database) == [2; 4096]);
}

#[test]
fn what_is_too_large_goes_by_a_journal_on_the_device() {
    let database = memory("/memory-large");
    assert_eq!((database.write(&[1; 4096], 0), database.sync()), (Ok(()), Ok(())));
    assert_eq!(database.open_the_journal(true), Ok(true));
    let magic = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
    assert_eq!(database.write_journal(&magic, 0), Ok(()));
    let on_device = || database.image.fs.stat(database.image.fs.root(), b"/db-journal", true, &database.image.creds).is_ok();
    for block in 0..=BLOCKS_MAX as u64 {
        assert!(!on_device(), "before it is large");
        assert_eq!(database.write(&[2; 4096], block * 4096), Ok(()));
    }
    assert!(on_device());
    assert_eq!((database.sync(), database.remove_journal()), (Ok(()), Ok(true)));
    assert!(!on_device() && below(&database).iter().all(|byte| *byte == 2));
    assert_eq!(database.open_the_journal(false), Ok(false));
}
