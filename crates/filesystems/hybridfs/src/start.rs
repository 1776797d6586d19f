//! Opening a pair: checks, identity, recovery of what a crash left, and the workers.

mod error;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::abilities::Abilities;
use crate::clock::now_s;
use crate::config::Config;
use crate::hidden_dir::OpenError;
use crate::intent::IntentLog;
use crate::numbers::NumberTable;
use crate::pair::{TieredFs, TieredFsParts};
use crate::path::HIDDEN;
use crate::persist::{self, HistoryRecord, Identity, Journal, PairId, PersistError};
use crate::placement::Placement;
use crate::report::TierName;
use crate::tier::Tier;
pub use error::StartError;

fn os(path: &Path, doing: &'static str) -> impl FnOnce(Errno) -> StartError {
    move |source| StartError::Os { path: path.to_owned(), doing, source }
}

fn own(path: &Path) -> impl FnOnce(PersistError) -> StartError {
    move |source| StartError::Persist { path: path.to_owned(), source }
}

/// The threads of an open pair; they end with it.
pub struct RunningFs {
    /// The tiered file system that runs.
    pub fs: Arc<TieredFs>,
    threads: Vec<JoinHandle<()>>,
}

/// Opens a pair, puts right what a crash left, and starts the workers.
pub fn start(config: Config) -> std::result::Result<RunningFs, StartError> {
    let fs = Arc::new(open(config)?);
    let mut threads = Vec::new();
    let mut spawn = |name: &str, work: fn(&TieredFs)| {
        let fs = fs.clone();
        match std::thread::Builder::new().name(name.into()).spawn(move || work(&fs)) {
            Ok(thread) => threads.push(thread),
            Err(error) => tracing::error!(name, %error, "a worker could not be started"),
        }
    };
    spawn("mover-1", TieredFs::move_worker);
    spawn("mover-2", TieredFs::move_worker);
    spawn("watch", TieredFs::watch);
    spawn("scan", TieredFs::scan);
    Ok(RunningFs { fs, threads })
}

impl RunningFs {
    /// Ends the workers and saves the history. Call when nobody uses the file system any more.
    pub fn close(self) {
        self.fs.mover.stop();
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a worker panicked");
            }
        }
        self.fs.mover.wait_for_all(Duration::from_secs(10));
        let _ = self.fs.save_history();
        self.fs.close_numbers();
    }
}

/// Opens a pair without workers.
pub fn open(config: Config) -> std::result::Result<TieredFs, StartError> {
    let (ssd, hdd) = (canonical(&config.ssd)?, canonical(&config.hdd)?);
    refuse_nested(&ssd, &hdd)?;
    refuse_same(&ssd, &hdd)?;
    check_marks(&config)?;
    must_be_ours(&ssd)?;
    must_be_ours(&hdd)?;
    // Before anything is made in a directory that may be the mount point of a disk that is not there.
    let found = [peek(&ssd, config.adopt)?, peek(&hdd, config.adopt)?];
    let pair = which_pair([&ssd, &hdd], &found, &config)?;
    let mut tiers = [open_tier(TierName::Ssd, &ssd, &config)?, open_tier(TierName::Hdd, &hdd, &config)?];
    let lock = lock(&tiers[0])?;
    // Given up in this order: a pair whose SSD is free is free.
    let locks = [lock_slow_side(&tiers[1])?, Some(lock)];
    if !config.read_only {
        tiers.iter_mut().for_each(probe);
    }
    let mut warnings = Vec::new();
    identify(&tiers, pair, &found, config.adopt)?;
    let (pins, damage) = persist::load_pins(tiers[0].hidden.as_fd()).map_err(own(&ssd))?;
    warnings.extend(damage.map(|damage| format!("the list of pins was damaged ({}); kept as {}", damage.detail, damage.kept_as)));
    let placement = Placement::new(&config, pins)?;
    let hidden = tiers[0].hidden.try_clone().map_err(|error| os(&ssd, "opening .hotshelf again")(crate::errno::errno(error)))?;
    let opened = Journal::open(hidden).map_err(own(&ssd))?;
    warnings.extend(opened.damaged.map(|damage| {
        format!("the journal was damaged ({}); kept as {}: run `hotshelf check` after unmounting", damage.detail, damage.kept_as)
    }));
    let (intents, steps) = IntentLog::open(&tiers[0].hidden).map_err(own(&ssd))?;
    let numbers = open_numbers(&tiers[0], &config, &found, &mut warnings);
    let parts = TieredFsParts { config, tiers, placement, journal: opened.journal, intents, locks, numbers, warnings };
    let fs = TieredFs::build(parts).map_err(os(&ssd, "looking at the directories"))?;
    if !fs.config.read_only {
        fs.recover(&opened.open, steps);
    }
    fs.load_history();
    Ok(fs)
}

