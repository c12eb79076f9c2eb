//! Whose key is it: of this deployment, or of one with another cluster id below it?
//!
//! Keys are not escaped. Without a cluster id, `mooncake/a/b` is the segment `a/b`, or the segment `b` of a name with a
//! slash in cluster `a`: only what else is there can tell.

use std::collections::BTreeSet;

use te_metadata::{ClusterId, KeySubject, Keys, LeasedEntry};
use te_segment::SegmentName;
use te_segment::wire::RpcLocation;

use super::decode;

const RAM: &str = "/ram/";
const RPC_META: &str = "/rpc_meta/";

/// What a key is about, for a deployment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Subject<'a> {
    /// A name of its own.
    Own(KeySubject),
    /// A name of another deployment.
    Other {
        /// Its cluster id.
        cluster: ClusterId,
        /// The name there.
        name: &'a str,
    },
}

/// The places of engines that a store holds.
pub(super) struct Places<'a> {
    /// Of this deployment, by name.
    own: BTreeSet<&'a str>,
    /// Of others: what follows the prefix of this one.
    others: BTreeSet<&'a str>,
    prefix: String,
}

impl<'a> Places<'a> {
    pub(super) fn of(keys: &Keys, found: &'a [LeasedEntry]) -> Self {
        let prefix = keys.prefix();
        let (mut own, mut others) = (BTreeSet::new(), BTreeSet::new());
        for one in found {
            let Some(rest) = one.key.as_str().strip_prefix(prefix.as_str()) else { continue };
            if let Some(name) = rest.strip_prefix(&RPC_META[1..]) {
                own.insert(name);
            } else if rest.contains(RPC_META) && RpcLocation::decode(one.entry.value.as_bytes()).is_ok() {
                others.insert(rest);
            }
        }
        Self { own, others, prefix }
    }

    /// What a key is about; `None` if no engine would have written it.
    pub(super) fn subject(&self, keys: &Keys, found: &'a LeasedEntry) -> Option<Subject<'a>> {
        let key = found.key.as_str();
        let rest = key.strip_prefix(self.prefix.as_str())?;
        let subject = keys.subject(key);
        match subject {
            Some(KeySubject::Segment(name)) if name.as_str().contains('/') => {
                match self.other(rest, &name, found) {
                    Some((cluster, name)) => Some(Subject::Other { cluster, name }),
                    None => Some(Subject::Own(KeySubject::Segment(name))),
                }
            }
            // Above all the names whose `/ram/` or `/rpc_meta/` no name of ours could have.
            subject => subject.map(Subject::Own),
        }
    }

    /// The other cluster that a key with a slash belongs to, with the name there.
    fn other(&self, rest: &'a str, name: &SegmentName, found: &LeasedEntry) -> Option<(ClusterId, &'a str)> {
        if self.own.contains(name.as_str()) {
            return None;
        }
        if self.others.contains(rest) {
            return split(rest, RPC_META);
        }
        // With `/ram/`, the name after it has no slash.
        if let Some((cluster, last)) = split(rest, RAM)
            && !last.contains('/')
        {
            return Some((cluster, last));
        }
        // A name with a slash: its engine's place lies beside it, in its cluster.
        let mut splits = rest.match_indices('/').map(|(at, _)| (&rest[..at], &rest[at + 1..]));
        let beside = splits.clone().find(|(cluster, name)| {
            name.contains('/') && self.others.contains(format!("{cluster}{RPC_META}{name}").as_str())
        });
        let stated = || {
            // A record without a place: it may state the name it was written under.
            let descriptor = decode(name.clone(), &found.entry.value).ok()?;
            splits.find(|(_, name)| name.contains('/') && *name == descriptor.name().as_str())
        };
        let (cluster, name) = beside.or_else(stated)?;
        Some((ClusterId::new(cluster).ok()?, name))
    }
}

/// Splits at the first of these words.
fn split<'a>(rest: &'a str, word: &str) -> Option<(ClusterId, &'a str)> {
    let (cluster, name) = rest.split_once(word)?;
    Some((ClusterId::new(cluster).ok().filter(|_| !name.is_empty())?, name))
}
