//! All short sequences of operations over a few names, as CrashMonkey's ACE makes them (OSDI 2018), with a cut at any write or
//! flush: what is found is how it was after some step, at least after the last sync.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rawfs::fs::{Creds, Error, FileKind, Fs};
use rustix::fs::{FallocateFlags, OFlags, RenameFlags, XattrFlags};
use sim::device::crash::Medium;
use sim::power_cut::CacheLoss;

use crate::machine::Machine;
use crate::{clean, formatted_of, fs_settings, is_full, settings};

/// Small, because each cut copies it.
const BYTES: usize = 3 << 19;

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
    /// Makes zeroes of so many bytes in the middle, and syncs.
    Punch(&'static str, u64),
    Attribute(&'static str),
    /// Makes a directory, brings a file there in place of another name, and removes one, in one transaction.
    Together(&'static str, &'static str),
    /// Writes two files in one transaction, and commits.
    Both(&'static str, &'static str, usize),
    Sync,
}

const ALL: [Operation; 21] = [
    Operation::Write("/a", 100),
    Operation::Write("/d/a", 10_000),
    Operation::Write("/a", 5000),
    // More than goes with the log.
    Operation::Write("/d/a", 40_000),
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
    Operation::Punch("/d/a", 4000),
    Operation::Attribute("/a"),
    Operation::Both("/a", "/d/a", 3000),
    Operation::Together("/a", "/d/a"),
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
    let attributes = fs.lookup(fs.root(), here.as_bytes(), false, &creds).and_then(|node| fs.list_xattrs(&node, &creds)).expect("there");
    let mut text = format!("{:?} {} links {} {}", stat.kind, stat.nlink, stat.size, attributes.len());
    match stat.kind {
        FileKind::Dir => {
            let dir = fs.open_at(fs.root(), here.as_bytes(), OFlags::DIRECTORY | OFlags::NOATIME, 0, &creds).expect("opened");
            let mut names = Vec::new();
            dir.read_dir(&mut |entry, _| {
                names.push(String::from_utf8(entry.name.clone()).expect("ours"));
                true
            })
            .expect("listed");
            names.iter().filter(|name| !name.starts_with('.')).for_each(|name| show(fs, &format!("{path}/{name}"), all));
        }
        FileKind::File => {
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
    // long: one match over the calls of a sequence.
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
            Operation::Punch(path, len) => {
                let file = fs.open_at(root, path.as_bytes(), OFlags::RDWR, 0, &creds)?;
                file.allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 3000, len)?;
                self.mark();
                file.sync()?;
            }
            Operation::Attribute(path) => {
                let node = fs.lookup(root, path.as_bytes(), false, &creds)?;
                fs.set_xattr(&node, b"user.a", &[7; 100], XattrFlags::empty(), &creds)?;
            }
            Operation::Both(a, b, len) => {
                let open = |path: &str| fs.open_at(root, path.as_bytes(), OFlags::RDWR, 0, &creds);
                let (files, mut transaction) = ([open(a)?, open(b)?], fs.begin());
                for file in &files {
                    transaction.write_at(file, &vec![0x5a; len], 50)?;
                }
                // Found or not before the commit ends, but both or none.
                fs.apply(&transaction)?;
                self.mark();
                fs.sync()?;
            }
            Operation::Together(moved, removed) => {
                let mut transaction = fs.begin();
                transaction.mkdir(root, b"/t", 0o755, &creds)?;
                transaction.rename(root, moved.as_bytes(), root, b"/t/a", none, &creds)?;
                transaction.unlink(root, removed.as_bytes(), &creds)?;
                transaction.rename(root, b"/t", root, b"/d/t", none, &creds)?;
                fs.apply(&transaction)?;
            }
            Operation::Sync => fs.sync()?,
        }
        self.mark();
        if matches!(operation, Operation::Sync | Operation::Cut(..) | Operation::Punch(..) | Operation::Both(..)) {
            self.synced();
        }
        Ok(())
    }
}

/// What a cut left, and the last step that was synced before it.
type Cut = (Vec<u8>, usize);

