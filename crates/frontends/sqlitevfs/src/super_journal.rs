//! Super-journals: each names the journals of the databases that one transaction changes.

use std::sync::Arc;

use crate::database::{Database, commit_together};
use crate::databases;
use crate::error::Outcome;
use crate::image::Image;
use crate::name;

/// Removes a super-journal, which commits the transactions of all databases it names; `false`: there is none.
pub fn remove(image: &Image, path: &[u8]) -> Outcome<bool> {
    let Some(names) = image.supers.lock().get(path).cloned() else { return Ok(false) };
    let journals = names.split(|byte| *byte == 0).filter_map(name::parts).filter(|(of_image, _)| *of_image == image.name);
    let mut paths: Vec<&[u8]> = journals.filter_map(|(_, path)| path.strip_suffix(b"-journal")).collect();
    paths.sort_unstable();
    paths.dedup();
    let together: Vec<Arc<Database>> = paths.iter().filter_map(|path| databases::find(image, path)).collect();
    commit_together(image, &together)?;
    Ok(image.supers.lock().remove(path).is_some())
}
