//! The reset of a controller, after which it is made ready again.

use block::Error;

use crate::admin::AdminError;
use crate::progress::{Bringup, EventWork};
use crate::recorder::Reason;
use crate::shared::{Inner, PAUSE, Shared};

/// Disables the controller and makes it ready again, unless somebody did since `epoch`. `Ok`: the device reaches no memory of
/// commands that were in flight; [`Shared::is_gone`] tells whether it works again.
pub(crate) fn restart(shared: &Shared, inner: &mut Inner, epoch: u32) -> Result<(), Error> {
    if shared.epoch() != epoch {
        return Ok(());
    }
    if shared.is_gone() {
        // What was not certain then may be now: a server's process has ended.
        if !shared.is_quiet() {
            shared.cut_off();
        }
        return if shared.is_quiet() { Ok(()) } else { Err(Error::Gone) };
    }
    tracing::warn!("{}: the controller is reset", shared.function.name);
    let record = inner.admin.record();
    shared.remember(inner, Reason::ControllerReset, record);
    if let Err(trouble) = shared.disable() {
        tracing::error!("{}: the reset failed: {trouble}", shared.function.name);
        shared.lose();
        return if shared.is_quiet() { Ok(()) } else { Err(Error::Gone) };
    }
    inner.event = EventWork::None; // its command does not exist any more
    shared.note_reset();
    if let Err(trouble) = bring_up(shared, inner) {
        tracing::error!("{}: after the reset: {trouble}", shared.function.name);
        // It may have come to life half: what it knows by now are our admin queues.
        let disabled = shared.disable().is_ok();
        shared.lose();
        shared.note_quiet(disabled);
    }
    Ok(())
}

fn bring_up(shared: &Shared, inner: &mut Inner) -> Result<(), AdminError> {
    let mut bringup = Bringup::new(true);
    while !bringup.advance(shared, inner)? {
        if bringup.waits_for_answer() { shared.wait_admin() } else { shared.function.irq.pause(PAUSE) }
    }
    Ok(())
}
