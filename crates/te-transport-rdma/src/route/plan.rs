//! The decision.

use std::collections::BTreeMap;
use std::time::Instant;

use te_segment::{NicName, Rails};

use super::{Candidate, Connectivity, Health, NoRoute, Plan, Query, Rail, Reach, Reason, Side, Standing};

/// Chooses the rails for a request.
///
/// Every pair of NICs at which both buffers have keys is judged. Of those with the best standing as many are taken as it
/// takes for each NIC among them to be in one; the others are spare.
///
/// # Errors
///
/// That no rail is left, with the NICs of both sides and the reason for each pair.
pub fn plan(query: &Query<'_>, health: &Health, reach: &Reach, now: Instant) -> Result<Plan, NoRoute> {
    let (local, remote) = (NicsOf::new(&query.local), NicsOf::new(&query.remote));
    let mut candidates = Vec::new();
    let mut left_out = Vec::new();
    for (here, local_key) in query.local.keys {
        for (there, remote_key) in query.remote.keys {
            let rail = Rail { local: here.clone(), remote: there.clone() };
            let barred = match query.connectivity.joins(&rail) {
                true => health.bars(now, &rail),
                false => Some(Reason::NotJoined),
            };
            if let Some(reason) = barred {
                left_out.push((rail, reason));
                continue;
            }
            let doubts_here = query.tried.iter().any(|tried| tried.local == *here)
                || reach.doubts_local(now, here, query.local.location);
            let doubts_there = query.tried.iter().any(|tried| tried.remote == *there)
                || reach.doubts_remote(now, query.peer, there, query.remote.location);
            let state = health.state(&rail);
            let failed = query.tried.contains(&rail) || state.failures > 0 && !state.has_worked;
            let standing = Standing {
                doubts: u8::from(doubts_here) + u8::from(doubts_there) + u8::from(failed),
                far: u8::from(!local.is_close(here)) + u8::from(!remote.is_close(there)),
                other_name: *query.connectivity == Connectivity::PreferSameName && here != there,
            };
            candidates.push(Candidate { rail, local_key: *local_key, remote_key: *remote_key, standing });
        }
    }
    candidates.sort_by(|a, b| (a.standing, &a.rail).cmp(&(b.standing, &b.rail)));
    let Some(best) = candidates.first().map(|first| first.standing) else {
        return Err(NoRoute {
            peer: query.peer.to_owned(),
            local: query.local.keys.keys().cloned().collect(),
            remote: query.remote.keys.keys().cloned().collect(),
            retryable: left_out.iter().any(|(_, reason)| *reason != Reason::NotJoined),
            left_out,
        });
    };
    let worse = candidates.partition_point(|candidate| candidate.standing == best);
    let others = candidates.split_off(worse);
    let (rails, mut spare) = cover(candidates);
    spare.extend(others);
    Ok(Plan { rails, spare, left_out })
}

/// Takes pairs until each NIC is in one, always of the NICs that are used least; among equals those of one name, so that
/// traffic stays within a rail of the fabric where it can.
fn cover(mut candidates: Vec<Candidate>) -> (Vec<Candidate>, Vec<Candidate>) {
    let mut uses_here: BTreeMap<NicName, u32> = BTreeMap::new();
    let mut uses_there = uses_here.clone();
    for Candidate { rail, .. } in &candidates {
        uses_here.insert(rail.local.clone(), 0);
        uses_there.insert(rail.remote.clone(), 0);
    }
    let mut taken = Vec::new();
    let uses = |map: &BTreeMap<NicName, u32>, nic: &NicName| map.get(nic).copied().unwrap_or(0);
    loop {
        let unused = |rail: &Rail| uses(&uses_here, &rail.local) == 0 || uses(&uses_there, &rail.remote) == 0;
        let next = (0..candidates.len()).filter(|&at| unused(&candidates[at].rail)).min_by_key(|&at| {
            let rail = &candidates[at].rail;
            let (here, there) = (uses(&uses_here, &rail.local), uses(&uses_there, &rail.remote));
            (here + there, rail.local != rail.remote, at)
        });
        let Some(at) = next else { return (taken, candidates) };
        let chosen = candidates.remove(at);
        *uses_here.entry(chosen.rail.local.clone()).or_default() += 1;
        *uses_there.entry(chosen.rail.remote.clone()).or_default() += 1;
        taken.push(chosen);
    }
}

/// The NICs of a side as its topology names them for the buffer.
struct NicsOf(Rails);

impl NicsOf {
    fn new(side: &Side<'_>) -> Self {
        let mut rails = side.topology.resolve(side.location);
        // Where the topology names no NIC as close, all of them are.
        if rails.preferred.is_empty() {
            rails.preferred.append(&mut rails.available);
            rails.preferred.extend(side.keys.keys().cloned());
        }
        Self(rails)
    }

    fn is_close(&self, nic: &NicName) -> bool {
        self.0.preferred.contains(nic)
    }
}
