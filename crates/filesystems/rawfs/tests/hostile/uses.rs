//! Everything that can be done with an image.

use std::time::Duration;

use block::Params;
use block::driver::MemoryDevice;
use rawfs::fs::{Creds, FileKind, Fs, FsSettings, check, repair, scrub};
use rawfs::{Disk, DiskSettings, Error, Settings, Store};
use rustix::fs::{OFlags, RenameFlags, SeekFrom};

/// Names looked at, bytes read of a file: of what is forged there may be more than there is time.
const NAMES_MAX: u64 = 2000;
const READ_MAX: u64 = 1 << 20;

/// What was seen, for the test's own sake.
#[derive(Default, Debug)]
pub struct Tally {
    pub images: u64,
    pub opened: u64,
    pub refused: u64,
    pub files: u64,
    pub findings: u64,
    pub repaired: u64,
    pub unrepaired: u64,
}

/// A device of memory.
pub struct Memory(MemoryDevice);

impl Memory {
    pub fn new(image: &[u8]) -> Memory {
        let memory = MemoryDevice::new(512, image.len() as u64).expect("memory");
        memory.region().write(0, image);
        Memory(memory)
    }

    pub fn content(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.0.region().len()];
        self.0.region().read(0, &mut bytes);
        bytes
    }

    pub fn disk(&self) -> Disk {
        let params = Params { queue_depth: 8, ..Params::default() };
        Disk::open(&self.0, &DiskSettings { buffer_bytes: 1 << 20, params }).expect("queues")
    }
}

pub fn settings(read_only: bool) -> Settings {
    Settings { node_cache_bytes: 1 << 20, background: false, read_only, ..Settings::default() }
}

fn fs_settings() -> FsSettings {
    FsSettings { cache_bytes: 256 << 10, dirty_bytes: 256 << 10, write_back: Duration::ZERO, ..FsSettings::default() }
}

pub fn use_all(image: &[u8], rng: &mut fastrand::Rng, tally: &mut Tally) {
    tally.images += 1;
    let memory = Memory::new(image);
    match Store::open(memory.disk(), &settings(false)) {
        Ok((store, _)) => {
            let _ = store.check();
            let _ = check::check(&store);
            let _ = show(&store);
            tally.opened += 1;
            if let Ok((fs, _)) = Fs::open(store, fs_settings()) {
                tally.files += walk(&fs);
                change(&fs, rng);
                let _ = check::check(fs.store());
                let _ = fs.close();
            }
        }
        Err(_) => tally.refused += 1,
    }
    look(image, tally);
    mend(image, tally);
}

/// Without a write.
fn look(image: &[u8], tally: &mut Tally) {
    let memory = Memory::new(image);
    let Ok((store, _, damages)) = Store::salvage(memory.disk(), &settings(true), &check::owns) else { return };
    let _ = show(&store);
    let mut findings = damages.len() as u64;
    findings += check::check(&store).map_or(1, |report| {
        report.findings.iter().for_each(|finding| drop(finding.to_string()));
        report.findings.len() as u64
    });
    let _ = scrub::scrub(&store, &mut |_| findings += 1, &mut |_| {});
    tally.findings += findings;
    drop(store);
    assert!(memory.content() == image, "looking writes nothing");
}

