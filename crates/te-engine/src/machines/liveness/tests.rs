use super::*;

const SECOND: Duration = Duration::from_secs(1);
const OURS: Incarnation = Incarnation::from_bits(1);
const OTHER: Incarnation = Incarnation::from_bits(2);

const ANSWERED: LivenessEvent = LivenessEvent::HelloAnswered { by: OURS };
const REPLACED: LivenessEvent = LivenessEvent::HelloAnswered { by: OTHER };
const FAILED: LivenessEvent = LivenessEvent::DataFailed(FailureKind::ConnectionLost);

fn peer() -> (Instant, Liveness) {
    let now = Instant::now();
    (now, Liveness::new(now, Some(OURS), LivenessSettings::default()))
}

/// What is believed after these events, one second apart.
fn after_events(events: &[LivenessEvent]) -> Life {
    let (mut now, mut peer) = peer();
    for event in events {
        now += SECOND;
        peer.on(now, *event);
    }
    peer.snapshot().life
}

/// The table in the module's documentation, from every state.
#[test]
fn evidence_and_hello_decide_as_the_table_says() {
    use LivenessEvent::*;
    let replaced = Life::Replaced { by: OTHER };
    for before in [&[][..], &[ANSWERED], &[HelloTimedOut]] {
        for (evidence, silent) in [
            (&[][..], Life::Suspect),
            (&[ControlReset], Life::Lost),
            (&[LeaseGone], Life::Lost),
            (&[Goodbye], Life::Lost),
        ] {
            for (hello, life) in [
                (ANSWERED, Life::Alive),
                (REPLACED, replaced),
                (HelloRefused, Life::Lost),
                (HelloTimedOut, silent),
            ] {
                let events = [before, evidence, &[hello]].concat();
                assert_eq!(after_events(&events), life, "{events:?}");
            }
        }
    }
}

/// FO-13
#[test]
fn only_lost_and_replaced_refuse() {
    assert!(!Life::Unknown.refuses() && !Life::Alive.refuses() && !Life::Suspect.refuses());
    assert!(Life::Lost.refuses() && Life::Replaced { by: OTHER }.refuses());
}

#[test]
fn silence_alone_never_makes_a_peer_lost() {
    assert_eq!(after_events(&[LivenessEvent::HelloTimedOut; 100]), Life::Suspect);
    assert_eq!(after_events(&[FAILED; 100]), Life::Suspect);
}

#[test]
fn data_that_moves_outranks_a_probe_without_answer() {
    let (now, mut peer) = peer();
    peer.on(now, LivenessEvent::DataSucceeded);
    assert_eq!(peer.on(now + SECOND * 4, LivenessEvent::HelloTimedOut), None);
    assert_eq!(peer.snapshot().life, Life::Alive);
    peer.on(now + SECOND * 6, LivenessEvent::HelloTimedOut);
    assert_eq!(peer.snapshot().life, Life::Suspect, "it moved too long ago");
    peer.on(now + SECOND * 7, LivenessEvent::DataSucceeded);
    assert_eq!(peer.snapshot().cause, Cause::DataMoved);
}

#[test]
fn data_that_moves_outranks_a_lease_that_is_gone() {
    let (now, mut peer) = peer();
    peer.on(now, LivenessEvent::LeaseGone);
    peer.on(now + SECOND, LivenessEvent::DataSucceeded);
    peer.on(now + SECOND * 2, LivenessEvent::HelloTimedOut);
    assert_eq!(peer.snapshot().life, Life::Alive);
    peer.on(now + SECOND * 10, LivenessEvent::HelloTimedOut);
    assert_eq!(peer.snapshot().life, Life::Lost);
}

/// FO-13
#[test]
fn a_lost_peer_is_asked_further_on_and_may_come_back() {
    let (start, mut peer) = peer();
    let mut now = start;
    let mut times = Vec::new();
    for _ in 0..8 {
        peer.on(now, LivenessEvent::HelloRefused);
        peer.asked(now);
        times.push(peer.ask_at().unwrap() - now);
        now = peer.ask_at().unwrap();
    }
    assert!(times.is_sorted() && times[0] == SECOND && times[7] == SECOND * 4, "{times:?}");
    let snapshot = LifeSnapshot { life: Life::Lost, cause: Cause::Refused, since: start };
    assert_eq!(peer.snapshot(), snapshot);
    let alive = LifeSnapshot { life: Life::Alive, cause: Cause::HelloAnswered, since: now };
    assert_eq!(peer.on(now, ANSWERED), Some(alive));
}

