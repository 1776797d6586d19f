use std::sync::Arc;
use std::time::Duration;

use block::Tag;
use block::driver::{FaultyDevice, MemoryDevice};
use block::future::{Future, Keep, Waiting};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{Machine, close_clean, content, file, pattern, root};
use crate::disk::IoCounts;
use crate::fs::{Fs, FsSettings, Timestamp};
use crate::{Disk, DiskSettings, FormatOptions, Settings, Store};

#[test]
fn a_transaction_is_seen_as_a_whole_and_can_name_new_files() {
    let machine = Machine::new(64 << 20);
    let fs = machine.open();
    let files: Vec<_> = (0..5).map(|n| file(&fs, &format!("/{n}"))).collect();
    let fresh = fs.open_at(fs.root(), b"/", OFlags::TMPFILE | OFlags::RDWR, 0o600, &root()).expect("made");
    let mut transaction = fs.begin();
    for (n, file) in files.iter().enumerate() {
        transaction.write_at(file, &pattern(n as u64, n * 10_000), 0).expect("open");
        transaction.append(file, b"end").expect("open");
    }
    transaction.write_at(&fresh, b"new", 0).expect("open");
    transaction.name(&fresh, fs.root(), b"/fresh").expect("a directory");
    assert!(files.iter().all(|file| content(file).is_empty()), "not before the commit");
    fs.commit(transaction).expect("committed");
    assert_eq!(fs.store().synced(), fs.store().applied());
    for (n, file) in files.iter().enumerate() {
        assert!(content(file) == [pattern(n as u64, n * 10_000), b"end".to_vec()].concat());
    }
    assert_eq!(content(&file(&fs, "/fresh")), b"new");
    drop((files, fresh));
    close_clean(fs, &machine);
}

/// The memory of what is in flight is 8 MiB: more than that is under way here, of two threads, and blocks are read for their rest.
#[test]
fn transactions_larger_than_the_memory_in_flight_come_to_an_end() {
    let machine = Machine::new(128 << 20);
    let fs = machine.open();
    let (old, new) = (pattern(1, 5000), pattern(2, 500_000));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (fs, old, new) = (&fs, &old, &new);
            scope.spawn(move || {
                let files: Vec<_> = (0..24).map(|n| file(fs, &format!("{thread}-{n}"))).collect();
                files.iter().for_each(|file| assert_eq!(file.write_at(old, 0), Ok(old.len())));
                fs.sync().expect("synced");
                let mut transaction = fs.begin();
                files.iter().for_each(|file| transaction.append(file, new).expect("gathered"));
                fs.commit(transaction).expect("durable");
                assert!(files.iter().all(|file| content(file) == [&old[..], new].concat()));
            });
        }
    });
    close_clean(fs, &machine);
}

#[test]
fn a_transaction_that_fails_has_changed_nothing() {
    let machine = Machine::new(24 << 20);
    let fs = machine.open();
    let (a, b) = (file(&fs, "/a"), file(&fs, "/b"));
    a.write(b"old a").expect("written");
    b.write(&pattern(2, 20_000)).expect("written");
    let mut transaction = fs.begin();
    transaction.write_at(&a, b"new a", 0).expect("open");
    transaction.write_at(&b, &vec![3; 30 << 20], 10_000).expect("open");
    assert_eq!(fs.commit(transaction).map_err(|error| error.errno()), Err(Errno::NOSPC));
    assert_eq!((content(&a), content(&b)), (b"old a".to_vec(), pattern(2, 20_000)));
    let mut transaction = fs.begin();
    transaction.write_at(&a, b"new a", 0).expect("open");
    transaction.name(&a, fs.root(), b"/c").expect("a directory");
    assert_eq!(fs.commit(transaction).map_err(|error| error.errno()), Err(Errno::NOENT));
    assert_eq!(content(&a), b"old a");
    drop((a, b));
    close_clean(fs, &machine);
}

#[test]
fn calls_for_later_keep_their_promises() {
    let machine = Machine::new(64 << 20);
    let fs = machine.open();
    let files: Vec<_> = (0..20).map(|n| Arc::new(file(&fs, &format!("/{n}")))).collect();
    let mut future = Future::new(1, Keep::All);
    future.expect(0, 41);
    for (n, file) in (0..).zip(&files) {
        fs.write_later(file, pattern(n, 9000), 0, future.promise(0), Tag(n)).expect("a thread");
        let mut transaction = fs.begin();
        transaction.append(file, b"end").expect("open");
        fs.commit_later(transaction, future.promise(0), Tag(100 + n)).expect("a thread");
    }
    // One that cannot be kept.
    let reader = Arc::new(fs.open_at(fs.root(), b"/0", OFlags::RDONLY, 0, &root()).expect("opened"));
    fs.write_later(&reader, vec![1], 0, future.promise(0), Tag(999)).expect("a thread");
    assert!(future.wait(Waiting::Park, Duration::MAX));
    let failures = future.take_failures();
    let failed: Vec<_> = failures.kept.iter().map(|failed| (failed.tag, failed.error)).collect();
    assert_eq!(failed, [(Tag(999), block::Error::Other(Errno::BADF.raw_os_error() as u16))]);
    for (n, file) in (0..).zip(&files) {
        assert!(content(file) == [pattern(n, 9000), b"end".to_vec()].concat());
    }
    assert_eq!(fs.store().synced(), fs.store().applied());
    drop((files, reader));
    close_clean(fs, &machine);
}

