//! The protocol on the broker's socket: JSON lines on a stream, with descriptors beside them (SCM_RIGHTS).
//!
//! Each request gets one reply, in order. A client's line is at most 64 KiB and carries at most one descriptor. Drawn in docs/formats.md.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::grant::{Grant, GrantId, GrantSpec, Wish};
use super::refusal::Refusal;
use crate::geometry::Geometry;

/// The version of the protocol and of the shared memory.
pub const VERSION: u32 = 1;
/// The maximum length of a client's line, in bytes.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;
/// The maximum length of the broker's line, in bytes; large enough to list all grants and queues.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;
/// The maximum number of descriptors beside one line.
const FDS_MAX: usize = 4;

/// A request that a client sends to the broker.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum BrokerRequest {
    /// Opens a window of a device, once per connection; all queues and memory of the connection belong to it.
    Open {
        /// The client's protocol [`VERSION`].
        version: u32,
        /// The device and blocks that the client wants.
        #[serde(flatten)]
        wish: Wish,
    },
    /// Opens a queue of the window. The reply carries the memory of the rings and the notifier.
    Queue {
        /// The maximum number of requests in flight.
        depth: u32,
    },
    /// Registers memory for buffers; the request carries a sealed memfd.
    Arena {
        /// The size of the memory in bytes.
        bytes: u64,
    },
    /// Cancels all requests in flight on a queue; the reply comes once the device no longer accesses its memory.
    Reset {
        /// The ID of the queue.
        queue: u64,
    },
    /// Closes a queue; the reply comes as for [`BrokerRequest::Reset`].
    Close {
        /// The ID of the queue.
        queue: u64,
    },
    /// Adds a grant. This request and the following ones are for root and the broker's user; other users only see their own entries.
    Grant {
        /// The terms of the grant.
        terms: GrantSpec,
    },
    /// Revokes a grant and closes its queues.
    Revoke {
        /// The ID of the grant.
        id: GrantId,
    },
    /// Lists the grants in force.
    List,
    /// Lists the open queues with their counters.
    Stat,
}

/// A reply that the broker sends to a client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Reply {
    /// The window is open, and is described as a device.
    Opened {
        /// The geometry of the window.
        geometry: WireGeometry,
        /// The maximum shared memory of the connection, in bytes.
        memory_bytes: u64,
    },
    /// A queue is open; two descriptors come with the reply: the memory of the rings and the notifier.
    Queue {
        /// The ID of the queue.
        queue: u64,
    },
    /// The memory is registered with the device.
    Arena {
        /// The number of the arena in ring entries.
        number: u32,
    },
    /// The request was carried out.
    Done,
    /// The grant is in force.
    Granted {
        /// The ID of the new grant.
        id: GrantId,
        /// The grant that it replaced, if any.
        replaced: Option<GrantId>,
        /// The number of queues that were closed by the replacement.
        closed: u32,
    },
    /// The grant was revoked.
    Revoked {
        /// The revoked grant.
        grant: Grant,
        /// The number of queues that were closed by the revocation.
        closed: u32,
    },
    /// The list of grants in force.
    Grants {
        /// The grants in the order in which they were made.
        grants: Vec<Grant>,
    },
    /// The list of open queues.
    Stat {
        /// The queues in the order in which they were opened.
        queues: Vec<QueueStat>,
    },
    /// The broker refused the request.
    Refused {
        /// The reason for the refusal.
        refusal: Refusal,
    },
}

/// A [`Geometry`] in the form sent on the socket.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WireGeometry {
    block_bytes: u32,
    blocks: u64,
    transfer_bytes_max: u32,
    segments_max: u16,
    memory_align: u32,
    volatile_cache: bool,
    read_only: bool,
    discard: bool,
    write_zeroes: bool,
}

impl From<&Geometry> for WireGeometry {
    fn from(geometry: &Geometry) -> WireGeometry {
        let &Geometry {
            block_bytes,
            blocks,
            transfer_bytes_max,
            segments_max,
            memory_align,
            volatile_cache,
            read_only,
            discard,
            write_zeroes,
        } = geometry;
        WireGeometry {
            block_bytes,
            blocks,
            transfer_bytes_max,
            segments_max,
            memory_align,
            volatile_cache,
            read_only,
            discard,
            write_zeroes,
        }
    }
}

impl From<WireGeometry> for Geometry {
    fn from(geometry: WireGeometry) -> Geometry {
        Geometry {
            transfer_bytes_max: geometry.transfer_bytes_max,
            segments_max: geometry.segments_max,
            memory_align: geometry.memory_align,
            volatile_cache: geometry.volatile_cache,
            read_only: geometry.read_only,
            discard: geometry.discard,
            write_zeroes: geometry.write_zeroes,
            ..Geometry::plain(geometry.block_bytes, geometry.blocks)
        }
    }
}

/// An open queue, as `hotshelf queue stat` shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QueueStat {
    /// The ID of the queue.
    pub queue: u64,
    /// The grant under which the queue was opened.
    pub grant: GrantId,
    /// The user ID of the client.
    pub user: u32,
    /// The process ID of the client that opened the queue.
    pub pid: i32,
    /// The name of the device.
    pub device: String,
    /// The first block of the window.
    pub first: u64,
    /// The number of blocks of the window.
    pub blocks: u64,
    /// The maximum number of requests in flight.
    pub depth: u32,
    /// Whether the queue only allows reads.
    pub read_only: bool,
    /// The number of requests that the device completed.
    pub requests: u64,
    /// The number of bytes read and written.
    pub bytes: u64,
    /// The number of requests that failed on the device.
    pub errors: u64,
    /// The number of requests that the broker refused.
    pub refused: u64,
    /// Whether the device may still access the queue's memory, which is then kept until the broker ends.
    pub lost: bool,
}