/// META-02
#[test]
fn a_replaced_life_never_comes_back() {
    use LivenessEvent::*;
    for event in [ANSWERED, DataSucceeded, CannotBeAsked, HelloRefused, Goodbye, LeaseBack] {
        assert_eq!(after_events(&[REPLACED, event]), Life::Replaced { by: OTHER });
    }
    let (now, mut peer) = peer();
    peer.on(now, REPLACED);
    assert_eq!(peer.ask_at(), None);
}

#[test]
fn a_peer_without_probe_is_unknown_until_data_moves() {
    let now = Instant::now();
    let mut peer = Liveness::new(now, None, LivenessSettings::default());
    peer.on(now, LivenessEvent::CannotBeAsked);
    assert_eq!((peer.snapshot().life, peer.snapshot().cause), (Life::Unknown, Cause::CannotBeAsked));
    assert_eq!(peer.ask_at(), None);
    peer.on(now, LivenessEvent::DataSucceeded);
    assert_eq!(peer.snapshot().life, Life::Alive);
    peer.on(now, FAILED);
    assert_eq!(peer.snapshot().life, Life::Suspect);
}

#[test]
fn a_change_is_told_once_and_keeps_its_time() {
    let (now, mut peer) = peer();
    assert!(peer.on(now, ANSWERED).is_some());
    assert_eq!(peer.on(now + SECOND, ANSWERED), None);
    assert_eq!(peer.on(now + SECOND, LivenessEvent::DataSucceeded), None);
    assert_eq!(peer.snapshot(), LifeSnapshot { life: Life::Alive, cause: Cause::DataMoved, since: now });
}

#[test]
fn a_failure_asks_at_once_and_quiet_peers_are_asked_rarely() {
    let (now, mut peer) = peer();
    assert_eq!(peer.ask_at(), Some(now), "nothing is known of it yet");
    peer.on(now, ANSWERED);
    assert_eq!(peer.ask_at(), Some(now + SECOND * 2));
    peer.on(now + SECOND, LivenessEvent::DataSucceeded);
    assert_eq!(peer.ask_at(), Some(now + SECOND * 3), "data spares the question");
    peer.on(now + SECOND, FAILED);
    assert_eq!(peer.ask_at(), Some(now + SECOND));
    peer.asked(now + SECOND);
    assert_eq!(peer.ask_at(), Some(now + SECOND + SECOND / 2));
}

#[test]
fn a_lease_that_comes_back_takes_its_doubt_along() {
    use LivenessEvent::*;
    assert_eq!(after_events(&[LeaseGone, LeaseBack, HelloTimedOut]), Life::Suspect);
    assert_eq!(after_events(&[LeaseGone, ControlReset, LeaseBack, HelloTimedOut]), Life::Lost);
}

/// Every sequence of four events: `Lost` has evidence, `Replaced` another life, `Alive` a success.
#[test]
fn every_belief_has_its_reason() {
    use LivenessEvent::*;
    let events = [
        DataSucceeded,
        FAILED,
        ANSWERED,
        REPLACED,
        HelloTimedOut,
        HelloRefused,
        CannotBeAsked,
        ControlReset,
        LeaseGone,
        LeaseBack,
        Goodbye,
    ];
    let mut seen = std::collections::BTreeSet::new();
    for code in 0..events.len().pow(4) {
        let sequence = [0, 1, 2, 3].map(|place| events[code / events.len().pow(place) % events.len()]);
        let has = |wanted: &[LivenessEvent]| sequence.iter().any(|event| wanted.contains(event));
        let life = after_events(&sequence);
        let reason = match life {
            Life::Lost => {
                has(&[HelloRefused, Goodbye]) || has(&[ControlReset, LeaseGone]) && has(&[HelloTimedOut])
            }
            Life::Replaced { by } => by == OTHER && has(&[REPLACED]),
            Life::Alive => has(&[DataSucceeded, ANSWERED]),
            Life::Suspect => has(&[FAILED, HelloTimedOut, ControlReset, LeaseGone]),
            Life::Unknown => !has(&[DataSucceeded, ANSWERED, REPLACED]) || has(&[CannotBeAsked]),
        };
        assert!(reason, "{life:?} after {sequence:?}");
        seen.insert(format!("{life:?}"));
    }
    assert_eq!(seen.len(), 5);
}
