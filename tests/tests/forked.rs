//! MR-16: a process that forks with an engine open. The child can do nothing with the engine and changes nothing for the
//! parent; what it execs inherits no descriptor.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use te::{
    Access, Batch, Buffer, Deadline, Engine, ErrorKind, Expectation, Expected, Location, PeerLife, PeerWatch,
    RemoteRange, Segment,
};
use te_engine::block_on;
use te_sys_verbs::fake::{Fabric, Nic};
use te_testkit::pattern;
use te_transport_rdma::{Rdma, RdmaConfig};

const LEN: usize = 1 << 20;
/// Seconds after which a child that hangs is killed.
const PATIENCE: u32 = 60;

fn soon() -> Deadline {
    Deadline::after_secs(20)
}

/// Forks. The child does something with its copy of a value and has to return from that; one that hangs is killed. The
/// parent gets the value back.
fn in_child<T>(value: T, work: impl FnOnce(T)) -> T {
    // SAFETY: the child does what this test is about, in the thread that is left, and ends with `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: the default of the signal is to kill this child.
        unsafe { libc::alarm(PATIENCE) };
        // The test's own hook would keep the words for a report that the child does not make.
        std::panic::set_hook(Box::new(|panic| {
            let _ = writeln!(std::io::stderr(), "in the child: {panic}");
        }));
        let passed = catch_unwind(AssertUnwindSafe(|| work(value))).is_ok();
        // SAFETY: ends the child without running anything of this program's.
        unsafe { libc::_exit(i32::from(!passed)) };
    }
    let mut status = 0;
    // SAFETY: the status is an integer of ours.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    assert_eq!(status, 0, "the child failed or was killed ({status:#x})");
    value
}

/// What this process has open.
fn open_files() -> Vec<String> {
    let entries = fs::read_dir("/proc/self/fd").unwrap();
    let link = |entry: std::io::Result<fs::DirEntry>| fs::read_link(entry.unwrap().path()).ok();
    let links = entries.filter_map(link).map(|link| link.display().to_string());
    let mut links: Vec<_> = links.filter(|link| !link.starts_with("/proc/")).collect();
    links.sort();
    links
}

fn is_forked<T>(result: te::Result<T>) {
    let error = result.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::ForkedChild, "{error}");
    assert!(error.cause().contains("start another one here"), "{error}");
}

struct Pair {
    fabric: Option<Arc<Fabric>>,
    owner: Engine,
    offered: Buffer,
    engine: Engine,
    local: Buffer,
    segment: Segment,
    remote: RemoteRange,
}

impl Pair {
    /// Two engines of this process, one of which has used the other over this transport.
    fn over(transport: &str) -> Self {
        let fabric = (transport == "rdma").then(|| Arc::new(Fabric::new(["a0", "b0"].map(Nic::new))));
        let build = |nic: &str| {
            let builder = te::builder("127.0.0.1");
            let builder = match &fabric {
                Some(fabric) => {
                    let rdma = Rdma::over(fabric.verbs_with(&[nic]), RdmaConfig::default());
                    builder.transport(Box::new(rdma)).set("transports", "tcp")
                }
                None => builder.set("transports", transport),
            };
            block_on(builder.build()).unwrap()
        };
        let (owner, engine) = (build("b0"), build("a0"));
        let offered = block_on(owner.allocate(LEN, Location::Any, Access::REMOTE)).unwrap();
        offered.write_at(0, &pattern(3, LEN)).unwrap();
        let local = block_on(engine.allocate(LEN, Location::Any, Access::LOCAL)).unwrap();
        let segment = block_on(engine.open(owner.name().as_str())).unwrap();
        let remote = segment.buffer(0).unwrap();
        let pair = Self { fabric, owner, offered, engine, local, segment, remote };
        let report = pair.engine.batch().read(&pair.remote, pair.local.slice(..)).run().unwrap();
        assert!(report.path().starts_with(transport), "{}", report.path());
        pair
    }

    /// Both engines do all they can do, at the first attempt.
    fn still_works(&self) {
        let report = self.engine.batch().read(&self.remote, self.local.slice(..)).run().unwrap();
        assert!(report.requests().iter().all(|request| request.attempts == 1), "{report}");
        let mut found = vec![0; LEN];
        self.local.read_at(0, &mut found).unwrap();
        assert!(found == pattern(3, LEN));
        block_on(self.engine.notify(self.owner.name().as_str(), "name", "message")).unwrap();
        assert_eq!(self.owner.wait_notification(soon()).unwrap().message, "message");
    }

