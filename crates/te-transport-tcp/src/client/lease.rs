//! The right to one of a peer's connections, and executing trains with it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use te_transport::{FailureKind, RemoteEffect};

use super::address::{ConnectError, Dialer};
use super::exchange::{Exchange, Link};
use super::greet::{Greeting, NotGreeted};
use super::peer::{Peer, State};
use super::unit::{Job, Train};
use crate::counters::add;
use crate::error::{Break, effect_of, failure};
use crate::framing::Framing;
use crate::io::{Step, Wire};

/// After a failure to add a connection to others that work, none is tried for this long.
const BAR: Duration = Duration::from_secs(1);

/// A connection used within this time is used again without a look at it.
const UNSUSPECTED: Duration = Duration::from_millis(1);

/// One of the peer's connections, to be made if it is not there. Dropping it gives it back.
pub(super) struct Lease {
    peer: Arc<Peer>,
    link: Option<Link>,
}

impl Lease {
    /// Takes a free connection, or the right to make one; the caller has checked that there is one.
    pub(super) fn take(peer: Arc<Peer>, state: &mut State) -> Self {
        let link = state.idle.pop();
        match &link {
            Some(link) => state.active.push(link.wire.interrupter().clone()),
            None => state.open += 1,
        }
        Self { peer, link }
    }

    /// Executes a train, with more of its batch as long as no other batch is due. Every unit of it is resolved or given back
    /// to the queue when this returns.
    pub(super) fn drive(&mut self, train: Train) {
        let job = train.job;
        self.run(train);
        if let Some(seq) = job {
            self.peer.state.lock().leave(seq);
        }
    }

    fn run(&mut self, mut train: Train) {
        loop {
            let now = Instant::now();
            if train.units.is_empty() {
                self.peer.refill(&mut train);
            }
            if train.units.is_empty() {
                return;
            }
            if train.scope.cancelled().is_some() || self.peer.is_closed() || Instant::now() >= train.deadline
            {
                return self.give_up(train);
            }
            if !self.is_usable(now) {
                self.discard();
                let started_at = self.peer.state.lock().next_seq;
                if let Err(error) = self.connect(&train) {
                    return self.not_connected(train, error, started_at);
                }
            }
            self.execute(&mut train, now);
        }
    }

    fn give_up(&self, train: Train) {
        let (kind, cause) = self.peer.reason(&train.scope);
        let failure = failure(&self.peer.label, kind, cause, RemoteEffect::None);
        self.peer.fail_units(train.units, &failure);
    }

    /// Whether there is a connection that the peer has not closed.
    fn is_usable(&mut self, now: Instant) -> bool {
        let Some(link) = &mut self.link else { return false };
        let fresh = link.used.is_none_or(|used| now.saturating_duration_since(used) < UNSUSPECTED);
        let usable = fresh || matches!(link.wire.peek(), Ok(Step::Quiet));
        usable && !link.wire.interrupter().is_interrupted()
    }

    fn connect(&mut self, train: &Train) -> Result<(), ConnectError> {
        let peer = &self.peer;
        let until = train.deadline.min(Instant::now() + peer.config().connect_timeout);
        let stop = || train.scope.cancelled().is_some() || peer.is_closed();
        let dialer = Dialer {
            endpoint: &peer.identity.endpoint,
            threads: &peer.common.threads,
            keepalive: peer.config().keepalive,
            until,
            stop: &stop,
        };
        let known = peer.addresses.lock().clone();
        let addresses = match known {
            Some(addresses) => addresses,
            None => dialer.resolve()?,
        };
        let connected = self.greeted(&dialer, &addresses);
        // A name may lead elsewhere next time.
        *peer.addresses.lock() = connected.is_ok().then_some(addresses);
        let (wire, version) = connected?;
        let link = Link::new(wire, version, peer.config().digest);
        add(&peer.counters().connected, 1);
        let mut state = peer.state.lock();
        state.active.push(link.wire.interrupter().clone());
        state.barred = None;
        drop(state);
        if peer.is_closed() {
            // Closed after the look at it: nobody else will interrupt this one.
            link.wire.interrupter().interrupt();
        }
        self.link = Some(link);
        Ok(())
    }

