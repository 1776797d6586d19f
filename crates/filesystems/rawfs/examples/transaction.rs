//! Applies a batch to the key-value store of a file system, and reads it after the store was opened again:
//! `cargo run -p rawfs --example transaction`.
#![forbid(unsafe_code)]

use std::error::Error;

use block::driver::MemoryDevice;
use rawfs::{Batch, Disk, DiskSettings, FormatOptions, Settings, Store, TreeId};

fn main() -> Result<(), Box<dyn Error>> {
    let device = MemoryDevice::new(512, 64 << 20)?;
    Store::format(&Disk::open(&device, &DiskSettings::default())?, &FormatOptions::default())?;

    let (store, _) = Store::open(Disk::open(&device, &DiskSettings::default())?, &Settings::default())?;
    // After a power cut all changes of a batch exist, or none.
    let mut batch = Batch::new();
    batch.put(TreeId::Names, b"key 1", b"value 1");
    batch.put(TreeId::Names, b"key 2", b"value 2");
    store.apply(batch)?;
    store.close()?;

    let (store, recovery) = Store::open(Disk::open(&device, &DiskSettings::default())?, &Settings::default())?;
    let value = store.get_with(TreeId::Names, b"key 2", |value| String::from_utf8_lossy(value).into_owned())?;
    println!("recovery: {recovery:?}; key 2: {value:?}");
    store.close()?;
    Ok(())
}
