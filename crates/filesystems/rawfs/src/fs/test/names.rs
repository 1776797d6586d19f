use rustix::fs::{OFlags, RenameFlags, SeekFrom, XattrFlags};
use rustix::io::Errno;

use super::{Machine, close_clean, content, file, root};
use crate::fs::check::check;
use crate::fs::record::{NLINK_AT, NameValue};
use crate::fs::{Creds, File, FileKind, Fs, Node, key};
use crate::{Batch, TreeId};

fn mkdir(fs: &Fs, path: &str) {
    drop(fs.mkdir(fs.root(), path.as_bytes(), 0o755, &root()).expect("made"));
}

fn rename(fs: &Fs, from: &str, to: &str) {
    fs.rename(fs.root(), from.as_bytes(), fs.root(), to.as_bytes(), RenameFlags::empty(), &root()).expect("renamed");
}

fn is_zone(fs: &Fs, key: &[u8]) -> bool {
    let mut value = Vec::new();
    assert!(fs.store().get(TreeId::Names, key, &mut value).expect("read"));
    matches!(NameValue::parse(&value), Ok(NameValue::Here(record)) if record.zone)
}

#[test]
fn deep_directories_become_zones_and_work_as_others() {
    let machine = Machine::new(64 << 20);
    let fs = machine.open();
    let mut path = String::new();
    for n in 0..40 {
        path += &format!("/{}{n}", "d".repeat(100));
        if path.len() < 4000 {
            mkdir(&fs, &path);
            file(&fs, &format!("{path}/f")).write(path.as_bytes()).expect("written");
        }
    }
    let mut at = String::new();
    for n in 0..38 {
        at += &format!("/{}{n}", "d".repeat(100));
        let found = content(&file(&fs, &format!("{at}/f")));
        assert_eq!(found, at.as_bytes());
    }
    // A held directory goes further than any path.
    let mut dir = fs.lookup(fs.root(), at.as_bytes(), true, &root()).expect("there");
    for _ in 0..60 {
        dir = fs.mkdir(&dir, "e".repeat(255).as_bytes(), 0o755, &root()).expect("made");
    }
    let deep = fs.open_at(&dir, b"f", OFlags::RDWR | OFlags::CREATE, 0o644, &root()).expect("made");
    deep.write(b"deep").expect("written");
    rename(&fs, &format!("/{}0", "d".repeat(100)), "/short");
    assert_eq!(content(&deep), b"deep");
    drop((dir, deep));
    close_clean(fs, &machine);
}

#[test]
fn a_large_directory_with_a_longer_name_becomes_a_zone_a_small_one_does_not() {
    let machine = Machine::new(64 << 20);
    let fs = machine.open();
    mkdir(&fs, "/small");
    mkdir(&fs, "/large");
    mkdir(&fs, "/large/sub");
    for n in 0..400 {
        drop(file(&fs, &format!("/large/sub/{n}")));
    }
    drop(file(&fs, "/small/f"));
    let open = file(&fs, "/large/sub/7");
    rename(&fs, "/small", "/small with a longer name");
    rename(&fs, "/large", "/large with a longer name");
    let begin = key::KeyPrefix::root();
    assert!(!is_zone(&fs, &begin.entry(b"small with a longer name")));
    assert!(is_zone(&fs, &begin.entry(b"large with a longer name")));
    open.write(b"seven").expect("written");
    assert_eq!(content(&file(&fs, "/large with a longer name/sub/7")), b"seven");
    // A zone moves alone.
    rename(&fs, "/large with a longer name", "/large");
    assert_eq!(content(&file(&fs, "/large/sub/7")), b"seven");
    assert_eq!(fs.stat(fs.root(), b"/large", true, &root()).expect("there").nlink, 3);
    drop(open);
    close_clean(fs, &machine);
}

