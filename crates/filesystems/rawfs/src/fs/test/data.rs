use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::Errno;

use super::{Machine, close_clean, content, file, pattern, root};
use crate::BLOCK_BYTES;
use crate::fs::record::RecordBody;
use crate::fs::{Error, File, SIZE_MAX};

fn body(file: &File) -> RecordBody {
    file.node().inode.state.read().record.body.clone()
}

#[test]
fn small_files_live_in_their_record_and_grow_out_of_it() {
    let machine = Machine::new(64 << 20);
    let fs = machine.open();
    let free = fs.store().usage().blocks_free;
    let small = file(&fs, "/small");
    small.write(&pattern(1, 3072)).expect("written");
    small.sync().expect("synced");
    assert_eq!((fs.store().usage().blocks_free, small.node().stat().expect("held").blocks), (free, 6));
    small.write(b"!").expect("written");
    small.sync().expect("synced");
    assert!(matches!(body(&small), RecordBody::Runs(_)));
    assert_eq!(fs.store().usage().blocks_free, free - 1);
    assert_eq!(content(&small), [pattern(1, 3072), b"!".to_vec()].concat());
    small.set_len(0).expect("cut");
    small.sync().expect("synced");
    assert!(matches!(body(&small), RecordBody::Runs(runs) if runs.is_empty()), "and never back");
    drop(small);
    close_clean(fs, &machine);
}

#[test]
fn a_large_file_survives_random_writes_and_holes() {
    let mut rng = crate::testing::rng();
    let machine = Machine::new(128 << 20);
    let mut fs = machine.open();
    let mut model: Vec<u8> = Vec::new();
    for round in 0..120 {
        let open = file(&fs, "/f");
        let (at, len) = (rng.usize(..8 << 20), rng.usize(1..300_000));
        match rng.u8(..12) {
            0 => {
                open.set_len(at as u64).expect("set");
                model.resize(at, 0);
            }
            1 | 2 => {
                open.allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at as u64, len as u64).expect("punched");
                let end = model.len();
                model[at.min(end)..(at + len).min(end)].fill(0);
            }
            3 => open.allocate(FallocateFlags::KEEP_SIZE, at as u64, len as u64).expect("set aside"),
            _ => {
                let bytes = pattern(rng.u64(..), len);
                assert_eq!(open.write_at(&bytes, at as u64).expect("written"), len);
                model.resize(model.len().max(at + len), 0);
                model[at..at + len].copy_from_slice(&bytes);
            }
        }
        assert!(content(&open) == model, "round {round}");
        let direct = fs.open_at(fs.root(), b"/f", OFlags::RDWR | OFlags::DIRECT, 0, &root()).expect("opened");
        let from = rng.usize(..2000) * BLOCK_BYTES;
        let mut bytes = vec![1; 16 * BLOCK_BYTES];
        let done = direct.read_at(&mut bytes, from as u64).expect("read");
        assert_eq!(bytes[..done], model[from.min(model.len())..(from + bytes.len()).min(model.len())], "round {round}");
        drop((open, direct));
        if round % 30 == 29 {
            close_clean(fs, &machine);
            fs = machine.open();
        }
    }
    assert_eq!(body(&file(&fs, "/f")), RecordBody::Items);
    fs.unlink(fs.root(), b"/f", &root()).expect("there");
    close_clean(fs, &machine);
}

#[test]
fn holes_in_what_is_not_written_yet_cost_the_device_nothing() {
    let machine = Machine::new(64 << 20);
    let fs = machine.open();
    let open = file(&fs, "/f");
    let mut model = pattern(1, 40 * BLOCK_BYTES);
    let before = fs.store().disk().counts();
    open.write_at(&model, 0).expect("written");
    for at in [511, 5 * BLOCK_BYTES + 1, 9 * BLOCK_BYTES] {
        let bytes = at..at + 3 * BLOCK_BYTES;
        open.allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at as u64, bytes.len() as u64).expect("punched");
        model[bytes].fill(0);
    }
    open.set_len(33 * BLOCK_BYTES as u64 + 5).expect("cut");
    model.truncate(33 * BLOCK_BYTES + 5);
    assert_eq!(fs.store().disk().counts(), before);
    assert!(content(&open) == model);
    // 34 blocks, of which 2, 2 and 3 are holes.
    assert_eq!(open.node().stat().expect("held").blocks, 27 * 8);
    drop(open);
    close_clean(fs, &machine);
    let fs = machine.open();
    assert!(content(&file(&fs, "/f")) == model);
    close_clean(fs, &machine);
}

