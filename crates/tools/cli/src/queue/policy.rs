//! Looking at the grants and changing them: through the broker, or in the journal itself when none runs.

use std::path::Path;

use anyhow::{Context, bail};
use block::broker::client::Admin;
use block::broker::protocol::{BrokerRequest, Reply};
use block::broker::{BrokerError, Grant, GrantId, GrantSpec, Journal, JournalError};
use hybridfs::Size;
use serde_json::json;

use super::args::{GrantArgs, ListArgs, PolicyArgs, RevokeArgs};
use super::{default_journal, device_name, show, socket, who};
use crate::Usage;

/// Who keeps the grants.
enum GrantStore {
    Broker(Admin),
    Journal(Journal),
}

impl GrantStore {
    /// A broker that runs, unless a journal was named.
    fn find(args: &PolicyArgs) -> anyhow::Result<GrantStore> {
        if let Some(journal) = &args.journal {
            return open(journal);
        }
        let socket = socket(&args.socket);
        match Admin::connect(&socket) {
            Ok(admin) => Ok(GrantStore::Broker(admin)),
            // One that was named has to be there.
            Err(BrokerError::NotThere { source, .. }) if args.socket.socket.is_none() && nobody_listens(&source) => {
                open(&default_journal())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn grants(&mut self) -> anyhow::Result<Vec<Grant>> {
        match self {
            GrantStore::Journal(journal) => Ok(journal.policy().grants().cloned().collect()),
            GrantStore::Broker(admin) => match admin.ask(&BrokerRequest::List)? {
                Reply::Grants { grants } => Ok(grants),
                _ => bail!("the broker sent an unexpected reply"),
            },
        }
    }

    fn grant(&mut self, terms: GrantSpec) -> anyhow::Result<(GrantId, Option<GrantId>, u32)> {
        match self {
            GrantStore::Broker(admin) => Ok(admin.grant(terms)?),
            GrantStore::Journal(journal) => {
                let (id, replaced) = journal.grant(terms, rustix::process::getuid().as_raw())?;
                Ok((id, replaced, 0))
            }
        }
    }

    fn revoke(&mut self, id: GrantId) -> anyhow::Result<(Grant, u32)> {
        match self {
            GrantStore::Broker(admin) => match admin.ask(&BrokerRequest::Revoke { id })? {
                Reply::Revoked { grant, closed } => Ok((grant, closed)),
                _ => bail!("the broker sent an unexpected reply"),
            },
            GrantStore::Journal(journal) => {
                let grant = journal.revoke(id, rustix::process::getuid().as_raw());
                Ok((grant.with_context(|| format!("grant {}: `hotshelf queue list` shows them", id.0))?, 0))
            }
        }
    }
}

fn nobody_listens(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused)
}

fn open(journal: &Path) -> anyhow::Result<GrantStore> {
    make_parent(journal, 0o700)?;
    match Journal::open(journal) {
        Ok(journal) => Ok(GrantStore::Journal(journal)),
        Err(error @ JournalError::InUse { .. }) => Err(error).context("the broker that has it does not listen there: name its --socket"),
        Err(error) => Err(error.into()),
    }
}

/// Makes the directory of a file.
pub fn make_parent(path: &Path, mode: u32) -> anyhow::Result<()> {
    let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty() && !parent.exists()) else { return Ok(()) };
    let mut builder = std::fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, mode);
    builder.recursive(true).create(parent).with_context(|| format!("{}: making the directory", parent.display()))
}

/// Runs `hotshelf queue list` and prints all grants.
pub fn list(args: &ListArgs) -> anyhow::Result<bool> {
    let grants = GrantStore::find(&args.policy)?.grants()?;
    if args.json {
        say_lines!("{}", serde_json::to_string_pretty(&grants)?);
    } else {
        show::grants(&grants);
    }
    Ok(true)
}

/// Runs `hotshelf queue grant` and prints the new grant.
pub fn grant(args: &GrantArgs) -> anyhow::Result<bool> {
    let bytes = |size: Size, what: &str| match size {
        Size::Bytes(bytes) if bytes > 0 => Ok(bytes),
        _ => Err(Usage(format!("{what} must be a size such as 64MiB; see `hotshelf queue grant --help`"))),
    };
    if args.blocks.is_some_and(|blocks| args.first.checked_add(blocks).is_none()) {
        return Err(Usage("--first and --blocks are beyond any device; see `hotshelf queue grant --help`".into()).into());
    }
    let terms = GrantSpec {
        who: who::parse(&args.who)?,
        device: device_name(&args.device),
        queues: args.queues,
        depth: args.depth,
        first: args.first,
        blocks: args.blocks,
        read_only: args.read_only,
        memory_bytes: bytes(args.memory, "--memory")?,
        bytes_per_s: args.rate.map(|rate| bytes(rate, "--rate")).transpose()?,
        requests_per_s: args.iops,
    };
    let (id, replaced, closed) = GrantStore::find(&args.policy)?.grant(terms)?;
    if args.json {
        say!("{}", json!({ "id": id, "replaced": replaced, "closed": closed }));
        return Ok(true);
    }
    let instead = replaced.map_or(String::new(), |old| format!(" in place of grant {}, {closed} queues of which were closed", old.0));
    say!("grant {}{instead}", id.0);
    Ok(true)
}

/// Runs `hotshelf queue revoke` and closes the queues of the grant.
pub fn revoke(args: &RevokeArgs) -> anyhow::Result<bool> {
    let mut keeper = GrantStore::find(&args.policy)?;
    let mut ids: Vec<GrantId> = args.grants.iter().map(|id| GrantId(*id)).collect();
    if args.grants.is_empty() {
        let user = args.user.as_deref().map(who::parse).transpose()?;
        let device = args.device.as_deref().map(device_name);
        let meant = |grant: &&Grant| {
            user.is_none_or(|user| user == grant.terms.who) && device.as_ref().is_none_or(|device| *device == grant.terms.device)
        };
        ids = keeper.grants()?.iter().filter(meant).map(|grant| grant.id).collect();
        if ids.is_empty() {
            bail!("there is no such grant: `hotshelf queue list` shows them");
        }
    }
    let mut revoked = Vec::new();
    for id in ids {
        let (grant, closed) = keeper.revoke(id)?;
        if args.json {
            revoked.push(json!({ "grant": grant, "closed": closed }));
        } else {
            let (who, device) = (who::name(grant.terms.who), &grant.terms.device);
            say!("grant {} of {who} for {device} is revoked, {closed} queues were closed", id.0);
        }
    }
    if args.json {
        say_lines!("{}", serde_json::to_string_pretty(&revoked)?);
    }
    Ok(true)
}
