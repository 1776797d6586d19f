//! The broker's socket: it accepts connections and starts a thread for each.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};

use super::device_thread::DeviceThread;
use super::grant::Peer;
use super::journal::Journal;
use super::protocol::{REQUEST_BYTES_MAX, Reply, Talk};
use super::refusal::Refusal;
use super::session::{BrokerState, Session};
use crate::device::Device;

/// The maximum number of connections of one user other than root and the broker's user.
const USER_CLIENTS_MAX: usize = 64;
/// The maximum number of connections of all those users together.
const CLIENTS_MAX: usize = 512;
/// The broker closes the connection of a client that does not read its replies for this time.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// The options of a broker.
pub struct ServerOptions {
    /// The path of the socket that clients connect to.
    pub socket: PathBuf,
    /// The journal that holds the policy.
    pub journal: Journal,
    /// The devices of the broker, by the names that grants use.
    pub devices: Vec<(String, Arc<dyn Device>)>,
    /// How long a device's thread polls after its last work, before it sleeps.
    pub spin: Duration,
    /// How long a device has to complete cancelled requests, before its queue is reset.
    pub reset_timeout: Duration,
}

/// The state that the accepting thread and the clients' threads share.
struct Shared {
    broker: Arc<BrokerState>,
    ending: AtomicBool,
    clients: Mutex<BTreeMap<u64, Client>>,
}

struct Client {
    user: u32,
    stream: Arc<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

/// A running broker, which shuts down cleanly when dropped.
pub struct Server {
    shared: Arc<Shared>,
    socket: PathBuf,
    listener: UnixListener,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    /// Creates the socket, starts the threads and serves clients.
    ///
    /// # Errors
    /// Fails if the socket cannot be created, another broker uses it, or threads cannot be started.
    pub fn start(options: ServerOptions) -> std::io::Result<Server> {
        let listener = listen(&options.socket)?;
        let mut threads = BTreeMap::new();
        for (name, device) in options.devices {
            let thread = DeviceThread::start(&name, device, options.spin, options.reset_timeout)?;
            threads.insert(name, Arc::new(thread));
        }
        let shared = Arc::new(Shared {
            broker: Arc::new(BrokerState::new(options.journal, threads)),
            ending: AtomicBool::new(false),
            clients: Mutex::default(),
        });
        let (accepted, heard) = (shared.clone(), listener.try_clone()?);
        let accepting = std::thread::Builder::new().name("accept".into()).spawn(move || accept(&heard, &accepted))?;
        Ok(Server { shared, socket: options.socket, listener, accepting: Some(accepting) })
    }
}

impl Drop for Server {
    /// Accepts no new clients, drains all devices, and then closes all connections.
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Release);
        let _ = std::fs::remove_file(&self.socket);
        // Wakes the accepting thread.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        self.accepting.take().map(JoinHandle::join);
        self.shared.broker.threads.values().for_each(|thread| thread.end());
        let mut clients = std::mem::take(&mut *self.shared.clients.lock());
        for client in clients.values() {
            let _ = client.stream.shutdown(std::net::Shutdown::Both);
        }
        for client in clients.values_mut() {
            client.thread.take().map(JoinHandle::join);
        }
    }
}

/// Creates a socket that all users may connect to: their credentials decide what each may do.
fn listen(path: &Path) -> std::io::Result<UnixListener> {
    if path.symlink_metadata().is_ok_and(|meta| meta.file_type().is_socket()) {
        if UnixStream::connect(path).is_ok() {
            return Err(std::io::Error::new(std::io::ErrorKind::AddrInUse, "another broker listens there"));
        }
        // A killed broker left the socket.
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

fn accept(listener: &UnixListener, shared: &Arc<Shared>) {
    let mut next = 0;
    for stream in listener.incoming() {
        if shared.ending.load(Ordering::Acquire) {
            return;
        }
        let Ok(stream) = stream else {
            // Descriptors have run out; an immediate retry would fail again.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        next += 1;
        if let Err(error) = welcome(shared, stream, next) {
            // The peer's user is unknown, or there are too many threads; either can recur with each connection.
            if shared.broker.log_limit.may_log(u32::MAX) {
                tracing::warn!(%error, "a client cannot be served");
            }
        }
    }
}

fn welcome(shared: &Arc<Shared>, stream: UnixStream, id: u64) -> std::io::Result<()> {
    let credentials = socket_peercred(&stream)?;
    let peer = Peer { user: credentials.uid.as_raw(), group: credentials.gid.as_raw(), pid: credentials.pid.as_raw_pid() };
    set_socket_timeout(&stream, Timeout::Send, Some(SEND_TIMEOUT))?;
    let hang_up = Arc::new(stream.try_clone()?);
    let talk = Talk::new(stream, REQUEST_BYTES_MAX);
    let mut clients = shared.clients.lock();
    if let Some(most) = too_many(&clients, peer.user, shared.broker.owner) {
        drop(clients);
        return talk.send(&Reply::Refused { refusal: Refusal::TooManyClients { most } }, &[]);
    }
    let session = Session::new(shared.broker.clone(), peer, talk, hang_up.clone());
    let gone = Gone { shared: shared.clone(), id };
    let thread = std::thread::Builder::new().name(format!("client {}", peer.pid)).spawn(move || {
        let _gone = gone;
        session.run();
    })?;
    // The thread cannot remove its entry before it is inserted here: it waits for the lock.
    clients.insert(id, Client { user: peer.user, stream: hang_up, thread: Some(thread) });
    Ok(())
}

fn too_many(clients: &BTreeMap<u64, Client>, user: u32, owner: u32) -> Option<u32> {
    let privileged = |user: u32| user == 0 || user == owner;
    if privileged(user) {
        return None;
    }
    let of_user = clients.values().filter(|client| client.user == user).count();
    let of_all = clients.values().filter(|client| !privileged(client.user)).count();
    let most = if of_user >= USER_CLIENTS_MAX { USER_CLIENTS_MAX } else { CLIENTS_MAX };
    (of_user >= USER_CLIENTS_MAX || of_all >= CLIENTS_MAX).then(|| u32::try_from(most).expect("a few"))
}

/// Removes a client from the list of connections, also after a panic.
struct Gone {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for Gone {
    fn drop(&mut self) {
        self.shared.clients.lock().remove(&self.id);
    }
}
