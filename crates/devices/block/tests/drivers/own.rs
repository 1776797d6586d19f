//! Tests specific to the file drivers: opening files, and errors of files.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use block::driver::{Engine, FileDevice, FileOptions, MemoryDevice, Passthrough};
use block::{Completion, Device, Error, Lba, QueueOptions, Request, Span, Submit, Tag};

use crate::cases::Bench;
use crate::kinds::{Loop, disk, options, sized};

const ENGINES: [Engine; 2] = [Engine::Uring, Engine::Plain];

fn refused(path: &Path, options: &FileOptions) -> String {
    FileDevice::open(path, options).expect_err("refused").to_string()
}

#[test]
fn what_cannot_be_opened_is_reported_with_a_remedy() {
    let dir = tempfile::tempdir_in(disk()).expect("a directory");
    let default = FileOptions::default();
    let missing = dir.path().join("missing");
    assert!(refused(&missing, &default).contains("does not exist: make it first"));
    assert!(refused(dir.path(), &default).contains("is a directory"));
    assert!(refused(Path::new("/dev/null"), &default).contains("is a character device"));
    assert!(refused(sized(disk(), 0).path(), &default).contains("is empty: give it a size"));
    let odd = sized(disk(), 10_000);
    assert!(refused(odd.path(), &default).contains("not whole blocks of 512"), "{}", refused(odd.path(), &default));
    // The message must not recommend a destructive command.
    assert!(!refused(odd.path(), &default).contains("truncate"));
    let rounded = FileDevice::open(odd.path(), &FileOptions { round_down: true, ..default.clone() }).expect("opened");
    assert_eq!(rounded.geometry().blocks, 19);
    assert!(refused(odd.path(), &FileOptions { block_bytes: Some(1000), ..default.clone() }).contains("a power of two"));
    let not_ours = sized(disk(), 4096);
    std::fs::set_permissions(not_ours.path(), std::fs::Permissions::from_mode(0o0)).expect("changed");
    if rustix::process::geteuid().is_root() {
        println!("SKIP: nothing is forbidden to root");
    } else {
        assert!(refused(not_ours.path(), &default).contains("may not be read and written by this user"));
    }
    assert!(Passthrough::open("/dev/null", true).expect_err("refused").to_string().contains("not a namespace of an NVMe drive"));
    assert!(Passthrough::open(odd.path(), true).expect_err("refused").to_string().contains("is not a device"));
    for depth in [0, 3, 8192] {
        let device = FileDevice::open(odd.path(), &FileOptions { round_down: true, ..default.clone() }).expect("opened");
        assert!(device.queue(&QueueOptions { depth, ..QueueOptions::default() }).is_err());
    }
}

#[test]
fn what_is_opened_for_reading_is_not_written() {
    for engine in ENGINES {
        let file = sized(disk(), 1 << 20);
        let device = FileDevice::open(file.path(), &FileOptions { read_only: true, ..options(engine) }).expect("opened");
        let mut bench = Bench::new(&device, &QueueOptions::default());
        let buf = bench.arena.allocate(512).expect("room");
        assert_eq!(bench.run(Request::read(Tag(1), Lba(0), 1), &[buf.span()]), Ok(()));
        assert_eq!(bench.run(Request::write(Tag(2), Lba(0), 1), &[buf.span()]), Err(Error::ReadOnly));
        assert_eq!(bench.run(Request::flush(Tag(3)), &[]), Ok(()));
    }
}

#[test]
fn reading_does_not_change_when_it_was_read_last() {
    for engine in ENGINES {
        for buffered in [false, true] {
            let file = sized(disk(), 1 << 20);
            file.as_file().set_times(std::fs::FileTimes::new().set_accessed(std::time::UNIX_EPOCH)).expect("long ago");
            let device = FileDevice::open(file.path(), &FileOptions { buffered, ..options(engine) }).expect("opened");
            let mut bench = Bench::new(&device, &QueueOptions::default());
            let buf = bench.arena.allocate(4096).expect("room");
            assert_eq!(bench.run(Request::read(Tag(1), Lba(0), 4096 / device.geometry().block_bytes), &[buf.span()]), Ok(()));
            let accessed = file.as_file().metadata().and_then(|data| data.accessed()).expect("told");
            assert_eq!(accessed, std::time::UNIX_EPOCH, "{engine:?}, buffered {buffered}");
        }
    }
}

