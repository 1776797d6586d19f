use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use super::*;
use crate::create::NewNode;
use crate::testing::{TestPair, me};

fn retire(fs: &TestPair, side: TierName) -> std::result::Result<String, String> {
    fs.retire(side, false, &mut |_, _, _, _| true)
}

/// What is no directory below a side.
fn names_below(dir: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).expect("listed").map(|entry| entry.expect("an entry")) {
        if entry.file_name() == HIDDEN {
            continue;
        }
        if entry.file_type().expect("a type").is_dir() {
            all.extend(names_below(&entry.path()));
        } else {
            all.push(entry.path().to_string_lossy().into_owned());
        }
    }
    all
}

/// Every kind of file on a side.
fn tree(side: &str) -> TestPair {
    let other = if side == "ssd" { "hdd" } else { "ssd" };
    let fs =
        TestPair::with(&[format!("{side}/a/b/file"), format!("{side}/empty/deep/"), format!("{side}/linked"), format!("{other}/a/other")]);
    let at = |name: &str| fs.at(&format!("{side}/{name}"));
    std::fs::create_dir(at("c")).expect("made");
    std::fs::hard_link(at("linked"), at("c/linked too")).expect("linked");
    std::fs::hard_link(at("linked"), at("a/b/linked three")).expect("linked");
    symlink("a/b/file", at("link")).expect("made");
    symlink("/nowhere", at("a/dangling")).expect("made");
    let mode = rustix::fs::Mode::from_raw_mode(0o640);
    rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, mode, 0).expect("made");
    std::fs::set_permissions(at("empty/deep"), std::fs::Permissions::from_mode(0o711)).expect("set");
    let _ = rustix::fs::setxattr(at("empty/deep"), "user.note", b"kept", rustix::fs::XattrFlags::empty());
    fs
}

#[test]
fn everything_comes_over_from_either_side() {
    for (side, from, to) in [(TierName::Ssd, "ssd", "hdd"), (TierName::Hdd, "hdd", "ssd")] {
        let fs = tree(from);
        let times = std::fs::symlink_metadata(fs.at(&format!("{from}/a/dangling"))).expect("there").mtime_nsec();
        let noted = rustix::fs::getxattr(fs.at(&format!("{from}/empty/deep")), "user.note", &mut [0u8; 8][..]);
        let known = ["pipe", "linked", "link"].map(|name| (name, fs.look_up(name)));
        let said = retire(&fs, side).expect("retired");
        assert!(said.contains(&format!("all is on the {to} now, 7 files and links")), "{said}");
        assert_eq!(names_below(&fs.at(from)), Vec::<String>::new());
        let at = |name: &str| fs.at(&format!("{to}/{name}"));
        assert_eq!(std::fs::read_to_string(at("a/b/file")).expect("there"), format!("{from}/a/b/file"));
        let linked = ["linked", "c/linked too", "a/b/linked three"].map(|name| std::fs::metadata(at(name)).expect("there"));
        assert!(linked.iter().all(|one| one.ino() == linked[0].ino() && one.nlink() == 3));
        assert_eq!(std::fs::read_to_string(at("linked")).expect("there"), format!("{from}/linked"));
        assert_eq!(std::fs::read_link(at("link")).expect("there"), Path::new("a/b/file"));
        assert_eq!(std::fs::symlink_metadata(at("a/dangling")).expect("there").mtime_nsec(), times);
        assert!(std::fs::metadata(at("pipe")).expect("there").file_type().is_fifo());
        assert_eq!(std::fs::metadata(at("pipe")).expect("there").mode() & 0o7777, 0o640);
        assert_eq!(std::fs::metadata(at("empty/deep")).expect("there").mode() & 0o7777, 0o711);
        assert_eq!(rustix::fs::getxattr(at("empty/deep"), "user.note", &mut [0u8; 8][..]), noted);
        assert_eq!(std::fs::read_dir(fs.at(&format!("{to}/.hotshelf/tmp"))).expect("there").count(), 0);
        for (name, ino) in known {
            assert_eq!((fs.look_up(name), fs.getattr(ino).expect("known").ino), (ino, ino), "{name} keeps its number");
        }
        assert!(fs.status().conflicts.is_empty());
    }
}

#[test]
fn nothing_new_goes_to_a_retired_side_until_it_is_mounted_again() {
    let fs = TestPair::with(&["ssd/file"]);
    retire(&fs, TierName::Ssd).expect("retired");
    assert_eq!(fs.status().retired, Some(TierName::Ssd));
    fs.make(me(), ROOT, OsStr::new("new"), NewNode::Symlink(OsStr::new("x")), 0).expect("made");
    assert!(fs.at("hdd/new").symlink_metadata().is_ok());
    let error = fs.migrate(b"file", TierName::Ssd, &mut |_, _, _, _| true).expect_err("stays");
    assert!(error.contains("is being retired"), "{error}");
    assert!(retire(&fs, TierName::Hdd).expect_err("refused").contains("the ssd is retired"));
    retire(&fs, TierName::Ssd).expect("once more does nothing");
    let fs = fs.again();
    assert_eq!(fs.status().retired, None);
    fs.make(me(), ROOT, OsStr::new("later"), NewNode::Symlink(OsStr::new("x")), 0).expect("made");
    assert!(fs.at("ssd/later").symlink_metadata().is_ok());
}

