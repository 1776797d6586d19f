//! Names the shared library for the dynamic linker: programs ask for this version of the interface.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libhotshelf.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
