//! Functions behind a vfio-user socket: a device in another process (libvfio-user's protocol, version 0.1).
//!
//! - [`wire`]: the messages. [`link`]: the socket, with a deadline for every operation. Servers use both, too.
//! - `client`: one request at a time, each with its reply checked. `device`: the three traits on top of it.
//!
//! The server is not trusted: lengths, identifiers, descriptors and areas are checked. Any error ends the connection, and a device
//! without a connection counts as removed (docs/decisions/18-nvme-over-vfio-and-vfio-user.md).

mod client;
mod device;
mod dma;
mod events;
pub mod link;
mod peer;
mod registers;
pub mod wire;

use std::path::PathBuf;
use std::time::Duration;

pub use device::{open, open_with};
pub use link::{Link, LinkError};

/// How a socket is used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserOptions {
    /// How long the server may take to reply. After that it counts as gone.
    pub reply_timeout: Duration,
    /// The maximum number of interrupt vectors; each takes a descriptor on both sides.
    pub vectors_max: u16,
    /// Registers that the server offers as memory are used so.
    pub mapped: bool,
}

impl Default for UserOptions {
    fn default() -> Self {
        UserOptions { reply_timeout: Duration::from_secs(10), vectors_max: 65, mapped: true }
    }
}

/// The reason why a function behind a socket cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// Nobody is there.
    #[error("{}: {error}", socket.display())]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// What the kernel says.
        error: std::io::Error,
    },
    /// The connection failed, or was broken off because of what came.
    #[error("{}: {error}", socket.display())]
    Link {
        /// The socket.
        socket: PathBuf,
        /// What happened.
        error: LinkError,
    },
    /// The server refuses.
    #[error("{}: {what} was refused: {error}", socket.display())]
    Refused {
        /// The socket.
        socket: PathBuf,
        /// The request that the server refused.
        what: &'static str,
        /// Its reason.
        error: std::io::Error,
    },
    /// It is nothing for a driver of PCI devices.
    #[error("{}: {what}", socket.display())]
    Unusable {
        /// The socket.
        socket: PathBuf,
        /// Why.
        what: &'static str,
    },
}
