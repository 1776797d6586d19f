//! Management of a controller: reset, and attachment of namespaces.

use block::Error;

use crate::admin::{AdminError, Wants};
use crate::controller::Controller;
use crate::entry::{Entry, admin};
use crate::reset::restart;

impl Controller {
    /// Resets the controller now. Its queues send their commands in flight again; they are not notified.
    ///
    /// # Errors
    /// The controller did not stop: it may still access the memory of commands that were in flight. [`Controller::is_gone`] tells
    /// whether it works again.
    pub fn reset(&self) -> Result<(), Error> {
        let mut inner = self.shared.inner.lock();
        let epoch = self.shared.epoch();
        restart(&self.shared, &mut inner, epoch)
    }

    /// Attaches a namespace of its subsystem to the controller, or detaches one. The controller then sends a
    /// [`crate::Notice::Namespaces`].
    ///
    /// # Errors
    /// The controller does not support Namespace Attachment, there is no namespace of that number, or it is attached (detached) already.
    pub fn attach(&self, namespace: u32, attached: bool) -> Result<(), AdminError> {
        let mut inner = self.shared.inner.lock();
        let entry = Entry::new(admin::NAMESPACE_ATTACHMENT, namespace).with_dw(10, u32::from(!attached));
        // A list of controllers: how many, and which.
        let list = [1_u16.to_le_bytes(), inner.info.id.to_le_bytes()].concat();
        let deadline = self.shared.clock.now().after(self.shared.options.admin_timeout);
        if self.is_gone() {
            return Err(AdminError::Gone);
        }
        let ticket = inner.admin.submit_with(entry, Some(&list), Wants::Completion, deadline)?;
        self.shared.answer(&mut inner, ticket).map(drop)
    }
}