/// The kernel treats the rest of such a read as zeroes; for a device it is lost data.
#[test]
fn a_file_that_was_cut_off_is_a_media_error() {
    for engine in ENGINES {
        for buffered in [false, true] {
            for left in [0, 4096, 4096 + 100] {
                let file = sized(disk(), 1 << 20);
                let device = FileDevice::open(file.path(), &FileOptions { buffered, ..options(engine) }).expect("opened");
                let mut bench = Bench::new(&device, &QueueOptions::default());
                let buf = bench.arena.allocate(8192).expect("room");
                let read = Request::read(Tag(1), Lba(0), 8192 / device.geometry().block_bytes);
                assert_eq!(bench.run(read, &[buf.span()]), Ok(()));
                file.as_file().set_len(left).expect("cut off");
                assert_eq!(bench.run(read, &[buf.span()]), Err(Error::Media), "{engine:?}, buffered {buffered}, {left} bytes left");
            }
        }
    }
}

/// A loop device whose file was truncated reports EIO, as a disk with a bad sector does.
#[test]
fn a_block_device_that_cannot_read_is_a_media_error() {
    for engine in ENGINES {
        let file = sized(disk(), 1 << 20);
        let Some(lost) = Loop::over(file.path()) else { return };
        let device = FileDevice::open(&lost.0, &options(engine)).expect("opened");
        let mut bench = Bench::new(&device, &QueueOptions::default());
        let buf = bench.arena.allocate(4096).expect("room");
        file.as_file().set_len(512 << 10).expect("cut off");
        let read =
            |at: u32| Request::read(Tag(1), Lba(u64::from(at / device.geometry().block_bytes)), 4096 / device.geometry().block_bytes);
        assert_eq!(bench.run(read(1 << 19), &[buf.span()]), Err(Error::Media), "{engine:?}");
        assert_eq!(bench.run(read(0), &[buf.span()]), Ok(()), "{engine:?}: the rest is as good as before");
    }
}

/// The machine of tests/vm/20-passthrough.sh has io_uring disabled.
#[test]
fn where_io_uring_is_forbidden_threads_stand_in() {
    if !std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").is_ok_and(|off| off.trim() == "2") {
        println!("SKIP: io_uring is not switched off here");
        return;
    }
    let file = sized(disk_or_memory(), 16 << 20);
    let device = FileDevice::open(file.path(), &FileOptions::default()).expect("opened");
    crate::cases::all("stand-in", &device, &QueueOptions { depth: 16, ..QueueOptions::default() });
    let device = FileDevice::open(file.path(), &options(Engine::Uring)).expect("opened");
    let error = device.queue(&QueueOptions::default()).err().expect("refused").to_string();
    assert!(error.contains("kernel.io_uring_disabled is 2"), "{error}");
    assert!(block::driver::uring::probe::probe().no_uring.is_some_and(|why| why.contains("switched off")));
}

/// A ring of an ordinary user counts against the limit of locked memory, which other rings may have used up.
#[test]
fn without_memory_for_a_ring_threads_stand_in() {
    const CHILD: &str = "BLOCK_TEST_WITHOUT_LOCKED_MEMORY";
    if std::env::var_os(CHILD).is_some() {
        let file = sized(Path::new("/dev/shm"), 16 << 20);
        let device = FileDevice::open(file.path(), &FileOptions::default()).expect("opened");
        return crate::cases::all("stand-in", &device, &QueueOptions { depth: 16, ..QueueOptions::default() });
    }
    // Root may lock any memory.
    let unprivileged: &[&str] = if rustix::process::geteuid().is_root() { &["setpriv", "--bounding-set", "-ipc_lock"] } else { &[] };
    let program = std::env::current_exe().expect("this program");
    let words = unprivileged.iter().copied().chain(["prlimit", "--memlock=0:0"]).collect::<Vec<_>>();
    let mut child = Command::new(words[0]);
    child.args(&words[1..]).arg(program).args(["--exact", "own::without_memory_for_a_ring_threads_stand_in"]).env(CHILD, "1");
    match child.output() {
        Ok(done) => assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout)),
        Err(error) => println!("SKIP: needs {} of util-linux: {error}", words[0]),
    }
}

