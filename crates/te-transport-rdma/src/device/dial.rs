//! Asking a peer, and what its answer means.

use std::sync::Arc;
use std::time::{Duration, Instant};

use te_segment::Generation;
use te_transport::{BoxFuture, FailureKind, RDMA_PROTOCOL};

use super::exchanges::Answer;
use super::link::{Link, Trouble};
use super::nic::Nic;
use crate::endpoint::{Closed, ReadyAck};
use crate::wire::{Handshake, Offer};

/// How long a peer has for an answer, like for any control request.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long it has to cut endpoints: requests wait for it.
const CUT_PATIENCE: Duration = Duration::from_secs(2);

/// What it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Open,
    Confirm,
    Cut,
}

/// A request under way, with what is to be done with its answer.
pub(crate) struct Dialled {
    pub(crate) link: Arc<Link>,
    pub(crate) of: Generation,
    pub(crate) kind: Kind,
    /// Which request to cut it is, if it is one: pieces wait for it.
    pub(crate) cut: u64,
    asked: Offer,
}

/// Makes a request. `theirs`: the peer's side, if it is known.
pub(crate) fn dial(
    nic: &Nic,
    link: &Arc<Link>,
    of: Generation,
    kind: Kind,
    mut ours: Offer,
    theirs: Option<Offer>,
    cut: u64,
) -> (Dialled, BoxFuture<'static, Answer>) {
    if let (Kind::Confirm, Some(terms), Some(peer)) =
        (kind, &mut ours.terms, theirs.as_ref().and_then(|theirs| theirs.terms.as_ref()))
    {
        (terms.peer, terms.peer_generation) = (Some(peer.incarnation), Some(peer.generation));
    }
    let handshake = match kind {
        Kind::Open => Handshake::open(ours.clone()),
        Kind::Confirm => Handshake::confirm(ours.clone()),
        Kind::Cut => Handshake::cut(ours.clone()),
    };
    let patience = if kind == Kind::Cut { CUT_PATIENCE } else { PATIENCE };
    let (message, deadline) = (handshake.encode(), Instant::now() + patience);
    let (target, bootstrap, path) =
        (link.target(), nic.common().bootstrap.clone(), link.key().there.to_string());
    let exchange = async move {
        let target = target.ok_or_else(|| format!("no descriptor of {path} is known"))?;
        let peer = bootstrap.locate(&target, deadline).await.map_err(|error| error.to_string())?;
        let answer = bootstrap.exchange(&peer, RDMA_PROTOCOL, &path, message, deadline).await;
        answer.map_err(|error| error.to_string())
    };
    (Dialled { link: link.clone(), of, kind, cut, asked: ours }, Box::pin(exchange))
}

impl Dialled {
    /// What the answer to an open means.
    pub(crate) fn opened(&self, answer: Answer) -> Result<(Offer, ReadyAck), (Closed, Trouble)> {
        let handshake = self.read(answer)?;
        match handshake.read_answer(&self.asked) {
            Ok(Ok(theirs)) => {
                let ack = if theirs.ready_ack { ReadyAck::Expected } else { ReadyAck::Unknown };
                Ok((theirs, ack))
            }
            Ok(Err(reason)) => Err(refused(format!("the peer refuses: {reason}"))),
            Err(error) => Err(refused(format!("the peer's answer cannot be used: {error}"))),
        }
    }

    /// What the answer to a ready-ack or a cut means.
    pub(crate) fn confirmed(&self, answer: Answer) -> Result<(), (Closed, Trouble)> {
        let handshake = self.read(answer)?;
        match handshake.refusal.as_str() {
            "" => Ok(()),
            reason => Err(refused(format!("the peer refuses: {reason}"))),
        }
    }

    fn read(&self, answer: Answer) -> Result<Handshake, (Closed, Trouble)> {
        let bytes = answer.map_err(|error| {
            (Closed::NoAnswer, Trouble { kind: FailureKind::Unreachable, cause: error.into() })
        })?;
        let handshake = Handshake::decode(&bytes)
            .map_err(|error| refused(format!("the peer's answer cannot be read: {error}")))?;
        match handshake.life {
            Some(life) if self.link.key().life.is_some_and(|meant| meant != life) => {
                let cause = format!("the peer is another life, {life}, than the one the path was opened for");
                Err((Closed::Refused, Trouble { kind: FailureKind::StaleIncarnation, cause: cause.into() }))
            }
            _ => Ok(handshake),
        }
    }
}

fn refused(cause: String) -> (Closed, Trouble) {
    (Closed::Refused, Trouble { kind: FailureKind::Unreachable, cause: cause.into() })
}
