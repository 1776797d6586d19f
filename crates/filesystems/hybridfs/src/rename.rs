//! Renames: Algorithm 3 of the paper, for files that may be on different sides and directories on both.
//!
//! One system call where one side is concerned. Where several are, the steps are written down first (see
//! `intent`), so that after a crash at any point the rename is finished, never half done.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;

use crate::dirs::DirPair;
use crate::errno::Result;
use crate::intent::{IntentStep, RecordedStep};
use crate::names::FoundName;
use crate::nodes::NodeKind;
use crate::number::ROOT;
use crate::pair::TieredFs;
use crate::path::{HIDDEN, valid_name};
use crate::recover::passes;
use crate::report::TierName;
use fusedev::Caller;

const SIDES: [TierName; 2] = [TierName::Ssd, TierName::Hdd];

/// One end of a rename.
struct RenameEnd<'a> {
    caller: Caller,
    parent: u64,
    dir: Arc<DirPair>,
    name: &'a OsStr,
}

impl RenameEnd<'_> {
    fn path(&self, fs: &TieredFs) -> Result<Vec<u8>> {
        let mut path = fs.nodes.path(self.parent).ok_or(Errno::STALE)?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(self.name.as_bytes());
        Ok(path)
    }
}

impl TieredFs {
    /// Renames; `flags` may ask not to replace or to exchange.
    pub fn rename(&self, caller: Caller, parent: u64, name: &OsStr, new_parent: u64, new_name: &OsStr, flags: RenameFlags) -> Result<()> {
        self.writable()?;
        valid_name(new_name)?;
        if new_parent == ROOT && new_name.as_bytes() == HIDDEN.as_bytes() {
            return Err(Errno::PERM);
        }
        if !(flags - RenameFlags::NOREPLACE - RenameFlags::EXCHANGE).is_empty() {
            return Err(Errno::INVAL);
        }
        let mut from = RenameEnd { caller, parent, dir: self.dir(parent)?, name };
        let mut to = RenameEnd { caller, parent: new_parent, dir: self.dir(new_parent)?, name: new_name };
        let moves = self.moves_seen.load(Ordering::Acquire);
        let source = self.find(&from.dir, name)?;
        let target = match self.find(&to.dir, new_name) {
            Ok(found) => Some(found),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error),
        };
        if flags.contains(RenameFlags::NOREPLACE) && target.is_some() {
            return Err(Errno::EXIST);
        }
        if flags.contains(RenameFlags::EXCHANGE) && target.is_none() {
            return Err(Errno::NOENT);
        }
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        self.bring_dirs(&mut from, &mut to, &source, target.as_ref().filter(|_| exchange))?;
        let has_dir = |found: &FoundName| found.kind == NodeKind::Directory;
        let dirs = has_dir(&source) || target.as_ref().is_some_and(has_dir);
        let _shape = dirs.then(|| self.shape.lock());
        let _gates = self.gates(&[Some(source.ino), target.as_ref().map(|found| found.ino)]);
        for found in [Some(&source), target.as_ref()].into_iter().flatten() {
            if has_dir(found) { self.cancel_duplicates_below(found.ino) } else { self.cancel_duplicate(found.ino) }
        }
        // Nobody but the mover changes these names now, and it waits at the gates: was it faster?
        let same = !dirs && self.moves_seen.load(Ordering::Acquire) == moves;
        let source = if same { source } else { self.find(&from.dir, name)? };
        let target = if same { target } else { target.map(|_| self.find(&to.dir, new_name)).transpose()? };
        if parent != new_parent {
            for found in [Some(&source), target.as_ref().filter(|_| exchange)].into_iter().flatten() {
                self.may_move_away(caller, found)?;
            }
        }
        self.changing(&from.dir, || {
            self.changing(&to.dir, || match target.as_ref().filter(|_| exchange) {
                Some(target) => self.exchange(&from, &to, &source, target),
                None => self.replace(&from, &to, &source, target.as_ref()),
            })
        })
    }

    /// A directory gets another parent only from who may write it. The kernel above us has looked at the one that it believes to have the
    /// name; whoever may write the directory below may have given the name to another's, and would carry that away.
    fn may_move_away(&self, caller: Caller, found: &FoundName) -> Result<()> {
        let may = || caller.may_write_directory(found.stat.permissions()) || self.has_access_list(found);
        if found.kind != NodeKind::Directory || !self.privileged || may() { Ok(()) } else { Err(Errno::ACCESS) }
    }

    fn has_access_list(&self, found: &FoundName) -> bool {
        self.primary_handle(found.ino).is_ok_and(|(_, file)| crate::attrs::value_exists(file.as_fd(), "system.posix_acl_access"))
    }

    /// Every side a file will be on needs the directory it goes to.
    fn bring_dirs(
        &self,
        from: &mut RenameEnd<'_>,
        to: &mut RenameEnd<'_>,
        source: &FoundName,
        exchanged: Option<&FoundName>,
    ) -> Result<()> {
        for tier in SIDES {
            if source.backing[tier as usize] != 0 {
                to.dir = self.ensure_dir(to.parent, tier)?;
            }
            if exchanged.is_some_and(|found| found.backing[tier as usize] != 0) {
                from.dir = self.ensure_dir(from.parent, tier)?;
            }
        }
        Ok(())
    }

    fn replace(&self, from: &RenameEnd<'_>, to: &RenameEnd<'_>, source: &FoundName, target: Option<&FoundName>) -> Result<()> {
        let mut kept = false;
        if let Some(target) = target {
            match (source.kind == NodeKind::Directory, target.kind == NodeKind::Directory) {
                (true, true) => {
                    self.must_be_empty(&to.dir, to.name, target)?;
                    kept = self.keep_nameless(&to.dir, to.name, target);
                }
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                (false, false) => kept = self.keep_nameless(&to.dir, to.name, target),
            }
        }
        let (from_path, to_path) = (from.path(self)?, to.path(self)?);
        let mut steps = Vec::with_capacity(3);
        for tier in SIDES {
            if source.backing[tier as usize] != 0 {
                let ino = source.backing[tier as usize];
                steps.push(IntentStep::Rename { tier, from: from_path.clone(), to: to_path.clone(), ino });
            }
        }
        for tier in SIDES {
            let left = target.map_or(0, |found| found.backing[tier as usize]);
            if left != 0 && source.backing[tier as usize] == 0 {
                let directory = target.is_some_and(|found| found.kind == NodeKind::Directory);
                steps.push(IntentStep::Remove { tier, path: to_path.clone(), ino: left, directory });
            }
        }
        let done = self.run_steps(from, to, &steps);
        if let Some(target) = target {
            if done.is_err() {
                self.still_named(target, kept);
            }
            done?;
            self.replaced(to, target);
        } else {
            done?;
        }
        self.nodes.renamed(source.ino, to.parent, to.name);
        self.tell_changed(source.ino);
        Ok(())
    }

    fn replaced(&self, to: &RenameEnd<'_>, target: &FoundName) {
        if target.kind == NodeKind::Directory {
            self.dirs.drop_dir(target.ino);
        }
        self.name_removed(target, to.parent, to.name);
    }

    fn exchange(&self, from: &RenameEnd<'_>, to: &RenameEnd<'_>, source: &FoundName, target: &FoundName) -> Result<()> {
        let (from_path, to_path) = (from.path(self)?, to.path(self)?);
        let mut steps = Vec::with_capacity(2);
        for tier in SIDES {
            // In three renames other programs would see that a name is missing: a refusal is what they can deal with.
            let exchanged = source.backing[tier as usize] != 0 && target.backing[tier as usize] != 0;
            if exchanged && self.tier(tier).abilities.probed && !self.tier(tier).abilities.rename_exchange {
                return Err(Errno::INVAL);
            }
        }
        for tier in SIDES {
            let (a, b) = (source.backing[tier as usize], target.backing[tier as usize]);
            match (a != 0, b != 0) {
                (true, true) => steps.push(IntentStep::Exchange { tier, a: from_path.clone(), b: to_path.clone(), ino: a }),
                (true, false) => steps.push(IntentStep::Rename { tier, from: from_path.clone(), to: to_path.clone(), ino: a }),
                (false, true) => steps.push(IntentStep::Rename { tier, from: to_path.clone(), to: from_path.clone(), ino: b }),
                (false, false) => {}
            }
        }
        self.run_steps(from, to, &steps)?;
        self.nodes.renamed(source.ino, to.parent, to.name);
        self.nodes.renamed(target.ino, from.parent, from.name);
        self.tell_changed(source.ino);
        self.tell_changed(target.ino);
        Ok(())
    }

    /// Does the steps; several are written down first and undone together when one fails.
    fn run_steps(&self, from: &RenameEnd<'_>, to: &RenameEnd<'_>, steps: &[IntentStep]) -> Result<()> {
        if let [step] = steps {
            return self.run_step(from, to, step);
        }
        let intent = self.intents.begin(&self.with_parents(from, to, steps)?)?;
        for (n, step) in steps.iter().enumerate() {
            crate::crash::point("rename step");
            if let IntentStep::Remove { .. } = step {
                // What takes the place must be safe before what had it goes.
                self.sync_ends(from, to)?;
            }
            if let Err(error) = self.run_step(from, to, step) {
                for done in steps[..n].iter().rev() {
                    match self.undo_step(from, to, done) {
                        Ok(()) => {}
                        Err(undo) if passes(undo) => {
                            tracing::error!(
                                ?done, %undo, "a rename failed half-way and could not be undone; it is finished at the next mount"
                            );
                            // Until then no other takes its place: it is dropped without `done`.
                            return Err(error);
                        }
                        // Somebody has the old name by now, in the directory of its owner: the next mount could do no more. To keep it
                        // for that would refuse such renames to everybody.
                        Err(undo) => {
                            tracing::debug!(?done, %undo, "not undone");
                            self.warn("a rename failed half-way and could not be undone: a directory has two names now".into());
                        }
                    }
                }
                intent.done()?;
                return Err(error);
            }
        }
        crate::crash::point("rename steps done");
        self.sync_ends(from, to)?;
        if let Err(error) = intent.done() {
            // The rename is done and durable; only its note stays.
            self.note_failure(TierName::Ssd, error);
            self.warn(format!(".hotshelf/intent cannot be emptied: {error}"));
        }
        Ok(())
    }

    /// Adds the directories that the steps are done in, as they are held open: a path may lead elsewhere by the time of recovery.
    fn with_parents(&self, from: &RenameEnd<'_>, to: &RenameEnd<'_>, steps: &[IntentStep]) -> Result<Vec<RecordedStep>> {
        let to_path = to.path(self)?;
        let recorded = |step: &IntentStep| {
            let (tier, first, second) = match step {
                IntentStep::Rename { tier, to: new, .. } if *new == to_path => (*tier, from, Some(to)),
                IntentStep::Rename { tier, .. } => (*tier, to, Some(from)),
                IntentStep::Exchange { tier, .. } => (*tier, from, Some(to)),
                IntentStep::Remove { tier, .. } => (*tier, to, None),
            };
            let inode = |end: &RenameEnd<'_>| -> Result<u64> { Ok(self.tier(tier).stat_fd(end.dir.must(tier)?)?.ino) };
            let (IntentStep::Rename { ino, .. } | IntentStep::Exchange { ino, .. } | IntentStep::Remove { ino, .. }) = step;
            let seen = self.tier(tier).look(first.dir.must(tier)?, first.name)?.filter(|stat| stat.ino == *ino);
            let birth = seen.map_or(0, |stat| stat.id().birth);
            Ok(RecordedStep { step: step.clone(), birth, parents: [inode(first)?, second.map_or(Ok(0), inode)?] })
        };
        steps.iter().map(recorded).collect()
    }

    fn sync_ends(&self, from: &RenameEnd<'_>, to: &RenameEnd<'_>) -> Result<()> {
        for tier in SIDES {
            if let Some(fd) = to.dir.on(tier) {
                self.tier(tier).sync_name(fd, to.name)?;
            }
            if let Some(fd) = from.dir.on(tier).filter(|_| from.parent != to.parent) {
                self.tier(tier).sync_dir(fd)?;
            }
        }
        Ok(())
    }

    fn run_step(&self, from: &RenameEnd<'_>, to: &RenameEnd<'_>, step: &IntentStep) -> Result<()> {
        let plain = RenameFlags::empty();
        match step {
            IntentStep::Rename { tier, to: new, .. } => {
                let forward = *new == to.path(self)?;
                let (a, b) = if forward { (from, to) } else { (to, from) };
                let (out, into) = (a.dir.must(*tier)?, b.dir.must(*tier)?);
                let rename = || self.tier(*tier).rename(out, a.name, into, b.name, plain);
                self.noted_at(*tier, out, self.unless_sticky(from.caller, &[out, into], rename))
            }
            IntentStep::Exchange { tier, .. } => {
                let flags = RenameFlags::EXCHANGE;
                let (one, other) = (from.dir.must(*tier)?, to.dir.must(*tier)?);
                let exchange = || self.tier(*tier).rename(one, from.name, other, to.name, flags);
                self.noted_at(*tier, one, self.unless_sticky(from.caller, &[one, other], exchange))
            }
            IntentStep::Remove { tier, directory, .. } => {
                let flags = if *directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                let dir = to.dir.must(*tier)?;
                self.noted_at(*tier, dir, self.unless_sticky(to.caller, &[dir], || rustix::fs::unlinkat(dir, to.name, flags)))
            }
        }
    }

    fn undo_step(&self, from: &RenameEnd<'_>, to: &RenameEnd<'_>, step: &IntentStep) -> Result<()> {
        match step {
            IntentStep::Rename { tier, from: a, to: b, ino } => {
                let back = IntentStep::Rename { tier: *tier, from: b.clone(), to: a.clone(), ino: *ino };
                self.run_step(from, to, &back)
            }
            IntentStep::Exchange { .. } => self.run_step(from, to, step),
            // Removals come last; what is removed cannot be undone, nor need it be.
            IntentStep::Remove { .. } => Ok(()),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::testing::{TestPair, me};

    #[test]
    fn a_rename_that_its_owner_spoils_half_way_does_not_refuse_others() {
        let fs = TestPair::with(&["ssd/a/x", "hdd/a/y", "ssd/c/x", "hdd/c/y"]);
        let root = || fs.dir(ROOT).expect("open");
        let end = |name: &'static str| RenameEnd { caller: me(), parent: ROOT, dir: root(), name: OsStr::new(name) };
        // The second step fails, as somebody has taken the name away; so does what undoes the first one, which finds nothing to rename.
        let step = |tier, from: &[u8]| IntentStep::Rename { tier, from: from.to_vec(), to: b"b".to_vec(), ino: 1 };
        let steps = [step(TierName::Ssd, b"b"), step(TierName::Hdd, b"gone")];
        std::fs::rename(fs.at("hdd/a"), fs.at("hdd/gone")).expect("renamed");
        assert_eq!(fs.run_steps(&end("a"), &end("b"), &steps), Err(Errno::NOENT));
        let flags = RenameFlags::empty();
        fs.rename(me(), ROOT, OsStr::new("c"), ROOT, OsStr::new("d"), flags).expect("of both halves");
        assert!(fs.at("ssd/d/x").exists() && fs.at("hdd/d/y").exists());
        assert!(fs.status().warnings.iter().any(|warning| warning.contains("half-way")), "{:?}", fs.status().warnings);
    }
}
