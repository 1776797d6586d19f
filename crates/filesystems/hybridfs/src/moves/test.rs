use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::io::ReadWriteFlags;

use super::job::{MoveJob, TRIES_MAX};
use super::queue::Mover;
use super::*;
use crate::config::Size;
use crate::number::ROOT;
use crate::open::FileHandle;
use crate::persist::{MoveRecord, OpenMove};
use crate::stat::InodeId;
use crate::testing::{TestPair, me};
use fusedev::SetAttr;

fn write(fs: &TieredFs, handle: &FileHandle, at: u64, byte: u8) {
    fs.write(handle, at, &vec![byte; 1 << 20], ReadWriteFlags::empty(), None).expect("written");
}

/// Moves a file of 4 MiB to the HDD, and does something to it in the middle of the copy.
fn disturbed(begin_open: bool, meanwhile: impl FnOnce(&TieredFs, u64, Option<FileHandle>) -> Option<FileHandle>) -> (MoveOutcome, Vec<u8>) {
    let fs = TestPair::empty();
    let (attr, handle) = fs.create(me(), ROOT, OsStr::new("file"), 0o644, 0, true).expect("made");
    (0..4).for_each(|n| write(&fs, &handle, n << 20, b'a'));
    let mut handle = Some(handle);
    if !begin_open {
        fs.release(&handle.take().expect("open"), None);
    }
    let mut meanwhile = Some(meanwhile);
    let outcome = fs.move_file(attr.ino, TierName::Hdd, MoveReason::Asked, &mut |done, _| {
        if done >= 2 << 20
            && let Some(disturb) = meanwhile.take()
        {
            handle = disturb(&fs, attr.ino, handle.take());
        }
        true
    });
    assert!(meanwhile.is_none(), "it was disturbed");
    // What an open handle writes now must be in the file.
    if let Some(handle) = &handle {
        write(&fs, handle, 3 << 20, b'z');
        fs.release(handle, None);
    }
    let sides = ["ssd", "hdd"].map(|side| std::fs::read(fs.at(side).join("file")).ok());
    let ([Some(bytes), None] | [None, Some(bytes)]) = sides else { panic!("it is on one side") };
    (outcome, bytes)
}

fn piece(bytes: &[u8], n: usize) -> u8 {
    bytes[n << 20]
}

#[test]
fn writes_through_the_same_open_file_are_in_the_copy() {
    let (outcome, bytes) = disturbed(true, |fs, _, handle| {
        write(fs, handle.as_ref().expect("open"), 0, b'b');
        handle
    });
    assert_eq!((outcome, piece(&bytes, 0), piece(&bytes, 3)), (MoveOutcome::Done, b'b', b'z'));
}

#[test]
fn a_file_closed_and_opened_again_during_its_move_loses_nothing() {
    let (outcome, bytes) = disturbed(true, |fs, ino, handle| {
        fs.release(&handle.expect("open"), None);
        let again = fs.open(me(), ino, true, true).expect("opened again");
        write(fs, &again, 0, b'b');
        Some(again)
    });
    assert_eq!((outcome, piece(&bytes, 0), piece(&bytes, 3)), (MoveOutcome::Dropped, b'b', b'z'));
}

#[test]
fn a_file_closed_and_cut_during_its_move_stays_cut() {
    let (outcome, bytes) = disturbed(true, |fs, ino, handle| {
        fs.release(&handle.expect("open"), None);
        fs.setattr(me(), ino, &SetAttr { size: Some(5), ..SetAttr::default() }, None).expect("cut");
        None
    });
    assert_eq!((outcome, bytes.len()), (MoveOutcome::Dropped, 5));
}

#[test]
fn a_file_that_is_only_closed_during_its_move_moves() {
    let (outcome, bytes) = disturbed(true, |fs, _, handle| {
        fs.release(&handle.expect("open"), None);
        None
    });
    assert_eq!((outcome, bytes.len()), (MoveOutcome::Done, 4 << 20));
}

