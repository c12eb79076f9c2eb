//! Whether a device can be used here, and if not, why not.

use super::{Nic, NodeType, Port, PortState};
use crate::gid::{Choice, NoUsableGid, choose};
use crate::namespace::Namespace;
use crate::root::Unknown;

/// The port to use and its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usable {
    /// Number of the port.
    pub port: u8,
    /// Its address.
    pub gid: Choice,
}

/// Why a device cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unusable {
    /// It speaks iWARP.
    #[error("it speaks iWARP, which needs a connection manager")]
    Iwarp,
    /// Programs have no way to it: the kernel offers none.
    #[error("the kernel offers it to no program ({0}); is the module ib_uverbs loaded?")]
    NoVerbs(Unknown),
    /// The character device is not in this file system.
    #[error("dev/infiniband/{device} is not there: give this container the device")]
    NoDevice {
        /// Name of the character device.
        device: String,
    },
    /// No port is active.
    #[error("no port is active: {}", .ports.join(", "))]
    Inactive {
        /// Each port with its state.
        ports: Vec<String>,
    },
    /// The active port does not say what it is connected to, or has no table.
    #[error("port {port}: {cause}")]
    Unknown {
        /// Number of the port.
        port: u8,
        /// What is not known.
        cause: Unknown,
    },
    /// No address of the active port can be used.
    #[error("port {port}: {cause}")]
    NoGid {
        /// Number of the port.
        port: u8,
        /// Why not.
        cause: NoUsableGid,
    },
}

impl Nic {
    /// The first active port with an address that can be used; `pinned` is a GID index that counts for every port.
    /// Nothing is opened: whether this process may open the device is for whoever opens it.
    ///
    /// # Errors
    ///
    /// What is missing, of the first active port if there is one.
    pub fn usable(&self, namespace: &Namespace, pinned: Option<u16>) -> Result<Usable, Unusable> {
        if self.node_type == Ok(NodeType::Iwarp) {
            return Err(Unusable::Iwarp);
        }
        let device = self.verbs.as_ref().map_err(|unknown| Unusable::NoVerbs(unknown.clone()))?;
        if !self.verbs_here {
            return Err(Unusable::NoDevice { device: device.clone() });
        }
        let mut first_failure = None;
        for port in self.ports.iter().filter(|port| port.state == Ok(PortState::Active)) {
            match address(port, namespace, pinned) {
                Ok(gid) => return Ok(Usable { port: port.number, gid }),
                Err(unusable) => first_failure = first_failure.or(Some(unusable)),
            }
        }
        Err(first_failure
            .unwrap_or_else(|| Unusable::Inactive { ports: self.ports.iter().map(standing).collect() }))
    }
}

fn address(port: &Port, namespace: &Namespace, pinned: Option<u16>) -> Result<Choice, Unusable> {
    let unknown = |cause: &Unknown| Unusable::Unknown { port: port.number, cause: cause.clone() };
    let link = *port.link_layer.as_ref().map_err(unknown)?;
    let table = port.gids.as_ref().map_err(unknown)?;
    choose(table, link, namespace, pinned).map_err(|cause| Unusable::NoGid { port: port.number, cause })
}

/// `port 1 is down (Polling)`
fn standing(port: &Port) -> String {
    let state = port.state.as_ref().map_or_else(ToString::to_string, |state| format!("is {state}"));
    let link = port.link.as_ref().map(|link| format!(" ({link})")).unwrap_or_default();
    format!("port {} {state}{link}", port.number)
}
