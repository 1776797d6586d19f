//! The state of a controller that its queues share, and what is done at its registers and at its admin queue.
//!
//! A lock that no I/O request takes protects the admin queue and what is known of the controller. Two words beside it are polled by
//! the queues: how often the controller was reset, and whether it is gone.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use block::buffer::ArenaId;
use block::{Arena, Clock, Error, Time};
use parking_lot::Mutex;

use crate::admin::{Admin, AdminError, Ticket, Wants};
use crate::entry::{CompletionEntry, Entry, admin};
use crate::identify::{ControllerInfo, NamespaceError, NamespaceInfo, NvmLimits, Page};
use crate::mapping::Mapping;
use crate::notice::Notices;
use crate::pair::Shadow;
use crate::progress::EventWork;
use crate::recorder::{Flight, Flights, Reason, Record, with_suffix};
use crate::registers::{
    CC, CC_ENABLE, CC_SHUTDOWN, CC_SHUTDOWN_MASK, CSTS, CSTS_FATAL, CSTS_READY, CSTS_SHUTDOWN_DONE, CSTS_SHUTDOWN_MASK, Capabilities,
    REMOVED,
};
use pci::{DmaError, Function};

/// The pause between two reads of a register.
pub(crate) const PAUSE: Duration = Duration::from_millis(1);
/// The number of incidents whose records are kept.
const INCIDENTS: usize = 16;
/// Between two that are of one kind.
const INCIDENT_PAUSE: Duration = Duration::from_secs(1);

/// How a controller is used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The number of queue pairs to request, 1 to 4096; the controller may grant fewer.
    pub queues: u16,
    /// How long an admin command may take.
    pub admin_timeout: Duration,
    /// Times a request is sent again when the controller says that it may succeed now.
    pub retries: u8,
    /// Events that each queue's flight recorder keeps: a power of two to 65536 (rounded up), or 0: none.
    pub records: u32,
    /// The file of the flight recorder, in shared memory (/dev/shm), with 64 bytes for each event. Other processes can read it while this
    /// one runs and after it was killed. An existing file is renamed to `FILE.old`. Incidents are written to `FILE.0` to `FILE.15`.
    /// `None`: the recorder uses only memory of this process.
    pub record_file: Option<PathBuf>,
    /// Whether to use shadow doorbells if the controller supports them. An emulated controller needs them to be fast.
    pub shadow_doorbells: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { queues: 64, admin_timeout: Duration::from_secs(10), retries: 3, records: 256, record_file: None, shadow_doorbells: true }
    }
}

/// The part of a controller that its queues share.
pub(crate) struct Shared {
    /// The PCI function of the controller.
    pub function: Function,
    /// How the controller is used.
    pub options: Options,
    /// The clock that deadlines are measured with.
    pub clock: Arc<dyn Clock>,
    /// The capabilities register (CAP), read when the controller was opened.
    pub capabilities: Capabilities,
    /// The flight recorder of all its queues.
    pub flight: Flight,
    /// Resets so far.
    epoch: AtomicU32,
    /// How often namespaces changed their size or their blocks, or went.
    changes: AtomicU32,
    gone: AtomicBool,
    /// It is gone, and certainly reaches no memory any more.
    quiet: AtomicBool,
    /// Of the process that opened it.
    pid: u32,
    /// The part that changes, behind a lock that no I/O request takes.
    pub inner: Mutex<Inner>,
}

pub(crate) struct Inner {
    /// The admin queue of the controller.
    pub admin: Admin,
    /// The memory of the shadow doorbells, if there is any.
    pub shadow: Option<Shadow>,
    /// Whether the controller polls the shadow doorbells.
    pub shadow_on: bool,
    /// The controller's own description (Identify Controller).
    pub info: ControllerInfo,
    /// The limits of the NVM command set on this controller.
    pub limits: NvmLimits,
    /// The active namespaces by number; an error says why one cannot be used.
    pub namespaces: Vec<(u32, Result<NamespaceInfo, NamespaceError>)>,
    /// Whether the namespaces changed and no notice of it was queued yet.
    pub changed: bool,
    /// By number less one: whether it is taken. As many as the controller gave.
    queues: Vec<bool>,
    arenas: Vec<(ArenaId, Weak<Mapping>)>,
    /// The event that is being handled.
    pub event: EventWork,
    /// The notices that nobody took yet.
    pub notices: Notices,
    incidents: VecDeque<Incident>,
    /// Incidents so far.
    incident: usize,
}

/// Something went wrong.
struct Incident {
    reason: Reason,
    at: Time,
    record: Record,
}

impl Inner {
    pub(crate) fn new(admin: Admin, shadow: Option<Shadow>) -> Inner {
        Inner {
            admin,
            shadow,
            shadow_on: false,
            info: ControllerInfo::default(),
            limits: NvmLimits::default(),
            namespaces: Vec::new(),
            changed: false,
            queues: Vec::new(),
            arenas: Vec::new(),
            event: EventWork::default(),
            notices: Notices::default(),
            incidents: VecDeque::with_capacity(INCIDENTS),
            incident: 0,
        }
    }

