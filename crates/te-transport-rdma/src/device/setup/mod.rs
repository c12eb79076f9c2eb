//! The set-up thread of a NIC: everything that waits for a device or for a peer.
//!
//! It creates, joins, flushes and destroys queue pairs as the lines say, in their order; it talks to peers, answers them,
//! and looks after what the device tells by itself. Pieces are posted and completed elsewhere.

mod device;
mod lines;
mod peers;
mod port;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use te_segment::{Generation, Incarnation};
use te_sys_verbs::AsyncEvent;
use te_transport::FailureKind;

use super::answers::{Answers, Ask};
use super::dial::Dialled;
use super::exchanges::Exchanges;
use super::link::{Link, Trouble};
use super::nic::Nic;
use super::rebuild::{self, Rebuild, Step};
use crate::counters::add;
use crate::endpoint::{Closed, Event};
use crate::store::Room;

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
    /// The device of this life tells something.
    Device(u64, AsyncEvent),
    /// The device of this life or its completion queue has failed.
    Failed(u64, String),
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
    rebuild: Rebuild,
    /// What is to be registered at a device that is back.
    left: Vec<Generation>,
    /// Everything is out of service.
    leaving: bool,
}

impl Setup {
    pub(crate) fn new(nic: Arc<Nic>) -> Self {
        let exchanges = Exchanges::new(nic.signals().clone());
        Self {
            nic,
            exchanges,
            answers: Answers::default(),
            reclaimed: Instant::now(),
            rebuild: Rebuild::default(),
            left: Vec::new(),
            leaving: false,
        }
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
            if self.leaving && self.nic.endpoints() == 0 && !self.rebuild.is_closing() {
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
        let due = due.chain(links.iter().filter_map(|link| link.opens_at()));
        let rebuild = match self.rebuild.step(now) {
            Step::Rest => None,
            Step::WaitUntil(at) => Some(at),
            _ => Some(now),
        };
        let due = due.chain(rebuild).min();
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
        self.rebuild();
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
            // What is late of a device that was closed is of no use.
            Errand::Device(life, _) | Errand::Failed(life, _) if life != self.nic.life() => {}
            Errand::Device(_, event) => {
                self.device(event);
                add(&self.nic.common().counters.events, 1);
            }
            Errand::Failed(_, cause) => {
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
                self.rebuild.handle(Instant::now(), rebuild::Event::Shut, 0);
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
                full @ Room::Full { .. } => return Err(full.to_string()),
            }
        }
    }

    fn close(&mut self, link: &Arc<Link>, why: Closed) {
        link.tell(Event::Close(why));
        self.carry_out(link);
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
}

fn unreachable(cause: &str) -> Trouble {
    Trouble { kind: FailureKind::Unreachable, cause: cause.into() }
}

fn shutting_down() -> Trouble {
    Trouble { kind: FailureKind::Shutdown, cause: "the transport is shutting down".into() }
}
