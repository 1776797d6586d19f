//! Renames that concern both sides: written down before the first step, finished after a crash.
//!
//! One intent at a time, in `.hotshelf/intent` on the SSD: a checksummed list of steps. A step is done by
//! recovery only while the inode it names is still where the step takes it from, so doing the list twice
//! changes nothing.

use std::os::fd::{AsFd, OwnedFd};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::report::TierName;
use crate::tier::Result;

/// Name of the file in the SSD's hidden directory.
pub const FILE: &str = "intent";

const MAGIC: [u8; 8] = *b"hsintnt1";
const MAX_BYTES: usize = 64 << 10;

/// One change on one side; paths are relative to the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// `from` becomes `to`, replacing what was there.
    Rename {
        /// Side.
        tier: TierName,
        /// Old path.
        from: Vec<u8>,
        /// New path.
        to: Vec<u8>,
        /// Inode that moves.
        ino: u64,
    },
    /// `a` and `b` change places.
    Exchange {
        /// Side.
        tier: TierName,
        /// One path.
        a: Vec<u8>,
        /// The other.
        b: Vec<u8>,
        /// Inode that was at `a`.
        ino: u64,
    },
    /// A name goes.
    Remove {
        /// Side.
        tier: TierName,
        /// Path.
        path: Vec<u8>,
        /// Inode that goes.
        ino: u64,
        /// It is a directory.
        directory: bool,
    },
}

/// The file that holds the current intent.
#[derive(Debug)]
pub struct Intents {
    file: Mutex<OwnedFd>,
}

/// An intent that is written down.
pub struct Intent<'a> {
    file: MutexGuard<'a, OwnedFd>,
}

impl Intents {
    /// Opens the file, and reads what a crash left in it. `Err` text: damaged, what is wrong.
    pub fn open(hidden: &OwnedFd) -> Result<(Intents, std::result::Result<Vec<Step>, &'static str>)> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(hidden, FILE, flags, Mode::RUSR | Mode::WUSR)?;
        let mut bytes = vec![0u8; MAX_BYTES];
        let len = rustix::io::pread(&file, &mut bytes[..], 0)?;
        let steps = decode(&bytes[..len]);
        Ok((Intents { file: Mutex::new(file) }, steps))
    }

    /// Writes the steps down; they are durable when this returns. Others wait for this one to be done.
    pub fn begin(&self, steps: &[Step]) -> Result<Intent<'_>> {
        let bytes = encode(steps);
        if bytes.len() > MAX_BYTES {
            return Err(Errno::NAMETOOLONG);
        }
        let file = self.file.lock();
        rustix::fs::ftruncate(&*file, 0)?;
        let mut at = 0;
        while at < bytes.len() {
            at += rustix::io::pwrite(file.as_fd(), &bytes[at..], at as u64)?;
        }
        rustix::fs::fdatasync(&*file)?;
        Ok(Intent { file })
    }

    /// Keeps a damaged file for people to look at, and begins a new one.
    pub fn put_aside(&self, hidden: &OwnedFd) -> Result<String> {
        let damage = crate::persist::put_aside(hidden.as_fd(), FILE, "damaged").map_err(|_| Errno::IO)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        *self.file.lock() = rustix::fs::openat(hidden, FILE, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(damage.kept_as)
    }

    /// Forgets what was left, after recovery.
    pub fn clear(&self) -> Result<()> {
        let file = self.file.lock();
        rustix::fs::ftruncate(&*file, 0)?;
        rustix::fs::fdatasync(&*file)
    }
}

impl Intent<'_> {
    /// All steps are done, or all undone.
    pub fn done(self) -> Result<()> {
        rustix::fs::ftruncate(&*self.file, 0)
    }
}

