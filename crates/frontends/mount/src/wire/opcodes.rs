//! The numbers of the kernel's requests (`fuse_opcode`).

/// Operation code of a LOOKUP request.
pub const LOOKUP: u32 = 1;
/// Operation code of a FORGET request.
pub const FORGET: u32 = 2;
/// Operation code of a GETATTR request.
pub const GETATTR: u32 = 3;
/// Operation code of a SETATTR request.
pub const SETATTR: u32 = 4;
/// Operation code of a READLINK request.
pub const READLINK: u32 = 5;
/// Operation code of a SYMLINK request.
pub const SYMLINK: u32 = 6;
/// Operation code of a MKNOD request.
pub const MKNOD: u32 = 8;
/// Operation code of a MKDIR request.
pub const MKDIR: u32 = 9;
/// Operation code of a UNLINK request.
pub const UNLINK: u32 = 10;
/// Operation code of a RMDIR request.
pub const RMDIR: u32 = 11;
/// Operation code of a RENAME request.
pub const RENAME: u32 = 12;
/// Operation code of a LINK request.
pub const LINK: u32 = 13;
/// Operation code of a OPEN request.
pub const OPEN: u32 = 14;
/// Operation code of a READ request.
pub const READ: u32 = 15;
/// Operation code of a WRITE request.
pub const WRITE: u32 = 16;
/// Operation code of a STATFS request.
pub const STATFS: u32 = 17;
/// Operation code of a RELEASE request.
pub const RELEASE: u32 = 18;
/// Operation code of a FSYNC request.
pub const FSYNC: u32 = 20;
/// Operation code of a SETXATTR request.
pub const SETXATTR: u32 = 21;
/// Operation code of a GETXATTR request.
pub const GETXATTR: u32 = 22;
/// Operation code of a LISTXATTR request.
pub const LISTXATTR: u32 = 23;
/// Operation code of a REMOVEXATTR request.
pub const REMOVEXATTR: u32 = 24;
/// Operation code of a FLUSH request.
pub const FLUSH: u32 = 25;
/// Operation code of a OPENDIR request.
pub const OPENDIR: u32 = 27;
/// Operation code of a READDIR request.
pub const READDIR: u32 = 28;
/// Operation code of a RELEASEDIR request.
pub const RELEASEDIR: u32 = 29;
/// Operation code of a FSYNCDIR request.
pub const FSYNCDIR: u32 = 30;
/// Operation code of a GETLK request.
pub const GETLK: u32 = 31;
/// Operation code of a SETLK request.
pub const SETLK: u32 = 32;
/// Operation code of a SETLKW request.
pub const SETLKW: u32 = 33;
/// Operation code of a ACCESS request.
pub const ACCESS: u32 = 34;
/// Operation code of a CREATE request.
pub const CREATE: u32 = 35;
/// Operation code of a INTERRUPT request.
pub const INTERRUPT: u32 = 36;
/// Operation code of a BMAP request.
pub const BMAP: u32 = 37;
/// Operation code of a DESTROY request.
pub const DESTROY: u32 = 38;
/// Operation code of a IOCTL request.
pub const IOCTL: u32 = 39;
/// Operation code of a POLL request.
pub const POLL: u32 = 40;
/// Operation code of a BATCH_FORGET request.
pub const BATCH_FORGET: u32 = 42;
/// Operation code of a FALLOCATE request.
pub const FALLOCATE: u32 = 43;
/// Operation code of a READDIRPLUS request.
pub const READDIRPLUS: u32 = 44;
/// Operation code of a RENAME2 request.
pub const RENAME2: u32 = 45;
/// Operation code of a LSEEK request.
pub const LSEEK: u32 = 46;
/// Operation code of a COPY_FILE_RANGE request.
pub const COPY_FILE_RANGE: u32 = 47;

/// How many bytes of a request are arguments of fixed size, of those whose arguments we read. Names and data come behind them.
pub fn args_len(opcode: u32) -> usize {
    match opcode {
        FORGET | MKDIR | RENAME | LINK | OPEN | OPENDIR | SETXATTR | GETXATTR | LISTXATTR | ACCESS | INTERRUPT | BATCH_FORGET => 8,
        GETATTR | MKNOD | FSYNC | FSYNCDIR | CREATE | RENAME2 => 16,
        FLUSH | RELEASE | RELEASEDIR | LSEEK => 24,
        FALLOCATE => 32,
        READ | WRITE | READDIR | READDIRPLUS => 40,
        COPY_FILE_RANGE => 56,
        SETATTR => 88,
        _ => 0,
    }
}

/// Returns whether a request only looks at names and attributes, which may be in memory.
pub fn only_looks(opcode: u32) -> bool {
    matches!(opcode, LOOKUP | GETATTR | READLINK | OPEN | OPENDIR | READDIR | READDIRPLUS | GETXATTR | LISTXATTR)
}
