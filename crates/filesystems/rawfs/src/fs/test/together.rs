//! Names and attributes in transactions.

use rustix::fs::{OFlags, RenameFlags};
use rustix::io::Errno;

use super::{Machine, close_clean, content, file, pattern, root};
use crate::fs::{Creds, Error, FileKind, Fs, SetAttr, Stat, Transaction};

fn code<T>(outcome: Result<T, Error>) -> Result<T, Errno> {
    outcome.map_err(|error| error.errno())
}

/// Everything that can be seen, but times of reads.
fn seen(fs: &Fs) -> Vec<String> {
    let mut all = Vec::new();
    see(fs, b"/", &mut all);
    all
}

fn see(fs: &Fs, path: &[u8], all: &mut Vec<String>) {
    let stat = fs.stat(fs.root(), path, false, &root()).expect("there");
    let Stat { kind, mode, nlink, uid, size, ino, .. } = stat;
    let mut text = format!("{} {kind:?} {mode:o} {nlink} {uid} {size}", String::from_utf8_lossy(path));
    if kind == FileKind::File {
        let open = fs.open_at(fs.root(), path, OFlags::RDONLY | OFlags::NOATIME, 0, &root()).expect("opened");
        text += &format!(" {:08x}", crc32c::crc32c(&content(&open)));
        assert_eq!(open.node().ino(), ino);
    }
    all.push(text);
    if kind == FileKind::Dir {
        let dir = fs.open_at(fs.root(), path, OFlags::DIRECTORY | OFlags::NOATIME, 0, &root()).expect("opened");
        let mut names = Vec::new();
        dir.read_dir(&mut |entry, _| {
            names.push(entry.name.clone());
            true
        })
        .expect("listed");
        let slash: &[u8] = if path == b"/" { b"" } else { b"/" };
        names.sort_unstable();
        names.iter().filter(|name| name[0] != b'.').for_each(|name| see(fs, &[path, slash, name].concat(), all));
    }
}

#[test]
fn a_directory_its_files_and_what_they_replace_come_together() {
    let machine = Machine::new(64 << 20);
    let fs = machine.open();
    let (at, creds, none) = (fs.root(), root(), RenameFlags::empty());
    let (old, kept) = (file(&fs, "/old"), file(&fs, "/kept"));
    old.write(&pattern(1, 20_000)).expect("written");
    kept.write(b"kept").expect("written");
    let fresh = fs.open_at(at, b"/", OFlags::TMPFILE | OFlags::RDWR, 0o600, &creds).expect("made");
    let mut transaction = fs.begin();
    transaction.mkdir(at, b"/new", 0o755, &creds).expect("gathered");
    transaction.mkdir(at, b"/new/in", 0o700, &creds).expect("gathered");
    transaction.write_at(&fresh, b"fresh", 0).expect("gathered");
    transaction.name(&fresh, at, b"/new/in/fresh").expect("gathered");
    transaction.append(&kept, b" and more").expect("gathered");
    transaction.rename(at, b"/kept", at, b"/new/kept", none, &creds).expect("gathered");
    transaction.rename(at, b"/new/in", at, b"/out", none, &creds).expect("gathered");
    transaction.symlink(b"in/fresh", at, b"/new/s", &creds).expect("gathered");
    transaction.link(kept.node(), at, b"/out/again", &creds).expect("gathered");
    transaction.unlink(at, b"/old", &creds).expect("gathered");
    transaction
        .set_attr(kept.node(), &SetAttr { mode: Some(0o640), owner: Some((Some(7), None)), ..SetAttr::default() }, &creds)
        .expect("gathered");
    let before = seen(&fs);
    assert_eq!((before.len(), content(&kept)), (3, b"kept".to_vec()), "nothing before the commit");
    fs.commit(transaction).expect("committed");
    assert_eq!(fs.store().synced(), fs.store().applied());
    let after = |fs: &Fs| {
        seen(fs).iter().map(|line| line.rsplit_once(' ').map_or_else(String::new, |(line, _)| line.to_owned())).collect::<Vec<_>>()
    };
    let wanted =
        ["/ Dir 40755 4 0", "/new Dir 40755 2 0", "/new/kept File 100640 2 7 13", "/new/s Symlink 120777 1 0", "/out Dir 40700 2 0"];
    assert_eq!(after(&fs)[..5], wanted);
    assert_eq!(after(&fs)[5..], ["/out/again File 100640 2 7 13", "/out/fresh File 100600 1 0 5"]);
    // What is open is what it was, wherever its name went.
    assert_eq!((content(&kept), content(&fresh)), (b"kept and more".to_vec(), b"fresh".to_vec()));
    assert!(content(&old) == pattern(1, 20_000) && old.node().stat().expect("held").nlink == 0);
    kept.write_at(b"KEPT", 0).expect("written");
    drop((old, kept, fresh));
    fs.sync().expect("synced");
    let last = seen(&fs);
    close_clean(fs, &machine);
    let fs = machine.open();
    assert_eq!(seen(&fs), last);
    assert_eq!(content(&file(&fs, "/out/again")), b"KEPT and more");
    close_clean(fs, &machine);
}

