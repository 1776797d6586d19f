//! A client that sends one request at a time and checks each reply. After the first invalid reply it sends no more.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::link::{Link, LinkError};
use super::wire::{Header, Message, command};

/// How many requests of the server the client refuses while its own is in flight; more are a protocol error.
const THEIRS_MAX: usize = 64;

/// The reason why a request failed.
#[derive(Debug)]
pub(super) enum RequestError {
    /// The server refused the request.
    Refused(io::Error),
    /// The connection is lost.
    Lost(LinkError),
}

pub(super) struct Client {
    /// The connection to the server.
    pub link: Link,
    /// Of the next request; held while one is under way.
    next: Mutex<u16>,
    reply_timeout: Duration,
    lost: AtomicBool,
    /// Raised when the device is lost, so that nobody sleeps on.
    events: OnceLock<Arc<[OwnedFd]>>,
    /// Of the process that connected.
    pid: u32,
}

impl Client {
    /// Creates a client; `reply_timeout` limits the wait for each reply.
    pub fn new(link: Link, reply_timeout: Duration) -> Client {
        Client { link, next: Mutex::new(1), reply_timeout, lost: AtomicBool::new(false), events: OnceLock::new(), pid: std::process::id() }
    }

    /// Returns whether the device is lost; it then counts as removed.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Marks the device as lost: nothing more is sent, and replies are ignored.
    pub fn lose(&self) {
        if !self.lost.swap(true, Ordering::AcqRel) {
            self.link.finish();
            self.events.get().iter().flat_map(|events| events.iter()).for_each(raise);
        }
    }

    /// Sets the events that are raised when the device is lost, so that no waiter sleeps on.
    pub fn wakes(&self, events: &Arc<[OwnedFd]>) {
        let _ = self.events.set(Arc::clone(events));
    }

    /// Notices if the server has gone.
    pub fn check_lost(&self) {
        if !self.is_lost() && self.link.is_closed() {
            self.lose();
        }
    }

    /// Sends a request and waits for the reply.
    pub fn request(&self, command: u16, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Message, RequestError> {
        let mut next = self.next.lock();
        if self.is_lost() {
            return Err(RequestError::Lost(LinkError::Closed));
        }
        let id = *next;
        *next = next.wrapping_add(1);
        let answer = self.exchange(Header::request(id, command), body, fds).inspect_err(|_| self.lose()).map_err(RequestError::Lost)?;
        if answer.header.is_failure() {
            let errno = i32::try_from(answer.header.error).ok().filter(|errno| (1..4096).contains(errno));
            return Err(RequestError::Refused(errno.map_or_else(|| io::ErrorKind::Other.into(), io::Error::from_raw_os_error)));
        }
        Ok(answer)
    }

    fn exchange(&self, header: Header, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Message, LinkError> {
        let until = Some(Instant::now() + self.reply_timeout);
        self.link.send(&header.message(body), fds, until)?;
        for _ in 0..THEIRS_MAX {
            let message = self.link.receive(until)?;
            if !message.header.is_reply() {
                // It wants to read our memory by messages: all that it may reach has a descriptor.
                if !message.header.wants_no_reply() {
                    self.link.send(&message.header.failure(rustix::io::Errno::NOTSUP.raw_os_error()).message(&[]), &[], until)?;
                }
                continue;
            }
            if message.header.id != header.id || message.header.command != header.command {
                return Err(LinkError::NoMessage("a reply to another request"));
            }
            return Ok(message);
        }
        Err(LinkError::NoMessage("it sends requests instead of a reply"))
    }

    /// Reads bytes of a region into all of `to`.
    pub fn read(&self, region: u32, at: u64, to: &mut [u8]) -> Result<(), RequestError> {
        let count = to.len() as u32;
        let answer = self.request(command::REGION_READ, &access(region, at, count).0, &[])?;
        let data = answer.body.get(16..).filter(|data| data.len() == to.len() && answer.body[..16] == access(region, at, count).0);
        let Some(data) = data else { return Err(self.invalid("a read with other bytes than asked for")) };
        to.copy_from_slice(data);
        Ok(())
    }

    /// Writes bytes to a region of the device.
    pub fn write(&self, region: u32, at: u64, from: &[u8]) -> Result<(), RequestError> {
        let body = access(region, at, from.len() as u32).bytes(from);
        self.request(command::REGION_WRITE, &body.0, &[]).map(drop)
    }

    /// Loses the device because of an invalid reply, and returns the error.
    pub fn invalid(&self, what: &'static str) -> RequestError {
        self.lose();
        RequestError::Lost(LinkError::NoMessage(what))
    }
}

impl Drop for Client {
    /// The next host can come, also where a child made by fork still has the socket. In such a child nothing of it is ours.
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            self.link.finish();
        }
    }
}

/// Makes an event readable.
pub(super) fn raise(event: &OwnedFd) {
    // Full: it is readable anyway.
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

fn access(region: u32, at: u64, count: u32) -> super::wire::Body {
    super::wire::Body::new().u64(at).u32(region).u32(count)
}
