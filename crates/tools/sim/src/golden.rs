//! Golden images: stored copies of every released on-disk format, which tests open and compare with a stored listing.
//!
//! They are in tests/golden, in a folder for each release, compressed by gzip. With `MAKE_GOLDEN=1` in the environment the tests
//! write the images of the current release anew instead (docs/formats.md, "Add a version of a format").

use std::io::{Read, Write};
use std::path::PathBuf;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

/// The release whose images `MAKE_GOLDEN=1` writes.
pub const CURRENT: &str = "0.1";

/// Every release with stored images, oldest first.
pub const RELEASES: &[&str] = &[CURRENT];

/// Reports whether the tests have to write the images of [`CURRENT`] instead of comparing them.
pub fn is_made_anew() -> bool {
    std::env::var_os("MAKE_GOLDEN").is_some_and(|value| value == "1")
}

fn path(release: &str, name: &str) -> PathBuf {
    let workspace = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../..");
    workspace.join("tests/golden").join(release).join(format!("{name}.gz"))
}

/// Returns the content of a stored file.
///
/// # Panics
/// Panics if the file is missing or damaged: a golden image is part of the repository.
pub fn load(release: &str, name: &str) -> Vec<u8> {
    let path = path(release, name);
    let file = std::fs::File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut bytes = Vec::new();
    GzDecoder::new(file).read_to_end(&mut bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    bytes
}

/// Stores a file of the [`CURRENT`] release.
///
/// # Panics
/// Panics if the file cannot be written.
pub fn store(name: &str, bytes: &[u8]) {
    let path = path(CURRENT, name);
    let write = || -> std::io::Result<()> {
        std::fs::create_dir_all(path.parent().expect("a folder"))?;
        let mut encoder = GzEncoder::new(std::fs::File::create(&path)?, Compression::best());
        encoder.write_all(bytes)?;
        encoder.finish()?.sync_all()
    };
    write().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Compares a listing with the stored one of the same name, line by line.
///
/// # Panics
/// Panics at the first line that differs.
pub fn compare(release: &str, name: &str, listing: &[String]) {
    let stored = String::from_utf8(load(release, name)).expect("text");
    for (n, (stored, found)) in stored.lines().zip(listing).enumerate() {
        assert_eq!(found, stored, "release {release}, {name}, line {}", n + 1);
    }
    assert_eq!(listing.len(), stored.lines().count(), "release {release}, {name}: lines");
}