#[test]
fn what_fails_in_the_middle_has_changed_nothing() {
    let machine = Machine::new(64 << 20);
    let fs = machine.open();
    let (at, creds, none) = (fs.root(), root(), RenameFlags::empty());
    drop(fs.mkdir(at, b"/d", 0o755, &creds).expect("made"));
    let (a, b) = (file(&fs, "/a"), file(&fs, "/d/b"));
    a.write(&pattern(1, 9000)).expect("written");
    b.write(b"b").expect("written");
    let before = seen(&fs);
    let refused = |errno: Errno, change: &dyn Fn(&mut Transaction) -> Result<(), Error>| {
        let mut transaction = fs.begin();
        transaction.write_at(&b, &pattern(3, 30_000), 0).expect("gathered");
        transaction.rename(at, b"/d", at, b"/e", none, &creds).expect("gathered");
        transaction.unlink(at, b"/a", &creds).expect("gathered");
        transaction.mkdir(at, b"/a", 0o755, &creds).expect("gathered");
        change(&mut transaction).expect("gathered");
        assert_eq!(code(fs.commit(transaction)), Err(errno));
        assert_eq!(seen(&fs), before);
        assert_eq!((content(&b), content(&a)), (b"b".to_vec(), pattern(1, 9000)));
    };
    refused(Errno::EXIST, &|t| t.mkdir(at, b"/e", 0o755, &creds));
    refused(Errno::NOENT, &|t| t.unlink(at, b"/d/b", &creds));
    refused(Errno::NOTEMPTY, &|t| t.rmdir(at, b"/e", &creds));
    refused(Errno::INVAL, &|t| t.rename(at, b"/e", at, b"/e/f", none, &creds));
    refused(Errno::ISDIR, &|t| t.unlink(at, b"/a", &creds));
    refused(Errno::PERM, &|t| t.link(&fs.lookup(at, b"/d", false, &creds)?, at, b"/x", &creds));
    let other = Creds { uid: 5, ..root() };
    refused(Errno::PERM, &|t| t.set_attr(a.node(), &SetAttr { mode: Some(0), ..SetAttr::default() }, &other));
    refused(Errno::ACCESS, &|t| t.mkdir(at, b"/new", 0o755, &other));
    drop((a, b));
    close_clean(fs, &machine);
}

