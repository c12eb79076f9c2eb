//! Owner and holders of a buffer that is withdrawn: its memory is not given back while a holder may use it.

use std::collections::BTreeSet;
use std::time::Instant;

use te_segment::{Generation, Incarnation};
use te_testkit::{Model, Move, Wire};

use super::super::holders::{
    InterestTable, StillHeld, Withdrawal, WithdrawalAction, WithdrawalEvent, WithdrawalSettings,
};
use super::super::holding::Holding;
use super::attempts::time;

const BUFFER: Generation = Generation::new(1);
/// The descriptor that has the buffer; the next one does not.
const WITH: u64 = 1;
const WITHOUT: u64 = 2;
/// Runs of a withdrawal, the last with all the time it needs.
const RUNS: u32 = 2;

/// What is done wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// Whoever does not acknowledge in time is taken for gone.
    NoFence,
    /// A holder without connection is forgotten.
    ForgetsDisconnected,
    /// A fence leaves the control connection open.
    KeepsConnection,
    /// A holder acknowledges while it uses the buffer.
    AcknowledgesEarly,
    /// A holder uses its snapshot although the owner serves a newer one.
    TrustsSnapshot,
}

struct Withdrawn {
    flaw: Flaw,
    holders: usize,
    /// Each holder connects once, one transport has keys, nothing of ours uses the buffer, and time is no matter.
    simple: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Word {
    Interest,
    InterestAck(u64),
    Invalidate,
    InvalidateAck,
}

/// Which holder, on which of its connections, what.
type Message = (usize, u8, Word);

#[derive(Clone, Debug, Hash)]
struct Holder {
    life: u8,
    holding: Holding,
    connected: bool,
    connection: u8,
    /// The owner has closed all connections before this one.
    closed: u8,
    /// The owner lets this life reach its memory.
    admitted: bool,
    /// A use that reaches the memory.
    touches: bool,
}

#[derive(Clone, Debug, Hash)]
struct World {
    now: Instant,
    wire: Wire<Message>,
    holders: Vec<Holder>,
    table: InterestTable,
    withdrawal: Option<Withdrawal>,
    local: bool,
    fences: BTreeSet<Incarnation>,
    revokes: BTreeSet<usize>,
    revoked: BTreeSet<usize>,
    releasing: bool,
    released: bool,
    runs: u32,
    last: Option<Result<(), StillHeld>>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Wire(Move),
    Connect(usize),
    Disconnect(usize),
    /// The holder sees that the owner has closed its connection.
    Notice(usize),
    Restart(usize),
    Begin(usize),
    End(usize),
    Withdraw,
    Again,
    Wait,
    EndLocal,
    Fence(Incarnation),
    Revoke(usize),
    RevokeFails(usize),
    Release,
}

fn name(holder: usize, life: u8) -> Incarnation {
    Incarnation::from_bits(holder as u128 * 16 + u128::from(life))
}

impl Withdrawn {
    fn transports(&self) -> usize {
        if self.simple { 1 } else { 2 }
    }

    fn runs(&self) -> u32 {
        if self.simple { 1 } else { RUNS }
    }

    fn tell(&self, world: &mut World, event: WithdrawalEvent) {
        let Some(withdrawal) = &mut world.withdrawal else { return };
        for action in withdrawal.on(world.now, event) {
            match action {
                WithdrawalAction::Publish => {}
                WithdrawalAction::Invalidate { holder } => {
                    let place = (holder.bits() / 16) as usize;
                    let to = &world.holders[place];
                    if to.connected && name(place, to.life) == holder {
                        world.wire.send((place, to.connection, Word::Invalidate));
                    }
                }
                WithdrawalAction::Cut => self.end_local(world),
                WithdrawalAction::Fence { holder } => {
                    world.fences.insert(holder);
                }
                WithdrawalAction::Revoke { transport } => {
                    world.revokes.insert(transport);
                }
                WithdrawalAction::Release => world.releasing = true,
                WithdrawalAction::Finish(result) => world.last = Some(result),
            }
        }
    }

    fn end_local(&self, world: &mut World) {
        if std::mem::take(&mut world.local) {
            self.tell(world, WithdrawalEvent::Held { local: 0, remote: 0 });
        }
    }

