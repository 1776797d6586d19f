//! One connection: a client that opens a window and its queues, or an administrator that reads and changes the policy.
//!
//! Each connection has a thread, which is idle between requests. When the connection ends in any way, its queues are drained.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use parking_lot::Mutex;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use shm::Region;

use super::device_thread::{DeviceThread, Order};
use super::entry::{Ended, Layout, SEGMENTS_MAX};
use super::grant::{GrantId, GrantSpec, Peer, Window, Wish};
use super::journal::{Journal, JournalError};
use super::log_limit::{LogLimit, printable};
use super::places::{Counters, Info, Places};
use super::protocol::{BrokerRequest, Reply, Talk, VERSION};
use super::refusal::Refusal;
use super::served::{Drain, Seed};
use crate::buffer::Arena;
use crate::geometry::Geometry;

/// The maximum number of arenas of a connection.
const ARENAS_MAX: usize = 64;

/// The policy and the devices of the broker, which all sessions share.
pub(super) struct BrokerState {
    journal: Mutex<Journal>,
    places: Arc<Places>,
    /// The threads of the devices, by the names that grants use.
    pub(super) threads: BTreeMap<String, Arc<DeviceThread>>,
    /// The user ID of the broker.
    pub(super) owner: u32,
    /// Limits the log lines that clients can cause.
    pub(super) log_limit: Arc<LogLimit>,
}

impl BrokerState {
    pub(super) fn new(journal: Journal, threads: BTreeMap<String, Arc<DeviceThread>>) -> BrokerState {
        let owner = rustix::process::geteuid().as_raw();
        BrokerState { journal: Mutex::new(journal), places: Arc::default(), threads, owner, log_limit: Arc::default() }
    }
}

pub(super) struct Session {
    broker: Arc<BrokerState>,
    peer: Peer,
    talk: Talk,
    hang_up: Arc<UnixStream>,
    opened: Option<Opened>,
}

/// The window of a client, with its arenas and queues.
struct Opened {
    wish: Wish,
    thread: Arc<DeviceThread>,
    /// The geometry of the window, as the client sees it.
    geometry: Geometry,
    arenas: Vec<Arena>,
    queues: Vec<u64>,
}

/// A reply, and the descriptors sent with it.
type Answered = Result<(Reply, Vec<OwnedFd>), Refusal>;

impl Session {
    pub(super) fn new(broker: Arc<BrokerState>, peer: Peer, talk: Talk, hang_up: Arc<UnixStream>) -> Session {
        Session { broker, peer, talk, hang_up, opened: None }
    }

    /// Serves requests until the client closes the connection.
    pub(super) fn run(mut self) {
        while let Ok(Some(line)) = self.talk.receive_line() {
            let answered = match serde_json::from_slice(&line) {
                Ok(request) => self.answer(request),
                Err(error) => Err(Refusal::BadRequest { what: error.to_string() }),
            };
            self.talk.drop_fds();
            let (answer, fds) = answered.unwrap_or_else(|refusal| {
                if self.broker.log_limit.may_log(self.peer.user) {
                    let why = printable(&refusal.to_string());
                    tracing::info!(user = self.peer.user, pid = self.peer.pid, refusal = %why, "refused");
                }
                (Reply::Refused { refusal }, Vec::new())
            });
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            if self.talk.send(&answer, &fds).is_err() {
                return;
            }
        }
    }

    fn answer(&mut self, request: BrokerRequest) -> Answered {
        match request {
            BrokerRequest::Open { version, wish } => self.open(version, wish).map(plain),
            BrokerRequest::Queue { depth } => self.queue(depth),
            BrokerRequest::Arena { bytes } => self.arena(bytes).map(plain),
            BrokerRequest::Reset { queue } => self.drain(queue, Drain::Reset).map(plain),
            BrokerRequest::Close { queue } => {
                let done = self.drain(queue, Drain::End(Ended::Closed));
                if let Some(opened) = &mut self.opened {
                    opened.queues.retain(|known| *known != queue);
                }
                done.map(plain)
            }
            BrokerRequest::Grant { terms } => self.grant(terms).map(plain),
            BrokerRequest::Revoke { id } => self.revoke(id).map(plain),
            BrokerRequest::List => Ok(plain(self.list())),
            BrokerRequest::Stat => {
                let all = self.may_change();
                Ok(plain(Reply::Stat { queues: self.broker.places.stat(|info| all || info.peer.user == self.peer.user) }))
            }
        }
    }

