//! What an open file can do beside reading and writing, past the cache, without waiting, and where nothing can be changed.

use std::io::{IoSlice, IoSliceMut};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::mpsc::channel;

use rustix::fs::{OFlags, RenameFlags, SeekFrom, XattrFlags};
use rustix::io::Errno;

use super::{Machine, close_clean, content, file, pattern, root};
use crate::fs::{Advice, Error, File, Fs, SetAttr};
use crate::{Settings, Store};

const MIB: usize = 1 << 20;

fn open(fs: &Fs, path: &str, flags: OFlags) -> File {
    fs.open_at(fs.root(), path.as_bytes(), flags | OFlags::RDWR | OFlags::CREATE, 0o644, &root()).expect("opened")
}

fn read_bytes(fs: &Fs) -> u64 {
    fs.store().disk().counts().read_bytes
}

#[test]
fn direct_reads_and_writes_take_no_place_in_the_cache_and_miss_nothing() {
    let machine = Machine::new(64 << 20);
    let fs = machine.open();
    let (plain, direct) = (file(&fs, "/f"), open(&fs, "/f", OFlags::DIRECT));
    let (mut bytes, mut back) = (pattern(1, MIB), vec![0; MIB]);
    direct.write_at(&bytes, 0).expect("written");
    assert_eq!(fs.unwritten_bytes(), 0);
    for _ in 0..2 {
        let before = read_bytes(&fs);
        direct.read_at(&mut back, 0).expect("read");
        assert_eq!((read_bytes(&fs) - before, &back), (MIB as u64, &bytes));
    }
    // Through the cache it is read once, until the cache has to forget it.
    for more in [MIB as u64, 0] {
        let before = read_bytes(&fs);
        plain.read_at(&mut back, 0).expect("read");
        assert_eq!((read_bytes(&fs) - before, &back), (more, &bytes));
    }
    plain.advise(Advice::DontNeed, 0, MIB as u64 / 2).expect("forgotten");
    let before = read_bytes(&fs);
    plain.advise(Advice::WillNeed, 0, 0).expect("brought");
    plain.read_at(&mut back, 0).expect("read");
    assert_eq!(read_bytes(&fs) - before, MIB as u64 / 2);
    assert_eq!((plain.read_here(&mut back, 0).expect("here"), direct.read_here(&mut back, 0).expect("no")), (Some(MIB), None));
    plain.advise(Advice::DontNeed, 4096, 4096).expect("forgotten");
    assert_eq!(plain.read_here(&mut back, 0).expect("not all"), None);
    assert_eq!(plain.read_here(&mut back[..5000], 8000).expect("not all"), None);
    assert_eq!((plain.read_here(&mut back[..5000], 8192).expect("here"), &back[..5000]), (Some(5000), &bytes[8192..13192]));
    assert_eq!(plain.read_here(&mut back, MIB as u64 - 3).expect("here"), Some(3));
    // What is no whole block is read all the same, and nothing of it is missed that is in memory.
    plain.write_at(b"new", 4095).expect("written");
    bytes[4095..4098].copy_from_slice(b"new");
    let mut rng = fastrand::Rng::with_seed(5);
    for _ in 0..50 {
        let (at, len) = (rng.usize(..MIB), rng.usize(1..20_000));
        let done = direct.read_at(&mut back[..len], at as u64).expect("read");
        assert_eq!(&back[..done], &bytes[at..(at + len).min(MIB)], "{len} at {at}");
    }
    assert_eq!((direct.read_at(&mut back, MIB as u64).expect("end"), direct.read_at(&mut [], 7).expect("nothing")), (0, 0));
    drop((plain, direct));
    close_clean(fs, &machine);
}

