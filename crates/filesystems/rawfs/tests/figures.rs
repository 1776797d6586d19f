//! The figures of many files are measured with few here, to see that they can be: `examples/files`.

#[path = "../examples/files/figures.rs"]
mod figures;

#[test]
fn the_figures_of_many_files_can_be_measured() {
    let full = std::env::var_os("FULL").is_some_and(|full| full == "1");
    let image = tempfile::NamedTempFile::new().expect("a file");
    figures::all(if full { 200_000 } else { 2_000 }, image.path());
}
