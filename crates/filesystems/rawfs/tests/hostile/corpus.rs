//! Small images with something of everything, as they were written when this was made: also a test that images of old can be read.
//! CORPUS=1 makes them again.
//!
//! A file of the corpus: rows of (zero bytes, other bytes: 4 bytes each; the other bytes), until its end.

use std::time::Duration;

use rawfs::fs::{Creds, File, FileKind, Fs, FsSettings, Timestamp};
use rawfs::{BLOCK_BYTES, FormatOptions, Store};
use rustix::fs::{FallocateFlags, OFlags, XattrFlags};

use super::uses::{Memory, settings};

const IMAGES: [&[u8]; 4] = [
    include_bytes!("corpus/clean.rows"),
    include_bytes!("corpus/many.rows"),
    include_bytes!("corpus/cut.rows"),
    include_bytes!("corpus/large.rows"),
];
/// Files and directories in each.
pub const FILES: &[u64] = &[28, 331, 28, 9];

fn packed(image: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut at = 0;
    while at < image.len() {
        let zeros = image[at..].iter().take_while(|byte| **byte == 0).count();
        let from = at + zeros;
        // A few zeros are no end.
        let mut to = from;
        while to < image.len() && image[to..image.len().min(to + 16)].iter().any(|byte| *byte != 0) {
            to += 1;
        }
        bytes.extend((zeros as u32).to_le_bytes());
        bytes.extend(((to - from) as u32).to_le_bytes());
        bytes.extend(&image[from..to]);
        at = to;
    }
    bytes
}

fn unpacked(mut bytes: &[u8]) -> Vec<u8> {
    let mut image = Vec::new();
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().expect("four bytes")) as usize;
    while !bytes.is_empty() {
        let (zeros, others) = (number(bytes), number(&bytes[4..]));
        image.resize(image.len() + zeros, 0);
        image.extend(&bytes[8..8 + others]);
        bytes = &bytes[8 + others..];
    }
    image
}

pub fn all() -> Vec<Vec<u8>> {
    if std::env::var_os("CORPUS").is_some() {
        for (name, image) in [("clean", some(true)), ("many", many()), ("cut", some(false)), ("large", large())] {
            let path = format!("{}/tests/hostile/corpus/{name}.rows", env!("CARGO_MANIFEST_DIR"));
            std::fs::write(path, packed(&image)).expect("written");
        }
    }
    IMAGES.iter().map(|bytes| unpacked(bytes)).collect()
}

fn made(kib: usize, metadata: u64) -> (Memory, Fs) {
    let memory = Memory::new(&vec![0; kib << 10]);
    let options = FormatOptions {
        uuid: Some(*b"a hostile image!"),
        metadata_bytes: Some(metadata << 10),
        log_bytes: Some(128 << 10),
        ..FormatOptions::default()
    };
    Store::format(&memory.disk(), &options).expect("formatted");
    let (store, _) = Store::open(memory.disk(), &settings(false)).expect("opened");
    Fs::format(&store, Timestamp { sec: 1_700_000_000, nsec: 5 }).expect("made");
    let clock = || Timestamp { sec: 1_700_000_001, nsec: 7 };
    let settings = FsSettings { write_back: Duration::ZERO, clock, ..FsSettings::default() };
    let (fs, _) = Fs::open(store, settings).expect("opened");
    (memory, fs)
}

fn open(fs: &Fs, path: &str) -> File {
    fs.open_at(fs.root(), path.as_bytes(), OFlags::RDWR | OFlags::CREATE, 0o644, &Creds::root()).expect("made")
}

fn put(fs: &Fs, path: &str, at: u64, bytes: &[u8]) {
    assert_eq!(open(fs, path).write_at(bytes, at).expect("written"), bytes.len());
}

/// Content that packs well and is not all alike.
fn content(len: usize, seed: u8) -> Vec<u8> {
    let mut bytes = vec![0; len];
    bytes.iter_mut().step_by(1024).for_each(|byte| *byte = seed.max(1));
    bytes
}

