//! Functions of PCI devices from user space: what a driver such as `nvme` stands on.
//!
//! [`function`]: registers, memory and interrupts by three traits. Whoever implements them is a way to a device.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod function;

pub use function::{DeviceAddress, DmaError, DmaSpace, Function, IrqSource, Mmio};
