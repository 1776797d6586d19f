//! The databases that this process has open: each once, for all of its connections.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use libsqlite3_sys as sys;
use parking_lot::Mutex;

use crate::database::Database;
use crate::error::{Outcome, VfsError};
use crate::image::{Image, OpenImage};

type ImageDatabases = BTreeMap<Vec<u8>, Weak<Database>>;

/// By the name of the image, then by the path in it.
static DATABASES: Mutex<BTreeMap<PathBuf, ImageDatabases>> = Mutex::new(BTreeMap::new());

/// Returns the database in use at a path.
pub fn find(image: &Image, path: &[u8]) -> Option<Arc<Database>> {
    DATABASES.lock().get(&image.name)?.get(path).and_then(Weak::upgrade)
}

/// Returns the database in use to which a file with this ending belongs.
pub fn find_owner(image: &Image, path: &[u8], ending: &[u8]) -> Option<Arc<Database>> {
    find(image, path.strip_suffix(ending)?)
}

/// Returns the database in use whose rollback journal this is.
pub fn find_by_journal(image: &Image, path: &[u8]) -> Option<Arc<Database>> {
    find_owner(image, path, b"-journal")
}

/// Opens the database at a path, unless it is in use. The caller holds the lock of opens.
pub fn open(image: OpenImage, path: &[u8], flags: c_int) -> Outcome<Arc<Database>> {
    if let Some(database) = find(&image, path) {
        return Ok(database);
    }
    let shown = format!("{}/{}", image.name.display(), String::from_utf8_lossy(path));
    // Others of this process may write, whatever this connection may.
    let file =
        image.open_file(path, image.flags(flags & !sys::SQLITE_OPEN_READONLY)).map_err(VfsError::of(sys::SQLITE_CANTOPEN, &*shown))?;
    if is_in_use(&image, file.node().ino()) {
        return Err(VfsError::new(sys::SQLITE_CANTOPEN, format!("{shown} is open by another name: use one for all connections")));
    }
    let name = image.name.clone();
    let database = Arc::new(Database::new(image, path.to_vec(), file)?);
    let mut databases = DATABASES.lock();
    databases.values_mut().for_each(|of_image| of_image.retain(|_, database| database.strong_count() > 0));
    databases.retain(|_, of_image| !of_image.is_empty());
    databases.entry(name).or_default().insert(path.to_vec(), Arc::downgrade(&database));
    Ok(database)
}

/// Whether a database of the image has the file of this number.
fn is_in_use(image: &Image, ino: u64) -> bool {
    let databases: Vec<Arc<Database>> =
        DATABASES.lock().get(&image.name).map(|of_image| of_image.values().filter_map(Weak::upgrade).collect()).unwrap_or_default();
    databases.iter().any(|database| database.ino() == ino)
}
