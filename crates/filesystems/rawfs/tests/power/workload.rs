//! What is done until the power goes, and what must be found.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rawfs::fs::{Creds, Error, File, Fs};
use rustix::fs::{FallocateFlags, OFlags, RenameFlags};
use rustix::io::Errno;

/// Files that one transaction writes, all with the same version.
const GROUPS: [[&str; 3]; 2] = [["/a", "/b", "/dir/c"], ["/d", "/dir/e", "/dir/below/f"]];
/// Files that are written anew and renamed into their place.
const REPLACED: [&str; 3] = ["/x", "/dir/y", "/dir/below/z"];
/// A directory that a transaction replaces, with what is in it: all of one version.
const TREES: [&str; 2] = ["/t", "/dir/t"];
const DIRS: [&str; 3] = ["/dir", "/dir/below", "/junk"];

/// What was promised: at least this version of each is there, and at most the last that was started.
#[derive(Clone, Default)]
pub struct Ledger {
    groups: [(u64, u64); 2],
    replaced: BTreeMap<&'static str, (u64, u64)>,
    trees: [(u64, u64); 2],
    /// The directories were synced.
    begun: bool,
}

pub struct Workload {
    fs: Fs,
    pub ledger: Arc<Mutex<Ledger>>,
    rng: fastrand::Rng,
    /// Held while others remove their names.
    held: Vec<File>,
}

/// Contents say what they are.
fn content(path: &str, version: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(version ^ u64::from(path.as_bytes()[path.len() - 1]) << 32);
    let len = [10, 2000, 4096, 9000, 30_000][rng.usize(..5)] + rng.usize(..2000);
    let mut bytes = version.to_le_bytes().to_vec();
    bytes.extend((0..len).map(|_| rng.u8(..)));
    bytes
}

fn read(fs: &Fs, path: &str) -> Result<Vec<u8>, Error> {
    let file = fs.open_at(fs.root(), path.as_bytes(), OFlags::RDONLY, 0, &Creds::root())?;
    let mut bytes = vec![0; usize::try_from(file.node().stat()?.size).expect("small")];
    let done = file.read_at(&mut bytes, 0)?;
    assert_eq!(done, bytes.len());
    Ok(bytes)
}

/// The version of a file, 0 if it is not there or empty; all of it has to be of that version.
fn version(fs: &Fs, path: &str) -> u64 {
    let bytes = match read(fs, path) {
        Err(error) if error.errno() == Errno::NOENT => return 0,
        outcome => outcome.unwrap_or_else(|error| panic!("{path}: {error}")),
    };
    let Some(head) = bytes.first_chunk() else { return 0 };
    let version = u64::from_le_bytes(*head);
    assert!(bytes == content(path, version), "{path}: {} bytes, not those of version {version}", bytes.len());
    version
}

/// Compares what is found with what was promised.
pub fn verify(fs: &Fs, ledger: &Ledger) {
    for (group, (promised, last)) in GROUPS.iter().zip(ledger.groups) {
        let versions = group.map(|path| version(fs, path));
        assert!(versions.iter().all(|version| *version == versions[0]), "a transaction in parts: {group:?} {versions:?}");
        assert!((promised..=last).contains(&versions[0]), "{group:?}: version {}, promised {promised}, last {last}", versions[0]);
    }
    for (path, (promised, last)) in &ledger.replaced {
        let found = version(fs, path);
        assert!((*promised..=*last).contains(&found), "{path}: version {found}, promised {promised}, last {last}");
    }
    for (path, (promised, last)) in TREES.iter().zip(ledger.trees) {
        let found = tree_version(fs, path);
        assert!((promised..=last).contains(&found), "{path}: version {found}, promised {promised}, last {last}");
    }
    for dir in DIRS.iter().filter(|_| ledger.begun) {
        fs.stat(fs.root(), dir.as_bytes(), false, &Creds::root()).expect("synced");
    }
    // Everything that can be seen can be read.
    walk(fs, "");
}

/// The version of a directory made by [`Workload::tree`], 0 if it is not there; all of it has to be of that version.
fn tree_version(fs: &Fs, path: &str) -> u64 {
    let (root, creds) = (fs.root(), Creds::root());
    let there = |path: &str| fs.stat(root, path.as_bytes(), false, &creds);
    if there(path).is_err_and(|error| error.errno() == Errno::NOENT) {
        assert!(there(&format!("{path}.file")).is_err(), "{path}: a part of a transaction");
        return 0;
    }
    let number = version(fs, &format!("{path}/in/a"));
    assert_eq!(version(fs, &format!("{path}/b")), number, "{path}: a transaction in parts");
    let target = fs.readlink(root, format!("{path}/s").as_bytes(), &creds).expect("there");
    assert_eq!(target, format!("{number}").into_bytes(), "{path}: a transaction in parts");
    let (b, again) = (there(&format!("{path}/b")).expect("there"), there(&format!("{path}.file")).expect("there"));
    let mode = there(&format!("{path}/in")).expect("there").mode & 0o777;
    assert_eq!((b.nlink, b.ino, u64::from(mode)), (2, again.ino, number % 0o777), "{path}: a transaction in parts");
    let old: Vec<&str> = ["old", "old/in", "old/in/a"].into_iter().filter(|name| there(&format!("{path}/{name}")).is_ok()).collect();
    assert!(old.is_empty(), "{path}: a transaction in parts: {old:?}");
    number
}

