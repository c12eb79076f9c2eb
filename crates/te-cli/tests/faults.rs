//! The fault matrix: what a request ends with when its peer fails, and how long it takes until transfers work again.
//!
//! Every cell runs against a process of its own. The times go into a table, and with `TE_RELIABILITY_PAGE` set into that
//! page (`cargo xtask reliability`); the test asserts what has to be true at any speed: each request ends by its deadline,
//! with the right kind of error, and afterwards the peer's bytes are right.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::fmt::Write as _;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use te::{Access, Buffer, Deadline, Engine, Error, ErrorKind, Op, RemoteEffect, RemoteRange};
use te_engine::block_on;
use te_testkit::{pattern, verify};

use common::Served;

const LEN: u64 = 64 << 20;
const DEADLINE: Duration = Duration::from_secs(2);
/// Contents of the peer's buffer, of this process' buffer, and of the peer's next life.
const THEIRS: u8 = 7;
const OURS: u8 = 9;
const NEXT: u8 = 11;

/// A way of the bytes that a network is no part of.
const SHM: &str = "shm";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The process is gone before the request.
    Refused,
    /// Killed while the bytes move.
    Killed,
    /// Stopped before the request, for longer than its deadline.
    Silent,
    /// Stopped while the bytes move, for less than the deadline.
    Frozen,
    /// No packet passes between the hosts, for longer than the deadline.
    Partitioned,
}

impl Fault {
    const ALL: [Self; 5] = [Self::Refused, Self::Killed, Self::Silent, Self::Frozen, Self::Partitioned];

    fn describe(self) -> &'static str {
        match self {
            Self::Refused => "gone before the request",
            Self::Killed => "killed in mid-transfer",
            Self::Silent => "stopped past the deadline",
            Self::Frozen => "stopped for half a second",
            Self::Partitioned => "partition past the deadline",
        }
    }

    fn is_permitted(self, over: &str, op: Op, ended: &Result<te::Report, Error>) -> bool {
        // Whoever copies memory of this host needs no answer of the peer.
        let unanswered = over == SHM && self == Self::Silent;
        let Err(error) = ended else { return unanswered || matches!(self, Self::Frozen | Self::Killed) };
        let lost = matches!(
            error.kind(),
            ErrorKind::DataPathUnreachable
                | ErrorKind::ConnectionLost
                | ErrorKind::StaleIncarnation
                | ErrorKind::SegmentGone
        );
        let kind = match self {
            Self::Refused | Self::Killed => lost,
            Self::Silent | Self::Partitioned => !unanswered && error.kind() == ErrorKind::TimedOut,
            Self::Frozen => false,
        };
        kind && (op == Op::Write || error.remote_effect() == RemoteEffect::None)
    }

    fn ends_the_peer(self) -> bool {
        matches!(self, Self::Refused | Self::Killed)
    }
}

/// A network of one peer, in a namespace of its own.
struct Net {
    name: String,
    own: String,
    peer: String,
}

impl Net {
    fn new() -> Self {
        let id = std::process::id();
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("te{id}n{count}");
        let third = (id + count) % 250;
        let net = Self { own: format!("10.211.{third}.1"), peer: format!("10.211.{third}.2"), name };
        let (host, guest) = (net.link("h"), net.link("g"));
        net.ip(&["netns", "add", &net.name]);
        net.ip(&["link", "add", &host, "type", "veth", "peer", "name", &guest, "netns", &net.name]);
        net.ip(&["addr", "add", &format!("{}/24", net.own), "dev", &host]);
        net.ip(&["link", "set", &host, "up"]);
        net.ip(&["-n", &net.name, "addr", "add", &format!("{}/24", net.peer), "dev", &guest]);
        net.ip(&["-n", &net.name, "link", "set", &guest, "up"]);
        net.ip(&["-n", &net.name, "link", "set", "lo", "up"]);
        net
    }

