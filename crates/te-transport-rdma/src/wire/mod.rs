//! The handshake object: how two engines tell each other the queue pairs of one endpoint.
//!
//! It is the object of the reference engine, member by member, and one member more, `te`, that only te engines write and
//! read. Reading is total and bounded: any bytes give a [`Handshake`] or a [`WireError`]. Odd but harmless input is read as
//! the reference reads it (null is the default, a number where text is due is text, an integral float is an integer, of a
//! repeated member the last counts). What is not understood is kept as text and written again.
//!
//! ```
//! use te_transport_rdma::wire::{Handshake, Reading};
//! let bytes = br#"{"local_nic_path":"a:1@mlx5_0","peer_nic_path":"b:1@mlx5_1","qp_num":[17],"ready_ack":false}"#;
//! let Reading::Open(open) = Handshake::decode(bytes)?.read()? else { return Err("it opens nothing".into()) };
//! assert_eq!(open.from.nic().as_str(), "mlx5_0");
//! assert_eq!(open.queue_pairs, [17]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod meaning;
mod members;
mod nic_path;
mod terms;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use te_segment::wire::RawJson;
use te_segment::{Gid, Incarnation};
use thiserror::Error;

pub use meaning::{Offer, Reading};
use members::{Members, Writer};
pub use nic_path::{NicPath, NicPathError};
pub use terms::Terms;

/// Longest handshake object that is looked at, in bytes. Real ones have a few hundred.
pub const MAX_HANDSHAKE_BYTES: usize = 1 << 20;

/// Most queue pairs of one endpoint; the reference engine has the same limit.
pub const MAX_QUEUE_PAIRS: usize = 255;

/// Why bytes are no handshake, or one that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// Longer than [`MAX_HANDSHAKE_BYTES`].
    #[error("handshake has {len} bytes, at most {limit} are read")]
    TooLong {
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// Not JSON, or not a JSON object.
    #[error("handshake is no JSON object: {cause}")]
    NotAnObject {
        /// What the parser says.
        cause: String,
    },
    /// A member cannot be understood.
    #[error("handshake member `{member}` is not {expected}")]
    Member {
        /// Name of the member, with a dot inside `te`.
        member: &'static str,
        /// What it should have been.
        expected: &'static str,
    },
    /// A member that is not understood cannot be kept either, because it is nested too deeply.
    #[error("handshake member `{member}` cannot be kept: {cause}")]
    Unkept {
        /// Name of the member, shortened.
        member: String,
        /// Why not.
        cause: String,
    },
    /// The answer is not one to the request that was sent.
    #[error("answer names {found} where {expected} was asked")]
    NotMirrored {
        /// The pair of NIC paths found.
        found: String,
        /// The pair of NIC paths due.
        expected: String,
    },
    /// The two sides have unequal numbers of queue pairs.
    #[error("peer has {theirs} queue pairs for an endpoint where this side has {ours} (queue_pairs)")]
    QueuePairs {
        /// How many this side has.
        ours: usize,
        /// How many the peer has.
        theirs: usize,
    },
}

/// A handshake object as written. [`read`](Self::read) says what a request means, [`read_answer`](Self::read_answer) an
/// answer. The default value is what answers a ready-ack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handshake {
    /// `payload`: opaque text, not used by this transport.
    pub payload: String,
    /// `local_nic_path`: the sender's NIC. Absent in the answer to a ready-ack.
    pub local: Option<NicPath>,
    /// `peer_nic_path`: the receiver's NIC as the sender believes it to be.
    pub peer: Option<NicPath>,
    /// `local_lid`: local identifier of the sender's port, 0 on Ethernet. Anything that is none reads as 0.
    pub lid: u16,
    /// `local_gid`: the sender's address. Absent: it is in the sender's descriptor.
    pub gid: Option<Gid>,
    /// `qp_num`: the sender's queue pairs, 24 bits each, in order.
    pub queue_pairs: Vec<u32>,
    /// `ready_ack`: present if the sender takes part in the ready-ack phase, true if this message is the ready-ack.
    pub ready_ack: Option<bool>,
    /// `reply_msg`: empty if accepted, else why not.
    pub refusal: String,
    /// `te`: what te engines tell each other besides.
    pub terms: Option<Terms>,
    /// `te_life`: in a refusal, which life of the engine refuses, where that is why: another one was meant.
    pub life: Option<Incarnation>,
    /// Every other member.
    pub extra: BTreeMap<String, RawJson>,
}

