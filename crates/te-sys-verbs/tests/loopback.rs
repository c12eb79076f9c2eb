//! The owning layer over NICs in this process: data, keys, states, and refusals.

#![allow(clippy::unwrap_used, reason = "in tests a failure is a panic")]

mod common;

use std::os::fd::AsRawFd;

use common::{Area, Side, connect, drain, one};
use te_sys_verbs::fake::{Fabric, Fault, Nic};
use te_sys_verbs::{
    Access, Call, Completion, CompletionChannel, EventKind, Flags, Gid, Lacking, Local, QueueSize,
    ReceiveList, Remote, State, Status, Subject, Verb, WorkList,
};

fn two() -> Fabric {
    Fabric::new([Nic::new("fake0"), Nic::new("fake1")])
}

fn pair(fabric: &Fabric) -> (Side, Side) {
    let verbs = fabric.verbs();
    let (a, b) = (Side::open(&verbs, "fake0", 1), Side::open(&verbs, "fake1", 1));
    connect(&a, &b).unwrap();
    (a, b)
}

/// Requests that write `len` bytes each, the last one signalled.
fn writes(list: &mut WorkList, count: u64, len: u32, from: &Area, to: Remote) {
    for id in 0..count {
        let offset = id * u64::from(len);
        let local = Local { address: from.region.address() + offset, len, lkey: from.region.lkey() };
        let flags = if id + 1 == count { Flags::SIGNALLED } else { Flags::default() };
        list.push(id, Verb::Write(Remote { address: to.address + offset, ..to }), &[local], flags);
    }
}

#[test]
fn a_list_of_writes_is_one_doorbell_and_one_completion() {
    let fabric = two();
    let (a, b) = pair(&fabric);
    let (from, to) = (Area::new(&a, 1 << 20, 7), Area::new(&b, 1 << 20, 0));
    a.queue.arm(false).unwrap();
    let mut list = WorkList::default();
    writes(&mut list, 16, 64 << 10, &from, to.remote());
    a.pair.post(&mut list).unwrap();
    assert_eq!(fabric.posted(), (1, 16));
    let channel = a.queue.channel().unwrap();
    assert_eq!(channel.next().unwrap(), Some(a.cookie), "the channel tells of the completion");
    assert_eq!(channel.next().unwrap(), None, "and of nothing else");
    let done = one(&a.queue);
    assert_eq!((done.id(), done.status(), done.queue_pair()), (15, Status::SUCCESS, a.pair.number()));
    assert_eq!(to.bytes(), from.bytes());
}

#[test]
fn reads_bring_the_peers_bytes_into_several_ranges() {
    let (fabric, mut list) = (two(), WorkList::with_capacity(1));
    let (a, b) = pair(&fabric);
    let (to, from) = (Area::new(&a, 4096, 0), Area::new(&b, 4096, 3));
    let lkey = to.region.lkey();
    let ranges = [
        Local { address: to.region.address() + 2048, len: 2048, lkey },
        Local { address: to.region.address(), len: 2048, lkey },
    ];
    list.push(1, Verb::Read(from.remote()), &ranges, Flags::SIGNALLED);
    a.pair.post(&mut list).unwrap();
    assert!(one(&a.queue).status().is_success());
    let (first, last) = (&from.bytes()[..2048], &from.bytes()[2048..]);
    assert_eq!((&to.bytes()[2048..], &to.bytes()[..2048]), (first, last));
}

#[test]
fn numbers_and_messages_arrive_in_receives() {
    let (fabric, mut list, mut receives) = (two(), WorkList::default(), ReceiveList::default());
    let (a, b) = pair(&fabric);
    let (from, to) = (Area::new(&a, 64, 9), Area::new(&b, 64, 0));
    let local = Local { address: from.region.address(), len: 64, lkey: from.region.lkey() };
    list.push(1, Verb::WriteImmediate(to.remote(), 0xdead), &[local], Flags::SIGNALLED);
    list.push(2, Verb::Send, &[local], Flags::SIGNALLED);
    a.pair.post(&mut list).unwrap();
    assert_eq!(drain(&a.queue).len(), 0, "both wait for receives");
    receives.push(10, &[]);
    let room = Local { address: to.region.address(), len: 64, lkey: to.region.lkey() };
    receives.push(11, &[room]);
    b.pair.post_receives(&mut receives).unwrap();
    let got = drain(&b.queue);
    assert_eq!(got.iter().map(Completion::id).collect::<Vec<_>>(), [10, 11]);
    assert_eq!((got[0].immediate(), got[1].immediate(), got[1].bytes()), (Some(0xdead), None, 64));
    assert!(got.iter().all(Completion::is_receive));
    assert_eq!(drain(&a.queue).len(), 2);
}

