//! Functions of PCI devices from user space: the base of a driver such as `nvme`.
//!
//! [`function`]: registers, memory and interrupts by three traits. Each implementation gives access to devices: [`vfio`], hardware
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
