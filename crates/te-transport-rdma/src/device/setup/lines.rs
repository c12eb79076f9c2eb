//! What lines want done: the queue pairs of an endpoint from their creation to their destruction.

use std::sync::Arc;
use std::time::Instant;

use te_segment::Generation;
use te_transport::FailureKind;

use super::{Setup, shutting_down, unreachable};
use crate::counters::add;
use crate::device::dial::{Kind, dial};
use crate::device::link::{Cause, End, Link, Trouble};
use crate::device::pairs;
use crate::endpoint::{Action, Closed, Event, RemoteSet, Step};
use crate::wire::Offer;

impl Setup {
    /// Carries out what the line wants done, in its order.
    pub(crate) fn carry_out(&mut self, link: &Arc<Link>) {
        while let Some(Step { endpoint, action }) = link.next_step() {
            let of = endpoint.unwrap_or(Generation::new(0));
            match action {
                Action::Create => self.create(link, of),
                Action::Open => self.exchange(link, of, Kind::Open),
                Action::Confirm => self.exchange(link, of, Kind::Confirm),
                Action::Link(peer) => self.join(link, of, &peer),
                Action::Answer(exchange, verdict) => {
                    let ours = link.lock().end(of).map(|end| end.ours.clone());
                    self.answers.answer(exchange, &verdict, ours);
                }
                Action::Ready => {
                    add(&self.nic.common().counters.endpoints, 1);
                    let mut inner = link.lock();
                    inner.trouble = None;
                    link.pump(&mut inner, Instant::now());
                }
                Action::Closed(why) => self.closed(link, why),
                Action::Flush => self.flush(link, of),
                Action::Destroy => self.destroy(link, of),
                Action::Forfeit(_) => self.forfeit(link, of),
            }
        }
    }

    fn create(&mut self, link: &Arc<Link>, of: Generation) {
        match pairs::create(&self.nic, link, of) {
            Ok(end) => link.lock().ends.push(end),
            Err(cause) => {
                let mut inner = link.lock();
                Link::skip(&mut inner, of);
                inner.trouble = Some(Trouble { kind: FailureKind::Unreachable, cause: cause.into() });
                link.handle(&mut inner, Instant::now(), Event::Link(of, false));
            }
        }
    }

    pub(super) fn join(&mut self, link: &Arc<Link>, of: Generation, peer: &RemoteSet) {
        let mut inner = link.lock();
        let Some(end) = inner.end(of) else { return };
        let known = end.theirs.take().filter(|theirs| RemoteSet::from(theirs) == *peer);
        end.theirs = known.or_else(|| self.answers.offer(peer));
        let offers = end.theirs.clone().map(|theirs| (end.ours.clone(), theirs));
        let pairs = std::mem::take(&mut end.pairs);
        drop(inner);
        let joined = match offers {
            None => Err("the peer's offer is not known any more".to_owned()),
            Some((ours, theirs)) => pairs::agreement(&self.nic, link, &ours, &theirs)
                .and_then(|agreed| pairs::join(&self.nic, &pairs, &agreed)),
        };
        let mut inner = link.lock();
        if let Some(end) = inner.end(of) {
            end.pairs = pairs;
        }
        if let Err(cause) = &joined {
            tracing::info!(target: "te::rdma", rail = %link.rail(), cause, "queue pairs could not be joined");
            inner.trouble = Some(unreachable(cause));
        }
        link.handle(&mut inner, Instant::now(), Event::Link(of, joined.is_ok()));
    }

    pub(super) fn flush(&mut self, link: &Arc<Link>, of: Generation) {
        // Nothing is posted on them any more, so nobody misses them meanwhile.
        let take = |end: &mut End| (std::mem::take(&mut end.pairs), end.is_silent);
        let Some((pairs, is_silent)) = link.lock().end(of).map(take) else { return };
        let mut reports = !is_silent && !self.nic.is_broken();
        for error in pairs.iter().filter_map(|pair| pair.to_error().err()) {
            tracing::debug!(target: "te::rdma", %error, "not flushed: its queue pairs are destroyed under it");
            reports = false;
        }
        if reports {
            if let Some(end) = link.lock().end(of) {
                end.pairs = pairs;
            }
            return;
        }
        // They are destroyed at once: the device would not say what has become of all of it, however long that is waited for,
        // and what could not be flushed goes on.
        self.nic.disown(link, of);
        drop(pairs);
        let count = self.forfeit_posted(link, of);
        link.tell(Event::Completed(of, count));
    }