    fn drop_connection(&self, world: &mut World, place: usize) {
        let holder = &mut world.holders[place];
        if !std::mem::take(&mut holder.connected) {
            return;
        }
        holder.connection += 1;
        holder.holding.disconnected();
        let life = name(place, holder.life);
        world.wire.forget(|(to, ..)| *to == place);
        world.table.disconnected(life);
        if self.flaw == Flaw::ForgetsDisconnected {
            world.table.remove(life);
            self.tell(world, WithdrawalEvent::Fenced { holder: life });
        }
        self.tell(world, WithdrawalEvent::Disconnected { holder: life });
    }

    fn deliver(&self, world: &mut World, (place, connection, word): Message) {
        let holder = &mut world.holders[place];
        if !holder.connected || holder.connection != connection {
            return;
        }
        let life = name(place, holder.life);
        let to_owner = matches!(word, Word::Interest | Word::InvalidateAck);
        if to_owner && connection < holder.closed && self.flaw != Flaw::KeepsConnection {
            return;
        }
        match word {
            Word::Interest => {
                let Ok(version) = world.table.join(life) else { return };
                holder.admitted = true;
                self.tell(world, WithdrawalEvent::Connected { holder: life });
                world.wire.send((place, connection, Word::InterestAck(version)));
            }
            Word::InterestAck(version) => {
                let trusted = self.flaw == Flaw::TrustsSnapshot;
                holder.holding.joined(if trusted { WITH } else { version });
            }
            Word::Invalidate => {
                let mut quiet = holder.holding.invalidated(1, WITHOUT, vec![BUFFER]);
                if self.flaw == Flaw::AcknowledgesEarly {
                    quiet = vec![1];
                }
                self.acknowledge(world, place, &quiet);
            }
            Word::InvalidateAck => self.tell(world, WithdrawalEvent::Acknowledged { holder: life }),
        }
    }

    fn acknowledge(&self, world: &mut World, place: usize, quiet: &[u64]) {
        let connection = world.holders[place].connection;
        for _ in quiet {
            world.wire.send((place, connection, Word::InvalidateAck));
        }
    }
}

impl Model for Withdrawn {
    type State = World;
    type Step = Step;

    fn starts(&self) -> Vec<World> {
        let holder = Holder {
            life: 0,
            holding: Holding::new(4),
            connected: false,
            connection: 0,
            closed: 0,
            admitted: false,
            touches: false,
        };
        vec![World {
            now: time(0),
            wire: Wire::new(6, 1),
            holders: vec![holder; self.holders],
            table: InterestTable::new(8, WITH),
            withdrawal: None,
            local: !self.simple,
            fences: BTreeSet::new(),
            revokes: BTreeSet::new(),
            revoked: BTreeSet::new(),
            releasing: false,
            released: false,
            runs: 0,
            last: None,
        }]
    }

    fn steps(&self, world: &World) -> Vec<Step> {
        let mut steps: Vec<_> = world.wire.moves().into_iter().map(Step::Wire).collect();
        let may_fail = world.wire.may_fail();
        for (place, holder) in world.holders.iter().enumerate() {
            if !holder.connected && holder.connection < if self.simple { 1 } else { 2 } {
                steps.push(Step::Connect(place));
            }
            if holder.connected && holder.connection < holder.closed {
                steps.push(Step::Notice(place));
            }
            if may_fail && holder.connected {
                steps.extend([Step::Disconnect(place), Step::Restart(place)]);
            }
            let using = holder.holding.uses(BUFFER);
            if !using && holder.holding.clone().begin(BUFFER, WITH).is_ok() {
                steps.push(Step::Begin(place));
            }
            if using {
                steps.push(Step::End(place));
            }
        }
        steps.extend(world.fences.iter().map(|holder| Step::Fence(*holder)));
        steps.extend(world.revokes.iter().map(|transport| Step::Revoke(*transport)));
        if may_fail {
            steps.extend(world.revokes.iter().map(|transport| Step::RevokeFails(*transport)));
        }
        if world.releasing {
            steps.push(Step::Release);
        }
        match &world.withdrawal {
            None => steps.push(Step::Withdraw),
            Some(withdrawal) => {
                // The last run has all the time it needs.
                let wake = withdrawal.wake_at().filter(|at| world.runs < self.runs() || *at < time(1_000));
                steps.extend(wake.map(|_| Step::Wait));
                if matches!(world.last, Some(Err(_))) {
                    steps.push(Step::Again);
                }
                if world.local {
                    steps.push(Step::EndLocal);
                }
            }
        }
        steps
    }