#[test]
fn a_listing_tells_once_what_is_there_all_the_time() {
    let machine = Machine::new(64 << 20);
    let fs = machine.open();
    mkdir(&fs, "/d");
    for n in 0..1000 {
        drop(file(&fs, &format!("/d/{n:04}")));
    }
    let dir = fs.open_at(fs.root(), b"/d", OFlags::DIRECTORY, 0, &root()).expect("opened");
    let (mut listed, mut cut) = (Vec::new(), 0);
    loop {
        let mut room = 7;
        let before = listed.len();
        dir.read_dir(&mut |entry, _| {
            if room > 0 {
                listed.push(String::from_utf8(entry.name.clone()).expect("ours"));
            }
            room -= 1;
            room >= 0
        })
        .expect("listed");
        if listed.len() == before {
            break;
        }
        // Even ones go before they are listed, others come.
        for n in (cut..cut + 12).filter(|n| n % 2 == 0 && *n < 1000) {
            fs.unlink(fs.root(), format!("/d/{n:04}").as_bytes(), &root()).expect("there");
        }
        drop(file(&fs, &format!("/d/new{cut}")));
        cut += 12;
    }
    for n in (1..1000).step_by(2) {
        let name = format!("{n:04}");
        assert_eq!(listed.iter().filter(|listed| **listed == name).count(), 1, "{name}");
    }
}

#[test]
fn what_is_open_is_bounded_and_forgotten() {
    let machine = Machine::new(64 << 20);
    let fs = machine.open();
    mkdir(&fs, "/d");
    for n in 0..500 {
        let name = format!("/d/{n}");
        file(&fs, &name).write(b"x").expect("written");
        fs.stat(fs.root(), name.as_bytes(), true, &root()).expect("there");
    }
    fs.sync().expect("synced");
    assert_eq!(fs.in_use(), 1, "the top");
    close_clean(fs, &machine);
}

#[test]
fn a_removed_file_is_there_until_its_last_handle_goes() {
    let machine = Machine::new(64 << 20);
    let fs = machine.open();
    // Beside it nothing changes that is not undone.
    fs.sync().expect("synced");
    let free = fs.store().usage().blocks_free;
    let open = file(&fs, "/f");
    open.write(&vec![5; 3 << 20]).expect("written");
    open.sync().expect("synced");
    fs.unlink(fs.root(), b"/f", &root()).expect("there");
    assert_eq!(fs.stat(fs.root(), b"/f", true, &root()).map_err(|error| error.errno()), Err(Errno::NOENT));
    open.write(b"more").expect("written");
    assert_eq!((content(&open).len(), open.node().stat().expect("held").nlink), ((3 << 20) + 4, 0));
    assert_eq!(fs.link(open.node(), fs.root(), b"/g", &root()).map_err(|error| error.errno()), Err(Errno::NOENT));
    drop(open);
    fs.sync().expect("synced");
    assert_eq!(fs.store().usage().blocks_free, free);
    close_clean(fs, &machine);
}

#[test]
fn what_is_wrong_is_found_and_explained() {
    let machine = Machine::new(64 << 20);
    let fs = machine.open();
    mkdir(&fs, "/d");
    let a = file(&fs, "/d/a");
    a.write(&vec![1; 20_000]).expect("written");
    fs.link(a.node(), fs.root(), b"/d/b", &root()).expect("linked");
    fs.set_xattr(a.node(), b"user.x", b"y", XattrFlags::empty(), &root()).expect("set");
    let ino = a.node().ino();
    drop(a);
    fs.close().expect("closed");
    let store = machine.store();
    assert_eq!(check(&store).expect("read").findings, []);
    let dir = key::KeyPrefix::root().below(b"d");
    let mut batch = Batch::new();
    batch.delete(TreeId::Names, &dir.entry(b"b"));
    batch.delete(TreeId::Files, &key::file(ino, key::FileItem::Xattrs, 0));
    batch.patch(TreeId::Names, &key::KeyPrefix::root().entry(b"d"), NLINK_AT, &7u32.to_le_bytes());
    batch.put(TreeId::Names, &key::KeyPrefix::root().below(b"nowhere").entry(b"f"), &crate::fs::record::link(ino, FileKind::File));
    batch.put(TreeId::Names, b"no key", b"");
    let leaked = store.allocate(None, 3).expect("room");
    batch.use_blocks(leaked, &[]);
    store.apply(batch).expect("applied");
    let found: Vec<String> = check(&store).expect("read").findings.iter().map(ToString::to_string).collect();
    for part in [
        "a key that names nothing",
        "/nowhere/f: its directory cannot",
        "says 7 links, there are 2",
        "Xattrs item is missing",
        "belong to no file",
    ] {
        assert!(found.iter().any(|finding| finding.contains(part)), "{part}: {found:#?}");
    }
    assert_eq!(found.len(), 5, "{found:#?}");
}

