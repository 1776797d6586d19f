//! The open queues and their counters: the accounting for quotas and for `stat`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::grant::{GrantId, Peer, Window};
use super::protocol::QueueStat;
use crate::request::Status;

/// An open queue: its owner, its grant and its counters.
#[derive(Debug)]
pub(super) struct Info {
    pub(super) id: u64,
    pub(super) grant: GrantId,
    pub(super) peer: Peer,
    pub(super) device: String,
    pub(super) window: Window,
    pub(super) depth: u32,
    pub(super) read_only: bool,
    pub(super) counters: Counters,
}

/// Counters that one device thread writes and any thread reads.
#[derive(Debug, Default)]
pub(super) struct Counters {
    requests: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    refused: AtomicU64,
    lost: AtomicBool,
}

impl Counters {
    /// Counts a request that the device completed.
    #[inline]
    pub(super) fn ended(&self, bytes: u64, status: Status) {
        add(&self.requests, 1);
        match status {
            Ok(()) => add(&self.bytes, bytes),
            Err(_) => add(&self.errors, 1),
        }
    }

    /// Counts a request that was refused before it reached the device.
    pub(super) fn refused(&self) {
        add(&self.refused, 1);
    }

    pub(super) fn set_lost(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }
}

/// Adds without a locked instruction, because only one thread writes.
#[inline]
fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

/// All open queues of a broker.
#[derive(Debug, Default)]
pub(super) struct Places {
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    last: u64,
    queues: BTreeMap<u64, Arc<Info>>,
}

impl Places {
    /// Takes a place if `decide` allows it, given the number of open queues of a grant. Decisions are serialized.
    pub(super) fn take<E>(self: &Arc<Self>, decide: impl FnOnce(&dyn Fn(GrantId) -> u32) -> Result<Info, E>) -> Result<QuotaSlot, E> {
        let mut open = self.open.lock();
        let mut info = decide(&|grant| open.of(grant))?;
        open.last += 1;
        info.id = open.last;
        let info = Arc::new(info);
        open.queues.insert(info.id, info.clone());
        Ok(QuotaSlot { places: self.clone(), info })
    }

    /// Returns the open queues of a grant, with their devices.
    pub(super) fn of_grant(&self, grant: GrantId) -> Vec<Arc<Info>> {
        self.open.lock().queues.values().filter(|info| info.grant == grant).cloned().collect()
    }

    pub(super) fn stat(&self, may_see: impl Fn(&Info) -> bool) -> Vec<QueueStat> {
        self.open.lock().queues.values().filter(|info| may_see(info)).map(|info| info.stat()).collect()
    }
}

impl Open {
    fn of(&self, grant: GrantId) -> u32 {
        u32::try_from(self.queues.values().filter(|info| info.grant == grant).count()).unwrap_or(u32::MAX)
    }
}

impl Info {
    fn stat(&self) -> QueueStat {
        let counters = &self.counters;
        QueueStat {
            queue: self.id,
            grant: self.grant,
            user: self.peer.user,
            pid: self.peer.pid,
            device: self.device.clone(),
            first: self.window.first,
            blocks: self.window.blocks,
            depth: self.depth,
            read_only: self.read_only,
            requests: counters.requests.load(Ordering::Relaxed),
            bytes: counters.bytes.load(Ordering::Relaxed),
            errors: counters.errors.load(Ordering::Relaxed),
            refused: counters.refused.load(Ordering::Relaxed),
            lost: counters.lost.load(Ordering::Relaxed),
        }
    }
}

/// The place of a queue in the quota, which is freed on drop.
#[derive(Debug)]
pub(super) struct QuotaSlot {
    places: Arc<Places>,
    pub(super) info: Arc<Info>,
}

impl QuotaSlot {
    /// Frees the place before the drop.
    pub(super) fn give_back(&self) {
        self.places.open.lock().queues.remove(&self.info.id);
    }
}

impl Drop for QuotaSlot {
    fn drop(&mut self) {
        self.give_back();
    }
}
