//! Images of released versions open, with every name, byte and attribute.

#[allow(dead_code, reason = "other tests use the rest of it")]
#[path = "../crash/machine.rs"]
mod machine;

use std::sync::Arc;
use std::time::Duration;

use machine::Machine;
use rawfs::fs::{Atime, Creds, FileKind, Fs, FsSettings, SetAttr, SetTime, Stat, Timestamp, check};
use rawfs::{FormatOptions, Settings, Store};
use rustix::fs::{OFlags, XattrFlags};
use sim::golden;

/// An image that was unmounted cleanly.
const CLEAN: &str = "rawfs-clean.img";
/// An image whose process was killed after a sync: its log has to be replayed.
const LOG: &str = "rawfs-log.img";

fn settings() -> Settings {
    Settings { node_cache_bytes: 1 << 20, background: false, ..Settings::default() }
}

fn fs_settings() -> FsSettings {
    FsSettings { cache_bytes: 256 << 10, write_back: Duration::ZERO, atime: Atime::Never, clock, ..FsSettings::default() }
}

fn clock() -> Timestamp {
    Timestamp { sec: 1_700_000_000, nsec: 123_456_789 }
}

fn open(machine: &Arc<Machine>) -> Fs {
    let (store, _) = Store::open(machine.disk(), &settings()).expect("opened");
    Fs::open(store, fs_settings()).expect("opened").0
}

/// Bytes that differ by file and position, and compress well.
fn content(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 64) as u8 ^ seed).collect()
}

fn write(fs: &Fs, path: &[u8], from: &[u8], at: u64) {
    let file = fs.open_at(fs.root(), path, OFlags::RDWR | OFlags::CREATE, 0o640, &Creds::root()).expect("made");
    assert_eq!(file.write_at(from, at).expect("written"), from.len());
}

/// A part of everything the format has.
fn fill(fs: &Fs) {
    let (root, creds) = (fs.root(), Creds::root());
    for dir in ["/dir", "/dir/sub", "/empty"] {
        fs.mkdir(root, dir.as_bytes(), 0o755, &creds).expect("made");
    }
    write(fs, b"/no content", b"", 0);
    write(fs, b"/in its record", b"hello", 0);
    write(fs, b"/dir/blocks", &content(1, 40_000), 0);
    write(fs, b"/dir/sparse", &content(2, 5_000), 1 << 20);
    (0..40).for_each(|n| write(fs, b"/dir/many runs", &content(n, 4096), u64::from(n) * 12_288));
    write(fs, b"/name \xff\x01\n that is no text", b"bytes", 0);
    write(fs, &[b"/".as_slice(), &[b'n'; 255]].concat(), b"a long name", 0);
    let mut deep = b"/deep".to_vec();
    for _ in 0..14 {
        fs.mkdir(root, &deep, 0o700, &creds).expect("made");
        deep.extend([b"/".as_slice(), &[b'd'; 250]].concat());
    }
    write(fs, &deep, b"a key too long for its directory", 0);
    fs.symlink(b"dir/blocks", root, b"/link", &creds).expect("made");
    fs.symlink(&[b'l'; 4000], root, b"/long link", &creds).expect("made");
    for (path, kind, device) in [
        ("/fifo", FileKind::Fifo, 0),
        ("/socket", FileKind::Socket, 0),
        ("/char", FileKind::CharDevice, 0x0105),
        ("/block", FileKind::BlockDevice, 0x0801),
    ] {
        fs.mknod(root, path.as_bytes(), kind, 0o600, device, &creds).expect("made");
    }
    let file = fs.lookup(root, b"/dir/blocks", false, &creds).expect("found");
    fs.link(&file, root, b"/dir/sub/second name", &creds).expect("linked");
    fs.set_xattr(&file, b"user.colour", b"blue", XattrFlags::CREATE, &creds).expect("set");
    fs.set_xattr(&file, b"trusted.long", &[7; 1000], XattrFlags::CREATE, &creds).expect("set");
    let moment = |sec| SetTime::At(Timestamp { sec, nsec: 987_654_321 });
    let set = SetAttr { mode: Some(0o4751), owner: Some((Some(1000), Some(100))), atime: moment(-5), mtime: moment(4_000_000_000) };
    fs.set_attr(&file, &set, &creds).expect("set");
    let acl = [
        2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 232, 3, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255, 16, 0, 4, 0, 255, 255, 255,
        255, 32, 0, 0, 0, 255, 255, 255, 255,
    ];
    let listed = fs.lookup(root, b"/in its record", false, &creds).expect("found");
    fs.set_xattr(&listed, b"system.posix_acl_access", &acl, XattrFlags::CREATE, &creds).expect("set");
}