#[test]
fn what_a_key_does_not_cover_is_not_touched() {
    type Wrong = fn(Remote) -> Remote;
    let cases: [(&str, Wrong); 4] = [
        ("another key", |to| Remote { rkey: to.rkey ^ 0x40, ..to }),
        ("the local key", |to| Remote { rkey: to.rkey & !1, ..to }),
        ("past the end", |to| Remote { address: to.address + 1, ..to }),
        ("before the beginning", |to| Remote { address: to.address - 1, ..to }),
    ];
    for (name, wrong) in cases {
        let (fabric, mut list) = (two(), WorkList::default());
        let (a, b) = pair(&fabric);
        let (from, to) = (Area::new(&a, 4096, 7), Area::new(&b, 4096, 1));
        writes(&mut list, 1, 4096, &from, wrong(to.remote()));
        a.pair.post(&mut list).unwrap();
        assert_eq!(one(&a.queue).status(), Status::REM_ACCESS_ERR, "{name}");
        assert_eq!(to.bytes(), Area::pattern(4096, 1), "{name}");
        assert_eq!(a.pair.query().unwrap().state, State::Error, "{name}");
        let event = b.context.next_event().unwrap().unwrap();
        assert_eq!((event.kind, event.about), (EventKind::QP_ACCESS_ERR, Subject::QueuePair(b.cookie)));
    }
}

#[test]
fn access_that_was_not_given_is_refused() {
    let (fabric, mut list) = (two(), WorkList::default());
    let (a, b) = pair(&fabric);
    let from = Area::new(&a, 64, 7);
    let to = Area::with_access(&b, 64, 1, Access::REMOTE_READ);
    writes(&mut list, 1, 64, &from, to.remote());
    a.pair.post(&mut list).unwrap();
    assert_eq!(one(&a.queue).status(), Status::REM_ACCESS_ERR);
}

#[test]
fn a_region_of_another_nic_is_no_local_range() {
    let (fabric, mut list) = (two(), WorkList::default());
    let (a, b) = pair(&fabric);
    let (foreign, to) = (Area::new(&b, 64, 7), Area::new(&b, 64, 1));
    writes(&mut list, 1, 64, &foreign, to.remote());
    a.pair.post(&mut list).unwrap();
    assert_eq!(one(&a.queue).status(), Status::LOC_PROT_ERR);
}

#[test]
fn an_ended_registration_is_refused_at_once() {
    let (fabric, mut list) = (two(), WorkList::default());
    let (a, b) = pair(&fabric);
    let (from, to) = (Area::new(&a, 64, 7), Area::new(&b, 64, 1));
    let remote = to.remote();
    to.region.deregister().unwrap();
    assert_eq!(fabric.live().regions, 1);
    writes(&mut list, 1, 64, &from, remote);
    a.pair.post(&mut list).unwrap();
    assert_eq!(one(&a.queue).status(), Status::REM_ACCESS_ERR);
}

