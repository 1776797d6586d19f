//! What people ask of a controller, beside reads and writes.

use block::Error;

use crate::admin::{AdminError, Wants};
use crate::controller::Controller;
use crate::entry::{Entry, admin};

impl Controller {
    /// Resets it now. What its queues have in flight is sent again; they are told nothing.
    ///
    /// # Errors
    /// It did not stop: it may still reach memory of what was in flight. Whether it works again is told by [`Controller::is_gone`].
    pub fn reset(&self) -> Result<(), Error> {
        let mut inner = self.shared.inner.lock();
        let epoch = self.shared.epoch();
        self.shared.restart(&mut inner, epoch)
    }

    /// Attaches a namespace of its subsystem to it, or detaches one. It tells of the change by a [`crate::Notice::Namespaces`].
    ///
    /// # Errors
    /// It knows no management of namespaces, has none of that number, or it is attached (detached) already.
    pub fn attach(&self, namespace: u32, attached: bool) -> Result<(), AdminError> {
        let mut inner = self.shared.inner.lock();
        let entry = Entry::new(admin::NAMESPACE_ATTACHMENT, namespace).with_dw(10, u32::from(!attached));
        // A list of controllers: how many, and which.
        let list = [1_u16.to_le_bytes(), inner.info.id.to_le_bytes()].concat();
        let deadline = self.shared.clock.now().after(self.shared.options.admin_timeout);
        if self.is_gone() {
            return Err(AdminError::Gone);
        }
        let ticket = inner.admin.submit_with(entry, Some(&list), Wants::CompletionEntry, deadline)?;
        self.shared.answer(&mut inner, ticket).map(drop)
    }
}