    /// A connection on which requests may be sent, and the version of the native framing it speaks.
    fn greeted(
        &self,
        dialer: &Dialer<'_>,
        addresses: &[SocketAddr],
    ) -> Result<(Wire, Option<u16>), ConnectError> {
        let peer = &self.peer;
        let mut wire = dialer.connect(addresses)?;
        let Some(to) = peer.identity.incarnation.filter(|_| peer.framing() == Framing::Native) else {
            return Ok((wire, None));
        };
        let (from, counters) = (peer.common.incarnation, peer.counters());
        let greeting = Greeting { from, to, counters, until: dialer.until, stop: dialer.stop };
        // A connection that breaks is replaced once: what was not sent yet can go over another one.
        for last in [false, true] {
            match greeting.exchange(&mut wire) {
                Ok(version) => return Ok((wire, Some(version))),
                Err(NotGreeted::Final(ConnectError::Failed(text))) => {
                    return Err(ConnectError::Failed(format!("data port {}: {text}", dialer.endpoint)));
                }
                Err(NotGreeted::Final(error)) => return Err(error),
                Err(NotGreeted::Broken(text)) if last => {
                    return Err(ConnectError::Failed(format!("data port {}: {text}", dialer.endpoint)));
                }
                Err(NotGreeted::Broken(_)) => wire = dialer.connect(addresses)?,
            }
        }
        // The second try has returned.
        Err(ConnectError::Stopped)
    }

    fn not_connected(&self, train: Train, error: ConnectError, started_at: u64) {
        let (refused, text) = match error {
            ConnectError::Stopped => return self.give_up(train),
            ConnectError::Refused(kind, text) => (Some(kind), text),
            ConnectError::Failed(text) => (None, text),
        };
        let mut state = self.peer.state.lock();
        if refused.is_none() && !state.active.is_empty() {
            // Others work: they take this over, and nobody tries again for a while.
            state.barred = Some(Instant::now() + BAR);
            drop(state);
            return self.peer.requeue(train);
        }
        // What was queued before this attempt would only wait for the same answer.
        let mut failed = Vec::new();
        let mut at = 0;
        while at < state.jobs.len() {
            if state.jobs[at].seq <= started_at {
                failed.extend(state.jobs.remove(at));
            } else {
                at += 1;
            }
        }
        drop(state);
        let now = Instant::now();
        let others = refused.unwrap_or(FailureKind::Unreachable);
        let late = |deadline| if deadline <= now { refused.unwrap_or(FailureKind::TimedOut) } else { others };
        let kind = late(train.deadline);
        let cause = failure(&self.peer.label, kind, text.as_str(), RemoteEffect::None);
        self.peer.fail_units(train.units, &cause);
        for job in failed {
            let kind = late(job.deadline);
            self.peer.fail_job(job, kind, &text);
        }
    }

    /// Runs the train on the connection until it is through or the connection is unusable.
    fn execute(&mut self, train: &mut Train, now: Instant) {
        let Some(link) = &mut self.link else { return };
        let guard = train.scope.attach(link.wire.interrupter().clone());
        let mut exchange = Exchange::new(&self.peer, link, train, now);
        let result = exchange.run();
        let (started, answered, looked) = (exchange.started(), exchange.answered, exchange.looked.get());
        drop(guard);
        match result {
            Ok(()) => {
                link.used = Some(looked);
                // Cancelled before the guard was dropped: the hook may still be about to shut this connection down.
                if train.scope.cancelled().is_some() || link.wire.interrupter().is_interrupted() {
                    self.discard();
                }
            }
            Err(cause) => {
                let reused = link.used.is_some();
                let sent = std::mem::take(&mut link.sent);
                let interrupted = link.wire.interrupter().is_interrupted();
                // Closed before anything is resolved: from here on nothing local touches the memory.
                self.discard();
                let over =
                    interrupted || Instant::now() >= train.deadline || train.scope.cancelled().is_some();
                let cause = match cause {
                    Break::Lost { .. } | Break::Stalled(_) if over => Break::Ended,
                    cause => cause,
                };
                let retry_started = reused && !answered;
                Settlement { peer: &self.peer, train, started, retry_started }.settle(sent, cause);
            }
        }
    }

    /// Closes the connection; the right to make another stays.
    fn discard(&mut self) {
        let Some(link) = self.link.take() else { return };
        self.peer.state.lock().forget_active(&link);
        link.wire.reset();
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.peer.state.lock();
        let mut surplus = None;
        match self.link.take() {
            None => state.open -= 1,
            Some(link) => {
                state.forget_active(&link);
                if state.replaced || state.paths == 0 || self.peer.is_closed() {
                    state.open -= 1;
                    surplus = Some(link);
                } else {
                    state.idle.push(link);
                }
            }
        }
        // Workers that want it, if any do.
        let wanted = !state.jobs.is_empty();
        drop(state);
        if wanted {
            self.peer.wake.notify_one();
        }
        drop(surplus);
    }
}

