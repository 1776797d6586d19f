//! A database's rollback journal. As long as what it can undo is only in memory it is there too; a large transaction, or one over
//! several databases, puts it on the device, where it is a file as any other and does what SQLite has it for.

use rawfs::fs::{File, Result};

/// As SQLite's journals begin.
const MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];

/// Behind a super-journal's name: its length, its checksum, and [`MAGIC`]; before it: a page's number. Without the magic that is 12 bytes.
const SUPER_TAIL: u64 = 12;

/// The rollback journal of a database.
#[derive(Default)]
pub enum Journal {
    /// There is none.
    #[default]
    No,
    /// In memory.
    Memory(Vec<u8>),
    /// On the device.
    Device(File),
}

impl Journal {
    /// Whether there is one, by name.
    pub fn exists(&self) -> bool {
        !matches!(self, Journal::No)
    }

    /// Whether it can undo something, and is only in memory.
    pub fn is_live_in_memory(&self) -> bool {
        matches!(self, Journal::Memory(bytes) if bytes.starts_with(&MAGIC))
    }

    /// Forgets on the device which super-journal it belongs to, if the last write was the end of that name: those are only in memory,
    /// and named by where the image lies now. What is on the device is undone or not by itself.
    pub fn forget_super(&self, last: &[u8], at: u64) -> Result<()> {
        let Journal::Device(file) = self else { return Ok(()) };
        if last != MAGIC || at < SUPER_TAIL {
            return Ok(());
        }
        let mut len = [0; 4];
        file.read_at(&mut len, at - 8)?;
        file.set_len(at.saturating_sub(SUPER_TAIL + u64::from(u32::from_be_bytes(len))))
    }

    /// The bytes to be put on the device, without the name of a super-journal.
    pub fn stripped(bytes: &[u8]) -> &[u8] {
        let end = bytes.len() - MAGIC.len().min(bytes.len());
        if end < SUPER_TAIL as usize || !bytes.ends_with(&MAGIC) {
            return bytes;
        }
        let len = u32::from_be_bytes(bytes[end - 8..end - 4].try_into().expect("4 bytes")) as usize;
        &bytes[..end.saturating_sub(SUPER_TAIL as usize + len)]
    }

    /// Whether a write at its begin says that there is nothing to undo any more. (A journal begins with its magic, or with zeros that
    /// end the one before.)
    pub fn is_ended_by(&self, from: &[u8], at: u64) -> bool {
        at == 0 && from.len() >= MAGIC.len() && from[..MAGIC.len()] == [0; MAGIC.len()] && !matches!(self, Journal::No)
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> Result<u64> {
        match self {
            Journal::No => Ok(0),
            Journal::Memory(bytes) => Ok(bytes.len() as u64),
            Journal::Device(file) => Ok(file.node().stat()?.size),
        }
    }

    /// Reads, and returns the number of bytes.
    pub fn read(&self, to: &mut [u8], at: u64) -> Result<usize> {
        match self {
            Journal::No => Ok(0),
            Journal::Memory(bytes) => {
                let from = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
                let len = to.len().min(bytes.len() - from);
                to[..len].copy_from_slice(&bytes[from..from + len]);
                Ok(len)
            }
            Journal::Device(file) => file.read_at(to, at),
        }
    }

    /// Writes, and returns the number of bytes.
    pub fn write(&mut self, from: &[u8], at: u64) -> Result<usize> {
        if let Journal::No = self {
            *self = Journal::Memory(Vec::new());
        }
        match self {
            Journal::Device(file) => file.write_at(from, at),
            Journal::Memory(bytes) => {
                let at = usize::try_from(at).expect("a bounded journal");
                if bytes.len() < at + from.len() {
                    bytes.resize(at + from.len(), 0);
                }
                bytes[at..at + from.len()].copy_from_slice(from);
                Ok(from.len())
            }
            Journal::No => unreachable!("just made"),
        }
    }

    /// Sets the length of the journal.
    pub fn set_len(&mut self, len: u64) -> Result<()> {
        match self {
            Journal::No => Ok(()),
            Journal::Memory(bytes) => {
                bytes.resize(usize::try_from(len).expect("a bounded journal"), 0);
                Ok(())
            }
            Journal::Device(file) => file.set_len(len),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_name_of_a_super_journal_is_cut_off() {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([7; 1000]);
        assert_eq!(Journal::stripped(&bytes), bytes);
        let plain = bytes.clone();
        let name = b"/image//db-mj0123";
        bytes.extend(9u32.to_be_bytes());
        bytes.extend(name);
        bytes.extend((name.len() as u32).to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(MAGIC);
        assert_eq!(Journal::stripped(&bytes), plain);
        assert_eq!(Journal::stripped(&MAGIC), MAGIC);
    }

    #[test]
    fn it_lives_from_its_head_to_its_end() {
        let mut journal = Journal::No;
        assert_eq!(journal.write(&MAGIC, 0), Ok(8));
        assert!(journal.is_live_in_memory() && journal.is_ended_by(&[0; 28], 0) && !journal.is_ended_by(&[0; 28], 512));
        assert_eq!(journal.write(&[1, 2], 20), Ok(2));
        let mut read = [9; 4];
        assert_eq!((journal.len(), journal.read(&mut read, 19), read), (Ok(22), Ok(3), [0, 1, 2, 9]));
        assert_eq!((journal.set_len(0), journal.is_live_in_memory(), journal.exists()), (Ok(()), false, true));
    }
}
