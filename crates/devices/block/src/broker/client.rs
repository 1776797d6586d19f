//! The client side of the broker: the connection and the device.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use shm::Region;

use super::client_queue::BrokerQueue;
use super::connection::{BrokerError, Connection, ask};
use super::entry::Layout;
use super::grant::{GrantId, GrantSpec, Wish};
use super::protocol::{ANSWER_BYTES_MAX, BrokerRequest, QueueStat, Reply, Talk, VERSION};
use super::refusal::Refusal;
use crate::buffer::Arena;
use crate::device::{Device, OpenError, QueueOptions};
use crate::geometry::Geometry;
use crate::queue::Queue;

/// Returns the socket of a broker that this user runs: `hotshelf/queues.sock` in `/run` for root, else in `$XDG_RUNTIME_DIR`.
pub fn own_socket() -> PathBuf {
    let runtime = shm::environment::absolute_path("XDG_RUNTIME_DIR").filter(|_| !rustix::process::geteuid().is_root());
    runtime.unwrap_or_else(|| "/run".into()).join("hotshelf/queues.sock")
}

/// Returns the socket that a client tries: that of a broker run by its user if it exists, else that of the system's broker.
pub fn default_socket() -> PathBuf {
    let own = own_socket();
    if own.exists() { own } else { "/run/hotshelf/queues.sock".into() }
}

/// The options of a connection: the broker, the device and its blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectOptions {
    /// The path of the broker's socket.
    pub socket: PathBuf,
    /// The name of the device in the broker.
    pub device: String,
    /// The first block and the number of blocks; `None` selects all blocks of one grant.
    pub range: Option<(u64, u64)>,
    /// Whether the client only reads; writes are then refused.
    pub read_only: bool,
    /// The size of [`BrokerDevice::arena`], in bytes.
    pub arena_bytes: usize,
    /// The longest time to wait for a reply, after which the broker counts as gone; `None` waits without limit.
    pub reply_timeout: Option<Duration>,
}

/// A window of a device that the broker owns, presented as a device: its block 0 is the first block of the window.
///
/// A connection and all objects of this device belong to one process: a child made by `fork` must open its own.
#[derive(Debug)]
pub struct BrokerDevice {
    connection: Arc<Connection>,
    geometry: Geometry,
    arena: Arena,
}

impl BrokerDevice {
    /// Connects to the broker and opens the window, without opening a queue.
    ///
    /// # Errors
    /// Fails if the broker cannot be reached or refuses.
    pub fn connect(options: &ConnectOptions) -> Result<BrokerDevice, BrokerError> {
        let mut admin = Admin::connect(&options.socket)?;
        admin.talk.stream().set_read_timeout(options.reply_timeout).map_err(BrokerError::Gone)?;
        let wish = Wish { device: options.device.clone(), range: options.range, read_only: options.read_only };
        let Reply::Opened { geometry, .. } = admin.ask(&BrokerRequest::Open { version: VERSION, wish })? else {
            return Err(BrokerError::Nonsense("no window"));
        };
        let region = Region::shared("hotshelf-arena", options.arena_bytes).map_err(BrokerError::Memory)?;
        let arena = Arena::over(Arc::new(region));
        let connection = Arc::new(Connection::new(admin.talk));
        connection.register(&arena)?;
        Ok(BrokerDevice { connection, geometry: geometry.into(), arena })
    }

    /// Returns the memory that is registered with every queue of this device.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Opens a queue of `depth` requests, and returns it by its concrete type.
    ///
    /// # Errors
    /// Fails if the broker refuses or is gone.
    pub fn open_queue(&self, depth: u32) -> Result<BrokerQueue, BrokerError> {
        if !depth.is_power_of_two() || depth > 4096 {
            return Err(Refusal::BadDepth { depth }.into());
        }
        let layout = Layout::new(depth);
        let (queue, rings, bell) = self.connection.open_queue(depth)?;
        let region = Region::attach(rings, layout.bytes).map_err(|_| BrokerError::Nonsense("memory that cannot be attached"))?;
        if !layout.is_header_of(&region) {
            return Err(BrokerError::Nonsense("rings of another version or depth"));
        }
        Ok(BrokerQueue::new(self.connection.clone(), self.geometry.clone(), queue, Arc::new(region), layout, bell))
    }
}

impl Device for BrokerDevice {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>, OpenError> {
        Ok(Box::new(self.open_queue(options.depth)?))
    }
}

/// A connection that queries and changes the policy.
#[derive(Debug)]
pub struct Admin {
    talk: Talk,
}

impl Admin {
    /// Connects to the broker at `socket`.
    ///
    /// # Errors
    /// Fails if no broker listens there.
    pub fn connect(socket: &Path) -> Result<Admin, BrokerError> {
        let stream = UnixStream::connect(socket).map_err(|source| BrokerError::NotThere { path: socket.to_owned(), source })?;
        Ok(Admin { talk: Talk::new(stream, ANSWER_BYTES_MAX) })
    }

    /// Sends one request and returns the reply.
    ///
    /// # Errors
    /// Fails if the broker refuses or is gone.
    pub fn ask(&mut self, question: &BrokerRequest) -> Result<Reply, BrokerError> {
        ask(&mut self.talk, question, None)
    }

    /// Adds a grant. Returns its ID, the grant of the same user, device and range that it replaced, and how many queues that
    /// closed.
    ///
    /// # Errors
    /// Fails as [`Admin::ask`] does.
    pub fn grant(&mut self, terms: GrantSpec) -> Result<(GrantId, Option<GrantId>, u32), BrokerError> {
        match self.ask(&BrokerRequest::Grant { terms })? {
            Reply::Granted { id, replaced, closed } => Ok((id, replaced, closed)),
            _ => Err(BrokerError::Nonsense("no grant")),
        }
    }

    /// Returns the open queues that this user is allowed to see.
    ///
    /// # Errors
    /// Fails as [`Admin::ask`] does.
    pub fn stat(&mut self) -> Result<Vec<QueueStat>, BrokerError> {
        match self.ask(&BrokerRequest::Stat)? {
            Reply::Stat { queues } => Ok(queues),
            _ => Err(BrokerError::Nonsense("no list of queues")),
        }
    }
}

#[cfg(all(test, not(miri)))]
mod test {
    use super::*;

    #[test]
    fn a_broker_that_stands_still_is_gone_after_its_timeout() {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("queues");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("bound");
        let reply_timeout = Some(Duration::from_millis(20));
        let options = ConnectOptions { socket, device: "d".into(), range: None, read_only: true, arena_bytes: 4096, reply_timeout };
        assert!(matches!(BrokerDevice::connect(&options), Err(BrokerError::Gone(_))));
    }
}
