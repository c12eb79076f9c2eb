//! The set-up thread of a NIC: everything that waits for a device or for a peer.
//!
//! It creates, joins, flushes and destroys queue pairs as the lines say, in their order; it talks to peers, answers them,
//! and looks after what the device tells by itself. Pieces are posted and completed elsewhere.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use te_segment::{Generation, Incarnation};
use te_sys_verbs::{AsyncEvent, EventKind, Subject};
use te_transport::{FailureKind, RemoteEffect};

use super::answers::{Answers, Ask};
use super::dial::{Dialled, Kind, dial};
use super::exchanges::{Answer, Exchanges};
use super::link::{Cause, Link, Trouble};
use super::nic::Nic;
use super::{open, pairs};
use crate::client::Part;
use crate::counters::add;
use crate::endpoint::{Action, Closed, Endpoint, Event, RemoteSet, Step};
use crate::store::Room;
use crate::wire::Offer;

/// How often links without queue pairs are forgotten.
const RECLAIM: Duration = Duration::from_secs(1);

/// Something for the set-up thread.
pub(crate) enum Errand {
    /// An endpoint is wanted.
    Want(Arc<Link>),
    /// A line has something to be done.
    Run(Arc<Link>),
    /// Pieces of an endpoint that is gone are in doubt.
    Cut(Arc<Link>),
    /// A peer asks.
    Ask(Box<Ask>),
    /// An exchange may have its answer.
    Answer(u64),
    /// The device tells something.
    Device(AsyncEvent),
    /// The device or its completion queue has failed.
    Failed(String),
    /// Cut off a life of a peer, and say so.
    Fence(Incarnation, Sender<()>),
    /// Take everything out of service, and end once nothing is left.
    Shut,
}

pub(crate) struct Setup {
    nic: Arc<Nic>,
    exchanges: Exchanges<Dialled>,
    answers: Answers,
    reclaimed: Instant,
    /// Everything is out of service.
    leaving: bool,
}

impl Setup {
    pub(crate) fn new(nic: Arc<Nic>) -> Self {
        let exchanges = Exchanges::new(nic.signals().clone());
        Self { nic, exchanges, answers: Answers::default(), reclaimed: Instant::now(), leaving: false }
    }

