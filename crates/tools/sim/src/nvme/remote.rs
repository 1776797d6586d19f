//! What a controller has for a host in another process: doorbells in memory that both see, that host's events and memory.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use block::Time;
use block::clock::Monotonic;
use shm::Region;

use super::{ClockSource, ControllerConfig, ControllerState, SoftController};

/// Doorbells that are taken before commands are.
const DOORBELLS_MAX: usize = 64;

/// See the module. In this process it is empty.
#[derive(Default)]
pub(super) struct RemoteHost {
    /// The registers as memory, of which only doorbells are used.
    pub page: Option<Arc<Region>>,
    /// Somebody looks at doorbells all the time: hosts need not ring.
    pub awake: bool,
    /// By vector.
    events: Vec<Option<OwnedFd>>,
    /// Raised in this step.
    raised: Vec<u16>,
}

impl RemoteHost {
    pub fn raise(&mut self, vector: u16) {
        if self.events.get(usize::from(vector)).is_some_and(Option::is_some) && !self.raised.contains(&vector) {
            self.raised.push(vector);
        }
    }

    /// Tells the host of what was raised: once for each vector, after all that there is to see.
    pub fn signal(&mut self) {
        for vector in self.raised.drain(..) {
            if let Some(Some(event)) = self.events.get(usize::from(vector)) {
                // A counter that is full is readable, too.
                let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
            }
        }
    }
}

impl ControllerState {
    /// A queue is new: what was rung for an older one of its number does not count.
    pub(super) fn clear_doorbell(&self, at: usize) {
        if let Some(page) = self.remote.page.as_ref().filter(|page| at + 4 <= page.len()) {
            page.u32(at).store(0, Ordering::Release);
        }
    }
}

impl SoftController {
    /// In the machine's time, for a host in another process: somebody has to call [`SoftController::work`].
    pub(super) fn remote(shape: ControllerConfig, seed: u64, page: Arc<Region>) -> SoftController {
        let vectors = shape.vectors;
        let mut made = SoftController::make(
            ControllerConfig { eager: false, shared_memory_only: true, ..shape },
            ClockSource::Real(Monotonic::default()),
            seed,
        );
        // Its events are the host's.
        made.events = Arc::default();
        let mut state = made.lock();
        state.events = Arc::default();
        state.remote.page = Some(page);
        state.remote.events = (0..vectors).map(|_| None).collect();
        drop(state);
        made
    }

    /// Looks at the doorbells and does what is due. `awake`: it is called again soon; else hosts shall ring. True: there was something.
    pub(super) fn work(&self, awake: bool) -> bool {
        let now = self.times.now();
        let mut state = self.lock();
        state.remote.awake = awake;
        let mut did = false;
        for _ in 0..DOORBELLS_MAX {
            if !state.look_at_page() {
                break;
            }
            did = true;
        }
        state.step(now) || did
    }

    /// ReplyMode long until something is due; none: nothing is.
    pub(super) fn idle(&self) -> Option<std::time::Duration> {
        let next = self.next_due();
        (next != Time::NEVER).then(|| next.since(self.times.now()))
    }

    /// Another host comes, or the last one has gone: no memory, no events, no queues, as after power came on.
    pub(super) fn start_afresh(&self) {
        let mut state = self.lock();
        state.drop_everything();
        state.memory.clear();
        state.remote.events.iter_mut().for_each(|event| *event = None);
        state.remote.raised.clear();
        (state.configuration, state.status, state.admin_queues, state.changes_at) = (0, 0, (0, 0, 0), None);
        state.waiting_events.clear();
        state.removed = false;
    }

    pub(super) fn map_at(&self, at: u64, region: Region, from: usize, bytes: usize) -> bool {
        self.lock().memory.map_at(at, region, from, bytes).is_some()
    }

    pub(super) fn unmap_at(&self, at: u64, bytes: u64) -> bool {
        self.lock().memory.unmap_at(at, bytes)
    }

    /// Of a vector that there is.
    pub(super) fn set_event(&self, vector: u32, event: Option<OwnedFd>) {
        if let Some(place) = self.lock().remote.events.get_mut(vector as usize) {
            *place = event;
        }
    }

    /// The blocks of a namespace are in this file from now on, which is as long as they are.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn put_into(&self, namespace: u32, file: File) -> io::Result<()> {
        let mut state = self.lock();
        let tracks_durability = state.shape.tracks_durability;
        state.namespaces.get_mut(&namespace).map_or(Ok(()), |content| content.put_into(file, tracks_durability))
    }

    /// Simulates a power cut: of data that was not flushed any part survives, if [`ControllerConfig::tracks_durability`] is set. The
    /// previous host gets no more completions.
    ///
    /// # Errors
    /// The file of a namespace cannot be written.
    pub fn power_cut(&self, seed: u64) -> io::Result<()> {
        let mut state = self.lock();
        state.drop_everything();
        state.removed = true;
        state.namespaces.values_mut().try_for_each(|content| content.cut_power(seed))
    }
}