/// Only root can have file handles opened.
fn open_numbers(ssd: &Tier, config: &Config, found: &[Option<Identity>; 2], warnings: &mut Vec<String>) -> Option<(NumberTable, bool)> {
    if config.read_only || ssd.is_read_only() || !rustix::process::geteuid().is_root() {
        return None;
    }
    match NumberTable::open(ssd.hidden.as_fd(), ssd.key()) {
        // There are no handles yet of a new pair.
        Ok((numbers, complete)) => Some((numbers, complete || found.iter().all(Option::is_none))),
        Err(error) => {
            warnings.push(format!("file handles (NFS) will become stale when the kernel forgets a file: {error}"));
            None
        }
    }
}

fn canonical(path: &Path) -> std::result::Result<PathBuf, StartError> {
    let real = std::fs::canonicalize(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => StartError::Missing { path: path.to_owned() },
        std::io::ErrorKind::NotADirectory => StartError::NotADirectory { path: path.to_owned() },
        _ => os(path, "resolving the path")(crate::errno::errno(error)),
    })?;
    if real.is_dir() { Ok(real) } else { Err(StartError::NotADirectory { path: path.to_owned() }) }
}

/// No two of these may contain each other.
pub fn refuse_nested(a: &Path, b: &Path) -> std::result::Result<(), StartError> {
    for (inner, outer) in [(a, b), (b, a)] {
        if inner.starts_with(outer) {
            return Err(StartError::Nested { inner: inner.to_owned(), outer: outer.to_owned() });
        }
    }
    Ok(())
}

/// One directory may have two paths.
fn refuse_same(ssd: &Path, hdd: &Path) -> std::result::Result<(), StartError> {
    let inode = |path: &Path| rustix::fs::stat(path).map(|stat| (stat.st_dev, stat.st_ino)).map_err(os(path, "looking at it"));
    if inode(ssd)? == inode(hdd)? {
        return Err(StartError::Nested { inner: ssd.to_owned(), outer: hdd.to_owned() });
    }
    Ok(())
}

fn check_marks(config: &Config) -> std::result::Result<(), StartError> {
    // Compared on a scale where a share and bytes can both be judged only when they are of a kind.
    let wrong = match (config.low, config.high) {
        (crate::Size::Percent(low), crate::Size::Percent(high)) => low > high,
        (crate::Size::Bytes(low), crate::Size::Bytes(high)) => low > high,
        _ => false,
    };
    if wrong { Err(StartError::Marks { low: config.low.to_string(), high: config.high.to_string() }) } else { Ok(()) }
}

fn open_tier(name: TierName, path: &Path, config: &Config) -> std::result::Result<Tier, StartError> {
    // A side that cannot be written can still be read, if it was prepared before.
    let mut tier = match Tier::open(name, path, !config.read_only) {
        Err(OpenError::Os(Errno::ROFS)) => return Err(StartError::NeverUsed { path: path.to_owned() }),
        Err(OpenError::Os(Errno::NOENT)) if config.read_only => return Err(StartError::NeverUsed { path: path.to_owned() }),
        other => other.map_err(not_opened(path, "making .hotshelf in it"))?,
    };
    tier.honours = config.honours;
    let refused = [
        (config.honours.set_id && !tier.gives_rights(tier.root.as_fd()).map_err(os(path, "looking at its mount"))?, "suid", "nosuid"),
        (config.honours.devices && !tier.gives_devices(tier.root.as_fd()).map_err(os(path, "looking at its mount"))?, "dev", "nodev"),
    ];
    if let Some((_, option, flag)) = refused.into_iter().find(|(refused, ..)| *refused) {
        return Err(StartError::Powerless { path: path.to_owned(), option, flag });
    }
    if tier.is_read_only() && name == TierName::Ssd {
        // Our own files could not be opened for writing: a remount of the file system does not end it.
        tier.degrade(tier.read_only_sentence());
    }
    Ok(tier)
}

fn not_opened(path: &Path, doing: &'static str) -> impl FnOnce(OpenError) -> StartError {
    move |error| match error {
        OpenError::Os(source) => os(path, doing)(source),
        OpenError::UntrustedHiddenDirError(what) => StartError::UntrustedHiddenDirError { path: path.to_owned(), what },
        OpenError::NotHidden { holds } => StartError::NotHidden { path: path.to_owned(), holds },
        OpenError::Persist(source) => own(path)(source),
    }
}