    /// Takes over the number of queues that the controller granted.
    pub(crate) fn grant(&mut self, answer: u32, wanted: u16) {
        let granted = (answer as u16).min((answer >> 16) as u16).saturating_add(1).min(wanted);
        // Those that are in use keep their numbers, also if a reset gave fewer: making them again will fail.
        let used = self.queues.iter().rposition(|taken| *taken).map_or(0, |last| last + 1);
        self.queues.resize(usize::from(granted).max(used), false);
    }

    pub(crate) fn request_event(&mut self) -> Result<(), AdminError> {
        self.admin.submit(Entry::new(admin::ASYNC_EVENT, 0), false, Wants::Event, Time::NEVER).map(drop)
    }

    /// Returns the description of a namespace, or the reason why it cannot be used.
    pub(crate) fn namespace(&self, id: u32) -> Option<&Result<NamespaceInfo, NamespaceError>> {
        self.namespaces.iter().find(|(found, _)| *found == id).map(|(_, info)| info)
    }

    /// Returns the number of queue pairs that the controller granted.
    pub(crate) fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Returns the recorder contents of the last incidents, oldest first.
    pub(crate) fn incidents(&self) -> Vec<Record> {
        self.incidents.iter().map(|incident| incident.record.clone()).collect()
    }

    pub(crate) fn take_queue(&mut self) -> Option<u16> {
        let free = self.queues.iter().position(|taken| !taken)?;
        self.queues[free] = true;
        u16::try_from(free + 1).ok()
    }

    pub(crate) fn give_queue(&mut self, number: u16) {
        self.queues[usize::from(number) - 1] = false;
    }
}

/// The state of the controller, by its status register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Health {
    Fine,
    Fatal,
    Gone,
}

