//! Which address peers are told.
//!
//! [`choose_address`] decides from a table of interfaces and nothing else; [`interfaces`] reads that of this host.
//! A table that has no single answer is an error that lists the candidates: a guess that is wrong shows only at a
//! peer, as a time-out (META-16).

mod filter;
mod table;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use te_segment::{Endpoint, Host};
use thiserror::Error;

pub use filter::{FilterError, InterfaceFilter};
pub use table::interfaces;

/// A network interface, as far as the choice cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name, for example `eth0`.
    pub name: String,
    /// It is switched on.
    pub up: bool,
    /// It has a link.
    pub running: bool,
    /// It leads to this host only.
    pub loopback: bool,
    /// Its addresses, in the order of the system.
    pub addresses: Vec<IpAddr>,
}

/// The chosen address and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// The address.
    pub host: Host,
    /// Its interface.
    pub interface: String,
    /// Why this one, in one line.
    pub reason: String,
}

/// No address stands out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AddressError {
    /// Several interfaces would do.
    #[error("several addresses can be advertised, say which (setting `advertise`): {}", listed(.candidates))]
    Ambiguous {
        /// Interface and its best address, in the order of the table.
        candidates: Vec<(String, IpAddr)>,
    },
    /// No interface would do.
    #[error("no address can be advertised, say one (setting `advertise`): {}", rejections(.rejected))]
    None {
        /// Every interface and why not.
        rejected: Vec<(String, &'static str)>,
    },
    /// The table cannot be read.
    #[error("the interfaces of this host cannot be listed, say an address (setting `advertise`): {cause}")]
    Table {
        /// Why.
        cause: String,
    },
}

fn listed(candidates: &[(String, IpAddr)]) -> String {
    candidates.iter().map(|(name, ip)| format!("{ip} ({name})")).collect::<Vec<_>>().join(", ")
}

fn rejections(rejected: &[(String, &'static str)]) -> String {
    if rejected.is_empty() {
        return "the host has no interfaces".to_owned();
    }
    rejected.iter().map(|(name, reason)| format!("{name} {reason}")).collect::<Vec<_>>().join(", ")
}

/// Beginnings of names that container and virtual-machine runtimes give to bridges and links of their own. Addresses
/// there are the same on every host.
const CONTAINER_LINKS: [&str; 15] = [
    "docker", "br-", "virbr", "veth", "cni", "flannel", "cali", "lxcbr", "lxdbr", "podman", "kube", "vnet",
    "weave", "cilium", "nerdctl",
];

/// Chooses the address to advertise: the one interface that is up, has a link and a routable address, and is none of
/// a container runtime's. IPv4 before IPv6 on that interface. Loopback is never chosen; who wants it says so.
///
/// # Errors
///
/// [`AddressError::Ambiguous`] with every candidate, [`AddressError::None`] with what was wrong with each interface.
pub fn choose_address(interfaces: &[Interface]) -> Result<Choice, AddressError> {
    let mut candidates = Vec::new();
    let mut rejected = Vec::new();
    for interface in interfaces {
        match judge(interface) {
            Ok(address) => candidates.push((interface.name.clone(), address)),
            Err(reason) => rejected.push((interface.name.clone(), reason)),
        }
    }
    match candidates.as_slice() {
        [] => Err(AddressError::None { rejected }),
        [(name, address)] => {
            let family = if address.is_ipv4() { "IPv4" } else { "IPv6, there is no IPv4 address" };
            let others = match rejected.len() {
                0 => "the only interface".to_owned(),
                _ => format!("the only usable interface ({})", rejections(&rejected)),
            };
            Ok(Choice {
                host: Host::from(*address),
                interface: name.clone(),
                reason: format!("{name} is {others}; {family}"),
            })
        }
        _ => Err(AddressError::Ambiguous { candidates }),
    }
}

/// The address of an interface that can be advertised, or why none.
fn judge(interface: &Interface) -> Result<IpAddr, &'static str> {
    if interface.loopback {
        return Err("leads to this host only");
    }
    if CONTAINER_LINKS.iter().any(|prefix| interface.name.starts_with(prefix)) {
        return Err("belongs to containers or virtual machines");
    }
    if !interface.up {
        return Err("is down");
    }
    if !interface.running {
        return Err("has no link");
    }
    let usable = || interface.addresses.iter().copied().filter(|address| is_routable(*address));
    let best = usable().find(IpAddr::is_ipv4).or_else(|| usable().next());
    best.ok_or("has no routable address")
}

/// Neither of this host nor of one link only.
fn is_routable(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

/// The address this host would send from to reach a peer: what to advertise to that peer alone. Asks the routing table;
/// nothing is sent.
///
/// # Errors
///
/// The peer's host cannot be resolved, or no route leads there.
pub fn towards(peer: &Endpoint) -> io::Result<IpAddr> {
    let resolve = (peer.host().bare(), peer.port());
    let addresses: Vec<SocketAddr> = match peer.socket_addr() {
        Some(address) => vec![address],
        None => std::net::ToSocketAddrs::to_socket_addrs(&resolve)?.collect(),
    };
    let mut error = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in addresses {
        let any: SocketAddr = if address.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
        match UdpSocket::bind(any)
            .and_then(|socket| socket.connect(address).and_then(|()| socket.local_addr()))
        {
            Ok(local) => return Ok(local.ip()),
            Err(failure) => error = failure,
        }
    }
    Err(error)
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.host, self.reason)
    }
}