fn walk(fs: &Fs, path: &str) {
    let here = if path.is_empty() { "/" } else { path };
    let dir = fs.open_at(fs.root(), here.as_bytes(), OFlags::DIRECTORY, 0, &Creds::root()).expect("opened");
    let mut names = Vec::new();
    dir.read_dir(&mut |entry, _| {
        names.push((String::from_utf8(entry.name.clone()).expect("ours"), entry.kind));
        true
    })
    .expect("listed");
    for (name, kind) in names.into_iter().filter(|(name, _)| name != "." && name != "..") {
        let path = format!("{path}/{name}");
        match kind {
            rawfs::fs::FileKind::Dir => walk(fs, &path),
            rawfs::fs::FileKind::Symlink => drop(fs.readlink(fs.root(), path.as_bytes(), &Creds::root()).expect("readable")),
            _ => drop(read(fs, &path).unwrap_or_else(|error| panic!("{path}: {error}"))),
        }
    }
}

impl Workload {
    pub fn new(fs: Fs, seed: u64) -> Workload {
        let work = Workload { fs, ledger: Arc::default(), rng: fastrand::Rng::with_seed(seed), held: Vec::new() };
        for dir in DIRS {
            drop(work.fs.mkdir(work.fs.root(), dir.as_bytes(), 0o755, &Creds::root()).expect("made"));
        }
        for path in GROUPS.iter().flatten() {
            drop(work.open(path, OFlags::CREATE).expect("made"));
        }
        work.fs.sync().expect("synced");
        work.ledger.lock().begun = true;
        work
    }

    fn open(&self, path: &str, more: OFlags) -> Result<File, Error> {
        self.fs.open_at(self.fs.root(), path.as_bytes(), OFlags::RDWR | more, 0o644, &Creds::root())
    }

    /// # Errors
    /// Those of a device that fails.
    pub fn step(&mut self) -> Result<(), Error> {
        match self.rng.u8(..14) {
            0..4 => self.transaction(),
            4..7 => self.replace(),
            7 => self.hold(),
            8 => {
                drop(self.held.pop());
                Ok(())
            }
            9 => self.move_dir(),
            10 | 11 => self.tree(),
            _ => self.junk(),
        }
    }

    fn transaction(&mut self) -> Result<(), Error> {
        let group = self.rng.usize(..GROUPS.len());
        let version = self.ledger.lock().groups[group].1 + 1;
        self.ledger.lock().groups[group].1 = version;
        let mut transaction = self.fs.begin();
        for path in GROUPS[group] {
            let (file, content) = (self.open(path, OFlags::empty())?, content(path, version));
            if self.rng.bool() {
                // In parts, and out of order.
                let (head, tail) = content.split_at(content.len() / 2);
                transaction.write_at(&file, tail, head.len() as u64).expect("open for writing");
                transaction.write_at(&file, head, 0).expect("open for writing");
            } else {
                transaction.write_at(&file, &content, 0).expect("open for writing");
            }
            transaction.set_len(&file, content.len() as u64).expect("open for writing");
        }
        if self.rng.u8(..3) > 0 {
            self.fs.commit(transaction)?;
            self.ledger.lock().groups[group].0 = version;
        } else {
            self.fs.apply(&transaction)?;
        }
        Ok(())
    }

