//! What a queue pair says when it does not change its state, word for word (RDMA-14).

#![allow(clippy::unwrap_used, reason = "in tests a failure is a panic")]

mod common;

use common::{SEND, Side, connect};
use te_sys_verbs::fake::{Fabric, Fault, Nic};
use te_sys_verbs::{Call, Gid, LinkLayer, Mtu, State, ToInit, ToReceive, ToSend, TransitionError};

const ASKED: &str = "asked for path_mtu 4096, dest_qp_num 0x00000b, rq_psn 0, max_dest_rd_atomic 4, min_rnr_timer 12, \
                     port_num 1, sgid_index 1, hop_limit 16, traffic_class 0, sl 0, is_global 1";
const OWN: &str = "own port 1 active, lid 0, mtu 4096, gid ::ffff:10.99.0.1";
const PEER: &str = "peer lid 0, gid ::ffff:10.99.0.2";
const INVALID: &str = "Invalid argument (os error 22)";

struct Bench {
    fabric: Fabric,
    a: Side,
    b: Side,
}

fn bench_with(nics: [Nic; 2]) -> Bench {
    let fabric = Fabric::new(nics);
    let verbs = fabric.verbs();
    let (a, b) = (Side::open(&verbs, "fake0", 1), Side::open(&verbs, "fake1", 1));
    Bench { fabric, a, b }
}

fn bench() -> Bench {
    bench_with([Nic::new("fake0"), Nic::new("fake1")])
}

impl Bench {
    /// From INIT to RTR, with what is right changed.
    fn receive(&self, change: impl FnOnce(&mut ToReceive)) -> Result<(), TransitionError> {
        self.a.to_init().unwrap();
        let mut to = self.a.receive_from(self.b.gid(), self.b.pair.number());
        change(&mut to);
        self.a.pair.to_receive(&to)
    }

    fn place(&self) -> String {
        format!("fake0 queue pair {:#08x}", self.a.pair.number())
    }
}

/// The text, with the number of the peer's queue pair as in [`ASKED`].
fn text(bench: &Bench, error: &TransitionError) -> String {
    let number = format!("dest_qp_num {:#08x}", bench.b.pair.number());
    error.to_string().replace(&number, "dest_qp_num 0x00000b")
}

#[test]
fn the_right_order_works_and_is_told() {
    let bench = bench();
    assert_eq!(bench.a.pair.query().unwrap().state, State::Reset);
    connect(&bench.a, &bench.b).unwrap();
    let info = bench.a.pair.query().unwrap();
    assert_eq!((info.state, info.peer, info.port), (State::ReadyToSend, bench.b.pair.number(), 1));
    bench.a.pair.to_error().unwrap();
    bench.a.pair.to_reset().unwrap();
    connect(&bench.a, &bench.b).unwrap_err();
    bench.b.pair.to_reset().unwrap();
    bench.a.pair.to_reset().unwrap();
    connect(&bench.a, &bench.b).unwrap();
}

#[test]
fn a_step_that_is_left_out() {
    let bench = bench();
    let error = bench.a.pair.to_receive(&bench.a.receive_from(bench.b.gid(), bench.b.pair.number()));
    assert_eq!(
        text(&bench, &error.unwrap_err()),
        format!(
            "{} does not go from RESET to RTR: {INVALID}; {ASKED}; {OWN}; {PEER}; RTR is not reached from RESET: the \
             order is RESET, INIT, RTR, RTS",
            bench.place()
        )
    );
    assert_eq!(
        bench.a.pair.to_send(&SEND).unwrap_err().to_string(),
        format!(
            "{} does not go from RESET to RTS: {INVALID}; asked for timeout 14, retry_cnt 7, rnr_retry 7, sq_psn 0, \
             max_rd_atomic 4; RTS is not reached from RESET: the order is RESET, INIT, RTR, RTS",
            bench.place()
        )
    );
}

#[test]
fn a_port_that_is_not_there() {
    let bench = bench();
    let to = ToInit { port: 3, pkey_index: 0, access: te_sys_verbs::Access::REMOTE_READ };
    assert_eq!(
        bench.a.pair.to_init(&to).unwrap_err().to_string(),
        format!(
            "{} does not go from RESET to INIT: {INVALID}; asked for port_num 3, pkey_index 0, access 0x4; own port 3 \
             unknown; there is no port 3",
            bench.place()
        )
    );
}

#[test]
fn a_partition_key_that_is_not_there() {
    let bench = bench();
    let to = ToInit { port: 1, pkey_index: 5, access: te_sys_verbs::Access::REMOTE_READ };
    let error = bench.a.pair.to_init(&to).unwrap_err().to_string();
    assert!(
        error.ends_with("the place of the partition key is empty, or the device does not take this access")
    );
}

#[test]
fn an_mtu_above_the_ports() {
    let bench = bench_with([Nic { mtu: Mtu::B1024, ..Nic::new("fake0") }, Nic::new("fake1")]);
    let error = bench.receive(|to| to.mtu = Mtu::B4096).unwrap_err();
    let own = OWN.replace("mtu 4096", "mtu 1024");
    assert_eq!(
        text(&bench, &error),
        format!(
            "{} does not go from INIT to RTR: {INVALID}; {ASKED}; {own}; {PEER}; path_mtu 4096 is above the port's 1024: \
             both sides use the smaller",
            bench.place()
        )
    );
}

/// The last part of the text, which says what it means.
fn hint(bench: &Bench, change: impl FnOnce(&mut ToReceive)) -> String {
    bench.receive(change).unwrap_err().hint().unwrap()
}