#[test]
fn a_file_opened_and_closed_or_changed_during_its_move_is_left_alone() {
    let (outcome, bytes) = disturbed(false, |fs, ino, _| {
        let handle = fs.open(me(), ino, true, true).expect("opened");
        write(fs, &handle, 0, b'b');
        Some(handle)
    });
    assert_eq!((outcome, piece(&bytes, 0), piece(&bytes, 3)), (MoveOutcome::Dropped, b'b', b'z'));
}

#[test]
fn what_is_asked_for_moves_also_when_the_kernel_forgets_it_and_is_not_known_for_ever() {
    let fs = TestPair::with(&["hdd/file"]);
    let ino = fs.look_up("file");
    fs.ask_move(ino, TierName::Ssd, MoveReason::Asked);
    fs.forget(ino, 1);
    fs.do_job(fs.next_now().expect("asked for"));
    assert!(fs.at("ssd/file").exists());
    assert_eq!(fs.nodes.len(), 2, "the policy remembers what is on the SSD");
    fs.ask_move(ino, TierName::Hdd, MoveReason::Asked);
    fs.do_job(fs.next_now().expect("asked for"));
    assert!(fs.at("hdd/file").exists());
    assert_eq!((fs.nodes.len(), fs.mover.queue_len()), (1, 0));
}

#[test]
fn a_file_that_is_removed_does_not_stay_for_the_move_that_was_asked_for() {
    let fs = TestPair::with(&["hdd/file"]);
    let ino = fs.look_up("file");
    fs.ask_move(ino, TierName::Ssd, MoveReason::Asked);
    fs.forget(ino, 1);
    fs.unlink(crate::testing::me(), ROOT, OsStr::new("file")).expect("removed");
    assert_eq!((fs.nodes.len(), fs.held.lock().len()), (1, 0));
    fs.do_job(fs.next_now().expect("asked for"));
    assert_eq!((fs.next_now().is_none(), fs.mover.queue_len()), (true, 0));
}

#[test]
fn a_file_that_another_move_has_is_put_off_and_not_asked_for_all_the_time() {
    let fs = TestPair::with(&["hdd/file"]);
    let ino = fs.look_up("file");
    fs.ask_move(ino, TierName::Ssd, MoveReason::SecondTouch);
    let job = fs.next_now().expect("asked for");
    fs.after(job, MoveOutcome::Busy);
    assert!(fs.next_now().is_none(), "not at once");
    assert_eq!(fs.mover.queue_len(), 1);
    fs.mover.state.lock().later.values_mut().for_each(|(at, _)| *at = Instant::now());
    fs.do_job(fs.next_now().expect("now"));
    assert!(fs.at("ssd/file").exists());
}

#[test]
fn a_move_that_nobody_would_ask_for_again_is_tried_again_but_not_for_ever() {
    let fs = TestPair::with(&["ssd/file"]);
    let ino = fs.look_up("file");
    fs.ask_move(ino, TierName::Hdd, MoveReason::TooBig);
    for _ in 0..TRIES_MAX {
        let job = fs.next_now().expect("asked for, or due");
        fs.after(job, MoveOutcome::Dropped);
        assert_eq!(fs.mover.queue_len(), 1);
        fs.mover.state.lock().later.values_mut().for_each(|(at, _)| *at = Instant::now());
    }
    let job = fs.next_now().expect("due");
    fs.after(job, MoveOutcome::Dropped);
    assert_eq!(fs.mover.queue_len(), 0);
    // It rests, but a file that outgrows the SSD again is requested again.
    fs.ask_move(ino, TierName::Hdd, MoveReason::TooBig);
    assert_eq!(fs.mover.queue_len(), 1);
}

#[test]
fn a_file_that_is_gone_does_not_come_up_as_a_victim_for_ever() {
    let fs = TestPair::with(&["ssd/file"]);
    let ino = fs.look_up("file");
    fs.placement.arrived(ino, 2, 1, 1);
    fs.placement.arrived(ino + 1_000_000, 1, 1, 1);
    fs.do_job(MoveJob::new(ino + 1_000_000, TierName::Hdd, MoveReason::HighMark));
    assert_eq!(fs.placement.len(), 1);
    fs.after(MoveJob::new(ino, TierName::Hdd, MoveReason::HighMark), MoveOutcome::Dropped);
    assert_eq!(fs.placement.len(), 1, "one that only changed stays known");
}

