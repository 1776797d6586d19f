//! Grants, and the decision whether a user may open a queue.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::refusal::Refusal;

/// The ID of a grant; unique for the life of its journal, and never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GrantId(pub u64);

/// The users or processes that a grant applies to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    /// All processes of this user.
    User(u32),
    /// All processes whose effective group (not a supplementary group) is this.
    Group(u32),
    /// Every process that can reach the socket: permissions of its directory then decide.
    Anybody,
}

/// The terms of a grant: its users, device, blocks and limits.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GrantSpec {
    /// The users that the grant applies to.
    pub who: Who,
    /// The device, by its name in `serve`.
    pub device: String,
    /// The maximum number of open queues, over all processes that use the grant.
    pub queues: u32,
    /// The maximum number of requests in flight on each queue.
    pub depth: u32,
    /// The first block of the device that is granted.
    pub first: u64,
    /// The number of blocks; `None` extends to the end of the device.
    pub blocks: Option<u64>,
    /// Whether the grant allows reads only.
    pub read_only: bool,
    /// The maximum shared memory of each connection, in bytes.
    pub memory_bytes: u64,
    /// The maximum bytes per second, over all queues of the grant.
    pub bytes_per_s: Option<u64>,
    /// The maximum requests per second, over all queues of the grant.
    pub requests_per_s: Option<u64>,
}

impl GrantSpec {
    /// Returns whether both grants have the same user, device and range, so that the newer replaces the older.
    fn replaces(&self, other: &GrantSpec) -> bool {
        (self.who, &self.device, self.first, self.blocks) == (other.who, &other.device, other.first, other.blocks)
    }
}

/// A grant in force, with its ID and origin.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Grant {
    /// The ID of the grant.
    pub id: GrantId,
    /// The terms of the grant.
    #[serde(flatten)]
    pub terms: GrantSpec,
    /// The time when the grant was made, in seconds since 1970.
    pub time_s: u64,
    /// The user ID that made the grant.
    pub by: u32,
}

/// The credentials of the process at the other end of a socket, as the kernel reports them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The effective user ID of the peer.
    pub user: u32,
    /// The effective group ID of the peer.
    pub group: u32,
    /// The process ID of the peer.
    pub pid: i32,
}

/// A client's request for access to a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Wish {
    /// The device, by its name in `serve`.
    pub device: String,
    /// The first block and the number of blocks; `None` selects all blocks of one grant.
    pub range: Option<(u64, u64)>,
    /// Whether the client only reads.
    pub read_only: bool,
}

/// A range of blocks of a device that a client sees as its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// The first block of the window.
    pub first: u64,
    /// The number of blocks, at least one.
    pub blocks: u64,
}

/// The policy of a broker: all grants in force.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Policy {
    grants: BTreeMap<GrantId, Grant>,
}

impl Policy {
    /// Returns the grants in the order in which they were made.
    pub fn grants(&self) -> impl Iterator<Item = &Grant> {
        self.grants.values()
    }

    /// Returns the grant with the given ID, if it is in force.
    pub fn get(&self, id: GrantId) -> Option<&Grant> {
        self.grants.get(&id)
    }

    /// Returns the grant that a new grant with these terms would replace.
    pub fn replaced_by(&self, terms: &GrantSpec) -> Option<GrantId> {
        self.grants.values().find(|grant| terms.replaces(&grant.terms)).map(|grant| grant.id)
    }

    pub(super) fn put(&mut self, grant: Grant) {
        self.grants.insert(grant.id, grant);
    }

    pub(super) fn remove(&mut self, id: GrantId) -> Option<Grant> {
        self.grants.remove(&id)
    }

    /// Returns the grant that allows the request, and the window it opens.
    ///
    /// `device_blocks` is the size of the device; `open` returns the number of open queues of a grant. If several grants allow the
    /// request, the oldest is used.
    ///
    /// # Errors Fails if no grant allows the request, with the refusal of the grant that matched best.
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

    /// Returns a refusal together with a rank: a later check means a better match.
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
    fn groups_count_and_the_nearest_refusal_is_reported() {
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
