//! Notifications between te engines: each once, after the data, in order; and whoever expects some.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::time::Duration;

use common::{World, free_port, on_port, soon, until};
use te_engine::{BatchOutcome, Deadline, Engine, ErrorKind, Expected, NotifyOutcome, block_on};
use te_segment::{Access, TransportKind};

fn messages(engine: &Engine) -> Vec<String> {
    engine.notifications().into_iter().map(|notification| notification.message).collect()
}

/// N-04: in the order of one sender, and each once, however many there are.
#[test]
fn notifications_arrive_once_and_in_order() {
    let world = World::new();
    let (target, initiator) = (world.engine("target"), world.engine("initiator"));
    let sent: Vec<_> = (0..300).map(|number| number.to_string()).collect();
    for message in &sent {
        block_on(initiator.notify("target", "n", message)).unwrap();
    }
    assert_eq!(messages(&target), sent);
    assert_eq!(target.notifications(), []);
}

/// N-04: a receiver that is full makes the sender wait, and loses nothing.
#[test]
fn a_full_receiver_delays_and_loses_nothing() {
    let world = World::new();
    let mut config = World::config("target");
    config.limits.notify_queue = 2;
    let target = world.engine_with(config, vec![Box::new(world.transport(TransportKind::SHM))]);
    let initiator = world.engine("initiator");
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            for number in 0..20 {
                block_on(initiator.notify("target", "n", &number.to_string())).unwrap();
            }
        });
        let received: Vec<_> = (0..20).map(|_| target.wait_notification(soon()).unwrap().message).collect();
        assert_eq!(received, (0..20).map(|number| number.to_string()).collect::<Vec<_>>());
        sending.join().unwrap();
    });
}

/// Contract 12, N-01: an engine notifies itself as it does others.
#[test]
fn an_engine_can_notify_itself() {
    let world = World::new();
    let engine = world.engine("self");
    block_on(async {
        engine.notify("self", "n", "by name").await.unwrap();
        assert_eq!(engine.next_notification().await.unwrap().message, "by name");
        let offered = engine.register(vec![0_u8; 4096], Access::REMOTE).await.unwrap();
        engine.published(soon()).await.unwrap();
        let local = engine.register(vec![1_u8; 4096], Access::LOCAL).await.unwrap();
        let own = engine.open("self").await.unwrap();
        let remote = own.range(offered.address(), 4096).unwrap();
        let report = engine.batch().write(local.slice(..), &remote).notify(&own, "after").run().unwrap();
        assert_eq!(report.notify(), Some(&NotifyOutcome::Delivered));
        assert_eq!(engine.next_notification().await.unwrap().message, "after");
    });
}

/// N-07: a receiver that counts hears of failures too, if the sender says so.
#[test]
fn a_failed_batch_tells_its_receiver_only_if_asked_to() {
    let world = World::new();
    let target = world.engine("target");
    let slow = world.transport(TransportKind::SHM).with_pace(64 << 10, Duration::from_millis(50));
    let initiator = world.engine_with(World::config("initiator"), vec![Box::new(slow)]);
    let len = 1_u64 << 20;
    block_on(async {
        let offered = target.register(vec![0_u8; 1 << 20], Access::REMOTE).await.unwrap();
        target.published(soon()).await.unwrap();
        let local = initiator.register(vec![1_u8; 1 << 20], Access::LOCAL).await.unwrap();
        let peer = initiator.open("target").await.unwrap();
        let remote = peer.range(offered.address(), len).unwrap();
        let late = |message: &str| {
            let batch = initiator.batch().write(local.slice(..), &remote).notify(&peer, message);
            batch.deadline(Duration::from_millis(60))
        };
        let error = late("silent").run().unwrap_err();
        assert_eq!(error.report().unwrap().notify(), None);
        let expected = target.expect("told", 2, soon()).unwrap();
        let error = late("told").notify_failure().run().unwrap_err();
        assert_eq!(error.report().unwrap().notify(), Some(&NotifyOutcome::Underway));
        assert_eq!(expected.await.unwrap(), Expected::Failure);
        let error = late("seen").notify_failure().run().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let seen = target.next_notification().await.unwrap();
        assert_eq!((seen.message.as_str(), seen.outcome), ("seen", BatchOutcome::Failure));
        assert_eq!(target.notifications(), []);
    });
}

/// N-01: what is expected has its data applied when the expectation ends.
#[test]
fn expectations_count_batches_and_leave_the_rest() {
    let world = World::new();
    let (target, initiator) = (world.engine("target"), world.engine("initiator"));
    block_on(async {
        initiator.notify("target", "n", "layer").await.unwrap();
        initiator.notify("target", "n", "other").await.unwrap();
        let expected = target.expect("layer", 3, soon()).unwrap();
        let (first, second) = (target.expect("layer", 1, soon()).unwrap(), target.expect("none", 0, soon()));
        for _ in 0..3 {
            initiator.notify("target", "n", "layer").await.unwrap();
        }
        assert_eq!(expected.await.unwrap(), Expected::Success);
        assert_eq!(first.await.unwrap(), Expected::Success);
        assert_eq!(second.unwrap().await.unwrap(), Expected::Success);
        assert_eq!(messages(&target), ["other"]);
    });
}

#[test]
fn an_expectation_ends_by_its_deadline_and_says_how_many_came() {
    let world = World::new();
    let (target, initiator) = (world.engine("target"), world.engine("initiator"));
    block_on(initiator.notify("target", "n", "layer")).unwrap();
    let expected = target.expect("layer", 2, Deadline::after(Duration::from_millis(100))).unwrap();
    assert_eq!(expected.wait().unwrap(), Expected::TimedOut { arrived: 1 });
    // One that is given up leaves later arrivals alone.
    drop(target.expect("layer", 1, soon()).unwrap());
    block_on(initiator.notify("target", "n", "layer")).unwrap();
    assert_eq!(messages(&target), ["layer"]);
}

#[test]
fn expectations_end_with_the_engine() {
    let world = World::new();
    let target = world.engine("target");
    let expected = target.expect("never", 1, soon()).unwrap();
    assert!(block_on(target.shutdown(soon())).is_clean());
    assert_eq!(expected.wait().unwrap_err().kind(), ErrorKind::Shutdown);
    assert_eq!(target.expect("never", 1, soon()).unwrap_err().kind(), ErrorKind::Shutdown);
}

/// N-03: a notification belongs to the life of the receiver in which its data was applied; one by name goes to whoever
/// has the name.
#[test]
fn a_restarted_receiver_gets_what_is_meant_for_its_name_and_nothing_else() {
    let world = World::new();
    let initiator = world.engine("initiator");
    let port = free_port();
    let first = world.mortal(on_port("target", port));
    let offered = block_on(first.engine.register(vec![0_u8; 4096], Access::REMOTE)).unwrap();
    block_on(first.engine.published(soon())).unwrap();
    let peer = block_on(initiator.open("target")).unwrap();
    block_on(initiator.notify("target", "n", "to the first")).unwrap();
    assert_eq!(messages(&first.engine), ["to the first"]);
    std::mem::forget(offered);
    first.kill();
    let second = world.mortal(on_port("target", port));
    let life = second.engine.incarnation();
    block_on(initiator.notify("target", "n", "to the name")).unwrap();
    assert_eq!(messages(&second.engine), ["to the name"]);
    assert_ne!(peer.incarnation(), Some(life));
    second.kill();
    // Nobody has the name any more.
    until("the end", || block_on(initiator.notify("target", "n", "to nobody")).is_err());
}