    /// A new directory with files, in place of the one before, which is gone with all in it.
    fn tree(&mut self) -> Result<(), Error> {
        let n = self.rng.usize(..TREES.len());
        let (path, version) = (TREES[n], self.ledger.lock().trees[n].1 + 1);
        self.ledger.lock().trees[n].1 = version;
        let (root, creds, none) = (self.fs.root(), Creds::root(), RenameFlags::empty());
        let mut transaction = self.fs.begin();
        let new = format!("{path}.new");
        let at = |below: &str| format!("{new}{below}").into_bytes();
        transaction.mkdir(root, &at(""), 0o755, &creds)?;
        transaction.mkdir(root, &at("/in"), (version % 0o777) as u16, &creds)?;
        let mut held = Vec::new();
        for name in ["/in/a", "/b"] {
            let file = self.fs.open_at(root, b"/dir", OFlags::TMPFILE | OFlags::RDWR, 0o644, &creds)?;
            transaction.write_at(&file, &content(name, version), 0)?;
            transaction.link(file.node(), root, &at(name), &creds)?;
            held.push(file);
        }
        transaction.symlink(version.to_string().as_bytes(), root, &at("/s"), &creds)?;
        if self.fs.stat(root, path.as_bytes(), false, &creds).is_ok() {
            // One of the old files stays in use until the end of this step, if chance wants.
            if self.rng.bool() {
                held.push(self.open(&format!("{path}/b"), OFlags::empty())?);
            }
            transaction.rename(root, &at(""), root, path.as_bytes(), RenameFlags::EXCHANGE, &creds)?;
            for old in ["/in/a", "/b", "/s", ".file"] {
                let old = if old == ".file" { format!("{path}.file").into_bytes() } else { at(old) };
                transaction.unlink(root, &old, &creds)?;
            }
            transaction.rmdir(root, &at("/in"), &creds)?;
            transaction.rmdir(root, &at(""), &creds)?;
        } else {
            transaction.rename(root, &at(""), root, path.as_bytes(), none, &creds)?;
        }
        transaction.link(held[1].node(), root, format!("{path}.file").as_bytes(), &creds)?;
        if self.rng.u8(..3) > 0 {
            self.fs.commit(transaction)?;
            self.ledger.lock().trees[n].0 = version;
        } else {
            self.fs.apply(&transaction)?;
        }
        Ok(())
    }

    /// The old way: write a new file, sync it, rename it over the old one, sync the directory.
    fn replace(&mut self) -> Result<(), Error> {
        let path = REPLACED[self.rng.usize(..REPLACED.len())];
        let version = self.ledger.lock().replaced.get(path).map_or(1, |known| known.1 + 1);
        self.ledger.lock().replaced.entry(path).or_default().1 = version;
        let temporary = format!("{path}.new");
        let file = self.open(&temporary, OFlags::CREATE | OFlags::TRUNC)?;
        let content = content(path, version);
        for piece in content.chunks(self.rng.usize(1000..9000)) {
            file.write(piece)?;
        }
        // Without it, only a name that is there already changes as a whole.
        if version == 1 || self.rng.u8(..3) > 0 {
            file.sync()?;
        }
        self.fs.rename(self.fs.root(), temporary.as_bytes(), self.fs.root(), path.as_bytes(), RenameFlags::empty(), &Creds::root())?;
        self.fs.sync()?;
        self.ledger.lock().replaced.entry(path).or_default().0 = version;
        Ok(())
    }

    /// A file that loses its name while it is open.
    fn hold(&mut self) -> Result<(), Error> {
        let path = format!("/junk/held{}", self.rng.u8(..4));
        let file = self.open(&path, OFlags::CREATE)?;
        let bytes = vec![7; self.rng.usize(..60_000)];
        file.write_at(&bytes, self.rng.u64(..1 << 20))?;
        if self.rng.bool() {
            file.sync()?;
        }
        self.fs.unlink(self.fs.root(), path.as_bytes(), &Creds::root())?;
        self.held.push(file);
        if self.held.len() > 3 {
            self.held.remove(0);
        }
        Ok(())
    }

    /// A directory that is moved with what is in it.
    fn move_dir(&mut self) -> Result<(), Error> {
        let (root, creds) = (self.fs.root(), Creds::root());
        let names = ["/junk/m", "/junk/m2", "/m3"];
        for name in names {
            unless(Errno::EXIST, self.fs.mkdir(root, name.as_bytes(), 0o755, &creds).map(drop))?;
        }
        drop(self.open("/junk/m/file", OFlags::CREATE)?);
        let (from, to) = (names[self.rng.usize(..3)], names[self.rng.usize(..3)]);
        let flags = if self.rng.bool() { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
        unless(Errno::NOTEMPTY, self.fs.rename(root, from.as_bytes(), root, to.as_bytes(), flags, &creds))
    }

    fn junk(&mut self) -> Result<(), Error> {
        let path = format!("/junk/{}", self.rng.u8(..6));
        let file = self.open(&path, OFlags::CREATE)?;
        let (at, len) = (self.rng.u64(..400_000), self.rng.u64(..50_000));
        match self.rng.u8(..8) {
            0 => self.fs.unlink(self.fs.root(), path.as_bytes(), &Creds::root())?,
            1 => file.set_len(at)?,
            2 => file.set_len(0)?,
            3 => file.allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len + 1)?,
            4 => file.allocate(FallocateFlags::KEEP_SIZE, at, len + 1)?,
            _ => drop(file.write_at(&vec![9; len as usize], at)?),
        }
        if self.rng.u8(..4) == 0 {
            file.sync()?;
        }
        Ok(())
    }

    /// # Errors
    /// Those of a device that fails.
    pub fn end(self) -> Result<(), Error> {
        drop(self.held);
        self.fs.close()
    }
}

/// This error is none.
fn unless(errno: Errno, outcome: Result<(), Error>) -> Result<(), Error> {
    outcome.or_else(|error| if error.errno() == errno { Ok(()) } else { Err(error) })
}
