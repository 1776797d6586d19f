//! A change of names or attributes in a transaction.

use std::sync::Arc;

use rustix::fs::RenameFlags;

use super::attrs::SetAttr;
use super::creds::Creds;
use super::name::Name;
use super::node::Node;
use super::record::FileKind;

/// A path, and the directory where it begins.
pub(super) struct PathRef {
    /// The directory where the path begins.
    pub base: Arc<Name>,
    /// The path relative to that directory.
    pub path: Vec<u8>,
}

/// A change, and the credentials it is made with.
pub(super) struct NameChange {
    /// The operation to carry out.
    pub what: NameOperation,
    /// The credentials of the caller.
    pub creds: Creds,
}

/// What is done to names or attributes.
pub(super) enum NameOperation {
    /// A file that has no name gets its first.
    Name {
        node: Node,
        to: PathRef,
    },
    Link {
        node: Node,
        to: PathRef,
    },
    Make {
        at: PathRef,
        kind: FileKind,
        mode: u16,
        target: Vec<u8>,
    },
    Unlink(PathRef),
    RmDir(PathRef),
    Rename {
        from: PathRef,
        to: PathRef,
        flags: RenameFlags,
    },
    Set {
        node: Node,
        set: SetAttr,
    },
}

impl NameOperation {
    /// Returns the file that it holds.
    pub(super) fn node(&self) -> Option<&Node> {
        match self {
            NameOperation::Name { node, .. } | NameOperation::Link { node, .. } | NameOperation::Set { node, .. } => Some(node),
            _ => None,
        }
    }

    /// Returns the directories at which its paths begin.
    pub(super) fn bases(&self) -> Vec<&Arc<Name>> {
        match self {
            NameOperation::Name { to, .. } | NameOperation::Link { to, .. } => vec![&to.base],
            NameOperation::Make { at, .. } | NameOperation::Unlink(at) | NameOperation::RmDir(at) => vec![&at.base],
            NameOperation::Rename { from, to, .. } => vec![&from.base, &to.base],
            NameOperation::Set { .. } => Vec::new(),
        }
    }
}
