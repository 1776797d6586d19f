//! `.hotshelf/pins`: the paths that stay on the SSD.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use super::{Damage, Fields, PersistError, VERSION, put_aside, read_all, replace};

const FILE: &str = "pins";
const MAGIC: [u8; 4] = *b"hspn";
/// Magic, version and checksum.
const HEADER: usize = 12;
const BYTES_MAX: usize = 64 << 20;

const _: () = assert!(HEADER == MAGIC.len() + 2 * size_of::<u32>());

/// The pinned paths, relative to the mount; no file: none.
pub fn load_pins(dir: BorrowedFd<'_>) -> Result<(BTreeSet<Vec<u8>>, Option<Damage>), PersistError> {
    match read(dir)? {
        Ok(pins) => Ok((pins, None)),
        Err(detail) => put_aside(dir, FILE, detail).map(|damage| (BTreeSet::new(), Some(damage))),
    }
}

/// Looks without changing anything.
pub fn probe_pins(dir: BorrowedFd<'_>) -> Result<(), PersistError> {
    read(dir)?.map(|_| ()).map_err(|detail| PersistError::Damaged { file: FILE, detail })
}

fn read(dir: BorrowedFd<'_>) -> Result<Result<BTreeSet<Vec<u8>>, &'static str>, PersistError> {
    let Some(bytes) = read_all(dir, FILE, BYTES_MAX + 1)? else { return Ok(Ok(BTreeSet::new())) };
    let mut fields = Fields(&bytes);
    let magic = fields.take(MAGIC.len()) == Some(&MAGIC[..]);
    let version = fields.u32();
    if let Some(found) = version.filter(|found| magic && *found > VERSION) {
        return Err(PersistError::FutureVersion { file: FILE, found, ours: VERSION });
    }
    let crc = fields.u32();
    if !magic || version != Some(VERSION) || bytes.len() > BYTES_MAX {
        return Ok(Err("not a list of pins"));
    }
    if crc != Some(crc32c::crc32c(fields.0)) {
        return Ok(Err("wrong checksum"));
    }
    Ok(parse(fields).ok_or("its paths make no sense"))
}

fn parse(mut fields: Fields<'_>) -> Option<BTreeSet<Vec<u8>>> {
    let mut pins = BTreeSet::new();
    while !fields.0.is_empty() {
        let len = fields.u32()? as usize;
        // An empty path would be a pin on everything.
        pins.insert(fields.take(len).filter(|path| !path.is_empty())?.to_vec());
    }
    Some(pins)
}

/// Writes the pinned paths; they are durable when this returns.
pub fn save_pins(dir: BorrowedFd<'_>, pins: &BTreeSet<Vec<u8>>) -> Result<(), PersistError> {
    let mut body = Vec::new();
    for pin in pins {
        body.extend_from_slice(&(pin.len() as u32).to_le_bytes());
        body.extend_from_slice(pin);
    }
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
    assert_eq!(bytes.len(), HEADER);
    bytes.extend_from_slice(&body);
    if bytes.len() > BYTES_MAX {
        // It would not be read again.
        return Err(PersistError::Io { file: FILE, source: Errno::FBIG });
    }
    replace(dir, FILE, &bytes)
}