#[test]
fn a_file_that_is_small_again_does_not_leave_for_its_size() {
    let fs = TestPair::with(&["ssd/file"]);
    let ino = fs.look_up("file");
    assert_eq!(fs.move_file(ino, TierName::Hdd, MoveReason::TooBig, &mut |_, _| true), MoveOutcome::Dropped);
    assert!(fs.at("ssd/file").exists());
}

#[test]
fn a_low_rate_is_kept_too_and_closing_does_not_wait_for_it() {
    let mover = Mover::new(Some(1000));
    let begun = Instant::now();
    mover.spend(1500);
    mover.spend(1);
    assert!(begun.elapsed() >= Duration::from_millis(1500), "{:?}", begun.elapsed());
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| {
            mover.spend(3_600_000);
            mover.spend(1);
        });
        mover.stop();
        slow.join().expect("ended at once");
    });
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_file_that_outgrows_the_ssd_while_it_comes_leaves_again() {
    let mut fs = TestPair::with(&["hdd/file"]);
    fs.fs.config.max_file = Some(Size::Bytes(3 << 20));
    fs.fs.space.refresh(fs.fs.tiers(), &fs.fs.config).expect("figures");
    let ino = fs.look_up("file");
    let mut handle = Some(fs.open(me(), ino, true, true).expect("opened"));
    write(&fs, handle.as_ref().expect("open"), 0, b'a');
    let reader = fs.open(me(), ino, true, false).expect("opened");
    fs.ask_move(ino, TierName::Ssd, MoveReason::SecondTouch);
    let job = fs.next_now().expect("asked for");
    let outcome = fs.move_file(ino, job.to, job.reason, &mut |_, _| {
        if let Some(handle) = handle.take() {
            (1..4).for_each(|n| write(&fs, &handle, n << 20, b'b'));
            fs.release(&handle, None);
        }
        true
    });
    assert_eq!((outcome, fs.at("ssd/file").metadata().expect("it came").len()), (MoveOutcome::Done, 4 << 20));
    fs.release(&reader, None);
    fs.after(job, outcome);
    fs.do_job(fs.next_now().expect("it is too large"));
    assert!(!fs.at("ssd/file").exists());
    assert_eq!(fs.at("hdd/file").metadata().expect("it is back").len(), 4 << 20);
}

/// A side as sshfs has it, or one without links.
fn limited(fs: &mut TestPair, links: bool) {
    for tier in [TierName::Ssd, TierName::Hdd] {
        fs.fs.limit(tier, |abilities| {
            abilities.rename_noreplace = false;
            abilities.hard_links = links;
            abilities.stable_inodes = false;
            abilities.file_system = "fuse.test".into();
        });
    }
}

fn moved(fs: &TestPair, to: TierName) -> MoveOutcome {
    let ino = fs.look_up("file");
    let outcome = fs.move_file(ino, to, MoveReason::Asked, &mut |_, _| true);
    fs.forget(ino, 1);
    outcome
}

fn temporaries(fs: &TestPair) -> usize {
    ["ssd", "hdd"].map(|side| std::fs::read_dir(fs.at(side).join(".hotshelf/tmp")).expect("listed").count()).iter().sum()
}

