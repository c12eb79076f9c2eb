use std::time::Duration;

use super::*;

const A: Incarnation = Incarnation::from_bits(1);
const B: Incarnation = Incarnation::from_bits(2);
const SECOND: Duration = Duration::from_secs(1);

fn arrivals(queue: usize) -> Arrivals {
    Arrivals::new(ArrivalLimits { queue, senders: 2, expectations: 2 })
}

fn note(message: &str) -> Note {
    Note { name: "a".into(), message: message.into(), tidings: Tidings::Success }
}

fn failure(message: &str) -> Note {
    Note { tidings: Tidings::Failure, ..note(message) }
}

/// N-04
#[test]
fn a_number_that_came_before_is_a_duplicate_for_its_sender_only() {
    let mut arrivals = arrivals(9);
    assert_eq!(arrivals.offer(A, 3, note("x")), Arrival::Taken);
    assert_eq!(arrivals.offer(A, 3, note("x")), Arrival::Duplicate);
    assert_eq!(arrivals.offer(A, 2, note("w")), Arrival::Duplicate);
    assert_eq!(arrivals.offer(B, 3, note("y")), Arrival::Taken);
    let taken: Vec<_> = std::iter::from_fn(|| arrivals.take()).map(|note| note.message).collect();
    assert_eq!(taken, ["x", "y"]);
}

/// N-04
#[test]
fn what_found_no_room_is_taken_when_it_comes_again() {
    let mut arrivals = arrivals(1);
    assert_eq!(arrivals.offer(A, 1, note("x")), Arrival::Taken);
    assert_eq!(arrivals.offer(A, 2, note("y")), Arrival::Full);
    arrivals.take();
    assert_eq!(arrivals.offer(A, 2, note("y")), Arrival::Taken);
    assert_eq!(arrivals.offer_unnumbered(note("z")), Arrival::Full);
}

/// N-07
#[test]
fn an_expectation_succeeds_with_the_last_of_its_messages() {
    let (now, mut arrivals) = (Instant::now(), arrivals(9));
    arrivals.offer(A, 1, note("layer"));
    arrivals.offer(A, 2, note("other"));
    let id = arrivals.expect(now, "layer".into(), 2, now + SECOND).unwrap();
    assert_eq!(arrivals.ended(), []);
    arrivals.offer(B, 1, note("layer"));
    assert_eq!(arrivals.ended(), [(id, Expected::Success)]);
    assert_eq!(arrivals.take(), Some(note("other")), "the rest is there for others");
    assert_eq!(arrivals.take(), None);
}

/// N-07
#[test]
fn an_expectation_fails_with_the_first_failure() {
    let (now, mut arrivals) = (Instant::now(), arrivals(9));
    let id = arrivals.expect(now, "layer".into(), 9, now + SECOND).unwrap();
    arrivals.offer(A, 1, note("layer"));
    arrivals.offer(A, 2, failure("layer"));
    assert_eq!(arrivals.ended(), [(id, Expected::Failure)]);
}

/// N-07, FO-05
#[test]
fn an_expectation_ends_at_its_deadline() {
    let (now, mut arrivals) = (Instant::now(), arrivals(9));
    let id = arrivals.expect(now, "layer".into(), 2, now + SECOND).unwrap();
    arrivals.offer(A, 1, note("layer"));
    assert_eq!(arrivals.wake_at(), Some(now + SECOND));
    arrivals.tick(now + SECOND);
    assert_eq!(arrivals.ended(), [(id, Expected::TimedOut { arrived: 1 })]);
    let late = arrivals.expect(now + SECOND, "layer".into(), 1, now).unwrap();
    assert_eq!(arrivals.ended(), [(late, Expected::TimedOut { arrived: 0 })]);
}

#[test]
fn expectations_of_one_message_are_served_in_their_order() {
    let (now, mut arrivals) = (Instant::now(), arrivals(9));
    let one = arrivals.expect(now, "x".into(), 1, now + SECOND).unwrap();
    let two = arrivals.expect(now, "x".into(), 1, now + SECOND).unwrap();
    assert_eq!(arrivals.expect(now, "x".into(), 1, now + SECOND), None, "over the limit");
    arrivals.offer(A, 1, note("x"));
    assert_eq!(arrivals.ended(), [(one, Expected::Success)]);
    arrivals.forget(two);
    arrivals.offer(A, 2, note("x"));
    assert_eq!((arrivals.ended(), arrivals.take()), (vec![], Some(note("x"))));
    let none = arrivals.expect(now, "x".into(), 0, now + SECOND).unwrap();
    assert_eq!(arrivals.ended(), [(none, Expected::Success)]);
}

#[test]
fn what_is_expected_needs_no_room() {
    let (now, mut arrivals) = (Instant::now(), arrivals(1));
    arrivals.offer(A, 1, note("x"));
    arrivals.expect(now, "y".into(), 1, now + SECOND).unwrap();
    assert_eq!(arrivals.offer(A, 2, note("y")), Arrival::Taken);
}

#[test]
fn a_newcomer_takes_the_place_of_the_sender_that_is_gone_longest() {
    let mut arrivals = arrivals(9);
    arrivals.offer(A, 5, note("x"));
    arrivals.offer(B, 5, note("x"));
    let newcomer = Incarnation::from_bits(3);
    assert_eq!(arrivals.offer(newcomer, 1, note("x")), Arrival::Full, "both are connected");
    arrivals.disconnected(A);
    arrivals.disconnected(B);
    arrivals.connected(A);
    assert_eq!(arrivals.offer(newcomer, 1, note("x")), Arrival::Taken);
    assert_eq!(arrivals.offer(A, 5, note("x")), Arrival::Duplicate, "A is remembered");
}
