//! Driver requirements, over many kinds of drives in another process.

use block::{Device, Lba, QueueOptions, Request, Tag};
use nvme::{Controller, Options};
use pci::user::UserOptions;

use super::cases;
use super::setting::{Bench, Drive};

#[test]
fn every_kind_of_drive_does_what_a_driver_must() {
    let kinds: [&[&str]; 4] = [
        &["--block", "512"],
        &["--block", "4096", "--no-doorbell-buffer"],
        &["--block", "512", "--latency-us", "0", "200", "--volatile-cache", "--spin-us", "0"],
        &["--namespaces", "3", "--queues", "40"],
    ];
    for (number, args) in kinds.into_iter().enumerate() {
        let drive = Drive::start(&[args, &["--size", "8MiB"]].concat());
        let controller = drive.open();
        for polled in [false, true] {
            let options = QueueOptions { depth: 32, device_polled: polled, ..QueueOptions::default() };
            let id = if number == 3 { 3 } else { 1 };
            cases::all(&format!("{args:?}"), &controller.namespace(id).expect("a namespace"), &options);
        }
        drop(controller);
        let words = drive.end();
        assert!(words.contains("1 hosts") && words.contains("1 shutdowns") && words.contains("0 violations"), "{words}");
    }
}

#[test]
fn a_host_that_maps_nothing_is_served_by_messages() {
    for args in [&["--size", "8MiB"][..], &["--size", "8MiB", "--no-doorbell-buffer"]] {
        let drive = Drive::start(args);
        let options = UserOptions { mapped: false, ..UserOptions::default() };
        let function = pci::user::open_with(&drive.socket, &options).expect("connected");
        let controller = Controller::open(function, Options::default()).expect("ready");
        let mut bench = Bench::new(&controller, 4, false);
        for round in 0..200_u64 {
            let (out, back) = (bench.buf(round as u8), bench.buf(0));
            assert_eq!(bench.run(Request::write(Tag(1), Lba(round), 1), Some(&out)), Ok(()));
            assert_eq!(bench.run(Request::read(Tag(2), Lba(round), 1), Some(&back)), Ok(()));
            assert_eq!(back.to_vec(), out.to_vec());
        }
        drop((bench, controller));
        assert!(drive.end().contains("0 violations"));
    }
}

#[test]
fn many_hosts_come_one_after_the_other_and_find_what_the_last_one_wrote() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("content");
    let drive = Drive::start(&["--size", "1MiB", "--file", file.to_str().expect("plain")]);
    let begin = std::fs::metadata(&file).expect("made").len();
    assert_eq!(begin, 1 << 20);
    for round in 0..20_u8 {
        let controller = drive.open();
        let mut bench = Bench::new(&controller, 4, round % 2 == 0);
        let buf = bench.buf(0xff);
        assert_eq!(bench.run(Request::read(Tag(1), Lba(9), 1), Some(&buf)), Ok(()));
        assert_eq!(buf.to_vec(), vec![round; bench.block]);
        let buf = bench.buf(round + 1);
        assert_eq!(bench.run(Request::write(Tag(2), Lba(9), 1), Some(&buf)), Ok(()));
    }
    assert!(drive.end().contains("20 hosts"));
    assert_eq!(std::fs::read(&file).expect("read")[9 * 4096], 20);
}

#[test]
fn names_of_one_controller_share_it() {
    let drive = Drive::start(&["--size", "1MiB", "--namespaces", "2"]);
    let open = |namespace: &str| -> std::sync::Arc<dyn Device> {
        let name = format!("vfio-user:{}{namespace}", drive.socket.display());
        name.parse::<stack::DeviceName>().expect("a name").open().expect("opened")
    };
    // A second connection would wait for the end of the first.
    let (first, second, again) = (open(""), open("/2"), open("/1"));
    assert_eq!(first.geometry(), again.geometry());
    let refused = format!("vfio-user:{}/3", drive.socket.display()).parse::<stack::DeviceName>().expect("a name").open();
    assert!(refused.map(drop).expect_err("there are two").to_string().contains("no namespace 3"));
    drop((first, second, again));
    assert!(drive.end().contains("1 hosts"));
}
