//! Two senders and a receiver of notifications over a bad network, with freezes and restarts of all three.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use te_segment::Incarnation;
use te_testkit::{Mishap, Post, Process, Ran, Sim, Weather};

use super::super::arrivals::{Arrival, ArrivalLimits, Arrivals, Note};
use super::super::delivery::{Delivery, Outbox, OutboxAction, OutboxSettings, Tidings};
use super::{all_seeds, some_seed};

const NOTES: u64 = 30;
const RECEIVER: usize = 0;

/// The batch a notification is of: unique over all senders and lives. It says whose life it is of, see [`sender_of`].
type Batch = u64;

/// Sender and life. Another life is another sender: a straggler of the old one may come after the first of the new.
fn sender_of(batch: Batch) -> u64 {
    batch % 1_000
}

#[derive(Clone, Debug)]
enum Message {
    Note {
        from_life: u32,
        to_life: u32,
        number: u64,
        batch: Batch,
    },
    Answer {
        by_life: u32,
        to_life: u32,
        number: u64,
        taken: bool,
    },
    /// The receiver says who it is.
    IAm {
        life: u32,
    },
}

#[derive(Debug)]
struct Sender {
    outbox: Outbox<Batch>,
    receiver: Option<u32>,
    batches: BTreeMap<u64, Batch>,
    next: Batch,
    push_at: Option<Instant>,
    /// Over all lives: the test's memory.
    outcomes: BTreeMap<Batch, (Delivery, u32)>,
    wrong: Option<String>,
}

#[derive(Debug)]
struct Receiver {
    arrivals: Arrivals,
    /// (life, batch) in the order of taking.
    taken: Vec<(u32, Batch)>,
    announce_at: Option<Instant>,
    flawed: bool,
}

#[derive(Debug)]
enum Node {
    Receiver(Receiver),
    Sender(Sender),
}

impl Sender {
    fn act(&mut self, actions: Vec<OutboxAction>, post: &mut Post<'_, Message>) {
        let Some(to_life) = self.receiver else { return };
        for action in actions {
            match action {
                OutboxAction::Send { number } => {
                    let from_life = post.life();
                    match self.outbox.note(number) {
                        Some(batch) => {
                            post.send(RECEIVER, Message::Note { from_life, to_life, number, batch: *batch });
                        }
                        None => self.wrong = Some(format!("{number} is sent after its end")),
                    }
                }
                OutboxAction::Finish { number, outcome } => {
                    let Some(batch) = self.batches.remove(&number) else {
                        self.wrong = Some(format!("{number} has two outcomes"));
                        return;
                    };
                    self.outcomes.insert(batch, (outcome, to_life));
                }
            }
        }
    }

    fn push(&mut self, post: &mut Post<'_, Message>) {
        let batch = self.next * 1_000 + u64::from(post.life()) * 10 + post.me() as u64;
        self.next += 1;
        let patience = Duration::from_millis(1_000 + post.random(8_000));
        let deadline = post.now() + patience;
        if let Ok((number, actions)) = self.outbox.push(post.now(), batch, deadline) {
            self.batches.insert(number, batch);
            self.act(actions, post);
        }
    }
}

impl Process for Node {
    type Message = Message;

    fn start(&mut self, post: &mut Post<'_, Message>) {
        match self {
            Self::Receiver(node) => {
                node.arrivals = Arrivals::new(ArrivalLimits { queue: 3, ..ArrivalLimits::default() });
                node.announce_at = Some(post.now());
            }
            Self::Sender(node) => {
                node.outbox = Outbox::new(settings());
                node.receiver = None;
                node.batches.clear();
                node.push_at = Some(post.now());
            }
        }
    }

    fn receive(&mut self, from: usize, message: Message, post: &mut Post<'_, Message>) {
        match (self, message) {
            (Self::Receiver(node), Message::Note { from_life, to_life, number, batch })
                if to_life == post.life() =>
            {
                let note =
                    Note { name: String::new(), message: batch.to_string(), tidings: Tidings::Success };
                let sender = Incarnation::from_bits(from as u128 * 100 + u128::from(from_life));
                let arrival = if node.flawed {
                    node.arrivals.offer_unnumbered(note)
                } else {
                    node.arrivals.offer(sender, number, note)
                };
                if arrival == Arrival::Taken {
                    node.taken.push((to_life, batch));
                }
                // The program is slow now and then.
                if post.random(3) > 0 {
                    node.arrivals.take();
                }
                let taken = arrival != Arrival::Full;
                post.send(from, Message::Answer { by_life: to_life, to_life: from_life, number, taken });
            }
            (Self::Sender(node), Message::IAm { life }) if node.receiver.is_none_or(|known| known < life) => {
                let gone = node.outbox.receiver_gone();
                node.act(gone, post);
                // What was not begun with a life known is for nobody; the machine for the new life is a new one.
                node.batches.clear();
                node.outbox = Outbox::new(settings());
                node.receiver = Some(life);
                let connected = node.outbox.connected(post.now());
                node.act(connected, post);
            }
            (Self::Sender(node), Message::Answer { by_life, to_life, number, taken })
                if to_life == post.life() && node.receiver == Some(by_life) =>
            {
                let actions = node.outbox.answered(post.now(), number, taken);
                node.act(actions, post);
            }
            _ => {}
        }
    }

