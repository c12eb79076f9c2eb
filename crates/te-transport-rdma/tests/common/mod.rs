//! Two engines over a fabric that lives in this process: real handshakes as bytes, queue pairs that copy memory, a random
//! order of everything.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "in tests a failure is a panic")]

mod fabric;

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use te_segment::{Generation, Incarnation, MemoryKey, NicName};
use te_transport_rdma::endpoint::{
    Action, Closed, Event, Exchange, Line, ReadyAck, RemoteSet, Timeouts, Turn, Verdict,
};
use te_transport_rdma::error::WorkError;
use te_transport_rdma::negotiate::{Agreement, LinkLayer, Mtu, Port, agree};
use te_transport_rdma::slices::{QueueSettings, SendQueue, Status, WorkRequest};
use te_transport_rdma::wire::{Handshake, NicPath, Offer, Reading, Terms};

pub(crate) const BASE: u64 = 0x10_0000;
const QUEUE_PAIRS: u32 = 2;

/// NIC here, NIC there.
pub(crate) type Key = (NicName, NicName);

/// The queue pairs of one endpoint.
struct Pairs {
    ours: Offer,
    theirs: Option<Offer>,
    agreed: Option<Agreement>,
    queues: Vec<SendQueue<usize>>,
    /// What the device has, by queue pair.
    device: Vec<VecDeque<WorkRequest>>,
}

pub(crate) struct Node {
    name: &'static str,
    life: Incarnation,
    pub(crate) nics: Vec<NicName>,
    mtu: Mtu,
    lines: BTreeMap<Key, Line<RemoteSet>>,
    pairs: BTreeMap<(Key, u64), Pairs>,
    pub(crate) memory: Vec<u8>,
    asked: Vec<(Offer, bool, Mail)>,
    next_number: u32,
}

/// A message on its way: a request, or the answer to one, which names who asked.
#[derive(Clone)]
struct Mail {
    to: usize,
    asker: (Incarnation, Key, u64),
    confirms: bool,
    answer: bool,
    bytes: Vec<u8>,
}

pub(crate) struct World {
    pub(crate) nodes: [Node; 2],
    mail: Vec<Mail>,
    seed: u64,
    now: Instant,
    /// How each piece of the present request ended.
    pub(crate) ended: Vec<Vec<Status>>,
    /// Bytes that each queue pair has carried.
    pub(crate) carried: BTreeMap<(Key, usize), u64>,
}

impl Node {
    fn new(name: &'static str, life: u128, nics: usize, mtu: Mtu) -> Self {
        Self {
            name,
            life: Incarnation::from_bits(life),
            nics: (0..nics).map(|at| format!("mlx5_{at}").parse().unwrap()).collect(),
            mtu,
            lines: BTreeMap::new(),
            pairs: BTreeMap::new(),
            memory: vec![0; 1 << 20],
            asked: Vec::new(),
            next_number: 100,
        }
    }

    fn path(&self, nic: &NicName) -> NicPath {
        NicPath::new(self.name, nic.clone()).unwrap()
    }

    /// The key of the whole memory at a NIC: another one in each life.
    fn key(&self, nic: &NicName) -> MemoryKey {
        let at = self.nics.iter().position(|known| known == nic).unwrap();
        MemoryKey::new(self.life.bits() as u64 * 1_000 + at as u64)
    }

    fn port(&self) -> Port {
        Port { link: LinkLayer::Ethernet, mtu: self.mtu, reads_out: 16, reads_in: 16 }
    }

    pub(crate) fn endpoints(&self) -> usize {
        self.lines.values().map(Line::endpoints).sum()
    }
}

impl World {
    pub(crate) fn new(seed: u64, nics: [usize; 2]) -> Self {
        let nodes = [Node::new("a:1", 1, nics[0], Mtu::B4096), Node::new("b:1", 2, nics[1], Mtu::B1024)];
        let (ended, carried) = (Vec::new(), BTreeMap::new());
        Self { nodes, mail: Vec::new(), seed: seed | 1, now: Instant::now(), ended, carried }
    }

    /// A number below `limit`, from the seed.
    fn roll(&mut self, limit: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        usize::try_from(self.seed % limit as u64).unwrap()
    }

    /// The process ends and another begins under its name, with the same NICs. Its connections end with it.
    pub(crate) fn restart(&mut self, node: usize) {
        let old = &mut self.nodes[node];
        let nics = old.nics.len();
        *old =
            Node { memory: old.memory.clone(), ..Node::new(old.name, old.life.bits() + 10, nics, old.mtu) };
        let gone: Vec<_> = std::mem::take(&mut self.mail);
        for mail in gone {
            // Who waits for an answer of the old process learns that there is none.
            let asker = if mail.answer { mail.to } else { 1 - mail.to };
            if asker != node {
                self.unanswered(asker, &mail);
            }
        }
    }