#[test]
fn a_write_error_is_reported_to_every_handle_once_and_nothing_is_lost_meanwhile() {
    let memory = Arc::new(MemoryDevice::new(512, 64 << 20).expect("memory"));
    let disk = Disk::open(&*memory, &DiskSettings::default()).expect("queues");
    Store::format(&disk, &FormatOptions::default()).expect("formatted");
    let (store, _) = Store::open(disk, &Settings::default()).expect("opened");
    Fs::format(&store, Timestamp::default()).expect("made");
    let data = store.disk().blocks() - store.usage().blocks;
    store.close().expect("closed");
    // Nothing can be written where the data goes.
    let sectors = block::Lba(data * 8)..=block::Lba((64 << 11) - 1);
    let faulty = FaultyDevice::new(memory.clone(), sectors);
    let disk = Disk::open(&faulty, &DiskSettings::default()).expect("queues");
    let (store, _) = Store::open(disk, &Settings::default()).expect("opened");
    let (fs, _) = Fs::open(store, FsSettings::default()).expect("opened");
    let (a, b) = (file(&fs, "/f"), file(&fs, "/f"));
    // More than goes with the log.
    a.write(&pattern(1, 200_000)).expect("taken into memory");
    assert!(fs.write_back().is_err(), "in the background");
    for handle in [&a, &b] {
        assert_eq!(handle.sync().map_err(|error| error.errno()), Err(Errno::IO));
    }
    // It is still dirty, so each further sync tries and fails, and those who only look see what was written.
    assert_eq!(a.sync().map_err(|error| error.errno()), Err(Errno::IO));
    assert!(content(&b) == pattern(1, 200_000));
    let used = fs.store().usage();
    assert_eq!(used.blocks, used.blocks_free, "what could not be written has no place");
}

#[test]
fn what_is_synced_is_not_written_again_and_small_files_take_one_write() {
    let machine = Machine::new(64 << 20);
    let fs = machine.open();
    let open = file(&fs, "/f");
    open.write(b"small").expect("written");
    let before = fs.store().disk().counts();
    open.sync().expect("synced");
    let after = fs.store().disk().counts();
    let counts = |a: IoCounts, b: IoCounts| (b.writes - a.writes, b.through - a.through, b.flushes - a.flushes);
    assert_eq!(counts(before, after), (1, 1, 0), "one group of the log, through the cache");
    open.sync().expect("synced");
    assert_eq!(fs.store().disk().counts(), after);
    // So do a few blocks of a large file, which stay where they are.
    open.write_at(&pattern(1, 2_000_000), 0).expect("written");
    open.sync().expect("synced");
    open.write_at(&pattern(2, 100), 0).expect("written");
    open.sync().expect("synced");
    let (before, free) = (fs.store().disk().counts(), fs.store().usage().blocks_free);
    for n in 0..20 {
        open.write_at(&pattern(n, 5000), n * 97_000).expect("written");
        open.sync().expect("synced");
    }
    assert_eq!(counts(before, fs.store().disk().counts()), (20, 20, 0));
    assert_eq!(fs.store().usage().blocks_free, free);
    let mut wanted = pattern(1, 2_000_000);
    (0..20).for_each(|n| wanted[n * 97_000..][..5000].copy_from_slice(&pattern(n as u64, 5000)));
    assert!(content(&open) == wanted);
    // And a sync of everything, if that is not much.
    let files: Vec<_> = (0..5).map(|n| file(&fs, &format!("/{n}"))).collect();
    let write = |from: u64| (0..).zip(&files).for_each(|(n, file)| assert_eq!(file.write_at(&pattern(from + n, 5000), 0), Ok(5000)));
    for turn in 0..3 {
        write(turn);
        let before = fs.store().disk().counts();
        fs.sync().expect("synced");
        assert_eq!(counts(before, fs.store().disk().counts()), (1, 1, 0));
    }
    assert!((2..).zip(&files).all(|(n, file)| content(file) == pattern(n, 5000)));
    drop((open, files));
    close_clean(fs, &machine);
}