    pub(super) fn destroy(&mut self, link: &Arc<Link>, of: Generation) {
        let mut inner = link.lock();
        let pairs = inner.end(of).map(|end| std::mem::take(&mut end.pairs));
        drop(inner);
        self.nic.disown(link, of);
        drop(pairs);
        let mut inner = link.lock();
        let before = inner.line.outstanding();
        link.handle(&mut inner, Instant::now(), Event::Destroyed(of, true));
        let is_forfeited = inner.line.outstanding() < before;
        drop(inner);
        if !is_forfeited {
            self.gone(link, of);
        }
    }

    pub(super) fn forfeit(&mut self, link: &Arc<Link>, of: Generation) {
        self.forfeit_posted(link, of);
        self.gone(link, of);
    }

    /// Ends what was posted on queue pairs that do not exist any more; how much that is.
    pub(super) fn forfeit_posted(&mut self, link: &Arc<Link>, of: Generation) -> u32 {
        let mut ended = Vec::new();
        let mut inner = link.lock();
        let Some(end) = inner.end(of) else { return 0 };
        let cause = end.cause.map(|error| Cause { error, is_new: false });
        for (lane, queue) in end.queues.iter_mut().enumerate() {
            let mut outcomes = Vec::new();
            queue.forfeit(&mut outcomes);
            ended.extend(outcomes.into_iter().map(|(part, status)| (lane, part, status)));
        }
        drop(inner);
        let count = u32::try_from(ended.len()).unwrap_or(u32::MAX);
        link.give_room(ended.len());
        for (lane, part, status) in ended {
            link.settle(of, lane, part, status, cause);
        }
        count
    }

    /// An endpoint is gone, with its queue pairs and all that was posted on them.
    pub(super) fn gone(&mut self, link: &Arc<Link>, of: Generation) {
        let mut inner = link.lock();
        if let Some(at) = inner.ends.iter().position(|end| end.generation == of) {
            let end = inner.ends.swap_remove(at);
            // They need not go in the order in which they came.
            let number = |offer: &Offer| offer.terms.as_ref().map(|terms| terms.generation);
            if inner.last.as_ref().is_none_or(|last| number(last) < number(&end.ours)) {
                inner.last = Some(end.ours);
            }
        }
        // While too many are being destroyed, none is created.
        link.pump(&mut inner, Instant::now());
        drop(inner);
        self.cut(link);
    }

    /// Asks the peer to cut what is joined to endpoints that are gone, if anything depends on it.
    pub(super) fn cut(&mut self, link: &Arc<Link>) {
        let Some((cut, ours)) = link.ask_to_cut() else { return };
        let of = ours.terms.as_ref().map_or(Generation::new(0), |terms| terms.generation);
        let (tag, exchange) = dial(&self.nic, link, of, Kind::Cut, ours, None, cut);
        self.exchanges.begin(tag, exchange);
    }

    /// An endpoint went out of service: what waits for it goes elsewhere, or waits for the next one.
    pub(super) fn closed(&mut self, link: &Arc<Link>, why: Closed) {
        tracing::debug!(target: "te::rdma", rail = %link.rail(), %why, "endpoint out of service");
        add(&self.nic.common().counters.closed, 1);
        let now = Instant::now();
        let never_ready = match why {
            Closed::NoAnswer | Closed::Refused | Closed::NotConfirmed | Closed::LinkFailed => {
                link.lock().circuit.failed(now, rand::random());
                true
            }
            Closed::Broken => true,
            Closed::Shutdown => true,
            Closed::Replaced | Closed::Evicted | Closed::Interrupted | Closed::Fenced => false,
        };
        if why == Closed::Shutdown {
            self.elsewhere(link, &shutting_down());
        } else if never_ready {
            let trouble = link.lock().trouble.clone();
            let kind = match why {
                Closed::Broken => FailureKind::ConnectionLost,
                _ => FailureKind::Unreachable,
            };
            let otherwise = || Trouble { kind, cause: why.to_string().into() };
            self.elsewhere(link, &trouble.unwrap_or_else(otherwise));
        } else {
            link.pump(&mut link.lock(), now);
        }
    }
}
