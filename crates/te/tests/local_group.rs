//! Engines of one process that share memory because they were told to, and others that were not.
#![cfg(all(feature = "tcp", feature = "p2p"))]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};

use support::{named, soon, stop, until};
use te::{
    Access, Buffer, Deadline, EngineBuilder, ErrorKind, LocalGroup, Location, Memory, Op, Policy,
    RemoteRange, TransportKind, Verdict, blocking,
};
use te_metadata::MemoryStore;

const LEN: usize = 8 << 20;

fn build(builder: EngineBuilder) -> blocking::Engine {
    blocking::build(builder).unwrap()
}

fn plain() -> EngineBuilder {
    te::builder("127.0.0.1")
}

fn of(group: &LocalGroup) -> EngineBuilder {
    plain().local_group(group)
}

fn only_local(group: &LocalGroup) -> EngineBuilder {
    of(group).set("transports", "local")
}

/// What `owner` offers, as `engine` finds it.
fn find(engine: &blocking::Engine, owner: &blocking::Engine, offered: &Buffer) -> RemoteRange {
    let segment = engine.open(owner.name().as_str()).unwrap();
    engine.sync(&segment).unwrap();
    segment.range(offered.address(), offered.len()).unwrap()
}

/// The path that a write of everything and a read of 64 KiB took.
fn path(engine: &blocking::Engine, remote: &RemoteRange) -> String {
    let local = engine.register(vec![7; LEN], Access::LOCAL).unwrap();
    let small = remote.slice(0, 64 << 10).unwrap();
    let write = engine.batch().write(local.slice(..), remote).submit().unwrap().wait().unwrap();
    let read = engine.batch().read(&small, local.slice(..64 << 10)).run().unwrap();
    assert_eq!(read.path(), write.path());
    engine.unregister(local, soon()).unwrap();
    write.path()
}

fn written(offered: &Buffer) -> bool {
    let mut found = vec![0; LEN];
    offered.read_at(0, &mut found).unwrap();
    found.iter().all(|byte| *byte == 7)
}

