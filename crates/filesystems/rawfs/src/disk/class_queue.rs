//! A queue, a handle on it, and the memory of what is in flight there.

use std::sync::{Arc, OnceLock};

use block::handle::{Done, Full, Io, Ticket};
use block::{Arena, Buf, Error, Params, SharedHandle, SharedQueue};
use parking_lot::{Condvar, Mutex};

use super::DiskSettings;
use super::pending_calls::PendingCalls;

/// Longest request, in bytes.
pub(super) const PIECE_BYTES: usize = 256 << 10;
const BUFFER_BYTES_MIN: usize = 1 << 20;

pub(super) struct ClassQueue {
    queue: Arc<SharedQueue>,
    handle: SharedHandle,
    params: Params,
    /// Made when it is first needed: a waiter on a queue of one handle sleeps at once, and does not check whether others lead.
    later: OnceLock<PendingCalls>,
    arena: Arena,
    /// Requests of longer than this are cut here.
    pub(super) piece_bytes: usize,
    /// Counts buffers given back, so that who found none sees that it is worth another look.
    returned: Mutex<u64>,
    returns: Condvar,
}

impl ClassQueue {
    pub(super) fn new(queue: Arc<SharedQueue>, settings: &DiskSettings) -> Result<ClassQueue, crate::Error> {
        let arena = Arena::private(settings.buffer_bytes.max(BUFFER_BYTES_MIN)).map_err(|_| crate::Error::NoResources)?;
        queue.register(&arena).map_err(crate::Error::Device)?;
        let params = Params { completion: block::handle::CompletionMode::OfQueue, ..settings.params.clone() };
        let handle = SharedHandle::new(&queue, params.clone()).map_err(crate::Error::Device)?;
        let most = (queue.geometry().transfer_bytes_max as usize).clamp(crate::BLOCK_BYTES, PIECE_BYTES);
        let piece_bytes = most / crate::BLOCK_BYTES * crate::BLOCK_BYTES;
        Ok(ClassQueue {
            queue,
            handle,
            params,
            later: OnceLock::new(),
            arena,
            piece_bytes,
            returned: Mutex::new(0),
            returns: Condvar::new(),
        })
    }

    pub(super) fn handle(&self) -> &SharedHandle {
        &self.handle
    }

    /// For calls whose result comes later, if there was one.
    pub(super) fn later(&self) -> Option<&PendingCalls> {
        self.later.get()
    }

    /// As [`ClassQueue::later`], made if there was none.
    pub(super) fn make_later(&self) -> Result<&PendingCalls, Error> {
        if self.later.get().is_none() {
            // Another thread may have been faster: then its own is the one.
            let _ = self.later.set(PendingCalls::new(SharedHandle::new(&self.queue, self.params.clone())?));
        }
        Ok(self.later.get().expect("just put"))
    }

    pub(super) fn register(&self, arena: &Arena) -> Result<(), Error> {
        self.queue.register(arena)
    }

    /// A buffer, if one is free.
    pub(super) fn try_buffer(&self, bytes: usize) -> Option<Buf> {
        self.arena.allocate(bytes)
    }

    /// Returns a buffer, after a wait for others if needed. A caller with requests in flight here must not call it.
    pub(super) fn buffer(&self, bytes: usize) -> Buf {
        loop {
            let seen = *self.returned.lock();
            if let Some(buf) = self.arena.allocate(bytes) {
                return buf;
            }
            let mut returned = self.returned.lock();
            if *returned == seen {
                // Memory that a device kept comes back without a word: look again now and then.
                self.returns.wait_for(&mut returned, std::time::Duration::from_millis(10));
            }
        }
    }

    /// Gives a buffer back.
    pub(super) fn give_back(&self, buf: Option<Buf>) {
        drop(buf);
        *self.returned.lock() += 1;
        self.returns.notify_all();
    }

    pub(super) fn submit(&self, io: Io) -> Result<Ticket, Full> {
        self.handle.submit(io)
    }

    pub(super) fn wait_for(&self, ticket: Ticket) -> Done {
        self.handle.wait_for(ticket, std::time::Duration::MAX).expect("each request ends, and nobody else waits for it")
    }

    pub(super) fn run(&self, io: Io) -> Done {
        self.handle.run(io)
    }
}
