//! Which pairs of NICs the fabric joins.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use te_segment::NicName;
use thiserror::Error;

use super::Rail;

/// The rail map. On a fabric whose rails are apart, queue pairs across them time out without a word; no pair outside the
/// map is ever tried, and there is no falling back to others.
///
/// ```
/// use te_transport_rdma::route::{Connectivity, Rail};
/// let map: Connectivity = "mlx5_0=mlx5_0,mlx5_2; mlx5_1=mlx5_1".parse()?;
/// let rail = |local: &str, remote: &str| Rail { local: local.parse().unwrap(), remote: remote.parse().unwrap() };
/// assert!(map.joins(&rail("mlx5_0", "mlx5_2")) && !map.joins(&rail("mlx5_1", "mlx5_0")));
/// assert!("same_name".parse::<Connectivity>()?.joins(&rail("mlx5_1", "mlx5_1")));
/// # Ok::<(), te_transport_rdma::route::ParseConnectivityError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Connectivity {
    /// Every NIC reaches every NIC: `all`.
    #[default]
    All,
    /// Every NIC reaches every NIC, and one of the same name is taken where there is one: `prefer_same_name`. The
    /// reference engine's `MC_ENABLE_DEST_DEVICE_AFFINITY`.
    PreferSameName,
    /// Only NICs of one name reach each other: `same_name`.
    SameName,
    /// For each NIC here those of the peer that it reaches: `LOCAL=REMOTE,REMOTE;LOCAL=REMOTE`. The reference engine's
    /// `MC_NIC_PEER_AFFINITY`.
    Listed(BTreeMap<NicName, BTreeSet<NicName>>),
}

/// A text is no rail map.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{entry:?} is neither all, prefer_same_name, same_name nor LOCAL=REMOTE,REMOTE;…")]
pub struct ParseConnectivityError {
    /// The part that is wrong.
    pub entry: String,
}

impl Connectivity {
    /// Whether the pair may be tried.
    #[must_use]
    pub fn joins(&self, rail: &Rail) -> bool {
        match self {
            Self::All | Self::PreferSameName => true,
            Self::SameName => rail.local == rail.remote,
            Self::Listed(map) => map.get(&rail.local).is_some_and(|remote| remote.contains(&rail.remote)),
        }
    }
}

impl FromStr for Connectivity {
    type Err = ParseConnectivityError;

    fn from_str(text: &str) -> Result<Self, ParseConnectivityError> {
        match text.trim() {
            "all" => return Ok(Self::All),
            "prefer_same_name" => return Ok(Self::PreferSameName),
            "same_name" => return Ok(Self::SameName),
            _ => {}
        }
        let mut map = BTreeMap::<NicName, BTreeSet<NicName>>::new();
        for entry in text.split(';').map(str::trim).filter(|entry| !entry.is_empty()) {
            let wrong = || ParseConnectivityError { entry: entry.to_owned() };
            let (local, remote) = entry.split_once('=').ok_or_else(wrong)?;
            let name = |name: &str| name.trim().parse::<NicName>().map_err(|_| wrong());
            let remote = remote.split(',').map(name).collect::<Result<BTreeSet<_>, _>>()?;
            map.entry(name(local)?).or_default().extend(remote);
        }
        if map.is_empty() {
            Err(ParseConnectivityError { entry: text.to_owned() })
        } else {
            Ok(Self::Listed(map))
        }
    }
}
