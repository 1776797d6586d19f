//! The attributes of a backing file by which changes are detected.

/// The attributes that show whether another program changed a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stamp {
    /// The size of the file, bytes.
    pub size: u64,
    /// Modification time, ns since 1970.
    pub mtime: i64,
    /// Change time, ns since 1970.
    pub ctime: i64,
}

impl Stamp {
    /// A stamp that no file has.
    pub(crate) const NEVER: Stamp = Stamp { size: u64::MAX, mtime: i64::MIN, ctime: i64::MIN };
}
