//! Sender and receiver of notifications: each is taken once per receiver life, in order, after its data is applied.

use std::time::Instant;

use te_segment::Incarnation;
use te_testkit::{Model, Move, Wire};

use super::super::arrivals::{Arrival, ArrivalLimits, Arrivals, Note};
use super::super::delivery::{Delivery, Outbox, OutboxAction, OutboxSettings, Tidings, notice};
use super::attempts::time;
use super::{fails, holds};

const NOTES: usize = 2;

/// What is done wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// The receiver does not remember what it took.
    Forgets,
    /// The sender notifies when the batch is submitted.
    TooEarly,
    /// What the old life of the receiver did not acknowledge is sent to the new one.
    CarriesOver,
    /// The sender gives up after the first try.
    GivesUp,
}

struct Notified {
    flaw: Flaw,
    faults: u8,
    /// Messages are faster than any clock.
    prompt: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Message {
    Note { to: u8, from: u8, number: u64, batch: usize },
    Answer { to: u8, number: u64, taken: bool },
}

#[derive(Clone, Debug, Hash)]
struct World {
    now: Instant,
    wire: Wire<Message>,
    sender: u8,
    outbox: Outbox<usize>,
    /// The receiver's life that the outbox is for.
    target: u8,
    numbers: [Option<u64>; NOTES],
    outcomes: [Option<Delivery>; NOTES],
    receiver: u8,
    arrivals: Arrivals,
    /// By the present life of the receiver, in order.
    taken: Vec<usize>,
    submitted: [bool; NOTES],
    /// Data in the memory of the present life of the receiver.
    applied: [bool; NOTES],
    wrong: Option<&'static str>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Wire(Move),
    Submit(usize),
    /// The data of a batch is applied and the sender knows.
    Complete(usize),
    /// The program takes a notification.
    Take,
    Wait,
    RestartReceiver,
    RestartSender,
    /// The sender learns that the receiver's life is another.
    Learn,
}

fn life(number: u8) -> Incarnation {
    Incarnation::from_bits(u128::from(number))
}

fn outbox() -> Outbox<usize> {
    let answer = OutboxSettings::default().answer;
    let mut outbox = Outbox::new(OutboxSettings { limit: NOTES, answer, full: answer });
    outbox.connected(time(0));
    outbox
}

fn arrivals() -> Arrivals {
    Arrivals::new(ArrivalLimits { queue: 1, senders: 2, expectations: 1 })
}

impl Notified {
    fn act(&self, world: &mut World, actions: Vec<OutboxAction>) {
        for action in actions {
            match action {
                OutboxAction::Send { number } => {
                    let Some(batch) = world.outbox.note(number).copied() else {
                        world.wrong = Some("sent after its end");
                        return;
                    };
                    let (to, from) = (world.target, world.sender);
                    world.wire.send(Message::Note { to, from, number, batch });
                    if self.flaw == Flaw::GivesUp {
                        world.outbox.disconnected();
                    }
                }
                OutboxAction::Finish { number, outcome } => {
                    let batch = world.numbers.iter().position(|n| *n == Some(number));
                    let Some(batch) = batch else { continue };
                    if world.outcomes[batch].replace(outcome).is_some() {
                        world.wrong = Some("two outcomes");
                    }
                    let was_taken = world.taken.contains(&batch) || world.receiver != world.target;
                    if outcome == Delivery::Delivered && !was_taken {
                        world.wrong = Some("delivered, but not taken");
                    }
                    let unsent = matches!(
                        outcome,
                        Delivery::Expired { sent: false } | Delivery::ReceiverGone { sent: false }
                    );
                    if unsent && world.taken.contains(&batch) {
                        world.wrong = Some("taken, but never sent");
                    }
                }
            }
        }
    }

    fn push(&self, world: &mut World, batch: usize) {
        if notice(true, false) != Some(Tidings::Success) {
            return;
        }
        match world.outbox.push(world.now, batch, time(25)) {
            Ok((number, actions)) => {
                world.numbers[batch] = Some(number);
                self.act(world, actions);
            }
            Err(_) => world.wrong = Some("no room"),
        }
    }

    fn receive(&self, world: &mut World, message: Message) {
        match message {
            Message::Note { to, from, number, batch } if to == world.receiver => {
                let note =
                    Note { name: String::new(), message: batch.to_string(), tidings: Tidings::Success };
                let arrival = match self.flaw {
                    Flaw::Forgets => world.arrivals.offer_unnumbered(note),
                    _ => world.arrivals.offer(life(from), number, note),
                };
                if arrival == Arrival::Taken {
                    if world.taken.contains(&batch) {
                        world.wrong = Some("taken twice");
                    }
                    if !world.applied[batch] {
                        world.wrong = Some("taken before its data was applied");
                    }
                    world.taken.push(batch);
                }
                let taken = arrival != Arrival::Full;
                world.wire.send(Message::Answer { to: from, number, taken });
            }
            Message::Answer { to, number, taken } if to == world.sender => {
                let actions = world.outbox.answered(world.now, number, taken);
                self.act(world, actions);
            }
            // For a life that is over.
            _ => {}
        }
    }
}

impl Model for Notified {
    type State = World;
    type Step = Step;