    fn unanswered(&mut self, asker: usize, mail: &Mail) {
        let (_, key, of) = mail.asker.clone();
        let of = Generation::new(of);
        let event = match mail.confirms {
            true => Event::Confirmed(of, Err(Closed::NoAnswer)),
            false => Event::Opened(of, Err(Closed::NoAnswer)),
        };
        self.tell(asker, &key, event);
    }

    fn tell(&mut self, node: usize, key: &Key, event: Event<RemoteSet>) {
        let (here, there) = (self.nodes[node].path(&key.0), self.nodes[1 - node].path(&key.1));
        let fresh = || Line::new(Generation::new(1), Turn::of(&here, &there), Timeouts::default());
        let line = self.nodes[node].lines.entry(key.clone()).or_insert_with(fresh);
        for step in line.handle(self.now, event) {
            self.carry_out(node, key, step.endpoint.map_or(0, Generation::value), step.action);
        }
    }

    fn carry_out(&mut self, node: usize, key: &Key, of: u64, action: Action<RemoteSet>) {
        let at = (key.clone(), of);
        match action {
            Action::Create => {
                let pairs = self.create(node, key, of);
                self.nodes[node].pairs.insert(at, pairs);
            }
            Action::Open => {
                let offer = self.nodes[node].pairs[&at].ours.clone();
                self.send(node, &at, false, Handshake::open(offer));
            }
            Action::Confirm => {
                let pairs = &self.nodes[node].pairs[&at];
                let mut offer = pairs.ours.clone();
                let theirs = pairs.theirs.as_ref().and_then(|theirs| theirs.terms.as_ref()).unwrap();
                let terms = offer.terms.as_mut().unwrap();
                (terms.peer, terms.peer_generation) = (Some(theirs.incarnation), Some(theirs.generation));
                self.send(node, &at, true, Handshake::confirm(offer));
            }
            Action::Link(peer) => self.link(node, &at, &peer),
            Action::Answer(exchange, verdict) => self.answer(node, &at, exchange, &verdict),
            Action::Flush => {
                let pairs = self.nodes[node].pairs.get_mut(&at).unwrap();
                let flushed: Vec<_> = pairs.device.iter_mut().map(std::mem::take).collect();
                for (number, request) in flushed
                    .into_iter()
                    .enumerate()
                    .flat_map(|(number, all)| all.into_iter().map(move |request| (number, request)))
                {
                    self.complete(node, &at, number, &request, Status::Failed(WorkError::Flushed));
                }
            }
            Action::Destroy => {
                let pairs = self.nodes[node].pairs.remove(&at).expect("destroyed once");
                assert!(pairs.queues.iter().all(|queue| queue.outstanding() == 0), "work is flushed first");
                self.tell(node, key, Event::Destroyed(Generation::new(of), true));
            }
            Action::Forfeit(_) => panic!("this device flushes"),
            Action::Ready | Action::Closed(_) => {}
        }
    }

    fn create(&mut self, node: usize, key: &Key, of: u64) -> Pairs {
        let from = self.nodes[node].path(&key.0);
        let to = self.nodes[1 - node].path(&key.1);
        let psn = (0..QUEUE_PAIRS).map(|_| u32::try_from(self.roll(1 << 24)).unwrap()).collect();
        let us = &mut self.nodes[node];
        us.next_number += QUEUE_PAIRS;
        let queue_pairs: Vec<_> = (us.next_number - QUEUE_PAIRS..us.next_number).collect();
        let terms = Terms {
            incarnation: us.life,
            peer: None,
            peer_generation: None,
            cut: false,
            generation: Generation::new(of),
            psn,
            mtu: us.mtu.bytes(),
            max_rd_atomic: 16,
            extra: BTreeMap::new(),
        };
        let gid = "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:07".parse().ok();
        let ours = Offer { from, to, lid: 0, gid, queue_pairs, ready_ack: true, terms: Some(terms) };
        let settings = QueueSettings { depth: 8, signal_every: 2, max_inline: 0 };
        let queues = vec![SendQueue::new(settings); QUEUE_PAIRS as usize];
        Pairs {
            ours,
            theirs: None,
            agreed: None,
            queues,
            device: vec![VecDeque::new(); QUEUE_PAIRS as usize],
        }
    }

    fn send(&mut self, node: usize, at: &(Key, u64), confirms: bool, handshake: Handshake) {
        let asker = (self.nodes[node].life, at.0.clone(), at.1);
        self.mail.push(Mail { to: 1 - node, asker, confirms, answer: false, bytes: handshake.encode() });
    }

