use super::*;

const A: Generation = Generation::new(1);
const B: Generation = Generation::new(2);

fn joined(version: u64) -> Holding {
    let mut holding = Holding::new(2);
    assert_eq!(holding.begin(A, version), Err(NotUsable::NotJoined));
    holding.joined(version);
    holding
}

/// MR-09
#[test]
fn an_invalidation_is_acknowledged_when_the_last_use_has_ended() {
    let mut holding = joined(5);
    holding.begin(A, 5).unwrap();
    holding.begin(A, 5).unwrap();
    holding.begin(B, 5).unwrap();
    assert!(holding.invalidated(9, 6, vec![A]).is_empty());
    assert_eq!(holding.begin(A, 5), Err(NotUsable::Gone));
    assert!(holding.end(A).is_empty());
    assert!(holding.end(B).is_empty());
    assert_eq!(holding.end(A), [9]);
}

#[test]
fn an_unused_buffer_is_acknowledged_at_once_and_others_stay_usable() {
    let mut holding = joined(5);
    assert_eq!(holding.invalidated(9, 6, vec![A]), [9]);
    assert_eq!(holding.begin(B, 5), Ok(()));
    assert!(holding.uses(B) && !holding.uses(A));
}

/// SEG-07
#[test]
fn a_snapshot_from_before_joining_is_stale() {
    let mut holding = joined(5);
    assert_eq!(holding.begin(A, 4), Err(NotUsable::Stale { needs: 5 }));
    assert_eq!(holding.begin(A, 5), Ok(()));
}

#[test]
fn an_invalidation_that_overtakes_the_joining_counts() {
    let mut holding = Holding::new(2);
    assert_eq!(holding.invalidated(9, 6, vec![A]), [9]);
    holding.joined(5);
    assert_eq!(holding.begin(A, 5), Err(NotUsable::Gone));
}

#[test]
fn a_lost_connection_stops_new_uses_and_forgets_whom_to_answer() {
    let mut holding = joined(5);
    holding.begin(A, 5).unwrap();
    holding.invalidated(9, 6, vec![A]);
    holding.disconnected();
    assert_eq!(holding.begin(B, 5), Err(NotUsable::NotJoined));
    assert!(holding.uses(A), "what runs goes on");
    assert!(holding.end(A).is_empty());
    holding.joined(6);
    assert_eq!(holding.begin(B, 5), Err(NotUsable::Stale { needs: 6 }));
}

#[test]
fn beyond_the_limit_old_snapshots_are_stale_as_a_whole() {
    let mut holding = joined(5);
    for (generation, version) in [(1, 6), (2, 7), (3, 8)] {
        holding.invalidated(version, version, vec![Generation::new(generation)]);
    }
    assert_eq!(holding.begin(A, 5), Err(NotUsable::Stale { needs: 6 }));
    assert_eq!(holding.begin(Generation::new(3), 6), Err(NotUsable::Gone));
    assert_eq!(holding.begin(Generation::new(4), 6), Ok(()));
}
