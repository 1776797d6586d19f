//! The reasons why the broker refuses a request.

use serde::{Deserialize, Serialize};

/// A refused request for a queue, for memory or for a change: the requested value, the allowed value, and a remedy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Refusal {
    /// Neither the user nor its group has a grant for the device.
    #[error("user {user} has no grant for {device}: root can give one with `hotshelf queue grant {user} {device}`")]
    NoGrant {
        /// The user ID of the client.
        user: u32,
        /// The name of the requested device.
        device: String,
    },
    /// The broker does not own the device.
    #[error("{device} is not served by this broker: `hotshelf queue serve` names its devices")]
    UnknownDevice {
        /// The name of the requested device.
        device: String,
    },
    /// The blocks are outside the grant, or outside the device.
    #[error("blocks {first} to {} are outside the grant, which is {granted} blocks from {granted_first} on", Last(*first, *blocks))]
    OutOfRange {
        /// The first requested block.
        first: u64,
        /// The number of requested blocks.
        blocks: u64,
        /// The first block of the grant.
        granted_first: u64,
        /// The number of granted blocks.
        granted: u64,
    },
    /// The grant allows reads only.
    #[error("the grant is for reading only: ask for a read-only queue")]
    ReadOnly,
    /// The depth exceeds the depth of the grant.
    #[error("a depth of {depth} was asked for, the grant allows {most}")]
    DepthTooGreat {
        /// The requested depth of the queue.
        depth: u32,
        /// The maximum depth under the grant.
        most: u32,
    },
    /// The depth is not a power of two from 1 to 4096.
    #[error("invalid depth {depth}: use a power of two from 1 to 4096")]
    BadDepth {
        /// The requested depth of the queue.
        depth: u32,
    },
    /// All queues of the grant are open.
    #[error("{open} queues are open, the grant allows {most}: close one first")]
    TooManyQueues {
        /// The number of queues open under the grant.
        open: u32,
        /// The maximum number of queues of the grant.
        most: u32,
    },
    /// The shared memory exceeds the limit of the grant.
    #[error("{bytes} bytes of shared memory in all were asked for, the grant allows {most}")]
    TooMuchMemory {
        /// The requested total, including memory already registered, in bytes.
        bytes: u64,
        /// The maximum under the grant, in bytes.
        most: u64,
    },
    /// The memory does not fit the requirements.
    #[error("the memory cannot be shared: {what}")]
    BadMemory {
        /// The property that is wrong.
        what: String,
    },
    /// Too many clients are connected.
    #[error("too many clients are connected ({most}): close one first")]
    TooManyClients {
        /// The maximum number of connections.
        most: u32,
    },
    /// The user may not change the policy.
    #[error("only root and the broker's own user (user {owner}) may do that")]
    NotAllowed {
        /// The user ID of the broker.
        owner: u32,
    },
    /// No grant has the given ID.
    #[error("there is no such grant: `hotshelf queue list` shows them")]
    NoSuchGrant,
    /// The journal of the policy could not be written.
    #[error("the change was not made: {what}")]
    NotWritten {
        /// The reason for the failure.
        what: String,
    },
    /// The device could not open a queue or register the memory.
    #[error("the device refuses: {what}")]
    DeviceFailed {
        /// The error that the device reported.
        what: String,
    },
    /// The request is malformed or came in the wrong order.
    #[error("not a request this broker knows: {what}")]
    BadRequest {
        /// A description of the error.
        what: String,
    },
    /// The broker is shutting down.
    #[error("the broker is ending")]
    Ending,
}

/// Displays the last block of a range in messages.
struct Last(u64, u64);

impl std::fmt::Display for Last {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.checked_add(self.1.saturating_sub(1)) {
            Some(last) => write!(f, "{last}"),
            None => f.write_str("beyond 2^64"),
        }
    }
}
