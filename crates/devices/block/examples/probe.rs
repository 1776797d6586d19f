//! Prints the support for io_uring and NVMe passthrough on this machine, and what is missing.

fn main() {
    print!("{}", block::driver::uring::probe::probe());
}