/// A message stream, with data received but not yet parsed.
#[derive(Debug)]
pub struct Talk {
    stream: UnixStream,
    received: Vec<u8>,
    fds: VecDeque<OwnedFd>,
    line_bytes_max: usize,
}

impl Talk {
    /// Creates a stream over a connected socket; receiving a longer line is an error.
    pub fn new(stream: UnixStream, line_bytes_max: usize) -> Talk {
        Talk { stream, received: Vec::new(), fds: VecDeque::new(), line_bytes_max }
    }

    /// Returns a reference to the socket.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Sends a line, with descriptors attached to its first byte.
    ///
    /// # Errors
    /// Fails if the peer is gone or does not read.
    pub fn send(&self, words: &impl Serialize, fds: &[BorrowedFd<'_>]) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(words)?;
        line.push(b'\n');
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)), "too many descriptors");
        let mut sent = retry(|| rustix::net::sendmsg(&self.stream, &[IoSlice::new(&line)], &mut control, SendFlags::NOSIGNAL))?;
        while sent < line.len() {
            sent += retry(|| rustix::net::send(&self.stream, &line[sent..], SendFlags::NOSIGNAL))?;
        }
        Ok(())
    }

    /// Waits for a line; returns `None` if the peer closed the connection between two lines.
    ///
    /// # Errors
    /// Fails if the connection failed, or the line is too long or truncated.
    pub fn receive_line(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.received[searched..].iter().position(|byte| *byte == b'\n') {
                let rest = self.received.split_off(searched + end + 1);
                let mut line = std::mem::replace(&mut self.received, rest);
                line.pop();
                return Ok(Some(line));
            }
            searched = self.received.len();
            if searched >= self.line_bytes_max {
                return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "a line that is too long"));
            }
            match self.receive_some()? {
                0 if searched == 0 => return Ok(None),
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                _ => {}
            }
        }
    }

    /// Waits for a line and decodes it.
    ///
    /// # Errors
    /// Fails as [`Talk::receive_line`] does, and if the connection was closed or the line is invalid.
    pub fn receive<T: DeserializeOwned>(&mut self) -> std::io::Result<T> {
        let line = self.receive_line()?.ok_or(std::io::ErrorKind::UnexpectedEof)?;
        Ok(serde_json::from_slice(&line)?)
    }

    /// Takes the oldest descriptor that came with the received lines.
    pub fn take_fd(&mut self) -> Option<OwnedFd> {
        self.fds.pop_front()
    }

    /// Closes descriptors that no request has taken.
    pub fn drop_fds(&mut self) {
        self.fds.clear();
    }

    fn receive_some(&mut self) -> std::io::Result<usize> {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = retry(|| {
            let mut to = [IoSliceMut::new(&mut bytes)];
            rustix::net::recvmsg(&self.stream, &mut to, &mut control, RecvFlags::CMSG_CLOEXEC)
        })?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                // Descriptors beyond the maximum are closed.
                fds.for_each(|fd| {
                    if self.fds.len() < FDS_MAX {
                        self.fds.push_back(fd);
                    }
                });
            }
        }
        self.received.extend_from_slice(&bytes[..got.bytes]);
        Ok(got.bytes)
    }
}

impl AsFd for Talk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> std::io::Result<T> {
    Ok(rustix::io::retry_on_intr(&mut call)?)
}

#[cfg(all(test, not(miri)))]
mod test {
    use super::*;

    #[test]
    fn lines_and_their_descriptors_arrive_together() {
        let (a, b) = UnixStream::pair().expect("a pair");
        let (ours, mut theirs) = (Talk::new(a, 1 << 20), Talk::new(b, 1 << 20));
        let file = tempfile::tempfile().expect("a file");
        let long = BrokerRequest::Open { version: 1, wish: Wish { device: "x".repeat(9000), range: None, read_only: true } };
        ours.send(&BrokerRequest::List, &[]).expect("sent");
        ours.send(&long, &[file.as_fd(), file.as_fd()]).expect("sent");
        drop(ours);
        assert_eq!(theirs.receive::<BrokerRequest>().expect("words"), BrokerRequest::List);
        assert_eq!(theirs.receive::<BrokerRequest>().expect("words"), long);
        assert!(theirs.take_fd().is_some() && theirs.take_fd().is_some() && theirs.take_fd().is_none());
        assert!(theirs.receive_line().expect("cleanly").is_none());
    }

    #[test]
    fn a_line_too_long_or_cut_off_is_an_error() {
        use std::io::Write;
        let (mut a, b) = UnixStream::pair().expect("a pair");
        let mut theirs = Talk::new(b, 5000);
        a.write_all(&[b'x'; 9000]).expect("sent");
        assert_eq!(theirs.receive_line().expect_err("too long").kind(), std::io::ErrorKind::InvalidData);
        let (mut a, b) = UnixStream::pair().expect("a pair");
        a.write_all(b"{\"ask\":").expect("sent");
        drop(a);
        assert_eq!(Talk::new(b, 5000).receive_line().expect_err("cut off").kind(), std::io::ErrorKind::UnexpectedEof);
    }
}
