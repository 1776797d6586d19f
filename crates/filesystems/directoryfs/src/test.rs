//! A directory by inode number, on the file system of the temporary directory, without a cache.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use fusedev::{Caller, SetAttr, SetTime};
use rustix::fs::RenameFlags;
use rustix::io::Errno;
use tempfile::TempDir;

use crate::{DirectoryFs, FileCache, NewNode, NoCache, Node, ROOT, RemovedFile, Stat};

/// A user of whom nothing belongs to the test.
const STRANGER: u32 = 4242;

fn me() -> Caller {
    Caller { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw(), pid: std::process::id() }
}

fn stranger() -> Caller {
    // A process with the groups and capabilities of nobody: none has this number.
    Caller { uid: STRANGER, gid: STRANGER, pid: u32::MAX }
}

fn directory(files: &[&str]) -> (TempDir, DirectoryFs<NoCache>) {
    let temp = tempfile::tempdir().expect("a directory");
    for path in files {
        let path = temp.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        std::fs::write(&path, path.file_name().expect("a name").as_encoded_bytes()).expect("written");
    }
    let fs = DirectoryFs::open(temp.path(), NoCache, false).expect("opened");
    (temp, fs)
}

fn find(fs: &DirectoryFs<NoCache>, name: &str) -> (Node, Stat) {
    let found = fs.lookup(me(), ROOT, OsStr::new(name)).expect("there");
    (found.node.expect("opened"), found.stat)
}

/// Refuses each removal and rename, as a cache does whose request has had its reply.
struct RefusingCache;

impl FileCache for RefusingCache {
    fn unlink(&self, _dir: BorrowedFd<'_>, _name: &OsStr) -> Result<Option<RemovedFile>, Errno> {
        Err(Errno::CANCELED)
    }

    fn rmdir(&self, _dir: BorrowedFd<'_>, _name: &OsStr) -> Result<(), Errno> {
        Err(Errno::CANCELED)
    }

    fn rename(&self, _: (BorrowedFd<'_>, &OsStr), _: (BorrowedFd<'_>, &OsStr), _: RenameFlags) -> Result<Option<RemovedFile>, Errno> {
        Err(Errno::CANCELED)
    }

    fn change(&self, file: BorrowedFd<'_>, change: &mut dyn FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
        NoCache.change(file, change)
    }

    fn change_times(&self, file: BorrowedFd<'_>, change: &mut dyn FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
        NoCache.change_times(file, change)
    }

    fn correct(&self, file: BorrowedFd<'_>, stat: &mut Stat) -> Result<bool, Errno> {
        NoCache.correct(file, stat)
    }
}

#[test]
fn what_the_cache_refuses_removes_nothing() {
    let (temp, _) = directory(&["a", "b", "dir/c"]);
    std::fs::create_dir(temp.path().join("empty")).expect("made");
    let fs = DirectoryFs::open(temp.path(), RefusingCache, false).expect("opened");
    let [a, b, empty] = ["a", "b", "empty"].map(OsStr::new);
    assert_eq!(fs.unlink(me(), ROOT, a), Err(Errno::CANCELED));
    assert_eq!(fs.rmdir(me(), ROOT, empty), Err(Errno::CANCELED));
    assert_eq!(fs.rename(me(), (ROOT, a), (ROOT, b), RenameFlags::empty()), Err(Errno::CANCELED));
    assert!(temp.path().join(empty).is_dir());
    assert_eq!(["a", "b"].map(|name| std::fs::read(temp.path().join(name)).expect("there")), [b"a", b"b"]);
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("SKIP: needs root");
    }
    is_root
}

