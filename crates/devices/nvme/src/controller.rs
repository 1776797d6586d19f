//! A controller: opened in steps, served while it runs, reset as a last resort, and shut down cleanly.
//!
//! Its queues (`crate::queue`) have one owner each and do not know each other. This module holds their shared state: the admin queue,
//! behind a lock that no I/O request takes, and two words that they poll: how often the controller was reset, and whether it is gone.
//!
//! What becomes of a request that is not answered (the deadline is `block::Tracked`'s, which stands above):
//!
//! ```text
//!   deadline -> cancel: Abort -> grace -> reported as Timeout, its memory held
//!            -> reset: Delete I/O queue ---- works ----> its memory is free, the queue is made anew
//!                           | does not
//!                           v
//!               controller disabled -------- works ----> all queues are made anew; what others had in flight is sent again
//!                           | does not
//!                           v
//!               gone: cut off from memory; every request is reported as Gone
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use block::buffer::ArenaId;
use block::clock::Monotonic;
use block::{Arena, Clock, Error, OpenError, Time};
use parking_lot::Mutex;

use crate::admin::{Admin, AdminError, Ticket, Wants};
use crate::bringup::{Bringup, capabilities};
use crate::entry::{CompletionEntry, Entry, admin};
use crate::events::{Events, Notice};
use crate::identify::{ControllerInfo, NamespaceError, NamespaceInfo, NvmLimits, Page, Smart};
use crate::mapping::Mapping;
use crate::namespace::Namespace;
use crate::pair::Shadow;
use crate::recorder::{EVENTS_MAX, Flight, Flights, Reason, Record, with_suffix};
use crate::registers::{
    CC, CC_ENABLE, CC_SHUTDOWN, CC_SHUTDOWN_MASK, CSTS, CSTS_FATAL, CSTS_READY, CSTS_SHUTDOWN_DONE, CSTS_SHUTDOWN_MASK, Capabilities,
    REMOVED,
};
use pci::{DmaError, Function};

