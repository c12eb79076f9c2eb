//! The rails between one registration here and one buffer of a peer, kept until something changes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use te_segment::{AddressRange, BufferDescriptor, MemoryKey, TransportKind};
use te_transport::{Failure, FailureKind};

use super::peer::Peer;
use crate::device::{Barred, Link, LinkKey, Registered, Trouble};
use crate::offer;
use crate::route::{Candidate, NoRoute, Query, Rail, Side, plan};

/// How long a route is kept from which something is left out for a time only.
const BRIEF: Duration = Duration::from_millis(500);

/// A rail with what is needed to post on it.
#[derive(Clone)]
pub(crate) struct Way {
    pub(crate) link: Arc<Link>,
    /// The peer's keys at the NIC there, one for each part of its buffer.
    remote_keys: Arc<[MemoryKey]>,
}

impl Way {
    /// The peer's key of a part of its buffer.
    pub(crate) fn remote_key(&self, part: usize) -> Option<MemoryKey> {
        self.remote_keys.get(part).copied()
    }
}

/// Where the pieces of a request may go.
pub(crate) struct Route {
    pub(crate) ways: Vec<Way>,
    pub(crate) local: Arc<Registered>,
    /// The parts of the peer's buffer that have keys of their own.
    pub(crate) remote: Vec<AddressRange>,
    epoch: u64,
    until: Option<Instant>,
}

impl Route {
    /// Whether nothing has changed since it was made.
    pub(crate) fn is_fresh(&self, epoch: u64, now: Instant) -> bool {
        self.epoch == epoch
            && self.until.is_none_or(|until| now < until)
            && self.ways.iter().all(|way| !way.link.is_retired())
    }
}

/// Finds the rails for one of the peer's buffers.
pub(crate) fn find(
    peer: &Arc<Peer>,
    local: &Arc<Registered>,
    buffer: usize,
    epoch: u64,
    now: Instant,
) -> Result<Route, Failure> {
    let (shared, descriptor) = (peer.shared(), peer.descriptor());
    let Some(described) = descriptor.buffers().get(buffer) else {
        return Err(Failure::new(FailureKind::BufferGone, "the peer's descriptor has no such buffer"));
    };
    // Each part has a key at each NIC that has one for the first.
    let remote_keys: BTreeMap<_, _> = offer::keys(descriptor, described)
        .into_iter()
        .filter_map(|(nic, keys)| Some((nic.clone(), *keys.first()?)))
        .collect();
    let local_keys = local.keys();
    if remote_keys.is_empty() {
        let cause = "the buffer has no key at any usable RDMA device of the peer";
        return Err(Failure::new(FailureKind::Unsupported, cause));
    }
    let query = Query {
        local: Side { location: &local.location, topology: &shared.topology, keys: &local_keys },
        remote: Side { location: described.location(), topology: descriptor.topology(), keys: &remote_keys },
        peer: descriptor.name().as_str(),
        connectivity: &shared.common.config.rail_map,
        tried: &[],
    };
    let planned = {
        let health = peer.health();
        let reach = shared.reach.lock();
        plan(&query, &health, &reach, now).map_err(|error| no_route(&error))?
    };
    let mut barred = Vec::new();
    let mut ways = usable(peer, described, &planned.rails, now, &mut barred);
    if ways.is_empty() {
        ways = usable(peer, described, &planned.spare, now, &mut barred);
    }
    let paused = !planned.left_out.is_empty() || !barred.is_empty();
    if ways.is_empty() {
        // Rails that have just broken are better than none.
        let brief = barred.iter().filter_map(|(way, barred)| way.as_ref().filter(|_| barred.is_brief(now)));
        ways = brief.cloned().collect();
    }
    if ways.is_empty() {
        let trouble = barred.into_iter().find_map(|(_, barred)| barred.trouble);
        return Err(match trouble {
            Some(Trouble { kind, cause }) => Failure::new(kind, cause),
            None => Failure::new(FailureKind::Unreachable, "no NIC of the peer is tried again yet"),
        });
    }
    let until = paused.then(|| now + BRIEF);
    let remote = described.keyed(&TransportKind::RDMA);
    Ok(Route { ways, local: local.clone(), remote, epoch, until })
}

/// Those rails that can be used now; the others, and why not, go to `barred`.
fn usable(
    peer: &Arc<Peer>,
    buffer: &BufferDescriptor,
    candidates: &[Candidate],
    now: Instant,
    barred: &mut Vec<(Option<Way>, Barred)>,
) -> Vec<Way> {
    let mut ways = Vec::new();
    for candidate in candidates {
        match way(peer, buffer, candidate) {
            Ok(way) => match way.link.may_be_used(now) {
                Ok(()) => {
                    if way.link.is_sound() {
                        peer.is_sound(way.link.rail());
                    }
                    ways.push(way);
                }
                Err(why) => barred.push((Some(way), why)),
            },
            Err(cause) => {
                let trouble = Some(Trouble { kind: FailureKind::Unreachable, cause: cause.into() });
                barred.push((None, Barred { until: now, trouble }));
            }
        }
    }
    ways
}

fn way(peer: &Arc<Peer>, buffer: &BufferDescriptor, candidate: &Candidate) -> Result<Way, String> {
    let Rail { local, remote } = &candidate.rail;
    let nic = peer.shared().nics.iter().find(|nic| nic.name() == local).filter(|nic| nic.is_up());
    let nic = nic.ok_or_else(|| format!("{local} is down"))?;
    let there = offer::nic_path(peer.descriptor(), remote).map_err(|error| error.to_string())?;
    let link = nic.link(&LinkKey { there, life: peer.descriptor().incarnation() }, Some(peer.descriptor()));
    Ok(Way { link, remote_keys: buffer.keys(&TransportKind::RDMA, remote).into() })
}

fn no_route(error: &NoRoute) -> Failure {
    Failure::new(FailureKind::Unreachable, error.to_string())
}
