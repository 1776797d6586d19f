//! A directory whose names are remembered: own changes are seen at once, those of other programs after a check.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use fusedev::{Caller, SetAttr};
use rustix::fs::RenameFlags;
use rustix::io::Errno;
use tempfile::TempDir;

use crate::{Change, DirectoryFs, NewNode, NoCache, ROOT};

const LONG: Duration = Duration::from_secs(3600);

fn me() -> Caller {
    Caller { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw(), pid: std::process::id() }
}

fn remembering(temp: &TempDir, ttl: Duration) -> DirectoryFs<NoCache> {
    let mut fs = DirectoryFs::open(temp.path(), NoCache, false).expect("opened");
    fs.remember_names(ttl);
    fs
}

fn names(fs: &DirectoryFs<NoCache>, directory: u64) -> BTreeSet<String> {
    let listing = fs.open_listing(me(), directory).expect("opened");
    let mut names = BTreeSet::new();
    let mut add = |entry: crate::Entry| {
        if !entry.is_dots() {
            names.insert(entry.name.into_string().expect("text"));
        }
        true
    };
    fs.list(me(), &listing, 0, &mut add).expect("listed");
    names
}

fn checks(fs: &DirectoryFs<NoCache>) -> Vec<Change> {
    let mut changes = Vec::new();
    assert!(fs.check_next(&mut |change| changes.push(change)));
    changes
}

/// Compares all names, present and absent, of the top directory and of one below with what the file system says.
fn compare(fs: &DirectoryFs<NoCache>, temp: &TempDir, what: &str) {
    let sub = fs.lookup(me(), ROOT, OsStr::new("sub")).expect("there").number;
    for (number, path) in [(ROOT, temp.path().to_owned()), (sub, temp.path().join("sub"))] {
        let listed: BTreeSet<String> =
            fs::read_dir(&path).expect("there").map(|entry| entry.expect("there").file_name().into_string().expect("text")).collect();
        assert_eq!(names(fs, number), listed, "{what}");
        for name in ["a", "b", "c", "d"] {
            let found = fs.lookup(me(), number, OsStr::new(name));
            let real = fs::symlink_metadata(path.join(name));
            match (&found, &real) {
                (Err(error), Err(_)) => assert_eq!(*error, Errno::NOENT, "{what}: {name}"),
                (Ok(found), Ok(real)) => {
                    let looked = (found.stat.ino, u64::from(found.stat.nlink), found.stat.mode, found.stat.size);
                    assert_eq!(looked, (real.ino(), real.nlink(), real.mode(), real.size()), "{what}: {name}");
                    let again = fs.known_attributes(me(), found.number).unwrap_or(found.stat);
                    assert_eq!((again.ctime.0, i64::from(again.ctime.1)), (real.ctime(), real.ctime_nsec()), "{what}: {name}");
                }
                _ => panic!("{what}: {name}: {found:?}, {real:?}"),
            }
        }
    }
}

/// One change by the mount itself, which may fail.
fn change(fs: &DirectoryFs<NoCache>, random: &mut impl FnMut(usize) -> usize) -> String {
    let sub = fs.lookup(me(), ROOT, OsStr::new("sub")).expect("there").number;
    let mut place = || ([ROOT, sub][random(2)], ["a", "b", "c", "d"][random(4)]);
    let ((from, old), (to, new)) = (place(), place());
    let (old_name, new_name) = (OsStr::new(old), OsStr::new(new));
    let number = || fs.lookup(me(), from, old_name).map(|found| found.number);
    let (kind, done) = match random(9) {
        0 | 1 => ("create", fs.create(me(), from, old_name, (0o640, 0), false).map(drop)),
        2 => ("mkdir", fs.make(me(), from, old_name, NewNode::Directory(0o750), 0).map(drop)),
        3 => ("link", number().and_then(|number| fs.link(me(), number, to, new_name)).map(drop)),
        4 => ("unlink", fs.unlink(me(), from, old_name)),
        5 => ("rmdir", fs.rmdir(me(), from, old_name)),
        6 => ("rename", fs.rename(me(), (from, old_name), (to, new_name), RenameFlags::empty()).map(drop)),
        7 => ("exchange", fs.rename(me(), (from, old_name), (to, new_name), RenameFlags::EXCHANGE).map(drop)),
        _ => {
            let set = SetAttr { mode: Some(0o600 + random(8) as u32), ..SetAttr::default() };
            ("chmod", number().and_then(|number| fs.setattr(me(), number, &set)))
        }
    };
    format!("{kind} {from}/{old} {to}/{new}: {done:?}")
}

#[test]
fn own_changes_are_seen_at_once() {
    let temp = tempfile::tempdir().expect("a directory");
    fs::create_dir(temp.path().join("sub")).expect("made");
    let fs = remembering(&temp, LONG);
    let mut state = 42_u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for step in 0..3000 {
        let done = change(&fs, &mut random);
        compare(&fs, &temp, &format!("step {step}, {done}"));
    }
}