/// In the virtual machine the disk is read-only.
fn disk_or_memory() -> &'static Path {
    if disk().is_dir() { disk() } else { Path::new("/dev/shm") }
}

#[test]
fn a_full_file_system_is_no_space() {
    let dir = tempfile::tempdir_in(disk()).expect("a directory");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(dir.path()).status();
    if !mounted.is_ok_and(|status| status.success()) {
        println!("SKIP: needs root, for a file system to fill");
        return;
    }
    let outcome = std::panic::catch_unwind(|| {
        for engine in ENGINES {
            let file = sized(dir.path(), 1 << 20);
            let device = FileDevice::open(file.path(), &options(engine)).expect("opened");
            let mut bench = Bench::new(&device, &QueueOptions::default());
            let buf = bench.arena.allocate(256 << 10).expect("room");
            let write = Request::write(Tag(1), Lba(0), (256 << 10) / device.geometry().block_bytes);
            // The first part fits: the kernel reports a short write, and then the error.
            assert_eq!(bench.run(write, &[buf.span()]), Err(Error::NoSpace), "{engine:?}");
            let pieces: Vec<Span> = (0..8).rev().map(|at| buf.span().part(at * (32 << 10), 32 << 10)).collect();
            assert_eq!(bench.run(write, &pieces), Err(Error::NoSpace), "{engine:?}, in pieces");
            let zeroed = Request::write_zeroes(Tag(2), Lba(0), 8);
            assert_eq!(bench.run(zeroed, &[]), Ok(()), "{engine:?}: by a hole, which needs no space");
        }
    });
    let _ = Command::new("umount").arg(dir.path()).status();
    outcome.expect("as above");
}

#[test]
fn a_queue_that_is_not_promised_may_move_between_threads() {
    for engine in ENGINES {
        let file = sized(disk(), 1 << 20);
        let device = FileDevice::open(file.path(), &options(engine)).expect("opened");
        let mut bench = Bench::new(&device, &QueueOptions::default());
        for tag in 0..8 {
            bench = std::thread::spawn(move || {
                let buf = bench.arena.allocate(4096).expect("room");
                assert_eq!(bench.run(Request::read(Tag(tag), Lba(0), 1), &[buf.span().part(0, 512)]), Ok(()));
                bench
            })
            .join()
            .expect("read");
        }
        // One thread submits, another reaps.
        let buf = bench.arena.allocate(4096).expect("room");
        let submitted = bench.queue.submit(&Request::read(Tag(1), Lba(0), 1), &[buf.span().part(0, 512)]);
        assert_eq!(submitted, block::Submit::Queued);
        bench.queue.ring();
        let mut ended = [block::Completion::EMPTY];
        std::thread::spawn(move || {
            while bench.queue.poll(&mut ended) == 0 {
                bench.queue.wait(std::time::Duration::from_secs(30));
            }
            assert_eq!(ended[0].status, Ok(()));
        })
        .join()
        .expect("reaped");
    }
}

#[test]
fn a_queue_promised_to_one_thread_begins_with_the_first_that_uses_it() {
    let file = sized(disk(), 1 << 20);
    let device = FileDevice::open(file.path(), &options(Engine::Uring)).expect("opened");
    let mut bench = Bench::new(&device, &QueueOptions { single_issuer: true, ..QueueOptions::default() });
    std::thread::spawn(move || {
        let buf = bench.arena.allocate(4096).expect("room");
        assert_eq!(bench.run(Request::read(Tag(1), Lba(0), 1), &[buf.span().part(0, 512)]), Ok(()));
    })
    .join()
    .expect("read");
}

