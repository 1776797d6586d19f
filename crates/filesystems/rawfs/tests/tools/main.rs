//! Repairing and resizing: what is kept, and what is found when the power goes in the middle.

#[path = "../crash/machine.rs"]
mod machine;
mod repair;
mod resize;

use std::sync::Arc;
use std::time::Duration;

use machine::Machine;
use rawfs::fs::{Creds, Fs, FsSettings, Timestamp, check};
use rawfs::{FormatOptions, Settings, Store};
use rustix::fs::OFlags;

/// How often the power goes: one in so many moments.
fn one_in(few: u8, all: u8) -> u8 {
    if std::env::var_os("FULL").is_some_and(|full| full == "1") { all } else { few }
}

fn settings() -> Settings {
    Settings { node_cache_bytes: 1 << 20, background: false, ..Settings::default() }
}

fn fs_settings() -> FsSettings {
    FsSettings { cache_bytes: 256 << 10, write_back: Duration::ZERO, ..FsSettings::default() }
}

fn open(machine: &Arc<Machine>) -> Fs {
    let (store, _) = Store::open(machine.disk(), &settings()).expect("opened");
    Fs::open(store, fs_settings()).expect("opened").0
}

/// What the file of a name holds.
fn content(name: &str) -> Vec<u8> {
    let number: usize = name.rsplit(' ').next().and_then(|word| word.parse().ok()).expect("a number at the end");
    (0..if number.is_multiple_of(3) { 9000 + number } else { 1000 }).map(|at| (at * 7 + number) as u8).collect()
}

fn name(number: usize) -> String {
    format!("a file with a long name, of which there are many {number}")
}

const DIRS: usize = 6;

/// An image with so many files, that was closed.
fn image(kib: usize, files: usize) -> Vec<u8> {
    let machine = Machine::new(vec![0; kib << 10]);
    let options = FormatOptions { metadata_bytes: Some(1 << 20), log_bytes: Some(128 << 10), ..FormatOptions::default() };
    Store::format(&machine.disk(), &options).expect("formatted");
    let (store, _) = Store::open(machine.disk(), &settings()).expect("opened");
    Fs::format(&store, Timestamp::default()).expect("made");
    let (fs, _) = Fs::open(store, fs_settings()).expect("opened");
    for dir in 0..DIRS {
        fs.mkdir(fs.root(), format!("/dir {dir}").as_bytes(), 0o755, &Creds::root()).expect("made");
    }
    for number in 0..files {
        let path = format!("/dir {}/{}", number % DIRS, name(number));
        let file = fs.open_at(fs.root(), path.as_bytes(), OFlags::RDWR | OFlags::CREATE, 0o644, &Creds::root()).expect("made");
        file.write_at(&content(&name(number)), 0).expect("written");
    }
    fs.close().expect("closed");
    machine.content()
}

/// Files whose content is what it was, wherever they are now: by their numbers.
fn right_files(fs: &Fs) -> Vec<usize> {
    let mut right = Vec::new();
    let mut dirs = vec![b"/".to_vec()];
    while let Some(dir) = dirs.pop() {
        let open = fs.open_at(fs.root(), &dir, OFlags::RDONLY | OFlags::DIRECTORY, 0, &Creds::root()).expect("a directory");
        let mut entries = Vec::new();
        open.read_dir(&mut |entry, _| {
            entries.push((entry.name.clone(), entry.kind));
            true
        })
        .expect("listed");
        for (entry, kind) in entries.into_iter().filter(|(name, _)| name != b"." && name != b"..") {
            let path = [&dir[..], b"/", &entry].concat();
            match kind {
                rawfs::fs::FileKind::Dir => dirs.push(path),
                _ => {
                    let file = fs.open_at(fs.root(), &path, OFlags::RDONLY, 0, &Creds::root()).expect("a file");
                    let mut bytes = vec![0; 20_000];
                    let done = file.read_at(&mut bytes, 0).expect("read");
                    // Its name may be lost.
                    let number = done.checked_sub(9000).unwrap_or(usize::from(bytes[0]));
                    assert_eq!(bytes[..done], content(&name(number)), "{}", entry.escape_ascii());
                    right.push(number);
                }
            }
        }
    }
    right.sort_unstable();
    right
}

fn clean(store: &Store) {
    let nodes = store.check().expect("whole");
    assert!(nodes.leaked.is_empty() && nodes.wrong.is_empty(), "{nodes:?}");
    let report = check::check(store).expect("whole");
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}