    /// Whether this process may make network namespaces.
    fn permitted() -> Result<(), String> {
        let trial = format!("te{}trial", std::process::id());
        let output = Command::new("ip").args(["netns", "add", &trial]).output().map_err(|e| e.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        // The next one has another name, so this one may stay if it has to.
        let _ = Command::new("ip").args(["netns", "del", &trial]).status();
        Ok(())
    }

    fn link(&self, side: &str) -> String {
        format!("{side}{}", self.name)
    }

    fn ip(&self, arguments: &[&str]) {
        let output = Command::new("ip").args(arguments).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ip {}: {error}", arguments.join(" "));
    }

    /// Whether packets pass.
    fn connect(&self, passes: bool) {
        let state = if passes { "up" } else { "down" };
        self.ip(&["-n", &self.name, "link", "set", &self.link("g"), state]);
    }

    fn serve(&self) -> Served {
        let inner = common::te();
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(inner.get_program());
        for (name, _) in inner.get_envs().filter(|(_, value)| value.is_none()) {
            command.env_remove(name);
        }
        Served::spawn(command.args(["serve", "--name", &self.peer, "--json"]).args(options(THEIRS)))
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // The namespace goes when its last process has gone, the link at once.
        let _ = Command::new("ip").args(["link", "del", &self.link("h")]).status();
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

fn options(seed: u8) -> [String; 6] {
    ["--metadata", "P2PHANDSHAKE", "--size", &LEN.to_string(), "--pattern", &seed.to_string()]
        .map(str::to_owned)
}

fn serve(name: &str, seed: u8) -> Served {
    let options = options(seed);
    Served::start_as(name, &options.each_ref().map(String::as_str))
}

/// One cell of the matrix.
struct Cell {
    over: &'static str,
    fault: Fault,
    op: Op,
    requests: u64,
    outcome: String,
    ended: Duration,
    recovered: Duration,
}

struct Rig {
    engine: Engine,
    local: Buffer,
}

impl Rig {
    fn new(address: &str, over: &str) -> Self {
        let engine = block_on(te::builder(address).set("transports", over).build()).unwrap();
        let local = block_on(engine.register(pattern(OURS, LEN as usize), Access::LOCAL)).unwrap();
        Self { engine, local }
    }

    fn open(&self, peer: &Served) -> RemoteRange {
        block_on(self.engine.open(&peer.segment)).unwrap().buffer(0).unwrap()
    }

    /// All of the buffer, in one request or in sixteen.
    fn submit(&self, op: Op, requests: u64, remote: &RemoteRange) -> Result<te::Report, Error> {
        let mut batch = self.engine.batch().deadline(DEADLINE);
        let size = LEN / requests;
        for at in (0..requests).map(|index| index * size) {
            let (local, remote) = (self.local.slice(at..at + size), remote.slice(at, size)?);
            batch = match op {
                Op::Read => batch.read(&remote, local),
                Op::Write => batch.write(local, &remote),
            };
        }
        batch.submit()?.wait()
    }

    fn read_back(&self, remote: &RemoteRange) -> Result<Vec<u8>, Error> {
        let into = block_on(self.engine.register(vec![0_u8; LEN as usize], Access::LOCAL))?;
        let read = self.engine.batch().deadline(DEADLINE).read(remote, into.slice(..)).run();
        let found = block_on(into.unregister(Deadline::after_secs(5)))?.into_vec().unwrap();
        read.map(|_| found)
    }
}

fn run(over: &'static str, fault: Fault, op: Op, requests: u64) -> Cell {
    let net = (fault == Fault::Partitioned).then(Net::new);
    let mut peer = net.as_ref().map_or_else(|| serve("127.0.0.1", THEIRS), Net::serve);
    let rig = Rig::new(net.as_ref().map_or("127.0.0.1", |net| net.own.as_str()), over);
    let remote = rig.open(&peer);
    // The connections are there.
    rig.engine.batch().read(&remote.slice(0, 4096).unwrap(), rig.local.slice(..4096)).run().unwrap();
    rig.local.write_at(0, &pattern(OURS, 4096)).unwrap();

    let name = peer.segment.clone();
    let mut gone = None;
    match fault {
        Fault::Refused => peer.kill_now(),
        Fault::Silent => peer.freeze(),
        Fault::Partitioned => net.as_ref().unwrap().connect(false),
        Fault::Killed | Fault::Frozen => {}
    }
    let began = Instant::now();
    let ended = std::thread::scope(|scope| {
        let transfer = scope.spawn(|| rig.submit(op, requests, &remote));
        std::thread::sleep(Duration::from_millis(4));
        match fault {
            Fault::Killed => peer.kill_now(),
            Fault::Frozen => {
                peer.freeze();
                std::thread::sleep(Duration::from_millis(500));
                peer.thaw();
            }
            _ => {}
        }
        transfer.join().unwrap()
    });
    let took = began.elapsed();
    assert!(fault.is_permitted(over, op, &ended), "{over} {fault:?} {op} x {requests}: {ended:?}");
    assert!(took < DEADLINE * 3, "{over} {fault:?} {op} x {requests} ended after {took:?}");

    // The fault ends; from then until the first transfer that is verified.
    let next = fault.ends_the_peer().then(|| serve(&name, NEXT));
    match fault {
        Fault::Silent => peer.thaw(),
        Fault::Partitioned => net.as_ref().unwrap().connect(true),
        _ => {}
    }
    if let Some(next) = next {
        gone = Some(std::mem::replace(&mut peer, next));
    }
    let healed = Instant::now();
    let found = loop {
        let fresh = block_on(rig.engine.open(&name)).and_then(|segment| segment.buffer(0));
        match fresh.and_then(|remote| rig.read_back(&remote)) {
            Ok(found) => break found,
            Err(error) => assert!(healed.elapsed() < Duration::from_secs(20), "no recovery: {error:#}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let recovered = healed.elapsed();
    if fault.ends_the_peer() {
        verify(NEXT, 0, &found).unwrap();
    } else if op == Op::Read {
        verify(THEIRS, 0, &found).unwrap();
    } else {
        // Whatever came of the write, every byte is the old one or the new one.
        let (old, new) = (pattern(THEIRS, LEN as usize), pattern(OURS, LEN as usize));
        let wrong = (0..found.len()).find(|at| found[*at] != old[*at] && found[*at] != new[*at]);
        assert_eq!(wrong, None);
        assert!(ended.is_err() || found == new, "a write that completed is applied");
    }
    block_on(rig.engine.shutdown(Deadline::after_secs(5)));
    drop(gone);
    let outcome = match ended {
        Ok(_) => "completed".to_owned(),
        Err(error) if error.remote_effect() == RemoteEffect::None => error.kind().to_string(),
        Err(error) => format!("{}; {}", error.kind(), error.remote_effect()),
    };
    Cell { over, fault, op, requests, outcome, ended: took, recovered }
}

/// FO-01, FO-02, FO-03, LIFE-02
#[test]
fn every_fault_ends_in_time_and_transfers_work_again() {
    let mut table = String::from("| over | peer | request | outcome | ended after | works again after |\n");
    table.push_str("| --- | --- | --- | --- | --- | --- |\n");
    let networks = Net::permitted();
    for (over, fault) in ["tcp", SHM].iter().flat_map(|over| Fault::ALL.map(|fault| (*over, fault))) {
        match (over, fault, &networks) {
            // Between processes of one host there is nothing to part.
            (SHM, Fault::Partitioned, _) => continue,
            (_, Fault::Partitioned, Err(reason)) => {
                println!("SKIPPED: {} ({reason})", fault.describe());
                continue;
            }
            _ => {}
        }
        for (op, requests) in [(Op::Read, 1), (Op::Write, 1), (Op::Write, 16)] {
            let cell = run(over, fault, op, requests);
            let (ended, recovered) = (cell.ended.as_millis(), cell.recovered.as_millis());
            let request = match cell.requests {
                1 => cell.op.to_string(),
                many => format!("batch of {many} {}s", cell.op),
            };
            let (over, what, outcome) = (cell.over, cell.fault.describe(), cell.outcome);
            writeln!(table, "| {over} | {what} | {request} | {outcome} | {ended} ms | {recovered} ms |")
                .unwrap();
        }
    }
    println!("{table}");
    if let Ok(page) = std::env::var("TE_RELIABILITY_PAGE") {
        std::fs::write(page, table).unwrap();
    }
}
