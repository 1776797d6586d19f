//! One commit of several databases of an image.

use std::sync::Arc;

use libsqlite3_sys as sys;
use rawfs::fs::Error;

use super::Database;
use crate::error::{Outcome, VfsError};
use crate::image::Image;

/// Commits databases of one image together, as far as what they changed is in memory; the others follow each by itself.
pub fn commit_together(image: &Image, databases: &[Arc<Database>]) -> Outcome<()> {
    let fault = || VfsError::of(sys::SQLITE_IOERR_WRITE, format!("{}: committing several databases", image.name.display()));
    let mut all = image.fs.begin();
    let mut parts: Vec<_> = databases.iter().map(|database| (database, database.inner.write())).collect();
    parts.retain(|(_, inner)| inner.journal.is_live_in_memory());
    for (database, inner) in &parts {
        inner.pending.gather(&database.file, &mut all).map_err(fault())?;
    }
    match image.fs.apply(&all) {
        // Too much for one transaction of the file system.
        Err(Error::Store(rawfs::Error::TooLarge(_))) => return Ok(()),
        outcome => outcome.map_err(fault())?,
    };
    let mut durable = false;
    for (database, inner) in &mut parts {
        inner.pending.applied(&database.file);
        inner.touched = true;
        database.keep_reserve(inner);
        durable |= inner.durable;
    }
    let store = image.fs.store();
    let synced = if durable { store.sync(store.applied()).map_err(Error::from).map_err(fault()) } else { Ok(()) };
    for (_, inner) in &mut parts {
        if synced.is_err() {
            // SQLite undoes each by its journal.
            inner.failed = true;
        } else {
            inner.durable = false;
            inner.ends();
            inner.journal.set_len(0).map_err(fault())?;
        }
    }
    synced
}
