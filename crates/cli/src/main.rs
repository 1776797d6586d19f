//! hotshelf.
fn main() {}