    fn starts(&self) -> Vec<World> {
        vec![World {
            now: time(0),
            wire: Wire::new(6, self.faults),
            sender: 0,
            outbox: outbox(),
            target: 0,
            numbers: [None; NOTES],
            outcomes: [None; NOTES],
            receiver: 0,
            arrivals: arrivals(),
            taken: Vec::new(),
            submitted: [false; NOTES],
            applied: [false; NOTES],
            wrong: None,
        }]
    }

    fn steps(&self, world: &World) -> Vec<Step> {
        let mut steps: Vec<_> = world.wire.moves().into_iter().map(Step::Wire).collect();
        for batch in 0..NOTES {
            if !world.submitted[batch] && world.sender == 0 {
                steps.push(Step::Submit(batch));
            }
            let for_this_life = world.sender == 0 && world.receiver == 0;
            if world.submitted[batch] && !world.applied[batch] && for_this_life {
                steps.push(Step::Complete(batch));
            }
        }
        if world.arrivals.clone().take().is_some() {
            steps.push(Step::Take);
        }
        let quiet = steps.is_empty();
        if world.outbox.wake_at().is_some() && (quiet || !self.prompt) {
            steps.push(Step::Wait);
        }
        if world.wire.may_fail() {
            steps.extend([Step::RestartReceiver, Step::RestartSender]);
        }
        if world.receiver != world.target {
            steps.push(Step::Learn);
        }
        steps
    }

    fn apply(&self, world: &mut World, step: &Step) {
        match *step {
            Step::Wire(step) => {
                if let Some(message) = world.wire.make(step) {
                    self.receive(world, message);
                }
            }
            Step::Submit(batch) => {
                world.submitted[batch] = true;
                if self.flaw == Flaw::TooEarly {
                    self.push(world, batch);
                }
            }
            Step::Complete(batch) => {
                world.applied[batch] = true;
                if self.flaw != Flaw::TooEarly {
                    self.push(world, batch);
                }
            }
            Step::Take => drop(world.arrivals.take()),
            Step::Wait => {
                let wake = world.outbox.wake_at();
                world.now = wake.map_or(world.now, |at| at.max(world.now));
                let actions = world.outbox.tick(world.now);
                self.act(world, actions);
            }
            Step::RestartReceiver => {
                world.wire.spend();
                world.receiver += 1;
                world.arrivals = arrivals();
                world.taken.clear();
                world.applied = [false; NOTES];
            }
            Step::RestartSender => {
                world.wire.spend();
                (world.sender, world.outbox, world.target) = (1, outbox(), world.receiver);
            }
            Step::Learn => {
                world.target = world.receiver;
                if self.flaw == Flaw::CarriesOver {
                    let actions = world.outbox.connected(world.now);
                    return self.act(world, actions);
                }
                let actions = world.outbox.receiver_gone();
                self.act(world, actions);
                world.outbox = outbox();
            }
        }
    }

    fn check(&self, world: &World) -> Result<(), String> {
        world.wrong.map_or(Ok(()), |wrong| Err(wrong.into()))
    }

    fn at_end(&self, world: &World) -> Result<(), String> {
        for batch in 0..NOTES {
            let outcome = world.outcomes[batch];
            if world.sender == 0 && world.numbers[batch].is_some() && outcome.is_none() {
                return Err("a notification without an outcome".into());
            }
            if self.prompt && world.sender == 0 && world.receiver == 0 && outcome != Some(Delivery::Delivered)
            {
                return Err(format!("not delivered: {outcome:?}"));
            }
        }
        // In the order in which the sender took them in.
        let numbers: Vec<_> = world.taken.iter().map(|batch| world.numbers[*batch]).collect();
        if numbers.is_sorted() { Ok(()) } else { Err("out of order".into()) }
    }
}

fn model(flaw: Flaw) -> Notified {
    Notified { flaw, faults: 1, prompt: false }
}

/// N-01, N-04
#[test]
fn a_notification_is_taken_once_per_life_in_order_after_its_data() {
    let seen = holds(&model(Flaw::None));
    assert!(seen.states > 5_000, "{seen:?}");
}

/// N-04
#[test]
fn one_lost_or_doubled_message_keeps_nothing_from_arriving() {
    let seen = holds(&Notified { flaw: Flaw::None, faults: 1, prompt: true });
    assert!(seen.ends > 1, "{seen:?}");
}

/// N-04
#[test]
fn a_receiver_that_forgets_what_it_took_is_found() {
    assert_eq!(fails(&model(Flaw::Forgets)), "taken twice");
}

/// N-01
#[test]
fn notifying_at_submission_is_found() {
    assert_eq!(fails(&model(Flaw::TooEarly)), "taken before its data was applied");
}

/// N-03
#[test]
fn carrying_a_notification_over_to_a_new_life_is_found() {
    assert_eq!(fails(&model(Flaw::CarriesOver)), "taken before its data was applied");
}

/// N-04
#[test]
fn a_sender_that_gives_up_is_found() {
    let why = fails(&Notified { flaw: Flaw::GivesUp, faults: 1, prompt: true });
    assert!(why.starts_with("not delivered"), "{why}");
}
