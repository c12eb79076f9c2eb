//! What several rails do for one request, and what is left of it when some of them fail.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use te_memory::Region;
use te_testkit::node::{Move, Node, bytes, outcomes};
use te_testkit::{Ledger, Side, Switchboard, pattern};
use te_transport::{CancelScope, FailureKind, Op, Outcome, Path, SubmitMode};
use te_transport_rdma::RdmaTransport;

use crate::within::Rails;

const LARGE: usize = 64 << 20;
const MIDDLE: usize = 16 << 20;

/// How often a rail goes down and comes up.
const CYCLES: u8 = 3;

struct Pair {
    near: Node<RdmaTransport>,
    path: Arc<dyn Path>,
    here: Region,
    there: Region,
    _far: Node<RdmaTransport>,
}

impl Pair {
    fn new(rails: &Rails, len: usize) -> Self {
        let switch = Switchboard::default();
        let near = Node::on(&switch, 1, |context| rails.start(Side::Near, context));
        let far = Node::on(&switch, 2, |context| rails.start(Side::Far, context));
        let (here, there) = (near.local(len), far.offered(len));
        let path = near.path_to(&far);
        Self { near, path, here, there, _far: far }
    }

    /// Begins to move everything, other bytes than last time.
    fn begin(&self, op: Op, seed: u8) -> Arc<Ledger> {
        let (from, to) = match op {
            Op::Read => (&self.there, &self.here),
            Op::Write => (&self.here, &self.there),
        };
        from.write_at(0, &pattern(seed, usize::try_from(from.range().len()).unwrap())).unwrap();
        to.fill(seed ^ 0xff).unwrap();
        Move::new(op, &self.here, &self.there).begin(&*self.path, SubmitMode::Background, &CancelScope::new())
    }

    /// Waits for the end of it, and compares.
    fn end(&self, ledger: &Ledger) -> Result<(), String> {
        match outcomes(ledger).remove(0) {
            Outcome::Done(_) if bytes(&self.here) == bytes(&self.there) => Ok(()),
            Outcome::Done(_) => Err("the bytes differ".to_owned()),
            outcome => Err(format!("{outcome:?}")),
        }
    }
}

/// Bytes that an interface has sent and received.
fn carried(interface: usize) -> u64 {
    let count = |which: &str| -> u64 {
        let path = format!("/sys/class/net/eth{interface}/statistics/{which}_bytes");
        fs::read_to_string(path).unwrap().trim().parse().unwrap()
    };
    count("tx") + count("rx")
}

fn link(interface: usize, state: &str) {
    let name = format!("eth{interface}");
    assert!(Command::new("ip").args(["link", "set", &name, state]).status().unwrap().success());
}

/// Prints how a check went.
fn say(well: &mut bool, name: &str, outcome: Result<String, String>) {
    *well &= outcome.is_ok();
    match outcome {
        Ok(what) => println!("ok rails {name}: {what}"),
        Err(why) => println!("not ok rails {name}: {why}"),
    }
}

/// A rail goes down and comes up so many times, under a WRITE and under a READ. Whether all is well.
pub(crate) fn endure(rails: &Rails, count: u8) -> bool {
    let mut well = true;
    cycles(rails, count, &mut |name, outcome| say(&mut well, name, outcome));
    well
}

fn cycles(rails: &Rails, count: u8, say: &mut dyn FnMut(&str, Result<String, String>)) {
    let after = |time: &Duration| format!("after {} ms", time.as_millis());
    let (mut longest, pair) = ([Duration::ZERO; 2], Pair::new(rails, MIDDLE));
    for cycle in 0..count {
        for op in [Op::Write, Op::Read] {
            let outcomes = [down(&pair, op, cycle), used_again(&pair, op)];
            for (longest, outcome) in longest.iter_mut().zip(&outcomes) {
                *longest = outcome.as_ref().map_or(*longest, |time| *time.max(longest));
            }
            let [down, up] = outcomes.map(|outcome| outcome.map(|time| after(&time)));
            say(&format!("{op} goes on when one goes down, {cycle}"), down);
            say(&format!("one that is up is used again, {op} {cycle}"), up);
        }
    }
    println!(
        "of {count} cycles at most: goes on {}, is used again {}",
        after(&longest[0]),
        after(&longest[1])
    );
}

