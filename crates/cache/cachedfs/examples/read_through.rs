//! Reads a file through the page cache: `cargo run -p cachedfs --example read_through -- FILE [CONFIG]`.
//!
//! CONFIG is a file with a table `[cache]`. Without it the process attaches to the user's default cache: memory, no SSD.
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;

use cachedfs::{Config, Instance, Options};
use rustix::fs::OFlags;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let path = arguments.next().ok_or("name a file")?;
    let config = arguments.next().map(|config| Config::read(Path::new(&config))).transpose()?.unwrap_or_default();
    let cache = Instance::open(&config)?;
    let file = cache.open_file(rustix::fs::CWD, Path::new(&path), OFlags::RDONLY | OFlags::CLOEXEC, 0o600.into(), &Options::default())?;
    // The second pass is served from memory, without a system call.
    for pass in 1..=2 {
        let (mut buffer, mut offset) = ([0; 4096], 0);
        loop {
            let count = file.read_at(offset, &mut buffer)?;
            if count == 0 {
                break;
            }
            offset += count as u64;
        }
        println!("pass {pass}: {offset} bytes");
    }
    file.close()?;
    cache.detach()?;
    Ok(())
}