#[test]
fn several_pieces_of_memory_are_one_write_and_one_position() {
    let machine = Machine::new(64 << 20);
    let fs = machine.open();
    let open = file(&fs, "/f");
    let parts = [IoSlice::new(b"one"), IoSlice::new(b""), IoSlice::new(b"other")];
    assert_eq!(open.write_vectored(&parts, None).expect("written"), 8);
    assert_eq!(open.write_vectored(&parts, Some(2)).expect("written"), 8);
    assert_eq!((content(&open), open.seek(SeekFrom::Current(0)).expect("here")), (b"ononeother".to_vec(), 8));
    let (mut a, mut b) = ([0; 4], [0; 20]);
    let mut into = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
    assert_eq!(open.read_vectored(&mut into, Some(1)).expect("read"), 9);
    assert_eq!((&a, &b[..5]), (b"none", &b"other"[..]));
    open.seek(SeekFrom::Start(4)).expect("there");
    assert_eq!(open.read_vectored(&mut [IoSliceMut::new(&mut b)], None).expect("read"), 6);
    assert_eq!(open.seek(SeekFrom::Current(0)).expect("here"), 10);
    drop(open);
    close_clean(fs, &machine);
}

#[test]
fn a_range_is_copied_within_a_file_and_to_another() {
    let machine = Machine::new(64 << 20);
    let fs = machine.open();
    let (from, to) = (file(&fs, "/from"), file(&fs, "/to"));
    let bytes = pattern(3, 3 * MIB + 77);
    from.write(&bytes).expect("written");
    assert_eq!(from.copy_range(5, &to, 9, u64::MAX / 2).expect("copied"), bytes.len() as u64 - 5);
    assert_eq!(content(&to)[9..], bytes[5..]);
    assert_eq!(from.copy_range(0, &from, 4 << 20, 100).expect("copied"), 100);
    let refused = |done: crate::fs::Result<u64>| done.map_err(|error| error.errno()).expect_err("refused");
    assert_eq!(refused(from.copy_range(0, &from, 99, 100)), Errno::INVAL);
    assert_eq!(refused(from.copy_range(u64::MAX, &to, 0, 100)), Errno::OVERFLOW);
    assert_eq!(refused(from.copy_range(0, &open(&fs, "/to", OFlags::APPEND), 0, 100)), Errno::BADF);
    assert_eq!(from.copy_range(5 << 20, &to, 0, 100).expect("the end"), 0);
    drop((from, to));
    close_clean(fs, &machine);
}

#[test]
fn what_waits_together_is_made_durable_together_and_in_order() {
    let machine = Machine::new(64 << 20);
    let fs = machine.open();
    let (synced, direct) = (Arc::new(open(&fs, "/s", OFlags::SYNC)), Arc::new(open(&fs, "/d", OFlags::DIRECT)));
    let (go, wait) = channel::<()>();
    let (ends, ended) = channel();
    fs.call_later(move || wait.recv().expect("let go"));
    let before = fs.store().disk().counts();
    for n in 0..40u64 {
        for file in [&synced, &direct] {
            let ends = ends.clone();
            fs.write_then(file, pattern(n, 4096), n * 4096, move |done| ends.send(done).expect("heard"));
        }
    }
    let sync = ends.clone();
    fs.sync_then(&direct, move |done| sync.send(done).expect("heard"));
    // What came before is seen.
    let (file, seen) = (Arc::clone(&direct), ends.clone());
    fs.call_later(move || seen.send(file.node().stat().map(|stat| stat.size)).expect("heard"));
    go.send(()).expect("it waits");
    let mut results: Vec<u64> = ended.iter().take(82).map(|done| done.expect("done")).collect();
    results.sort_unstable();
    assert_eq!((results[0], results[1], results[80], results[81]), (0, 4096, 4096, 40 * 4096));
    let after = fs.store().disk().counts();
    // At most two flights, as the first call may have been taken alone; each file's 40 blocks in as few requests as they lie in.
    assert!(after.flushes - before.flushes <= 2 && after.writes - before.writes <= 12, "{before:?} {after:?}");
    assert_eq!(content(&direct), (0..40).flat_map(|n| pattern(n, 4096)).collect::<Vec<u8>>());
    let (ends, ended) = channel();
    let reader = Arc::new(fs.open_at(fs.root(), b"/d", OFlags::RDONLY, 0, &root()).expect("opened"));
    fs.write_then(&reader, vec![1], 0, move |done| ends.send(done).expect("heard"));
    assert_eq!(ended.recv().expect("told").map_err(|error| error.errno()), Err(Errno::BADF));
    drop((synced, direct, reader));
    close_clean(fs, &machine);
}

