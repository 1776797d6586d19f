//! Who may have queues: grants, and the decision.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::refusal::Refusal;

/// Names a grant for as long as its journal lives; never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GrantId(pub u64);

/// Whom a grant is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    /// Processes of this user.
    User(u32),
    /// Processes whose group, the effective one and not a supplementary one, is this.
    Group(u32),
    /// Whoever reaches the socket: where its directory decides that.
    Anybody,
}

/// What is granted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GrantSpec {
    /// To whom.
    pub who: Who,
    /// The device, as `serve` names it.
    pub device: String,
    /// Most queues open at a time, of all processes this grant serves.
    pub queues: u32,
    /// Most requests in flight on each.
    pub depth: u32,
    /// First block.
    pub first: u64,
    /// How many; none: to the end of the device.
    pub blocks: Option<u64>,
    /// Only reading.
    pub read_only: bool,
    /// Most bytes of shared memory of each connection.
    pub memory_bytes: u64,
    /// Most bytes per second, of all its queues together.
    pub bytes_per_s: Option<u64>,
    /// Most requests per second, of all its queues together.
    pub requests_per_s: Option<u64>,
}

impl GrantSpec {
    /// Whether another grant of the same user, device and range takes its place.
    fn replaces(&self, other: &GrantSpec) -> bool {
        (self.who, &self.device, self.first, self.blocks) == (other.who, &other.device, other.first, other.blocks)
    }
}

/// A grant in force.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Grant {
    /// Its name.
    pub id: GrantId,
    /// What it says.
    #[serde(flatten)]
    pub terms: GrantSpec,
    /// When it was given, seconds since 1970.
    pub time_s: u64,
    /// The user who gave it.
    pub by: u32,
}

/// Who is at the other end of a socket, as the kernel says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Its user.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// Its process.
    pub pid: i32,
}

/// What somebody wants to have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Wish {
    /// The device, as `serve` names it.
    pub device: String,
    /// First block and number of blocks; none: all that one grant has.
    pub range: Option<(u64, u64)>,
    /// Only reading.
    pub read_only: bool,
}

/// Blocks of a device that a client sees as a device of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// First block.
    pub first: u64,
    /// How many, at least one.
    pub blocks: u64,
}

/// All grants in force.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Policy {
    grants: BTreeMap<GrantId, Grant>,
}

impl Policy {
    /// In the order they were given.
    pub fn grants(&self) -> impl Iterator<Item = &Grant> {
        self.grants.values()
    }

    /// One of them.
    pub fn get(&self, id: GrantId) -> Option<&Grant> {
        self.grants.get(&id)
    }

    /// The one that a new grant of these terms replaces.
    pub fn replaced_by(&self, terms: &GrantSpec) -> Option<GrantId> {
        self.grants.values().find(|grant| terms.replaces(&grant.terms)).map(|grant| grant.id)
    }

    pub(super) fn put(&mut self, grant: Grant) {
        self.grants.insert(grant.id, grant);
    }

    pub(super) fn remove(&mut self, id: GrantId) -> Option<Grant> {
        self.grants.remove(&id)
    }

    /// Which grant allows this, and which blocks it gives. `device_blocks` is the device's size, `open` says how many queues
    /// are open under a grant. Of several grants that fit, the oldest; of several that do not, the refusal that came closest.
    ///
    /// # Errors
    /// Why none allows it.
    pub fn decide(
        &self,
        peer: Peer,
        wish: &Wish,
        device_blocks: u64,
        depth: Option<u32>,
        open: impl Fn(GrantId) -> u32,
    ) -> Result<(&Grant, Window), Refusal> {
        let mut nearest = (0, Refusal::NoGrant { user: peer.user, device: wish.device.clone() });
        for grant in self.grants.values().filter(|grant| grant.terms.is_for(peer, &wish.device)) {
            match grant.terms.allow(wish, device_blocks, depth, open(grant.id)) {
                Ok(window) => return Ok((grant, window)),
                Err(refused) if refused.0 > nearest.0 => nearest = refused,
                Err(_) => {}
            }
        }
        Err(nearest.1)
    }
}

impl GrantSpec {
    fn is_for(&self, peer: Peer, device: &str) -> bool {
        let who = match self.who {
            Who::User(user) => user == peer.user,
            Who::Group(group) => group == peer.group,
            Who::Anybody => true,
        };
        who && self.device == device
    }

    /// The refusal goes with how far it came: later checks mean a better fit.
    fn allow(&self, wish: &Wish, device_blocks: u64, depth: Option<u32>, open: u32) -> Result<Window, (u32, Refusal)> {
        let window = self.window(wish, device_blocks).map_err(|refusal| (1, refusal))?;
        if self.read_only && !wish.read_only {
            return Err((2, Refusal::ReadOnly));
        }
        let Some(depth) = depth else { return Ok(window) };
        if depth > self.depth {
            return Err((3, Refusal::DepthTooGreat { depth, most: self.depth }));
        }
        if open >= self.queues {
            return Err((4, Refusal::TooManyQueues { open, most: self.queues }));
        }
        Ok(window)
    }

    fn window(&self, wish: &Wish, device_blocks: u64) -> Result<Window, Refusal> {
        let granted = device_blocks.saturating_sub(self.first).min(self.blocks.unwrap_or(u64::MAX));
        let (first, blocks) = wish.range.unwrap_or((self.first, granted));
        let inside = first.checked_sub(self.first).and_then(|before| before.checked_add(blocks)).is_some_and(|end| end <= granted);
        if blocks == 0 || !inside {
            return Err(Refusal::OutOfRange { first, blocks, granted_first: self.first, granted });
        }
        Ok(Window { first, blocks })
    }
}

