//! What two sides agree on for the queue pairs of an endpoint: path MTU, packet sequence numbers, READs at a time, and how
//! the peer is addressed. Which of its own addresses a port uses is chosen from its table by `te-topology`; what devices are
//! told of all this is in [`devices`].
//!
//! ```
//! use te_transport_rdma::negotiate::{LinkLayer, Mtu, Port};
//! let port = Port { link: LinkLayer::Ethernet, mtu: Mtu::B4096, reads_out: 16, reads_in: 16 };
//! assert_eq!(port.mtu.bytes(), 4096);
//! assert_eq!(Mtu::at_most(9000), Some(Mtu::B4096));
//! ```

pub mod devices;

#[cfg(test)]
mod tests;

use std::fmt;

use te_segment::Gid;
use thiserror::Error;

pub use te_sys_verbs::{LinkLayer, Mtu, TransitionError};

use crate::wire::{Offer, WireError};

/// The port here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// What it is attached to. [Unknown](LinkLayer::Unknown) is treated as InfiniBand, see [`agree`].
    pub link: LinkLayer,
    /// The active MTU, or the configured one if that is smaller.
    pub mtu: Mtu,
    /// READs that one queue pair can have under way, as the device says.
    pub reads_out: u8,
    /// READs that the device answers at a time for one queue pair.
    pub reads_in: u8,
}

/// READs at a time that a reference engine sets on both sides whatever the devices say.
pub const REFERENCE_READS: u8 = 16;

/// How long a queue pair repeats what is not acknowledged, in the numbers that devices take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// An acknowledgement is waited for 4.096 µs · 2^timeout. Default 14, about 67 ms, as the reference engine.
    pub timeout: u8,
    /// Repetitions without acknowledgement, 0 to 7. Default 7.
    pub retries: u8,
    /// Repetitions where the responder is not ready, 0 to 7; 7 is without end. Default 6: nothing is without end.
    pub not_ready_retries: u8,
    /// How long a responder that is not ready asks to be spared, as the device's number. Default 12, 0.64 ms.
    pub not_ready_timer: u8,
    /// Routers on the way at most. Default 64.
    pub hop_limit: u8,
}

impl Default for Patience {
    fn default() -> Self {
        Self { timeout: 14, retries: 7, not_ready_retries: 6, not_ready_timer: 12, hop_limit: 64 }
    }
}

/// How the peer's port is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddress {
    /// Its GID, which goes into a global header where there is one.
    pub gid: Option<Gid>,
    /// Its LID; 0 on Ethernet.
    pub lid: u16,
}

impl PeerAddress {
    /// Its GID, unless that is the one of an entry that is not in use.
    fn usable_gid(&self) -> Option<Gid> {
        self.gid.filter(|gid| Scope::of(*gid) != Scope::Unset)
    }
}

/// One queue pair and its counterpart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JoinedPair {
    /// The number here.
    pub ours: u32,
    /// The peer's number.
    pub theirs: u32,
    /// The first sequence number that is sent.
    pub send_psn: u32,
    /// The first sequence number that is expected.
    pub receive_psn: u32,
}

/// Everything that differs from peer to peer in the attributes of an endpoint's queue pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The path MTU of both sides.
    pub mtu: Mtu,
    /// READs that may be under way from here.
    pub reads_out: u8,
    /// READs that are answered here at a time.
    pub reads_in: u8,
    /// How the peer's port is reached.
    pub address: PeerAddress,
    /// The queue pairs, in order.
    pub pairs: Vec<JoinedPair>,
}

/// Two sides cannot be joined. Trying again cannot help until one of them is set up otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Disagreement {
    /// Unequal numbers of queue pairs.
    #[error(transparent)]
    QueuePairs(WireError),
    /// The peer states a path MTU that does not exist.
    #[error("{peer} states a path mtu of {bytes} bytes, at least 256 are due")]
    Mtu {
        /// The peer's NIC.
        peer: String,
        /// What it states.
        bytes: u32,
    },
    /// There is nothing to address the peer's port by.
    #[error("{peer} states neither a gid nor, on InfiniBand, a lid, and its descriptor does not either")]
    NoAddress {
        /// The peer's NIC.
        peer: String,
    },
    /// The addresses are of different kinds, between which nothing is routed.
    #[error(
        "gid {ours} here is {our_scope}, gid {theirs} of {peer} is {their_scope}: choose others (gid_index)"
    )]
    NoCommonScope {
        /// The peer's NIC.
        peer: String,
        /// The address here.
        ours: Gid,
        /// Its kind.
        our_scope: Scope,
        /// The peer's address.
        theirs: Gid,
        /// Its kind.
        their_scope: Scope,
    },
}

