//! Prints what a namespace of an NVMe controller is: `cargo run -p nvme --example identify -- NAME`.
//!
//! NAME is `nvme:0000:03:00.0/1` for a drive that is bound to vfio-pci (`hotshelf nvme bind`), or `vfio-user:SOCKET/1` for a controller
//! that another process serves.
#![forbid(unsafe_code)]

use std::error::Error;

use block::Device;
use nvme::FunctionName;

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).ok_or("name a controller: nvme:0000:03:00.0/1 or vfio-user:SOCKET/1")?;
    let (function, number) = FunctionName::parse(&name).ok_or("no name of a controller")?;
    let namespace = nvme::named::open_namespace(&function, number, None)?;
    let geometry = namespace.geometry();
    println!("namespace {number}: {} blocks of {} bytes", geometry.bytes() / u64::from(geometry.block_bytes), geometry.block_bytes);
    Ok(())
}
