//! Latency as verbs benchmarks state it: two processes write to each other in turn, each sees what has come by looking at its
//! own memory, and half of a round trip counts. Nobody is told of an arrival, so no answer is part of it.
//!
//! The initiator asks for a game by a notification; every block of it ends with a number that counts up.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde_json::{Value, json};
use te::blocking::Engine;
use te::{Access, Buffer, Deadline, Location, RemoteRange, block_on};

use crate::child::{self, JsonChild};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::latency::Latencies;
use crate::output::{self, Align, Table};
use crate::size::index;
use crate::{size, usage};

/// Name of the notification that asks for a game. Its message is a [`Challenge`].
pub(crate) const CHALLENGE: &str = "te.bench.ping-pong";

/// Bytes of the number at the end of a block.
const WORD: u64 = 8;

/// The number that ends a game.
const OVER: u64 = u64::MAX;

/// Round trips before the clock starts: connections, pages and caches are then as they will be.
const WARM: u32 = 20;

/// Longest wait for the other side. The first move waits for connections in both directions.
const SILENCE: Duration = Duration::from_secs(10);

/// How long it looks without a pause. Then others may have the processor between two looks: what brings the bytes may need it.
const SPIN: Duration = Duration::from_micros(20);

/// Games that wait for the one before them.
const QUEUE: usize = 4;

/// With whom, and how long.
#[derive(Args, Debug)]
pub(super) struct PingPongArgs {
    /// The segment of a bench target; without one, a second process on this host
    #[arg(long)]
    peer: Option<String>,
    /// Bytes of one write, at least 8; several with commas between, one after the other
    #[arg(long, default_value = "8", value_delimiter = ',', value_parser = size::size)]
    block: Vec<u64>,
    /// How long to measure one block
    #[arg(long, default_value = "3s", value_parser = size::time)]
    duration: Duration,
}

/// What the initiator asks for.
#[derive(Debug, PartialEq, Eq)]
struct Challenge {
    /// Where the target writes: a segment, and an address in it.
    segment: String,
    address: u64,
    /// Bytes of one write.
    block: u64,
    /// The first number.
    first: u64,
}

impl Challenge {
    fn to_message(&self) -> String {
        let Self { segment, address, block, first } = self;
        json!({ "segment": segment, "address": address, "block": block, "first": first }).to_string()
    }

    fn parse(message: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(message).ok()?;
        let number = |member: &str| value[member].as_u64();
        let challenge = Self {
            segment: value["segment"].as_str()?.to_owned(),
            address: number("address")?,
            block: number("block")?,
            first: number("first")?,
        };
        (challenge.block >= WORD).then_some(challenge)
    }
}

/// One of the two sides.
struct Side<'a> {
    engine: &'a Engine,
    /// What is written to the other side.
    outgoing: Buffer,
    /// Where the other side writes, from its first byte on.
    incoming: &'a Buffer,
    remote: RemoteRange,
}

