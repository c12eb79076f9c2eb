//! What a handshake means, once it can be read.

use te_segment::{Gid, Incarnation};

use super::{Handshake, NicPath, Terms, WireError};

/// One side of an endpoint as its handshake states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The NIC it is on.
    pub from: NicPath,
    /// The NIC it is for.
    pub to: NicPath,
    /// Local identifier of the port, 0 on Ethernet.
    pub lid: u16,
    /// Address of the port; absent: see the descriptor.
    pub gid: Option<Gid>,
    /// The queue pairs, never none.
    pub queue_pairs: Vec<u32>,
    /// Whether it takes part in the ready-ack phase.
    pub ready_ack: bool,
    /// What te engines tell besides, as many sequence numbers as queue pairs in it.
    pub terms: Option<Terms>,
}

/// What a request asks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reading {
    /// To open an endpoint.
    Open(Offer),
    /// To go on, as the sender's queue pairs are ready.
    Confirm(Offer),
    /// To take out of service what is joined to this endpoint of the sender or to an earlier one, so that nothing of them is
    /// applied any more once this is answered. te engines only.
    Cut(Offer),
    /// To open the reference engine's notification channel. Refusing it makes the peer use control frames instead.
    ControlChannel,
}

impl Handshake {
    /// What this request asks.
    ///
    /// # Errors
    ///
    /// Which member is missing or makes no sense.
    pub fn read(self) -> Result<Reading, WireError> {
        if self.extra.get("ctrl_channel").is_some_and(|flag| flag.as_str() == "true") {
            return Ok(Reading::ControlChannel);
        }
        let confirms = self.ready_ack == Some(true);
        let offer = self.offer()?;
        let cuts = offer.terms.as_ref().is_some_and(|terms| terms.cut);
        Ok(match (cuts, confirms) {
            (true, _) => Reading::Cut(offer),
            (false, true) => Reading::Confirm(offer),
            (false, false) => Reading::Open(offer),
        })
    }

    /// What this answer to `asked` says: the peer's side, or `Err` inside with the peer's reason for a refusal.
    ///
    /// # Errors
    ///
    /// Which member is missing or makes no sense, or that it is the answer to another request.
    pub fn read_answer(self, asked: &Offer) -> Result<Result<Offer, String>, WireError> {
        if !self.refusal.is_empty() {
            return Ok(Err(self.refusal));
        }
        let mut offer = self.offer()?;
        if (&offer.from, &offer.to) != (&asked.to, &asked.from) {
            return Err(WireError::NotMirrored {
                found: format!("{} to {}", offer.from, offer.to),
                expected: format!("{} to {}", asked.to, asked.from),
            });
        }
        if asked.terms.is_none() {
            offer.terms = None;
        }
        asked.check_against(&offer)?;
        Ok(Ok(offer))
    }

    fn offer(self) -> Result<Offer, WireError> {
        let missing = |member| WireError::Member { member, expected: "there" };
        let from = self.local.ok_or_else(|| missing("local_nic_path"))?;
        let to = self.peer.ok_or_else(|| missing("peer_nic_path"))?;
        if self.queue_pairs.is_empty() {
            return Err(missing("qp_num"));
        }
        if self.terms.as_ref().is_some_and(|terms| terms.psn.len() != self.queue_pairs.len()) {
            return Err(WireError::Member { member: "te.psn", expected: "as long as qp_num" });
        }
        Ok(Offer {
            from,
            to,
            lid: self.lid,
            gid: self.gid,
            queue_pairs: self.queue_pairs,
            ready_ack: self.ready_ack.is_some(),
            terms: self.terms,
        })
    }
}

impl Offer {
    /// Whether the two sides can be joined: equal numbers of queue pairs.
    ///
    /// # Errors
    ///
    /// Both numbers.
    pub fn check_against(&self, theirs: &Self) -> Result<(), WireError> {
        let (ours, theirs) = (self.queue_pairs.len(), theirs.queue_pairs.len());
        if ours == theirs { Ok(()) } else { Err(WireError::QueuePairs { ours, theirs }) }
    }

    /// Whether a life of the receiver may take this as meant for it. True where the sender does not say whom it means.
    #[must_use]
    pub fn is_for(&self, receiver: Incarnation) -> bool {
        self.terms.as_ref().and_then(|terms| terms.peer).is_none_or(|meant| meant == receiver)
    }
}