/// A zone's beginning is longer than a short name is.
#[test]
fn a_large_directory_with_a_short_name_may_get_a_longer_one() {
    let machine = Machine::new(64 << 20);
    let fs = machine.open();
    mkdir(&fs, "/r");
    for number in 0..3000 {
        drop(file(&fs, &format!("/r/file {number}")));
    }
    for (from, to) in [("/r", "/a longer name"), ("/a longer name", "/another name that is longer"), ("/another name that is longer", "/s")]
    {
        rename(&fs, from, to);
        for number in [0, 1500, 2999] {
            fs.stat(fs.root(), format!("{to}/file {number}").as_bytes(), true, &root()).expect("there");
        }
    }
    close_clean(fs, &machine);
}

/// Of a removed directory, too: as ext4 has it.
#[test]
fn who_has_a_removed_directory_has_its_attributes_and_what_its_list_says() {
    // All for all, and nothing for one user.
    let entries: [(u16, u16, u32); 5] = [(1, 7, u32::MAX), (2, 0, 5), (4, 7, u32::MAX), (0x10, 7, u32::MAX), (0x20, 7, u32::MAX)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        list.extend([tag.to_le_bytes(), perm.to_le_bytes()].concat());
        list.extend(id.to_le_bytes());
    }
    let machine = Machine::new(64 << 20);
    let fs = machine.open();
    let refused = Creds { uid: 5, ..root() };
    let errno = |dir: &Node, creds: &Creds| fs.stat(dir, b"x", true, creds).map_err(|error| error.errno()).map(drop);
    for how in 0..3 {
        let dir = fs.mkdir(fs.root(), b"/d", 0o777, &root()).expect("made");
        fs.set_xattr(&dir, b"system.posix_acl_access", &list, XattrFlags::empty(), &root()).expect("set");
        fs.set_xattr(&dir, b"user.a", b"1", XattrFlags::empty(), &root()).expect("set");
        assert_eq!((errno(&dir, &refused), errno(&dir, &root())), (Err(Errno::ACCESS), Err(Errno::NOENT)));
        match how {
            0 => fs.rmdir(fs.root(), b"/d", &root()).expect("empty"),
            1 => {
                mkdir(&fs, "/other");
                fs.rename(fs.root(), b"/other", fs.root(), b"/d", RenameFlags::empty(), &root()).expect("over an empty one");
                fs.rmdir(fs.root(), b"/d", &root()).expect("empty");
            }
            _ => {
                let mut transaction = fs.begin();
                transaction.rmdir(fs.root(), b"/d", &root()).expect("one more");
                fs.commit(transaction).expect("committed");
            }
        }
        assert_eq!((errno(&dir, &refused), errno(&dir, &root())), (Err(Errno::ACCESS), Err(Errno::NOENT)), "{how}");
        assert_eq!(fs.get_xattr(&dir, b"user.a", &root()).expect("kept"), b"1", "{how}");
        fs.set_xattr(&dir, b"user.b", b"2", XattrFlags::CREATE, &root()).expect("set");
        assert_eq!(fs.get_xattr(&dir, b"user.b", &root()).expect("set before"), b"2", "{how}");
    }
    close_clean(fs, &machine);
}

/// Entries from a position on, at most so many: names, each with the position behind it.
fn some_entries(dir: &File, from: u64, most: usize) -> Vec<(Vec<u8>, u64)> {
    let mut got = Vec::new();
    dir.seek(SeekFrom::Start(from)).expect("a position");
    dir.read_dir(&mut |entry, behind| {
        let room = got.len() < most;
        if room {
            got.push((entry.name.clone(), behind));
        }
        room
    })
    .expect("listed");
    got
}

