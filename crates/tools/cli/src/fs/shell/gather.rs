//! begin, commit, abort: changes that happen all or not at all.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use rustix::fs::OFlags;
use stack::rawfs::fs::{File, Transaction};

use super::open_transaction::OpenTransaction;
use super::session::{Session, join};
use super::shown;

/// Begins a transaction; the following changes are part of it.
pub fn begin(session: &mut Session) -> anyhow::Result<()> {
    if session.gathered.is_some() {
        bail!("there is a transaction already: `commit` or `abort` it first");
    }
    session.gathered = Some(OpenTransaction { transaction: session.fs()?.begin(), files: BTreeMap::new() });
    Ok(())
}

/// Commits the open transaction: all of its changes become durable together.
pub fn commit(session: &mut Session) -> anyhow::Result<()> {
    let gathered = session.gathered.take().context("there is no transaction: `begin` one")?;
    let count = gathered.files.len();
    session.fs()?.commit(gathered.transaction).context("nothing of it has happened")?;
    writeln!(session.out, "{count} files")?;
    Ok(())
}

/// Aborts the open transaction and drops its changes.
pub fn abort(session: &mut Session) -> anyhow::Result<()> {
    session.gathered.take().map(drop).context("there is no transaction: `begin` one")
}

impl Session {
    /// The file a path leads to in the transaction; one that is not there is made by it.
    pub fn with_gathered(
        &mut self,
        path: &[u8],
        change: impl FnOnce(&mut Transaction, &File) -> stack::rawfs::fs::Result<()>,
    ) -> anyhow::Result<()> {
        let mut gathered = self.gathered.take().context("there is no transaction")?;
        let outcome = self.gathered_file(&mut gathered, path).and_then(|()| {
            let OpenTransaction { transaction, files } = &mut gathered;
            change(transaction, &files[path]).with_context(|| shown(path))
        });
        self.gathered = Some(gathered);
        outcome
    }

    fn gathered_file(&self, gathered: &mut OpenTransaction, path: &[u8]) -> anyhow::Result<()> {
        if gathered.files.contains_key(path) {
            return Ok(());
        }
        let fs = self.fs()?;
        let file = match fs.open_at(fs.root(), path, OFlags::RDWR, 0, &self.creds) {
            Err(error) if error.errno() == rustix::io::Errno::NOENT => {
                let dir = join(path, b"..");
                let unnamed = fs.open_at(fs.root(), &dir, OFlags::TMPFILE | OFlags::RDWR, 0o666, &self.creds);
                let file = unnamed.with_context(|| shown(&dir))?;
                gathered.transaction.name(&file, fs.root(), path).with_context(|| shown(path))?;
                file
            }
            other => other.with_context(|| shown(path))?,
        };
        gathered.files.insert(path.to_vec(), file);
        Ok(())
    }
}
