//! What the model proves, and the flaws it finds.

use super::super::{fails, holds};
use super::{Flaw, Withdrawn};

/// MR-09
#[test]
fn no_memory_is_released_while_a_holder_may_use_it() {
    let seen = holds(&Withdrawn { flaw: Flaw::None, holders: 1, simple: false });
    assert!(seen.states > 1_000, "{seen:?}");
}

/// MR-09
#[test]
fn two_holders_are_waited_for() {
    let seen = holds(&Withdrawn { flaw: Flaw::None, holders: 2, simple: true });
    assert!(seen.states > 5_000, "{seen:?}");
}

/// MR-09
#[test]
fn releasing_without_a_fence_is_found() {
    let why = fails(&Withdrawn { flaw: Flaw::NoFence, holders: 1, simple: false });
    assert!(why.contains("memory is free"), "{why}");
}

/// MR-09
#[test]
fn forgetting_a_holder_without_connection_is_found() {
    let why = fails(&Withdrawn { flaw: Flaw::ForgetsDisconnected, holders: 1, simple: false });
    assert!(why.contains("memory is free"), "{why}");
}

/// MR-09
#[test]
fn an_acknowledgement_during_a_use_is_found() {
    let why = fails(&Withdrawn { flaw: Flaw::AcknowledgesEarly, holders: 1, simple: false });
    assert!(why.contains("memory is free"), "{why}");
}

/// MR-09
#[test]
fn a_fence_that_leaves_the_control_connection_open_is_found() {
    let why = fails(&Withdrawn { flaw: Flaw::KeepsConnection, holders: 1, simple: false });
    assert!(why.contains("can begin to use it"), "{why}");
}

/// META-23, SEG-07
#[test]
fn using_an_old_snapshot_after_joining_is_found() {
    let why = fails(&Withdrawn { flaw: Flaw::TrustsSnapshot, holders: 1, simple: false });
    assert!(why.contains("memory is free"), "{why}");
}