#[test]
fn what_is_fresh_is_answered_without_the_file_system() {
    let temp = tempfile::tempdir().expect("a directory");
    fs::write(temp.path().join("a"), "1").expect("written");
    let fs = remembering(&temp, LONG);
    assert_eq!(names(&fs, ROOT).len(), 1);
    let found = fs.lookup(me(), ROOT, OsStr::new("a")).expect("there");
    fs::write(temp.path().join("a"), "123").expect("written");
    fs::write(temp.path().join("b"), "").expect("written");
    assert_eq!((names(&fs, ROOT).len(), fs.known_attributes(me(), found.number).map(|stat| stat.size)), (1, Some(1)));
    assert_eq!(fs.lookup(me(), ROOT, OsStr::new("b")).map(drop), Err(Errno::NOENT));
    // The error of a change shows that something was wrong.
    assert_eq!(fs.make(me(), ROOT, OsStr::new("b"), NewNode::Directory(0o700), 0).map(drop), Err(Errno::EXIST));
    assert!(fs.lookup(me(), ROOT, OsStr::new("b")).is_ok());
}

#[test]
fn old_answers_are_read_again_and_changes_are_told() {
    let temp = tempfile::tempdir().expect("a directory");
    fs::write(temp.path().join("changed"), "1").expect("written");
    fs::write(temp.path().join("removed"), "1").expect("written");
    let fs = remembering(&temp, Duration::ZERO);
    let number = |name: &str| fs.lookup(me(), ROOT, OsStr::new(name)).map(|found| found.number);
    names(&fs, ROOT);
    let changed = number("changed").expect("there");
    number("removed").expect("there");
    fs::write(temp.path().join("changed"), "123").expect("written");
    fs::remove_file(temp.path().join("removed")).expect("removed");
    fs::write(temp.path().join("new"), "").expect("written");
    // Answered as before, once.
    assert!(number("removed").is_ok() && fs.known_attributes(me(), changed).map(|stat| stat.size) == Some(1));
    let changes = checks(&fs);
    let name = |name: &str| Change::Name { parent: ROOT, name: name.into() };
    for change in [name("removed"), name("new"), Change::Attributes(changed)] {
        assert!(changes.contains(&change), "{change:?} of {changes:?}");
    }
    assert_eq!((number("removed"), number("new").is_ok()), (Err(Errno::NOENT), true));
    assert_eq!(fs.known_attributes(me(), changed).map(|stat| stat.size), Some(3));
    fs.end_checks();
    assert!(!fs.check_next(&mut |_| {}));
}

#[test]
fn a_file_that_is_written_is_not_answered_from_memory() {
    let temp = tempfile::tempdir().expect("a directory");
    fs::write(temp.path().join("a"), "1").expect("written");
    let fs = remembering(&temp, LONG);
    let number = fs.lookup(me(), ROOT, OsStr::new("a")).expect("there").number;
    fs.add_writer(number);
    assert_eq!((fs.known_attributes(me(), number), fs.fresh_attributes(number)), (None, None));
    fs::write(temp.path().join("a"), "123").expect("written");
    assert_eq!(fs.lookup(me(), ROOT, OsStr::new("a")).expect("there").stat.size, 3);
    fs.remove_writer(number);
    assert_eq!(fs.known_attributes(me(), number), None);
    assert_eq!(fs.lookup(me(), ROOT, OsStr::new("a")).expect("there").stat.size, 3);
}

/// Saves what is remembered of a small tree, changes the bytes, and loads them into another mount.
fn loaded(temp: &TempDir, change: impl Fn(Vec<u8>) -> Vec<u8>) -> DirectoryFs<NoCache> {
    fs::create_dir(temp.path().join("sub")).expect("made");
    fs::write(temp.path().join("sub/file"), "12").expect("written");
    let fs = remembering(temp, LONG);
    let sub = fs.lookup(me(), ROOT, OsStr::new("sub")).expect("there").number;
    names(&fs, ROOT);
    names(&fs, sub);
    fs.lookup(me(), sub, OsStr::new("file")).expect("there");
    let bytes = fs.save_names("it").expect("saved");
    let fs = remembering(temp, LONG);
    assert!(fs.load_names(&change(bytes), "it"));
    fs
}

