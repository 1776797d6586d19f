//! A file that SQLite has open.

use std::sync::Arc;

use parking_lot::Mutex;
use rawfs::fs::File;

use crate::database::Database;
use crate::image::OpenImage;

/// One database is opened or closed at a time: an open sees all that the last connection wrote.
pub static OPEN_LOCK: Mutex<()> = Mutex::new(());

/// A file that SQLite has opened through the VFS.
pub enum OpenedFile {
    /// A connection to a database.
    Database {
        /// Shared with the other connections.
        database: Arc<Database>,
        /// The connection's number.
        who: u64,
        /// It may not write.
        read_only: bool,
        /// The WAL stays when the last connection is closed.
        persist_wal: bool,
        /// SQLite may rely on it that a write harms nothing beside it; true here, and SQLite may wish not to know.
        powersafe: bool,
    },
    /// A rollback journal.
    Journal(Arc<Database>),
    /// A super-journal: what the image has by this path.
    Super {
        /// In the image.
        path: Vec<u8>,
        /// It.
        image: OpenImage,
    },
    /// A WAL.
    Wal {
        /// Its number among the connections.
        who: u64,
        /// It.
        file: File,
        /// Whose it is; behind the file, which it has to outlive.
        database: Arc<Database>,
    },
    /// Any other file.
    File {
        /// It.
        file: File,
        /// Removed when it is closed.
        gone: Option<Vec<u8>>,
        /// Behind the file, which it has to outlive.
        image: OpenImage,
    },
}
