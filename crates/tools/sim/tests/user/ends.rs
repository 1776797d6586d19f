//! One side ends or stops during its work.

use std::collections::HashSet;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use block::{Error, Lba, Queue as _, Request, Submit, Tag};
use nvme::{Controller, Options};
use pci::user::UserOptions;
use rustix::process::Signal;

use super::setting::{Bench, Drive, open};

/// Enough for a responding drive on a busy machine, and short enough to wait for one that does not respond.
const ENOUGH: Duration = Duration::from_secs(3);

const SOCKET: &str = "HOTSHELF_TEST_SOCKET";

/// Submits reads that the drive does not complete.
fn unanswered(bench: &mut Bench, count: u64) -> Vec<block::Buf> {
    let bufs: Vec<_> = (0..count).map(|_| bench.buf(0)).collect();
    for (tag, buf) in (0..).zip(&bufs) {
        assert_eq!(bench.queue.submit(&Request::read(Tag(tag), Lba(tag), 1), &[buf.span()]), Submit::Queued);
    }
    bench.queue.ring();
    bufs
}

#[test]
fn when_the_drive_is_killed_each_request_ends_once_as_gone() {
    for polled in [false, true] {
        let drive = Drive::start(&["--size", "1MiB", "--fault", "drop"]);
        let controller = drive.open();
        let mut bench = Bench::new(&controller, 32, polled);
        let _bufs = unanswered(&mut bench, 32);
        drive.signal(Signal::KILL);
        let mut ended = Vec::new();
        while ended.len() < 32 {
            ended.extend(bench.next(polled));
        }
        assert!(ended.iter().all(|completion| completion.status == Err(Error::Gone)), "{ended:?}");
        assert_eq!(ended.iter().map(|completion| completion.tag).collect::<HashSet<_>>().len(), 32);
        assert!(controller.is_gone());
        let buf = bench.buf(0);
        assert_eq!(bench.run(Request::read(Tag(99), Lba(0), 1), Some(&buf)), Err(Error::Gone));
        assert_eq!(bench.queue.poll(&mut [block::Completion::EMPTY; 8]), 0);
    }
}

#[test]
fn a_drive_that_stands_still_ends_nothing_until_it_is_certain_that_it_reaches_no_memory() {
    let drive = Drive::start(&["--size", "1MiB"]);
    let options = UserOptions { reply_timeout: ENOUGH, ..UserOptions::default() };
    let function = pci::user::open_with(&drive.socket, &options).expect("connected");
    let controller = Controller::open(function, Options { admin_timeout: ENOUGH, ..Options::default() }).expect("ready");
    let mut bench = Bench::impatient(&controller, 4, false, ENOUGH);
    drive.stop();
    let buf = unanswered(&mut bench, 1);
    let ended = bench.next(false);
    assert_eq!(ended[0].status, Err(Error::Timeout));
    // The drive may wake up and write: the memory is held. A second request ends at once.
    let begun = Instant::now();
    while !controller.is_gone() {
        bench.queue.wait(Duration::from_millis(10));
        assert_eq!(bench.queue.poll(&mut [block::Completion::EMPTY; 8]), 0);
        assert!(begun.elapsed() < Duration::from_secs(60), "it counts as there");
    }
    assert_eq!(bench.queue.take_released(), None);
    drive.signal(Signal::KILL);
    let begun = Instant::now();
    while bench.queue.take_released().is_none() {
        bench.queue.wait(Duration::from_millis(10));
        bench.queue.poll(&mut [block::Completion::EMPTY; 8]);
        assert!(begun.elapsed() < Duration::from_secs(60), "the memory is held for ever");
    }
    drop(buf);
}

#[test]
fn a_drive_that_is_pulled_out_ends_everything_and_comes_back_for_the_next_host() {
    let drive = Drive::start(&["--size", "1MiB"]);
    let controller = drive.open();
    let mut bench = Bench::impatient(&controller, 8, false, ENOUGH);
    let buf = bench.buf(7);
    assert_eq!(bench.run(Request::write(Tag(1), Lba(3), 1), Some(&buf)), Ok(()));
    drive.signal(Signal::USR2);
    let status = (0..).map(|_| bench.run(Request::read(Tag(2), Lba(3), 1), Some(&buf))).find(|status| status.is_err());
    // The process is alive: its memory may still be in use, so the request ends by its deadline.
    assert!(matches!(status, Some(Err(Error::Timeout | Error::Gone))), "{status:?}");
    drop((bench, controller));
    let controller = drive.open();
    let mut bench = Bench::new(&controller, 8, false);
    let buf = bench.buf(0);
    assert_eq!(bench.run(Request::read(Tag(1), Lba(3), 1), Some(&buf)), Ok(()));
    assert_eq!(buf.to_vec(), vec![7; bench.block]);
}