/// Every name below the root, with attributes, extended attributes and a checksum of the content.
fn listing(fs: &Fs) -> Vec<String> {
    let creds = Creds::root();
    let (mut lines, mut dirs) = (Vec::new(), vec![b"/".to_vec()]);
    while let Some(path) = dirs.pop() {
        let node = fs.lookup(fs.root(), &path, false, &creds).expect("found");
        let stat = node.stat().expect("attributes");
        let mut attributes = Vec::new();
        for name in fs.list_xattrs(&node, &creds).expect("listed").split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let value = fs.get_xattr(&node, name, &creds).expect("read");
            attributes.push(format!("{}={}", name.escape_ascii(), value.escape_ascii()));
        }
        attributes.sort();
        let bytes = match node.kind() {
            FileKind::Symlink => fs.target(&node).expect("read"),
            FileKind::File => {
                let file = fs.open_node(&node, OFlags::RDONLY, &creds).expect("opened");
                let mut bytes = vec![0; usize::try_from(node.stat().expect("attributes").size).expect("small")];
                assert_eq!(file.read_at(&mut bytes, 0).expect("read"), bytes.len());
                bytes
            }
            FileKind::Dir => {
                let dir = fs.open_node(&node, OFlags::RDONLY | OFlags::DIRECTORY, &creds).expect("opened");
                let mut names = Vec::new();
                dir.read_dir(&mut |entry, _| {
                    names.push(entry.name.to_vec());
                    true
                })
                .expect("listed");
                names.sort();
                names.retain(|name| name != b"." && name != b"..");
                dirs.extend(names.iter().rev().map(|name| [&path[..], if path == b"/" { b"" } else { b"/" }, name].concat()));
                names.join(&0)
            }
            _ => Vec::new(),
        };
        let checksum = crc32c::crc32c(&bytes);
        lines.push(format!("{} {} [{}] {checksum:08x}", path.escape_ascii(), describe(&stat), attributes.join(" ")));
    }
    lines
}

/// All attributes, in words that do not change with the names of the code.
fn describe(stat: &Stat) -> String {
    let time = |time: Timestamp| format!("{}.{:09}", time.sec, time.nsec);
    let times = [stat.atime, stat.mtime, stat.ctime, stat.btime].map(time).join(" ");
    let numbers =
        [u64::from(stat.nlink), stat.uid.into(), stat.gid.into(), stat.size, stat.blocks, stat.device].map(|number| number.to_string());
    format!("ino {} mode {:o} nlink, uid, gid, size, blocks, device {} times {times}", stat.ino, stat.mode, numbers.join(" "))
}

fn make() {
    let machine = Machine::new(vec![0; 6 << 20]);
    let uuid = Some(*b"golden image 0.1");
    let options = FormatOptions { uuid, metadata_bytes: Some(2 << 20), log_bytes: Some(512 << 10), ..FormatOptions::default() };
    Store::format(&machine.disk(), &options).expect("formatted");
    let (store, _) = Store::open(machine.disk(), &settings()).expect("opened");
    Fs::format(&store, clock()).expect("made");
    let fs = Fs::open(store, fs_settings()).expect("opened").0;
    fill(&fs);
    fs.close().expect("closed");
    golden::store(CLEAN, &machine.content());

    let fs = open(&machine);
    write(&fs, b"/dir/only in the log", &content(9, 3 * 4096), 0);
    write(&fs, b"/dir/blocks", b"overwritten in the log", 4096);
    fs.unlink(fs.root(), b"/link", &Creds::root()).expect("removed");
    fs.sync().expect("durable");
    golden::store(LOG, &machine.content());
    for name in [CLEAN, LOG] {
        let lines = listing(&open(&Machine::new(golden::load(golden::CURRENT, name))));
        golden::store(&name.replace(".img", ".txt"), (lines.join("\n") + "\n").as_bytes());
    }
}

#[test]
fn images_of_every_release_open_with_every_name_byte_and_attribute() {
    if golden::is_made_anew() {
        make();
    }
    for release in golden::RELEASES {
        for name in [CLEAN, LOG] {
            let machine = Machine::new(golden::load(release, name));
            let (store, recovery) = Store::open(machine.disk(), &settings()).expect("opened");
            assert_eq!(recovery.clean, name == CLEAN, "{release}: {name}");
            let fs = Fs::open(store, fs_settings()).expect("opened").0;
            golden::compare(release, &name.replace(".img", ".txt"), &listing(&fs));
            let report = check::check(fs.store()).expect("whole");
            assert!(report.findings.is_empty(), "{release}: {name}: {:#?}", report.findings);
            // It can be written and opened again.
            write(&fs, b"/new", &content(3, 10_000), 0);
            fs.close().expect("closed");
            let fs = open(&machine);
            let stat = fs.stat(fs.root(), b"/new", false, &Creds::root()).expect("there");
            assert_eq!(stat.size, 10_000, "{release}: {name}");
        }
    }
}

#[test]
fn a_listing_holds_what_was_written() {
    if golden::is_made_anew() {
        return;
    }
    let stored = String::from_utf8(golden::load("0.1", "rawfs-log.txt")).expect("text");
    let line = |path: &str| stored.lines().find(|line| line.starts_with(path)).unwrap_or_else(|| panic!("{path} is missing"));
    let mut bytes = content(1, 40_000);
    bytes[4096..4118].copy_from_slice(b"overwritten in the log");
    assert!(line("/dir/blocks ").ends_with(&format!("{:08x}", crc32c::crc32c(&bytes))));
    assert!(line("/dir/blocks ").contains("user.colour=blue") && line("/dir/blocks ").contains("device 2 1000 100 40000 "));
    assert!(line("/dir/only in the log ").ends_with(&format!("{:08x}", crc32c::crc32c(&content(9, 3 * 4096)))));
    assert!(line("/in its record ").contains("system.posix_acl_access="));
    assert!(!stored.lines().any(|line| line.starts_with("/link ")), "unlinked in the log");
}
