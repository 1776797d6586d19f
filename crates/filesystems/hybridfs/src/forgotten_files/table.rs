//! What is known of the files that the kernel has forgotten.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::numbers::NumberTable;

/// What is known of files that are not known.
#[derive(Debug)]
pub(crate) struct ForgottenFiles {
    pub(super) table: Mutex<Option<NumberTable>>,
    /// Every forgotten file is in the table.
    pub(super) complete: AtomicBool,
    /// End and duration of the last walk; held while one goes on.
    pub(super) walked: Mutex<Option<(Instant, Duration)>>,
}

impl ForgottenFiles {
    /// With the table, if there is one, and whether it is complete.
    pub fn new(numbers: Option<(NumberTable, bool)>) -> ForgottenFiles {
        let complete = numbers.as_ref().is_some_and(|(_, complete)| *complete);
        let table = Mutex::new(numbers.map(|(table, _)| table));
        ForgottenFiles { table, complete: AtomicBool::new(complete), walked: Mutex::new(None) }
    }
}
