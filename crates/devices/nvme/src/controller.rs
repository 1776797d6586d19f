//! A controller: opened in steps, served while it runs, reset as a last resort, and shut down cleanly.
//!
//! Its queues (`crate::queue`) have one owner each and do not know each other; `crate::shared` is what they have in common.
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

use std::fmt;
use std::sync::{Arc, Weak};

use block::clock::Monotonic;
use block::{Clock, OpenError};

use crate::admin::{Admin, AdminError};
use crate::bringup::capabilities;
use crate::entry::Entry;
use crate::events;
use crate::identify::{ControllerInfo, NamespaceError, NamespaceInfo, Smart};
use crate::notice::Notice;
use crate::pair::Shadow;
use crate::progress::Bringup;
use crate::recorder::{EVENTS_MAX, Flight, Record};
use crate::shared::{Inner, Options, PAUSE, Shared};
use pci::{DmaError, Function};

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
        Ok(Shared::new(function, options, clock, capabilities, flight, Inner::new(admin, shadow)))
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
        self.shared.inner.lock().queues()
    }

    /// Returns whether shadow doorbells are in use.
    pub fn has_shadow_doorbells(&self) -> bool {
        self.shared.inner.lock().shadow_on
    }

    /// Handles pending events of the controller without blocking. Queues also do that when they have to wait.
    pub fn serve(&self) {
        events::serve(&self.shared);
    }

    /// Takes the next notice of an event that the controller reported.
    pub fn take_notice(&self) -> Option<Notice> {
        self.shared.inner.lock().notices.take()
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
        self.shared.is_of_this_process()
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
        self.shared.inner.lock().incidents()
    }
}
