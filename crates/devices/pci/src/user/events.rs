//! Interrupts by eventfds.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::client::{Client, raise};
use super::link::timespec;
use crate::function::IrqSource;

pub(super) struct Events {
    client: Arc<Client>,
    events: Arc<[OwnedFd]>,
    /// Ends the thread.
    ending: Arc<OwnedFd>,
    watcher: Option<JoinHandle<()>>,
}

impl Events {
    /// Starts a thread that watches the connection, because a thread that sleeps on an event alone would not notice its end.
    pub fn new(client: &Arc<Client>, events: Vec<OwnedFd>) -> io::Result<Events> {
        let (client, events): (_, Arc<[OwnedFd]>) = (Arc::clone(client), events.into());
        client.wakes(&events);
        let ending = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let (its, end) = (Arc::clone(&client), Arc::clone(&ending));
        let watcher = std::thread::Builder::new().name("vfio-user".to_owned()).spawn(move || watch(&its, &end))?;
        Ok(Events { client, events, ending, watcher: Some(watcher) })
    }
}

/// Until the connection ends, or is needed no more.
fn watch(client: &Client, ending: &OwnedFd) {
    while !client.is_lost() {
        let mut fds = [PollFd::new(&client.link, PollFlags::empty()), PollFd::new(ending, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) if !fds[1].revents().is_empty() => return,
            Ok(_) => client.check_lost(),
            Err(rustix::io::Errno::INTR) => {}
            // Nothing that waiting helps against: deadlines are left.
            Err(_) => return,
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        raise(&self.ending);
        if let Some(watcher) = self.watcher.take() {
            // It cannot panic.
            let _ = watcher.join();
        }
    }
}

impl IrqSource for Events {
    fn vectors(&self) -> u16 {
        self.events.len() as u16
    }

    fn event(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        self.events.get(usize::from(vector)).map(AsFd::as_fd)
    }

    /// Those of a device that is lost stay readable.
    fn clear(&self, vector: u16) {
        if self.client.is_lost() {
            return;
        }
        if let Some(event) = self.events.get(usize::from(vector)) {
            // It was not raised: nothing to forget.
            let _ = rustix::io::read(event, &mut [0_u8; 8]);
            if self.client.is_lost() {
                raise(event);
            }
        }
    }

    /// A server that has gone ends it, too; then registers read as all ones.
    fn wait(&self, vector: u16, at_most: Duration) {
        if self.client.is_lost() {
            return self.pause(at_most);
        }
        let most = timespec(at_most);
        let socket = PollFd::new(&self.client.link, PollFlags::empty());
        // A signal ends it early, which is allowed.
        let _ = match self.events.get(usize::from(vector)) {
            Some(event) => poll(&mut [socket, PollFd::new(event, PollFlags::IN)], Some(&most)),
            None => poll(&mut [socket], Some(&most)),
        };
        self.client.check_lost();
    }

    fn pause(&self, at_most: Duration) {
        let most = timespec(at_most);
        if self.client.is_lost() {
            let _ = poll(&mut [], Some(&most));
            return;
        }
        let _ = poll(&mut [PollFd::new(&self.client.link, PollFlags::empty())], Some(&most));
        self.client.check_lost();
    }
}
