//! The SSD's metadata of each file: one page of its log per file, of file key 0, at the file's key modulo 2^33.
//!
//! ```text
//!  0 magic    8 key     16 size            24 mtime   32 ctime   40 stamp's size
//! 48 flags: 1 we write to it, 2 truncated, 4 written through     52 length of the path   56 path   1024 truncated to
//! ```
//!
//! The log verifies the page's checksum. Two files whose keys share one place take turns: the file without an entry has no pages.

use std::path::{Path, PathBuf};

use ssdcache::{FileKey, PAGE_BYTES, PAGE_INDEX_END, Page, PageIndex};

use super::record::PATH_MAX;
use super::stamp::Stamp;

/// Offset after the longest path.
const CUT: usize = 1024;
const _: () = assert!(56 + PATH_MAX <= CUT);
const MAGIC: u64 = u64::from_le_bytes(*b"hs-file1");
/// Stands for a truncation that is durable in the backing file: only the SSD may still have bytes behind the end of the file.
pub const CUT_BELOW: u64 = u64::MAX;
/// The key of the file that holds the catalogue's pages.
pub const CATALOGUE: FileKey = FileKey(0);

/// The catalogue entry of one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The key of the file.
    pub key: FileKey,
    /// The path of the file at its last open.
    pub path: PathBuf,
    /// The length of the file, which may be beyond the backing file's end while pages are dirty.
    pub size: u64,
    /// The stamp of the backing file at our last check.
    pub stamp: Stamp,
    /// Whether the cache may have written to the backing file since.
    pub writing: bool,
    /// The length of a truncation of the backing file that is done or about to be, and may not be durable; or [`CUT_BELOW`].
    pub cut: Option<u64>,
    /// Whether the file is being written through or around: clean pages on the SSD may be older than the backing file.
    pub through: bool,
}

/// Returns the page of the catalogue that holds a file's entry.
pub fn place(key: FileKey) -> PageIndex {
    PageIndex(key.0 & (PAGE_INDEX_END - 1))
}

impl Entry {
    /// Returns whether the cache does nothing to the backing file that the entry has to record.
    pub(crate) fn is_settled(&self) -> bool {
        !self.writing && !self.through && self.cut.is_none()
    }

    /// Returns whether a power failure may undo a truncation of the backing file.
    pub(crate) fn owes_cut(&self) -> bool {
        self.cut.is_some_and(|cut| cut != CUT_BELOW)
    }

    /// Returns the entry as a page for the log.
    pub fn encode(&self) -> Box<Page> {
        use std::os::unix::ffi::OsStrExt;
        let mut page = Box::new([0; PAGE_BYTES]);
        let words = [MAGIC, self.key.0, self.size, self.stamp.mtime as u64, self.stamp.ctime as u64, self.stamp.size];
        for (n, word) in words.into_iter().enumerate() {
            page[8 * n..8 * n + 8].copy_from_slice(&word.to_le_bytes());
        }
        page[CUT..CUT + 8].copy_from_slice(&self.cut.unwrap_or(0).to_le_bytes());
        let path = self.path.as_os_str().as_bytes();
        let path = &path[..path.len().min(PATH_MAX)];
        page[48] = u8::from(self.writing) | u8::from(self.cut.is_some()) << 1 | u8::from(self.through) << 2;
        page[52..56].copy_from_slice(&(path.len() as u32).to_le_bytes());
        page[56..56 + path.len()].copy_from_slice(path);
        page
    }

    /// Returns the entry of a page. None: the page holds no valid entry.
    pub fn decode(page: &Page) -> Option<Entry> {
        use std::os::unix::ffi::OsStrExt;
        let word = |n: usize| u64::from_le_bytes(page[8 * n..8 * n + 8].try_into().expect("eight"));
        let length = u32::from_le_bytes(page[52..56].try_into().expect("four")) as usize;
        if word(0) != MAGIC || word(1) == 0 || length > PATH_MAX {
            return None;
        }
        let path = Path::new(std::ffi::OsStr::from_bytes(&page[56..56 + length])).to_owned();
        let stamp = Stamp { size: word(5), mtime: word(3) as i64, ctime: word(4) as i64 };
        let [writing, is_cut, through] = [1, 2, 4].map(|bit| page[48] & bit != 0);
        let cut = is_cut.then(|| u64::from_le_bytes(page[CUT..CUT + 8].try_into().expect("eight")));
        Some(Entry { key: FileKey(word(1)), path, size: word(2), stamp, writing, cut, through })
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let stamp = Stamp { size: 7, mtime: -5, ctime: 9 };
        let entry = Entry { key: FileKey(u64::MAX), path: "/a/b".into(), size: 1 << 40, stamp, writing: true, cut: Some(3), through: true };
        assert_eq!(Entry::decode(&entry.encode()), Some(entry.clone()));
        let mut page = entry.encode();
        page[55] = 1;
        assert_eq!(Entry::decode(&page), None, "a path longer than there is room for");
        assert_eq!(Entry::decode(&[0; PAGE_BYTES]), None);
    }
}