#[test]
fn after_a_loss_of_power_what_was_flushed_is_there() {
    let drive = Drive::start(&["--size", "1MiB", "--volatile-cache"]);
    for round in 1..=3_u8 {
        let controller = drive.open();
        let mut bench = Bench::impatient(&controller, 8, false, ENOUGH);
        let buf = bench.buf(round);
        assert_eq!(bench.run(Request::write(Tag(1), Lba(3), 1), Some(&buf)), Ok(()));
        assert_eq!(bench.run(Request::flush(Tag(2)), None), Ok(()));
        let later = bench.buf(round + 100);
        assert_eq!(bench.run(Request::write(Tag(3), Lba(5), 1), Some(&later)), Ok(()));
        drive.signal(Signal::USR1);
        // Everything fails from then on; before that it may work.
        while bench.run(Request::read(Tag(4), Lba(3), 1), Some(&buf)).is_ok() {}
        drop((bench, controller));
        let controller = drive.open();
        let mut bench = Bench::new(&controller, 8, false);
        let (flushed, other) = (bench.buf(0), bench.buf(0));
        assert_eq!(bench.run(Request::read(Tag(5), Lba(3), 1), Some(&flushed)), Ok(()));
        assert_eq!(flushed.to_vec(), vec![round; bench.block]);
        assert_eq!(bench.run(Request::read(Tag(6), Lba(5), 1), Some(&other)), Ok(()));
        let other = other.to_vec();
        assert!(other.iter().all(|byte| *byte == round + 100 || *byte == 0 || (101..104).contains(byte)), "{other:?}");
    }
}

/// Makes load in another process until it is killed. Without a socket it uses its own drive for a moment.
#[test]
fn load() {
    let given = std::env::var_os(SOCKET);
    let own = given.is_none().then(|| Drive::start(&["--size", "1MiB"]));
    let socket = given.clone().map_or_else(|| own.as_ref().expect("ours").socket.clone(), Into::into);
    let controller = open(&socket, Options::default());
    let mut bench = Bench::new(&controller, 16, false);
    let bufs: Vec<_> = (0..16).map(|fill| bench.buf(fill)).collect();
    for (tag, buf) in (0..).zip(&bufs) {
        assert_eq!(bench.queue.submit(&Request::write(Tag(tag), Lba(tag), 1), &[buf.span()]), Submit::Queued);
    }
    bench.queue.ring();
    let (mut count, mut said) = (0_u64, false);
    while given.is_some() || count < 1000 {
        for ended in bench.next(false) {
            assert_eq!(ended.status, Ok(()));
            count += 1;
            assert_eq!(
                bench.queue.submit(&Request::write(ended.tag, Lba(ended.tag.0), 1), &[bufs[ended.tag.0 as usize].span()]),
                Submit::Queued
            );
        }
        bench.queue.ring();
        if !said && count > 100 {
            said = true;
            println!("under way");
        }
    }
}

#[test]
fn when_the_host_is_killed_the_next_one_is_served() {
    use std::io::{BufRead as _, BufReader};
    let drive = Drive::start(&["--size", "1MiB"]);
    for _ in 0..if super::setting::full() { 200 } else { 5 } {
        let me = std::env::current_exe().expect("this program");
        let mut command = Command::new(me);
        command.args(["--exact", "ends::load", "--nocapture"]).env(SOCKET, &drive.socket).stdout(Stdio::piped());
        let mut child = command.spawn().expect("started");
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut lines = out.lines().map_while(Result::ok);
        assert!(lines.any(|line| line.ends_with("under way")), "it does not begin");
        child.kill().expect("killed");
        child.wait().expect("ended");
        let controller = drive.open();
        let mut bench = Bench::new(&controller, 4, false);
        let buf = bench.buf(1);
        assert_eq!(bench.run(Request::write(Tag(1), Lba(20), 1), Some(&buf)), Ok(()));
    }
    let words = drive.end();
    assert!(words.contains("0 violations"), "{words}");
}