impl Side<'_> {
    /// Writes a block that ends with the number, and waits until it is known to have arrived.
    fn send(&self, number: u64) -> Result<()> {
        self.outgoing.write_at(self.remote.len() - WORD, &number.to_ne_bytes())?;
        self.engine.batch().reserve(1).write(self.outgoing.slice(..), &self.remote).run()?;
        Ok(())
    }

    /// Looks until a block with the number has come; false once the game is over.
    fn receive(&self, number: u64) -> Result<bool> {
        let began = Instant::now();
        let mut found = [0; 8];
        loop {
            self.incoming.read_at(self.remote.len() - WORD, &mut found)?;
            match u64::from_ne_bytes(found) {
                found if found == number => return Ok(true),
                OVER => return Ok(false),
                _ => {}
            }
            let waited = began.elapsed();
            if waited >= SILENCE {
                let peer = self.remote.segment().name();
                return Err(Failure::Other(format!("ping-pong: {peer} has written nothing for {SILENCE:?}")));
            } else if waited >= SPIN {
                thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

/// Plays with whoever asks, one after the other.
pub(crate) struct Player {
    challenges: SyncSender<Challenge>,
}

impl Player {
    /// What comes is looked for in `buffer`. Ends with what it returns, after a game that has begun.
    pub(crate) fn start(engine: &te::Engine, buffer: &Arc<Buffer>) -> Self {
        let (sender, challenges) = sync_channel(QUEUE);
        let (engine, buffer) = (Engine::new(engine.clone()), buffer.clone());
        thread::spawn(move || play(&engine, &buffer, &challenges));
        Self { challenges: sender }
    }

    /// Takes up what the message asks for, unless too many ask.
    pub(crate) fn take_up(&self, message: &str) {
        match Challenge::parse(message).map(|challenge| self.challenges.try_send(challenge)) {
            Some(Ok(())) => {}
            Some(Err(_)) => eprintln!("te: ping-pong: too many ask for a game"),
            None => eprintln!("te: ping-pong: a challenge that makes no sense: {message}"),
        }
    }
}

fn play(engine: &Engine, buffer: &Buffer, challenges: &Receiver<Challenge>) {
    for challenge in challenges {
        if let Err(failure) = answer(engine, buffer, &challenge) {
            failure.report(false);
        }
    }
}

/// Answers each number with the same one.
fn answer(engine: &Engine, incoming: &Buffer, challenge: &Challenge) -> Result<()> {
    let outgoing = engine.allocate(index(challenge.block), Location::Any, Access::LOCAL)?;
    let segment = engine.open(&challenge.segment)?;
    let remote = block_on(segment.fresh_range(challenge.address, challenge.block))?;
    let side = Side { engine, outgoing, incoming, remote };
    let mut number = challenge.first;
    while side.receive(number)? {
        side.send(number)?;
        number += 1;
    }
    Ok(())
}

/// Round trips with one size of blocks.
struct Row {
    block: u64,
    round_trips: u64,
    /// Half of each.
    latencies: Latencies,
}

pub(super) fn run(context: &Context, args: &PingPongArgs) -> Result<()> {
    if let Some(block) = args.block.iter().find(|block| **block < WORD) {
        return usage(format!("--block {block}: each block ends with a number of {WORD} bytes"));
    }
    let Some(peer) = &args.peer else {
        let largest = args.block.iter().max().copied().unwrap_or(WORD).to_string();
        let arguments = ["serve", "--size", &largest, "--until-stdin-closes", "--ping-pong"];
        let target = JsonChild::start(context, "target", &arguments.map(str::to_owned))?;
        let hello = target.next(Duration::from_secs(30))?;
        let segment = hello["segment"].as_str().unwrap_or_default();
        return initiator(&context.on_loopback(child::loopback())?, segment, args);
    };
    initiator(context, peer, args)
}

fn initiator(context: &Context, peer: &str, args: &PingPongArgs) -> Result<()> {
    let engine = context.client(peer)?;
    let mut rows = Vec::new();
    let bar = context.steps(args.block.len() as u64);
    for block in &args.block {
        bar.set_message(te_engine::size::bytes(*block));
        rows.push(measure(&engine, peer, *block, args.duration)?);
        bar.inc(1);
    }
    engine.shutdown(Deadline::after_secs(1));
    bar.finish_and_clear();
    print(context.json, &rows)
}

fn measure(engine: &Engine, peer: &str, block: u64, duration: Duration) -> Result<Row> {
    let incoming = engine.allocate(index(block), Location::Any, Access::REMOTE)?;
    let outgoing = engine.allocate(index(block), Location::Any, Access::LOCAL)?;
    engine.published(Deadline::after(SILENCE))?;
    let remote = engine.open(peer)?.buffer(0)?.slice(0, block)?;
    // Above every number of an earlier game: a round trip takes more than a nanosecond.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let first = u64::try_from(since.as_nanos()).unwrap_or_default();
    let segment = engine.name().as_str().to_owned();
    let challenge = Challenge { segment, address: incoming.address(), block, first };
    engine.notify(peer, CHALLENGE, &challenge.to_message())?;

    let side = Side { engine, outgoing, incoming: &incoming, remote };
    let mut number = first;
    let mut trip = || {
        side.send(number)?;
        side.receive(number)?;
        number += 1;
        Result::Ok(())
    };
    for _ in 0..WARM {
        trip()?;
    }
    let mut row = Row { block, round_trips: 0, latencies: Latencies::new()? };
    let mut now = Instant::now();
    let end = now + duration;
    while now < end {
        let began = now;
        trip()?;
        now = Instant::now();
        row.latencies.record(now.duration_since(began) / 2);
        row.round_trips += 1;
    }
    side.send(OVER)?;
    Ok(row)
}

fn print(as_json: bool, rows: &[Row]) -> Result<()> {
    if as_json {
        let rows: Vec<Value> = rows
            .iter()
            .map(|Row { block, round_trips, latencies }| {
                json!({
                    "op": "ping-pong", "block": block, "round_trips": round_trips,
                    "half_p50_us": latencies.fine(0.5), "half_p99_us": latencies.fine(0.99),
                })
            })
            .collect();
        return output::json(&Value::Array(rows));
    }
    let columns = ["BLOCK", "ROUND TRIPS", "p50", "p99"].map(|name| (name, Align::Right));
    let mut table = Table::new(&columns);
    for Row { block, round_trips, latencies } in rows {
        let half = |quantile| format!("{:.2} us", latencies.fine(quantile));
        table.row([te_engine::size::bytes(*block), round_trips.to_string(), half(0.5), half(0.99)]);
    }
    table.print()?;
    output::line("\nhalf of a round trip, each side looking at its memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_comes_over_as_it_is() {
        let challenge =
            Challenge { segment: "a b\"c".to_owned(), address: u64::MAX, block: 8, first: 1 << 60 };
        assert_eq!(Challenge::parse(&challenge.to_message()), Some(challenge));
    }

    #[test]
    fn a_challenge_without_room_for_the_number_makes_no_sense() {
        let short = r#"{"segment":"a","address":1,"block":7,"first":1}"#;
        assert_eq!(Challenge::parse(short), None);
        assert_eq!(Challenge::parse("hello"), None);
        assert_eq!(Challenge::parse(r#"{"segment":"a","address":1,"block":8}"#), None);
    }
}