#[test]
fn a_damaged_block_is_an_error_that_names_file_and_place_and_the_rest_is_read() {
    let mut machine = Machine::new(64 << 20);
    machine.settings.read_ahead_bytes = 64 << 10;
    let fs = machine.open();
    let open = file(&fs, "/f");
    open.write(&pattern(3, 10 * BLOCK_BYTES)).expect("written");
    open.sync().expect("synced");
    let RecordBody::Runs(runs) = body(&open) else { panic!("few blocks") };
    let ino = open.node().ino();
    let place = runs[0].find(6).expect("written").0;
    drop(open);
    fs.close().expect("closed");
    machine.device.region().write(usize::try_from(place.byte()).expect("small") + 1000, b"damage");
    let fs = machine.open();
    let open = file(&fs, "/f");
    let mut bytes = vec![0; 3 * BLOCK_BYTES];
    // Blocks ahead that nobody asked for do no harm.
    for at in [0, 3] {
        assert_eq!(open.read_at(&mut bytes, at * BLOCK_BYTES as u64), Ok(bytes.len()));
    }
    let error = open.read_at(&mut bytes, 5 * BLOCK_BYTES as u64).expect_err("damaged");
    assert_eq!(error, Error::Checksum { ino, offset: 6 * BLOCK_BYTES as u64, block: place.0 });
    assert_eq!(error.errno(), Errno::IO);
    assert_eq!(open.read_at(&mut bytes, 7 * BLOCK_BYTES as u64), Ok(bytes.len()));
    // Written anew it is whole again.
    open.write_at(&pattern(9, BLOCK_BYTES), 6 * BLOCK_BYTES as u64).expect("written");
    assert_eq!(content(&open)[6 * BLOCK_BYTES..7 * BLOCK_BYTES], pattern(9, BLOCK_BYTES));
}

#[test]
fn a_full_device_takes_what_it_can_keep_and_room_comes_back() {
    let machine = Machine::new(24 << 20);
    let fs = machine.open();
    let open = file(&fs, "/f");
    let piece = pattern(4, 1 << 20);
    let mut written = 0;
    let error = loop {
        match open.write_at(&piece, written as u64) {
            Ok(done) => written += done,
            Err(error) => break error,
        }
    };
    assert_eq!(error.errno(), Errno::NOSPC);
    open.sync().expect("what was taken has its place");
    let all = content(&open);
    assert!(all.len() == written && all.chunks(piece.len()).all(|chunk| *chunk == piece[..chunk.len()]));
    open.set_len(1 << 20).expect("cut");
    let other = file(&fs, "/g");
    assert_eq!(other.write(&piece), Ok(piece.len()));
    other.sync().expect("synced");
    fs.unlink(fs.root(), b"/f", &root()).expect("there");
    drop((open, other));
    close_clean(fs, &machine);
}

#[test]
fn holes_and_data_are_found() {
    let machine = Machine::new(64 << 20);
    let fs = machine.open();
    let open = file(&fs, "/f");
    open.write_at(b"x", 1 << 20).expect("written");
    open.write_at(b"y", 3 << 20).expect("written");
    for synced in [false, true] {
        assert_eq!(open.seek(SeekFrom::Data(0)), Ok(1 << 20));
        assert_eq!(open.seek(SeekFrom::Hole(1 << 20)), Ok((1 << 20) + 4096));
        assert_eq!(open.seek(SeekFrom::Data((1 << 20) + 4096)), Ok(3 << 20));
        assert_eq!(open.seek(SeekFrom::Hole(3 << 20)), Ok((3 << 20) + 1));
        assert_eq!(open.seek(SeekFrom::Data((3 << 20) + 1)).map_err(|error| error.errno()), Err(Errno::NXIO));
        if !synced {
            open.sync().expect("synced");
        }
    }
    assert_eq!(open.node().stat().expect("held").blocks, 16);
}

