//! Files through the cache from Rust: cargo run -p stack --example files -- FILE [CONFIG]
//!
//! Appends a line to FILE, makes it durable, and shows the first bytes from the cache. CONFIG is a file with a table `[cache]`; without it
//! the user's default cache is used, in a quarter of the memory.
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;

use stack::cachedfs::{Config, Options};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let path = arguments.next().ok_or("which file?")?;
    let config = arguments.next().map(|config| Config::read(Path::new(&config))).transpose()?.unwrap_or_default();
    let cache = stack::open_cache(&config)?;
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CREATE | rustix::fs::OFlags::CLOEXEC;
    let file = cache.open_file(rustix::fs::CWD, Path::new(&path), flags, 0o600.into(), &Options::default())?;
    let at = file.append(b"one more line\n")?;
    file.sync(false)?;
    let mut begin = [0; 32];
    let got = file.read_at(0, &mut begin)?;
    println!("written at {at}; the file begins with {:?}", String::from_utf8_lossy(&begin[..got]));
    println!("pages in memory: {}", cache.status().memory.pages);
    file.close()?;
    cache.detach()?;
    Ok(())
}
