//! `hotshelf why` for a file of a cached mount: how much of it is where.

use std::path::Path;

use anyhow::bail;
use cachedfs::{Residency, ResidencyPart};
use serde_json::{Value, json};

use super::files::AttachedCaches;
use super::size;

const WIDTH: usize = 40;

/// What is known of a file in a cache.
pub struct CachedFileReport {
    path: String,
    below: String,
    cache: String,
    residency: Residency,
}

/// Returns what is known of a file of a cached mount.
pub fn look(caches: &mut AttachedCaches<'_>, path: &Path) -> anyhow::Result<CachedFileReport> {
    let found = caches.find(path)?;
    let file = caches.open(&found, None)?;
    let Some(residency) = file.residency(WIDTH)? else {
        bail!("{} bypasses the cache: a program has mapped it for writing, or its mode is pass-through", path.display());
    };
    Ok(CachedFileReport {
        path: path.display().to_string(),
        below: file.path().display().to_string(),
        cache: found.config.ssd.as_ref().map_or_else(|| found.config.name.clone(), |ssd| ssd.display().to_string()),
        residency,
    })
}

impl CachedFileReport {
    /// Prints the file for people.
    pub fn show(&self) {
        let CachedFileReport { path, below, cache, residency } = self;
        let about = if residency.is_estimated { "about " } else { "" };
        let share = |bytes: u64| 100.0 * bytes as f64 / residency.bytes.max(1) as f64;
        let line = |name: &str, bytes: u64, of: &dyn Fn(&ResidencyPart) -> u64| {
            say!("  {name:8} [{:.<WIDTH$}]  {about}{}, {:.0} %", bar(residency, of), size(bytes), share(bytes));
        };
        say!("{path}: {} in the cache {cache}", size(residency.bytes));
        line("memory", residency.in_memory_bytes, &|part| part.in_memory);
        line("ssd", residency.on_ssd_bytes, &|part| part.on_ssd);
        say!("  dirty    {}", size(residency.dirty_bytes));
        say!("  really   {below}");
    }

    /// Returns the same as JSON.
    pub fn as_json(&self) -> Value {
        let CachedFileReport { path, below, cache, residency } = self;
        json!({
            "path": path,
            "real_path": below,
            "cache": cache,
            "size_bytes": residency.bytes,
            "in_memory_bytes": residency.in_memory_bytes,
            "on_ssd_bytes": residency.on_ssd_bytes,
            "cached_bytes": residency.cached_bytes,
            "dirty_bytes": residency.dirty_bytes,
            "estimated": residency.is_estimated,
        })
    }
}

/// Returns one character for each part: `#` all of it, `+` some, `.` none.
fn bar(residency: &Residency, of: &dyn Fn(&ResidencyPart) -> u64) -> String {
    let cell = |part: &ResidencyPart| match of(part) {
        0 => '.',
        all if all == part.pages => '#',
        _ => '+',
    };
    // A file of fewer pages than cells: each page is as wide as the others.
    let count = residency.parts.len();
    (0..if count == 0 { 0 } else { WIDTH }).filter_map(|at| residency.parts.get(at * count / WIDTH)).map(cell).collect()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_bar_shows_all_some_and_none() {
        let part = |pages, in_memory| ResidencyPart { pages, in_memory, ..ResidencyPart::default() };
        let of = |parts: &[ResidencyPart]| bar(&Residency { parts: parts.to_vec(), ..Residency::default() }, &|part| part.in_memory);
        assert_eq!(of(&[part(2, 2), part(2, 1), part(2, 0), part(1, 1)]), "##########++++++++++..........##########");
        assert_eq!(of(&[part(1, 1); 40]), "#".repeat(40));
        assert_eq!(of(&[]), "");
    }
}