    /// Everything that a program can ask of an engine, then the end of all its handles.
    fn use_in_child(self, waiting: Waiting) {
        let Self { fabric, owner, offered, engine, local, segment, remote } = self;
        let peer = owner.name().as_str().to_owned();
        let Waiting { batches, expectation, mut watch } = waiting;
        is_forked(expectation.wait());
        assert_eq!(block_on(watch.changed()), None);
        for (number, batch) in batches.into_iter().enumerate() {
            match number {
                0 => is_forked(batch.wait()),
                1 => is_forked(block_on(batch)),
                2 => is_forked(block_on(batch.cancel())),
                _ => drop(batch),
            }
        }
        is_forked(engine.watch_peer(&peer));
        is_forked(engine.descriptor());
        is_forked(block_on(engine.open(&peer)));
        is_forked(block_on(engine.notify(&peer, "name", "message")));
        is_forked(block_on(engine.probe(&peer)));
        is_forked(block_on(engine.published(soon())));
        is_forked(block_on(engine.allocate(LEN, Location::Any, Access::LOCAL)));
        is_forked(block_on(engine.next_notification()));
        is_forked(engine.expect("message", 1, soon()));
        assert_eq!(engine.wait_notification(soon()), None);
        assert_eq!(engine.notifications(), []);
        assert!(engine.peers().is_empty() && engine.metrics().transports.is_empty());
        let refused = block_on(engine.register(vec![7_u8; 64], Access::LOCAL)).unwrap_err();
        assert_eq!(refused.memory.len(), 1);
        is_forked::<()>(Err(refused.error));
        is_forked(block_on(segment.sync()));
        is_forked(segment.explain(te::Op::Read, &remote, local.location(), &te::Policy::default()));
        is_forked(engine.batch().read(&remote, local.slice(..)).submit());
        is_forked(engine.batch().write(local.slice(..), &remote).run());
        is_forked(local.read_at(0, &mut [0]));
        is_forked(offered.write_at(0, &[0]));
        let kept = block_on(offered.unregister(soon())).unwrap_err();
        is_forked::<()>(Err(kept.error));
        let report = block_on(owner.shutdown(soon()));
        assert!(report.left.iter().any(|left| left.contains("forked child")), "{report:?}");

        // An engine of the child's own does what the parent's did.
        if fabric.is_none() {
            let own = block_on(te::builder("127.0.0.1").build()).unwrap();
            assert_ne!(own.incarnation(), engine.incarnation());
            let memory = block_on(own.allocate(LEN, Location::Any, Access::LOCAL)).unwrap();
            let remote = block_on(own.open(&peer)).unwrap().buffer(0).unwrap();
            own.batch().read(&remote, memory.slice(..)).run().unwrap();
            let mut found = vec![0; LEN];
            memory.read_at(0, &mut found).unwrap();
            assert!(found == pattern(3, LEN));
            drop(memory);
            assert!(block_on(own.shutdown(soon())).is_clean());
        }
        let calls = fabric.as_ref().map(|fabric| fabric.take_records().len());
        drop((local, kept.buffer, remote, segment, engine, owner));
        let more = fabric.map(|fabric| fabric.take_records());
        assert!(more.is_none_or(|more| more.is_empty()), "after {calls:?} calls");
    }
}

/// What is under way when the process forks.
struct Waiting {
    batches: Vec<Batch>,
    expectation: Expectation,
    watch: PeerWatch,
}

impl Waiting {
    fn of(pair: &Pair) -> Self {
        // Over NICs of this process, requests can be held.
        let batches = match &pair.fabric {
            Some(fabric) => {
                fabric.hold();
                let batch =
                    |_| pair.engine.batch().read(&pair.remote, pair.local.slice(..)).submit().unwrap();
                (0..4).map(batch).collect()
            }
            None => Vec::new(),
        };
        let expectation = pair.owner.expect("expected", 1, soon()).unwrap();
        Self { batches, expectation, watch: pair.engine.watch_peer(pair.owner.name().as_str()).unwrap() }
    }

    /// In the parent, all of it ends well.
    fn end(self, pair: &Pair) {
        if let Some(fabric) = &pair.fabric {
            fabric.release();
        }
        for batch in self.batches {
            batch.wait().unwrap();
        }
        block_on(pair.engine.notify(pair.owner.name().as_str(), "name", "expected")).unwrap();
        assert_eq!(self.expectation.wait().unwrap(), Expected::Success);
        assert!(matches!(self.watch.now().life, PeerLife::Alive));
    }
}

#[test]
fn a_child_cannot_use_the_engine_and_leaves_it_to_the_parent() {
    for transport in ["tcp", "shm", "rdma"] {
        let pair = Pair::over(transport);
        pair.still_works();
        let before = open_files();
        let waiting = Waiting::of(&pair);
        let (pair, waiting) = in_child((pair, waiting), |(pair, waiting)| pair.use_in_child(waiting));
        waiting.end(&pair);
        pair.still_works();
        // What the child's engine had opened is closed soon; what is connected anew stays another.
        let end = Instant::now() + Duration::from_secs(20);
        while open_files() != before {
            assert!(Instant::now() < end, "{transport}: {before:?} became {:?}", open_files());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The random numbers of a thread go on from the same place on both sides of a fork; lives must differ all the same.
#[test]
fn engines_of_two_children_are_two_lives() {
    let parent = block_on(te::builder("127.0.0.1").build()).unwrap();
    let life = || {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut writer = in_child(writer, |mut writer| {
            let own = block_on(te::builder("127.0.0.1").build()).unwrap();
            write!(writer, "{}", own.incarnation()).unwrap();
            assert!(block_on(own.shutdown(soon())).is_clean());
        });
        writer.flush().unwrap();
        drop(writer);
        std::io::read_to_string(&mut reader).unwrap()
    };
    let lives = [parent.incarnation().to_string(), life(), life()];
    assert!(lives[0] != lives[1] && lives[1] != lives[2] && lives[0] != lives[2], "{lives:?}");
}

#[test]
fn a_program_that_a_child_becomes_inherits_no_descriptor() {
    let inherited = || {
        let mut list = Command::new("ls");
        list.arg("/proc/self/fd");
        // SAFETY: nothing is done; its presence makes the child by fork, and exec there.
        unsafe { list.pre_exec(|| Ok(())) };
        let output = list.output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let before = inherited();
    assert!(before.lines().count() >= 3, "{before}");
    let pairs = ["tcp", "shm", "rdma"].map(Pair::over);
    assert_eq!(inherited(), before);
    pairs.iter().for_each(Pair::still_works);
}
