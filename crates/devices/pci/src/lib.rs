//! Functions of PCI devices from user space: what a driver such as `nvme` stands on.
//!
//! [`function`]: registers, memory and interrupts by three traits. Whoever implements them is a way to a device: [`vfio`], hardware
//! through the kernel's VFIO; [`user`], devices in another process, behind a vfio-user socket. [`address`], [`sysfs`]: where
//! functions are, and what the kernel reports about them.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod address;
pub mod function;
pub mod sysfs;
pub mod user;
pub mod vfio;

pub use address::{Address, BadAddress};
pub use function::{DeviceAddress, DmaError, DmaSpace, Function, IrqSource, Mmio};
