//! All short sequences of operations over a few names, as CrashMonkey's ACE makes them (OSDI 2018), with a cut at any write or
//! flush: what is found is how it was after some step, at least after the last sync.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rawfs::fs::{Creds, Error, Fs, Kind};
use rustix::fs::{OFlags, RenameFlags};

use crate::machine::Machine;
use crate::{clean, formatted, fs_settings, settings};

/// Every path, and what can be seen of it.
type Shown = BTreeMap<String, String>;

/// How it was after each step, and which step was the last that was synced.
#[derive(Default)]
struct Past {
    steps: Vec<Shown>,
    synced: usize,
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    /// Writes so much, and syncs the file.
    Write(&'static str, usize),
    Make(&'static str),
    MkDir(&'static str),
    Link(&'static str, &'static str),
    SymLink(&'static str),
    Unlink(&'static str),
    RmDir(&'static str),
    Rename(&'static str, &'static str),
    Exchange(&'static str, &'static str),
    Cut(&'static str, u64),
    Sync,
}

const ALL: [Operation; 16] = [
    Operation::Write("/a", 100),
    Operation::Write("/d/a", 10_000),
    Operation::Write("/a", 5000),
    Operation::Make("/d/b"),
    Operation::MkDir("/d/e"),
    Operation::Link("/a", "/d/b"),
    Operation::SymLink("/d/s"),
    Operation::Unlink("/a"),
    Operation::Unlink("/d/a"),
    Operation::RmDir("/d/e"),
    Operation::Rename("/a", "/d/b"),
    Operation::Rename("/d", "/longer name of d"),
    Operation::Rename("/d/a", "/a"),
    Operation::Exchange("/d", "/a"),
    Operation::Cut("/d/a", 5000),
    Operation::Sync,
];

fn shown(fs: &Fs) -> Shown {
    let mut all = Shown::new();
    show(fs, "", &mut all);
    all
}

fn show(fs: &Fs, path: &str, all: &mut Shown) {
    let creds = Creds::root();
    let here = if path.is_empty() { "/" } else { path };
    let stat = fs.stat(fs.root(), here.as_bytes(), false, &creds).expect("there");
    let mut text = format!("{:?} {} links {}", stat.kind, stat.nlink, stat.size);
    match stat.kind {
        Kind::Dir => {
            let dir = fs.open_at(fs.root(), here.as_bytes(), OFlags::DIRECTORY | OFlags::NOATIME, 0, &creds).expect("opened");
            let mut names = Vec::new();
            dir.read_dir(&mut |entry, _| {
                names.push(String::from_utf8(entry.name.clone()).expect("ours"));
                true
            })
            .expect("listed");
            names.iter().filter(|name| !name.starts_with('.')).for_each(|name| show(fs, &format!("{path}/{name}"), all));
        }
        Kind::File => {
            let file = fs.open_at(fs.root(), here.as_bytes(), OFlags::RDONLY | OFlags::NOATIME, 0, &creds).expect("opened");
            let mut bytes = vec![0; usize::try_from(stat.size).expect("small")];
            file.read_at(&mut bytes, 0).expect("read");
            text += &format!(" {:08x}", crc32c::crc32c(&bytes));
        }
        _ => {}
    }
    all.insert(path.to_owned(), text);
}

struct Life {
    fs: Fs,
    past: Arc<Mutex<Past>>,
}

impl Life {
    /// A step was done.
    fn mark(&self) {
        let now = shown(&self.fs);
        self.past.lock().steps.push(now);
    }

    fn synced(&self) {
        let mut past = self.past.lock();
        past.synced = past.steps.len() - 1;
    }

    /// What cannot be done is no step.
    fn run(&self, operation: Operation) -> Result<(), Error> {
        let (fs, root, creds) = (&self.fs, self.fs.root(), Creds::root());
        let none = RenameFlags::empty();
        match operation {
            Operation::Write(path, len) => {
                let file = fs.open_at(root, path.as_bytes(), OFlags::RDWR | OFlags::CREATE, 0o644, &creds)?;
                self.mark();
                // What is written is seen at once, and may be found before the sync ends.
                file.write(&vec![len as u8; len])?;
                self.mark();
                file.sync()?;
                self.synced();
                return Ok(());
            }
            Operation::Make(path) => drop(fs.open_at(root, path.as_bytes(), OFlags::RDWR | OFlags::CREATE, 0o644, &creds)?),
            Operation::MkDir(path) => drop(fs.mkdir(root, path.as_bytes(), 0o755, &creds)?),
            Operation::Link(from, to) => fs.link(&fs.lookup(root, from.as_bytes(), false, &creds)?, root, to.as_bytes(), &creds)?,
            Operation::SymLink(path) => drop(fs.symlink(b"a", root, path.as_bytes(), &creds)?),
            Operation::Unlink(path) => fs.unlink(root, path.as_bytes(), &creds)?,
            Operation::RmDir(path) => fs.rmdir(root, path.as_bytes(), &creds)?,
            Operation::Rename(from, to) => fs.rename(root, from.as_bytes(), root, to.as_bytes(), none, &creds)?,
            Operation::Exchange(a, b) => fs.rename(root, a.as_bytes(), root, b.as_bytes(), RenameFlags::EXCHANGE, &creds)?,
            Operation::Cut(path, size) => {
                fs.truncate(root, path.as_bytes(), size, &creds)?;
                self.mark();
                fs.sync()?;
            }
            Operation::Sync => fs.sync()?,
        }
        self.mark();
        if matches!(operation, Operation::Sync | Operation::Cut(..)) {
            self.synced();
        }
        Ok(())
    }
}

fn found(content: Vec<u8>, past: &Past, sequence: &[Operation]) {
    let machine = Machine::new(content);
    let (store, _) = rawfs::Store::open(machine.disk(), &settings()).expect("opens after a cut");
    let (fs, _) = Fs::open(store, fs_settings()).expect("opens after a cut");
    assert_eq!(clean(fs.store(), "after a cut"), 0, "{sequence:?}");
    let shown = shown(&fs);
    let right = past.steps[past.synced..].contains(&shown);
    assert!(right, "{sequence:?}: {shown:#?}\nsteps from the last sync on: {:#?}", &past.steps[past.synced..]);
}

/// Does a sequence, with a cut at one in so many moments; returns how many there were.
fn life(sequence: &[Operation], begin: &[u8], one_in: u8, rng: &mut fastrand::Rng) -> u64 {
    let machine = Machine::new(begin.to_vec());
    let (store, _) = rawfs::Store::open(machine.disk(), &settings()).expect("opened");
    let (fs, _) = Fs::open(store, fs_settings()).expect("opened");
    let past: Arc<Mutex<Past>> = Arc::default();
    let life = Life { fs, past: Arc::clone(&past) };
    life.mark();
    life.fs.sync().expect("synced");
    let cuts = Arc::new(Mutex::new(0));
    let (counted, medium, mut chance, operations, seen) =
        (Arc::clone(&cuts), machine.medium.clone(), rng.fork(), sequence.to_vec(), Arc::clone(&past));
    machine.set_moment(Some(Box::new(move || {
        if chance.u8(..one_in) == 0 {
            *counted.lock() += 1;
            found(medium.power_cut(chance.u64(..)), &seen.lock(), &operations);
        }
    })));
    for operation in sequence {
        // Some are refused, as on any file system.
        let _ = life.run(*operation);
    }
    machine.set_moment(None);
    found(machine.medium.power_cut(rng.u64(..)), &past.lock(), sequence);
    let cuts = *cuts.lock();
    cuts + 1
}

/// What there is before: a file, a directory with one.
fn begin() -> Vec<u8> {
    let machine = Machine::new(formatted());
    let (store, _) = rawfs::Store::open(machine.disk(), &settings()).expect("opened");
    let (fs, _) = Fs::open(store, fs_settings()).expect("opened");
    drop(fs.mkdir(fs.root(), b"/d", 0o755, &Creds::root()).expect("made"));
    for (path, len) in [("/a", 10), ("/d/a", 9000)] {
        let file = fs.open_at(fs.root(), path.as_bytes(), OFlags::RDWR | OFlags::CREATE, 0o644, &Creds::root()).expect("made");
        file.write(&vec![1; len]).expect("written");
    }
    fs.close().expect("closed");
    machine.content()
}

#[test]
fn after_any_short_sequence_it_is_as_after_some_step() {
    let full = std::env::var_os("FULL").is_some_and(|full| full == "1");
    let seed = std::env::var("SEED").map_or_else(|_| fastrand::u64(..1 << 32), |seed| seed.parse().expect("a number"));
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let begin = begin();
    let (mut cuts, mut sequences) = (0, 0);
    for a in ALL {
        for b in ALL {
            let third: &[Operation] = if full { &ALL } else { &[] };
            let all = third.iter().map(|c| vec![a, b, *c]).chain([vec![a, b]]);
            // A few of them, unless all are wanted.
            for sequence in all.filter(|_| full || rng.u8(..4) == 0).collect::<Vec<_>>() {
                cuts += life(&sequence, &begin, if full { 1 } else { 4 }, &mut rng);
                sequences += 1;
            }
        }
    }
    println!("{sequences} sequences, {cuts} cuts");
}
