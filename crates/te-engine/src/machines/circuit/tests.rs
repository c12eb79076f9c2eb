use super::*;

const SECOND: Duration = Duration::from_secs(1);
const KIND: FailureKind = FailureKind::Unreachable;

fn circuit() -> (Instant, Circuit) {
    (Instant::now(), Circuit::new(CircuitSettings::default()))
}

/// Attempts as often as the circuit lets one through; the times since the start.
fn attempts(
    settings: CircuitSettings,
    length: Duration,
    outcome: impl Fn(&mut Circuit, Instant, Ticket),
) -> Vec<Duration> {
    let (start, mut circuit) = (Instant::now(), Circuit::new(settings));
    let mut times = Vec::new();
    let mut now = start;
    while now - start < length {
        match circuit.admit(now) {
            Ok(ticket) => {
                times.push(now - start);
                outcome(&mut circuit, now, ticket);
                if let CircuitState::Open { until } = circuit.state {
                    assert!(until >= now + Duration::from_millis(500) && until <= now + SECOND * 5);
                }
            }
            Err(CircuitOpen { until }) => now = until,
        }
        now += Duration::from_millis(1);
    }
    times
}

fn most_in_ten_seconds(times: &[Duration]) -> usize {
    let count = |from: &Duration| times.iter().filter(|at| *at >= from && **at < *from + SECOND * 10).count();
    times.iter().map(count).max().unwrap_or(0)
}

/// EP-07
#[test]
fn constant_failure_makes_at_most_five_attempts_in_ten_seconds() {
    for jitter in [0, 1, u16::MAX / 2, u16::MAX] {
        let times = attempts(CircuitSettings::default(), SECOND * 120, |c, now, ticket| {
            c.failed(now, ticket, KIND, jitter)
        });
        let most = most_in_ten_seconds(&times);
        assert!((2..=5).contains(&most), "{most} with jitter {jitter}: {times:?}");
        assert!(times.len() > 20, "given up: {times:?}");
    }
}

/// EP-07
#[test]
fn working_for_a_moment_after_each_reconnect_does_not_make_a_storm() {
    let times = attempts(CircuitSettings::default(), SECOND * 60, |circuit, now, ticket| {
        circuit.succeeded(now, ticket);
        circuit.failed(now + Duration::from_millis(1), ticket, KIND, 0);
    });
    assert!(most_in_ten_seconds(&times) <= 5, "{times:?}");
}

/// EP-07
#[test]
fn without_growth_there_would_be_a_storm() {
    let first = CircuitSettings::default().first;
    let flawed = CircuitSettings { longest: first, ..CircuitSettings::default() };
    let times = attempts(flawed, SECOND * 60, |circuit, now, ticket| circuit.failed(now, ticket, KIND, 0));
    assert!(most_in_ten_seconds(&times) > 5, "{times:?}");
}

/// FO-06
#[test]
fn a_path_is_tried_again_within_five_seconds_and_closes_on_success() {
    let (start, mut circuit) = circuit();
    let mut now = start;
    for _ in 0..100 {
        let ticket = circuit.admit(now).unwrap();
        circuit.failed(now, ticket, KIND, u16::MAX);
        let until = circuit.admit(now).unwrap_err().until;
        assert!(until > now && until <= now + SECOND * 5);
        now = until;
    }
    let ticket = circuit.admit(now).unwrap();
    assert_eq!(circuit.snapshot().state, CircuitState::HalfOpen { since: now });
    circuit.succeeded(now, ticket);
    assert_eq!(circuit.snapshot().state, CircuitState::Closed);
    assert!(circuit.admit(now).is_ok() && circuit.admit(now).is_ok());
}

/// FO-06
#[test]
fn half_open_lets_one_through_at_a_time() {
    let (now, mut circuit) = circuit();
    let ticket = circuit.admit(now).unwrap();
    circuit.failed(now, ticket, KIND, 0);
    let later = now + SECOND;
    let probe = circuit.admit(later).unwrap();
    assert!(circuit.admit(later).is_err());
    circuit.abandoned(later, probe);
    let again = circuit.admit(later).unwrap();
    circuit.succeeded(later, probe);
    assert!(circuit.admit(later).is_err(), "the outcome of an abandoned attempt counts for nothing");
    circuit.succeeded(later, again);
    assert!(circuit.admit(later).is_ok());
}

/// FO-06
#[test]
fn an_attempt_nobody_hears_of_again_does_not_block_the_path() {
    let (now, mut circuit) = circuit();
    let ticket = circuit.admit(now).unwrap();
    circuit.failed(now, ticket, KIND, 0);
    let _lost = circuit.admit(now + SECOND).unwrap();
    assert_eq!(circuit.admit(now + SECOND * 2).unwrap_err().until, now + SECOND * 31);
    assert!(circuit.admit(now + SECOND * 31).is_ok());
}

/// EP-07
#[test]
fn many_failures_of_one_connection_count_once() {
    let (now, mut circuit) = circuit();
    let tickets: Vec<_> = (0..64).map(|_| circuit.admit(now).unwrap()).collect();
    for ticket in &tickets {
        circuit.failed(now, *ticket, KIND, 0);
    }
    assert_eq!(circuit.snapshot().failures, 1);
    let ticket = circuit.admit(now + SECOND).unwrap();
    circuit.succeeded(now + SECOND, ticket);
    circuit.failed(now + SECOND, tickets[0], KIND, 0);
    assert_eq!(circuit.snapshot().state, CircuitState::Closed, "it was of the time before");
}

#[test]
fn after_a_calm_time_the_back_off_begins_at_the_first() {
    let (mut now, mut circuit) = circuit();
    for _ in 0..5 {
        let ticket = circuit.admit(now).unwrap();
        circuit.failed(now, ticket, KIND, 0);
        now += SECOND * 5;
    }
    let ticket = circuit.admit(now).unwrap();
    circuit.succeeded(now, ticket);
    now += SECOND * 10;
    circuit.failed(now, ticket, KIND, 0);
    let until = now + Duration::from_millis(500);
    let snapshot = CircuitSnapshot { state: CircuitState::Open { until }, failures: 1, last: Some(KIND) };
    assert_eq!(circuit.snapshot(), snapshot);
}

#[test]
fn refusals_and_cancellations_do_not_blame_the_path() {
    use FailureKind::*;
    for kind in
        [Rejected, StaleIncarnation, BufferGone, Cancelled, LocalMemory, Unsupported, Shutdown, Unconfirmed]
    {
        assert!(!blames_path(kind), "{kind}");
    }
    for kind in [Unreachable, ConnectionLost, TimedOut, Protocol, Dropped] {
        assert!(blames_path(kind), "{kind}");
    }
}
