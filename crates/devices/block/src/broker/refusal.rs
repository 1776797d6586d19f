//! Why the broker says no.

use serde::{Deserialize, Serialize};

/// A refused request for a queue, for memory or for a change: what was asked for, what is allowed, what to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Refusal {
    /// The user, and its group, have no grant for the device.
    #[error("user {user} has no grant for {device}: root can give one with `hotshelf queue grant {user} {device}`")]
    NoGrant {
        /// Who asked.
        user: u32,
        /// For what.
        device: String,
    },
    /// The broker does not own such a device.
    #[error("{device} is not served by this broker: `hotshelf queue serve` names its devices")]
    UnknownDevice {
        /// For what.
        device: String,
    },
    /// The blocks are not within the grant, or not on the device.
    #[error("blocks {first} to {} are outside the grant, which is {granted} blocks from {granted_first} on", Last(*first, *blocks))]
    OutOfRange {
        /// First block asked for.
        first: u64,
        /// How many.
        blocks: u64,
        /// First block of the grant.
        granted_first: u64,
        /// How many.
        granted: u64,
    },
    /// The grant is for reading.
    #[error("the grant is for reading only: ask for a read-only queue")]
    ReadOnly,
    /// More requests in flight than granted.
    #[error("a depth of {depth} was asked for, the grant allows {most}")]
    DepthTooGreat {
        /// Asked for.
        depth: u32,
        /// Allowed.
        most: u32,
    },
    /// A depth is a power of two from 1 to 4096.
    #[error("invalid depth {depth}: use a power of two from 1 to 4096")]
    BadDepth {
        /// Asked for.
        depth: u32,
    },
    /// All queues of the grant are open.
    #[error("{open} queues are open, the grant allows {most}: close one first")]
    TooManyQueues {
        /// Open under the grant.
        open: u32,
        /// Allowed.
        most: u32,
    },
    /// More shared memory than granted.
    #[error("{bytes} bytes of shared memory in all were asked for, the grant allows {most}")]
    TooMuchMemory {
        /// With what is registered already.
        bytes: u64,
        /// Allowed.
        most: u64,
    },
    /// The memory is not what it should be.
    #[error("the memory cannot be shared: {what}")]
    BadMemory {
        /// What is wrong with it.
        what: String,
    },
    /// Too many connections.
    #[error("too many clients are connected ({most}): close one first")]
    TooManyClients {
        /// Allowed.
        most: u32,
    },
    /// A change of the policy by somebody who may not.
    #[error("only root and the broker's own user (user {owner}) may do that")]
    NotAllowed {
        /// The broker's user.
        owner: u32,
    },
    /// No such grant.
    #[error("there is no such grant: `hotshelf queue list` shows them")]
    NoSuchGrant,
    /// The policy could not be written.
    #[error("the change was not made: {what}")]
    NotWritten {
        /// Why.
        what: String,
    },
    /// The device did not open a queue, or not take the memory.
    #[error("the device refuses: {what}")]
    DeviceFailed {
        /// What it said.
        what: String,
    },
    /// The words were not understood, or came in the wrong order.
    #[error("not a request this broker knows: {what}")]
    BadRequest {
        /// What is wrong.
        what: String,
    },
    /// The broker is about to end.
    #[error("the broker is ending")]
    Ending,
}

/// The last block of a range, for people.
struct Last(u64, u64);

impl std::fmt::Display for Last {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.checked_add(self.1.saturating_sub(1)) {
            Some(last) => write!(f, "{last}"),
            None => f.write_str("beyond 2^64"),
        }
    }
}
