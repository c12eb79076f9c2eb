//! Why a queue pair did not change its state: all there is to know about it, since the system's one number stands for a
//! dozen causes.

use std::fmt;

use crate::error::errno_text;
use crate::port::{Gid, LinkLayer, PortInfo};
use crate::queue_pair::{QueuePair, State, ToInit, ToReceive, ToSend};

/// Where it was to go, with what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Goal {
    /// To INIT.
    Init(ToInit),
    /// To RTR.
    Receive(ToReceive),
    /// To RTS.
    Send(ToSend),
    /// To ERR.
    Error,
    /// To RESET.
    Reset,
}

impl Goal {
    /// The state that was to be reached.
    #[must_use]
    pub const fn state(&self) -> State {
        match self {
            Self::Init(_) => State::Init,
            Self::Receive(_) => State::ReadyToReceive,
            Self::Send(_) => State::ReadyToSend,
            Self::Error => State::Error,
            Self::Reset => State::Reset,
        }
    }

    /// The states it can be reached from.
    const fn allows(&self, from: State) -> bool {
        match self {
            Self::Init(_) => matches!(from, State::Reset | State::Init),
            Self::Receive(_) => matches!(from, State::Init),
            Self::Send(_) => matches!(from, State::ReadyToReceive | State::ReadyToSend | State::Draining),
            Self::Error | Self::Reset => true,
        }
    }
}

/// What was asked for, in rdma-core's words.
impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Init(to) => {
                write!(
                    f,
                    "port_num {}, pkey_index {}, access {:#x}",
                    to.port,
                    to.pkey_index,
                    to.access.bits()
                )
            }
            Self::Receive(to) => {
                let path = &to.path;
                write!(
                    f,
                    "path_mtu {}, dest_qp_num {:#08x}, rq_psn {}, max_dest_rd_atomic {}, min_rnr_timer {}, port_num {}, \
                     sgid_index {}, hop_limit {}, traffic_class {}, sl {}, is_global {}",
                    to.mtu,
                    to.peer,
                    to.first_packet,
                    to.reads,
                    to.min_rnr_timer,
                    path.port,
                    path.gid_index,
                    path.hop_limit,
                    path.traffic_class,
                    path.service_level,
                    u8::from(path.global),
                )
            }
            Self::Send(to) => write!(
                f,
                "timeout {}, retry_cnt {}, rnr_retry {}, sq_psn {}, max_rd_atomic {}",
                to.timeout, to.retries, to.rnr_retries, to.first_packet, to.reads
            ),
            Self::Error | Self::Reset => f.write_str("nothing"),
        }
    }
}

/// The own side as it was when the transition had failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Own {
    /// The port.
    pub port: u8,
    /// How it is, if the device says so.
    pub info: Option<PortInfo>,
    /// The address with the index that was asked for, if there is one.
    pub gid: Option<Gid>,
}

/// A queue pair did not change its state. Its text has the states, what was asked for, both sides' addresses, the system's
/// reason, and what it most likely means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransitionError {
    /// The device and the queue pair.
    pub on: String,
    /// The state it is in, if the device says so.
    pub from: Option<State>,
    /// Where it was to go, with what.
    pub goal: Goal,
    /// The own side, where it matters.
    pub own: Option<Own>,
    /// The system's number for the reason.
    pub errno: i32,
}

impl TransitionError {
    /// Asks the device for what is to be told.
    pub(crate) fn found(pair: &QueuePair, goal: Goal, errno: i32) -> Self {
        let context = pair.context();
        let port = match &goal {
            Goal::Init(to) => Some(to.port),
            Goal::Receive(to) => Some(to.path.port),
            Goal::Send(_) | Goal::Error | Goal::Reset => None,
        };
        let own = port.map(|port| {
            let gid = match &goal {
                Goal::Receive(to) => context.gid(port, to.path.gid_index).ok(),
                _ => None,
            };
            Own { port, info: context.port(port).ok(), gid }
        });
        let from = pair.query().ok().map(|info| info.state);
        Self { on: pair.place(), from, goal, own, errno }
    }

    /// Whether the same transition may succeed later, without anybody changing the set-up.
    #[must_use]
    pub const fn can_retry(&self) -> bool {
        matches!(self.errno, libc::EAGAIN | libc::ENOMEM | libc::EINTR | libc::ETIMEDOUT)
    }