/// What was open, and its directories, go on as if the calls had been made one by one.
#[test]
fn held_directories_and_files_follow() {
    let machine = Machine::new(64 << 20);
    let fs = machine.open();
    let (at, creds, none) = (fs.root(), root(), RenameFlags::empty());
    for dir in ["/a", "/a/b", "/x", "/gone"] {
        drop(fs.mkdir(at, dir.as_bytes(), 0o755, &creds).expect("made"));
    }
    let open = |path: &str| fs.open_at(at, path.as_bytes(), OFlags::DIRECTORY, 0, &creds).expect("opened");
    let (b, x, gone) = (open("/a/b"), open("/x"), open("/gone"));
    let deep = file(&fs, "/a/b/deep");
    deep.write(&pattern(1, 5000)).expect("written");
    let mut transaction = fs.begin();
    transaction.rename(at, b"/a", at, b"/x", RenameFlags::EXCHANGE, &creds).expect("gathered");
    transaction.rename(at, b"/x/b", at, b"/b", none, &creds).expect("gathered");
    transaction.rmdir(at, b"/gone", &creds).expect("gathered");
    // From a held directory, wherever it is by then.
    transaction.mkdir(b.node(), b"below", 0o755, &creds).expect("gathered");
    transaction.rename(at, b"/b/below", x.node(), b"moved", none, &creds).expect("gathered");
    fs.commit(transaction).expect("committed");
    let path = |dir: &crate::fs::File| code(fs.real_path(dir.node(), b".", &creds));
    assert_eq!((path(&b), path(&x), path(&gone)), (Ok(b"/b".to_vec()), Ok(b"/a".to_vec()), Err(Errno::NOENT)));
    assert_eq!(code(fs.mkdir(gone.node(), b"in", 0o755, &creds).map(drop)), Err(Errno::NOENT));
    assert_eq!(gone.node().stat().expect("held").nlink, 0);
    deep.write_at(b"later", 5000).expect("written");
    deep.sync().expect("synced");
    assert_eq!(content(&file(&fs, "/b/deep")).len(), 5005);
    assert!(fs.stat(at, b"/a/moved", false, &creds).is_ok());
    assert_eq!(code(fs.stat(at, b"/a/b", false, &creds)), Err(Errno::NOENT));
    drop((b, x, gone, deep));
    close_clean(fs, &machine);
}

const NAMES: [&str; 8] = ["/a", "/b", "/d", "/d/a", "/d/b", "/e", "/e/a", "/d/d"];

/// One change, done at once, or collected.
#[derive(Clone, Copy, Debug)]
enum Change {
    MkDir(usize),
    SymLink(usize),
    Link(usize, usize),
    Unlink(usize),
    RmDir(usize),
    Rename(usize, usize, bool),
    Mode(usize, u16),
}

impl Change {
    fn any(rng: &mut fastrand::Rng) -> Change {
        let (one, other) = (rng.usize(..NAMES.len()), rng.usize(..NAMES.len()));
        match rng.u8(..10) {
            0 | 1 => Change::MkDir(one),
            2 => Change::SymLink(one),
            3 => Change::Link(one, other),
            4 => Change::Unlink(one),
            5 => Change::RmDir(one),
            6..9 => Change::Rename(one, other, rng.u8(..3) == 0),
            _ => Change::Mode(one, rng.u16(..0o1000)),
        }
    }

    /// Whether it can be done as things are.
    fn is_likely(self, fs: &Fs) -> bool {
        let kind = |n: usize| fs.stat(fs.root(), NAMES[n].as_bytes(), false, &root()).ok().map(|stat| stat.kind);
        match self {
            Change::MkDir(n) | Change::SymLink(n) => kind(n).is_none(),
            Change::Link(n, m) => kind(n).is_some_and(|kind| kind != FileKind::Dir) && kind(m).is_none(),
            Change::Unlink(n) => kind(n).is_some_and(|kind| kind != FileKind::Dir),
            Change::RmDir(n) => kind(n) == Some(FileKind::Dir),
            Change::Rename(n, m, exchange) => kind(n).is_some() && kind(m).is_some() == exchange,
            Change::Mode(n, _) => kind(n).is_some(),
        }
    }

    fn gather(self, fs: &Fs, to: &mut Transaction) -> Result<(), Error> {
        let (at, creds, name) = (fs.root(), root(), |n: usize| NAMES[n].as_bytes());
        match self {
            Change::MkDir(n) => to.mkdir(at, name(n), 0o755, &creds),
            Change::SymLink(n) => to.symlink(b"d/a", at, name(n), &creds),
            Change::Link(n, m) => to.link(&fs.lookup(at, name(n), false, &creds)?, at, name(m), &creds),
            Change::Unlink(n) => to.unlink(at, name(n), &creds),
            Change::RmDir(n) => to.rmdir(at, name(n), &creds),
            Change::Rename(n, m, exchange) => to.rename(at, name(n), at, name(m), flags(exchange), &creds),
            Change::Mode(n, mode) => {
                to.set_attr(&fs.lookup(at, name(n), false, &creds)?, &SetAttr { mode: Some(mode), ..SetAttr::default() }, &creds)
            }
        }
    }

