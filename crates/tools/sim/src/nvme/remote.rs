//! State for a host in another process: shared doorbells, event descriptors and memory of that host.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use block::Time;
use block::clock::Monotonic;
use shm::Region;

use super::{ClockSource, ControllerConfig, ControllerState, SoftController};

/// Doorbells processed before commands are.
const DOORBELLS_MAX: usize = 64;

/// State of a remote host; empty for a driver in this process.
#[derive(Default)]
pub(super) struct RemoteHost {
    /// The registers as memory; only doorbells are used.
    pub page: Option<Arc<Region>>,
    /// A thread polls the doorbells: hosts need not notify it.
    pub awake: bool,
    /// Event descriptor of each vector.
    events: Vec<Option<OwnedFd>>,
    /// Vectors raised in this step.
    raised: Vec<u16>,
}

impl RemoteHost {
    /// Marks a vector as raised in this step.
    pub fn raise(&mut self, vector: u16) {
        if self.events.get(usize::from(vector)).is_some_and(Option::is_some) && !self.raised.contains(&vector) {
            self.raised.push(vector);
        }
    }

    /// Notifies the host of raised vectors, once each, after all completions are visible.
    pub fn signal(&mut self) {
        for vector in self.raised.drain(..) {
            if let Some(Some(event)) = self.events.get(usize::from(vector)) {
                // A full counter is readable, too.
                let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
            }
        }
    }
}

impl ControllerState {
    /// Clears a doorbell of a new queue: values for an older queue of its number are void.
    pub(super) fn clear_doorbell(&self, at: usize) {
        if let Some(page) = self.remote.page.as_ref().filter(|page| at + 4 <= page.len()) {
            page.u32(at).store(0, Ordering::Release);
        }
    }
}

impl SoftController {
    /// Creates a controller in real time for a remote host; a thread must call [`SoftController::work`].
    pub(super) fn remote(shape: ControllerConfig, seed: u64, page: Arc<Region>) -> SoftController {
        let vectors = shape.vectors;
        let mut made = SoftController::make(
            ControllerConfig { eager: false, shared_memory_only: true, ..shape },
            ClockSource::Real(Monotonic::default()),
            seed,
        );
        // The host supplies the event descriptors.
        made.events = Arc::default();
        let mut state = made.lock();
        state.events = Arc::default();
        state.remote.page = Some(page);
        state.remote.events = (0..vectors).map(|_| None).collect();
        drop(state);
        made
    }

    /// Reads the doorbells and executes what is due. `awake`: the caller polls again soon; otherwise hosts must notify it. Returns whether
    /// there was anything.
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

    /// Returns the time until the next command is due. `None`: no command is pending.
    pub(super) fn idle(&self) -> Option<std::time::Duration> {
        let next = self.next_due();
        (next != Time::NEVER).then(|| next.since(self.times.now()))
    }

    /// Resets everything between two hosts: no memory, events or queues, as after power-on.
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

    /// Sets the event descriptor of an existing vector.
    pub(super) fn set_event(&self, vector: u32, event: Option<OwnedFd>) {
        if let Some(place) = self.lock().remote.events.get_mut(vector as usize) {
            *place = event;
        }
    }

    /// Moves the blocks of a namespace into this file, which has their size.
    ///
    /// # Errors
    /// The file cannot be read.
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