/// The kind of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All bytes are zero: the entry is not in use.
    Unset,
    /// An IPv4 address.
    V4,
    /// An IPv6 address within one link, or the default prefix of InfiniBand.
    LinkLocal,
    /// Any other IPv6 address.
    V6,
}

impl Scope {
    /// The kind of this address.
    #[must_use]
    pub fn of(gid: Gid) -> Self {
        let bytes = gid.bytes();
        match bytes {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..] => Self::V4,
            [0xfe, second, ..] if second & 0xc0 == 0x80 => Self::LinkLocal,
            _ if bytes == [0; 16] => Self::Unset,
            _ => Self::V6,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unset => "unset",
            Self::V4 => "an IPv4 address",
            Self::LinkLocal => "link-local",
            Self::V6 => "an IPv6 address",
        })
    }
}

/// A first packet sequence number from random bits: 24 of them. Numbers that differ from life to life keep packets of an
/// earlier one from being taken.
#[must_use]
pub fn first_psn(random: u32) -> u32 {
    random & 0x00ff_ffff
}

/// What two offers come to. The terms of `ours` are those of the port: its MTU, and the READs it answers. `descriptor` is
/// the peer's address as its descriptor states it, for peers whose handshake has none.
///
/// Where both sides have stated terms, the smaller MTU and depth of each count, so that both sides set the same. A
/// reference engine states none: it sets its own MTU, at most the configured one, and so do we.
///
/// On Ethernet a peer is found by a GID of the same kind as the own one, and its LID is ignored. On InfiniBand a GID or a LID
/// is enough, and both are kept. So it is for a port that does not say what it is attached to: nothing that the peer states
/// is left out there, and nothing is presumed about which GIDs reach each other, so that the device has the last word.
///
/// # Errors
///
/// What does not fit, with the values of both sides.
pub fn agree(
    ours: &Offer,
    port: &Port,
    theirs: &Offer,
    descriptor: Option<PeerAddress>,
) -> Result<Agreement, Disagreement> {
    ours.check_against(theirs).map_err(Disagreement::QueuePairs)?;
    let peer = || theirs.from.to_string();
    let terms = ours.terms.as_ref().zip(theirs.terms.as_ref());
    let (mtu, reads_out) = match terms {
        Some((_, theirs)) => {
            let stated = Mtu::at_most(theirs.mtu)
                .ok_or_else(|| Disagreement::Mtu { peer: peer(), bytes: theirs.mtu })?;
            (port.mtu.min(stated), port.reads_out.min(theirs.max_rd_atomic))
        }
        None => (port.mtu, port.reads_out.min(REFERENCE_READS)),
    };
    let psn = |terms: Option<&crate::wire::Terms>, at: usize| {
        terms.and_then(|terms| terms.psn.get(at)).copied().unwrap_or(0)
    };
    let numbers = ours.queue_pairs.iter().zip(&theirs.queue_pairs).enumerate();
    let pairs = numbers.map(|(at, (ours, theirs))| JoinedPair {
        ours: *ours,
        theirs: *theirs,
        send_psn: psn(terms.map(|(ours, _)| ours), at),
        receive_psn: psn(terms.map(|(_, theirs)| theirs), at),
    });
    Ok(Agreement {
        mtu,
        reads_out,
        reads_in: port.reads_in,
        address: address(ours, port, theirs, descriptor)?,
        pairs: pairs.collect(),
    })
}

fn address(
    ours: &Offer,
    port: &Port,
    theirs: &Offer,
    descriptor: Option<PeerAddress>,
) -> Result<PeerAddress, Disagreement> {
    let stated = PeerAddress { gid: theirs.gid, lid: theirs.lid };
    let ethernet = port.link == LinkLayer::Ethernet;
    let usable = |address: &PeerAddress| address.usable_gid().is_some() || !ethernet && address.lid != 0;
    let address = [Some(stated), descriptor].into_iter().flatten().find(usable);
    let mut address = address.ok_or_else(|| Disagreement::NoAddress { peer: theirs.from.to_string() })?;
    if ethernet {
        address.lid = 0;
    }
    // Within InfiniBand the prefix says nothing about what is routed.
    if let (true, Some(ours), Some(gid)) = (ethernet, ours.gid, address.gid) {
        let (our_scope, their_scope) = (Scope::of(ours), Scope::of(gid));
        if our_scope != their_scope {
            let peer = theirs.from.to_string();
            return Err(Disagreement::NoCommonScope { peer, ours, our_scope, theirs: gid, their_scope });
        }
    }
    Ok(address)
}