    fn open(&mut self, version: u32, wish: Wish) -> Result<Reply, Refusal> {
        if version != VERSION {
            let what = format!("version {version}: this broker speaks version {VERSION}");
            return Err(Refusal::BadRequest { what });
        }
        if self.opened.is_some() {
            return Err(Refusal::BadRequest { what: "a window is open already: use another connection".into() });
        }
        // A client without a grant must not learn which devices exist.
        let device = self.broker.threads.get(&wish.device).map(|thread| thread.device().geometry().clone());
        let blocks = device.as_ref().map_or(0, |geometry| geometry.blocks);
        let journal = self.broker.journal.lock();
        let decided = journal.policy().decide(self.peer, &wish, blocks, None, |_| 0);
        let (Some(thread), Some(device)) = (self.broker.threads.get(&wish.device), device) else {
            return Err(match decided {
                Err(refusal @ Refusal::NoGrant { .. }) => refusal,
                _ => Refusal::UnknownDevice { device: wish.device },
            });
        };
        let (grant, window) = decided?;
        let memory_bytes = grant.terms.memory_bytes;
        drop(journal);
        let geometry = seen_by(&device, window, wish.read_only);
        let looks = (&geometry).into();
        // Queues opened later use the same blocks, even if grants change meanwhile.
        let wish = Wish { range: Some((window.first, window.blocks)), ..wish };
        self.opened = Some(Opened { wish, thread: thread.clone(), geometry, arenas: Vec::new(), queues: Vec::new() });
        Ok(Reply::Opened { geometry: looks, memory_bytes })
    }

