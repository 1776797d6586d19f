//! Who belongs on the SSD: the policy, the second-touch filter, the rules and the pins.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::{Glob, GlobSet, GlobSetBuilder};
use parking_lot::{Mutex, RwLock};
use policy::{FileId, Ghost, Policy, Record};

use crate::config::{Config, Promotion};

/// Entries of the second-touch filter: a bound, not a promise.
const GHOST_ENTRIES: usize = 1 << 17;

/// Everything that decides where a file belongs.
pub struct Placement {
    order: Mutex<EvictionOrder>,
    pin_rules: GlobSet,
    hdd_rules: GlobSet,
    pins: RwLock<BTreeSet<Vec<u8>>>,
    changing_pins: Mutex<()>,
}

struct EvictionOrder {
    policy: Box<dyn Policy>,
    ghost: Ghost,
    /// Files that came up as victims and do not move (pinned, too small, hard-linked): out of the policy's way until [`Placement::unpark`].
    parked: HashMap<FileId, Record>,
}

impl EvictionOrder {
    fn record(&self, file: FileId) -> Option<Record> {
        self.policy.record(file).or_else(|| self.parked.get(&file).copied())
    }

    fn park(&mut self, file: FileId) {
        if let Some(record) = self.policy.record(file) {
            self.policy.remove(file);
            self.parked.insert(file, record);
        }
    }
}

/// What may be done with a file that comes up as a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VictimVerdict {
    /// The file may be evicted.
    Leaves,
    /// The file is in use now.
    NotNow,
    /// Not while it is pinned.
    Pinned,
}

/// What is wrong with the rules.
#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    /// The policy cannot be had.
    #[error(transparent)]
    Policy(#[from] policy::PolicyError),
    /// A rule is no glob.
    #[error("the rule `{rule}` is not a glob: {detail}")]
    Rule {
        /// As given.
        rule: String,
        /// What the parser says.
        detail: String,
    },
}

/// What an open means for a file on the HDD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TouchResult {
    /// It stays.
    Stay,
    /// It should come up.
    Promote,
}

impl Placement {
    /// Rules and policy of a configuration.
    pub fn new(config: &Config, pins: BTreeSet<Vec<u8>>) -> Result<Placement, PlacementError> {
        let order = EvictionOrder {
            policy: policy::by_name(&config.policy)?,
            ghost: Ghost::new(GHOST_ENTRIES, config.promotion_window_secs),
            parked: HashMap::new(),
        };
        Ok(Placement {
            order: Mutex::new(order),
            pin_rules: globs(&config.pin_rules)?,
            hdd_rules: globs(&config.hdd_rules)?,
            pins: RwLock::new(pins),
            changing_pins: Mutex::new(()),
        })
    }

    /// A file is on the SSD now.
    pub fn arrived(&self, ino: u64, size: u64, last_open_s: u32, opens: u16) {
        let mut order = self.order.lock();
        order.ghost.forget(FileId(ino));
        order.parked.remove(&FileId(ino));
        order.policy.insert(Record { file: FileId(ino), size, last_open_s, opens });
    }

    /// A file left the SSD, or is gone.
    pub fn left(&self, ino: u64) {
        let mut order = self.order.lock();
        order.parked.remove(&FileId(ino));
        order.policy.remove(FileId(ino));
    }

    /// A file on the SSD has another size.
    pub fn resized(&self, ino: u64, size: u64) {
        let mut order = self.order.lock();
        match order.parked.get_mut(&FileId(ino)) {
            Some(record) => record.size = size,
            None => order.policy.resize(FileId(ino), size),
        }
    }

    /// A file on the SSD was opened.
    pub fn touch_ssd(&self, ino: u64, now_s: u32) {
        let mut order = self.order.lock();
        match order.parked.get_mut(&FileId(ino)) {
            Some(record) => (record.last_open_s, record.opens) = (now_s, record.opens.saturating_add(1)),
            None => order.policy.touch(FileId(ino), now_s),
        }
    }

    /// A file on the HDD was opened.
    pub fn touch_hdd(&self, ino: u64, now_s: u32, promotion: Promotion) -> TouchResult {
        match promotion {
            Promotion::Never => TouchResult::Stay,
            Promotion::OnOpen => TouchResult::Promote,
            Promotion::SecondTouch if self.order.lock().ghost.touch(FileId(ino), now_s) => TouchResult::Promote,
            Promotion::SecondTouch => TouchResult::Stay,
        }
    }