    /// Runs until the transport is closed.
    pub(crate) fn run(mut self, errands: &Receiver<Errand>) {
        loop {
            match errands.recv_timeout(self.patience()) {
                Err(RecvTimeoutError::Disconnected) => break,
                Ok(errand) => self.take(errand),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.tick();
            if self.leaving && self.nic.endpoints() == 0 {
                break;
            }
        }
        // Whoever waits for an answer of a peer learns that there is none.
        self.nic.signals().set_over();
        for link in self.nic.links() {
            self.cut_failed(link.take_doubts(None), "the transport is shutting down");
            self.elsewhere(&link, &shutting_down());
        }
        self.nic.signals().close();
    }

    /// Until something is due without an errand.
    fn patience(&self) -> Duration {
        let now = Instant::now();
        let links = self.nic.links();
        let due = links.iter().filter_map(|link| link.lock().line.wake_at());
        let due = due.chain(links.iter().filter_map(|link| link.opens_at())).min();
        let due = due.map_or(RECLAIM, |due| due.saturating_duration_since(now));
        due.min(RECLAIM)
    }

    fn tick(&mut self) {
        let now = Instant::now();
        for link in self.nic.links() {
            let mut inner = link.lock();
            let is_due = inner.line.wake_at().is_some_and(|at| at <= now);
            if is_due {
                link.handle(&mut inner, now, Event::Tick);
                drop(inner);
                self.carry_out(&link);
            } else {
                drop(inner);
            }
            if link.opens_at().is_some_and(|at| at <= now) {
                self.want(&link);
            }
        }
        if now.saturating_duration_since(self.reclaimed) >= RECLAIM {
            self.reclaimed = now;
            self.nic.reclaim();
        }
    }

    fn take(&mut self, errand: Errand) {
        match errand {
            Errand::Want(link) => self.want(&link),
            Errand::Run(link) => self.carry_out(&link),
            Errand::Cut(link) => self.cut(&link),
            Errand::Ask(ask) => self.ask(*ask),
            Errand::Answer(number) => {
                if let Some((dialled, answer)) = self.exchanges.look(number) {
                    self.answered(dialled, answer);
                }
            }
            Errand::Device(event) => self.device(event),
            Errand::Failed(cause) => {
                tracing::warn!(target: "te::rdma", nic = %self.nic.name(), cause, "the device has failed");
                self.down(true);
            }
            Errand::Fence(life, done) => {
                for link in self.nic.links_of(life) {
                    self.close(&link, Closed::Fenced);
                }
                let _ = done.send(());
            }
            Errand::Shut => {
                self.leaving = true;
                for link in self.nic.links() {
                    self.close(&link, Closed::Shutdown);
                    // Where there is no endpoint, nothing is closed.
                    self.elsewhere(&link, &shutting_down());
                }
            }
        }
    }

    /// An endpoint is wanted on a link.
    fn want(&mut self, link: &Arc<Link>) {
        let now = Instant::now();
        let mut inner = link.lock();
        Link::set_wanted(&mut inner, false);
        if inner.line.current().is_some() {
            link.pump(&mut inner, now);
            return;
        }
        if link.is_retired() {
            drop(inner);
            // An endpoint of it would never be evicted again.
            for part in link.take_waiting() {
                let peer = part.job.peer().clone();
                peer.again(part);
            }
            return;
        }
        // Chosen by somebody who did not know yet; nothing would tell of the port a second time.
        if !self.nic.is_up() {
            drop(inner);
            self.elsewhere(link, &self.is_down());
            return;
        }
        let barred = inner.circuit.may_open(now).err().map(|until| inner.barred(until));
        let waits = barred.as_ref().is_some_and(|barred| barred.is_brief(now));
        // Until the pause is over.
        Link::set_wanted(&mut inner, waits);
        drop(inner);
        if self.nic.common().is_closing() {
            self.elsewhere(link, &shutting_down());
        } else if waits {
            tracing::debug!(target: "te::rdma", rail = %link.rail(), "opened again in a moment");
        } else if let Some(barred) = barred {
            let trouble = barred.trouble.unwrap_or_else(|| unreachable("the peer is not tried again yet"));
            self.elsewhere(link, &trouble);
        } else {
            match self.make_room() {
                Ok(()) => {
                    link.tell(Event::Want);
                    self.carry_out(link);
                }
                Err(cause) => self.elsewhere(link, &unreachable(&cause)),
            }
        }
    }

    /// Makes room for one endpoint more, at the cost of one that is idle.
    fn make_room(&mut self) -> Result<(), String> {
        loop {
            match self.nic.room() {
                Room::Free => return Ok(()),
                Room::Evicted(evicted) => {
                    add(&self.nic.common().counters.evicted, 1);
                    self.carry_out(&evicted);
                }
                full @ Room::Full { .. } => {
                    return Err(match full {
                        Room::Full { cap, busy, retiring } => {
                            Room::<()>::Full { cap, busy, retiring }.to_string()
                        }
                        _ => String::new(),
                    });
                }
            }
        }
    }

    fn close(&mut self, link: &Arc<Link>, why: Closed) {
        link.tell(Event::Close(why));
        self.carry_out(link);
    }

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

    fn exchange(&mut self, link: &Arc<Link>, of: Generation, kind: Kind) {
        let Some((ours, theirs)) = link.lock().end(of).map(|end| (end.ours.clone(), end.theirs.clone()))
        else {
            return;
        };
        let (tag, exchange) = dial(&self.nic, link, of, kind, ours, theirs, 0);
        self.exchanges.begin(tag, exchange);
    }

    fn answered(&mut self, dialled: Dialled, answer: Answer) {
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

    fn cut_failed(&self, doubts: Vec<Part>, cause: &str) {
        for part in doubts {
            let cause =
                format!("the queue pairs broke, and the peer could not be asked to cut them: {cause}");
            part.fail(FailureKind::ConnectionLost, cause, RemoteEffect::MayStillApply);
        }
    }

    fn join(&mut self, link: &Arc<Link>, of: Generation, peer: &RemoteSet) {
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

    fn flush(&mut self, link: &Arc<Link>, of: Generation) {
        // Nothing is posted on them any more, so nobody misses them meanwhile.
        let take = |end: &mut super::link::End| (std::mem::take(&mut end.pairs), end.is_silent);
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

    fn destroy(&mut self, link: &Arc<Link>, of: Generation) {
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

    fn forfeit(&mut self, link: &Arc<Link>, of: Generation) {
        self.forfeit_posted(link, of);
        self.gone(link, of);
    }

    /// Ends what was posted on queue pairs that do not exist any more; how much that is.
    fn forfeit_posted(&mut self, link: &Arc<Link>, of: Generation) -> u32 {
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
    fn gone(&mut self, link: &Arc<Link>, of: Generation) {
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
    fn cut(&mut self, link: &Arc<Link>) {
        let Some((cut, ours)) = link.ask_to_cut() else { return };
        let of = ours.terms.as_ref().map_or(Generation::new(0), |terms| terms.generation);
        let (tag, exchange) = dial(&self.nic, link, of, Kind::Cut, ours, None, cut);
        self.exchanges.begin(tag, exchange);
    }

    /// An endpoint went out of service: what waits for it goes elsewhere, or waits for the next one.
    fn closed(&mut self, link: &Arc<Link>, why: Closed) {
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
            self.elsewhere(link, &trouble.unwrap_or_else(|| unreachable(&why.to_string())));
        } else {
            link.pump(&mut link.lock(), now);
        }
    }

    /// What waits on a link goes to another rail, or fails as said.
    fn elsewhere(&self, link: &Arc<Link>, trouble: &Trouble) {
        for part in link.take_waiting() {
            let peer = part.job.peer().clone();
            peer.divert(part, trouble);
        }
    }

    fn is_down(&self) -> Trouble {
        unreachable(&format!("{} is down", self.nic.name()))
    }

    /// A peer asks something.
    fn ask(&mut self, ask: Ask) {
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

    fn device(&mut self, event: AsyncEvent) {
        tracing::info!(target: "te::rdma", nic = %self.nic.name(), ?event, "the device tells");
        match (event.kind, event.about) {
            (EventKind::PORT_ERR | EventKind::DEVICE_FATAL | EventKind::CQ_ERR, _) => {
                self.down(event.kind != EventKind::PORT_ERR)
            }
            // A request of the peer that was refused: the peer knows, and opens anew. Other kinds say that nothing is amiss.
            (EventKind::QP_FATAL, Subject::QueuePair(cookie)) => {
                if let Some((link, of)) = self.nic.by_cookie(cookie) {
                    link.tell(Event::Broken(of));
                    self.carry_out(&link);
                }
            }
            (_, Subject::Port(port)) if port == self.nic.own().number => self.look_again(),
            _ => {}
        }
    }

    /// The port or the device carries nothing any more: what is under way goes to other rails.
    fn down(&mut self, broken: bool) {
        if broken {
            self.nic.set_broken();
        }
        self.nic.set_up(false);
        self.nic.common().peers.set_down(self.nic.name(), true);
        for link in self.nic.links() {
            self.close(&link, Closed::Broken);
            // Where there is no endpoint, nothing is closed.
            self.elsewhere(&link, &self.is_down());
        }
    }

    /// The port may have come up, or its addresses may have changed.
    fn look_again(&mut self) {
        if self.nic.is_broken() {
            return;
        }
        match open::own(self.nic.context(), &self.nic.common().config) {
            Ok(own) => {
                let is_new = self.nic.set_own(own);
                let was_down = self.nic.set_up(true);
                if is_new {
                    // Queue pairs are bound to the old address.
                    for link in self.nic.links() {
                        self.close(&link, Closed::Broken);
                    }
                }
                if was_down || is_new {
                    self.nic.common().peers.set_down(self.nic.name(), false);
                    for link in self.nic.links() {
                        if link.forgive() {
                            self.want(&link);
                        }
                    }
                }
            }
            Err(cause) => {
                tracing::info!(target: "te::rdma", nic = %self.nic.name(), cause, "not usable");
                self.down(false);
            }
        }
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

fn unreachable(cause: &str) -> Trouble {
    Trouble { kind: FailureKind::Unreachable, cause: cause.into() }
}

fn shutting_down() -> Trouble {
    Trouble { kind: FailureKind::Shutdown, cause: "the transport is shutting down".into() }
}