#[test]
fn requests_after_a_failed_one_are_flushed_and_nothing_is_lost() {
    let (fabric, mut list) = (two(), WorkList::default());
    let (a, b) = pair(&fabric);
    let (from, to) = (Area::new(&a, 4096, 7), Area::new(&b, 4096, 1));
    fabric.complete_with("fake0", "fake1", Status::RETRY_EXC_ERR, 1);
    writes(&mut list, 4, 1024, &from, to.remote());
    a.pair.post(&mut list).unwrap();
    let done = drain(&a.queue);
    assert_eq!(done.iter().map(Completion::id).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(done[0].status(), Status::RETRY_EXC_ERR);
    assert!(done[1..].iter().all(|c| c.status().is_flush()));
}

#[test]
fn held_requests_are_carried_out_later_or_flushed() {
    let (fabric, mut list) = (two(), WorkList::default());
    let (a, b) = pair(&fabric);
    let (from, to) = (Area::new(&a, 64, 7), Area::new(&b, 64, 1));
    fabric.hold();
    writes(&mut list, 1, 64, &from, to.remote());
    a.pair.post(&mut list).unwrap();
    assert_eq!(drain(&a.queue).len(), 0);
    fabric.release();
    assert!(one(&a.queue).status().is_success());
    fabric.hold();
    a.pair.post(&mut list).unwrap();
    a.pair.to_error().unwrap();
    assert!(one(&a.queue).status().is_flush());
}

#[test]
fn one_nic_is_held_and_others_are_not() {
    let (fabric, mut list) = (two(), WorkList::default());
    let (a, b) = pair(&fabric);
    let (here, there) = (Area::new(&a, 64, 7), Area::new(&b, 64, 1));
    fabric.hold_nic("fake0");
    writes(&mut list, 1, 64, &here, there.remote());
    a.pair.post(&mut list).unwrap();
    list.clear();
    writes(&mut list, 1, 64, &there, here.remote());
    b.pair.post(&mut list).unwrap();
    assert_eq!((drain(&a.queue).len(), drain(&b.queue).len()), (0, 1));
    fabric.release();
    assert!(one(&a.queue).status().is_success());
}

/// Waits until the channel has something.
fn wait(channel: &CompletionChannel) {
    let mut wanted = libc::pollfd { fd: channel.fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor, which is open.
    let ready = unsafe { libc::poll(&raw mut wanted, 1, 60_000) };
    assert_eq!(ready, 1, "the channel told of nothing for a minute");
}

#[test]
fn a_poller_that_sleeps_on_the_channel_misses_nothing() {
    const POSTS: usize = 500;
    let fabric = two();
    let (a, b) = pair(&fabric);
    let (from, to) = (Area::new(&a, 64, 7), Area::new(&b, 64, 1));
    std::thread::scope(|scope| {
        let poller = scope.spawn(|| {
            let mut seen = 0;
            let channel = a.queue.channel().unwrap();
            loop {
                a.queue.arm(false).unwrap();
                seen += drain(&a.queue).len();
                if seen == POSTS {
                    return;
                }
                wait(channel);
                while channel.next().unwrap().is_some() {}
            }
        });
        let mut list = WorkList::default();
        writes(&mut list, 1, 64, &from, to.remote());
        for _ in 0..POSTS {
            // The queue is full until the poller has taken completions.
            while let Err(refusal) = a.pair.post(&mut list) {
                assert!(refusal.is_full(), "{refusal}");
                std::thread::yield_now();
            }
        }
        poller.join().unwrap();
    });
    assert_eq!(to.bytes(), from.bytes());
}

#[test]
fn a_refused_list_says_how_many_were_accepted() {
    for place in 0..4 {
        let (fabric, mut list) = (two(), WorkList::default());
        let (a, b) = pair(&fabric);
        let (from, to) = (Area::new(&a, 4096, 7), Area::new(&b, 4096, 1));
        fabric.refuse_request("fake0", place, libc::ENOMEM);
        writes(&mut list, 4, 1024, &from, to.remote());
        let refusal = a.pair.post(&mut list).unwrap_err();
        assert_eq!((refusal.accepted, refusal.requests), (place, 4));
        assert!(refusal.is_full());
        assert_eq!(to.bytes()[..place * 1024], from.bytes()[..place * 1024]);
        assert_eq!(to.bytes()[place * 1024..], Area::pattern(4096, 1)[place * 1024..]);
    }
}

#[test]
fn a_full_queue_refuses_until_completions_are_taken() {
    let (fabric, mut list) = (two(), WorkList::default());
    let (a, b) = pair(&fabric);
    let (from, to) = (Area::new(&a, 4096, 7), Area::new(&b, 4096, 1));
    let most = u64::from(common::REQUESTS);
    writes(&mut list, most, 1, &from, to.remote());
    a.pair.post(&mut list).unwrap();
    let mut more = WorkList::default();
    writes(&mut more, 1, 1, &from, to.remote());
    assert_eq!(a.pair.post(&mut more).unwrap_err().accepted, 0);
    assert_eq!(drain(&a.queue).len(), 1, "the last one of the list");
    a.pair.post(&mut more).unwrap();
}

#[test]
fn an_overrun_queue_fails_and_says_so() {
    let fabric = two();
    let verbs = fabric.verbs();
    let a = Side::open_with(&verbs, "fake0", 1, QueueSize { entries: 2, vector: 0 });
    let b = Side::open(&verbs, "fake1", 1);
    connect(&a, &b).unwrap();
    let (from, to) = (Area::new(&a, 64, 7), Area::new(&b, 64, 1));
    for _ in 0..3 {
        let mut list = WorkList::default();
        writes(&mut list, 1, 64, &from, to.remote());
        a.pair.post(&mut list).unwrap();
    }
    let event = a.context.next_event().unwrap().unwrap();
    assert_eq!((event.kind, event.about), (EventKind::CQ_ERR, Subject::CompletionQueue(a.cookie)));
    assert_eq!(drain(&a.queue).len(), 2);
    let mut room = [Completion::default(); 1];
    assert_eq!(a.queue.poll(&mut room).unwrap_err().errno, libc::EIO);
}

#[test]
fn ports_go_down_and_up_with_events() {
    let (fabric, mut list) = (two(), WorkList::default());
    let (a, b) = pair(&fabric);
    let (from, to) = (Area::new(&a, 64, 7), Area::new(&b, 64, 1));
    fabric.set_port("fake1", false);
    assert!(!b.context.port(1).unwrap().active);
    writes(&mut list, 1, 64, &from, to.remote());
    a.pair.post(&mut list).unwrap();
    assert_eq!(one(&a.queue).status(), Status::RETRY_EXC_ERR);
    fabric.set_port("fake1", true);
    let kinds = [(); 2].map(|()| b.context.next_event().unwrap().unwrap().kind);
    assert_eq!(kinds, [EventKind::PORT_ERR, EventKind::PORT_ACTIVE]);
    assert_eq!(b.context.next_event().unwrap(), None);
    assert_eq!(a.context.next_event().unwrap(), None, "the other NIC has no part in it");
}

#[test]
fn a_burst_of_events_arrives_whole() {
    let fabric = two();
    let context = fabric.verbs().open("fake0").unwrap();
    fabric.raise("fake0", EventKind::GID_CHANGE, 500);
    let mut events = 0;
    while let Some(event) = context.next_event().unwrap() {
        assert_eq!((event.kind, event.about), (EventKind::GID_CHANGE, Subject::Port(1)));
        events += 1;
    }
    assert_eq!(events, 500);
}

#[test]
fn devices_and_ports_say_what_they_are() {
    let fabric = two();
    let verbs = fabric.verbs();
    let names: Vec<_> = verbs.devices().unwrap().iter().map(|d| d.name().to_owned()).collect();
    assert_eq!(names, ["fake0", "fake1"]);
    assert_eq!(fabric.verbs_with(&["fake1"]).devices().unwrap().len(), 1);
    let context = verbs.open("fake1").unwrap();
    assert_eq!((context.limits().unwrap().ports, context.pkey(1, 0).unwrap()), (1, 0xffff));
    let entry = context.gid_entry(1, 1).unwrap();
    assert_eq!((entry.gid.to_string().as_str(), entry.gid.is_ipv4()), ("::ffff:10.99.0.2", true));
    fabric.set_gid("fake1", 1, Gid::default());
    assert!(context.gid(1, 1).unwrap().is_null());
    assert!(context.gid(1, 9).is_err() && context.port(2).is_err());
}

#[test]
fn a_nic_that_does_not_open_is_named_with_the_reason() {
    let fabric = two();
    let verbs = fabric.verbs();
    fabric.fail(Fault::new(Call::OpenDevice, libc::EACCES).on("fake1").times(1));
    let error = verbs.open("fake1").unwrap_err();
    assert_eq!(error.what, Lacking::Permission("fake1".into()));
    assert_eq!(
        error.to_string(),
        "rdma is not available: no permission to open fake1: ibv_open_device failed: Permission denied (os error \
         13); /dev/infiniband/uverbs* must be readable and writable for this user"
    );
    assert!(verbs.open("fake0").is_ok() && verbs.open("fake1").is_ok());
    let error = verbs.open("fake7").unwrap_err();
    assert_eq!(error.to_string(), "rdma is not available: no device fake7: there are fake0, fake1");
}

#[test]
fn registrations_fail_with_a_hint_and_leave_nothing() {
    let fabric = two();
    let verbs = fabric.verbs();
    let a = Side::open(&verbs, "fake0", 1);
    fabric.limit_keys("fake0", 2, libc::EAGAIN);
    let kept = [Area::new(&a, 64, 1), Area::new(&a, 64, 1)];
    let error = Area::attempt(&a, 64).unwrap_err();
    assert!(error.can_retry());
    assert!(error.to_string().contains("memory keys (MKEY)"), "{error}");
    assert_eq!(fabric.live().regions, 2);
    drop(kept);
    fabric.heal();
    for errno in [libc::ENOMEM, libc::EFAULT, libc::EINVAL] {
        fabric.fail(Fault::new(Call::RegMr, errno).times(1));
        let error = Area::attempt(&a, 64).unwrap_err();
        assert_eq!((error.call, error.errno, error.hint().is_some()), (Call::RegMr, errno, true));
    }
    assert!(Area::attempt(&a, 64).is_ok());
}

#[test]
fn a_library_that_is_not_there_is_named() {
    // SAFETY: there is nothing under this name.
    let error = unsafe { te_sys_verbs::Verbs::load_from("libno-such-verbs.so.1") }.unwrap_err();
    assert_eq!(error.what, Lacking::Library("libno-such-verbs.so.1".into()));
    // SAFETY: a library whose initialisers have long run.
    let error = unsafe { te_sys_verbs::Verbs::load_from("libc.so.6") }.unwrap_err();
    assert_eq!(error.what, Lacking::Symbol("ibv_get_device_list".into()));
}