#[test]
fn what_is_nearly_too_much_is_written_back_by_another_thread() {
    const LIMIT: u64 = 4 << 20;
    let mut machine = Machine::new(128 << 20);
    (machine.settings.dirty_bytes, machine.settings.write_back) = (LIMIT as usize, std::time::Duration::from_secs(3600));
    let fs = machine.open();
    let mut files = 0;
    let mut write = || {
        file(&fs, &format!("/{files}")).write_at(&pattern(files, 32 << 10), 0).expect("written");
        files += 1;
    };
    // Up to where the next one will wake it.
    while fs.core().unwritten() <= LIMIT / 16 * 15 - (40 << 10) {
        write();
    }
    write();
    // Nobody else writes back any more.
    while fs.core().unwritten() > LIMIT / 8 * 7 {
        std::thread::yield_now();
    }
    (0..files).for_each(|n| assert!(content(&file(&fs, &format!("/{n}"))) == pattern(n, 32 << 10)));
    fs.close().expect("closed");
}

#[test]
fn many_threads_read_write_and_rename_at_once() {
    let mut machine = Machine::new(128 << 20);
    (machine.settings.dirty_bytes, machine.settings.cache_bytes) = (1 << 20, 1 << 20);
    let fs = machine.open();
    for n in 0..4 {
        drop(fs.mkdir(fs.root(), format!("/{n}").as_bytes(), 0o755, &root()).expect("made"));
    }
    std::thread::scope(|scope| {
        for n in 0..4u64 {
            let fs = &fs;
            scope.spawn(move || {
                for round in 0..60 {
                    let name = format!("/{n}/f{}", round % 5);
                    let open = file(fs, &name);
                    let bytes = pattern(n * 1000 + round, 50_000);
                    open.set_len(0).expect("cut");
                    open.write_at(&bytes, 0).expect("written");
                    if round % 7 == 0 {
                        open.sync().expect("synced");
                    }
                    let moved = format!("/{}/moved{n}", (n + 1) % 4);
                    fs.rename(fs.root(), name.as_bytes(), fs.root(), moved.as_bytes(), rustix::fs::RenameFlags::empty(), &root())
                        .expect("renamed");
                    assert!(content(&open) == bytes);
                    fs.stat(fs.root(), moved.as_bytes(), true, &root()).expect("there");
                    if round % 3 == 0 {
                        fs.unlink(fs.root(), moved.as_bytes(), &root()).expect("there");
                        assert!(content(&open) == bytes);
                    }
                }
            });
        }
        let fs = &fs;
        scope.spawn(move || {
            for round in 0..40 {
                let (a, b) = if round % 2 == 0 { ("/z", "/z2") } else { ("/z2", "/z") };
                let _ = fs.mkdir(fs.root(), b"/z", 0o755, &root());
                let _ = fs.rename(fs.root(), a.as_bytes(), fs.root(), b.as_bytes(), rustix::fs::RenameFlags::empty(), &root());
                fs.sync().expect("synced");
            }
        });
    });
    close_clean(fs, &machine);
}

