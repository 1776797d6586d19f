//! What lies on a device or in a file, by the marks that file systems and their kind leave: for refusals that say what would be lost.

use std::io;

/// The name of our own.
pub(super) const OURS: &str = "a hotshelf cache";

/// Offset, bytes, name. From libblkid's tables and the formats' own documents.
const KNOWN: &[(usize, &[u8], &str)] = &[
    (0, b"hssc", OURS),
    (4096, b"hssc", OURS),
    (0, b"hsfS", "a hotshelf file system"),
    (0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
    (0, b"XFSB", "an XFS file system"),
    (3, b"NTFS    ", "an NTFS file system"),
    (512, b"EFI PART", "a partition table (GPT)"),
    (536, b"LVM2 001", "a physical volume of LVM"),
    (1024, b"\x10\x20\xf5\xf2", "an F2FS file system"),
    (1080, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (4086, b"SWAPSPACE2", "swap space"),
    (4096, b"\xfc\x4e\x2b\xa9", "part of a RAID (md)"),
    (0, b"\xfc\x4e\x2b\xa9", "part of a RAID (md)"),
    (4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf7\x57\x7f\x48\xba\x6d", "a bcache device"),
    (4120, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef", "a bcachefs file system"),
    (32769, b"CD001", "a CD image"),
    (65600, b"_BHRfS_M", "a Btrfs file system"),
    (510, b"\x55\xaa", "a partition table or boot sector"),
];

/// How much is looked at, at the begin and at the end: GPT and some RAIDs have a mark there, ZFS in both.
const LOOKED_AT: u64 = 1 << 20;

/// What is there, of so many bytes; none: zeroes.
pub(super) fn find(bytes: u64, read_at: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>) -> io::Result<Option<&'static str>> {
    let mut begin = vec![0; LOOKED_AT.min(bytes) as usize];
    read_at(0, &mut begin)?;
    if let Some(name) = name(&begin) {
        return Ok(Some(name));
    }
    let mut end = vec![0; LOOKED_AT.min(bytes) as usize];
    let at = bytes - end.len() as u64;
    read_at(at, &mut end)?;
    let is_empty = begin.iter().chain(&end).all(|byte| *byte == 0);
    Ok((!is_empty).then_some("data of a kind that hotshelf does not know"))
}

fn name(begin: &[u8]) -> Option<&'static str> {
    let found = KNOWN.iter().find(|(at, mark, _)| begin.get(*at..at + mark.len()) == Some(*mark));
    found.map(|(_, _, name)| *name)
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn each_mark_is_found_and_zeroes_are_nothing() {
        let file = tempfile::tempfile().expect("a file");
        let find = |bytes| super::find(bytes, &mut |at, to| file.read_exact_at(to, at));
        for (at, mark, name) in KNOWN {
            file.set_len(0).expect("emptied");
            file.set_len(3 << 20).expect("sized");
            assert_eq!(find(3 << 20).expect("read"), None);
            file.write_all_at(mark, *at as u64).expect("written");
            assert_eq!(find(3 << 20).expect("read"), Some(*name));
        }
        for at in [700_000, (3 << 20) - 1] {
            file.set_len(0).expect("emptied");
            file.set_len(3 << 20).expect("sized");
            file.write_all_at(b"x", at).expect("written");
            assert!(find(3 << 20).expect("read").is_some_and(|name| name.contains("does not know")), "{at}");
        }
        assert_eq!(find(0).expect("nothing to read"), None);
    }
}
