//! Takes a controller from any state to one that accepts reads and writes. No step blocks.
//!
//! ```text
//!   Disable -> Disabled -> Enabled -> Controller -> Limits -> Queues -> Events -> Doorbells -> List -> Namespace* -> Ready
//!      ^                                                                 |                       ^
//!      '-- a reset begins here, and ends before List --------------------'     a rescan begins --'
//! ```
//!
//! CAP.TO limits the wait for a register; the driver's own deadline limits the wait for a command.

use crate::admin::{AdminError, Ticket, Wants};
use crate::entry::{Entry, admin, feature};
use crate::identify::{ControllerInfo, NamespaceError, NamespaceInfo, NvmLimits, namespace_list, what};
use crate::mapping::PAGE_BYTES;
use crate::progress::{Bringup, Step};
use crate::registers::{ACQ, AQA, ASQ, CAP, CC, CC_ENABLE, CC_SIZES, CSTS, CSTS_FATAL, CSTS_READY, Capabilities, REMOVED};
use crate::shared::{Inner, Shared};

/// The number of Asynchronous Event Requests kept in flight, if the controller accepts as many.
const EVENT_REQUESTS: u16 = 2;
/// The number of namespaces that are identified at most: more than any drive has.
const NAMESPACES_MAX: usize = 1024;
/// The events that the driver enables: all critical warnings and changed namespaces.
const EVENTS_WANTED: u32 = 0x1f;
const EVENT_NAMESPACES: u32 = 1 << 8;

impl Bringup {
    /// Goes on as far as it goes without waiting. True: it is done.
    pub(crate) fn advance(&mut self, shared: &Shared, inner: &mut Inner) -> Result<bool, AdminError> {
        inner.admin.poll();
        loop {
            let before = (self.step, self.asked, self.ids.len());
            match self.step {
                Step::Ready => return Ok(true),
                Step::Disable | Step::Disabled | Step::Enabled => self.registers(shared, inner)?,
                _ => self.commands(shared, inner)?,
            }
            if before == (self.step, self.asked, self.ids.len()) {
                return Ok(false);
            }
        }
    }

    fn registers(&mut self, shared: &Shared, inner: &mut Inner) -> Result<(), AdminError> {
        let mmio = &shared.function.mmio;
        let status = mmio.read32(CSTS);
        if status == REMOVED {
            return Err(AdminError::Gone);
        }
        let now = shared.clock.now();
        match self.step {
            Step::Disable => {
                mmio.write32(CC, mmio.read32(CC) & !CC_ENABLE);
                self.deadline = now.after(shared.capabilities.ready_timeout());
                self.step = Step::Disabled;
            }
            Step::Disabled if status & CSTS_READY == 0 => {
                inner.admin.clear();
                enable(shared, inner);
                self.deadline = now.after(shared.capabilities.ready_timeout());
                self.step = Step::Enabled;
            }
            Step::Enabled if status & CSTS_FATAL != 0 => return Err(AdminError::Fatal),
            Step::Enabled if status & CSTS_READY != 0 => self.step = Step::Controller,
            _ if now >= self.deadline => return Err(AdminError::Stuck(if self.step == Step::Enabled { "ready" } else { "not ready" })),
            _ => {}
        }
        Ok(())
    }

    fn commands(&mut self, shared: &Shared, inner: &mut Inner) -> Result<(), AdminError> {
        let now = shared.clock.now();
        let Some(ticket) = self.asked else {
            match self.command(shared, inner) {
                Some((entry, page)) => {
                    self.asked = Some(inner.admin.submit(entry, page, Wants::Completion, now.after(shared.options.admin_timeout))?);
                }
                None => self.next(inner)?,
            }
            return Ok(());
        };
        let Some(answer) = inner.admin.take(ticket, now) else {
            let status = shared.function.mmio.read32(CSTS);
            return match status {
                REMOVED => Err(AdminError::Gone),
                status if status & CSTS_FATAL != 0 => Err(AdminError::Fatal),
                _ => Ok(()),
            };
        };
        self.asked = None;
        self.answered(shared, inner, ticket, answer.map(|answer| answer.result()))
    }

    /// Returns the command of this step and whether it transfers a page. `None`: the step needs no command.
    fn command(&self, shared: &Shared, inner: &Inner) -> Option<(Entry, bool)> {
        let id = self.ids.last().copied().unwrap_or(0);
        Some(match self.step {
            Step::Controller => (Entry::identify(what::CONTROLLER, 0), true),
            Step::Limits => (Entry::identify(what::NVM_CONTROLLER, 0), true),
            Step::Queues => {
                let wanted = u32::from(shared.options.queues.max(1) - 1);
                (Entry::set_feature(feature::NUMBER_OF_QUEUES, wanted | wanted << 16), false)
            }
            Step::Events => {
                let namespaces = if inner.info.tells_namespaces { EVENT_NAMESPACES } else { 0 };
                (Entry::set_feature(feature::ASYNC_EVENTS, EVENTS_WANTED | namespaces), false)
            }
            Step::Doorbells => {
                let (values, marks) = inner.shadow.as_ref().filter(|_| inner.info.doorbell_buffer)?.addresses();
                (Entry::new(admin::DOORBELL_BUFFER, 0).with_data(values, marks), false)
            }
            Step::List => (Entry::identify(what::ACTIVE_NAMESPACES, 0), true),
            Step::Namespace if id != 0 => (Entry::identify(what::NAMESPACE, id), true),
            Step::Descriptors if self.is_usable(id) => (Entry::identify(what::DESCRIPTORS, id), true),
            // It came with version 2.
            Step::Independent if self.is_usable(id) && inner.info.version.0 >= 2 => {
                (Entry::identify(what::INDEPENDENT_NAMESPACE, id), true)
            }
            _ => return None,
        })
    }