/// Opens what a cut left, and compares.
fn found((content, synced): Cut, steps: &[Shown], sequence: &[Operation]) {
    let machine = Machine::new(content);
    let (store, _) = rawfs::Store::open(machine.disk(), &settings()).expect("opens after a cut");
    let (fs, _) = Fs::open(store, fs_settings()).expect("opens after a cut");
    assert_eq!(clean(fs.store(), "after a cut"), 0, "{sequence:?}");
    let shown = shown(&fs);
    let right = steps[synced..].contains(&shown);
    assert!(right, "{sequence:?}: {shown:#?}\nsteps from the last sync on: {:#?}", &steps[synced..]);
}

/// What the power leaves at a moment: nothing of what was not flushed, all of it, and a part that chance decides.
fn cuts(medium: &Medium, rng: &mut fastrand::Rng) -> Vec<Vec<u8>> {
    let caches: &[CacheLoss] = if medium.pending() == 0 { &[CacheLoss::Lost] } else { &[CacheLoss::Lost, CacheLoss::Kept, CacheLoss::Any] };
    caches.iter().map(|cache| medium.cut(*cache, rng)).collect()
}

/// Does a sequence and a sync, with cuts at one in so many moments; returns how many there were.
fn life(sequence: &[Operation], begin: &[u8], one_in: u8, seed: u64) -> u64 {
    let mut rng = fastrand::Rng::with_seed(seed);
    let machine = Machine::new(begin.to_vec());
    let (store, _) = rawfs::Store::open(machine.disk(), &settings()).expect("opened");
    let (fs, _) = Fs::open(store, fs_settings()).expect("opened");
    let past: Arc<Mutex<Past>> = Arc::default();
    let life = Life { fs, past: Arc::clone(&past) };
    life.mark();
    life.fs.sync().expect("synced");
    let left: Arc<Mutex<Vec<Cut>>> = Arc::default();
    let (lefts, medium, mut chance, seen) = (Arc::clone(&left), machine.medium.clone(), rng.fork(), Arc::clone(&past));
    machine.set_moment(Some(Box::new(move || {
        if chance.u8(..one_in) == 0 {
            let synced = seen.lock().synced;
            lefts.lock().extend(cuts(&medium, &mut chance).into_iter().map(|content| (content, synced)));
        }
    })));
    let mut count = 0;
    for operation in sequence.iter().chain([&Operation::Sync]) {
        // Some are refused, as on any file system.
        let _ = life.run(*operation);
        // Only now is it known how it is after the step that was cut off.
        let left = std::mem::take(&mut *left.lock());
        count += left.len() as u64;
        left.into_iter().for_each(|cut| found(cut, &past.lock().steps, sequence));
    }
    machine.set_moment(None);
    let (last, past) = (cuts(&machine.medium, &mut rng), past.lock());
    count += last.len() as u64;
    last.into_iter().for_each(|content| found((content, past.synced), &past.steps, sequence));
    count
}

/// What there is before: a file, a directory with one.
fn begin() -> Vec<u8> {
    let machine = Machine::new(formatted_of(BYTES, 512 << 10, 128 << 10));
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

/// All sequences of so many operations.
fn sequences(operations: usize) -> Vec<Vec<Operation>> {
    (0..operations).fold(vec![Vec::new()], |shorter, _| {
        shorter.iter().flat_map(|begin| ALL.iter().map(|last| [&begin[..], &[*last]].concat())).collect()
    })
}

/// FULL=1: every moment of every sequence of up to three operations. Else a few moments of those of two, and of a few of three.
#[test]
fn after_any_short_sequence_it_is_as_after_some_step() {
    let full = is_full();
    let seed = std::env::var("SEED").map_or(1, |seed| seed.parse().expect("a number"));
    println!("SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let begin = begin();
    for (operations, one_in) in [(1, 1), (2, 1), (3, 100)] {
        let (mut cuts, mut tried) = (0, 0);
        let all = sequences(operations);
        for sequence in &all {
            let seed = rng.u64(..);
            if full || rng.u32(..one_in) == 0 {
                cuts += life(sequence, &begin, if full || operations == 1 { 1 } else { 4 }, seed);
                tried += 1;
            }
        }
        println!("{tried} of {} sequences of {operations}, {cuts} cuts", all.len());
    }
}
