//! `.hotshelf/pins`: the paths that stay on the SSD.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;

use super::{Damage, Fields, PersistError, VERSION, put_aside, read_all, replace};

const FILE: &str = "pins";
const MAGIC: [u8; 4] = *b"hspn";
const BYTES_MAX: usize = 64 << 20;

/// The pinned paths, relative to the mount.
pub fn load_pins(dir: BorrowedFd<'_>) -> Result<(BTreeSet<Vec<u8>>, Option<Damage>), PersistError> {
    let Some(bytes) = read_all(dir, FILE, BYTES_MAX)? else { return Ok((BTreeSet::new(), None)) };
    let mut fields = Fields(&bytes);
    let magic = fields.take(4) == Some(&MAGIC[..]);
    let version = fields.u32();
    if let Some(found) = version.filter(|found| magic && *found > VERSION) {
        return Err(PersistError::FutureVersion { file: FILE, found, ours: VERSION });
    }
    let crc = fields.u32();
    let whole = magic && version.is_some() && crc == Some(crc32c::crc32c(fields.0));
    match whole.then(|| parse(fields)).flatten() {
        Some(pins) => Ok((pins, None)),
        None => put_aside(dir, FILE, "wrong checksum").map(|damage| (BTreeSet::new(), Some(damage))),
    }
}

fn parse(mut fields: Fields<'_>) -> Option<BTreeSet<Vec<u8>>> {
    let mut pins = BTreeSet::new();
    while !fields.0.is_empty() {
        let len = fields.u32()? as usize;
        pins.insert(fields.take(len)?.to_vec());
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
    bytes.extend_from_slice(&body);
    replace(dir, FILE, &bytes)
}
