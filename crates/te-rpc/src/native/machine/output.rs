//! What goes into the machine and comes out of it.

use te_segment::Incarnation;

use crate::native::{
    close::CloseReason,
    frame::{ControlFrame, OverBound, PeerId, RefuseReason, RequestId},
    request::{Answer, Request},
};

/// Whom a peer must be for the connection to go on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Expectation {
    /// Its life; [`None`] if any will do.
    pub incarnation: Option<Incarnation>,
    /// Its name; [`None`] if any will do.
    pub name: Option<String>,
}

impl Expectation {
    /// Why `peer` is not the one that was meant.
    pub fn mismatch(&self, peer: &PeerId) -> Option<RefuseReason> {
        if self.incarnation.is_some_and(|expected| expected != peer.incarnation) {
            return Some(RefuseReason::StaleIncarnation { now: peer.incarnation });
        }
        let other_name = self.name.as_ref().is_some_and(|expected| *expected != peer.name);
        other_name.then_some(RefuseReason::NameMismatch)
    }
}

/// What the machine wants done, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Output {
    /// Send this frame.
    Send(ControlFrame),
    /// A peer wants in and is who it should be: tell [`ControlMachine::decide`](super::ControlMachine::decide) whether it is welcome.
    Knock(PeerId),
    /// The handshake is over.
    Opened(PeerId),
    /// The peer asks: [`ControlMachine::answer`](super::ControlMachine::answer) is due, once.
    Asked(RequestId, Request),
    /// The request of this id ended with this answer.
    Answered(RequestId, Answer),
    /// The deadline of the request of this id is over. If an answer still comes it is dropped.
    Expired(RequestId),
    /// The connection ends. Requests without an answer get none. Always the last output.
    Closed(CloseReason),
}

/// Why a request was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NotSent {
    /// There is no connection: the handshake is not over, or the connection is.
    #[error("not connected")]
    NotOpen,
    /// There are too many requests without an answer.
    #[error("{limit} requests are without an answer already")]
    TooManyPending {
        /// The limit.
        limit: usize,
    },
    /// No peer would accept it.
    #[error(transparent)]
    OverBound(#[from] OverBound),
}
