//! Which file is evicted from the SSD next (HyCache, section IV.B).
//!
//! It keeps metadata only: no I/O, no clock (callers pass times), no threads. The mover requests a victim; the
//! file system reports files that were opened, created and removed. LRU, LFU, FIFO and S3-FIFO are built in; a
//! user's own policy is loaded from a shared object (see [`plugin`]).

mod fifo;
mod ghost;
mod lfu;
mod list;
mod lru;
#[cfg(test)]
mod oracle;
pub mod plugin;
mod s3fifo;

pub use fifo::Fifo;
pub use ghost::Ghost;
pub use lfu::Lfu;
pub use lru::Lru;
pub use plugin::PolicyError;
pub use s3fifo::S3Fifo;

/// A file, by the number users of the mount see.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct FileId(pub u64);

/// What is remembered of one file on the SSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number of the file that is recorded.
    pub file: FileId,
    /// Size of the file in bytes.
    pub size: u64,
    /// Last open, seconds since 1970.
    pub last_open_s: u32,
    /// Number of opens; stops at the largest value, and `lfu` halves it as it ages.
    pub opens: u16,
}

/// Decides the order in which files are evicted from the SSD.
pub trait Policy: Send {
    /// Returns the name that `status` shows.
    fn name(&self) -> &str;
    /// A file is on the SSD (made, promoted or found). One that is known already is only resized.
    fn insert(&mut self, record: Record);
    /// A file was opened. Unknown files are ignored.
    fn touch(&mut self, file: FileId, now_s: u32);
    /// A file has another size. Unknown files are ignored.
    fn resize(&mut self, file: FileId, size: u64);
    /// A file left the SSD.
    fn remove(&mut self, file: FileId);
    /// Returns the next file to evict for which `usable` holds. `usable` is called for at most `limit` files. The victim stays
    /// known until `remove`.
    fn victim(&mut self, limit: usize, usable: &mut dyn FnMut(FileId) -> bool) -> Option<FileId>;
    /// Returns the record of a file, if it is known.
    fn record(&self, file: FileId) -> Option<Record>;
    /// Estimates a file's position in the eviction order: 0.0 is evicted next, 1.0 last. No file has less than the next one.
    /// For diagnostics: may visit every file.
    fn rank(&self, file: FileId) -> Option<f64>;
    /// Returns the number of known files.
    fn len(&self) -> usize;
    /// Returns whether no file is known.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Exports every record, the next victim first. Inserted in this order into an empty policy of the same name, they
    /// leave in the same order, as far as records can tell: those of `s3-fifo` know nothing of rounds, and those of a
    /// plug-in come by last open, because its own order is not available in bounded time.
    fn export(&self, each: &mut dyn FnMut(Record));
}

/// Names of the policies that [`by_name`] creates without a shared object.
pub const BUILT_IN: &[&str] = &["lru", "lfu", "fifo", "s3-fifo"];

/// A built-in policy, or one loaded from a path that ends in `.so` or has a slash in it.
pub fn by_name(name: &str) -> Result<Box<dyn Policy>, PolicyError> {
    match name {
        "lru" => Ok(Box::new(Lru::new())),
        "lfu" => Ok(Box::new(Lfu::new())),
        "fifo" => Ok(Box::new(Fifo::new())),
        "s3-fifo" => Ok(Box::new(S3Fifo::new())),
        path if path.contains('/') || path.ends_with(".so") => Ok(Box::new(plugin::Plugin::load(path.as_ref())?)),
        other => Err(PolicyError::Unknown { name: other.to_owned() }),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn each_name_gives_its_policy() {
        for name in BUILT_IN {
            let policy = by_name(name).expect("built in");
            assert_eq!(policy.name(), *name);
            assert!(policy.is_empty());
        }
    }

    #[test]
    fn other_names_say_what_there_is() {
        let error = by_name("clairvoyant").err().expect("not built in");
        assert!(matches!(&error, PolicyError::Unknown { name } if name == "clairvoyant"));
        assert!(BUILT_IN.iter().all(|name| error.to_string().contains(name)), "{error}");
        assert!(matches!(by_name("./lru"), Err(PolicyError::File { .. })));
        assert!(matches!(by_name("lru.so"), Err(PolicyError::File { .. })));
    }
}