/// The kernel can register 16 rings per thread. A thread with more queues, or one that has dropped some, works as well.
#[test]
fn one_thread_has_many_queues_of_its_own() {
    let file = sized(disk(), 1 << 20);
    let device = FileDevice::open(file.path(), &options(Engine::Uring)).expect("opened");
    let options = QueueOptions { single_issuer: true, depth: 2, ..QueueOptions::default() };
    let mut benches: Vec<Bench> = Vec::new();
    for turn in 0..60 {
        if benches.len() == 20 {
            drop(benches.swap_remove(turn * 7 % 20));
        }
        benches.push(Bench::new(&device, &options));
        for bench in &mut benches {
            let buf = bench.arena.allocate(4096).expect("room");
            assert_eq!(bench.run(Request::read(Tag(1), Lba(0), 1), &[buf.span().part(0, 512)]), Ok(()));
        }
    }
    // Another thread drops queues that it has not used; the thread that used them can still use its last queue.
    let mut last = benches.pop().expect("there are 20");
    std::thread::spawn(move || drop(benches)).join().expect("dropped");
    let buf = last.arena.allocate(4096).expect("room");
    assert_eq!(last.run(Request::read(Tag(1), Lba(0), 1), &[buf.span().part(0, 512)]), Ok(()));
}

/// The test is long enough for periods in which waits sleep, spin, and choose between the two, at several depths and with waits that
/// end early.
#[test]
fn each_request_of_one_who_waits_ends_once_whether_waits_look_or_sleep() {
    const BLOCKS: u64 = 1024;
    let mut file = tempfile::NamedTempFile::new_in(disk()).expect("a file");
    let block = |lba: u64| [(lba % 251) as u8; 512];
    (0..BLOCKS).for_each(|lba| std::io::Write::write_all(&mut file, &block(lba)).expect("written"));
    let device = FileDevice::open(file.path(), &options(Engine::Uring)).expect("opened");
    let mut bench = Bench::new(&device, &QueueOptions { single_issuer: true, waits: true, depth: 32, ..QueueOptions::default() });
    let bufs: Vec<_> = (0..32).map(|_| bench.arena.allocate(512).expect("room")).collect();
    let mut rng = fastrand::Rng::with_seed(60);
    let mut asked: [Option<u64>; 32] = [None; 32];
    let (mut ended, mut left) = ([Completion::EMPTY; 32], 12_000);
    while left > 0 || asked.iter().any(Option::is_some) {
        let depth = [2, 8, 32][left / 2000 % 3];
        for place in 0..depth {
            if left == 0 || asked[place].is_some() {
                continue;
            }
            let lba = rng.u64(..BLOCKS);
            bufs[place].write(0, &[255; 512]);
            let request = Request::read(Tag(place as u64), Lba(lba), 1);
            assert_eq!(bench.queue.submit(&request, &[bufs[place].span()]), Submit::Queued);
            (asked[place], left) = (Some(lba), left - 1);
        }
        let at_most = [Duration::MAX, Duration::from_micros(5), Duration::from_micros(50)][rng.usize(..3)];
        let count = bench.queue.wait_and_poll(at_most, &mut ended);
        for completion in &ended[..count] {
            let place = completion.tag.0 as usize;
            let lba = asked[place].take().expect("asked for, and not answered before");
            assert_eq!((completion.status, bufs[place].to_vec()), (Ok(()), block(lba).to_vec()));
        }
    }
    assert_eq!(bench.queue.in_flight(), 0);
}

#[test]
fn who_waits_reads_without_a_queue() {
    #[repr(align(4096))]
    struct Memory([u8; 8192]);
    let mut file = tempfile::NamedTempFile::new_in(disk()).expect("a file");
    let bytes: Vec<u8> = (0..64 << 10_u32).map(|n| (n / 512) as u8).collect();
    std::io::Write::write_all(&mut file, &bytes).expect("written");
    let device = FileDevice::open(file.path(), &FileOptions { round_down: true, ..FileOptions::default() }).expect("a device");
    let mut memory = Box::new(Memory([0; 8192]));
    assert_eq!(device.read_now(12288, &mut memory.0), Some(Ok(())));
    assert_eq!(memory.0[..], bytes[12288..][..8192]);
    // Another process has truncated the file.
    file.as_file().set_len(16384).expect("cut");
    assert_eq!(device.read_now(12288, &mut memory.0), Some(Err(Error::Media)));
    assert_eq!(MemoryDevice::new(512, 128).expect("memory").read_now(0, &mut memory.0), None, "queues only");
}
