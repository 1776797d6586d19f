//! Names the shared library for the dynamic linker: programs are linked against this version of the interface.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libhotshelf.so.0");
    // Its exit handler and its completion thread stay: dlclose must not take the code from under them.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