    fn apply(&self, world: &mut World, step: &Step) {
        match *step {
            Step::Wire(step) => {
                if let Some(message) = world.wire.make(step) {
                    self.deliver(world, message);
                }
            }
            Step::Connect(place) => {
                let holder = &mut world.holders[place];
                holder.connected = true;
                let connection = holder.connection;
                world.wire.send((place, connection, Word::Interest));
            }
            Step::Disconnect(place) => {
                world.wire.spend();
                self.drop_connection(world, place);
            }
            Step::Notice(place) => self.drop_connection(world, place),
            Step::Restart(place) => {
                world.wire.spend();
                self.drop_connection(world, place);
                let holder = &mut world.holders[place];
                holder.life += 1;
                holder.holding = Holding::new(4);
                (holder.admitted, holder.touches) = (false, false);
            }
            Step::Begin(place) => {
                let holder = &mut world.holders[place];
                holder.touches = holder.holding.begin(BUFFER, WITH).is_ok() && holder.admitted;
            }
            Step::End(place) => {
                let holder = &mut world.holders[place];
                holder.touches = false;
                let quiet = holder.holding.end(BUFFER);
                self.acknowledge(world, place, &quiet);
            }
            Step::Withdraw => {
                world.withdrawal =
                    Some(world.table.withdraw(WITHOUT, self.transports(), WithdrawalSettings::default()));
                self.tell(world, WithdrawalEvent::Held { local: u32::from(world.local), remote: 0 });
                self.apply(world, &Step::Again);
            }
            Step::Again => {
                (world.runs, world.last) = (world.runs + 1, None);
                // Runs have fixed times, so that the same state is reached on many ways.
                world.now = world.now.max(time(100 * world.runs));
                let deadline =
                    if world.runs < self.runs() { time(100 * world.runs + 90) } else { time(1_000) };
                self.tell(world, WithdrawalEvent::Run { deadline });
            }
            Step::Wait => {
                let wake = world.withdrawal.as_ref().and_then(Withdrawal::wake_at);
                world.now = wake.map_or(world.now, |at| at.max(world.now));
                self.tell(world, WithdrawalEvent::Tick);
            }
            Step::EndLocal => self.end_local(world),
            Step::Fence(life) => {
                world.fences.remove(&life);
                world.table.remove(life);
                if self.flaw != Flaw::NoFence {
                    let place = (life.bits() / 16) as usize;
                    let holder = &mut world.holders[place];
                    if name(place, holder.life) == life {
                        (holder.admitted, holder.touches) = (false, false);
                        holder.closed = holder.connection + u8::from(holder.connected);
                    }
                }
                self.tell(world, WithdrawalEvent::Fenced { holder: life });
            }
            Step::Revoke(transport) => {
                world.revokes.remove(&transport);
                world.revoked.insert(transport);
                self.tell(world, WithdrawalEvent::Revoked { transport });
            }
            Step::RevokeFails(transport) => {
                world.wire.spend();
                world.revokes.remove(&transport);
                self.tell(world, WithdrawalEvent::RevokeFailed { transport });
            }
            Step::Release => {
                (world.releasing, world.released) = (false, true);
                self.tell(world, WithdrawalEvent::Released);
            }
        }
    }

    fn check(&self, world: &World) -> Result<(), String> {
        if !world.released {
            return Ok(());
        }
        for holder in &world.holders {
            if holder.touches {
                return Err("the memory is free while a holder uses it".into());
            }
            if holder.admitted && holder.holding.clone().begin(BUFFER, WITH).is_ok() {
                return Err("the memory is free and a holder can begin to use it".into());
            }
        }
        if world.local || world.revoked.len() != self.transports() {
            return Err("the memory is free and not drained or revoked".into());
        }
        Ok(())
    }

    fn at_end(&self, world: &World) -> Result<(), String> {
        if world.released && world.last == Some(Ok(())) { Ok(()) } else { Err("never released".into()) }
    }
}

mod facts;