    /// What the reason most likely means; none if there is nothing to say beyond it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        // These mean one thing only, whatever else is found: a device that is gone has no ports either.
        match self.errno {
            libc::ENODEV => return Some("the device was reset or removed: open it anew".to_owned()),
            libc::ENOMEM | libc::EAGAIN => {
                return Some("the device is out of resources: close what is not needed".to_owned());
            }
            _ => {}
        }
        if let Some(from) = self.from.filter(|from| !self.goal.allows(*from)) {
            let to = self.goal.state();
            return Some(format!("{to} is not reached from {from}: the order is RESET, INIT, RTR, RTS"));
        }
        if let Some(Own { port, info, .. }) = &self.own {
            let Some(info) = info else { return Some(format!("there is no port {port}")) };
            if !info.active {
                return Some(format!("port {port} is not active: is the link up?"));
            }
        }
        match &self.goal {
            Goal::Receive(to) => self.hint_about_path(to),
            Goal::Init(_) if self.errno == libc::EINVAL => Some(
                "the place of the partition key is empty, or the device does not take this access".to_owned(),
            ),
            Goal::Send(_) if self.errno == libc::EINVAL => Some(
                "the device does not take so many READs at a time, or the timeout is above 31".to_owned(),
            ),
            _ => None,
        }
    }

    fn hint_about_path(&self, to: &ToReceive) -> Option<String> {
        let own = self.own.as_ref()?;
        let (info, index) = (own.info.as_ref()?, to.path.gid_index);
        if let Some(active) = info.active_mtu.filter(|active| to.mtu > *active) {
            return Some(format!(
                "path_mtu {} is above the port's {active}: both sides use the smaller",
                to.mtu
            ));
        }
        let ethernet = info.link_layer == LinkLayer::Ethernet;
        if ethernet && !to.path.global {
            return Some("RoCE needs addresses in its packets: is_global must be 1".to_owned());
        }
        if !ethernet && !to.path.global && to.path.lid == 0 {
            return Some("the peer has no LID: has the subnet manager seen its port?".to_owned());
        }
        if to.path.global {
            let Some(gid) = own.gid.filter(|gid| !gid.is_null()) else {
                return Some(format!(
                    "place {index} of the table of gids is empty: it has changed, or is the wrong one"
                ));
            };
            if to.path.gid.is_null() {
                return Some("the peer's gid is null: its place in the peer's table is empty".to_owned());
            }
            if ethernet && gid.is_ipv4() != to.path.gid.is_ipv4() {
                return Some(
                    "one gid is IPv4 and the other IPv6: the two sides chose entries of different kinds"
                        .to_owned(),
                );
            }
            if ethernet && gid.is_link_local() != to.path.gid.is_link_local() {
                return Some(
                    "one gid is link-local and the other is not: they do not reach each other".to_owned(),
                );
            }
        }
        match self.errno {
            libc::ENETUNREACH | libc::EHOSTUNREACH => {
                Some("there is no route to the peer's gid from the own one".to_owned())
            }
            libc::ETIMEDOUT | libc::EADDRNOTAVAIL => Some(
                "the peer's gid does not resolve to a hardware address: is the peer's interface up?"
                    .to_owned(),
            ),
            libc::ENODATA => Some(
                "the own gid is not of this network namespace: choose another place of the table".to_owned(),
            ),
            libc::EINVAL => Some(
                "one of the values is not one that the device takes; the peer may be on another network"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

impl fmt::Display for TransitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { on, from, goal, own, errno } = self;
        let from = from.map_or_else(|| "an unknown state".to_owned(), |from| from.to_string());
        write!(
            f,
            "{on} does not go from {from} to {}: {}; asked for {goal}",
            goal.state(),
            errno_text(*errno)
        )?;
        if let Some(Own { port, info, gid }) = own {
            write!(f, "; own port {port}")?;
            match info {
                Some(info) => {
                    let mtu = info.active_mtu.map_or_else(|| "unknown".to_owned(), |mtu| mtu.to_string());
                    let active = if info.active { "active" } else { "not active" };
                    write!(f, " {active}, lid {}, mtu {mtu}", info.lid)?;
                }
                None => f.write_str(" unknown")?,
            }
            if let Some(gid) = gid {
                write!(f, ", gid {gid}")?;
            }
        }
        if let Goal::Receive(to) = goal {
            write!(f, "; peer lid {}, gid {}", to.path.lid, to.path.gid)?;
        }
        match self.hint() {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for TransitionError {}
