use super::*;

use OutboxAction::{Finish, Send};

const SECOND: Duration = Duration::from_secs(1);

fn outbox(limit: usize) -> (Instant, Outbox<&'static str>) {
    let (now, settings) = (Instant::now(), OutboxSettings { limit, ..OutboxSettings::default() });
    let mut outbox = Outbox::new(settings);
    assert_eq!(outbox.connected(now), []);
    (now, outbox)
}

fn push(outbox: &mut Outbox<&'static str>, now: Instant, note: &'static str) -> Actions {
    outbox.push(now, note, now + SECOND * 10).unwrap().1
}

fn finish(number: u64, outcome: Delivery) -> OutboxAction {
    Finish { number, outcome }
}

/// N-04
#[test]
fn the_next_is_sent_when_the_first_is_taken() {
    let (now, mut outbox) = outbox(8);
    assert_eq!(push(&mut outbox, now, "a"), [Send { number: 1 }]);
    assert_eq!(push(&mut outbox, now, "b"), []);
    let over = [finish(1, Delivery::Delivered), Send { number: 2 }];
    assert_eq!(outbox.answered(now, 1, true), over);
    assert_eq!((outbox.note(1), outbox.note(2)), (None, Some(&"b")));
    assert_eq!(outbox.answered(now, 1, true), [], "of one that is over");
}

/// N-04
#[test]
fn what_is_not_answered_is_sent_again_with_the_same_number() {
    let (now, mut outbox) = outbox(8);
    push(&mut outbox, now, "a");
    assert_eq!(outbox.wake_at(), Some(now + SECOND));
    assert_eq!(outbox.tick(now + SECOND), [Send { number: 1 }]);
    outbox.disconnected();
    assert_eq!(outbox.tick(now + SECOND * 3), []);
    assert_eq!(outbox.connected(now + SECOND * 3), [Send { number: 1 }]);
}

#[test]
fn a_full_receiver_is_asked_again_soon() {
    let (now, mut outbox) = outbox(8);
    push(&mut outbox, now, "a");
    assert_eq!(outbox.answered(now, 1, false), []);
    let soon = now + Duration::from_millis(20);
    assert_eq!(outbox.wake_at(), Some(soon));
    assert_eq!(outbox.tick(soon), [Send { number: 1 }]);
}

#[test]
fn a_full_queue_turns_the_caller_away() {
    let (now, mut outbox) = outbox(1);
    push(&mut outbox, now, "a");
    assert_eq!(outbox.push(now, "b", now + SECOND), Err(QueueFull { limit: 1 }));
}

#[test]
fn each_expires_at_its_own_deadline_and_the_next_takes_its_place() {
    let (now, mut outbox) = outbox(8);
    push(&mut outbox, now, "a");
    outbox.push(now, "b", now + SECOND * 2).unwrap();
    outbox.push(now, "c", now + SECOND * 20).unwrap();
    let at = now + SECOND * 2;
    let actions = outbox.tick(at);
    assert_eq!(actions, [finish(2, Delivery::Expired { sent: false }), Send { number: 1 }]);
    let at = now + SECOND * 10;
    assert_eq!(outbox.tick(at), [finish(1, Delivery::Expired { sent: true }), Send { number: 3 }]);
}

/// N-03
#[test]
fn the_end_of_the_receivers_life_ends_all_of_them() {
    let (now, mut outbox) = outbox(8);
    push(&mut outbox, now, "a");
    push(&mut outbox, now, "b");
    let gone = |number, sent| finish(number, Delivery::ReceiverGone { sent });
    assert_eq!(outbox.receiver_gone(), [gone(1, true), gone(2, false)]);
    assert_eq!(push(&mut outbox, now, "c"), [gone(3, false)]);
    assert_eq!(outbox.wake_at(), None);
}

/// N-01, N-07
#[test]
fn a_failed_batch_is_told_only_as_a_failure_and_only_if_wanted() {
    assert_eq!(notice(true, false), Some(Tidings::Success));
    assert_eq!(notice(true, true), Some(Tidings::Success));
    assert_eq!(notice(false, true), Some(Tidings::Failure));
    assert_eq!(notice(false, false), None);
}
