//! Which NIC reaches which memory: learned, since a device may register memory that it cannot read or write (RDMA-09).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use te_segment::{Location, NicName};

use super::Rail;

/// How long a doubt lasts.
const DOUBT: Duration = Duration::from_secs(300);

/// Most pairs that are remembered; the oldest are forgotten first.
const MAX_PAIRS: usize = 65_536;

/// Whose NIC: ours or that of a peer, at which memory.
type Pair = (Option<String>, NicName, Location);

#[derive(Clone, Copy, Debug)]
struct Seen {
    works: bool,
    at: Instant,
}

/// What is known of pairs of NIC and memory, here and at peers.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    seen: HashMap<Pair, Seen>,
}

impl Reach {
    /// Work over the rail between memory at these places has completed: both NICs reach it.
    pub fn worked(&mut self, now: Instant, peer: &str, rail: &Rail, local: &Location, remote: &Location) {
        for pair in pairs(peer, rail, local, remote) {
            self.note(pair, Seen { works: true, at: now });
        }
    }

    /// Work over the rail has failed. A NIC that is known to reach its memory is not to blame, so that where it is known of
    /// both, something else has failed; where it is known of neither, both are in doubt.
    pub fn failed(&mut self, now: Instant, peer: &str, rail: &Rail, local: &Location, remote: &Location) {
        let pairs = pairs(peer, rail, local, remote);
        let proven = pairs.each_ref().map(|pair| self.seen.get(pair).is_some_and(|seen| seen.works));
        for (pair, _) in pairs.into_iter().zip(proven).filter(|(_, proven)| !proven) {
            self.note(pair, Seen { works: false, at: now });
        }
    }

    /// Whether it is doubtful that the NIC here reaches memory at `place`.
    #[must_use]
    pub fn doubts_local(&self, now: Instant, nic: &NicName, place: &Location) -> bool {
        self.doubts(now, &(None, nic.clone(), place.clone()))
    }

    /// Whether it is doubtful that the peer's NIC reaches memory at `place`.
    #[must_use]
    pub fn doubts_remote(&self, now: Instant, peer: &str, nic: &NicName, place: &Location) -> bool {
        self.doubts(now, &(Some(peer.to_owned()), nic.clone(), place.clone()))
    }

    /// Forgets all of a peer, as when another life of it appears.
    pub fn forget(&mut self, peer: &str) {
        self.seen.retain(|(owner, ..), _| owner.as_deref() != Some(peer));
    }

    fn doubts(&self, now: Instant, pair: &Pair) -> bool {
        let seen = self.seen.get(pair);
        seen.is_some_and(|seen| !seen.works && now.saturating_duration_since(seen.at) < DOUBT)
    }

    fn note(&mut self, pair: Pair, seen: Seen) {
        if self.seen.len() >= MAX_PAIRS && !self.seen.contains_key(&pair) {
            let mut times: Vec<_> = self.seen.values().map(|seen| seen.at).collect();
            let (_, middle, _) = times.select_nth_unstable(MAX_PAIRS / 2);
            let middle = *middle;
            self.seen.retain(|_, seen| seen.at > middle);
        }
        self.seen.insert(pair, seen);
    }
}

fn pairs(peer: &str, rail: &Rail, local: &Location, remote: &Location) -> [Pair; 2] {
    [(None, rail.local.clone(), local.clone()), (Some(peer.to_owned()), rail.remote.clone(), remote.clone())]
}
