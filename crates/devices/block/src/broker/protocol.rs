//! The words on the broker's socket: JSON lines on a stream, descriptors beside them (SCM_RIGHTS).
//!
//! One request, one answer, in order. A line of a client is at most 64 KiB; it brings at most one descriptor. Drawn in
//! docs/formats.md.

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

/// The version of these words and of the shared memory.
pub const VERSION: u32 = 1;
/// Most bytes of a client's line.
pub const ASK_BYTES_MAX: usize = 64 << 10;
/// Most bytes of the broker's line: a list of everything.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Most descriptors beside one line.
const FDS_MAX: usize = 4;

/// What a client asks for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// A window of a device; queues and memory of this connection belong to it. Once.
    Open {
        /// [`VERSION`].
        version: u32,
        /// What is wanted.
        #[serde(flatten)]
        wish: Wish,
    },
    /// A queue of it. Its answer brings the ring's memory and the bell.
    Queue {
        /// Most requests in flight.
        depth: u32,
    },
    /// Memory for buffers; a sealed memfd comes with it.
    Arena {
        /// Its size.
        bytes: u64,
    },
    /// Gives up what is in flight on a queue; answered when the device touches none of its memory any more.
    Reset {
        /// Which.
        queue: u64,
    },
    /// Gives a queue back; answered as [`Ask::Reset`].
    Close {
        /// Which.
        queue: u64,
    },
    /// Gives a grant. For root and the broker's user, as are all that follow, but that others see their own.
    Grant {
        /// What it says.
        terms: GrantSpec,
    },
    /// Takes a grant back, and closes its queues.
    Revoke {
        /// Which.
        id: GrantId,
    },
    /// The grants.
    List,
    /// The queues that are open.
    Stat,
}

/// What the broker answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Reply {
    /// The window, as a device.
    Opened {
        /// What it looks like.
        geometry: Looks,
        /// Most bytes of memory.
        memory_bytes: u64,
    },
    /// A queue; two descriptors come with it: the memory of the rings, and the bell.
    Queue {
        /// Its name on this connection.
        queue: u64,
    },
    /// The memory is known to the device.
    Arena {
        /// Its number in the ring's entries.
        number: u32,
    },
    /// It is done.
    Done,
    /// A grant is in force.
    Granted {
        /// Its name.
        id: GrantId,
        /// The one it replaced.
        replaced: Option<GrantId>,
        /// Queues that were closed by that.
        closed: u32,
    },
    /// A grant is not in force any more.
    Revoked {
        /// The grant.
        grant: Grant,
        /// Queues that were closed by that.
        closed: u32,
    },
    /// The grants in force.
    Grants {
        /// In the order they were given.
        grants: Vec<Grant>,
    },
    /// The queues that are open.
    Stat {
        /// In the order they were opened.
        queues: Vec<QueueStat>,
    },
    /// No.
    Refused {
        /// Why.
        refusal: Refusal,
    },
}

/// A [`Geometry`] in words.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Looks {
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

impl From<&Geometry> for Looks {
    fn from(geometry: &Geometry) -> Looks {
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
        Looks { block_bytes, blocks, transfer_bytes_max, segments_max, memory_align, volatile_cache, read_only, discard, write_zeroes }
    }
}

impl From<Looks> for Geometry {
    fn from(looks: Looks) -> Geometry {
        Geometry {
            transfer_bytes_max: looks.transfer_bytes_max,
            segments_max: looks.segments_max,
            memory_align: looks.memory_align,
            volatile_cache: looks.volatile_cache,
            read_only: looks.read_only,
            discard: looks.discard,
            write_zeroes: looks.write_zeroes,
            ..Geometry::plain(looks.block_bytes, looks.blocks)
        }
    }
}

/// One open queue, as `hotshelf queue stat` shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QueueStat {
    /// Its name.
    pub queue: u64,
    /// The grant it was opened under.
    pub grant: GrantId,
    /// Who has it.
    pub user: u32,
    /// Which process opened it.
    pub pid: i32,
    /// The device.
    pub device: String,
    /// First block.
    pub first: u64,
    /// How many.
    pub blocks: u64,
    /// Most requests in flight.
    pub depth: u32,
    /// Whether it only reads.
    pub read_only: bool,
    /// Requests that ended.
    pub requests: u64,
    /// Bytes that were read and written.
    pub bytes: u64,
    /// Requests that the device failed.
    pub errors: u64,
    /// Requests that the broker did not let through.
    pub refused: u64,
    /// The device did not give its memory back: it is kept until the broker ends.
    pub lost: bool,
}

/// A stream, with what was received and not yet read.
#[derive(Debug)]
pub struct Talk {
    stream: UnixStream,
    received: Vec<u8>,
    fds: VecDeque<OwnedFd>,
    line_bytes_max: usize,
}

impl Talk {
    /// Over a connected socket. A longer line is an error.
    pub fn new(stream: UnixStream, line_bytes_max: usize) -> Talk {
        Talk { stream, received: Vec::new(), fds: VecDeque::new(), line_bytes_max }
    }

    /// The socket.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Sends a line, and descriptors with its first byte.
    ///
    /// # Errors
    /// The other side is gone, or takes nothing.
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

    /// Waits for a line. None: the other side closed the connection in good order.
    ///
    /// # Errors
    /// The connection failed, or the line is too long or cut off.
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

    /// Waits for words.
    ///
    /// # Errors
    /// As [`Talk::receive_line`]; also when the connection was closed, or the words make no sense.
    pub fn receive<T: DeserializeOwned>(&mut self) -> std::io::Result<T> {
        let line = self.receive_line()?.ok_or(std::io::ErrorKind::UnexpectedEof)?;
        Ok(serde_json::from_slice(&line)?)
    }

    /// A descriptor that came with what was received.
    pub fn take_fd(&mut self) -> Option<OwnedFd> {
        self.fds.pop_front()
    }

    /// Closes descriptors that nobody asked for.
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
                // Those beyond the few that make sense are closed.
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
        let long = Ask::Open { version: 1, wish: Wish { device: "x".repeat(9000), range: None, read_only: true } };
        ours.send(&Ask::List, &[]).expect("sent");
        ours.send(&long, &[file.as_fd(), file.as_fd()]).expect("sent");
        drop(ours);
        assert_eq!(theirs.receive::<Ask>().expect("words"), Ask::List);
        assert_eq!(theirs.receive::<Ask>().expect("words"), long);
        assert!(theirs.take_fd().is_some() && theirs.take_fd().is_some() && theirs.take_fd().is_none());
        assert!(theirs.receive_line().expect("in good order").is_none());
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