/// The pause between two reads of a register.
const PAUSE: Duration = Duration::from_millis(1);
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
    /// The asynchronous events of the controller.
    pub events: Events,
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
            self.quiet.fetch_or(self.function.dma.cut_off(), Ordering::AcqRel);
        }
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

    fn wait_admin(&self) {
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

    /// Disables the controller and makes it ready again, unless somebody did since `epoch`. `Ok`: the device reaches no memory of
    /// commands that were in flight; [`Shared::is_gone`] tells whether it works again.
    pub(crate) fn restart(&self, inner: &mut Inner, epoch: u32) -> Result<(), Error> {
        if self.epoch() != epoch {
            return Ok(());
        }
        if self.is_gone() {
            // What was not certain then may be now: a server's process has ended.
            if !self.is_quiet() {
                self.quiet.fetch_or(self.function.dma.cut_off(), Ordering::AcqRel);
            }
            return if self.is_quiet() { Ok(()) } else { Err(Error::Gone) };
        }
        tracing::warn!("{}: the controller is reset", self.function.name);
        let record = inner.admin.record();
        self.remember(inner, Reason::ControllerReset, record);
        if let Err(trouble) = self.disable() {
            tracing::error!("{}: the reset failed: {trouble}", self.function.name);
            self.lose();
            return if self.is_quiet() { Ok(()) } else { Err(Error::Gone) };
        }
        inner.events.clear();
        self.epoch.fetch_add(1, Ordering::AcqRel);
        if let Err(trouble) = self.bring_up(inner) {
            tracing::error!("{}: after the reset: {trouble}", self.function.name);
            // It may have come to life half: what it knows by now are our admin queues.
            let disabled = self.disable().is_ok();
            self.lose();
            self.quiet.fetch_or(disabled, Ordering::AcqRel);
        }
        Ok(())
    }

    /// When it returns `Ok` the controller touches no memory.
    fn disable(&self) -> Result<(), AdminError> {
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

    fn bring_up(&self, inner: &mut Inner) -> Result<(), AdminError> {
        let mut bringup = Bringup::new(true);
        while !bringup.advance(self, inner)? {
            if bringup.waits_for_answer() { self.wait_admin() } else { self.function.irq.pause(PAUSE) }
        }
        Ok(())
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

    /// Polls the admin queue and handles events. Does not block, not even for the lock.
    pub(crate) fn serve(&self) {
        if let Some(mut inner) = self.inner.try_lock() {
            self.serve_locked(&mut inner);
        }
    }

    fn serve_locked(&self, inner: &mut Inner) {
        if self.is_gone() {
            return;
        }
        inner.admin.poll();
        Events::advance(self, inner);
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
        if self.is_gone() || self.pid != std::process::id() {
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

/// A controller on its way. Nothing in here waits: see [`Opening::advance`].
pub struct Opening {
    shared: Arc<Shared>,
    bringup: Bringup,
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opening({})", self.shared.function.name)
    }
}

fn explain(name: &str, trouble: &AdminError) -> OpenError {
    OpenError::Unusable(format!("{name}: {trouble}"))
}

impl Opening {
    /// Looks at the function and begins.
    ///
    /// # Errors
    /// It is no controller for this driver, or there is no memory for its queues.
    pub fn begin(function: Function, options: Options, clock: Arc<dyn Clock>) -> Result<Opening, OpenError> {
        let name = function.name.clone();
        // No more than there can be: also a power of two.
        let records = if options.records == 0 { 0 } else { options.records.clamp(2, EVENTS_MAX).next_power_of_two() };
        let options = Options { queues: options.queues.clamp(1, 4096), records, ..options };
        let made = Opening::make(function, options, clock);
        made.map(|shared| Opening { shared: Arc::new(shared), bringup: Bringup::new(false) }).map_err(|trouble| explain(&name, &trouble))
    }

    fn make(function: Function, options: Options, clock: Arc<dyn Clock>) -> Result<Shared, AdminError> {
        let capabilities = capabilities(&*function.mmio)?;
        let sizes = (capabilities.entries_max(), capabilities.stride());
        let flight = Flight::new(&function.name, (options.queues, options.records), options.record_file.as_deref());
        let flight = flight.map_err(|error| match &options.record_file {
            Some(file) => AdminError::Unusable(format!("its flight recorder, {}: {error}", file.display())),
            None => DmaError::System(error).into(),
        })?;
        let admin = Admin::new(&function.mmio, &function.dma, sizes, &flight)?;
        let shadow = if options.shadow_doorbells { Some(Shadow::new(&function.dma)?) } else { None };
        let inner = Inner {
            admin,
            shadow,
            shadow_on: false,
            info: ControllerInfo::default(),
            limits: NvmLimits::default(),
            namespaces: Vec::new(),
            changed: false,
            queues: Vec::new(),
            arenas: Vec::new(),
            events: Events::default(),
            incidents: VecDeque::with_capacity(INCIDENTS),
            incident: 0,
        };
        Ok(Shared {
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
        })
    }

    /// Goes on as far as it goes without waiting. The controller, once it is ready; none: come again.
    ///
    /// # Errors
    /// It does not become ready in time, refuses, or is gone.
    pub fn advance(&mut self) -> Result<Option<Controller>, OpenError> {
        let shared = &self.shared;
        let ready = self.bringup.advance(shared, &mut shared.inner.lock());
        match ready {
            Ok(true) => Ok(Some(Controller { shared: Arc::clone(shared) })),
            Ok(false) => Ok(None),
            Err(trouble) => {
                if matches!(trouble, AdminError::Gone) {
                    shared.lose();
                }
                Err(explain(&shared.function.name, &trouble))
            }
        }
    }

    /// Waits until [`Opening::advance`] may have something to do.
    pub fn wait(&self) {
        if self.bringup.waits_for_answer() { self.shared.wait_admin() } else { self.shared.function.irq.pause(PAUSE) }
    }
}

/// A controller that is ready. Clones are the same one; it is shut down when the last of them and of its queues is dropped.
#[derive(Clone)]
pub struct Controller {
    pub(crate) shared: Arc<Shared>,
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Controller({})", self.shared.function.name)
    }
}

/// A controller that this does not keep open.
#[derive(Clone)]
pub struct WeakController(Weak<Shared>);

impl fmt::Debug for WeakController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakController")
    }
}

impl WeakController {
    /// Returns the controller if it is open and not gone.
    pub fn get(&self) -> Option<Controller> {
        self.0.upgrade().map(|shared| Controller { shared }).filter(|controller| !controller.is_gone())
    }

    /// Returns whether the controller is still open.
    pub fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

impl Controller {
    /// Returns a weak reference, for a table of open controllers.
    pub fn downgrade(&self) -> WeakController {
        WeakController(Arc::downgrade(&self.shared))
    }

    /// Opens it, and waits until it is ready.
    ///
    /// # Errors
    /// As [`Opening::begin`] and [`Opening::advance`].
    pub fn open(function: Function, options: Options) -> Result<Controller, OpenError> {
        Controller::open_with(function, options, Arc::new(Monotonic::default()))
    }

    /// By another clock.
    ///
    /// # Errors
    /// As [`Controller::open`].
    pub fn open_with(function: Function, options: Options, clock: Arc<dyn Clock>) -> Result<Controller, OpenError> {
        let mut opening = Opening::begin(function, options, clock)?;
        loop {
            if let Some(controller) = opening.advance()? {
                return Ok(controller);
            }
            opening.wait();
        }
    }

    /// Returns the controller's description of itself.
    pub fn info(&self) -> ControllerInfo {
        self.shared.inner.lock().info.clone()
    }

    /// Its namespaces by number, and why some cannot be used.
    pub fn namespaces(&self) -> Vec<(u32, Result<NamespaceInfo, NamespaceError>)> {
        self.shared.inner.lock().namespaces.clone()
    }

    /// Returns the number of queue pairs that the controller granted.
    pub fn queues(&self) -> usize {
        self.shared.inner.lock().queues.len()
    }

    /// Returns whether shadow doorbells are in use.
    pub fn has_shadow_doorbells(&self) -> bool {
        self.shared.inner.lock().shadow_on
    }

    /// A namespace as a block device.
    ///
    /// # Errors
    /// There is none of that number, or it cannot be used.
    pub fn namespace(&self, id: u32) -> Result<Namespace, OpenError> {
        let name = &self.shared.function.name;
        let changes = self.shared.changes();
        let found = self.namespaces().into_iter().find(|(found, _)| *found == id);
        match found {
            Some((_, Ok(info))) => Ok(Namespace::new(self.clone(), info, changes)),
            Some((_, Err(why))) => Err(OpenError::Unusable(format!("{name}, namespace {id}: {why}"))),
            None => Err(OpenError::Unusable(format!("{name} has no namespace {id}"))),
        }
    }

    /// Handles pending events of the controller without blocking. Queues also do that when they have to wait.
    pub fn serve(&self) {
        self.shared.serve();
    }

    /// Takes the next notice of an event that the controller reported.
    pub fn take_notice(&self) -> Option<Notice> {
        self.shared.inner.lock().events.take()
    }

    /// Reads the current health of the drive (SMART log page).
    ///
    /// # Errors
    /// The controller does not complete the command, or refuses it.
    pub fn smart(&self) -> Result<Smart, AdminError> {
        let mut inner = self.shared.inner.lock();
        let (_, page) = self.shared.ask(&mut inner, Entry::log_page(crate::entry::log::SMART, 512), true)?;
        Ok(page.as_ref().map(Smart::from_page).unwrap_or_default())
    }

    /// Whether nothing more comes from it.
    pub fn is_gone(&self) -> bool {
        self.shared.is_gone()
    }

    /// Whether this process opened it, and not one that it was forked from.
    pub fn is_of_this_process(&self) -> bool {
        self.shared.pid == std::process::id()
    }

    /// Returns the file of the flight recorder, if it does not use only memory of this process.
    pub fn record_file(&self) -> Option<&std::path::Path> {
        self.shared.options.record_file.as_deref()
    }

    /// How often it was reset.
    pub fn resets(&self) -> u32 {
        self.shared.epoch()
    }

    /// Returns the number of completion entries for admin commands that do not exist or have completed: a fault of the device.
    pub fn strays(&self) -> u64 {
        self.shared.inner.lock().admin.strays()
    }

    /// Returns the recorder contents of the last 16 incidents, oldest first.
    pub fn incidents(&self) -> Vec<Record> {
        self.shared.inner.lock().incidents.iter().map(|incident| incident.record.clone()).collect()
    }
}