impl State {
    fn forget_active(&mut self, link: &Link) {
        let interrupter = link.wire.interrupter();
        if let Some(at) = self.active.iter().position(|active| Arc::ptr_eq(active, interrupter)) {
            self.active.swap_remove(at);
        }
    }
}

/// What becomes of the units of a broken connection, which is closed already.
struct Settlement<'a> {
    peer: &'a Peer,
    train: &'a mut Train,
    /// How many at the front of those sent have a byte on the way.
    started: usize,
    /// Whether the peer may have closed the connection before it saw anything of this train.
    retry_started: bool,
}

impl Settlement<'_> {
    fn settle(self, mut sent: std::collections::VecDeque<super::unit::Unit>, cause: Break) {
        let Self { peer, train, started, retry_started } = self;
        let op = train.op;
        let unstarted = sent.split_off(started.min(sent.len()));
        let cause = match cause {
            Break::Refused(_) if sent.is_empty() => {
                Break::Protocol("a refusal before a request was sent".to_owned())
            }
            cause => cause,
        };
        let is_read = op == te_transport::Op::Read;
        let (kind, text, late) = match cause {
            Break::Refused(code) => {
                let listed = 1 + sent.iter().skip(1).take_while(|unit| !unit.leads).count();
                if listed > 1 {
                    // Whichever of them is meant: each gets a verdict of its own.
                    sent.iter_mut().take(listed).for_each(|unit| unit.alone = true);
                } else if let Some(unit) = sent.pop_front() {
                    peer.refused(op, unit, code);
                }
                // The peer serves in order and stops at a refusal, so what came after it was not served.
                train.one_at_a_time = true;
                for unit in sent.into_iter().chain(unstarted).rev() {
                    train.units.push_front(unit);
                }
                return;
            }
            Break::Ended => {
                let (kind, text) = peer.reason(&train.scope);
                let failure = failure(&peer.label, kind, text, RemoteEffect::None);
                peer.fail_units(unstarted.into_iter().chain(train.units.drain(..)), &failure);
                (kind, text.to_owned(), true)
            }
            Break::Stalled(text) => {
                let failure = failure(&peer.label, FailureKind::TimedOut, text.as_str(), RemoteEffect::None);
                peer.fail_units(unstarted.into_iter().chain(train.units.drain(..)), &failure);
                (FailureKind::TimedOut, text, true)
            }
            Break::Protocol(text) => {
                let failure = failure(&peer.label, FailureKind::Protocol, text.as_str(), RemoteEffect::None);
                peer.fail_units(unstarted.into_iter().chain(train.units.drain(..)), &failure);
                (FailureKind::Protocol, text, true)
            }
            Break::Lost { cause, late } => {
                // Never sent: once more on a fresh connection. So is a READ on a connection that had gone stale.
                let mut again = Vec::new();
                let stale =
                    if is_read && retry_started { std::mem::take(&mut sent) } else { Default::default() };
                for mut unit in stale.into_iter().chain(unstarted) {
                    if unit.retried {
                        let kind = FailureKind::ConnectionLost;
                        peer.fail(unit, failure(&peer.label, kind, cause.as_str(), RemoteEffect::None));
                    } else {
                        unit.retried = true;
                        again.push(unit);
                    }
                }
                for unit in again.into_iter().rev() {
                    train.units.push_front(unit);
                }
                let v1_write = !is_read && peer.framing() == Framing::V1;
                let kind = if v1_write { FailureKind::Unconfirmed } else { FailureKind::ConnectionLost };
                let text = if v1_write {
                    format!(
                        "{cause}; sent, but the read-back did not confirm it (a version 1 peer also refuses a range this way)"
                    )
                } else {
                    cause
                };
                (kind, text, late)
            }
        };
        let failure = failure(&peer.label, kind, text, effect_of(op, late));
        peer.fail_units(sent, &failure);
    }
}

impl Peer {
    /// Puts the rest of a train back to the front of the queue.
    pub(super) fn requeue(&self, train: Train) {
        let Train { op, units, deadline, scope, .. } = train;
        if self.is_closed() {
            let (kind, cause) = self.reason(&scope);
            return self.fail_units(units, &failure(&self.label, kind, cause, RemoteEffect::None));
        }
        let none = std::collections::VecDeque::new();
        let (reads, writes) = match op {
            te_transport::Op::Read => (units, none),
            te_transport::Op::Write => (none, units),
        };
        let guard = self.own().map(|own| scope.attach(own));
        let job = Job { seq: 0, reads, writes, deadline, scope, guard, leases: 0 };
        self.enqueue(job, true, 1);
    }

    /// Whether new work is refused.
    pub(super) fn refuses(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}
