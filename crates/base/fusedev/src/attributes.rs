//! The change of a file's attributes in a request.

/// The new value of a timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The moment of the call.
    Now,
    /// Seconds and nanoseconds since 1970.
    At(i64, u32),
}

/// The attributes to change; `None` leaves an attribute unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SetAttr {
    /// New permission bits of the file.
    pub mode: Option<u32>,
    /// New user ID of the owner.
    pub uid: Option<u32>,
    /// New group ID of the file.
    pub gid: Option<u32>,
    /// New size of the file in bytes.
    pub size: Option<u64>,
    /// New time of the last access.
    pub atime: Option<SetTime>,
    /// New time of the last change of the data.
    pub mtime: Option<SetTime>,
    /// Whether the caller of a truncation may not keep set-ID bits (the kernel has checked its capabilities).
    pub kill_set_id: bool,
}

impl SetAttr {
    /// Returns whether the request changes no attribute. The kernel sends such requests for `chown(path, -1, -1)`, and before a write
    /// that removes set-ID bits.
    pub fn changes_nothing(&self) -> bool {
        let SetAttr { mode, uid, gid, size, atime, mtime, kill_set_id: _ } = self;
        mode.is_none() && uid.is_none() && gid.is_none() && size.is_none() && atime.is_none() && mtime.is_none()
    }
}