/// Something of each kind; and if it was not closed, a log, an orphan and a file half cut.
fn some(closed: bool) -> Vec<u8> {
    let (memory, fs) = made(2048, 512);
    let root = Creds::root();
    for dir in ["/a", "/a/b", "/a/b/c", "/d"] {
        fs.mkdir(fs.root(), dir.as_bytes(), 0o755, &root).expect("made");
    }
    let long = "d".repeat(200);
    let deep = format!("/{long}");
    fs.mkdir(fs.root(), deep.as_bytes(), 0o700, &root).expect("made");
    let deep = format!("{deep}/{long}");
    fs.mkdir(fs.root(), deep.as_bytes(), 0o700, &root).expect("made");
    let deep = format!("{deep}/{long}");
    fs.mkdir(fs.root(), deep.as_bytes(), 0o700, &root).expect("a zone");
    put(&fs, &format!("{deep}/in a zone"), 0, b"content");
    put(&fs, "/empty", 0, b"");
    put(&fs, "/a/small", 0, &[b's'; 300]);
    put(&fs, "/a/b/blocks", 0, &content(20_000, 1));
    put(&fs, "/a/b/c/holes", 1 << 30, &content(5000, 2));
    let many = open(&fs, "/d/many");
    for n in 0..40 {
        many.write_at(&content(4096, n as u8), n * 3 * 4096).expect("written");
        many.sync().expect("synced");
    }
    open(&fs, "/d/reserved").allocate(FallocateFlags::KEEP_SIZE, 0, 40_000).expect("set aside");
    fs.symlink(b"../a/small", fs.root(), b"/d/link", &root).expect("made");
    fs.symlink("t".repeat(3500).as_bytes(), fs.root(), b"/d/long", &root).expect("made");
    for (path, kind) in
        [("/pipe", FileKind::Fifo), ("/socket", FileKind::Socket), ("/char", FileKind::CharDevice), ("/block", FileKind::BlockDevice)]
    {
        fs.mknod(fs.root(), path.as_bytes(), kind, 0o600, 0x103, &root).expect("made");
    }
    let node = fs.lookup(fs.root(), b"/a/b/blocks", true, &root).expect("there");
    for path in ["/two", "/a/three"] {
        fs.link(&node, fs.root(), path.as_bytes(), &root).expect("linked");
    }
    fs.set_xattr(&node, b"user.some", &[7; 200], XattrFlags::empty(), &root).expect("set");
    fs.set_xattr(&node, b"user.more", &[8; 3000], XattrFlags::empty(), &root).expect("set");
    for n in 0..5 {
        put(&fs, &format!("/d/{n}"), 0, &content(n * 900, 9));
    }
    drop((node, many));
    fs.sync().expect("synced");
    if closed {
        fs.close().expect("closed");
        return memory.content();
    }
    fs.store().checkpoint().expect("done");
    fs.rename(fs.root(), b"/a", fs.root(), b"/d/a", rustix::fs::RenameFlags::empty(), &root).expect("renamed");
    fs.rename(fs.root(), b"/d/a", fs.root(), b"/a", rustix::fs::RenameFlags::empty(), &root).expect("renamed");
    let orphan = open(&fs, "/gone");
    orphan.write_at(&content(9000, 3), 0).expect("written");
    orphan.sync().expect("synced");
    fs.unlink(fs.root(), b"/gone", &root).expect("removed");
    put(&fs, "/d/4", 0, &content(9000, 4));
    fs.sync().expect("synced");
    memory.content()
}

/// Trees of two levels.
fn many() -> Vec<u8> {
    let (memory, fs) = made(3072, 1536);
    for dir in 0..10 {
        fs.mkdir(fs.root(), format!("/dir-{dir}").as_bytes(), 0o755, &Creds::root()).expect("made");
        for n in 0..30 {
            let path = format!("/dir-{dir}/a file with a name, number {n}");
            put(&fs, &path, 0, &content(if n % 10 == 0 { 4096 } else { 1500 }, n as u8));
        }
    }
    // Numbers of which Files knows more than one leaf holds.
    for n in 0..20 {
        let node = fs.lookup(fs.root(), format!("/dir-0/a file with a name, number {n}").as_bytes(), true, &Creds::root()).expect("there");
        fs.set_xattr(&node, b"user.x", &[1; 2500], XattrFlags::empty(), &Creds::root()).expect("set");
        fs.link(&node, fs.root(), format!("/link-{n}").as_bytes(), &Creds::root()).expect("linked");
    }
    fs.close().expect("closed");
    memory.content()
}

/// Much data in few files.
fn large() -> Vec<u8> {
    let (memory, fs) = made(6144, 512);
    for n in 0..8_u8 {
        put(&fs, &format!("/{n}"), 0, &content(BLOCK_BYTES * 130, n + 1));
    }
    fs.close().expect("closed");
    memory.content()
}
