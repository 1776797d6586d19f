//! `.hotshelf/key`: the secret that makes marks unforgeable (see `number`).

use std::os::fd::BorrowedFd;

use super::{FieldReader, PersistError, VERSION, read_all, replace};
use crate::number::NumberKey;

const FILE: &str = "key";
const MAGIC: [u8; 4] = *b"hsky";
const LEN: usize = 28;

const _: () = assert!(LEN == MAGIC.len() + size_of::<u32>() + size_of::<NumberKey>() + size_of::<u32>());

/// Reads the key of a side; `None`: it has none, or one that is damaged. A new key costs inode numbers, not data.
pub fn read_key(dir: BorrowedFd<'_>) -> Result<Option<NumberKey>, PersistError> {
    let Some(bytes) = read_all(dir, FILE, LEN + 1)? else { return Ok(None) };
    let mut fields = FieldReader(&bytes);
    let magic = fields.take(4) == Some(&MAGIC[..]);
    if let Some(found) = fields.u32().filter(|found| magic && *found > VERSION) {
        return Err(PersistError::FutureVersion { file: FILE, found, ours: VERSION });
    }
    Ok(decode(&bytes))
}

/// Writes the key; it is durable when this returns.
pub fn write_key(dir: BorrowedFd<'_>, key: &NumberKey) -> Result<(), PersistError> {
    replace(dir, FILE, &encode(key))
}

fn encode(key: &NumberKey) -> [u8; LEN] {
    let mut bytes = [0u8; LEN];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
    bytes[8..24].copy_from_slice(&key.0);
    let crc = crc32c::crc32c(&bytes[..24]);
    bytes[24..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<NumberKey> {
    let key = NumberKey(bytes.get(8..24)?.try_into().ok()?);
    (bytes == encode(&key)).then_some(key)
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;
    use crate::persist::file_damage::{HiddenTestDir, file_damage};

    #[test]
    fn a_key_comes_back_and_a_harmed_one_does_not() {
        let dir = HiddenTestDir::new();
        assert_eq!(read_key(dir.fd()).expect("none"), None);
        proptest!(|(secret in any::<[u8; 16]>(), file_damage in file_damage())| {
            write_key(dir.fd(), &NumberKey(secret)).expect("written");
            prop_assert_eq!(read_key(dir.fd()).expect("read"), Some(NumberKey(secret)));
            let bad = file_damage.done_to(&encode(&NumberKey(secret)));
            dir.put(FILE, &bad);
            prop_assert!(!matches!(read_key(dir.fd()), Ok(Some(_))) || bad == encode(&NumberKey(secret)));
        });
    }
}
