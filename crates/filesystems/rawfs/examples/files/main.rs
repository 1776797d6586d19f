//! Figures of a file system with very many files, through `rawfs::fs`: making them, opening it after a clean end and after a crash,
//! looking them up with nothing in memory, renaming the directory that has all of them, and the memory that takes.
//!
//! `cargo run --release -p rawfs --example files [FILES [IMAGE]]` (1,000,000 in a temporary file; `TMPDIR=/dev/shm` for one in memory)

mod figures;

fn main() {
    let mut args = std::env::args().skip(1);
    let files = args.next().map_or(1_000_000, |files| files.parse().expect("a number of files"));
    let temporary = tempfile::NamedTempFile::new().expect("a file");
    let image = args.next().map_or_else(|| temporary.path().to_owned(), Into::into);
    figures::all(files, &image);
}