#[test]
fn files_move_where_no_rename_refuses_to_replace_and_replace_nothing() {
    for links in [true, false] {
        let mut fs = TestPair::with(&["ssd/file"]);
        limited(&mut fs, links);
        assert_eq!(moved(&fs, TierName::Hdd), MoveOutcome::Done, "links: {links}");
        assert_eq!(std::fs::read(fs.at("hdd/file")).expect("there"), b"ssd/file");
        assert!(!fs.at("ssd/file").exists() && temporaries(&fs) == 0);
        match moved(&fs, TierName::Ssd) {
            MoveOutcome::Done => assert!(links && !fs.at("hdd/file").exists()),
            // A placeholder on the SSD would be taken for the file.
            MoveOutcome::Stays(_) => assert!(!links && fs.at("hdd/file").exists() && !fs.at("ssd/file").exists()),
            other => panic!("{other:?}"),
        }
        let mut fs = TestPair::with(&["ssd/file"]);
        limited(&mut fs, links);
        std::fs::write(fs.at("hdd/file"), "theirs").expect("written");
        assert!(matches!(moved(&fs, TierName::Hdd), MoveOutcome::Stays(_)));
        assert_eq!(std::fs::read(fs.at("hdd/file")).expect("there"), b"theirs");
        assert_eq!(std::fs::read(fs.at("ssd/file")).expect("there"), b"ssd/file");
        assert_eq!(temporaries(&fs), 0);
    }
}

#[test]
fn what_the_other_side_cannot_hold_stays_and_is_reported() {
    let mut fs = TestPair::with(&["ssd/file"]);
    fs.fs.limit(TierName::Hdd, |abilities| abilities.largest_file_bytes = Some(4));
    assert!(matches!(moved(&fs, TierName::Hdd), MoveOutcome::Stays(why) if why.contains("as large")));
    assert!(fs.at("ssd/file").exists() && temporaries(&fs) == 0);
    let troubles = fs.status().move_troubles;
    assert!(matches!(&*troubles, [one] if one.stays && one.moves == 1 && one.first == "file"), "{troubles:?}");
}

#[test]
fn recovery_without_permanent_inode_numbers_removes_copies_only() {
    let record = |fs: &TestPair| {
        let stat = std::fs::metadata(fs.at("ssd/file")).expect("there");
        use std::os::unix::fs::MetadataExt;
        let mtime = (stat.mtime(), stat.mtime_nsec() as u32);
        let (source, target) = (InodeId { ino: stat.ino(), birth: 0 }, InodeId { ino: 1, birth: 0 });
        MoveRecord { to: TierName::Hdd, path: b"file".to_vec(), ino: 77, source, target, size: stat.size(), mtime }
    };
    let recovered = |content: &str| {
        let mut fs = TestPair::with(&["ssd/file"]);
        limited(&mut fs, false);
        fs.fs.limit(TierName::Ssd, |abilities| abilities.stable_inodes = true);
        std::fs::write(fs.at("hdd/file"), content).expect("written");
        fs.recover(&[OpenMove { id: 1, record: record(&fs) }], Ok(Vec::new()));
        assert_eq!(std::fs::read(fs.at("ssd/file")).expect("there"), b"ssd/file");
        fs.at("hdd/file").exists()
    };
    assert!(!recovered("ssd/file"), "a copy");
    assert!(!recovered("hotshelf placeholder 000000000000004d\n"), "the placeholder of this move");
    assert!(recovered("hotshelf placeholder 000000000000004e\n"), "of another");
    assert!(recovered("SSD/FILE") && recovered("") && recovered("theirs"), "somebody's");
}

/// The kernel refuses a hard link to a file of another user that the caller cannot read and write (fs.protected_hardlinks).
#[test]
fn a_copy_gets_its_name_where_the_kernel_refuses_to_link_it() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: needs root, to make files of other users");
        return;
    }
    use std::os::unix::fs::{PermissionsExt, chown};
    let mut fs = TestPair::empty();
    limited(&mut fs, true);
    let copy = fs.at("hdd/.hotshelf/tmp/copy");
    for dir in ["", "hdd", "hdd/.hotshelf", "hdd/.hotshelf/tmp"] {
        std::fs::set_permissions(fs.at(dir), PermissionsExt::from_mode(0o777)).expect("set");
    }
    for taken in [false, true] {
        std::fs::write(&copy, "copy").expect("written");
        std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o600)).expect("set");
        chown(&copy, Some(1), Some(1)).expect("given away");
        if taken {
            std::fs::write(fs.at("hdd/file"), "theirs").expect("written");
        }
        crate::testing::as_nobody(|| {
            let hdd = fs.tier(TierName::Hdd);
            let id = hdd.stat(hdd.tmp.as_fd(), OsStr::new("copy")).expect("there").id();
            let placed = hdd.place((OsStr::new("copy"), id), hdd.root.as_fd(), OsStr::new("file"), 7);
            assert_eq!(placed.map(|id| id.ino), if taken { Err(Errno::EXIST) } else { Ok(id.ino) });
        });
        assert_eq!(std::fs::read_to_string(fs.at("hdd/file")).expect("there"), if taken { "theirs" } else { "copy" });
        assert_eq!(copy.exists(), taken);
        std::fs::remove_file(fs.at("hdd/file")).expect("removed");
    }
}