    fn queue(&mut self, depth: u32) -> Answered {
        let opened = self.opened.as_mut().ok_or_else(no_window)?;
        if !depth.is_power_of_two() || depth > 4096 {
            return Err(Refusal::BadDepth { depth });
        }
        let blocks = opened.thread.device().geometry().blocks;
        let journal = self.broker.journal.lock();
        let mut terms = None;
        let place = self.broker.places.take(|open| {
            let (grant, window) = journal.policy().decide(self.peer, &opened.wish, blocks, Some(depth), open)?;
            terms = Some(grant.terms.clone());
            let (device, read_only) = (opened.wish.device.clone(), opened.wish.read_only);
            Ok(Info { id: 0, grant: grant.id, peer: self.peer, device, window, depth, read_only, counters: Counters::default() })
        })?;
        // From here on a revocation finds the place; its order reaches the device thread after the one sent here.
        let (id, window) = (place.info.id, place.info.window);
        let failed = |what: String| Refusal::DeviceFailed { what };
        let layout = Layout::new(depth);
        let region = Region::shared("hotshelf-queue", layout.bytes).map_err(|error| failed(format!("memory for the rings: {error}")))?;
        layout.write_header(&region);
        let system = |error: std::io::Error| failed(error.to_string());
        let ring_fd = region.fd().expect("shared memory").try_clone_to_owned().map_err(system)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (bell, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(|error| system(error.into()))?;
        let seed = Box::new(Seed {
            place,
            region: Arc::new(region),
            layout,
            bell,
            geometry: opened.geometry.clone(),
            first: window.first,
            arenas: opened.arenas.clone(),
            hang_up: self.hang_up.clone(),
            log_limit: Arc::clone(&self.broker.log_limit),
        });
        let (answer, done) = sync_channel(1);
        opened.thread.order(Order::Open { seed, terms: terms.expect("it was decided"), answer });
        drop(journal);
        done.recv().unwrap_or_else(|_| Err(Ended::BrokerEnds.to_string())).map_err(failed)?;
        opened.queues.push(id);
        if self.broker.log_limit.may_log(self.peer.user) {
            tracing::info!(queue = id, user = self.peer.user, pid = self.peer.pid, device = opened.wish.device, depth, "a queue is open");
        }
        Ok((Reply::Queue { queue: id }, vec![ring_fd, theirs]))
    }

    fn arena(&mut self, bytes: u64) -> Result<Reply, Refusal> {
        let opened = self.opened.as_mut().ok_or_else(no_window)?;
        let fd = self.talk.take_fd().ok_or(Refusal::BadRequest { what: "no descriptor came with it".into() })?;
        let bad = |what: String| Refusal::BadMemory { what };
        if opened.arenas.len() >= ARENAS_MAX {
            return Err(bad(format!("{ARENAS_MAX} pieces are registered already")));
        }
        let most = {
            let journal = self.broker.journal.lock();
            let blocks = opened.thread.device().geometry().blocks;
            journal.policy().decide(self.peer, &opened.wish, blocks, None, |_| 0)?.0.terms.memory_bytes
        };
        let known: u64 = opened.arenas.iter().map(|arena| arena.region().len() as u64).sum();
        let total = known.checked_add(bytes).filter(|total| *total <= most);
        total.ok_or(Refusal::TooMuchMemory { bytes: known.saturating_add(bytes), most })?;
        let len = usize::try_from(bytes).map_err(|error| bad(error.to_string()))?;
        let region = Region::attach(fd, len).map_err(|error| bad(error.to_string()))?;
        let arena = Arena::over(Arc::new(region));
        let (answer, done) = sync_channel(1);
        opened.thread.order(Order::Register { queues: opened.queues.clone(), arena: arena.clone(), answer });
        let done = done.recv().unwrap_or(Err(crate::Error::Gone));
        done.map_err(|error| Refusal::DeviceFailed { what: error.to_string() })?;
        opened.arenas.push(arena);
        Ok(Reply::Arena { number: u32::try_from(opened.arenas.len() - 1).expect("a few") })
    }

    fn drain(&mut self, queue: u64, why: Drain) -> Result<Reply, Refusal> {
        let opened = self.opened.as_ref().ok_or_else(no_window)?;
        if !opened.queues.contains(&queue) {
            return Err(Refusal::BadRequest { what: format!("queue {queue} is none of this connection") });
        }
        let drained = opened.thread.drain(queue, why);
        drained.map(|()| Reply::Done).map_err(|error| Refusal::DeviceFailed { what: error.to_string() })
    }

    fn may_change(&self) -> bool {
        self.peer.user == 0 || self.peer.user == self.broker.owner
    }

    fn must_be_allowed(&self) -> Result<(), Refusal> {
        if self.may_change() { Ok(()) } else { Err(Refusal::NotAllowed { owner: self.broker.owner }) }
    }

    fn grant(&self, terms: GrantSpec) -> Result<Reply, Refusal> {
        self.must_be_allowed()?;
        tracing::info!(by = self.peer.user, ?terms, "grant");
        let (id, replaced) = self.broker.journal.lock().grant(terms, self.peer.user).map_err(not_written)?;
        let closed = replaced.map_or(0, |old| self.close_all_of(old));
        Ok(Reply::Granted { id, replaced, closed })
    }

    fn revoke(&self, id: GrantId) -> Result<Reply, Refusal> {
        self.must_be_allowed()?;
        tracing::info!(by = self.peer.user, grant = id.0, "revoke");
        let grant = self.broker.journal.lock().revoke(id, self.peer.user).map_err(not_written)?;
        let closed = self.close_all_of(id);
        Ok(Reply::Revoked { grant, closed })
    }

    /// Closes all queues of a grant; returns once the devices have no request of them in flight.
    fn close_all_of(&self, grant: GrantId) -> u32 {
        let queues = self.broker.places.of_grant(grant);
        for info in &queues {
            if let Some(thread) = self.broker.threads.get(&info.device) {
                // `stat` shows lost queues.
                let _ = thread.drain(info.id, Drain::End(Ended::Revoked));
            }
        }
        u32::try_from(queues.len()).unwrap_or(u32::MAX)
    }

    fn list(&self) -> Reply {
        let (all, peer) = (self.may_change(), self.peer);
        let journal = self.broker.journal.lock();
        let mine = |terms: &GrantSpec| match terms.who {
            super::Who::User(user) => user == peer.user,
            super::Who::Group(group) => group == peer.group,
            super::Who::Anybody => true,
        };
        Reply::Grants { grants: journal.policy().grants().filter(|grant| all || mine(&grant.terms)).cloned().collect() }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(opened) = &self.opened else { return };
        let mut waiting = Vec::new();
        for queue in &opened.queues {
            let (answer, drained) = sync_channel(1);
            opened.thread.order(Order::Drain { queue: *queue, why: Drain::End(Ended::Closed), answer });
            waiting.push(drained);
        }
        // The connection counts against the limits until its queues are drained.
        for drained in waiting {
            let _ = drained.recv();
        }
    }
}

fn plain(answer: Reply) -> (Reply, Vec<OwnedFd>) {
    (answer, Vec::new())
}

fn no_window() -> Refusal {
    Refusal::BadRequest { what: "no window is open on this connection".into() }
}

fn not_written(error: JournalError) -> Refusal {
    match error {
        JournalError::NoSuchGrant => Refusal::NoSuchGrant,
        error => Refusal::NotWritten { what: error.to_string() },
    }
}

/// Returns the geometry of a window of a device.
fn seen_by(device: &Geometry, window: Window, read_only: bool) -> Geometry {
    let segments_max = device.segments_max.min(u16::try_from(SEGMENTS_MAX).expect("a few"));
    Geometry { blocks: window.blocks, read_only: device.read_only || read_only, segments_max, ..device.clone() }
}
