//! `.hotshelf/pins`: the paths that stay on the SSD.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use super::{FieldReader, PersistError, SetAsideFile, VERSION, put_aside, read_all, replace};

const FILE: &str = "pins";
const MAGIC: [u8; 4] = *b"hspn";
/// Magic, version and checksum.
const HEADER: usize = 12;
const BYTES_MAX: usize = 64 << 20;

const _: () = assert!(HEADER == MAGIC.len() + 2 * size_of::<u32>());

/// The pinned paths, relative to the mount; no file: none.
pub fn load_pins(dir: BorrowedFd<'_>) -> Result<(BTreeSet<Vec<u8>>, Option<SetAsideFile>), PersistError> {
    match read(dir)? {
        Ok(pins) => Ok((pins, None)),
        Err(detail) => put_aside(dir, FILE, detail).map(|damage| (BTreeSet::new(), Some(damage))),
    }
}

/// Reads the pins without changing any file.
pub fn probe_pins(dir: BorrowedFd<'_>) -> Result<(), PersistError> {
    read(dir)?.map(|_| ()).map_err(|detail| PersistError::Damaged { file: FILE, detail })
}

fn read(dir: BorrowedFd<'_>) -> Result<Result<BTreeSet<Vec<u8>>, &'static str>, PersistError> {
    let Some(bytes) = read_all(dir, FILE, BYTES_MAX + 1)? else { return Ok(Ok(BTreeSet::new())) };
    let mut fields = FieldReader(&bytes);
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

fn parse(mut fields: FieldReader<'_>) -> Option<BTreeSet<Vec<u8>>> {
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
    let bytes = encode(pins);
    if bytes.len() > BYTES_MAX {
        // It would not be read again.
        return Err(PersistError::Io { file: FILE, source: Errno::FBIG });
    }
    replace(dir, FILE, &bytes)
}

fn encode(pins: &BTreeSet<Vec<u8>>) -> Vec<u8> {
    let mut body = Vec::new();
    for pin in pins {
        body.extend_from_slice(&(pin.len() as u32).to_le_bytes());
        body.extend_from_slice(pin);
    }
    file(&body)
}

/// A whole file with this body.
fn file(body: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&crc32c::crc32c(body).to_le_bytes());
    assert_eq!(bytes.len(), HEADER);
    bytes.extend_from_slice(body);
    bytes
}

#[cfg(test)]
mod test {
    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;

    use super::*;
    use crate::persist::file_damage::{FileDamage, HiddenTestDir, extreme, file_damage, path};

    #[test]
    fn pins_come_back_as_they_were() {
        let dir = HiddenTestDir::new();
        assert_eq!(load_pins(dir.fd()).expect("none yet"), (BTreeSet::new(), None));
        proptest!(|(pins in btree_set(path(), 0..6))| {
            dir.put(FILE, &encode(&pins));
            probe_pins(dir.fd()).expect("good");
            prop_assert_eq!(load_pins(dir.fd()).expect("loaded"), (pins, None));
        });
    }

    #[test]
    fn harmed_pins_are_put_aside_and_none() {
        let dir = HiddenTestDir::new();
        proptest!(|(pins in btree_set(path(), 0..6), file_damage in file_damage())| {
            let bytes = encode(&pins);
            dir.put(FILE, &file_damage.done_to(&bytes));
            prop_assert!(probe_pins(dir.fd()).is_err());
            match load_pins(dir.fd()) {
                Ok((left, Some(aside))) => {
                    prop_assert_eq!((left, dir.get(&aside.kept_as)), (BTreeSet::new(), file_damage.done_to(&bytes)));
                }
                Err(PersistError::FutureVersion { .. }) => {
                    prop_assert!(matches!(&file_damage, FileDamage::Flip(at, _) if (4..8).contains(&at.index(bytes.len()))));
                }
                other => prop_assert!(false, "{other:?}"),
            }
        });
    }

    #[test]
    fn any_bytes_are_no_pins() {
        let dir = HiddenTestDir::new();
        proptest!(|(magic in any::<bool>(), bytes in vec(any::<u8>(), 0..200))| {
            dir.put(FILE, &if magic { [&MAGIC[..], &VERSION.to_le_bytes(), &bytes].concat() } else { bytes });
            prop_assert!(matches!(load_pins(dir.fd()), Ok((pins, Some(_))) if pins.is_empty()));
        });
    }

    #[test]
    fn extremes_behind_a_good_checksum_do_no_harm() {
        let dir = HiddenTestDir::new();
        proptest!(|(entries in vec((proptest::option::of(extreme()), vec(any::<u8>(), 0..20)), 0..6))| {
            let mut body = Vec::new();
            for (len, path) in &entries {
                body.extend_from_slice(&len.map_or(path.len() as u32, |len| len as u32).to_le_bytes());
                body.extend_from_slice(path);
            }
            dir.put(FILE, &file(&body));
            let (pins, _) = load_pins(dir.fd()).expect("loaded");
            prop_assert!(pins.iter().map(Vec::len).sum::<usize>() <= body.len() && !pins.contains(&[][..]));
        });
    }

    #[test]
    fn more_than_the_reader_takes_is_not_written() {
        let dir = HiddenTestDir::new();
        save_pins(dir.fd(), &BTreeSet::from([b"a".to_vec()])).expect("saved");
        let huge = BTreeSet::from([vec![b'x'; BYTES_MAX]]);
        assert!(matches!(save_pins(dir.fd(), &huge), Err(PersistError::Io { source: Errno::FBIG, .. })));
        assert_eq!(load_pins(dir.fd()).expect("loaded").0.len(), 1);
    }
}