    fn at_once(self, fs: &Fs, held: impl Fn(usize) -> Result<crate::fs::Node, Error>) -> Result<(), Error> {
        let (at, creds, name) = (fs.root(), root(), |n: usize| NAMES[n].as_bytes());
        match self {
            Change::MkDir(n) => fs.mkdir(at, name(n), 0o755, &creds).map(drop),
            Change::SymLink(n) => fs.symlink(b"d/a", at, name(n), &creds).map(drop),
            Change::Link(n, m) => fs.link(&held(n)?, at, name(m), &creds),
            Change::Unlink(n) => fs.unlink(at, name(n), &creds),
            Change::RmDir(n) => fs.rmdir(at, name(n), &creds),
            Change::Rename(n, m, exchange) => fs.rename(at, name(n), at, name(m), flags(exchange), &creds),
            Change::Mode(n, mode) => fs.set_attr(&held(n)?, &SetAttr { mode: Some(mode), ..SetAttr::default() }, &creds),
        }
    }
}

fn flags(exchange: bool) -> RenameFlags {
    if exchange { RenameFlags::EXCHANGE } else { RenameFlags::empty() }
}

/// The same changes, in transactions on one file system and one by one on another, with files open and written to meanwhile: the same is
/// seen always; what one refuses in the middle has not started.
// long: one scenario: the same calls twice, then a comparison.
#[test]
fn transactions_are_what_their_calls_are_one_by_one() {
    let mut rng = crate::testing::rng();
    let machines = [Machine::new(64 << 20), Machine::new(64 << 20)];
    let [one, other] = [machines[0].open(), machines[1].open()];
    let (mut held, mut committed, mut refused) = (Vec::new(), 0, 0);
    for round in 0..250 {
        let path = NAMES[rng.usize(..NAMES.len())];
        if rng.bool() {
            let open = |fs: &Fs| fs.open_at(fs.root(), path.as_bytes(), OFlags::RDWR | OFlags::CREATE, 0o644, &root());
            let (a, b) = (open(&one), open(&other));
            assert_eq!(a.is_ok(), b.is_ok(), "round {round}");
            held.extend(a.ok().zip(b.ok()));
        }
        if held.len() > 4 {
            drop(held.swap_remove(rng.usize(..held.len())));
        }
        for (a, b) in &held {
            if rng.bool() {
                let (bytes, at) = (pattern(round, rng.usize(..9000)), rng.u64(..9000));
                assert_eq!(a.write_at(&bytes, at), b.write_at(&bytes, at));
            }
        }
        let mut transaction = one.begin();
        let mut done = Vec::new();
        for _ in 0..rng.usize(1..10) {
            let change = Change::any(&mut rng);
            // Its file is held when the change is collected.
            if (change.is_likely(&one) || rng.u8(..20) == 0) && change.gather(&one, &mut transaction).is_ok() {
                done.push(change);
            }
        }
        let (before, last) = (seen(&one), transaction.is_empty());
        let nodes: Vec<_> = (0..NAMES.len()).map(|n| other.lookup(other.root(), NAMES[n].as_bytes(), false, &root()).ok()).collect();
        match one.commit(transaction) {
            Err(error) => {
                refused += 1;
                assert_eq!(seen(&one), before, "{done:?}: {error}");
            }
            Ok(()) => {
                committed += u64::from(!last);
                for change in &done {
                    let node = |n: usize| nodes[n].clone().ok_or(Error::Refused(Errno::NOENT));
                    change.at_once(&other, node).unwrap_or_else(|error| panic!("round {round}: {change:?} of {done:?}: {error}"));
                }
            }
        }
        drop(nodes);
        assert_eq!(seen(&one), seen(&other), "round {round}: {done:?}");
        for (a, b) in &held {
            let of = |open: &crate::fs::File| open.node().stat().map(|Stat { mode, nlink, size, .. }| (mode, nlink, size));
            assert_eq!((of(a), content(a)), (of(b), content(b)), "round {round}: {done:?}");
        }
    }
    assert!(committed > 50 && refused > 50, "{committed} committed, {refused} refused");
    drop(held);
    let last = seen(&one);
    close_clean(one, &machines[0]);
    close_clean(other, &machines[1]);
    let fs = machines[0].open();
    assert_eq!(seen(&fs), last);
    close_clean(fs, &machines[0]);
}