/// Finds out what a side can do. A side that cannot be written is used unchanged: no files will be made there.
fn probe(tier: &mut Tier) {
    if let Some(abilities) = Abilities::probe(tier.tmp.as_fd()) {
        tracing::info!(tier = %tier.name, directory = %tier.path.display(), file_system = abilities.file_system, "probed");
        for limit in abilities.limits() {
            tracing::info!(tier = %tier.name, "{limit}");
        }
        tier.abilities = abilities;
    }
}

fn must_be_ours(path: &Path) -> std::result::Result<(), StartError> {
    let me = rustix::process::geteuid();
    let stat = rustix::fs::stat(path).map_err(os(path, "looking at it"))?;
    if !me.is_root() && stat.st_uid != me.as_raw() {
        return Err(StartError::WrongOwner { path: path.to_owned(), owner: stat.st_uid, you: me.as_raw() });
    }
    Ok(())
}

fn lock(tier: &Tier) -> std::result::Result<OwnedFd, StartError> {
    let file = match persist::open_in_place(tier.hidden.as_fd(), "lock") {
        Err(PersistError::Io { source: Errno::ROFS, .. }) => {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let opened = rustix::fs::openat(&tier.hidden, "lock", flags, Mode::empty());
            let file = opened.map_err(os(&tier.path, "opening .hotshelf/lock"))?;
            persist::must_be_ours(tier.hidden.as_fd(), &file, "lock").map(|_| file)
        }
        other => other,
    }
    .map_err(own(&tier.path))?;
    // A file that is open for writing would keep the administrator from remounting the file system read-only.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let for_reading = rustix::fs::openat(&tier.hidden, "lock", flags, Mode::empty()).ok();
    let for_reading = for_reading.filter(|again| persist::must_be_ours(tier.hidden.as_fd(), again, "lock").is_ok());
    if let Some(again) = for_reading {
        match lock_patiently(again.as_fd()) {
            Ok(()) => return Ok(again),
            Err(Errno::WOULDBLOCK) => return Err(StartError::InUse { path: tier.path.clone() }),
            // NFS locks only what is open for writing.
            Err(_) => {}
        }
    }
    match lock_patiently(file.as_fd()) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(StartError::InUse { path: tier.path.clone() }),
        Err(error) => Err(os(&tier.path, "locking .hotshelf/lock")(error)),
    }
}

/// The HDD may be in use by a pair with another SSD, or from another machine. A file system that has no locks is used without.
fn lock_slow_side(tier: &Tier) -> std::result::Result<Option<OwnedFd>, StartError> {
    match lock(tier) {
        Ok(lock) => Ok(Some(lock)),
        Err(in_use @ StartError::InUse { .. }) => Err(in_use),
        Err(error) => {
            tracing::warn!(%error, "the slow side is not locked: nothing keeps another machine from using it at the same time");
            Ok(None)
        }
    }
}

/// A daemon that was killed may have its lock a moment longer than its mount: the kernel closes one file after the other.
pub(crate) fn lock_patiently(file: BorrowedFd<'_>) -> std::result::Result<(), Errno> {
    let deadline = Instant::now() + Duration::from_secs(1);
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            other => return other,
        }
    }
}

/// The identity of a directory, without making anything in it. A damaged one is none for who adopts.
fn peek(path: &Path, adopt: bool) -> std::result::Result<Option<Identity>, StartError> {
    let hidden = crate::hidden_dir::open_hidden(path).map_err(not_opened(path, "opening its .hotshelf"))?;
    let Some(hidden) = hidden else { return Ok(None) };
    match persist::read_identity(hidden.as_fd()) {
        Err(PersistError::Damaged { .. }) if adopt => Ok(None),
        other => other.map_err(own(path)),
    }
}

/// The pair both directories belong to, or shall belong to.
fn which_pair(paths: [&Path; 2], found: &[Option<Identity>; 2], config: &Config) -> std::result::Result<PairId, StartError> {
    for ((path, identity), wanted) in paths.iter().zip(found).zip([TierName::Ssd, TierName::Hdd]) {
        if let Some(identity) = identity.filter(|identity| identity.tier != wanted && !config.adopt) {
            return Err(StartError::Swapped { path: path.to_path_buf(), is: identity.tier, wanted });
        }
    }
    let [ssd, hdd] = paths.map(Path::to_path_buf);
    match (&found[0], &found[1]) {
        (Some(one), Some(other)) if one.pair == other.pair || config.adopt => Ok(one.pair),
        (Some(_), Some(_)) => Err(StartError::OtherPair { ssd, hdd }),
        (None, Some(_)) if !config.adopt => Err(StartError::HalfMissing { path: ssd, other: hdd }),
        (None, Some(hdd)) => Ok(hdd.pair),
        (Some(_), None) if !config.adopt => Err(StartError::HalfMissing { path: hdd, other: ssd }),
        (Some(ssd), None) => Ok(ssd.pair),
        (None, None) => PairId::random().map_err(|error| os(&ssd, "getting random bytes")(crate::errno::errno(error))),
    }
}