/// Runs all checks. Whether all is well.
pub(crate) fn run(rails: &Rails) -> bool {
    let mut well = true;
    let mut say = |name: &str, outcome| say(&mut well, name, outcome);
    let pair = Pair::new(rails, LARGE);
    say("a write uses both", both(&pair, Op::Write));
    say("a read uses both", both(&pair, Op::Read));
    drop(pair);
    cycles(rails, CYCLES, &mut say);
    say("ports whose MTUs differ", unequal(rails));
    let pair = Pair::new(rails, LARGE);
    say("no rail at all is an error in time", none(&pair));
    let counters = pair.near.transport.counters();
    println!("counters: {counters:?}");
    well
}

/// Large requests are carried by both rails in about equal shares.
fn both(pair: &Pair, op: Op) -> Result<String, String> {
    let before = [carried(0), carried(1)];
    let began = Instant::now();
    pair.end(&pair.begin(op, 1))?;
    let took = began.elapsed();
    let [first, second] = [0, 1].map(|rail| carried(rail) - before[rail]);
    let share = first.min(second) as f64 / first.max(second) as f64;
    let what = format!("{first} and {second} bytes in {} ms", took.as_millis());
    if share >= 0.8 { Ok(what) } else { Err(what) }
}

/// The first rail goes down in the middle of a request.
fn down(pair: &Pair, op: Op, cycle: u8) -> Result<Duration, String> {
    let ledger = pair.begin(op, 7 + cycle % 64);
    let before = carried(0);
    let until = Instant::now() + Duration::from_secs(20);
    while carried(0) < before + (1 << 20) && Instant::now() < until && ledger.resolved() == 0 {
        thread::sleep(Duration::from_millis(2));
    }
    let midway = ledger.resolved() == 0;
    link(0, "down");
    let began = Instant::now();
    let ended = pair.end(&ledger);
    link(0, "up");
    ended?;
    if midway { Ok(began.elapsed()) } else { Err("it was over before".to_owned()) }
}

/// A rail that is up again takes part again.
fn used_again(pair: &Pair, op: Op) -> Result<Duration, String> {
    let began = Instant::now();
    let mut seed = 100;
    loop {
        let before = carried(0);
        pair.end(&pair.begin(op, seed))?;
        seed += 1;
        if carried(0) - before > u64::try_from(MIDDLE / 4).unwrap() {
            return Ok(began.elapsed());
        }
        if began.elapsed() > Duration::from_secs(30) {
            return Err("not within 30 s".to_owned());
        }
    }
}

/// RDMA-03: the port here takes smaller packets than the one there.
fn unequal(rails: &Rails) -> Result<String, String> {
    let mtu = |bytes: &str| {
        assert!(Command::new("ip").args(["link", "set", "eth1", "mtu", bytes]).status().unwrap().success());
    };
    mtu("1500");
    let rails = Rails { rails: rails.rails[1..].to_vec(), ..rails.clone() };
    let pair = Pair::new(&rails, MIDDLE);
    let outcome = pair.end(&pair.begin(Op::Write, 1)).and_then(|()| pair.end(&pair.begin(Op::Read, 2)));
    mtu("9000");
    outcome.map(|()| "both ways".to_owned())
}

fn none(pair: &Pair) -> Result<String, String> {
    let ledger = pair.begin(Op::Write, 50);
    link(0, "down");
    link(1, "down");
    let began = Instant::now();
    let outcome = outcomes(&ledger).remove(0);
    [0, 1].iter().for_each(|rail| link(*rail, "up"));
    match outcome {
        Outcome::Failed(failure)
            if [FailureKind::Unreachable, FailureKind::ConnectionLost].contains(&failure.kind()) =>
        {
            Ok(format!("after {} ms: {failure}", began.elapsed().as_millis()))
        }
        other => Err(format!("{other:?}")),
    }
}
