//! A socket of vfio-user: whole messages, descriptors beside them, and never longer than a deadline.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown,
    SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, shutdown, socket_with,
};

use super::wire::{FDS_MAX, HEADER_BYTES, Header, MESSAGE_BYTES_MAX, Message};

/// The reason why no message was sent or received.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The other side closed it.
    #[error("the other side closed the connection")]
    Closed,
    /// It took too long.
    #[error("no answer in time")]
    Late,
    /// What came is no message.
    #[error("what came is no vfio-user: {0}")]
    NoMessage(&'static str),
    /// The kernel says.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl From<Errno> for LinkError {
    fn from(error: Errno) -> LinkError {
        match error {
            Errno::PIPE | Errno::CONNRESET => LinkError::Closed,
            other => LinkError::System(other.into()),
        }
    }
}

/// One end of a connection to a server.
#[derive(Debug)]
pub struct Link {
    socket: OwnedFd,
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Converts a duration to the type that poll takes.
pub fn timespec(left: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(left.as_secs().min(1 << 30)).unwrap_or(0), tv_nsec: left.subsec_nanos().into() }
}

impl Link {
    /// A connected socket; it becomes one that does not block.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn over(socket: OwnedFd) -> io::Result<Link> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Link { socket })
    }

    /// Connects to a socket by its path.
    ///
    /// # Errors
    /// There is no such socket, no process listens on it, or its backlog is full.
    pub fn connect(path: &Path) -> io::Result<Link> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Link { socket })
    }

    /// Returns whether the other side has closed the connection.
    pub fn is_closed(&self) -> bool {
        // No event is requested: poll reports hang-ups and errors anyway.
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&none)).is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// Shuts down sending, so that the other side sees the end. This side can still notice when the other closes.
    pub fn finish(&self) {
        // If it is closed already, so much the better.
        let _ = shutdown(&self.socket, Shutdown::Write);
    }

    /// Shuts down both directions, which also wakes threads that wait on the socket.
    pub fn cut(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    fn wait(&self, for_what: PollFlags, until: Option<Instant>) -> Result<(), LinkError> {
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(LinkError::Late);
            }
            let most = left.map(timespec);
            match poll(&mut [PollFd::new(&self.socket, for_what)], most.as_ref()) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends all of a message, descriptors with its first byte. `until`: none: for ever.
    ///
    /// # Errors
    /// See [`LinkError`]. Then half of it may have gone, and the connection is of no more use.
    pub fn send(&self, message: &[u8], fds: &[BorrowedFd<'_>], until: Option<Instant>) -> Result<(), LinkError> {
        let mut sent = 0;
        while sent < message.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if sent == 0 && !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err(LinkError::NoMessage("too many descriptors"));
            }
            match sendmsg(&self.socket, &[IoSlice::new(&message[sent..])], &mut control, SendFlags::NOSIGNAL) {
                Ok(bytes) => sent += bytes,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, until)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// The next message.
    ///
    /// # Errors
    /// See [`LinkError`]. Whatever it is, the connection is of no more use.
    pub fn receive(&self, until: Option<Instant>) -> Result<Message, LinkError> {
        let mut fds = Vec::new();
        let mut header = [0; HEADER_BYTES];
        self.fill(&mut header, &mut fds, until)?;
        let header = Header::from_bytes(&header);
        let bytes = header.bytes as usize;
        if !(HEADER_BYTES..=MESSAGE_BYTES_MAX).contains(&bytes) {
            return Err(LinkError::NoMessage("a length that no message has"));
        }
        let mut body = vec![0; bytes - HEADER_BYTES];
        self.fill(&mut body, &mut fds, until)?;
        Ok(Message { header, body, fds })
    }

    fn fill(&self, to: &mut [u8], fds: &mut Vec<OwnedFd>, until: Option<Instant>) -> Result<(), LinkError> {
        let mut got = 0;
        while got < to.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            match recvmsg(&self.socket, &mut [IoSliceMut::new(&mut to[got..])], &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(found) if found.bytes == 0 => return Err(LinkError::Closed),
                Ok(found) => got += found.bytes,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, until)?,
                Err(error) => return Err(error.into()),
            }
            let came = control.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(came) => Some(came),
                _ => None,
            });
            // Those beyond what a message may have are closed.
            came.flatten().for_each(|fd| {
                if fds.len() < FDS_MAX {
                    fds.push(fd)
                }
            });
            // A trickle of bytes is late, too.
            if until.is_some_and(|until| Instant::now() > until) && got < to.len() {
                return Err(LinkError::Late);
            }
        }
        Ok(())
    }
}

/// The descriptor, if it is an eventfd: then writing to it does not wait, and nothing else happens. None: it is something else.
pub fn as_event(fd: OwnedFd) -> Option<OwnedFd> {
    use std::os::fd::AsRawFd as _;
    let name = rustix::fs::readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new()).ok()?;
    (name.to_bytes() == b"anon_inode:[eventfd]").then_some(())?;
    rustix::io::ioctl_fionbio(&fd, true).ok()?;
    Some(fd)
}