    fn wake_at(&self) -> Option<Instant> {
        match self {
            Self::Receiver(node) => node.announce_at,
            Self::Sender(node) => node.outbox.wake_at().into_iter().chain(node.push_at).min(),
        }
    }

    fn wake(&mut self, post: &mut Post<'_, Message>) {
        match self {
            Self::Receiver(node) => {
                let life = post.life();
                post.send(1, Message::IAm { life });
                post.send(2, Message::IAm { life });
                node.announce_at = Some(post.now() + Duration::from_secs(1));
            }
            Self::Sender(node) => {
                if node.push_at.is_some_and(|at| post.now() >= at) {
                    if node.receiver.is_some() {
                        node.push(post);
                    }
                    let pause = Duration::from_millis(post.random(800));
                    node.push_at = (node.next < NOTES).then(|| post.now() + pause);
                }
                let actions = node.outbox.tick(post.now());
                node.act(actions, post);
            }
        }
    }
}

fn settings() -> OutboxSettings {
    OutboxSettings { limit: 64, ..OutboxSettings::default() }
}

fn check(nodes: &[Node]) -> Result<(), String> {
    let [Node::Receiver(receiver), rest @ ..] = nodes else { return Ok(()) };
    for node in rest {
        if let Node::Sender(Sender { wrong: Some(wrong), .. }) = node {
            return Err(wrong.clone());
        }
    }
    let Some((life, batch)) = receiver.taken.last() else { return Ok(()) };
    let before = receiver.taken[..receiver.taken.len() - 1].iter();
    for (other_life, other) in before {
        if other == batch {
            return Err(format!("{batch} is taken twice"));
        }
        if other_life == life && sender_of(*other) == sender_of(*batch) && other > batch {
            return Err(format!("{batch} is taken after {other}"));
        }
    }
    Ok(())
}

fn sim(seed: u64, weather: Weather, flawed: bool) -> Sim<Node> {
    let sender = || {
        Node::Sender(Sender {
            outbox: Outbox::new(settings()),
            receiver: None,
            batches: BTreeMap::new(),
            next: 0,
            push_at: None,
            outcomes: BTreeMap::new(),
            wrong: None,
        })
    };
    let receiver = Node::Receiver(Receiver {
        arrivals: Arrivals::new(ArrivalLimits::default()),
        taken: Vec::new(),
        announce_at: None,
        flawed,
    });
    Sim::new(seed, weather, vec![receiver, sender(), sender()])
}

fn run(seed: u64, flawed: bool) -> Result<Ran, Mishap> {
    let mut sim = sim(seed, Weather::stormy().lasting(Duration::from_secs(45)), flawed);
    let ran = sim.run(|nodes, _| check(nodes))?;
    let [Node::Receiver(receiver), senders @ ..] = sim.processes() else { return Ok(ran) };
    for node in senders {
        let Node::Sender(sender) = node else { continue };
        for (batch, (outcome, life)) in &sender.outcomes {
            let taken = receiver.taken.contains(&(*life, *batch));
            let honest = match outcome {
                Delivery::Delivered => taken,
                Delivery::Expired { sent } | Delivery::ReceiverGone { sent } => *sent || !taken,
            };
            if !honest {
                return Err(sim.mishap(format!("{batch} is {outcome:?}, but taken: {taken}")));
            }
        }
        if let Some(batch) = sender.batches.values().next() {
            return Err(sim.mishap(format!("{batch} has no outcome")));
        }
    }
    Ok(ran)
}

/// N-01, N-04
#[test]
fn in_any_weather_each_notification_is_taken_once_and_in_order() {
    let delivered = all_seeds("in_any_weather_each_notification", |seed| run(seed, false));
    assert!(delivered > 20, "{delivered}");
}

/// N-04
#[test]
fn some_weather_finds_a_receiver_without_memory() {
    let why = some_seed(|seed| run(seed, true));
    assert!(why.contains("is taken"), "{why}");
}

#[test]
fn in_calm_weather_every_notification_is_delivered() {
    let mut sim = sim(1, Weather::calm(), false);
    sim.run(|nodes, _| check(nodes)).unwrap();
    let [Node::Receiver(receiver), senders @ ..] = sim.processes() else { panic!("the first one receives") };
    let mut sent = 0;
    for node in senders {
        let Node::Sender(sender) = node else { continue };
        sent += sender.outcomes.len();
        assert!(sender.outcomes.values().all(|(outcome, _)| *outcome == Delivery::Delivered));
    }
    assert_eq!((sent, receiver.taken.len()), (sent, sent));
    assert!(sent > 50, "{sent}");
}
