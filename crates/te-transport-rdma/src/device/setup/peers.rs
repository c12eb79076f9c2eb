//! Talking to peers: what they are asked, what their answers mean, and what they ask.

use std::sync::Arc;
use std::time::Instant;

use te_segment::Generation;
use te_transport::{FailureKind, RemoteEffect};

use super::Setup;
use crate::client::Part;
use crate::counters::add;
use crate::device::answers::Ask;
use crate::device::dial::{Dialled, Kind, dial};
use crate::device::exchanges::Answer;
use crate::device::link::Link;
use crate::endpoint::{Closed, Endpoint, Event, RemoteSet};

impl Setup {
    pub(super) fn exchange(&mut self, link: &Arc<Link>, of: Generation, kind: Kind) {
        let Some((ours, theirs)) = link.lock().end(of).map(|end| (end.ours.clone(), end.theirs.clone()))
        else {
            return;
        };
        let (tag, exchange) = dial(&self.nic, link, of, kind, ours, theirs, 0);
        self.exchanges.begin(tag, exchange);
    }

    pub(super) fn answered(&mut self, dialled: Dialled, answer: Answer) {
        let link = dialled.link.clone();
        match dialled.kind {
            Kind::Open => {
                let outcome = dialled.opened(answer);
                let mut inner = link.lock();
                let outcome = outcome.map(|(theirs, ack)| {
                    let set = RemoteSet::from(&theirs);
                    if let Some(end) = inner.end(dialled.of) {
                        // What the peer has said first of these queue pairs stays.
                        end.theirs.get_or_insert(theirs);
                    }
                    (set, ack)
                });
                let outcome = outcome.map_err(|(closed, trouble)| {
                    inner.trouble = Some(trouble);
                    closed
                });
                link.handle(&mut inner, Instant::now(), Event::Opened(dialled.of, outcome));
            }
            Kind::Confirm => {
                let outcome = dialled.confirmed(answer);
                let mut inner = link.lock();
                let outcome = outcome.map_err(|(closed, trouble)| {
                    inner.trouble = Some(trouble);
                    closed
                });
                link.handle(&mut inner, Instant::now(), Event::Confirmed(dialled.of, outcome));
            }
            Kind::Cut => {
                let doubts = link.take_doubts(Some(dialled.cut));
                match dialled.confirmed(answer) {
                    Ok(()) => {
                        add(&self.nic.common().counters.cuts, 1);
                        add(&self.nic.common().counters.moved, doubts.len() as u64);
                        for part in doubts {
                            let peer = part.job.peer().clone();
                            peer.again(part);
                        }
                    }
                    // A life that is over applies nothing any more.
                    Err((_, trouble)) if trouble.kind == FailureKind::StaleIncarnation => {
                        for part in doubts {
                            part.fail(trouble.kind, trouble.cause.clone(), RemoteEffect::MayHaveApplied);
                        }
                    }
                    Err((_, trouble)) => self.cut_failed(doubts, &trouble.cause),
                }
            }
        }
        self.carry_out(&link);
    }

    pub(super) fn cut_failed(&self, doubts: Vec<Part>, cause: &str) {
        for part in doubts {
            let cause =
                format!("the queue pairs broke, and the peer could not be asked to cut them: {cause}");
            part.fail(FailureKind::ConnectionLost, cause, RemoteEffect::MayStillApply);
        }
    }

    /// A peer asks something.
    pub(super) fn ask(&mut self, ask: Ask) {
        if self.nic.common().is_closing() {
            ask.refuse("the transport is shutting down");
            return;
        }
        let rail = ask.rail();
        if !self.nic.common().config.rail_map.joins(&rail) {
            // Joined, the two would wait for each other's packets; refused, a peer that does not know the map tries another.
            ask.refuse(&format!("the rail map does not join {rail} (rail_map)"));
            return;
        }
        let life = self.nic.common().incarnation;
        if ask.is_for(life) { self.admit(ask) } else { ask.refuse_life(life) }
    }

    /// Hands a request of a peer to its line.
    fn admit(&mut self, ask: Ask) {
        let key = ask.key();
        let link = self.nic.link(&key, None);
        // Another life has the same NIC now: what is joined to the earlier one is of no use.
        if key.life.is_some() {
            for other in self.nic.links() {
                if other.key().there == key.there
                    && other.key().life.is_some()
                    && other.key().life != key.life
                {
                    self.close(&other, Closed::Replaced);
                }
            }
        }
        match ask {
            Ask::Open(..) if !self.nic.is_up() => {
                ask.refuse(&self.is_down().cause);
                return;
            }
            Ask::Open(..) => {
                let has_one = link.lock().line.current().is_some();
                if !has_one && let Err(cause) = self.make_room() {
                    ask.refuse(&cause);
                    return;
                }
                let (exchange, set, ack) = self.answers.open(ask);
                link.tell(Event::PeerOpens(exchange, set, ack));
            }
            Ask::Confirm(..) => {
                let (exchange, set, meant) = self.answers.confirm(ask);
                link.tell(Event::PeerConfirms(exchange, set, meant));
            }
            Ask::Cut(..) => {
                let generation = ask.generation();
                let is_joined = link.lock().line.current().and_then(Endpoint::peer).is_some_and(|peer| {
                    peer.generation().is_some_and(|of| generation.is_none_or(|cut| of <= cut))
                });
                if is_joined {
                    self.close(&link, Closed::Fenced);
                }
                ask.confirm();
                return;
            }
        }
        self.carry_out(&link);
    }
}