#[test]
fn a_number_stands_for_its_file_whatever_happens_to_the_name() {
    let (temp, fs) = directory(&["a", "b"]);
    let (node, stat) = find(&fs, "a");
    // Another program exchanges the names, and removes the file.
    let (a, b) = (temp.path().join("a"), temp.path().join("b"));
    rustix::fs::renameat_with(rustix::fs::CWD, &a, rustix::fs::CWD, &b, RenameFlags::EXCHANGE).expect("exchanged");
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    fs.setattr(me(), node.number(), &set).expect("set");
    assert_eq!(
        (std::fs::metadata(&b).expect("there").mode() & 0o777, fs.getattr(me(), node.number()).expect("there").ino),
        (0o600, stat.ino)
    );
    assert_ne!(std::fs::metadata(&a).expect("there").mode() & 0o777, 0o600);
    std::fs::remove_file(&b).expect("removed");
    assert_eq!(fs.getattr(me(), node.number()).expect("held").nlink, 0);
    assert_eq!(fs.link(me(), node.number(), ROOT, OsStr::new("again")).map(drop), Err(Errno::NOENT));
    fs.forget(node.number(), 1);
    assert_eq!(fs.getattr(me(), node.number()).map(drop), Err(Errno::STALE));
}

#[test]
fn references_are_counted() {
    let (_temp, fs) = directory(&["a"]);
    let look = || fs.lookup(me(), ROOT, OsStr::new("a")).expect("there").number;
    let number = look();
    assert_eq!(look(), number);
    fs.forget(number, 1);
    assert!(fs.getattr(me(), number).is_ok());
    fs.forget(number, 5);
    assert_eq!(fs.getattr(me(), number).map(drop), Err(Errno::STALE));
}

#[test]
fn names_are_of_one_component() {
    let (_temp, fs) = directory(&["d/x"]);
    for name in ["", ".", "..", "d/x", "../x"] {
        assert_eq!(fs.lookup(me(), ROOT, OsStr::new(name)).map(drop), Err(Errno::INVAL), "{name:?}");
        assert_eq!(fs.unlink(me(), ROOT, OsStr::new(name)), Err(Errno::INVAL), "{name:?}");
    }
}

#[test]
fn a_link_is_never_followed() {
    let (temp, fs) = directory(&["secret"]);
    std::os::unix::fs::symlink("secret", temp.path().join("link")).expect("made");
    let (node, stat) = find(&fs, "link");
    assert!(!stat.is_file() && fs.readlink(me(), node.number()) == Ok(b"secret".to_vec()));
    let set = SetAttr { mtime: Some(SetTime::At(5, 6)), ..SetAttr::default() };
    fs.setattr(me(), node.number(), &set).expect("set");
    let link = std::fs::symlink_metadata(temp.path().join("link")).expect("there");
    assert_eq!((link.mtime(), link.mtime_nsec()), (5, 6));
    assert_ne!(std::fs::metadata(temp.path().join("secret")).expect("there").mtime(), 5);
}