/// As a server for NFS lists: each time with another handle, after changes and remounts; what was there all the time comes once.
#[test]
fn a_position_is_the_same_for_every_handle_and_after_changes() {
    let mut rng = crate::testing::rng();
    for (entries, each) in [(0, 3), (1, 1), (40, 7), (2000, 128), (if crate::testing::full() { 100_000 } else { 9000 }, 3000)] {
        let machine = Machine::new(256 << 20);
        let mut fs = machine.open();
        fs.mkdir(fs.root(), b"/d", 0o755, &root()).expect("made");
        let make = |fs: &Fs, n: u64| {
            let path = format!("/d/some file {n}");
            fs.mknod(fs.root(), path.as_bytes(), FileKind::Fifo, 0o644, 0, &root()).expect("made");
        };
        (0..entries).for_each(|n| make(&fs, n));
        let (mut kept, mut next) = ((0..entries).collect::<std::collections::BTreeSet<u64>>(), entries);
        let (mut seen, mut at, mut turn) = (std::collections::HashMap::<Vec<u8>, u32>::new(), 0, 0);
        loop {
            let dir = fs.open_at(fs.root(), b"/d", OFlags::DIRECTORY, 0, &root()).expect("opened");
            let got = some_entries(&dir, at, each);
            let Some((_, behind)) = got.last() else { break };
            // Back and forth again on the same handle gives the same.
            if let [.., (_, to), _] = &got[..] {
                let again = some_entries(&dir, *to, 1);
                assert_eq!(again.first(), got.last(), "{entries} entries");
                assert_eq!(some_entries(&dir, *behind, 0), []);
            }
            at = *behind;
            got.into_iter().for_each(|(name, _)| *seen.entry(name).or_default() += 1);
            drop(dir);
            for _ in 0..rng.u64(0..4) {
                match kept.range(rng.u64(..=entries)..).next().copied() {
                    Some(n) if rng.bool() => {
                        kept.remove(&n);
                        fs.unlink(fs.root(), format!("/d/some file {n}").as_bytes(), &root()).expect("removed");
                    }
                    _ => {
                        make(&fs, next);
                        next += 1;
                    }
                }
            }
            turn += 1;
            if turn % 4 == 0 {
                fs.close().expect("closed");
                fs = machine.open();
            }
        }
        let names = kept.iter().map(|n| format!("some file {n}").into_bytes()).chain([b".".to_vec(), b"..".to_vec()]);
        names.for_each(|name| assert_eq!(seen.get(&name), Some(&1), "{:?} of {entries}", String::from_utf8_lossy(&name)));
        // What was made before a handle was opened is seen by it.
        let dir = || fs.open_at(fs.root(), b"/d", OFlags::DIRECTORY, 0, &root()).expect("opened");
        let all = some_entries(&dir(), 0, usize::MAX);
        fs.mknod(fs.root(), b"/d/new", FileKind::Fifo, 0o644, 0, &root()).expect("made");
        let from =
            all.iter().map(|(_, behind)| *behind).filter(|behind| *behind <= crate::fs::dir_window::position(b"new")).max().expect("dots");
        assert_eq!(some_entries(&dir(), from, 1)[0].0, b"new");
        close_clean(fs, &machine);
    }
}