/// Repaired, it is whole, unless there is no room or no image.
fn mend(image: &[u8], tally: &mut Tally) {
    let memory = Memory::new(image);
    let (store, ..) = match Store::salvage(memory.disk(), &settings(false), &check::owns) {
        Ok(salvaged) => salvaged,
        Err(Error::NoImage | Error::Later { .. } | Error::Truncated { .. } | Error::Sizes(_) | Error::Damaged { .. } | Error::NoNodes) => {
            tally.unrepaired += 1;
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let (store, report) = match repair::repair(store, &mut |mended| drop((mended.finding.to_string(), mended.done))) {
        Ok(repaired) => repaired,
        Err(error) if error.errno() == rustix::io::Errno::NOSPC => {
            tally.unrepaired += 1;
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let left: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert!(left.is_empty(), "{left:#?}");
    store.close().expect("closed");
    let (store, recovery) = Store::open(memory.disk(), &settings(false)).expect("opens when it was repaired");
    assert!(recovery.clean && !recovery.repaired);
    let nodes = store.check().expect("whole");
    assert!(nodes.leaked.is_empty() && nodes.wrong.is_empty(), "{nodes:?}");
    let (fs, _) = Fs::open(store, fs_settings()).expect("opens when it was repaired");
    walk(&fs);
    let report = check::check(fs.store()).expect("whole");
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    fs.close().expect("closed");
    tally.repaired += 1;
}

/// What there is, as `dump` shows it.
fn show(store: &Store) -> Result<u64, rawfs::Error> {
    let mut entries = 0;
    for tree in rawfs::TreeId::ALL {
        store.scan(tree, &[], &[0xff; 18], &mut |key, value| {
            entries += u64::from(!rawfs::fs::describe::entry(tree, key, value).is_empty());
            rawfs::ScanStep::Go
        })?;
    }
    Ok(entries)
}

/// Looks at every name and reads every file; how many there were.
fn walk(fs: &Fs) -> u64 {
    let root = Creds::root();
    let (mut dirs, mut count) = (vec![Vec::new()], 0);
    while let Some(dir) = dirs.pop() {
        let Ok(open) = fs.open_at(fs.root(), &[&b"/"[..], &dir].concat(), OFlags::RDONLY | OFlags::DIRECTORY, 0, &root) else { continue };
        count += 1;
        let mut names = Vec::new();
        let _ = open.read_dir(&mut |entry, _| {
            names.push((entry.name.clone(), entry.kind));
            names.len() < 3000
        });
        for (name, kind) in names.into_iter().filter(|(name, _)| name != b"." && name != b"..") {
            let path = [&dir[..], b"/", &name].concat();
            let _ = fs.stat(fs.root(), &path, false, &root);
            let _ = fs.readlink(fs.root(), &path, &root);
            if let Ok(node) = fs.lookup(fs.root(), &path, false, &root) {
                let _ = fs.list_xattrs(&node, &root).map(|names| {
                    names.split(|byte| *byte == 0).for_each(|name| drop(fs.get_xattr(&node, name, &root)));
                });
            }
            match kind {
                FileKind::Dir if count < NAMES_MAX && path.len() < 4000 => dirs.push(path),
                FileKind::File => {
                    count += 1;
                    read(fs, &path);
                }
                _ => count += 1,
            }
            if count > NAMES_MAX {
                return count;
            }
        }
    }
    count
}

fn read(fs: &Fs, path: &[u8]) {
    let Ok(file) = fs.open_at(fs.root(), path, OFlags::RDONLY, 0, &Creds::root()) else { return };
    let mut bytes = vec![0; 64 << 10];
    let (mut at, mut done) = (0, 0);
    while done < READ_MAX {
        let Ok(data) = file.seek(SeekFrom::Data(at)) else { return };
        match file.read_at(&mut bytes, data) {
            Ok(0) | Err(_) => return,
            Ok(read) => (at, done) = (data + read as u64, done + read as u64),
        }
    }
    let _ = file.seek(SeekFrom::Hole(0));
}

/// Some of what programs do, here and there.
fn change(fs: &Fs, rng: &mut fastrand::Rng) {
    let (root, at) = (Creds::root(), fs.root());
    let paths: [&[u8]; 8] = [b"/a", b"/a/b/blocks", b"/d/many", b"/d", b"/two", b"/dir-3", b"/dir-0/a file with a name, number 3", b"/4"];
    for _ in 0..12 {
        let (path, other) = (paths[rng.usize(..paths.len())], paths[rng.usize(..paths.len())]);
        match rng.u8(..8) {
            0 => drop(fs.unlink(at, path, &root)),
            1 => drop(fs.rmdir(at, path, &root)),
            2 => drop(fs.rename(at, path, at, other, RenameFlags::empty(), &root)),
            3 => drop(fs.rename(at, path, at, b"/new", RenameFlags::empty(), &root)),
            4 => drop(fs.truncate(at, path, rng.u64(..100_000), &root)),
            5 => drop(fs.mkdir(at, &[path, b"/dir"].concat(), 0o755, &root)),
            6 => drop(fs.open_at(at, path, OFlags::RDWR | OFlags::CREATE, 0o644, &root).map(|file| {
                let _ = file.write_at(&[1; 9000], rng.u64(..1 << 20));
                let _ = file.sync();
            })),
            _ => drop(fs.sync()),
        }
    }
}
