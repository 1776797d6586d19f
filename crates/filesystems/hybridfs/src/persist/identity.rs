//! `.hotshelf/id`: which directories belong together, so that a disk that is not mounted is noticed.

use std::os::fd::BorrowedFd;

use super::{FieldReader, PersistError, VERSION, read_all, replace};
use crate::report::TierName;

const FILE: &str = "id";
const MAGIC: [u8; 4] = *b"hsid";
const LEN: usize = 40;

const _: () = assert!(LEN == MAGIC.len() + size_of::<u32>() + size_of::<PairId>() + 4 + size_of::<u64>() + size_of::<u32>());

/// The name of a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PairId(pub [u8; 16]);

impl PairId {
    /// A new one, from the kernel's random numbers.
    pub fn random() -> std::io::Result<PairId> {
        use std::io::Read;
        let mut bytes = [0u8; 16];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(PairId(bytes))
    }
}

/// What a directory knows of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Identity of the pair that the directory belongs to.
    pub pair: PairId,
    /// The side that the directory is.
    pub tier: TierName,
    /// Time of creation in seconds since 1970.
    pub created_s: u64,
    /// Files with marks may be here.
    pub marks: bool,
}

/// The identity of a directory; `None`: it has none yet.
pub fn read_identity(dir: BorrowedFd<'_>) -> Result<Option<Identity>, PersistError> {
    let Some(bytes) = read_all(dir, FILE, 4096)? else { return Ok(None) };
    let damaged = |detail| PersistError::Damaged { file: FILE, detail };
    let mut fields = FieldReader(&bytes);
    if fields.take(4) != Some(&MAGIC[..]) {
        return Err(damaged("wrong magic"));
    }
    let version = fields.u32().ok_or(damaged("cut off"))?;
    if version > VERSION {
        return Err(PersistError::FutureVersion { file: FILE, found: version, ours: VERSION });
    }
    if version < VERSION {
        return Err(damaged("no such version"));
    }
    if bytes.len() != LEN || crc32c::crc32c(&bytes[..LEN - 4]).to_le_bytes() != bytes[LEN - 4..] {
        return Err(damaged("wrong checksum"));
    }
    parse(fields).map(Some).ok_or(damaged("senseless fields"))
}

fn parse(mut fields: FieldReader<'_>) -> Option<Identity> {
    let pair = PairId(fields.take(16)?.try_into().ok()?);
    let tier = match fields.u8()? {
        0 => TierName::Ssd,
        1 => TierName::Hdd,
        _ => return None,
    };
    let marks = fields.u8()? != 0;
    fields.u16()?;
    Some(Identity { pair, tier, marks, created_s: fields.u64()? })
}

/// Writes the identity; it is durable when this returns.
pub fn write_identity(dir: BorrowedFd<'_>, id: &Identity) -> Result<(), PersistError> {
    replace(dir, FILE, &encode(id))
}

fn encode(id: &Identity) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(LEN);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&id.pair.0);
    bytes.extend_from_slice(&[id.tier as u8, u8::from(id.marks), 0, 0]);
    bytes.extend_from_slice(&id.created_s.to_le_bytes());
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    assert_eq!(bytes.len(), LEN);
    bytes
}

#[cfg(test)]
mod test {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_flipped_byte_or_a_later_version_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let handle = std::fs::File::open(dir.path()).expect("opened");
        assert!(read_identity(handle.as_fd()).expect("none").is_none());
        let id = Identity { pair: PairId::random().expect("random"), tier: TierName::Hdd, created_s: 5, marks: true };
        write_identity(handle.as_fd(), &id).expect("written");
        assert_eq!(read_identity(handle.as_fd()).expect("read"), Some(id));
        let path = dir.path().join(FILE);
        let good = std::fs::read(&path).expect("bytes");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            std::fs::write(&path, &bad).expect("written");
            assert!(read_identity(handle.as_fd()).is_err(), "byte {at}");
        }
        std::fs::write(&path, &good[..20]).expect("written");
        assert!(read_identity(handle.as_fd()).is_err());
    }

    mod hostile {
        use proptest::collection::vec;
        use proptest::prelude::*;

        use super::*;
        use crate::persist::file_damage::{FileDamage, HiddenTestDir, extreme, file_damage};

        fn identities() -> impl Strategy<Value = Identity> {
            (any::<[u8; 16]>(), any::<(bool, bool)>(), extreme()).prop_map(|(pair, (ssd, marks), created_s)| {
                let tier = if ssd { TierName::Ssd } else { TierName::Hdd };
                Identity { pair: PairId(pair), tier, created_s, marks }
            })
        }

        #[test]
        fn what_is_written_is_read() {
            let dir = HiddenTestDir::new();
            proptest!(|(id in identities())| {
                dir.put(FILE, &encode(&id));
                prop_assert_eq!(read_identity(dir.fd()).expect("read"), Some(id));
            });
        }

        #[test]
        fn a_harmed_identity_is_refused() {
            let dir = HiddenTestDir::new();
            proptest!(|(id in identities(), file_damage in file_damage())| {
                let good = encode(&id);
                dir.put(FILE, &file_damage.done_to(&good));
                match read_identity(dir.fd()) {
                    Err(PersistError::Damaged { .. }) => {}
                    Err(PersistError::FutureVersion { .. }) => {
                        prop_assert!(matches!(&file_damage, FileDamage::Flip(at, _) if (4..8).contains(&at.index(LEN))));
                    }
                    other => prop_assert!(false, "{other:?}"),
                }
            });
        }

        #[test]
        fn any_bytes_are_no_identity() {
            let dir = HiddenTestDir::new();
            proptest!(|(magic in any::<bool>(), bytes in vec(any::<u8>(), 0..60))| {
                dir.put(FILE, &if magic { [&MAGIC[..], &VERSION.to_le_bytes(), &bytes].concat() } else { bytes });
                let damaged = matches!(read_identity(dir.fd()), Err(PersistError::Damaged { .. }));
                prop_assert!(damaged);
            });
        }

        #[test]
        fn any_fields_behind_a_good_checksum_are_read_or_refused() {
            let dir = HiddenTestDir::new();
            proptest!(|(fields in vec(any::<u8>(), LEN - 12), tier in prop_oneof![0u8..3, any::<u8>()])| {
                let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes(), &fields].concat();
                bytes[24] = tier;
                bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
                dir.put(FILE, &bytes);
                prop_assert_eq!(read_identity(dir.fd()).is_ok(), tier < 2);
            });
        }
    }
}