fn identify(tiers: &[Tier; 2], pair: PairId, found: &[Option<Identity>; 2], adopt: bool) -> std::result::Result<(), StartError> {
    for (tier, identity) in tiers.iter().zip(found) {
        // A directory from another pair may hold marked files, and so may one whose identity was lost.
        let marks = identity.as_ref().map_or(adopt, |identity| identity.marks);
        tier.marks.store(marks, Ordering::Release);
        let known = identity.as_ref().is_some_and(|identity| identity.pair == pair && identity.tier == tier.name);
        if known || tier.is_read_only() {
            continue;
        }
        let fresh = Identity { pair, tier: tier.name, created_s: u64::from(now_s()), marks };
        persist::write_identity(tier.hidden.as_fd(), &fresh).map_err(own(&tier.path))?;
    }
    Ok(())
}

impl TieredFs {
    /// Refreshes the space figures, wakes the mover above the marks, saves the history now and then.
    pub(crate) fn watch(&self) {
        const SAVE_EVERY: Duration = Duration::from_secs(60);
        let mut saved = Instant::now();
        let mut saved_opens = self.opens_seen();
        while !self.mover.stopping() {
            if let Err((tier, error)) = self.space.refresh(self.tiers(), &self.config) {
                self.note_failure(tier, error);
            }
            self.note_forgotten();
            self.look_at_hdd_room();
            self.look_at_ssd_room();
            if self.space.above_high() || self.space.tight() {
                self.mover.wake();
            }
            if saved.elapsed() > SAVE_EVERY && self.opens_seen() != saved_opens {
                let _ = self.save_history();
                saved_opens = self.opens_seen();
                saved = Instant::now();
            }
            // Close to the mark a fast writer needs a closer look.
            let near = self.space.room_below_high() < self.space.of(TierName::Ssd).capacity / 20;
            self.mover.pause(Duration::from_millis(if near { 100 } else { 1000 }));
        }
    }

    fn opens_seen(&self) -> u64 {
        self.counters.hits.load(Ordering::Relaxed) + self.counters.misses.load(Ordering::Relaxed)
    }

    /// Writes the access history; what fails is logged and answered, the old file stays.
    pub fn save_history(&self) -> std::result::Result<(), PersistError> {
        if self.config.read_only {
            return Ok(());
        }
        let records = self.placement.records();
        let mut rows = records.iter().map(|record| {
            let (last_move_s, last_move) = self.nodes.with(record.file.0, |node| node.last_move).unwrap_or((0, 0));
            HistoryRecord { ino: record.file.0, last_open_s: record.last_open_s, opens: record.opens, last_move_s, last_move }
        });
        let saved = persist::save_history(self.tier(TierName::Ssd).hidden.as_fd(), &self.placement.policy_name(), &mut rows);
        saved.map(|_| ()).inspect_err(|error| self.warn(format!("the access history could not be saved: {error}")))
    }

    /// Reads the access history; the scan applies it to the files it finds.
    fn load_history(&self) {
        match persist::load_history(self.tier(TierName::Ssd).hidden.as_fd()) {
            Ok(loaded) => {
                if let Some(damage) = loaded.damaged {
                    self.warn(format!("the access history was damaged ({}); kept as {}", damage.detail, damage.kept_as));
                }
                *self.history.lock() = loaded.records;
            }
            Err(error) => self.warn(format!("the access history could not be read: {error}")),
        }
    }

    /// Whether a root entry is ours.
    pub fn hidden_name() -> &'static str {
        HIDDEN
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::testing::{TestPair, config_of};

    struct Pair {
        temp: tempfile::TempDir,
    }

    impl Pair {
        fn new() -> Pair {
            Pair { temp: TestPair::empty().temp }
        }

        fn open(&self, adopt: bool) -> std::result::Result<TieredFs, StartError> {
            open(Config { adopt, ..config_of(&self.temp) })
        }

        fn own(&self, side: &str, file: &str) -> PathBuf {
            self.temp.path().join(side).join(HIDDEN).join(file)
        }
    }