#[test]
fn engines_of_a_group_copy_directly() {
    let group = LocalGroup::new();
    let (owner, engine) = (build(of(&group)), build(of(&group)));
    assert_eq!(group.len(), 2);
    let offered = owner.allocate(LEN, Location::Any, Access::REMOTE).unwrap();
    let remote = find(&engine, &owner, &offered);
    assert!(path(&engine, &remote).starts_with("local "));
    assert!(written(&offered));

    let plan = remote.segment().explain(Op::Read, &remote, &Location::Any, &Policy::default()).unwrap();
    assert_eq!(plan.chosen(), &TransportKind::LOCAL);
    assert_eq!(plan.candidates()[0].reason, "an engine of this process, in the local group");
    assert_eq!(plan.order().last(), Some(&TransportKind::TCP));
    let metrics = engine.metrics();
    let local = metrics.transports.iter().find(|of| of.transport == "local").unwrap();
    assert!(local.in_flight == 0, "{local:?}");
    assert!(metrics.to_openmetrics().contains(r#"te_requests_done_total{transport="local",op="write"} 1"#));
    for engine in [&engine, &owner] {
        stop(engine);
    }
    assert!(group.is_empty());
}

#[test]
fn an_engine_of_a_group_reaches_itself() {
    let engine = build(only_local(&LocalGroup::new()));
    let offered = engine.allocate(LEN, Location::Any, Access::REMOTE).unwrap();
    assert!(path(&engine, &find(&engine, &engine, &offered)).starts_with("local "));
    assert!(written(&offered));
    stop(&engine);
}

#[test]
fn engines_without_a_common_group_are_peers() {
    let (one, other) = (LocalGroup::new(), LocalGroup::new());
    let engine = build(of(&one));
    for (owner, reason) in [
        (build(plain()), "the peer is in no local group"),
        (build(of(&other)), "that life of the peer is not in the local group"),
    ] {
        let offered = owner.allocate(LEN, Location::Any, Access::REMOTE).unwrap();
        let remote = find(&engine, &owner, &offered);
        let taken = path(&engine, &remote);
        assert!(!taken.starts_with("local "), "{taken}");
        assert!(written(&offered));
        let plan = remote.segment().explain(Op::Read, &remote, &Location::Any, &Policy::default()).unwrap();
        let rejected = plan.candidates().iter().find(|of| of.kind == TransportKind::LOCAL).unwrap();
        assert_eq!(rejected.verdict, Verdict::Rejected);
        let said = format!("the peer has not proven that it is an engine of this process: {reason}");
        assert_eq!(rejected.reason, said);
        stop(&owner);
    }
    assert!(!build(plain()).inner().transports().contains(&TransportKind::LOCAL));
}

#[test]
fn an_explicit_list_without_the_group_leaves_it_out() {
    let group = LocalGroup::new();
    let (owner, engine) = (build(of(&group)), build(of(&group).set("transports", "tcp")));
    assert_eq!(engine.inner().transports(), [TransportKind::TCP]);
    assert_eq!(group.len(), 1);
    let offered = owner.allocate(LEN, Location::Any, Access::REMOTE).unwrap();
    assert!(path(&engine, &find(&engine, &owner, &offered)).starts_with("tcp "));

    // So does the list of one request.
    let member = build(of(&group));
    let remote = find(&member, &owner, &offered);
    let policy = Policy { only: Some(vec![TransportKind::TCP]) };
    let plan = remote.segment().explain(Op::Read, &remote, &Location::Any, &policy).unwrap();
    assert_eq!(plan.order().collect::<Vec<_>>(), [&TransportKind::TCP]);
    let local = member.allocate(64, Location::Any, Access::LOCAL).unwrap();
    let small = remote.slice(0, 64).unwrap();
    let report = member.batch().transports(policy.only.unwrap()).read(&small, local.slice(..)).run().unwrap();
    assert!(report.path().starts_with("tcp "), "{report}");
    for engine in [&member, &engine, &owner] {
        stop(engine);
    }
}

#[test]
fn an_explicit_list_with_the_group_is_exact() {
    let error = blocking::build(plain().set("transports", "local")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("EngineBuilder::local_group"), "{error}");

    let (owner, engine) = (build(plain()), build(only_local(&LocalGroup::new())));
    let offered = owner.allocate(64, Location::Any, Access::REMOTE).unwrap();
    let local = engine.allocate(64, Location::Any, Access::LOCAL).unwrap();
    let remote = find(&engine, &owner, &offered);
    let error = engine.batch().read(&remote, local.slice(..)).run().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoPath, "{error:#}");
    stop(&engine);
    stop(&owner);
}

/// MR-09: the owner gets its memory back in the middle of large copies, and it is not touched any more.
#[test]
fn memory_is_withdrawn_while_others_copy() {
    let group = LocalGroup::new();
    let (owner, engine) = (build(only_local(&group)), build(only_local(&group)));
    let offered = owner.allocate(LEN, Location::Any, Access::REMOTE).unwrap();
    let remote = find(&engine, &owner, &offered);
    let local = engine.register(vec![7; LEN], Access::LOCAL).unwrap();
    let started = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let copies = scope.spawn(|| {
            loop {
                let batch = (0..4).fold(engine.batch(), |batch, _| batch.write(local.slice(..), &remote));
                match batch.submit().and_then(te::Batch::wait) {
                    Ok(_) => started.store(true, Ordering::Release),
                    Err(error) => return error,
                }
            }
        });
        while !started.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let memory = owner.unregister(offered, Deadline::after_secs(20)).unwrap();
        let own = owner.register(memory, Access::LOCAL).unwrap();
        own.write_at(0, &vec![1; LEN]).unwrap();
        let error = copies.join().unwrap();
        assert_eq!(error.kind(), ErrorKind::BufferGone, "{error:#}");
        let mut found = vec![0; LEN];
        own.read_at(0, &mut found).unwrap();
        assert!(found.iter().all(|byte| *byte == 1));
    });
    stop(&engine);
    stop(&owner);
}

/// SEG-01, META-01: the name and the memory of a member that was restarted in the same process are those of the next life,
/// and a handle of the earlier one reaches nothing of it.
#[test]
fn a_restarted_member_is_another_one() {
    let (group, store) = (LocalGroup::new(), MemoryStore::default());
    let start = |name: &str| {
        let builder = named(name).store(store.clone()).local_group(&group);
        build(builder.set("transports", "local"))
    };
    let (first, engine) = (start("owner"), start("engine"));
    let offered = first.register(Memory::from_vec(vec![0; LEN]), Access::REMOTE).unwrap();
    first.published(soon()).unwrap();
    let address = offered.address();
    let early = find(&engine, &first, &offered);
    assert!(path(&engine, &early).starts_with("local "));
    let memory = first.unregister(offered, soon()).unwrap();
    stop(&first);

    let second = start("owner");
    let offered = second.register(memory, Access::REMOTE).unwrap();
    assert_eq!(offered.address(), address);
    offered.write_at(0, &vec![1; LEN]).unwrap();
    second.published(soon()).unwrap();
    let local = engine.register(vec![9; LEN], Access::LOCAL).unwrap();
    // Refused from the start; in these words as soon as the directory has told of the next life.
    until("the handle is known to be of an earlier life", || {
        let error = engine.batch().write(local.slice(..), &early).run().unwrap_err();
        error.kind() == ErrorKind::StaleIncarnation
    });
    let mut found = vec![0; LEN];
    offered.read_at(0, &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == 1));
    assert!(path(&engine, &find(&engine, &second, &offered)).starts_with("local "));
    assert!(written(&offered));
    stop(&engine);
    stop(&second);
}