/// Every file is found by its number: after changes of names, when it has another name than ever before, and after a remount.
// long: one scenario: a file is followed through all changes of its names.
#[test]
fn a_number_leads_to_its_file_whatever_becomes_of_its_names() {
    let mut rng = crate::testing::rng();
    let machine = Machine::new(64 << 20);
    let mut fs = machine.open();
    let mut dirs = vec![String::new()];
    let mut files: Vec<(u64, Option<String>)> = Vec::new();
    for turn in 0..400 {
        let parent = &dirs[rng.usize(..dirs.len())];
        let path = format!("{parent}/{turn}{}", "x".repeat(rng.usize(..200)));
        let path = if path.len() > 3000 { format!("/{turn}") } else { path };
        match rng.u8(..8) {
            0 | 1 => {
                let node = fs.mkdir(fs.root(), path.as_bytes(), 0o755, &root()).expect("made");
                files.push((node.ino(), Some(path.clone())));
                dirs.push(path);
            }
            2 | 3 if dirs.len() > 1 => {
                let moved = dirs[rng.usize(1..dirs.len())].clone();
                if !path.starts_with(&format!("{moved}/")) {
                    rename(&fs, &moved, &path);
                    let follow = |name: &mut String| {
                        if *name == moved || name.starts_with(&format!("{moved}/")) {
                            *name = format!("{path}{}", &name[moved.len()..]);
                        }
                    };
                    dirs.iter_mut().for_each(follow);
                    files.iter_mut().filter_map(|(_, name)| name.as_mut()).for_each(follow);
                }
            }
            4 if !files.is_empty() => {
                let n = rng.usize(..files.len());
                if let Some(name) = files[n].1.clone()
                    && fs.unlink(fs.root(), name.as_bytes(), &root()).is_ok()
                {
                    files[n].1 = None;
                }
            }
            5 if !files.is_empty() => {
                // Another name, and the first goes: the record moves.
                let n = rng.usize(..files.len());
                if let Some(name) = files[n].1.clone()
                    && let Ok(node) = fs.lookup(fs.root(), name.as_bytes(), false, &root())
                    && fs.link(&node, fs.root(), path.as_bytes(), &root()).is_ok()
                {
                    if rng.bool() {
                        fs.unlink(fs.root(), name.as_bytes(), &root()).expect("removed");
                    }
                    files[n].1 = Some(path);
                }
            }
            _ => {
                let node = fs.mknod(fs.root(), path.as_bytes(), FileKind::Fifo, 0o644, 0, &root()).expect("made");
                files.push((node.ino(), Some(path)));
            }
        }
        if turn % 40 == 39 {
            fs.close().expect("closed");
            fs = machine.open();
        }
        for (ino, name) in &files {
            match (fs.by_number(*ino), name) {
                (Ok(node), Some(name)) => {
                    let there = fs.lookup(fs.root(), name.as_bytes(), false, &root()).map(|node| node.ino());
                    assert!(node.ino() == *ino && node.stat().is_ok() && (there.ok() == Some(*ino) || name.len() > 4000), "{ino}");
                }
                (Err(error), None) => assert_eq!(error.errno(), Errno::STALE),
                // The other name is still there.
                (Ok(node), None) => assert!(node.stat().expect("held").nlink > 0),
                (Err(error), Some(name)) => panic!("{ino} ({name}): {error}"),
            }
        }
    }
    for ino in [0, u64::MAX, 1 << 62, 5000] {
        assert_eq!(fs.by_number(ino).map(|node| node.ino()).map_err(|error| error.errno()), Err(Errno::STALE), "{ino}");
    }
    assert_eq!(fs.by_number(1).expect("the top").ino(), 1);
    close_clean(fs, &machine);
}

/// Directories that are found by their numbers, one in the other, deeper than a stack is; and a file that was remembered in one of
/// them, which is removed.
#[test]
fn a_file_is_found_by_its_number_however_deep_and_where_it_was_moved_to() {
    let machine = Machine::new(64 << 20);
    let mut fs = machine.open();
    let name = [b'd'; 250];
    let (mut dir, mut dirs) = (fs.root().clone(), Vec::new());
    for _ in 0..1500 {
        dir = fs.mkdir(&dir, &name, 0o755, &root()).expect("made");
        dirs.push(dir.ino());
    }
    let file = fs.mknod(&dir, b"f", FileKind::Fifo, 0o644, 0, &root()).expect("made").ino();
    drop(dir);
    fs.close().expect("closed");
    fs = machine.open();
    assert_eq!(fs.by_number(file).expect("there").ino(), file);
    for ino in dirs.iter().rev().take(5) {
        assert_eq!(fs.by_number(*ino).expect("there").ino(), *ino);
    }
    let last = fs.by_number(dirs[1499]).expect("there");
    fs.rename(&last, b"f", fs.root(), b"f", RenameFlags::empty(), &root()).expect("moved");
    drop(last);
    for above in dirs[1480..1499].iter().rev() {
        let above = fs.by_number(*above).expect("there");
        fs.rmdir(&above, &name, &root()).expect("removed");
    }
    assert_eq!(fs.by_number(file).expect("there").ino(), file);
    assert_eq!(fs.by_number(dirs[1499]).map(|node| node.ino()).map_err(|error| error.errno()), Err(Errno::STALE));
    close_clean(fs, &machine);
}
