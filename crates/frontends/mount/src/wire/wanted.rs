//! Whether the kernel still waits for the reply to the request that this thread serves.
//!
//! A call may be held up by the slow side until long after the watchdog has replied. Whoever was told of the failure may have written the
//! data again meanwhile, which a late truncation, removal or write would destroy; so such steps ask immediately before they act.

use std::cell::RefCell;

use rustix::io::Errno;

use super::in_flight::Ticket;

thread_local! {
    static SERVED: RefCell<Option<Ticket>> = const { RefCell::new(None) };
}

/// Puts the request that this thread served before back in its place.
struct ServedBefore(Option<Ticket>);

impl Drop for ServedBefore {
    fn drop(&mut self) {
        SERVED.set(self.0.take());
    }
}

/// Does a part of the work for a request on this thread.
pub(super) fn serving<T>(ticket: Ticket, work: impl FnOnce() -> T) -> T {
    let _before = ServedBefore(SERVED.replace(Some(ticket)));
    work()
}

/// Returns whether a step that cannot be taken back may be done: yes, unless the watchdog has replied to the request that this thread
/// serves.
///
/// # Errors
/// ECANCELED, which nobody gets: the request has had its reply.
pub fn check_wanted() -> Result<(), Errno> {
    let is_wanted = SERVED.with_borrow(|ticket| ticket.as_ref().is_none_or(Ticket::is_wanted));
    if is_wanted { Ok(()) } else { Err(Errno::CANCELED) }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::wire::decode::RequestHeader;
    use crate::wire::in_flight::InFlight;
    use std::sync::Arc;

    #[test]
    fn a_step_for_a_request_that_has_had_its_reply_is_refused() {
        let requests = Arc::<InFlight>::default();
        let begin = |unique| requests.begin(&RequestHeader { opcode: 3, unique, ino: 7, uid: 0, gid: 0, pid: 9 }, 0).expect("room");
        let ticket = begin(2);
        assert_eq!(check_wanted(), Ok(()));
        serving(ticket.clone(), || {
            assert_eq!(check_wanted(), Ok(()));
            requests.each(|seen| assert!(requests.take_over(&seen)));
            assert_eq!(check_wanted(), Err(Errno::CANCELED));
            serving(begin(4), || assert_eq!(check_wanted(), Ok(())));
            assert_eq!(check_wanted(), Err(Errno::CANCELED));
        });
        assert_eq!(check_wanted(), Ok(()));
        assert!(!ticket.claim());
    }
}
