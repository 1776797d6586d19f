//! Files are made whole, and only opened from whom one may trust.

use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use shm::{AttachError, FileAccess, ProcessSlots, Region};

use crate::setting::{OURS, folder};

const OF_A_GROUP: u32 = 4711;

#[test]
fn a_name_is_there_when_the_contents_are_and_nothing_is_left_of_what_failed() {
    let dir = folder();
    let path = dir.path().join("segment");
    let count = || std::fs::read_dir(dir.path()).expect("read").count();
    let failed = Region::create_file_with(&path, 1, OURS, |_| Err(ErrorKind::Other.into()));
    assert_eq!(failed.expect_err("says so").kind(), ErrorKind::Other);
    assert_eq!(count(), 0);
    let region = Region::create_file_with(&path, 4097, OURS, |region| {
        assert_eq!(count(), 0, "no name yet");
        region.write(0, b"format");
        Ok(())
    });
    assert_eq!(region.expect("created").len(), 8192);
    let (stat, opened) = (std::fs::metadata(&path).expect("there"), Region::open_file(&path, None).expect("opened"));
    assert_eq!((stat.len(), stat.blocks() * 512, stat.mode() & 0o777, stat.nlink()), (8192, 8192, 0o600, 1));
    let mut begin = [0; 6];
    opened.read(0, &mut begin);
    assert_eq!(&begin, b"format");
    assert_eq!(Region::create_file(&path, 1, OURS).expect_err("taken").kind(), ErrorKind::AlreadyExists);
    assert_eq!(count(), 1);
}

#[test]
fn a_large_one_lies_where_huge_pages_can_be_mapped_and_has_every_byte() {
    const HUGE: usize = 2 << 20;
    let dir = folder();
    let path = dir.path().join("segment");
    // The last is so large that huge pages are requested.
    for bytes in [HUGE, HUGE + 4096, 5 * HUGE - 4096, 33 * HUGE + 4096] {
        let made = Region::create_file(&path, bytes, OURS).expect("created");
        let opened = Region::open_file(&path, None).expect("opened");
        for region in [&made, &opened] {
            assert_eq!((region.len(), region.address(0) as usize % HUGE), (bytes, 0));
        }
        for at in (0..bytes).step_by(4096) {
            made.write(at + 4088, &at.to_ne_bytes());
        }
        let mut found = [0; 8];
        for at in (0..bytes).step_by(4096) {
            opened.read(at + 4088, &mut found);
            assert_eq!(usize::from_ne_bytes(found), at);
        }
        drop((made, opened));
        std::fs::remove_file(&path).expect("removed");
    }
}

#[test]
fn a_file_system_that_is_full_is_an_error() {
    let dir = folder();
    let system = rustix::fs::statvfs(dir.path()).expect("statvfs");
    if system.f_blocks == 0 {
        println!("SKIP: a file system without a limit is never full");
        return;
    }
    // More than it ever holds: refused before it takes anything.
    let full = Region::create_file(&dir.path().join("segment"), 1 << 50, OURS).expect_err("full");
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    assert_eq!(std::fs::read_dir(dir.path()).expect("read").count(), 0);
}

#[test]
fn what_is_no_file_of_ours_is_refused() {
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    let refused = |name: &str| Region::open_file(&at(name), None).expect_err(name);
    assert!(matches!(refused("nothing"), AttachError::System(error) if error.kind() == ErrorKind::NotFound));
    Region::create_file(&at("file"), 4096, OURS).expect("created");
    symlink(at("file"), at("link")).expect("linked");
    assert!(matches!(refused("link"), AttachError::NotAFile));
    assert!(matches!(ProcessSlots::open_lock_file(&at("link"), OURS), Err(AttachError::NotAFile)));
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), fifo, rustix::fs::Mode::from_raw_mode(0o600), 0).expect("a pipe");
    assert!(matches!(refused("pipe"), AttachError::NotAFile));
    assert!(matches!(Region::open_file(dir.path(), None), Err(AttachError::NotAFile)));
    std::fs::set_permissions(at("file"), std::fs::Permissions::from_mode(0o602)).expect("set");
    assert!(matches!(refused("file"), AttachError::OpenToAll));
}

#[test]
fn what_is_not_whole_is_refused() {
    let dir = folder();
    let path = dir.path().join("segment");
    let file = std::fs::File::create_new(&path).expect("created");
    file.set_permissions(std::fs::Permissions::from_mode(0o600)).expect("set");
    for len in [0, 4096, 1 << 30, 5000] {
        file.set_len(len).expect("set");
        assert!(matches!(Region::open_file(&path, None), Err(AttachError::NotWhole)), "{len} bytes, none of them there");
    }
}

#[test]
fn a_group_shares_and_others_are_not_trusted() {
    let dir = folder();
    let path = dir.path().join("segment");
    let sharing = FileAccess { permissions: 0o660, group: Some(OF_A_GROUP) };
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: needs root, to give files to others");
        return;
    }
    Region::create_file(&path, 4096, sharing).expect("created");
    let stat = std::fs::metadata(&path).expect("there");
    assert_eq!((stat.gid(), stat.mode() & 0o777), (OF_A_GROUP, 0o660));
    std::os::unix::fs::chown(&path, Some(4712), None).expect("another's");
    assert!(matches!(Region::open_file(&path, None), Err(AttachError::Foreign { user: 4712 })));
    assert!(matches!(Region::open_file(&path, Some(OF_A_GROUP + 1)), Err(AttachError::Foreign { user: 4712 })));
    Region::open_file(&path, Some(OF_A_GROUP)).expect("of the group");
    drop(ProcessSlots::open_lock_file(&dir.path().join("locks"), sharing).expect("created"));
    drop(ProcessSlots::open_lock_file(&dir.path().join("locks"), sharing).expect("opened"));
    assert_eq!(std::fs::metadata(dir.path().join("locks")).expect("there").gid(), OF_A_GROUP);
}

#[test]
fn of_many_who_create_one_file_all_get_the_same() {
    let dir = folder();
    let path = dir.path().join("locks");
    let inodes: Vec<u64> = std::thread::scope(|scope| {
        let open = || ProcessSlots::open_lock_file(&path, OURS).map(|fd| rustix::fs::fstat(fd).expect("stat").st_ino).expect("a lock file");
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(inodes.iter().all(|inode| *inode == inodes[0]), "{inodes:?}");
}