    #[test]
    fn a_damaged_identity_is_refused_and_adopted_when_asked() {
        let pair = Pair::new();
        for side in ["ssd", "hdd"] {
            let good = std::fs::read(pair.own(side, "id")).expect("an identity");
            std::fs::write(pair.own(side, "id"), &good[..20]).expect("cut");
            let refused = pair.open(false).expect_err("damaged");
            assert!(refused.to_string().contains("--adopt"), "{refused}");
            let fs = pair.open(true).expect("adopted");
            // What moved there before has a mark, which must be looked for.
            let tier = if side == "ssd" { TierName::Ssd } else { TierName::Hdd };
            assert!(fs.tier(tier).marks.load(Ordering::Acquire));
            drop(fs);
            let again = std::fs::read(pair.own(side, "id")).expect("an identity");
            assert_eq!(again[8..24], good[8..24], "the same pair");
            drop(pair.open(false).expect("whole again"));
        }
    }

    #[test]
    fn an_identity_that_cannot_be_read_is_not_made_up() {
        let pair = Pair::new();
        let fs = pair.open(false).expect("opened");
        let id = pair.own("hdd", "id");
        let good = std::fs::read(&id).expect("an identity");
        std::fs::remove_file(&id).expect("removed");
        fs.note_marks(TierName::Hdd).expect_err("no identity");
        assert!(!id.exists());
        std::fs::write(&id, &good[..39]).expect("cut");
        fs.note_marks(TierName::Hdd).expect_err("a damaged identity");
        assert_eq!(std::fs::read(&id).expect("still there"), &good[..39]);
        std::fs::write(&id, &good).expect("put back");
        fs.note_marks(TierName::Hdd).expect("noted");
    }

    #[test]
    fn damage_is_found_by_check_then_put_aside_and_reported_by_the_mount() {
        let pair = Pair::new();
        let files = ["journal", "intent", "history", "pins"];
        for file in files {
            std::fs::write(pair.own("ssd", file), b"nothing that we ever wrote").expect("written");
        }
        let (ssd, hdd) = (pair.temp.path().join("ssd"), pair.temp.path().join("hdd"));
        let found = crate::check::check_pair(&ssd, &hdd, false, &mut |_| {}).expect("checked");
        let fs = pair.open(false).expect("opened");
        let warnings = fs.status().warnings;
        for file in files {
            let path = format!(".hotshelf/{file}");
            assert!(found.findings.iter().any(|one| one.path == path && one.kind == "damaged"), "{file}: {found:?}");
            assert!(warnings.iter().any(|one| one.contains(&format!("{file}.damaged-1"))), "{file}: {warnings:?}");
            let kept = std::fs::read(pair.own("ssd", &format!("{file}.damaged-1"))).expect("kept");
            assert_eq!(kept, b"nothing that we ever wrote");
        }
    }

    #[test]
    fn files_of_a_later_hotshelf_are_left_alone() {
        for (file, bytes) in
            [("id", &b"hsid\x02\0\0\0"[..]), ("journal", b"hsjr\x02\0\0\0"), ("intent", b"hsintnt4"), ("pins", b"hspn\x02\0\0\0")]
        {
            let pair = Pair::new();
            std::fs::write(pair.own("ssd", file), bytes).expect("written");
            for adopt in [false, true] {
                let refused = pair.open(adopt).expect_err("refused");
                assert!(
                    matches!(refused, StartError::Persist { source: PersistError::FutureVersion { found: 2 | 4, .. }, .. }),
                    "{file}: {refused}"
                );
            }
            assert_eq!(std::fs::read(pair.own("ssd", file)).expect("still there"), bytes);
        }
    }

    #[test]
    fn a_history_of_a_later_hotshelf_is_not_written_over() {
        let pair = Pair::new();
        std::fs::write(pair.own("ssd", "history"), b"hshi\x02\0\0\0").expect("written");
        let fs = pair.open(false).expect("opened: it is only heat");
        assert!(fs.status().warnings.iter().any(|one| one.contains("version 2")));
        let _ = fs.save_history();
        assert_eq!(std::fs::read(pair.own("ssd", "history")).expect("still there"), b"hshi\x02\0\0\0");
    }

    #[test]
    fn a_history_that_cannot_be_saved_is_answered_and_warned_of() {
        let pair = Pair::new();
        let fs = pair.open(false).expect("opened");
        fs.save_history().expect("saved");
        let old = std::fs::read(pair.own("ssd", "history")).expect("there");
        std::fs::create_dir(pair.own("ssd", "history.new")).expect("in the way");
        fs.save_history().expect_err("refused");
        assert!(fs.status().warnings.iter().any(|one| one.contains("could not be saved")));
        assert_eq!(std::fs::read(pair.own("ssd", "history")).expect("still there"), old);
    }
}