    /// Returns the last open and the number of opens of a file, if known.
    pub fn heat(&self, ino: u64) -> Option<(u32, u16)> {
        let order = self.order.lock();
        let record = order.record(FileId(ino)).map(|record| (record.last_open_s, record.opens));
        record.or_else(|| order.ghost.seen(FileId(ino)))
    }

    /// Returns the recorded size of a file on the SSD.
    pub fn size(&self, ino: u64) -> Option<u64> {
        self.order.lock().record(FileId(ino)).map(|record| record.size)
    }

    /// Returns the position in the policy's order; 0.0 is evicted next.
    pub fn rank(&self, ino: u64) -> Option<f64> {
        let order = self.order.lock();
        order.policy.rank(FileId(ino)).or_else(|| order.parked.get(&FileId(ino)).map(|_| 1.0))
    }

    /// Returns the number of files that the policy knows.
    pub fn len(&self) -> usize {
        let order = self.order.lock();
        order.policy.len() + order.parked.len()
    }

    /// Returns the next file to evict for which `judge` agrees.
    pub fn victim(&self, judge: &mut dyn FnMut(u64) -> VictimVerdict) -> Option<u64> {
        const CANDIDATES_MAX: usize = 4096;
        let mut order = self.order.lock();
        loop {
            let mut pinned = Vec::new();
            let victim = order.policy.victim(CANDIDATES_MAX, &mut |file| match judge(file.0) {
                VictimVerdict::Leaves => true,
                VictimVerdict::NotNow => false,
                VictimVerdict::Pinned => {
                    pinned.push(file);
                    false
                }
            });
            let again = victim.is_none() && !pinned.is_empty();
            pinned.into_iter().for_each(|file| order.park(file));
            if !again {
                return victim.map(|file| file.0);
            }
        }
    }

    /// Sets aside a victim that stays on the SSD, so that it does not hide the others.
    pub fn stays(&self, ino: u64) {
        self.order.lock().park(FileId(ino));
    }

    /// Looks at parked files again: pins change, files are renamed and grow.
    pub fn unpark(&self) {
        let mut order = self.order.lock();
        let parked = std::mem::take(&mut order.parked);
        parked.into_values().for_each(|record| order.policy.insert(record));
    }

    /// Returns all records, the next victim first.
    pub fn records(&self) -> Vec<Record> {
        let mut records = Vec::new();
        let order = self.order.lock();
        order.policy.export(&mut |record| records.push(record));
        records.extend(order.parked.values());
        records
    }

    /// Replaces the policy; the new one gets all records.
    pub fn set_policy(&self, mut policy: Box<dyn Policy>) {
        let mut order = self.order.lock();
        order.policy.export(&mut |record| policy.insert(record));
        order.policy = policy;
    }

    /// From now on opens within so many seconds are a second touch.
    pub fn set_touch_window(&self, seconds: u32) {
        self.order.lock().ghost.set_window(seconds);
    }

    /// Returns the name of the eviction policy.
    pub fn policy_name(&self) -> String {
        self.order.lock().policy.name().to_owned()
    }

    /// Whether paths matter at all (most pairs have no rules).
    pub fn has_pins(&self) -> bool {
        !self.pin_rules.is_empty() || !self.pins.read().is_empty()
    }

    /// Why a path stays on the SSD, if it does.
    pub fn pinned(&self, path: &[u8]) -> Option<String> {
        let as_path = Path::new(OsStr::from_bytes(path));
        if self.pin_rules.is_match(as_path) {
            return Some("by a rule given at mount".into());
        }
        let pins = self.pins.read();
        let mut above = Some(as_path);
        while let Some(candidate) = above {
            let bytes = candidate.as_os_str().as_bytes();
            if pins.contains(bytes) {
                let by_itself = bytes == path;
                return Some(if by_itself { "by itself".into() } else { format!("by `{}` above it", candidate.display()) });
            }
            above = candidate.parent();
        }
        None
    }

    /// Whether a rule sends a path to the HDD. A pin says more: it wins.
    pub fn belongs_on_hdd(&self, path: &[u8]) -> bool {
        !self.hdd_rules.is_empty() && self.hdd_rules.is_match(Path::new(OsStr::from_bytes(path))) && self.pinned(path).is_none()
    }

    /// Whether any rule sends files to the HDD.
    pub fn has_hdd_rules(&self) -> bool {
        !self.hdd_rules.is_empty()
    }

