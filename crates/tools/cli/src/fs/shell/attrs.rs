//! chmod, chown.

use anyhow::Context;
use stack::rawfs::fs::SetAttr;

use super::session::Session;
use super::shown;
use super::verbs::Verb;

/// Runs a command that changes attributes of files.
pub fn run(session: &mut Session, verb: &Verb) -> anyhow::Result<()> {
    let (set, paths) = match verb {
        Verb::Chmod(args) => (SetAttr { mode: Some(args.mode), ..SetAttr::default() }, &args.paths),
        Verb::Chown(args) => (SetAttr { owner: Some(args.owner), ..SetAttr::default() }, &args.paths),
        _ => unreachable!("not an attribute's"),
    };
    for path in paths {
        let path = session.path(path)?;
        let node = session.node(&path, true)?;
        session.fs()?.set_attr(&node, &set, &session.creds).with_context(|| shown(&path))?;
    }
    Ok(())
}
