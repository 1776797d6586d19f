//! The software controller behind a vfio-user socket, for one host process after the other.
//!
//! ```text
//! session   one thread: handles messages (registers, memory, interrupts), ends with its connection
//! worker    one thread: polls doorbells in memory, fetches, completes; sleeps when idle
//! ```
//!
//! Doorbells are in a memfd that the host may map. A host that requests the doorbell eventfd (GET_REGION_IO_FDS) signals it with each
//! doorbell; with shadow doorbells (Doorbell Buffer Config) only while the worker sleeps. For other hosts the worker polls once in a
//! millisecond. Messages of a host are not trusted: see `session`.

mod session;
mod worker;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use pci::user::Link;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with};
use shm::Region;

use super::{ControllerConfig, SoftController};
use session::Session;

/// Bytes of the registers; doorbells begin at 4096.
const REGISTER_BYTES: usize = 0x4000;

/// A controller and its socket.
pub struct Server {
    controller: SoftController,
    path: PathBuf,
    listener: OwnedFd,
    page: Arc<Region>,
    /// Wakes the worker.
    bell: OwnedFd,
    /// Wakes the thread that waits for hosts.
    ending: OwnedFd,
    ended: AtomicBool,
    connection: Mutex<Option<Arc<Link>>>,
    /// The host signals the eventfd.
    has_bell: AtomicBool,
    sessions: AtomicU64,
    spin: Duration,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Server({})", self.path.display())
    }
}

impl Server {
    /// Binds the socket; [`Server::run`] serves hosts. Only the same user can connect. `spin`: how long the worker polls after activity.
    ///
    /// # Errors
    /// The address is in use, or there is no memory.
    pub fn bind(path: &Path, shape: ControllerConfig, seed: u64, spin: Duration) -> io::Result<Server> {
        let page = Arc::new(Region::shared("nvme-registers", REGISTER_BYTES)?);
        let event = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let (bell, ending) = (event()?, event()?);
        Ok(Server {
            controller: SoftController::remote(shape, seed, Arc::clone(&page)),
            listener: listen_at(path)?,
            path: path.to_owned(),
            page,
            bell,
            ending,
            ended: AtomicBool::new(false),
            connection: Mutex::new(None),
            has_bell: AtomicBool::new(false),
            sessions: AtomicU64::new(0),
            spin,
        })
    }

    /// Returns the controller, for faults and counters.
    pub fn controller(&self) -> &SoftController {
        &self.controller
    }

    /// Moves the blocks of a namespace into this file, which has their size.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn put_into(&self, namespace: u32, file: File) -> io::Result<()> {
        self.controller.put_into(namespace, file)
    }

    /// Returns the number of completed sessions.
    pub fn sessions(&self) -> u64 {
        self.sessions.load(Ordering::Acquire)
    }

    /// Serves hosts one after the other until [`Server::end`], then removes the socket.
    ///
    /// # Errors
    /// The socket fails.
    pub fn run(&self) -> io::Result<()> {
        std::thread::scope(|scope| {
            scope.spawn(|| self.work());
            let served = self.serve();
            self.end();
            // The file may have been removed already.
            let _ = std::fs::remove_file(&self.path);
            served
        })
    }

    fn serve(&self) -> io::Result<()> {
        while !self.ended.load(Ordering::Acquire) {
            let mut fds = [PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&self.ending, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) if fds[0].revents().contains(PollFlags::IN) => {}
                Ok(_) | Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            // The host may have disconnected already.
            let Ok(socket) = accept_with(&self.listener, SocketFlags::CLOEXEC) else { continue };
            let Ok(link) = Link::over(socket).map(Arc::new) else { continue };
            *self.connection.lock() = Some(Arc::clone(&link));
            if !self.ended.load(Ordering::Acquire) {
                self.controller.start_afresh();
                Session::new(self, &link).run();
            }
            // The order matters: host memory is not touched after the host can see the closed connection.
            self.has_bell.store(false, Ordering::Release);
            self.controller.start_afresh();
            *self.connection.lock() = None;
            drop(link);
            self.sessions.fetch_add(1, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Closes the connection of the current host; the next one is served.
    pub fn disconnect(&self) {
        if let Some(link) = &*self.connection.lock() {
            link.cut();
        }
    }

    /// Simulates a power cut and disconnects the host. See [`SoftController::power_cut`].
    ///
    /// # Errors
    /// The file of a namespace cannot be written.
    pub fn power_cut(&self, seed: u64) -> io::Result<()> {
        let cut = self.controller.power_cut(seed);
        self.disconnect();
        cut
    }

    /// Makes [`Server::run`] return soon afterwards.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        ring(&self.ending);
        ring(&self.bell);
        self.disconnect();
    }
}

/// Signals an eventfd.
fn ring(event: impl AsFd) {
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

/// Removes the socket of an older server.
fn listen_at(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    let address = SocketAddrUnix::new(path)?;
    if let Err(error) = bind(&socket, &address) {
        let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        if error != rustix::io::Errno::ADDRINUSE || !Link::connect(path).is_err_and(refused) {
            return Err(error.into());
        }
        std::fs::remove_file(path)?;
        bind(&socket, &address)?;
    }
    // No host can connect before `listen`.
    rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR)?;
    listen(&socket, 8)?;
    Ok(socket)
}
