//! Network interfaces of this network namespace.

use crate::root::{Fact, Root};

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Netdev {
    /// Its name.
    pub name: String,
    /// The largest packet in bytes.
    pub mtu: Fact<u32>,
    /// `up`, `down`, `unknown` and the like.
    pub state: Fact<String>,
    /// Interfaces bonded in it.
    pub bonded: Vec<String>,
}

const CLASS: &str = "sys/class/net";

pub(crate) fn netdevs(root: &Root) -> Fact<Vec<Netdev>> {
    let names = root.entries(CLASS)?;
    // Beside interfaces there is a file about bonds.
    let names = names.into_iter().filter(|name| root.has(&format!("{CLASS}/{name}/mtu")));
    Ok(names.map(|name| netdev(root, name)).collect())
}

fn netdev(root: &Root, name: String) -> Netdev {
    let at = |file: &str| format!("{CLASS}/{name}/{file}");
    let bonded = root.text(&at("bonding/slaves")).unwrap_or_default();
    Netdev {
        mtu: root.parsed(&at("mtu"), "a number of bytes"),
        state: root.text(&at("operstate")),
        bonded: bonded.split_whitespace().map(str::to_owned).collect(),
        name,
    }
}
