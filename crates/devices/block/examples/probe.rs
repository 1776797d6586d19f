//! Prints what this machine has of io_uring and NVMe passthrough, and what is missing.

fn main() {
    print!("{}", block::driver::uring::probe::probe());
}