/// At the limits each call answers as the kernel does for ext4, and nothing has changed after one that fails.
#[test]
fn limits_are_the_kernel_s() {
    const MAX: u64 = i64::MAX as u64;
    let machine = Machine::new(64 << 20);
    let fs = machine.open();
    let open = file(&fs, "/f");
    open.write_at(b"here", 0).expect("written");
    let (inval, fbig) = (Err(Errno::INVAL), Err(Errno::FBIG));
    let no = |error: Error| error.errno();
    for at in [1 << 56, SIZE_MAX, MAX - 4] {
        assert_eq!(open.write_at(b"more", at).map_err(no), fbig, "write at {at}");
        assert_eq!(open.read_at(&mut [0; 4], at).map_err(no), Ok(0), "read at {at}");
        assert_eq!(open.write_at(b"", at).map_err(no), Ok(0), "write nothing at {at}");
    }
    for at in [MAX - 3, MAX, MAX + 1, u64::MAX - 2, u64::MAX] {
        assert_eq!(open.write_at(b"more", at).map_err(no), inval, "write at {at}");
        assert_eq!(open.read_at(&mut [0; 4], at).map_err(no), inval, "read at {at}");
    }
    // What fits is written.
    assert_eq!(open.write_at(b"more", SIZE_MAX - 2).map_err(no), Ok(2));
    open.set_len(4).expect("cut");
    for size in [SIZE_MAX + 1, 1 << 56, MAX] {
        assert_eq!(open.set_len(size).map_err(no), Err(Errno::FBIG), "{size}");
        assert_eq!(fs.truncate(fs.root(), b"/f", size, &super::root()).map_err(no), Err(Errno::FBIG), "{size}");
        let kept = open.allocate(FallocateFlags::KEEP_SIZE, size - 2, 4).map_err(no);
        assert_eq!(kept, Err(Errno::FBIG), "{size}");
        let punched = open.allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, size - 2, 4).map_err(no);
        assert_eq!(punched, Err(Errno::FBIG), "{size}");
    }
    for size in [MAX + 1, u64::MAX] {
        assert_eq!(open.set_len(size).map_err(no), Err(Errno::INVAL), "{size}");
        assert_eq!(open.allocate(FallocateFlags::empty(), 0, size).map_err(no), Err(Errno::INVAL), "{size}");
        assert_eq!(open.allocate(FallocateFlags::empty(), size, 1).map_err(no), Err(Errno::INVAL), "{size}");
    }
    for to in [SIZE_MAX + 1, MAX, u64::MAX] {
        assert_eq!(open.seek(SeekFrom::Start(to)).map_err(no), Err(Errno::INVAL), "{to}");
        assert_eq!(open.seek(SeekFrom::Data(to)).map_err(no), Err(Errno::NXIO), "{to}");
        assert_eq!(open.seek(SeekFrom::Hole(to)).map_err(no), Err(Errno::NXIO), "{to}");
    }
    assert_eq!(open.seek(SeekFrom::End(i64::MAX)).map_err(no), Err(Errno::INVAL));
    let mut transaction = fs.begin();
    assert_eq!(transaction.write_at(&open, b"more", SIZE_MAX - 2).map_err(no), Err(Errno::FBIG));
    assert_eq!(transaction.set_len(&open, MAX).map_err(no), Err(Errno::FBIG));
    // The longest file there can be.
    open.set_len(SIZE_MAX).expect("set");
    assert_eq!(open.write_at(b"more", SIZE_MAX).map_err(no), fbig);
    assert_eq!(open.seek(SeekFrom::End(0)).map_err(no), Ok(SIZE_MAX));
    open.set_len(4).expect("cut");
    assert_eq!(content(&open), b"here");
    drop(transaction);
    drop(open);
    close_clean(fs, &machine);
}

/// What is promised to a file is its, whatever others write or set aside.
#[test]
fn promised_blocks_are_there_when_they_are_written() {
    let machine = Machine::new(16 << 20);
    let fs = machine.open();
    let (kept, other) = (file(&fs, "/kept"), file(&fs, "/other"));
    kept.reserve(100).expect("room");
    let free = fs.stat_fs().free;
    assert_eq!(fs.stat_fs().blocks - free, 100 + fs.stat_fs().blocks - fs.store().blocks_free());
    assert!(kept.reserve(free + 101).is_err() && kept.reserve(free + 100).is_ok() && kept.reserve(100).is_ok());
    let mut at = 0;
    while let Ok(done) = other.write_at(&[1; BLOCK_BYTES], at)
        && done > 0
    {
        at += done as u64;
    }
    assert_eq!(other.write_at(&[1; BLOCK_BYTES], at).map_err(|error| error.errno()), Err(Errno::NOSPC));
    assert_eq!(other.allocate(FallocateFlags::empty(), at, 4096).map_err(|error| error.errno()), Err(Errno::NOSPC));
    for n in 0..100 {
        assert_eq!(kept.write_at(&[2; BLOCK_BYTES], n * BLOCK_BYTES as u64).expect("promised"), BLOCK_BYTES);
    }
    kept.sync().expect("synced");
    other.sync().expect("what was taken has room");
    drop((kept, other));
    close_clean(fs, &machine);
}
