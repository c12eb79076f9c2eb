//! Which NIC here, which NIC there, which queue pair: decided from both descriptors, the rail map, health and load.
//!
//! NICs go by their names, never by positions: keys are looked up under the name that was chosen, so a NIC that is missing
//! on either side costs its own rails and no others (RDMA-08). Every pair that is left out is left out for a [`Reason`].
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::time::Instant;
//! use te_segment::{Location, MemoryKey, NicName, Topology};
//! use te_transport_rdma::route::{Connectivity, Health, Query, Reach, Side, plan};
//!
//! let nics: Vec<NicName> = ["mlx5_0", "mlx5_1"].map(|name| name.parse().unwrap()).to_vec();
//! let mut topology = Topology::new();
//! topology.insert(&Location::cpu(0), nics.clone(), []);
//! let keys: BTreeMap<_, _> = (1..).zip(&nics).map(|(key, nic)| (nic.clone(), MemoryKey::new(key))).collect();
//! let side = Side { location: &Location::cpu(0), topology: &topology, keys: &keys };
//! let query = Query { local: side, remote: side, peer: "b", connectivity: &Connectivity::default(), tried: &[] };
//! let plan = plan(&query, &Health::default(), &Reach::default(), Instant::now())?;
//! assert_eq!(plan.rails[0].rail.to_string(), "mlx5_0 to mlx5_0");
//! assert_eq!((plan.rails.len(), plan.spare.len()), (2, 2));
//! # Ok::<(), te_transport_rdma::route::NoRoute>(())
//! ```

mod connectivity;
mod health;
mod plan;
mod reach;
mod spread;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

use te_segment::{Location, MemoryKey, NicName, Topology};
use thiserror::Error;

pub use connectivity::{Connectivity, ParseConnectivityError};
pub use health::{Blame, Health, HealthSettings, RailState};
pub use plan::plan;
pub use reach::Reach;
pub use spread::{Lane, Spread};

/// A NIC here and a NIC of the peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rail {
    /// The NIC here.
    pub local: NicName,
    /// The peer's NIC.
    pub remote: NicName,
}

impl fmt::Display for Rail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.local, self.remote)
    }
}

/// The buffer on one side, and what is known of that side's NICs.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// Where the buffer lies.
    pub location: &'a Location,
    /// Which NICs are close to what, by name.
    pub topology: &'a Topology,
    /// The buffer's key at each NIC that can reach it.
    pub keys: &'a BTreeMap<NicName, MemoryKey>,
}

/// What a route is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// The buffer here.
    pub local: Side<'a>,
    /// The peer's buffer.
    pub remote: Side<'a>,
    /// The peer, as [`Reach`] knows it.
    pub peer: &'a str,
    /// Which pairs of NICs the fabric joins.
    pub connectivity: &'a Connectivity,
    /// Rails that this request has failed on before.
    pub tried: &'a [Rail],
}

/// A rail that can be used, with its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The rail.
    pub rail: Rail,
    /// Key of the buffer here.
    pub local_key: MemoryKey,
    /// Key of the peer's buffer.
    pub remote_key: MemoryKey,
    /// Why it stands where it stands.
    pub standing: Standing,
}

/// How good a rail is; a smaller one is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Standing {
    /// NICs of it, 0 to 2, that this request has failed on, or that have failed to reach memory where the buffer lies;
    /// and 1 if the rail itself has.
    pub doubts: u8,
    /// NICs of it, 0 to 2, that are not close to their buffer.
    pub far: u8,
    /// Whether the names differ where equal names are asked for.
    pub other_name: bool,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        match self.far {
            0 => parts.push("close to both buffers"),
            1 => parts.push("far from one buffer"),
            _ => parts.push("far from both buffers"),
        }
        if self.doubts > 0 {
            parts.push("has failed lately");
        }
        if self.other_name {
            parts.push("names differ");
        }
        f.write_str(&parts.join(", "))
    }
}

/// Why a pair of NICs is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The rail map does not join them.
    NotJoined,
    /// The NIC here is down.
    Down,
    /// Too many failures lately, or the peer could not be connected over it.
    Paused(Instant),
    /// It has never worked, however often it was tried.
    Fenced(Instant),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotJoined => "the rail map does not join them",
            Self::Down => "the NIC here is down",
            Self::Paused(_) => "paused after failures",
            Self::Fenced(_) => "fenced: it has never worked",
        })
    }
}

/// The rails for one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Those to spread it over: every NIC of the best standing is in one of them.
    pub rails: Vec<Candidate>,
    /// The others that could be used, best first.
    pub spare: Vec<Candidate>,
    /// Those that cannot, and why.
    pub left_out: Vec<(Rail, Reason)>,
}

/// No rail can be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "no rail joins the NICs here [{}] and at {peer} [{}]{}; {}",
    list(local),
    list(remote),
    reasons(left_out),
    if *retryable { "some are paused: a retry can help" } else { "a retry cannot help" }
)]
pub struct NoRoute {
    /// The peer.
    pub peer: String,
    /// NICs here at which the buffer here has a key.
    pub local: Vec<NicName>,
    /// NICs of the peer at which its buffer has a key.
    pub remote: Vec<NicName>,
    /// Every pair of them, and why not.
    pub left_out: Vec<(Rail, Reason)>,
    /// Whether some of them are left out for a time only.
    pub retryable: bool,
}

fn list(names: &[NicName]) -> String {
    names.iter().map(NicName::as_str).collect::<Vec<_>>().join(", ")
}

/// The first reasons; a hundred pairs would be no line any more.
fn reasons(left_out: &[(Rail, Reason)]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<_> =
        left_out.iter().take(SHOWN).map(|(rail, reason)| format!("{rail}: {reason}")).collect();
    match left_out.len() {
        0 => String::new(),
        many if many > SHOWN => format!(" ({}, and {} more)", shown.join(", "), many - SHOWN),
        _ => format!(" ({})", shown.join(", ")),
    }
}