#[test]
fn what_cannot_come_over_is_named_and_the_side_stays_in_use() {
    let fs = TestPair::with(&["ssd/same", "hdd/same", "ssd/other"]);
    for (side, from) in [(TierName::Ssd, "ssd"), (TierName::Hdd, "hdd")] {
        let error = retire(&fs, side).expect_err("not complete");
        assert!(error.contains("not complete: 1 names are still") && error.contains("same: "), "{error}");
        assert_eq!(std::fs::read_to_string(fs.at(&format!("{from}/same"))).expect("there"), format!("{from}/same"));
        assert_eq!(fs.status().retired, None);
    }
}

#[test]
fn a_dry_run_and_one_without_room_change_nothing() {
    let fs = TestPair::with(&["ssd/file", "hdd/old"]);
    let dry = fs.retire(TierName::Ssd, true, &mut |_, _, _, _| true).expect("would fit");
    assert!(dry.contains("1 files and links"), "{dry}");
    // A reserve that leaves no room on the SSD.
    fs.set(&[("reserve".to_owned(), "100%".to_owned())].into(), false).expect("set");
    std::fs::write(fs.at("hdd/old"), vec![1; 8192]).expect("written");
    let error = retire(&fs, TierName::Hdd).expect_err("no room");
    assert!(error.contains("no room: the hdd holds") && error.contains("KiB"), "{error}");
    assert!(fs.at("ssd/file").exists() && fs.at("hdd/old").exists());
    assert_eq!(fs.status().retired, None);
}

#[test]
fn it_stops_when_asked_and_goes_on_later() {
    let fs = tree("ssd");
    let mut asked = 0;
    let stopped = fs.retire(TierName::Ssd, false, &mut |_, _, _, _| {
        asked += 1;
        asked < 4
    });
    assert!(stopped.expect_err("stopped").contains("the same command goes on"));
    assert_eq!(fs.status().retired, None);
    assert_eq!(std::fs::read_dir(fs.at("hdd/.hotshelf/tmp")).expect("there").count(), 0);
    retire(&fs, TierName::Ssd).expect("goes on");
    assert_eq!(names_below(&fs.at("ssd")), Vec::<String>::new());
    assert_eq!(names_below(&fs.at("hdd")).len(), 8);
}

#[test]
fn a_file_that_is_open_waits() {
    let fs = TestPair::with(&["ssd/open"]);
    std::fs::hard_link(fs.at("ssd/open"), fs.at("ssd/too")).expect("linked");
    let ino = fs.look_up("open");
    let handle = fs.open(me(), ino, true, true).expect("open");
    assert!(retire(&fs, TierName::Ssd).expect_err("open").contains("it is open"));
    fs.release(&handle, None);
    retire(&fs, TierName::Ssd).expect("closed");
}

#[test]
fn a_migration_says_what_stays() {
    let fs = tree("ssd");
    let said = fs.migrate(b"a", TierName::Hdd, &mut |_, _, _, _| true).unwrap_or_else(|said| said);
    assert!(said.contains("several hard links"), "{said}");
    std::fs::remove_file(fs.at("ssd/a/b/linked three")).expect("removed");
    let said = fs.migrate(b"a", TierName::Hdd, &mut |_, _, _, _| true).expect("moved");
    assert!(said.contains("1 links, pipes or devices and 0 directories are only on the ssd: `hotshelf retire`"), "{said}");
    let said = fs.migrate(b"empty", TierName::Hdd, &mut |_, _, _, _| true).expect("nothing to move");
    assert!(said.contains("0 links, pipes or devices and 1 directories are only on the ssd"), "{said}");
}

/// What was made of two owners' directories must not give one of them the other's.
#[test]
fn halves_of_two_owners_are_not_made_one() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: needs root");
        return;
    }
    let fs = TestPair::with(&["hdd/a/file", "hdd/a/other"]);
    fs.migrate(b"a/file", TierName::Ssd, &mut |_, _, _, _| true).expect("moved");
    std::os::unix::fs::chown(fs.at("ssd/a"), Some(65534), None).expect("given");
    let error = retire(&fs, TierName::Ssd).expect_err("not complete");
    assert!(error.contains("a: it belongs to different users"), "{error}");
    assert_eq!(std::fs::metadata(fs.at("hdd/a")).expect("there").uid(), 0);
    assert!(fs.at("hdd/a/file").exists() && fs.at("hdd/a/other").exists());
}