impl Handshake {
    /// Reads an object.
    ///
    /// # Errors
    ///
    /// What is wrong with it, naming the member. Sending the same bytes again cannot help.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut members = Members::parse(bytes)?;
        // The one request whose paths need not be paths.
        let channel = members.is_true("ctrl_channel");
        let path = |members: &mut Members, member| match members.text(member)?.as_str() {
            "" => Ok(None),
            text => match text.parse() {
                Ok(path) => Ok(Some(path)),
                Err(NicPathError) if channel => Ok(None),
                Err(NicPathError) => Err(WireError::Member { member, expected: "SERVER@NIC" }),
            },
        };
        let gid = match members.text("local_gid")?.as_str() {
            "" => None,
            text => Some(text.parse().map_err(|_| WireError::Member {
                member: "local_gid",
                expected: "16 hexadecimal bytes with colons",
            })?),
        };
        let life =
            match members.text("te_life")?.as_str() {
                "" => None,
                text => Some(text.parse().map_err(|_| WireError::Member {
                    member: "te_life",
                    expected: "32 hexadecimal digits",
                })?),
            };
        Ok(Self {
            payload: members.text("payload")?,
            local: path(&mut members, "local_nic_path")?,
            peer: path(&mut members, "peer_nic_path")?,
            lid: members.number("local_lid").and_then(|n| u16::try_from(n).ok()).unwrap_or(0),
            gid,
            queue_pairs: members.numbers_24("qp_num")?,
            ready_ack: members.flag("ready_ack")?,
            refusal: members.text("reply_msg")?,
            terms: Terms::take(&mut members)?,
            life,
            extra: members.rest()?,
        })
    }

    /// Writes the object: compact, members sorted, a line break at the end, as the reference engine writes it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let path = |path: &Option<NicPath>| path.as_ref().map_or_else(String::new, ToString::to_string);
        Writer::new(&self.extra)
            .value("payload", self.payload.as_str())
            .value("local_nic_path", path(&self.local))
            .value("peer_nic_path", path(&self.peer))
            .value("local_lid", self.lid)
            .value("local_gid", self.gid.map_or_else(String::new, |gid| gid.to_string()))
            .value("qp_num", self.queue_pairs.clone())
            .optional("ready_ack", self.ready_ack)
            .value("reply_msg", self.refusal.as_str())
            .raw("te", self.terms.as_ref().map(Terms::json))
            .optional("te_life", self.life.map(|life| life.to_string()))
            .line()
    }

    /// A request that opens an endpoint.
    #[must_use]
    pub fn open(offer: Offer) -> Self {
        Self {
            local: Some(offer.from),
            peer: Some(offer.to),
            lid: offer.lid,
            gid: offer.gid,
            queue_pairs: offer.queue_pairs,
            ready_ack: offer.ready_ack.then_some(false),
            terms: offer.terms,
            ..Self::default()
        }
    }

    /// The ready-ack for what [`open`](Self::open) has opened.
    #[must_use]
    pub fn confirm(offer: Offer) -> Self {
        Self { ready_ack: Some(true), ..Self::open(Offer { ready_ack: true, ..offer }) }
    }

    /// A request to cut this endpoint and earlier ones. Answered by [`confirmed`](Self::confirmed).
    #[must_use]
    pub fn cut(mut offer: Offer) -> Self {
        if let Some(terms) = &mut offer.terms {
            terms.cut = true;
        }
        Self::open(Offer { ready_ack: false, ..offer })
    }

    /// The answer that accepts: the own side in `ours`, cut to what the one who asked understands.
    #[must_use]
    pub fn accept(asked: &Offer, ours: Offer) -> Self {
        Self::open(Offer {
            ready_ack: asked.ready_ack && ours.ready_ack,
            terms: ours.terms.filter(|_| asked.terms.is_some()),
            ..ours
        })
    }

    /// The answer to a ready-ack that is in order.
    #[must_use]
    pub fn confirmed() -> Self {
        Self::default()
    }

    /// An answer that refuses. An empty reason would mean acceptance and is replaced.
    #[must_use]
    pub fn refuse(reason: &str) -> Self {
        let refusal = if reason.is_empty() { "refused" } else { reason }.to_owned();
        Self { refusal, ..Self::default() }
    }

    /// The answer to a request that is meant for another life of this engine than `life`, the present one.
    #[must_use]
    pub fn other_life(life: Incarnation) -> Self {
        Self { life: Some(life), ..Self::refuse("another life of this engine was meant") }
    }
}