    /// Returns the paths that users pinned.
    pub fn pins(&self) -> BTreeSet<Vec<u8>> {
        self.pins.read().clone()
    }

    /// Adds or removes a pin, saves the new set, and takes the change back when that fails; `false`: it was so already.
    pub fn change_pin<E>(&self, path: &[u8], on: bool, save: impl FnOnce(&BTreeSet<Vec<u8>>) -> Result<(), E>) -> Result<bool, E> {
        // One change after the other: the set that is saved last must be the newest.
        let _one = self.changing_pins.lock();
        let set = |on: bool| {
            let mut pins = self.pins.write();
            let changed = if on { pins.insert(path.to_vec()) } else { pins.remove(path) };
            changed.then(|| pins.clone())
        };
        let Some(pins) = set(on) else { return Ok(false) };
        save(&pins).inspect_err(|_| drop(set(!on)))?;
        if !on {
            self.unpark();
        }
        Ok(true)
    }
}

impl std::fmt::Debug for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Placement").finish_non_exhaustive()
    }
}

fn globs(rules: &[String]) -> Result<GlobSet, PlacementError> {
    let mut set = GlobSetBuilder::new();
    for rule in rules {
        let glob = Glob::new(rule).map_err(|error| PlacementError::Rule { rule: rule.clone(), detail: error.kind().to_string() })?;
        set.add(glob);
    }
    set.build().map_err(|error| PlacementError::Rule { rule: rules.join(" "), detail: error.kind().to_string() })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn any_number_of_pinned_files_does_not_hide_the_others() {
        let placement = Placement::new(&Config::default(), BTreeSet::new()).expect("defaults");
        (0..20_000).for_each(|ino| placement.arrived(ino, 1, ino as u32, 1));
        let pinned_below =
            |limit: u64| placement.victim(&mut |ino| if ino < limit { VictimVerdict::Pinned } else { VictimVerdict::Leaves });
        assert_eq!(pinned_below(15_000), Some(15_000));
        assert_eq!((placement.len(), placement.heat(3)), (20_000, Some((3, 1))));
        placement.unpark();
        assert_eq!(placement.victim(&mut |_| VictimVerdict::Leaves).map(|ino| ino >= 15_000), Some(true), "those not parked are older now");
        assert_eq!(placement.records().len(), 20_000);
        (15_000..20_000).for_each(|ino| placement.left(ino));
        assert!(placement.victim(&mut |_| VictimVerdict::Leaves).is_some_and(|ino| ino < 15_000), "unpinned files leave again");
    }

    #[test]
    fn a_pin_wins_over_a_rule_for_the_hdd() {
        let config = Config { hdd_rules: vec!["**/*.iso".into()], pin_rules: vec!["boot/**".into()], ..Config::default() };
        let placement = Placement::new(&config, BTreeSet::from([b"work".to_vec()])).expect("rules");
        let on_hdd = |path: &str| placement.belongs_on_hdd(path.as_bytes());
        assert!(on_hdd("a.iso") && on_hdd("deep/down/a.iso"));
        assert!(!on_hdd("work/a.iso") && !on_hdd("boot/a.iso") && !on_hdd("a.img"));
    }

    #[test]
    fn pins_changed_at_once_are_all_saved_and_a_failed_one_is_taken_back() {
        let placement = Placement::new(&Config::default(), BTreeSet::new()).expect("no rules");
        let saved = Mutex::new(BTreeSet::new());
        std::thread::scope(|scope| {
            for n in 0..8u8 {
                let (placement, saved) = (&placement, &saved);
                scope.spawn(move || {
                    let slow = |pins: &BTreeSet<Vec<u8>>| -> Result<(), ()> {
                        (0..n % 3).for_each(|_| std::thread::yield_now());
                        *saved.lock() = pins.clone();
                        Ok(())
                    };
                    assert_eq!(placement.change_pin(&[n], true, slow), Ok(true));
                });
            }
        });
        assert_eq!((saved.into_inner(), placement.pins().len()), (placement.pins(), 8));
        assert_eq!(placement.change_pin(b"new", true, |_| Err("full")), Err("full"));
        assert_eq!(placement.change_pin(&[3], false, |_| Err("full")), Err("full"));
        assert_eq!(placement.change_pin(&[3], true, |_| Err("not asked")), Ok(false));
        assert_eq!(placement.pins().len(), 8);
    }
}
