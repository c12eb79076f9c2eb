//! What te engines add to the handshake, in one member.

use std::collections::BTreeMap;

use te_segment::wire::RawJson;
use te_segment::{Generation, Incarnation};

use super::WireError;
use super::members::{Members, Writer};

/// The member `te`, version 1. It counts only where both handshakes carry it: an answer has it if the request had it.
///
/// A member `te` of another version is not understood and is kept among the unknown ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// `incarnation`: this life of the sender. The queue pairs are bound to it.
    pub incarnation: Incarnation,
    /// `peer`: the life of the receiver that is meant; absent where the sender does not know it.
    pub peer: Option<Incarnation>,
    /// `peer_generation`: the endpoint of the receiver that is confirmed; in a ready-ack only.
    pub peer_generation: Option<Generation>,
    /// `cut`: this request cuts endpoints, see [`Reading::Cut`](super::Reading::Cut).
    pub cut: bool,
    /// `generation`: which endpoint of the sender these queue pairs are; later ones are larger.
    pub generation: Generation,
    /// `psn`: the first packet sequence number that the sender's queue pair i sends, 24 bits each.
    pub psn: Vec<u32>,
    /// `mtu`: the largest path MTU of the sender's port, in bytes.
    pub mtu: u32,
    /// `max_rd_atomic`: how many READs at a time the sender's port answers for one queue pair.
    pub max_rd_atomic: u8,
    /// Every other member of it.
    pub extra: BTreeMap<String, RawJson>,
}

impl Terms {
    pub(super) fn take(members: &mut Members) -> Result<Option<Self>, WireError> {
        let Some(mut te) = members.object("te", |te| te.number("v") == Some(1)) else { return Ok(None) };
        let wrong = |member, expected| WireError::Member { member, expected };
        let life = |text: &str, member| {
            text.parse::<Incarnation>().map_err(|_| wrong(member, "32 hexadecimal digits"))
        };
        te.number("v");
        let peer = match te.text("peer")?.as_str() {
            "" => None,
            text => Some(life(text, "te.peer")?),
        };
        Ok(Some(Self {
            incarnation: life(&te.text("incarnation")?, "te.incarnation")?,
            peer,
            peer_generation: te.number("peer_generation").map(Generation::new),
            cut: te.flag("cut")?.unwrap_or(false),
            generation: te
                .number("generation")
                .map(Generation::new)
                .ok_or_else(|| wrong("te.generation", "a number"))?,
            psn: te.numbers_24("psn")?,
            mtu: te
                .number("mtu")
                .and_then(|mtu| u32::try_from(mtu).ok())
                .ok_or_else(|| wrong("te.mtu", "a number of bytes"))?,
            max_rd_atomic: te
                .number("max_rd_atomic")
                .and_then(|depth| u8::try_from(depth).ok())
                .ok_or_else(|| wrong("te.max_rd_atomic", "a number from 0 to 255"))?,
            extra: te.rest()?,
        }))
    }

    pub(super) fn json(&self) -> String {
        Writer::new(&self.extra)
            .value("v", 1)
            .value("incarnation", self.incarnation.to_string())
            .optional("peer", self.peer.map(|peer| peer.to_string()))
            .optional("peer_generation", self.peer_generation.map(Generation::value))
            .optional("cut", self.cut.then_some(true))
            .value("generation", self.generation.value())
            .value("psn", self.psn.clone())
            .value("mtu", self.mtu)
            .value("max_rd_atomic", self.max_rd_atomic)
            .object()
    }
}
