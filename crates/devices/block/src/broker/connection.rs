//! The client's connection to the broker, and how its calls fail.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use parking_lot::Mutex;

use super::protocol::{BrokerRequest, Reply, Talk};
use super::refusal::Refusal;
use crate::buffer::{Arena, ArenaId};
use crate::device::OpenError;
use crate::error::Error;

/// The reason why a call to the broker failed.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// The broker refused the request.
    #[error("the broker refuses: {0}")]
    Refused(#[from] Refusal),
    /// The broker cannot be reached, or is no longer there.
    #[error("{}: the broker cannot be reached: {source}", path.display())]
    NotThere {
        /// The path of the broker's socket.
        path: PathBuf,
        /// The error that the kernel returned.
        source: io::Error,
    },
    /// The connection broke in the middle of a call.
    #[error("the broker is gone: {0}")]
    Gone(io::Error),
    /// The broker's reply is invalid.
    #[error("the broker's answer makes no sense: {0}")]
    Nonsense(&'static str),
    /// This process could not allocate shared memory.
    #[error("shared memory: {0}")]
    Memory(io::Error),
}

impl From<BrokerError> for OpenError {
    fn from(error: BrokerError) -> OpenError {
        OpenError::Unusable(error.to_string())
    }
}

/// The connection, shared by all queues of a device. It serves set-up and tear-down only, never a request.
#[derive(Debug)]
pub(super) struct Connection {
    talk: Mutex<Talk>,
    /// The arenas registered with the broker, with their numbers.
    arenas: Mutex<Vec<(Arena, u32)>>,
}

impl Connection {
    pub(super) fn new(talk: Talk) -> Connection {
        Connection { talk: Mutex::new(talk), arenas: Mutex::default() }
    }

    /// Opens a queue of `depth` requests; returns its number and the descriptors of its rings and its notifier.
    pub(super) fn open_queue(&self, depth: u32) -> Result<(u64, OwnedFd, OwnedFd), BrokerError> {
        let mut talk = self.talk.lock();
        let Reply::Queue { queue } = ask(&mut talk, &BrokerRequest::Queue { depth }, None)? else {
            return Err(BrokerError::Nonsense("no queue"));
        };
        let (Some(rings), Some(bell)) = (talk.take_fd(), talk.take_fd()) else {
            return Err(BrokerError::Nonsense("a queue without its descriptors"));
        };
        Ok((queue, rings, bell))
    }

    /// Registers an arena unless it is registered already, and returns its number.
    pub(super) fn register(&self, arena: &Arena) -> Result<u32, BrokerError> {
        let mut arenas = self.arenas.lock();
        if let Some((_, number)) = arenas.iter().find(|(known, _)| known.id() == arena.id()) {
            return Ok(*number);
        }
        let Some(fd) = arena.region().fd() else {
            return Err(BrokerError::Refused(Refusal::BadMemory { what: "memory of this process alone".into() }));
        };
        let bytes = arena.region().len() as u64;
        let Reply::Arena { number } = ask(&mut self.talk.lock(), &BrokerRequest::Arena { bytes }, Some(fd.as_fd()))? else {
            return Err(BrokerError::Nonsense("no number for the memory"));
        };
        arenas.push((arena.clone(), number));
        Ok(number)
    }

    /// Returns the registered arenas with their numbers.
    pub(super) fn arenas(&self) -> Vec<(ArenaId, u32)> {
        self.arenas.lock().iter().map(|(arena, number)| (arena.id(), *number)).collect()
    }

    /// Waits until the device has no request of the queue in flight; closes the queue if `for_good`.
    pub(super) fn drain(&self, queue: u64, for_good: bool) -> Result<(), Error> {
        let question = if for_good { BrokerRequest::Close { queue } } else { BrokerRequest::Reset { queue } };
        match ask(&mut self.talk.lock(), &question, None) {
            Ok(Reply::Done) => Ok(()),
            _ => Err(Error::Gone),
        }
    }
}

/// Sends one request over the socket, with a descriptor if the broker needs one, and returns the reply.
pub(super) fn ask(talk: &mut Talk, question: &BrokerRequest, fd: Option<BorrowedFd<'_>>) -> Result<Reply, BrokerError> {
    talk.drop_fds();
    match talk.send(question, fd.as_slice()) {
        // The broker closed the connection; a reply sent before that can still be read.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        other => other.map_err(BrokerError::Gone)?,
    }
    match talk.receive().map_err(BrokerError::Gone)? {
        Reply::Refused { refusal } => Err(refusal.into()),
        answer => Ok(answer),
    }
}
