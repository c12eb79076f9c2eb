use super::*;

fn at(word: u64) -> Gate {
    let gate = Gate::new();
    gate.word.store(word, Ordering::Relaxed);
    gate
}

/// Leaking a billion holds must not make the count run over into the other one.
#[test]
fn full_count_refuses_instead_of_running_over() {
    let gate = at(ACTIVE | COUNT_MASK);
    assert_eq!(gate.enter(Side::Local), Err(Closed::Full));
    assert_eq!(gate.enter_again(Side::Local), Err(Closed::Full));
    assert_eq!(gate.counts(), ((1 << 30) - 1, 0));
    gate.enter(Side::Remote).unwrap();
    gate.leave(Side::Local);
    gate.enter(Side::Local).unwrap();
    assert_eq!(gate.counts(), ((1 << 30) - 1, 1));
}

#[test]
fn full_remote_count_does_not_touch_the_state() {
    let gate = at(ACTIVE | (COUNT_MASK << COUNT_BITS));
    assert_eq!(gate.enter(Side::Remote), Err(Closed::Full));
    assert_eq!((gate.counts(), gate.phase()), ((0, (1 << 30) - 1), Phase::Active));
    gate.block();
    assert_eq!(gate.try_release(), Err(NotReleasable::Held { local: 0, remote: (1 << 30) - 1 }));
}

#[test]
fn activation_after_block_does_not_reopen_the_gate() {
    let gate = Gate::new();
    gate.block();
    gate.activate();
    assert_eq!(gate.phase(), Phase::Blocked);
    assert_eq!(gate.enter(Side::Remote), Err(Closed::Blocked));
}

/// The bit of keeps lies beside the counts and the states.
#[test]
fn keep_changes_neither_counts_nor_phase() {
    let gate = at(ACTIVE | (COUNT_MASK << COUNT_BITS));
    assert!(gate.keep());
    assert!(gate.keep());
    assert_eq!((gate.counts(), gate.phase()), ((0, (1 << 30) - 1), Phase::Active));
    assert!(!gate.unkeep());
    assert!(!gate.unkeep());
    assert_eq!(gate.word.load(Ordering::Relaxed), ACTIVE | (COUNT_MASK << COUNT_BITS));
}

#[test]
fn kept_gate_is_not_released_and_a_released_one_not_kept() {
    let gate = Gate::new();
    assert!(gate.keep());
    gate.block();
    assert_eq!(gate.try_release(), Err(NotReleasable::Kept));
    assert!(!gate.unkeep());
    gate.try_release().unwrap();
    assert!(!gate.keep());
    assert_eq!(gate.word.load(Ordering::Relaxed), BLOCKED | RELEASED);
}

#[test]
fn released_gate_stays_closed() {
    let gate = Gate::new();
    gate.block();
    gate.try_release().unwrap();
    assert_eq!(gate.phase(), Phase::Released);
    assert_eq!(gate.enter(Side::Local), Err(Closed::Blocked));
    assert_eq!(gate.wait_drained(Instant::now()), Ok(()));
}