#[test]
fn a_listing_goes_on_where_it_stopped() {
    let names: Vec<String> = (0..300).map(|n| format!("{n:03}")).collect();
    let (_temp, fs) = directory(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let listing = fs.open_listing(me(), ROOT).expect("opened");
    let (mut found, mut at) = (Vec::new(), 0);
    loop {
        let before = found.len();
        let mut room = 7;
        fs.list(me(), &listing, at, &mut |entry| {
            if room == 0 {
                return false;
            }
            (room, at) = (room - 1, entry.next);
            if !entry.is_dots() {
                found.push(entry.name.into_string().expect("text"));
            }
            true
        })
        .expect("listed");
        if room == 7 {
            break;
        }
        assert!(found.len() >= before);
    }
    found.sort();
    assert_eq!(found, names);
}

#[test]
fn a_file_that_is_there_is_not_opened_as_a_new_one() {
    let (_temp, fs) = directory(&["file"]);
    for (is_exclusive, error) in [(true, Errno::EXIST), (false, Errno::STALE)] {
        assert_eq!(fs.create(me(), ROOT, OsStr::new("file"), (0o644, 0), is_exclusive).map(drop), Err(error));
    }
}

#[test]
fn what_a_user_makes_is_the_users_from_the_start() {
    if !is_root() {
        return;
    }
    let (_temp, fs) = directory(&[]);
    let (_, stat, file) = fs.create(stranger(), ROOT, OsStr::new("file"), (0o666, 0o022), true).expect("made");
    assert_eq!((stat.uid, stat.gid, stat.mode & 0o777), (STRANGER, STRANGER, 0o644));
    assert_eq!(crate::Stat::of(file.as_fd()).expect("open").ino, stat.ino);
    for what in [NewNode::Directory(0o755), NewNode::Node(0o010_600, 0), NewNode::Symlink(OsStr::new("x"))] {
        let (_, stat) = fs.make(stranger(), ROOT, OsStr::new("made"), what, 0).expect("made");
        assert_eq!((stat.uid, stat.gid), (STRANGER, STRANGER), "{what:?}");
        let removed = fs.rmdir(stranger(), ROOT, OsStr::new("made"));
        removed.or_else(|_| fs.unlink(stranger(), ROOT, OsStr::new("made"))).expect("removed");
    }
}

#[test]
fn the_present_owner_and_mode_decide() {
    if !is_root() {
        return;
    }
    let (temp, fs) = directory(&["file"]);
    let path = temp.path().join("file");
    let (node, _) = find(&fs, "file");
    assert_eq!(fs.may_open(stranger(), &node, true, false), Ok(()));
    // Somebody makes it private below: the kernel does not know yet.
    rustix::fs::chmod(&path, rustix::fs::Mode::RUSR).expect("set");
    assert_eq!(fs.may_open(stranger(), &node, true, false), Err(Errno::ACCESS));
    let chmod = SetAttr { mode: Some(0o666), ..SetAttr::default() };
    let chown = SetAttr { uid: Some(STRANGER), ..SetAttr::default() };
    for set in [chmod, chown] {
        assert_eq!(fs.setattr(stranger(), node.number(), &set), Err(Errno::PERM), "{set:?}");
    }
    assert_eq!(std::fs::metadata(&path).expect("there").mode() & 0o777, 0o400);
}

#[test]
fn a_directory_of_another_gets_no_other_parent() {
    if !is_root() {
        return;
    }
    let (_temp, fs) = directory(&["from/dir/x", "to/x"]);
    let number = |name: &str| fs.lookup(me(), ROOT, OsStr::new(name)).expect("there").number;
    let (from, to) = (number("from"), number("to"));
    let dir = OsStr::new("dir");
    assert_eq!(fs.rename(stranger(), (from, dir), (to, dir), RenameFlags::empty()).map(drop), Err(Errno::ACCESS));
    assert_eq!(fs.rename(me(), (from, dir), (to, dir), RenameFlags::empty()).map(drop), Ok(()));
}

#[test]
fn in_a_sticky_directory_only_the_owner_removes() {
    if !is_root() {
        return;
    }
    let (temp, fs) = directory(&["file"]);
    rustix::fs::chmod(temp.path(), rustix::fs::Mode::from_raw_mode(0o1777)).expect("set");
    assert_eq!(fs.unlink(stranger(), ROOT, OsStr::new("file")), Err(Errno::PERM));
    assert_eq!(fs.unlink(me(), ROOT, OsStr::new("file")), Ok(()));
}

#[test]
fn a_change_of_the_data_takes_set_id_bits() {
    if !is_root() {
        return;
    }
    let (temp, fs) = directory(&["program"]);
    let mode = || std::fs::metadata(temp.path().join("program")).expect("there").mode() & 0o7777;
    let (node, _) = find(&fs, "program");
    rustix::fs::chmod(temp.path().join("program"), rustix::fs::Mode::from_raw_mode(0o6755)).expect("set");
    assert_eq!((fs.take_set_id(stranger(), &node), mode()), (Ok(true), 0o755));
    assert_eq!(fs.take_set_id(stranger(), &node), Ok(false));
}

#[test]
fn a_known_file_is_found_again_after_its_descriptor_was_closed() {
    let names: Vec<String> = (0..40).map(|n| format!("a/b/{n:02}")).collect();
    let (temp, mut fs) = directory(&names.iter().map(String::as_str).collect::<Vec<_>>());
    fs.nodes.descriptors.max = 4;
    let look = |parent: u64, name: &str| fs.lookup(me(), parent, OsStr::new(name)).expect("there").number;
    let (a, top) = (look(ROOT, "a"), temp.path());
    let b = look(a, "b");
    let numbers: Vec<u64> = (0..40).map(|n| look(b, &format!("{n:02}"))).collect();
    assert!(fs.nodes.descriptors.count() <= 4, "{} are open", fs.nodes.descriptors.count());
    // A node in use keeps its descriptor.
    let used = fs.node(me(), numbers[7]).expect("known");
    for (n, number) in numbers.iter().enumerate() {
        let stat = fs.getattr(me(), *number).expect("found again");
        assert_eq!(stat.ino, std::fs::metadata(top.join(&names[n])).expect("there").ino());
    }
    assert!(fs.nodes.descriptors.count() <= 4 && used.stat().is_ok());
    // Renames through the mount, of the file and of its directory, are followed.
    fs.rename(me(), (b, OsStr::new("05")), (ROOT, OsStr::new("moved")), RenameFlags::empty()).expect("renamed");
    fs.rename(me(), (a, OsStr::new("b")), (ROOT, OsStr::new("c")), RenameFlags::empty()).expect("renamed");
    let ino = |number: u64| fs.getattr(me(), number).map(|stat| stat.ino);
    let use_others = || (8..30).for_each(|n| assert!(ino(numbers[n]).is_ok()));
    use_others();
    let on_disk = |path: &str| Ok(std::fs::metadata(top.join(path)).expect("there").ino());
    assert_eq!((ino(numbers[5]), ino(numbers[6])), (on_disk("moved"), on_disk("c/06")));
    // Another program renames: by handle the file is found, by name it is not.
    use_others();
    std::fs::rename(top.join("c/06"), top.join("c/other")).expect("renamed");
    let found = ino(numbers[6]);
    assert!(if rustix::process::geteuid().is_root() { found == on_disk("c/other") } else { found == Err(Errno::STALE) }, "{found:?}");
    // Another file with the name is not taken for it.
    std::fs::remove_file(top.join("c/other")).expect("removed");
    use_others();
    std::fs::write(top.join("c/06"), "another").expect("written");
    assert_ne!(ino(numbers[6]), on_disk("c/06"));
    assert_ne!(look(b, "06"), numbers[6]);
}

#[test]
fn a_file_that_another_program_removed_is_closed() {
    let (temp, fs) = directory(&["file", "open", "kept", "d/x"]);
    let look = |name: &str| fs.lookup(me(), ROOT, OsStr::new(name)).expect("there").number;
    let (file, open, kept, dir) = (look("file"), fs.node(me(), look("open")).expect("known"), look("kept"), look("d"));
    assert_eq!(fs.close_removed(100), []);
    ["file", "open", "d/x"].iter().for_each(|name| std::fs::remove_file(temp.path().join(name)).expect("removed"));
    std::fs::remove_dir(temp.path().join("d")).expect("removed");
    let count = fs.nodes.descriptors.count();
    let mut found: Vec<(u64, u64)> = fs.close_removed(100).iter().map(|name| (name.parent, name.number)).collect();
    found.sort_unstable();
    let mut wanted = vec![(ROOT, file), (ROOT, dir)];
    wanted.sort_unstable();
    assert_eq!((found, fs.nodes.descriptors.count()), (wanted, count - 1));
    assert_eq!(fs.getattr(me(), file).map(drop), Err(Errno::STALE));
    assert_eq!((fs.getattr(me(), dir).expect("held").nlink, open.stat().expect("open").nlink), (0, 0));
    assert!(fs.getattr(me(), kept).is_ok());
    // The name of a removed file is another's by now: the kernel keeps it.
    std::fs::write(temp.path().join("open"), "another").expect("written");
    drop(open);
    assert_eq!(fs.close_removed(100).iter().filter(|name| name.number != dir).count(), 0);
}

/// Keeps nothing but itself.
struct Kept(#[expect(dead_code, reason = "only counted")] std::sync::Arc<()>);

impl crate::DataKeeper for Kept {
    fn write_back(&self) -> crate::Result<()> {
        Ok(())
    }
}

#[test]
fn another_process_goes_on_with_what_the_kernel_knows() {
    let (temp, fs) = directory(&["file", "gone", "dir/inner"]);
    let number = |fs: &DirectoryFs<NoCache>, parent, name: &str| fs.lookup(me(), parent, OsStr::new(name)).expect("there").number;
    let (file, gone, dir) = (number(&fs, ROOT, "file"), number(&fs, ROOT, "gone"), number(&fs, ROOT, "dir"));
    assert_eq!(number(&fs, ROOT, "file"), file);
    let inner = number(&fs, dir, "inner");
    fs.unlink(me(), ROOT, OsStr::new("gone")).expect("removed");
    let (listed, opened) = fs.open_listing(me(), dir).expect("opened").hand_over().expect("handed over");
    let handed = fs.hand_over().expect("handed over");
    assert!(!fs.is_known(file) && handed.nodes.len() == 4);
    // Nobody finds them by their names.
    std::fs::rename(temp.path().join("file"), temp.path().join("other")).expect("renamed");
    let next = DirectoryFs::take_over(handed, NoCache, false).expect("taken over");
    assert_eq!((listed, next.take_over_listing(dir, opened).is_ok()), (dir, true));
    for known in [file, gone, dir, inner] {
        assert!(next.getattr(me(), known).is_ok(), "{known}");
    }
    assert_eq!(next.getattr(me(), gone).expect("held").nlink, 0);
    assert_eq!(number(&next, ROOT, "other"), file);
    // Two lookups before, one now.
    assert!(next.forget(file, 2).is_none() && next.is_known(file));
    assert!(next.forget(file, 1).is_none() && !next.is_known(file));
    assert_eq!(number(&next, dir, "inner"), inner);
}

#[test]
fn the_data_of_a_removed_file_is_kept_until_the_kernel_forgets_the_file() {
    let (temp, fs) = directory(&["file"]);
    let (node, _) = find(&fs, "file");
    std::fs::remove_file(temp.path().join("file")).expect("removed");
    let data = std::sync::Arc::new(());
    let users = || std::sync::Arc::strong_count(&data);
    let kept = || crate::KeptData::new(Kept(std::sync::Arc::clone(&data)));
    fs.nodes.removed(&node.stat().expect("held"), Some(kept()));
    assert_eq!(users(), 2);
    // One user keeps it.
    node.keep(kept);
    fs.nodes.add_lookup(&node);
    // A program may have it by a descriptor that the kernel opens without a request.
    let number = node.number();
    let stat = node.stat().expect("held");
    drop(node);
    assert_eq!(fs.close_removed(100), []);
    assert!(fs.getattr(me(), number).is_ok());
    assert!(fs.forget(number, 1).is_none());
    assert_eq!(users(), 2);
    drop(fs.forget(number, 1).expect("kept until now"));
    assert_eq!(users(), 1);
    // A file that the kernel does not know.
    fs.nodes.removed(&stat, Some(kept()));
    assert_eq!(users(), 1);
}

#[test]
fn without_descriptors_unused_ones_are_closed_and_the_call_is_made_again() {
    let names: Vec<String> = (0..40).map(|n| format!("{n:02}")).collect();
    let (_temp, fs) = directory(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let look = |name: &String| fs.lookup(me(), ROOT, OsStr::new(name)).expect("there").number;
    let numbers: Vec<u64> = names.iter().map(look).collect();
    let used = fs.node(me(), numbers[7]).expect("known");
    for error in [Errno::MFILE, Errno::NFILE] {
        let before = fs.nodes.descriptors.count();
        assert_eq!(before, 40);
        let mut calls = 0;
        let outcome = fs.with_descriptors(|| {
            calls += 1;
            if fs.nodes.descriptors.count() == before { Err(error) } else { Ok(()) }
        });
        assert_eq!((outcome, calls), (Ok(()), 2));
        assert!(fs.nodes.descriptors.count() < before && used.stat().is_ok());
        // The files are found again, and what no call can be helped by is the caller's error.
        assert!(numbers.iter().all(|number| fs.getattr(me(), *number).is_ok()));
    }
    let held: Vec<_> = numbers.iter().map(|number| fs.node(me(), *number).expect("known")).collect();
    assert_eq!(fs.with_descriptors(|| Err::<(), _>(Errno::MFILE)), Err(Errno::MFILE));
    assert_eq!(fs.with_descriptors(|| Err::<(), _>(Errno::NOENT)), Err(Errno::NOENT));
    assert_eq!(fs.nodes.descriptors.count(), held.len());
}

#[test]
fn unused_descriptors_are_closed_while_the_process_has_few_left() {
    let (temp, mut fs) = directory(&["a", "b", "c"]);
    fs.nodes.descriptors.reserved_from = 0;
    for name in ["a", "b", "c"] {
        let number = fs.lookup(me(), ROOT, OsStr::new(name)).expect("there").number;
        assert!(fs.nodes.descriptors.count() <= 1);
        assert_eq!(fs.getattr(me(), number).expect("found again").ino, std::fs::metadata(temp.path().join(name)).expect("there").ino());
    }
}

#[test]
fn a_link_has_the_attributes_of_its_file() {
    let (temp, fs) = directory(&["file"]);
    let number = fs.lookup(me(), ROOT, OsStr::new("file")).expect("there").number;
    let (linked, stat) = fs.link(me(), number, ROOT, OsStr::new("link")).expect("linked");
    assert_eq!((linked.number(), stat.nlink), (number, 2));
    assert_eq!(fs.link(me(), number, ROOT, OsStr::new("link")).map(drop), Err(Errno::EXIST));
    // The kernel has two references, and the file is found by its new name.
    fs.forget(number, 1);
    std::fs::remove_file(temp.path().join("file")).expect("removed");
    assert_eq!(fs.getattr(me(), number).expect("known").nlink, 1);
    fs.forget(number, 1);
    assert_eq!(fs.getattr(me(), number).map(drop), Err(Errno::STALE));
}

#[test]
fn a_stranger_takes_no_set_id_bits_of_special_files() {
    if !is_root() {
        return;
    }
    let (_temp, fs) = directory(&[]);
    let what = NewNode::Node(0o144_711, 0);
    let (node, _) = fs.make(me(), ROOT, OsStr::new("socket"), what, 0).expect("made");
    let mode = || fs.getattr(me(), node.number()).expect("there").mode & 0o7777;
    assert_eq!(mode(), 0o4711);
    // chown(path, -1, -1).
    let set = SetAttr::default();
    assert_eq!((fs.setattr(stranger(), node.number(), &set), mode()), (Err(Errno::PERM), 0o4711));
    assert_eq!((fs.setattr(me(), node.number(), &set), mode()), (Ok(()), 0o711));
    // The group's bit stays without execution by the group, and the time of the last change is that of the call.
    for kind in [0o140_000, 0o010_000, 0o100_000] {
        let name = format!("{kind:o}");
        let (node, _) = fs.make(me(), ROOT, OsStr::new(&name), NewNode::Node(kind | 0o600, 0), 0).expect("made");
        let bits = SetAttr { mode: Some(0o2600), ..SetAttr::default() };
        fs.setattr(me(), node.number(), &bits).expect("set");
        let look = || fs.getattr(me(), node.number()).expect("there");
        let before = look().ctime;
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!((fs.setattr(me(), node.number(), &set), look().mode & 0o7777), (Ok(()), 0o2600));
        assert!(look().ctime > before);
    }
}
