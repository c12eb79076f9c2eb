use te_segment::TransportKind;

use super::*;

fn label(port: u16) -> Arc<PathLabel> {
    Arc::new(PathLabel::new(TransportKind::TCP, format!("10.0.0.3:{port}")))
}

fn peer() -> SegmentName {
    SegmentName::new("target").unwrap()
}

/// FO-06: a path that failed goes last for a while, and one attempt decides whether it is used again.
#[test]
fn a_failed_path_is_open_and_one_success_closes_it() {
    let lane = Lane::new(label(1), Arc::default());
    let now = Instant::now();
    let first = lane.ticket(now);
    assert!(!lane.is_troubled());
    lane.failed(first, FailureKind::ConnectionLost, true);
    assert!(lane.is_troubled() && lane.is_open(now));
    let told = lane.circuit(now);
    assert!(matches!(told.state, PathCircuitState::Open { remaining } if !remaining.is_zero()));
    assert_eq!((told.failures, told.last_failure), (1, Some(FailureKind::ConnectionLost)));

    let later = now + Duration::from_secs(10);
    assert!(!lane.is_open(later));
    let trial = lane.ticket(later);
    assert_eq!(lane.circuit(later).state, PathCircuitState::HalfOpen);
    assert!(lane.is_open(later), "one attempt at a time");
    lane.succeeded(first);
    assert_eq!(lane.circuit(later).state, PathCircuitState::HalfOpen, "an attempt of before says nothing");
    lane.succeeded(trial);
    assert_eq!(lane.circuit(later).state, PathCircuitState::Closed);
    assert!(!lane.is_open(later));
}

/// FO-06: never forbidden for good: a path that is used although it is open is a trial.
#[test]
fn an_open_path_that_is_used_all_the_same_closes_with_its_success() {
    let lane = Lane::new(label(1), Arc::default());
    let now = Instant::now();
    lane.failed(lane.ticket(now), FailureKind::Unreachable, true);
    assert!(lane.is_open(now));
    lane.succeeded(lane.ticket(now));
    assert_eq!(lane.circuit(now).state, PathCircuitState::Closed);
}

#[test]
fn what_the_request_is_to_blame_for_opens_nothing() {
    let lane = Lane::new(label(1), Arc::default());
    let now = Instant::now();
    lane.failed(lane.ticket(now), FailureKind::Rejected, true);
    lane.failed(lane.ticket(now), FailureKind::Cancelled, true);
    lane.failed(lane.ticket(now), FailureKind::TimedOut, false);
    assert!(!lane.is_troubled());
    assert_eq!(lane.circuit(now).to_string(), "closed");
}

#[test]
fn an_open_circuit_says_for_how_long_and_why() {
    let lane = Lane::new(label(1), Arc::default());
    let now = Instant::now();
    lane.failed(lane.ticket(now), FailureKind::Unreachable, true);
    let text = lane.circuit(now).to_string();
    assert!(
        text.starts_with("open for ") && text.ends_with(" ms more after 1 failure, the last: unreachable")
    );
}

/// FO-06: what is known of a path outlives the snapshots that use it; another life of the peer starts anew.
#[test]
fn lanes_are_shared_within_a_life() {
    let lanes = Lanes::default();
    let life = Some(Incarnation::from_bits(1));
    let lane = lanes.lane(&peer(), life, &label(1));
    lane.failed(lane.ticket(Instant::now()), FailureKind::Unreachable, true);
    drop(lane);
    assert!(lanes.lane(&peer(), life, &label(1)).is_troubled());
    assert!(!lanes.lane(&peer(), life, &label(2)).is_troubled());
    assert!(!lanes.lane(&peer(), Some(Incarnation::from_bits(2)), &label(1)).is_troubled());
    let circuits = lanes.circuits(&peer(), life);
    assert_eq!(
        circuits.iter().map(|circuit| circuit.path.detail()).collect::<Vec<_>>(),
        ["10.0.0.3:1", "10.0.0.3:2"]
    );
}

#[test]
fn lanes_that_nobody_uses_are_forgotten() {
    let lanes = Lanes::default();
    let kept = lanes.lane(&peer(), None, &label(0));
    for port in 1..1000 {
        drop(lanes.lane(&peer(), None, &label(port)));
    }
    assert!(lanes.circuits(&peer(), None).len() < 200);
    assert!(Arc::ptr_eq(&kept, &lanes.lane(&peer(), None, &label(0))));
}