#[test]
fn a_path_is_reported_from_the_root() {
    let machine = Machine::new(64 << 20);
    let fs = machine.open();
    let dir = fs.mkdir(fs.root(), b"/d", 0o755, &root()).expect("made");
    fs.mkdir(&dir, b"e", 0o755, &root()).expect("made");
    drop(file(&fs, "/d/e/f"));
    fs.symlink(b"d/e", fs.root(), b"/l", &root()).expect("made");
    let real = |path: &str| fs.real_path(&dir, path.as_bytes(), &root()).map_err(|error| error.errno());
    for (path, expected) in
        [("/", "/"), (".", "/d"), ("..", "/"), ("/l/f", "/d/e/f"), ("e/../../l/./f", "/d/e/f"), ("/l", "/d/e"), ("/l/", "/d/e")]
    {
        assert_eq!(real(path), Ok(expected.as_bytes().to_vec()), "{path}");
    }
    assert_eq!((real("/x"), real("/l/f/"), real("")), (Err(Errno::NOENT), Err(Errno::NOTDIR), Err(Errno::NOENT)));
    drop(dir);
    close_clean(fs, &machine);
}

#[test]
fn nothing_can_be_changed_where_it_is_read_only() {
    let machine = Machine::new(64 << 20);
    let fs = machine.open();
    let held = file(&fs, "/held");
    held.write(&pattern(1, 10_000)).expect("written");
    fs.mkdir(fs.root(), b"/d", 0o755, &root()).expect("made");
    fs.unlink(fs.root(), b"/held", &root()).expect("removed");
    file(&fs, "/f").write(b"text").expect("written");
    fs.sync().expect("synced");
    // As if the process died: the log has everything, and an unnamed file is left.
    let _leaked = ManuallyDrop::new(held);
    drop(fs);
    let settings = Settings { read_only: true, ..Settings::default() };
    let (store, recovery) = Store::open(machine.disk(), &settings).expect("opened");
    assert!(!recovery.clean);
    let (fs, orphans) = Fs::open(store, machine.settings.clone()).expect("opened");
    let before = fs.store().disk().counts();
    assert_eq!((orphans, content(&fs.open_at(fs.root(), b"/f", OFlags::RDONLY, 0, &root()).expect("opened"))), (0, b"text".to_vec()));
    let node = fs.lookup(fs.root(), b"/f", true, &root()).expect("there");
    let set = SetAttr { mode: Some(0), ..SetAttr::default() };
    let at = fs.root();
    let refused = [
        fs.open_at(at, b"/f", OFlags::WRONLY, 0, &root()).map(drop),
        fs.open_at(at, b"/f", OFlags::TRUNC, 0, &root()).map(drop),
        fs.open_at(at, b"/new", OFlags::CREATE, 0o644, &root()).map(drop),
        fs.mkdir(at, b"/new", 0o755, &root()).map(drop),
        fs.unlink(at, b"/f", &root()),
        fs.rmdir(at, b"/d", &root()),
        fs.rename(at, b"/f", at, b"/d/f", RenameFlags::empty(), &root()),
        fs.rename(at, b"/d", at, b"/e", RenameFlags::empty(), &root()),
        fs.link(&node, at, b"/g", &root()),
        fs.set_attr(&node, &set, &root()),
        fs.set_len(&node, 0, &root()),
        fs.set_xattr(&node, b"user.a", b"", XattrFlags::empty(), &root()),
    ];
    for (n, outcome) in refused.into_iter().enumerate() {
        assert_eq!(outcome.map_err(|error: Error| error.errno()), Err(Errno::ROFS), "{n}");
    }
    let dir = fs.open_at(at, b"/", OFlags::DIRECTORY, 0, &root()).expect("opened");
    let mut names = Vec::new();
    let each = &mut |entry: &crate::fs::DirEntry, _: u64| {
        names.push(entry.name.clone());
        true
    };
    dir.read_dir(each).expect("read");
    assert_eq!(names, [&b"."[..], b"..", b"d", b"f"]);
    fs.sync().expect("nothing to do");
    assert_eq!(fs.store().disk().counts().writes, before.writes);
    drop((node, dir));
    fs.close().expect("closed");
    close_clean(machine.open(), &machine);
}