fn encode(steps: &[Step]) -> Vec<u8> {
    let mut body = vec![steps.len() as u8];
    for step in steps {
        let (code, tier, first, second, ino, directory) = match step {
            Step::Rename { tier, from, to, ino } => (1u8, tier, from.as_slice(), to.as_slice(), ino, false),
            Step::Exchange { tier, a, b, ino } => (2, tier, a.as_slice(), b.as_slice(), ino, false),
            Step::Remove { tier, path, ino, directory } => (3, tier, path.as_slice(), &[][..], ino, *directory),
        };
        body.extend_from_slice(&[code, *tier as u8, u8::from(directory)]);
        body.extend_from_slice(&ino.to_le_bytes());
        for path in [first, second] {
            body.extend_from_slice(&(path.len() as u32).to_le_bytes());
            body.extend_from_slice(path);
        }
    }
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
    out.extend_from_slice(&body);
    out
}

/// The steps in the file; none when it is empty or its writing was cut off (nothing was begun then).
fn decode(bytes: &[u8]) -> std::result::Result<Vec<Step>, &'static str> {
    let Some((head, body)) = bytes.split_at_checked(16) else { return Ok(Vec::new()) };
    if head.iter().all(|byte| *byte == 0) {
        return Ok(Vec::new());
    }
    if head[..8] != MAGIC {
        return Err("not an intent file, or one of another version");
    }
    let len = u32::from_le_bytes(head[8..12].try_into().expect("four bytes")) as usize;
    let crc = u32::from_le_bytes(head[12..16].try_into().expect("four bytes"));
    let Some(body) = body.get(..len) else { return Ok(Vec::new()) };
    if crc32c::crc32c(body) != crc {
        // The write of an intent was torn: no step was taken before it was durable.
        return Ok(Vec::new());
    }
    steps(body).ok_or("its steps make no sense")
}

fn steps(body: &[u8]) -> Option<Vec<Step>> {
    let (count, mut rest) = body.split_first()?;
    let mut steps = Vec::new();
    for _ in 0..*count {
        let (head, tail) = rest.split_at_checked(11)?;
        let tier = match head[1] {
            0 => TierName::Ssd,
            1 => TierName::Hdd,
            _ => return None,
        };
        let ino = u64::from_le_bytes(head[3..11].try_into().ok()?);
        rest = tail;
        let first = path(&mut rest)?;
        let second = path(&mut rest)?;
        steps.push(match head[0] {
            1 => Step::Rename { tier, from: first, to: second, ino },
            2 => Step::Exchange { tier, a: first, b: second, ino },
            3 => Step::Remove { tier, path: first, ino, directory: head[2] != 0 },
            _ => return None,
        });
    }
    rest.is_empty().then_some(steps)
}

fn path(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let (len, tail) = rest.split_at_checked(4)?;
    let len = u32::from_le_bytes(len.try_into().ok()?) as usize;
    let (path, tail) = tail.split_at_checked(len)?;
    *rest = tail;
    Some(path.to_vec())
}

#[cfg(test)]
mod test {
    use super::*;

    fn sample() -> Vec<Step> {
        vec![
            Step::Rename { tier: TierName::Ssd, from: b"a/b".to_vec(), to: b"c".to_vec(), ino: 7 },
            Step::Exchange { tier: TierName::Hdd, a: b"x".to_vec(), b: b"y\xff".to_vec(), ino: 8 },
            Step::Remove { tier: TierName::Hdd, path: b"c".to_vec(), ino: 9, directory: true },
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(decode(&encode(&sample())), Ok(sample()));
        assert_eq!(decode(b""), Ok(vec![]));
    }

    #[test]
    fn a_torn_or_flipped_intent_is_never_another_one() {
        let whole = encode(&sample());
        for cut in 0..whole.len() {
            assert!(matches!(decode(&whole[..cut]), Ok(steps) if steps.is_empty()), "cut at {cut}");
        }
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 0x40;
            assert!(!matches!(decode(&flipped), Ok(steps) if steps != sample() && !steps.is_empty()), "flipped {at}");
        }
    }
}