    fn link(&mut self, node: usize, at: &(Key, u64), peer: &RemoteSet) {
        let port = self.nodes[node].port();
        // What was read last of the peer with these queue pairs.
        let asked = self.nodes[node].asked.iter().rev().map(|(offer, ..)| offer);
        let known = asked.chain(self.nodes[node].pairs[at].theirs.iter());
        let theirs = known.into_iter().find(|offer| RemoteSet::from(*offer) == *peer).cloned().unwrap();
        let pairs = self.nodes[node].pairs.get_mut(at).unwrap();
        pairs.agreed = agree(&pairs.ours, &port, &theirs, None).ok();
        let ok = pairs.agreed.as_ref().is_some_and(|agreed| agreed.mtu == Mtu::B1024);
        pairs.theirs = Some(theirs);
        self.tell(node, &at.0, Event::Link(Generation::new(at.1), ok));
    }

    fn answer(&mut self, node: usize, at: &(Key, u64), exchange: Exchange, verdict: &Verdict) {
        let (offer, confirms, mail) = self.nodes[node].asked[usize::try_from(exchange.0).unwrap()].clone();
        let handshake = match verdict {
            Verdict::Accept => Handshake::accept(&offer, self.nodes[node].pairs[at].ours.clone()),
            Verdict::Confirmed => Handshake::confirmed(),
            Verdict::Refuse(why) => Handshake::refuse(&why.to_string()),
        };
        let bytes = handshake.encode();
        self.mail.push(Mail { to: 1 - node, answer: true, confirms, bytes, asker: mail.asker });
    }

    fn deliver(&mut self, mail: Mail) {
        let (node, (life, key, of)) = (mail.to, mail.asker.clone());
        let handshake = Handshake::decode(&mail.bytes).unwrap();
        if !mail.answer {
            let (offer, confirms) = match handshake.read().unwrap() {
                Reading::Open(offer) => (offer, false),
                Reading::Confirm(offer) => (offer, true),
                other => panic!("{other:?}"),
            };
            let us = &mut self.nodes[node];
            let key = (offer.to.nic().clone(), offer.from.nic().clone());
            let exchange = Exchange(us.asked.len() as u64);
            let set = RemoteSet::from(&offer);
            let meant = offer.terms.as_ref().and_then(|terms| terms.peer_generation);
            let is_for = offer.is_for(us.life);
            us.asked.push((offer, confirms, mail));
            if !is_for {
                let stale = Verdict::Refuse(te_transport_rdma::endpoint::Refusal::Stale);
                self.answer(node, &(key, 0), exchange, &stale);
            } else if confirms {
                self.tell(node, &key, Event::PeerConfirms(exchange, set, meant));
            } else {
                self.tell(node, &key, Event::PeerOpens(exchange, set, ReadyAck::Expected));
            }
            return;
        }
        if life != self.nodes[node].life {
            return;
        }
        let of = Generation::new(of);
        if mail.confirms {
            let ok = handshake.refusal.is_empty();
            self.tell(node, &key, Event::Confirmed(of, if ok { Ok(()) } else { Err(Closed::Refused) }));
            return;
        }
        let Some(pairs) = self.nodes[node].pairs.get_mut(&(key.clone(), of.value())) else { return };
        let answer = match handshake.read_answer(&pairs.ours).unwrap() {
            Ok(theirs) => {
                let set = RemoteSet::from(&theirs);
                pairs.theirs.get_or_insert(theirs);
                Ok((set, ReadyAck::Expected))
            }
            Err(_) => Err(Closed::Refused),
        };
        self.tell(node, &key, Event::Opened(of, answer));
    }

    /// One thing happens, if anything can; returns whether it did.
    pub(crate) fn step(&mut self) -> bool {
        let work: Vec<_> = (0..2)
            .flat_map(|node| {
                self.nodes[node].pairs.iter().flat_map(move |(at, pairs)| {
                    let busy = pairs.device.iter().enumerate().filter(|(_, device)| !device.is_empty());
                    busy.map(move |(number, _)| (node, at.clone(), number))
                })
            })
            .collect();
        let due: Vec<_> =
            (0..2).filter(|node| self.nodes[*node].lines.values().any(Line::gives_way)).collect();
        let choices = self.mail.len() + work.len();
        if choices == 0 {
            for node in &due {
                let keys: Vec<_> = self.nodes[*node].lines.keys().cloned().collect();
                self.now += Timeouts::default().give_way;
                keys.iter().for_each(|key| self.tell(*node, key, Event::Tick));
            }
            return !due.is_empty();
        }
        let choice = self.roll(choices);
        if choice < self.mail.len() {
            let mail = self.mail.swap_remove(choice);
            self.deliver(mail);
        } else {
            let (node, at, number) = work[choice - self.mail.len()].clone();
            self.execute(node, &at, number);
        }
        true
    }
}
