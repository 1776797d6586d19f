//! The format of a WAL, and what is known of one.
//!
//! ```text
//!  header (32 bytes: magic, version, size of pages, ...)   then frames: header (24 bytes: page, pages of the database or 0, ...), page
//! ```

/// Bytes before the first frame.
pub const HEADER: usize = 32;
/// Bytes of a frame before its page.
pub const FRAME: usize = 24;
/// What ends a WAL that cannot be cut: no frame has page 0.
pub const NO_FRAME: [u8; FRAME] = [0; FRAME];

/// What the connections of a process know of a WAL.
#[derive(Default)]
pub struct WalState {
    /// Connections that have it open.
    pub opened: usize,
    /// Bytes of a page; 0: not known yet.
    pub page: u64,
    /// The frame that commits the transaction under way.
    pub commit_at: Option<u64>,
    /// The connection that wrote it, by a number of its open WAL.
    pub writer: Option<u64>,
    /// The transaction under way makes the database longer.
    pub grows: bool,
    /// A frame that has not happened, and could not be cut off yet.
    pub to_cut: Option<u64>,
}

impl WalState {
    /// Whether a connection uses it.
    pub fn is_open(&self) -> bool {
        self.opened > 0
    }

    /// The transaction under way is over.
    pub fn is_committed(&mut self) {
        (self.commit_at, self.grows) = (None, false);
    }
}

/// Reads a number of the header.
pub fn number(bytes: &[u8]) -> u64 {
    u64::from(u32::from_be_bytes(bytes.try_into().expect("4 bytes")))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_transaction_ends() {
        let mut wal = WalState { opened: 1, commit_at: Some(32), grows: true, ..WalState::default() };
        wal.is_committed();
        assert!(wal.is_open() && wal.commit_at.is_none() && !wal.grows);
    }
}
