//! Faulty drives: faults of the controller, in another process.

use std::time::Duration;

use block::{Error, Lba, Queue as _, Request, Tag};
use nvme::{Controller, Options};

use super::setting::{Bench, Drive};

#[test]
fn commands_that_are_lost_or_answered_wrongly_end_once_and_the_drive_works_afterwards() {
    for fault in ["drop@5", "drop-answer@5", "delay=3@3", "wrong-id@5", "wrong-queue@5", "twice@3", "status=4281@4"] {
        let drive = Drive::start(&["--size", "1MiB", "--block", "512", "--fault", fault]);
        let controller = drive.open();
        let mut bench = Bench::impatient(&controller, 32, false, Duration::from_millis(500));
        let mut bad = 0;
        for round in 0..20_u64 {
            let buf = bench.buf(round as u8);
            match bench.run(Request::write(Tag(round), Lba(round), 1), Some(&buf)) {
                Ok(()) => {}
                Err(Error::Timeout | Error::Media | Error::NoResources | Error::Reset) => bad += 1,
                Err(other) => panic!("{fault}: {other:?}"),
            }
            while bench.queue.take_released().is_some() {}
        }
        assert!(bad > 0 || fault.starts_with("delay") || fault.starts_with("twice"), "{fault} never hit");
        assert!(!controller.is_gone(), "{fault}");
        drop((bench, controller));
        drive.end();
    }
}

#[test]
fn a_drive_that_does_not_become_ready_is_said_to_be_so() {
    let drive = Drive::start(&["--size", "1MiB", "--fault", "stuck-not-ready"]);
    let function = pci::user::open(&drive.socket).expect("connected");
    let refused = Controller::open(function, Options::default()).map(drop).expect_err("not ready");
    assert!(refused.to_string().contains("ready"), "{refused}");
}