impl Shared {
    pub(crate) fn new(
        function: Function,
        options: Options,
        clock: Arc<dyn Clock>,
        capabilities: Capabilities,
        flight: Flight,
        inner: Inner,
    ) -> Shared {
        Shared {
            function,
            options,
            clock,
            capabilities,
            flight,
            epoch: AtomicU32::new(0),
            changes: AtomicU32::new(0),
            gone: AtomicBool::new(false),
            quiet: AtomicBool::new(false),
            pid: std::process::id(),
            inner: Mutex::new(inner),
        }
    }

    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }

    /// Makes open queues check their namespaces at their next poll.
    pub(crate) fn namespaces_changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Returns whether the device is gone and reaches no memory: only then requests in flight can be completed.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Acquire)
    }

    pub(crate) fn health(&self) -> Health {
        let status = self.function.mmio.read32(CSTS);
        match status {
            REMOVED => {
                self.lose();
                Health::Gone
            }
            status if status & CSTS_FATAL != 0 => Health::Fatal,
            _ => Health::Fine,
        }
    }

    /// Marks the device as gone and ends its access to memory.
    pub(crate) fn lose(&self) {
        if !self.gone.swap(true, Ordering::AcqRel) {
            tracing::error!("{}: the device is gone", self.function.name);
            self.cut_off();
        }
    }

    /// Tries to end the device's access to memory; [`Shared::is_quiet`] tells whether that worked.
    pub(crate) fn cut_off(&self) {
        self.note_quiet(self.function.dma.cut_off());
    }

    /// Notes whether it is now certain that the device reaches no memory.
    pub(crate) fn note_quiet(&self, is_quiet: bool) {
        self.quiet.fetch_or(is_quiet, Ordering::AcqRel);
    }

    /// Makes all queues learn of a reset at their next poll.
    pub(crate) fn note_reset(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns whether this process opened the controller, and not one that it was forked from.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Submits an admin command and waits for its completion.
    pub(crate) fn ask(&self, inner: &mut Inner, entry: Entry, page: bool) -> Result<(CompletionEntry, Option<Page>), AdminError> {
        let ticket = self.begin(inner, entry, page)?;
        let answer = self.answer(inner, ticket)?;
        Ok((answer, page.then(|| inner.admin.page(ticket))))
    }

    /// Waits for the answer.
    pub(crate) fn answer(&self, inner: &mut Inner, ticket: Ticket) -> Result<CompletionEntry, AdminError> {
        loop {
            inner.admin.poll();
            if let Some(answer) = inner.admin.take(ticket, self.clock.now()) {
                return answer;
            }
            match self.health() {
                Health::Gone => return Err(AdminError::Gone),
                Health::Fatal => return Err(AdminError::Fatal),
                Health::Fine => self.wait_admin(),
            }
        }
    }

    /// Submits an admin command; the caller takes its completion later.
    pub(crate) fn begin(&self, inner: &mut Inner, entry: Entry, page: bool) -> Result<Ticket, AdminError> {
        if self.is_gone() {
            return Err(AdminError::Gone);
        }
        inner.admin.submit(entry, page, Wants::Completion, self.clock.now().after(self.options.admin_timeout))
    }

    /// Waits until the admin queue may have something to report.
    pub(crate) fn wait_admin(&self) {
        let irq = &self.function.irq;
        if irq.vectors() == 0 {
            return irq.pause(PAUSE);
        }
        irq.wait(0, PAUSE);
        irq.clear(0);
    }

    /// Keeps the contents of a flight recorder and writes them to a file. The same incident of a queue is kept at most once a second.
    pub(crate) fn remember(&self, inner: &mut Inner, reason: Reason, record: Record) {
        let now = self.clock.now();
        let same = |other: &Incident| other.reason == reason && other.record.queue == record.queue && now < other.at.after(INCIDENT_PAUSE);
        if record.events.is_empty() || inner.incidents.iter().any(same) {
            return;
        }
        if let Some(file) = self.flight.file() {
            let file = with_suffix(file, &(inner.incident % INCIDENTS).to_string());
            match Flights::write(&file, &self.function.name, reason, &record) {
                Ok(()) => tracing::warn!("{}: {}; its last commands are in {}", self.function.name, reason.words(), file.display()),
                Err(error) => tracing::warn!("{}: {}; writing {}: {error}", self.function.name, reason.words(), file.display()),
            }
        }
        inner.incident += 1;
        if inner.incidents.len() == INCIDENTS {
            inner.incidents.pop_front();
        }
        inner.incidents.push_back(Incident { reason, at: now, record });
    }

    /// When it returns `Ok` the controller touches no memory.
    pub(crate) fn disable(&self) -> Result<(), AdminError> {
        let mmio = &self.function.mmio;
        let until = self.clock.now().after(self.capabilities.ready_timeout());
        mmio.write32(CC, mmio.read32(CC) & !CC_ENABLE & !CC_SHUTDOWN_MASK);
        loop {
            match mmio.read32(CSTS) {
                REMOVED => return Err(AdminError::Gone),
                status if status & CSTS_READY == 0 => return Ok(()),
                _ if self.clock.now() >= until => return Err(AdminError::Stuck("not ready")),
                _ => self.function.irq.pause(PAUSE),
            }
        }
    }

    /// Maps the memory of an arena, once for all queues. `None`: it cannot be mapped, so its data is copied.
    pub(crate) fn map(&self, arena: &Arena) -> Result<Option<Arc<Mapping>>, Error> {
        let mut inner = self.inner.lock();
        inner.arenas.retain(|(_, mapping)| mapping.strong_count() > 0);
        if let Some(mapping) = inner.arenas.iter().find(|(id, _)| *id == arena.id()).and_then(|(_, mapping)| mapping.upgrade()) {
            return Ok(Some(mapping));
        }
        match Mapping::of(&self.function.dma, arena.region()) {
            Ok(mapping) => {
                let mapping = Arc::new(mapping);
                inner.arenas.push((arena.id(), Arc::downgrade(&mapping)));
                Ok(Some(mapping))
            }
            Err(DmaError::NotShareable) => Ok(None),
            Err(DmaError::CutOff) => Err(Error::Gone),
            Err(DmaError::System(error)) => {
                tracing::warn!("{}: memory for requests: {error}", self.function.name);
                Err(Error::NoResources)
            }
        }
    }

    /// Until the controller says that its cache is on the medium.
    fn shut_down(&self, inner: &Inner) -> Result<(), AdminError> {
        let mmio = &self.function.mmio;
        let seconds = inner.info.shutdown_seconds.clamp(5, 300);
        let until = self.clock.now().after(Duration::from_secs(seconds.into()));
        let configuration = mmio.read32(CC);
        if configuration == REMOVED {
            return Err(AdminError::Gone);
        }
        if mmio.read32(CSTS) & CSTS_READY == 0 {
            return Ok(());
        }
        mmio.write32(CC, configuration & !CC_SHUTDOWN_MASK | CC_SHUTDOWN);
        loop {
            match mmio.read32(CSTS) {
                REMOVED => return Err(AdminError::Gone),
                status if status & CSTS_SHUTDOWN_MASK == CSTS_SHUTDOWN_DONE => return Ok(()),
                status if status & CSTS_FATAL != 0 => return Err(AdminError::Fatal),
                _ if self.clock.now() >= until => return Err(AdminError::Stuck("shut down")),
                _ => self.function.irq.pause(PAUSE),
            }
        }
    }
}

impl Drop for Shared {
    /// No queue is left: each holds us. In a child made by fork it is its parent's.
    fn drop(&mut self) {
        if self.is_gone() || !self.is_of_this_process() {
            return;
        }
        let shut_down = self.shut_down(&self.inner.lock());
        if let Err(trouble) = shut_down {
            tracing::warn!("{}: shutting down: {trouble}", self.function.name);
        }
        if let Err(trouble) = self.disable() {
            tracing::warn!("{}: disabling: {trouble}", self.function.name);
            self.lose();
        }
    }
}