#[test]
fn loaded_files_are_opened_when_something_needs_them() {
    for change in [|bytes| bytes, |bytes: Vec<u8>| crate::saved::without_births(&bytes)] {
        let temp = tempfile::tempdir().expect("a directory");
        let fs = loaded(&temp, change);
        let sub = fs.lookup(me(), ROOT, OsStr::new("sub")).expect("known");
        let file = fs.lookup(me(), sub.number, OsStr::new("file")).expect("known");
        assert!(sub.node.is_none() && file.node.is_none() && names(&fs, sub.number).len() == 1);
        let real = fs::metadata(temp.path().join("sub/file")).expect("there").ino();
        assert_eq!(fs.getattr(me(), file.number).expect("found").ino, real);
        // By whatever way it is found, it has one number.
        assert_eq!(fs.lookup(me(), sub.number, OsStr::new("file")).expect("known").number, file.number);
        checks(&fs);
        assert_eq!(fs.lookup(me(), sub.number, OsStr::new("file")).expect("known").number, file.number);
    }
}

#[test]
fn a_loaded_name_of_another_file_is_stale_once() {
    for change in [|bytes| bytes, |bytes: Vec<u8>| crate::saved::without_births(&bytes)] {
        let temp = tempfile::tempdir().expect("a directory");
        let fs = loaded(&temp, change);
        let path = temp.path().join("sub/file");
        fs::remove_file(&path).expect("removed");
        fs::write(&path, "another").expect("written");
        let sub = fs.lookup(me(), ROOT, OsStr::new("sub")).expect("known").number;
        let old = fs.lookup(me(), sub, OsStr::new("file")).expect("known");
        assert_eq!((old.stat.size, fs.getattr(me(), old.number).map(drop)), (2, Err(Errno::STALE)));
        let new = fs.lookup(me(), sub, OsStr::new("file")).expect("there");
        assert_eq!((new.stat.size, fs.getattr(me(), new.number).map(|stat| stat.size)), (7, Ok(7)));
    }
}

#[test]
fn only_memory_answers_while_the_file_system_is_away_and_nothing_is_forgotten() {
    let temp = TempDir::new().expect("a directory");
    fs::create_dir(temp.path().join("sub")).expect("made");
    fs::write(temp.path().join("file"), "data").expect("written");
    std::os::unix::fs::symlink("file", temp.path().join("link")).expect("made");
    let mut directory = remembering(&temp, Duration::ZERO);
    let is_away = Arc::new(AtomicBool::new(false));
    directory.fail_while(Arc::clone(&is_away));
    let all = names(&directory, ROOT);
    let file = directory.lookup(me(), ROOT, OsStr::new("file")).expect("there");
    let link = directory.lookup(me(), ROOT, OsStr::new("link")).expect("there").number;
    assert_eq!(directory.readlink(me(), link), Ok(b"file".to_vec()));
    is_away.store(true, Relaxed);
    for _ in 0..2 {
        assert_eq!(names(&directory, ROOT), all);
        let again = directory.lookup(me(), ROOT, OsStr::new("file")).expect("remembered");
        assert_eq!((again.number, again.stat.size), (file.number, 4));
        assert_eq!(directory.last_stat(file.number).map(|stat| stat.size), Some(4));
        assert_eq!(directory.readlink(me(), link), Ok(b"file".to_vec()));
        assert_eq!(directory.lookup(me(), ROOT, OsStr::new("none")).err(), Some(Errno::NOENT));
        // Not looked at before.
        assert_eq!(directory.lookup(me(), ROOT, OsStr::new("sub")).err(), Some(Errno::TIMEDOUT));
        assert_eq!(directory.getattr(me(), file.number).err(), Some(Errno::TIMEDOUT));
        assert_eq!(directory.make(me(), ROOT, OsStr::new("new"), NewNode::Directory(0o755), 0).err(), Some(Errno::TIMEDOUT));
        // What would be read again in the background stays as it is.
        assert_eq!(checks(&directory), []);
    }
    is_away.store(false, Relaxed);
    assert!(directory.lookup(me(), ROOT, OsStr::new("sub")).is_ok());
    fs::remove_file(temp.path().join("file")).expect("removed");
    assert!(directory.lookup(me(), ROOT, OsStr::new("file")).is_ok());
    assert!(checks(&directory).contains(&Change::Name { parent: ROOT, name: "file".into() }));
}

#[test]
fn programs_with_set_id_bits_are_never_answered_from_memory() {
    let temp = tempfile::tempdir().expect("a directory");
    let path = temp.path().join("program");
    fs::write(&path, "").expect("written");
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o4755)).expect("set");
    let fs = remembering(&temp, LONG);
    let look = || fs.lookup(me(), ROOT, OsStr::new("program")).expect("there");
    let number = look().number;
    assert_eq!(look().stat.mode & 0o7777, 0o4755);
    assert_eq!((fs.known_attributes(me(), number), fs.fresh_attributes(number)), (None, None));
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("set");
    assert_eq!(look().stat.mode & 0o7777, 0o755);
}