    fn is_usable(&self, id: u32) -> bool {
        matches!(self.found.last(), Some((found, Ok(_))) if *found == id)
    }

    fn answered(&mut self, shared: &Shared, inner: &mut Inner, ticket: Ticket, result: Result<u32, AdminError>) -> Result<(), AdminError> {
        let refused = match result {
            Err(AdminError::Status(status)) => Some(status),
            Err(trouble) => return Err(trouble),
            Ok(_) => None,
        };
        let value = result.unwrap_or(0);
        match (self.step, refused) {
            (Step::Controller | Step::Queues | Step::List, Some(status)) => return Err(AdminError::Status(status)),
            (Step::Controller, None) => inner.info = ControllerInfo::from_page(&inner.admin.page(ticket)),
            // Older controllers have no such page; then there are no such limits.
            (Step::Limits, None) => inner.limits = NvmLimits::from_page(&inner.admin.page(ticket)),
            (Step::Queues, None) => inner.grant(value, shared.options.queues),
            (Step::Doorbells, _) => inner.shadow_on = refused.is_none(),
            (Step::List, None) => {
                self.ids = namespace_list(&inner.admin.page(ticket));
                self.ids.truncate(NAMESPACES_MAX);
                self.ids.reverse();
            }
            (Step::Namespace, _) => {
                let id = self.ids.last().copied().unwrap_or(0);
                let page = inner.admin.page(ticket);
                let asking = |status| Err(NamespaceError::Asking(format!("{status:?}")));
                self.found.push((id, refused.map_or_else(|| NamespaceInfo::from_page(id, &page), asking)));
            }
            (Step::Descriptors, None) => {
                let page = inner.admin.page(ticket);
                if let Some((id, Ok(info))) = self.found.pop() {
                    self.found.push((id, info.with_descriptors(&page)));
                }
            }
            (Step::Independent, None) => {
                let page = inner.admin.page(ticket);
                if let Some((id, Ok(info))) = self.found.pop() {
                    self.found.push((id, Ok(info.with_independent(&page))));
                }
            }
            // Events, descriptors and the last page are not needed.
            _ => {}
        }
        self.next(inner)
    }

    fn next(&mut self, inner: &mut Inner) -> Result<(), AdminError> {
        self.step = match self.step {
            Step::Controller => Step::Limits,
            Step::Limits => Step::Queues,
            Step::Queues => Step::Events,
            Step::Events => {
                arm_events(inner)?;
                Step::Doorbells
            }
            Step::Doorbells if self.again => Step::Ready,
            Step::Namespace if !self.ids.is_empty() => Step::Descriptors,
            Step::Doorbells => Step::List,
            Step::Descriptors => Step::Independent,
            Step::Independent => {
                self.ids.pop();
                Step::Namespace
            }
            Step::List => Step::Namespace,
            _ => {
                let before = std::mem::replace(&mut inner.namespaces, std::mem::take(&mut self.found));
                inner.changed |= before.iter().any(|(id, info)| shape(info) != inner.namespace(*id).and_then(shape));
                Step::Ready
            }
        };
        Ok(())
    }
}

/// What queues depend on.
fn shape(info: &Result<NamespaceInfo, NamespaceError>) -> Option<(u32, u64)> {
    info.as_ref().ok().map(|info| (info.block_bytes, info.blocks))
}

fn enable(shared: &Shared, inner: &mut Inner) {
    let mmio = &shared.function.mmio;
    let last = inner.admin.entries() - 1;
    let (submission, completion) = inner.admin.addresses();
    mmio.write32(AQA, last | last << 16);
    mmio.write64(ASQ, submission);
    mmio.write64(ACQ, completion);
    if let Some(shadow) = &inner.shadow {
        shadow.clear();
    }
    mmio.write32(CC, CC_SIZES | CC_ENABLE);
}

fn arm_events(inner: &mut Inner) -> Result<(), AdminError> {
    for _ in 0..EVENT_REQUESTS.min(inner.info.events) {
        inner.request_event()?;
    }
    Ok(())
}

/// Whether this driver can work with a controller that says this of itself.
pub(crate) fn capabilities(mmio: &dyn pci::Mmio) -> Result<Capabilities, AdminError> {
    let raw = mmio.read64(CAP);
    if raw == u64::MAX {
        return Err(AdminError::Gone);
    }
    let found = Capabilities(raw);
    let unusable = |what: &str| Err(AdminError::Unusable(what.to_owned()));
    if !found.has_nvm() {
        return unusable("the controller knows no reads and writes (NVM command set)");
    }
    if !found.has_small_pages() {
        return unusable("the controller takes no memory in pages of 4 KiB");
    }
    if found.entries_max() < 2 {
        return unusable("the controller says that its queues have no entries");
    }
    if mmio.bytes() < crate::registers::completion_doorbell(1, found.stride()) + PAGE_BYTES.min(4) {
        return unusable("the controller's registers have no room for the doorbells of a queue");
    }
    Ok(found)
}