#[test]
fn recovery_removes_no_file_that_has_got_the_inode_number_of_a_copy() {
    for (source_again, target_again) in [(false, false), (true, false), (false, true)] {
        let fs = TestPair::with(&["ssd/file", "hdd/file"]);
        let id = |tier: TierName, again: bool| {
            let tier = fs.tier(tier);
            let id = tier.stat(tier.root.as_fd(), OsStr::new("file")).expect("there").id();
            assert_ne!(id.birth, 0, "the file system of the tests tells births");
            InodeId { birth: id.birth - u64::from(again), ..id }
        };
        let (source, target) = (id(TierName::Ssd, source_again), id(TierName::Hdd, target_again));
        let record = MoveRecord { to: TierName::Hdd, path: b"file".to_vec(), ino: 77, source, target, size: 8, mtime: (1, 1) };
        fs.recover(&[OpenMove { id: 1, record }], Ok(Vec::new()));
        assert_eq!(fs.at("hdd/file").exists(), source_again || target_again);
        assert!(fs.at("ssd/file").exists());
    }
}

/// A lookup in the middle of a copy learns the birth of the inode that the last move made, and the file is the same.
#[test]
fn a_lookup_does_not_end_the_next_move_of_a_file_that_has_moved() {
    let fs = TestPair::with(&["ssd/file"]);
    let ino = fs.look_up("file");
    for to in [TierName::Hdd, TierName::Ssd, TierName::Hdd] {
        let outcome = fs.move_file(ino, to, MoveReason::Asked, &mut |_, _| {
            fs.why(b"file").expect("there");
            fs.look_and_forget("file");
            true
        });
        assert_eq!(outcome, MoveOutcome::Done, "to {to}");
    }
}

/// The same for a file of whose inode only the number is known.
#[test]
fn a_birth_that_is_learned_during_a_move_does_not_end_it() {
    let fs = TestPair::with(&["ssd/file"]);
    let ino = fs.look_up("file");
    let inos = fs.nodes.place(ino).expect("known").backing.inos();
    fs.nodes.change(ino, |node| node.backing = inos.into());
    let outcome = fs.move_file(ino, TierName::Hdd, MoveReason::Asked, &mut |_, _| {
        fs.look_and_forget("file");
        true
    });
    assert_eq!(outcome, MoveOutcome::Done);
}

/// A client that hung up is not waited for until all that was written meanwhile is copied again.
#[test]
fn a_move_stops_while_it_copies_again_what_was_written_meanwhile() {
    let fs = TestPair::empty();
    let (attr, handle) = fs.create(me(), ROOT, OsStr::new("file"), 0o644, 0, true).expect("made");
    (0..12).for_each(|n| write(&fs, &handle, n << 20, b'a'));
    let (mut written, mut at_the_end) = (false, 0);
    let outcome = fs.move_file(attr.ino, TierName::Hdd, MoveReason::Asked, &mut |done, all| {
        if !std::mem::replace(&mut written, true) {
            (0..12).for_each(|n| write(&fs, &handle, n << 20, b'b'));
        }
        at_the_end += u32::from(done == all);
        at_the_end < 2
    });
    assert_eq!((outcome, at_the_end), (MoveOutcome::Dropped, 2));
    fs.release(&handle, None);
    assert!(fs.at("ssd/file").exists() && !fs.at("hdd/file").exists());
    assert_eq!(std::fs::read_dir(fs.at("hdd/.hotshelf/tmp")).expect("there").count(), 0);
}