#[test]
fn a_removed_file_stays_open_for_whoever_was_promised_it() {
    let temp = tempfile::tempdir().expect("a directory");
    let fs = loaded(&temp, |bytes| bytes);
    let sub = fs.lookup(me(), ROOT, OsStr::new("sub")).expect("known").number;
    let file = fs.lookup(me(), sub, OsStr::new("file")).expect("known").number;
    fs.unlink(me(), sub, OsStr::new("file")).expect("removed");
    assert_eq!(fs.getattr(me(), file).map(|stat| (stat.size, stat.nlink)), Ok((2, 0)));
}

#[test]
fn a_listing_does_not_count_as_a_look_at_the_attributes() {
    let temp = tempfile::tempdir().expect("a directory");
    fs::write(temp.path().join("a"), "1").expect("written");
    let fs = remembering(&temp, Duration::from_millis(50));
    let number = fs.lookup(me(), ROOT, OsStr::new("a")).expect("there").number;
    fs::write(temp.path().join("a"), "123").expect("written");
    let begun = std::time::Instant::now();
    while fs.fresh_attributes(number).is_some() {
        assert!(begun.elapsed() < LONG);
        std::thread::yield_now();
    }
    names(&fs, ROOT);
    fs.known_attributes(me(), number);
    checks(&fs);
    assert_eq!(fs.known_attributes(me(), number).map(|stat| stat.size), Some(3));
}

#[test]
fn the_attributes_of_one_file_are_read_again_at_once() {
    let temp = tempfile::tempdir().expect("a directory");
    fs::create_dir(temp.path().join("sub")).expect("made");
    fs::write(temp.path().join("sub/a"), "one").expect("written");
    let fs = remembering(&temp, LONG);
    let sub = fs.lookup(me(), ROOT, OsStr::new("sub")).expect("there").number;
    fs.lookup(me(), sub, OsStr::new("a")).expect("there");
    let saved = fs.save_names("here").expect("saved");
    // What an earlier mount has remembered is old.
    let fs = remembering(&temp, LONG);
    assert!(fs.load_names(&saved, "here"));
    let sub = fs.lookup(me(), ROOT, OsStr::new("sub")).expect("there").number;
    let file = fs.lookup(me(), sub, OsStr::new("a")).expect("there").number;
    assert!(fs.fresh_attributes(file).is_none() && fs.old_attributes(file).is_some_and(|stat| stat.size == 3));
    fs::write(temp.path().join("sub/a"), "longer").expect("written");
    let size = |stat: Option<crate::Stat>| stat.map(|stat| stat.size);
    assert_eq!(size(fs.look_again(me(), file).expect("there")), Some(6));
    assert_eq!(size(fs.fresh_attributes(file)), Some(6));
    fs::write(temp.path().join("sub/a"), "longest").expect("written");
    assert_eq!(size(fs.look_again(me(), file).expect("there")), Some(7), "also while it is held");
    fs.add_writer(file);
    assert_eq!(fs.look_again(me(), file), Ok(None), "who writes it knows its attributes");
    fs.remove_writer(file);
    assert!(fs.look_again(me(), 12345).is_err(), "nobody knows this number");
    fs::remove_file(temp.path().join("sub/a")).expect("removed");
    let other = remembering(&temp, LONG);
    assert!(other.load_names(&saved, "here"));
    let sub = other.lookup(me(), ROOT, OsStr::new("sub")).expect("there").number;
    let file = other.lookup(me(), sub, OsStr::new("a")).expect("remembered").number;
    assert_eq!(other.look_again(me(), file), Err(Errno::STALE));
}

#[test]
fn the_key_of_the_data_is_remembered_with_the_attributes() {
    let temp = tempfile::tempdir().expect("a directory");
    fs::create_dir(temp.path().join("sub")).expect("made");
    fs::write(temp.path().join("sub/a"), "one").expect("written");
    let fs = remembering(&temp, LONG);
    let sub = fs.lookup(me(), ROOT, OsStr::new("sub")).expect("there").number;
    let file = fs.lookup(me(), sub, OsStr::new("a")).expect("there").number;
    assert_eq!(fs.known_data(file), None);
    let opened = fs::File::open(temp.path().join("sub/a")).expect("opened");
    fs.remember_readable(std::os::fd::AsFd::as_fd(&opened), 7);
    assert_eq!(fs.known_data(file), Some((7, "sub/a".into())));
    let saved = fs.save_names("here").expect("saved");
    let again = remembering(&temp, LONG);
    assert!(again.load_names(&saved, "here"));
    let sub = again.lookup(me(), ROOT, OsStr::new("sub")).expect("there").number;
    let known = again.lookup(me(), sub, OsStr::new("a")).expect("there").number;
    assert_eq!(again.known_data(known), Some((7, "sub/a".into())));
    // Whoever changes the file has to open it again.
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    fs.setattr(me(), file, &set).expect("changed");
    fs.getattr(me(), file).expect("read");
    assert_eq!(fs.known_data(file), None);
}