#[test]
fn a_gid_of_ones_own_that_has_gone() {
    let bench = bench();
    let peer = bench.b.gid();
    bench.fabric.set_gid("fake0", 1, Gid::default());
    let error = bench.receive(|to| to.path.gid = peer).unwrap_err();
    let own = OWN.replace("::ffff:10.99.0.1", "::");
    assert_eq!(
        text(&bench, &error),
        format!(
            "{} does not go from INIT to RTR: {INVALID}; {ASKED}; {own}; {PEER}; place 1 of the table of gids is empty: it \
             has changed, or is the wrong one",
            bench.place()
        )
    );
}

#[test]
fn a_peer_without_an_address() {
    let gone = hint(&bench(), |to| to.path.gid = Gid::default());
    assert_eq!(gone, "the peer's gid is null: its place in the peer's table is empty");
}

#[test]
fn addresses_of_different_kinds() {
    let bench = bench();
    // What a device says that notices it; others find out when packets are lost.
    bench.fabric.fail(Fault::new(Call::ModifyQp, libc::EINVAL).on("fake0").after(1));
    let link_local = bench.fabric.gid("fake1", 0);
    let kinds = hint(&bench, |to| to.path.gid = link_local);
    assert_eq!(kinds, "one gid is IPv4 and the other IPv6: the two sides chose entries of different kinds");
}

#[test]
fn no_way_to_the_peer() {
    for (errno, words) in [
        (libc::ENETUNREACH, "there is no route to the peer's gid from the own one"),
        (
            libc::ETIMEDOUT,
            "the peer's gid does not resolve to a hardware address: is the peer's interface up?",
        ),
        (libc::ENODATA, "the own gid is not of this network namespace: choose another place of the table"),
        (
            libc::EINVAL,
            "one of the values is not one that the device takes; the peer may be on another network",
        ),
    ] {
        let bench = bench();
        bench.fabric.fail(Fault::new(Call::ModifyQp, errno).on("fake0").after(1));
        assert_eq!(hint(&bench, |_| ()), words);
    }
}

#[test]
fn a_port_that_is_down() {
    let bench = bench();
    bench.fabric.set_port("fake0", false);
    bench.fabric.fail(Fault::new(Call::ModifyQp, libc::EINVAL).on("fake0").after(1));
    let error = bench.receive(|_| ()).unwrap_err().to_string();
    assert!(error.contains("own port 1 not active"), "{error}");
    assert!(error.ends_with("port 1 is not active: is the link up?"), "{error}");
}

#[test]
fn packets_without_addresses() {
    assert_eq!(
        hint(&bench(), |to| to.path.global = false),
        "RoCE needs addresses in its packets: is_global must be 1"
    );
    let infiniband =
        ["fake0", "fake1"].map(|name| Nic { link_layer: LinkLayer::InfiniBand, lid: 7, ..Nic::new(name) });
    let bench = bench_with(infiniband);
    let lost = hint(&bench, |to| {
        (to.path.global, to.path.lid) = (false, 0);
    });
    assert_eq!(lost, "the peer has no LID: has the subnet manager seen its port?");
}

#[test]
fn more_reads_than_the_device_takes() {
    let bench = bench();
    bench.receive(|_| ()).unwrap();
    let error = bench.a.pair.to_send(&ToSend { reads: 17, ..SEND }).unwrap_err();
    assert_eq!(
        error.hint().unwrap(),
        "the device does not take so many READs at a time, or the timeout is above 31"
    );
}

#[test]
fn a_device_that_is_gone_or_full() {
    for (errno, words) in [
        (libc::ENODEV, "the device was reset or removed: open it anew"),
        (libc::ENOMEM, "the device is out of resources: close what is not needed"),
        (libc::EAGAIN, "the device is out of resources: close what is not needed"),
    ] {
        let bench = bench();
        bench.fabric.fail(Fault::new(Call::ModifyQp, errno).on("fake0").after(1));
        // A device that is gone does not say how its port is either, which is not to be taken for a wrong number.
        bench.a.to_init().unwrap();
        bench.fabric.fail(Fault::new(Call::QueryPort, errno).after(1));
        let error = bench.a.pair.to_receive(&bench.a.receive_from(bench.b.gid(), bench.b.pair.number()));
        let error = error.unwrap_err();
        assert_eq!(error.own.map(|own| own.info), Some(None), "{errno}");
        assert_eq!(error.hint().unwrap(), words);
    }
}

#[test]
fn what_may_pass_by_itself_is_worth_another_try() {
    let can_retry = |errno| {
        let bench = bench();
        bench.fabric.fail(Fault::new(Call::ModifyQp, errno).on("fake0"));
        bench.a.to_init().unwrap_err().can_retry()
    };
    assert!([libc::ETIMEDOUT, libc::ENOMEM, libc::EAGAIN].into_iter().all(can_retry));
    assert!(![libc::EINVAL, libc::ENODEV, libc::ENETUNREACH].into_iter().any(can_retry));
}

#[test]
fn a_device_that_says_nothing_more() {
    let bench = bench();
    for call in [Call::QueryQp, Call::QueryPort] {
        bench.fabric.fail(Fault::new(call, libc::EIO));
    }
    bench.fabric.fail(Fault::new(Call::ModifyQp, libc::EIO));
    let error = bench.a.pair.to_error().unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{} does not go from an unknown state to ERR: Input/output error (os error 5); asked for nothing",
            bench.place()
        )
    );
}
