//! A target that is stopped in mid-transfer: what the initiator reports, and what can still change afterwards.
//!
//! The reference framing cannot be fenced: what the target's kernel has taken is applied when the target goes on. So
//! the report says that it may still be. What we can prevent, we do: nothing that is called terminal is read from
//! or written to local memory, and what has not left this host never will.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use te::{Access, Deadline, Engine, ErrorKind, Op, RemoteRange};
use te_engine::block_on;
use te_testkit::{pattern, verify};

const LEN: usize = 64 << 20;
const BEFORE: u8 = 7;
const WRITTEN: u8 = 9;

struct Target {
    child: Child,
    segment: String,
}

impl Target {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_te"))
            .args(["serve", "--name", "127.0.0.1", "--metadata", "P2PHANDSHAKE", "--size", "64MiB"])
            .args(["--pattern", &BEFORE.to_string(), "--json"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let hello: serde_json::Value = serde_json::from_str(&line).unwrap();
        let segment = hello["segment"].as_str().unwrap().to_owned();
        Self { child, segment }
    }

    fn freeze(&self) {
        te_testkit::freeze(Pid::from_child(&self.child)).unwrap();
    }

    fn thaw(&self) {
        te_testkit::thaw(Pid::from_child(&self.child)).unwrap();
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // SIGKILL works on a stopped process as well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn initiator() -> Engine {
    // Over shared memory a stopped target stops nothing.
    block_on(te::builder("127.0.0.1").set("transports", "tcp").build()).unwrap()
}

fn whole(engine: &Engine, target: &Target) -> RemoteRange {
    block_on(engine.open(&target.segment)).unwrap().buffer(0).unwrap()
}

fn read_all(engine: &Engine, remote: &RemoteRange) -> Vec<u8> {
    let local = block_on(engine.register(vec![0_u8; LEN], Access::LOCAL)).unwrap();
    engine.batch().read(remote, local.slice(..)).run().unwrap();
    block_on(local.unregister(Deadline::after_secs(5))).unwrap().into_vec().unwrap()
}

/// Contract 9: a WRITE into silence ends, says what may still happen, and sends nothing after its end.
#[test]
fn write_to_a_stopped_target_says_that_it_may_still_apply() {
    let target = Target::start();
    let engine = initiator();
    let remote = whole(&engine, &target);
    let local = block_on(engine.register(pattern(WRITTEN, LEN), Access::LOCAL)).unwrap();

    // The connections are there: without them nothing would be sent.
    engine.batch().read(&remote, local.slice(..)).run().unwrap();
    local.write_at(0, &pattern(WRITTEN, LEN)).unwrap();
    target.freeze();
    let began = Instant::now();
    let batch =
        engine.batch().write(local.slice(..), &remote).deadline(Duration::from_secs(1)).submit().unwrap();
    let error = batch.wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(error.remote_effect(), te::RemoteEffect::MayStillApply);
    assert!(error.to_string().contains("may still be written later"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());

    // Terminal means quiescent: the memory is free at once, and what is written to it now goes nowhere.
    let mut memory = block_on(local.unregister(Deadline::after_secs(1))).unwrap();
    memory.bytes_mut().unwrap().fill(0xEE);

    target.thaw();
    std::thread::sleep(Duration::from_secs(1));
    let again = initiator();
    let found = read_all(&again, &whole(&again, &target));
    // What its kernel had taken it leaves alone: the connections were reset when the request ended.
    verify(BEFORE, 0, &found).unwrap();
    drop(memory);
}

/// Contract 7: a READ from silence ends, and nothing is written to the local memory afterwards.
#[test]
fn read_from_a_stopped_target_leaves_local_memory_alone_after_its_end() {
    let target = Target::start();
    let engine = initiator();
    let remote = whole(&engine, &target);
    let local = block_on(engine.register(vec![0_u8; LEN], Access::LOCAL)).unwrap();
    target.freeze();
    let batch =
        engine.batch().read(&remote, local.slice(..)).deadline(Duration::from_secs(1)).submit().unwrap();
    let error = batch.wait().unwrap_err();
    assert_eq!((error.kind(), error.remote_effect()), (ErrorKind::TimedOut, te::RemoteEffect::None));
    local.write_at(0, &vec![0xEE; LEN]).unwrap();
    target.thaw();
    std::thread::sleep(Duration::from_secs(1));
    let mut found = vec![0; LEN];
    local.read_at(0, &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == 0xEE));
    // The peer is back: the same handle works again.
    engine.batch().read(&remote, local.slice(..)).run().unwrap();
    local.read_at(0, &mut found).unwrap();
    verify(BEFORE, 0, &found).unwrap();
}

/// FO-04: a stopped peer slows nobody else.
#[test]
fn stopped_target_does_not_delay_a_healthy_one() {
    let (stopped, healthy) = (Target::start(), Target::start());
    let engine = initiator();
    let (to_stopped, to_healthy) = (whole(&engine, &stopped), whole(&engine, &healthy));
    let local = block_on(engine.register(vec![0_u8; LEN], Access::LOCAL)).unwrap();
    stopped.freeze();
    let stuck: Vec<_> = (0..8)
        .map(|_| {
            engine
                .batch()
                .read(&to_stopped, local.slice(..))
                .deadline(Duration::from_secs(6))
                .submit()
                .unwrap()
        })
        .collect();
    let began = Instant::now();
    let other = block_on(engine.register(vec![0_u8; 4096], Access::LOCAL)).unwrap();
    for _ in 0..100 {
        let small = to_healthy.slice(0, 4096).unwrap();
        let report = engine.batch().read(&small, other.slice(..)).submit().unwrap().wait().unwrap();
        assert_eq!(report.requests()[0].op, Op::Read);
    }
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    for batch in stuck {
        assert_eq!(block_on(batch.cancel()).unwrap_err().kind(), ErrorKind::Cancelled);
    }
}