#[cfg(test)]
pub(super) mod test {
    use super::*;

    pub(in super::super) fn terms(user: u32, device: &str) -> GrantSpec {
        GrantSpec {
            who: Who::User(user),
            device: device.into(),
            queues: 2,
            depth: 32,
            first: 100,
            blocks: Some(50),
            read_only: false,
            memory_bytes: 1 << 20,
            bytes_per_s: None,
            requests_per_s: None,
        }
    }

    fn grant(id: u64, terms: GrantSpec) -> Grant {
        Grant { id: GrantId(id), terms, time_s: 0, by: 0 }
    }

    fn policy(grants: impl IntoIterator<Item = GrantSpec>) -> Policy {
        let mut policy = Policy::default();
        (1..).zip(grants).for_each(|(id, terms)| policy.put(grant(id, terms)));
        policy
    }

    const PEER: Peer = Peer { user: 7, group: 70, pid: 1 };

    fn ask(policy: &Policy, range: Option<(u64, u64)>, depth: u32, open: u32) -> Result<(u64, Window), Refusal> {
        let wish = Wish { device: "d".into(), range, read_only: false };
        policy.decide(PEER, &wish, 1000, Some(depth), |_| open).map(|(grant, window)| (grant.id.0, window))
    }

    #[test]
    fn what_is_within_a_grant_is_allowed_and_the_rest_refused_by_its_reason() {
        let policy = policy([terms(7, "d")]);
        assert_eq!(ask(&policy, None, 32, 0), Ok((1, Window { first: 100, blocks: 50 })));
        assert_eq!(ask(&policy, Some((149, 1)), 1, 1), Ok((1, Window { first: 149, blocks: 1 })));
        for range in [(99, 2), (149, 2), (150, 1), (100, 0), (u64::MAX, 2), (100, u64::MAX), (0, u64::MAX)] {
            assert!(matches!(ask(&policy, Some(range), 1, 0), Err(Refusal::OutOfRange { .. })), "{range:?}");
        }
        assert_eq!(ask(&policy, None, 33, 0), Err(Refusal::DepthTooGreat { depth: 33, most: 32 }));
        assert_eq!(ask(&policy, None, 1, 2), Err(Refusal::TooManyQueues { open: 2, most: 2 }));
        let wrong = Wish { device: "other".into(), range: None, read_only: false };
        assert!(matches!(policy.decide(PEER, &wrong, 1000, Some(1), |_| 0), Err(Refusal::NoGrant { .. })));
        let other = Peer { user: 8, ..PEER };
        let wish = Wish { device: "d".into(), range: None, read_only: true };
        assert!(matches!(policy.decide(other, &wish, 1000, Some(1), |_| 0), Err(Refusal::NoGrant { user: 8, .. })));
    }

    #[test]
    fn what_is_for_anybody_is_for_every_user_and_within_its_terms() {
        let anybody = policy([GrantSpec { who: Who::Anybody, read_only: true, queues: u32::MAX, ..terms(0, "d") }]);
        for user in [0, 7, 65_534] {
            let peer = Peer { user, group: user, pid: 1 };
            let wish = |read_only| Wish { device: "d".into(), range: None, read_only };
            assert!(anybody.decide(peer, &wish(true), 1000, Some(8), |_| 4000).is_ok());
            assert_eq!(anybody.decide(peer, &wish(false), 1000, Some(8), |_| 0).map(|_| ()), Err(Refusal::ReadOnly));
        }
    }

    #[test]
    fn a_grant_for_reading_gives_no_queue_that_writes() {
        let policy = policy([GrantSpec { read_only: true, ..terms(7, "d") }]);
        assert_eq!(ask(&policy, None, 1, 0), Err(Refusal::ReadOnly));
        let wish = Wish { device: "d".into(), range: None, read_only: true };
        assert!(policy.decide(PEER, &wish, 1000, Some(1), |_| 0).is_ok());
    }

    #[test]
    fn groups_count_and_the_nearest_refusal_is_told() {
        let group = GrantSpec { who: Who::Group(70), first: 0, blocks: None, ..terms(0, "d") };
        let both = policy([terms(7, "d"), group]);
        assert_eq!(ask(&both, Some((0, 1000)), 1, 0), Ok((2, Window { first: 0, blocks: 1000 })));
        assert_eq!(ask(&both, Some((0, 1001)), 1, 0).map_err(|refusal| matches!(refusal, Refusal::OutOfRange { .. })), Err(true));
        assert_eq!(ask(&both, Some((0, 10)), 64, 0), Err(Refusal::DepthTooGreat { depth: 64, most: 32 }));
    }

    #[test]
    fn a_grant_beyond_the_devices_end_gives_nothing() {
        let beyond = policy([GrantSpec { first: 1000, blocks: None, ..terms(7, "d") }]);
        assert!(matches!(ask(&beyond, None, 1, 0), Err(Refusal::OutOfRange { granted: 0, .. })));
        let past = policy([GrantSpec { first: 990, blocks: Some(u64::MAX), ..terms(7, "d") }]);
        assert_eq!(ask(&past, None, 1, 0), Ok((1, Window { first: 990, blocks: 10 })));
    }
}
