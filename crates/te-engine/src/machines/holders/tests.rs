use super::*;

const ONE: Incarnation = Incarnation::from_bits(1);
const TWO: Incarnation = Incarnation::from_bits(2);
const SECOND: Duration = Duration::from_secs(1);

use WithdrawalAction as Act;
use WithdrawalEvent as Event;

/// Two holders and two transports; a request of ours uses the buffer.
fn withdrawal() -> (Instant, Withdrawal) {
    let mut table = InterestTable::new(8, 1);
    assert_eq!((table.join(ONE), table.join(TWO)), (Ok(1), Ok(1)));
    let mut withdrawal = table.withdraw(2, 2, WithdrawalSettings::default());
    let now = Instant::now();
    assert_eq!(withdrawal.on(now, Event::Held { local: 1, remote: 0 }), []);
    (now, withdrawal)
}

fn run(withdrawal: &mut Withdrawal, now: Instant, seconds: u32) -> Vec<Act> {
    withdrawal.on(now, Event::Run { deadline: now + SECOND * seconds })
}

const NOTHING_HELD: Event = Event::Held { local: 0, remote: 0 };

/// MR-09
#[test]
fn acknowledged_and_drained_it_goes_straight_through() {
    let (now, mut it) = withdrawal();
    let announced = [Act::Publish, Act::Invalidate { holder: ONE }, Act::Invalidate { holder: TWO }];
    assert_eq!(run(&mut it, now, 9), announced);
    assert_eq!(it.on(now, Event::Acknowledged { holder: TWO }), []);
    assert_eq!(it.on(now, Event::Acknowledged { holder: ONE }), []);
    assert_eq!(it.phase(), WithdrawalPhase::Draining);
    let revoke = [Act::Revoke { transport: 0 }, Act::Revoke { transport: 1 }];
    assert_eq!(it.on(now, NOTHING_HELD), revoke);
    assert_eq!(it.on(now, Event::Revoked { transport: 1 }), []);
    assert_eq!(it.on(now, Event::Revoked { transport: 0 }), [Act::Release]);
    assert_eq!(it.on(now, Event::Released), [Act::Finish(Ok(()))]);
    assert_eq!((it.phase(), it.wake_at()), (WithdrawalPhase::Released, None));
    assert_eq!(run(&mut it, now, 9), [Act::Finish(Ok(()))], "again is fine");
}

#[test]
fn what_was_never_offered_is_drained_at_once() {
    let mut it = Withdrawal::unoffered(1, WithdrawalSettings::default());
    let now = Instant::now();
    it.on(now, Event::Held { local: 1, remote: 0 });
    assert_eq!(run(&mut it, now, 9), []);
    assert_eq!(it.phase(), WithdrawalPhase::Draining);
    assert_eq!(it.on(now, NOTHING_HELD), [Act::Revoke { transport: 0 }]);
}

/// MR-09
#[test]
fn who_does_not_acknowledge_in_time_is_fenced() {
    let (now, mut it) = withdrawal();
    run(&mut it, now, 9);
    it.on(now, NOTHING_HELD);
    it.on(now, Event::Acknowledged { holder: ONE });
    assert_eq!(it.wake_at(), Some(now + SECOND));
    assert_eq!(it.on(now + SECOND, Event::Tick), [Act::Fence { holder: TWO }]);
    let revoke = [Act::Revoke { transport: 0 }, Act::Revoke { transport: 1 }];
    assert_eq!(it.on(now + SECOND, Event::Fenced { holder: TWO }), revoke);
}

#[test]
fn nobody_is_waited_for_who_cannot_hear() {
    let (now, mut it) = withdrawal();
    run(&mut it, now, 9);
    it.on(now, NOTHING_HELD);
    it.on(now, Event::Acknowledged { holder: ONE });
    assert_eq!(it.on(now, Event::Disconnected { holder: TWO }), [Act::Fence { holder: TWO }]);
    assert_eq!(it.on(now, Event::Connected { holder: TWO }), [Act::Invalidate { holder: TWO }]);
    assert!(it.on(now, Event::Acknowledged { holder: TWO }).contains(&Act::Revoke { transport: 0 }));
}

#[test]
fn requests_that_do_not_end_are_cut_before_the_deadline() {
    let (now, mut it) = withdrawal();
    run(&mut it, now, 4);
    it.on(now, Event::Acknowledged { holder: ONE });
    it.on(now, Event::Acknowledged { holder: TWO });
    assert_eq!(it.wake_at(), Some(now + SECOND * 3));
    assert_eq!(it.on(now + SECOND * 3, Event::Tick), [Act::Cut]);
    assert_eq!(it.on(now + SECOND * 3, Event::Tick), []);
    assert_eq!(it.wake_at(), Some(now + SECOND * 4));
}

#[test]
fn a_holder_that_stopped_in_the_middle_of_a_request_is_fenced_in_the_drain() {
    let (now, mut it) = withdrawal();
    run(&mut it, now, 9);
    it.on(now, Event::Held { local: 0, remote: 1 });
    it.on(now, Event::Acknowledged { holder: ONE });
    assert_eq!(it.on(now + SECOND, Event::Tick), []);
    assert_eq!(it.phase(), WithdrawalPhase::Draining);
    let late = now + SECOND * 6;
    assert_eq!(it.on(late, Event::Tick), [Act::Cut, Act::Fence { holder: TWO }]);
    assert_eq!(it.on(late, Event::Fenced { holder: TWO }), []);
    assert!(it.on(late, NOTHING_HELD).contains(&Act::Revoke { transport: 0 }));
}

#[test]
fn the_deadline_names_everything_that_holds_the_range_and_the_next_run_goes_on() {
    let (now, mut it) = withdrawal();
    run(&mut it, now, 2);
    it.on(now, Event::Acknowledged { holder: ONE });
    let actions = it.on(now + SECOND * 2, Event::Tick);
    let held = StillHeld {
        phase: WithdrawalPhase::Draining,
        local: 1,
        remote: 0,
        holders: vec![TWO],
        transports: vec![0, 1],
    };
    let text = held.to_string();
    assert!(text.contains("1 local and 0 remote") && text.contains(&TWO.to_string()), "{text}");
    assert_eq!(actions.last(), Some(&Act::Finish(Err(held))));
    assert_eq!(it.wake_at(), None);
    let later = now + SECOND * 100;
    assert_eq!(it.on(later, NOTHING_HELD), [], "between runs nothing is done");
    assert_eq!(run(&mut it, later, 2), [Act::Fence { holder: TWO }]);
}

#[test]
fn a_transport_that_fails_ends_the_run_and_is_the_only_one_asked_again() {
    let (now, mut it) = withdrawal();
    run(&mut it, now, 9);
    it.on(now, Event::Acknowledged { holder: ONE });
    it.on(now, Event::Acknowledged { holder: TWO });
    it.on(now, NOTHING_HELD);
    assert_eq!(it.on(now, Event::RevokeFailed { transport: 0 }), [], "the other one is not done");
    let only = |actions: &[Act]| matches!(actions, [Act::Finish(Err(held))] if held.transports == [0]);
    assert!(only(&it.on(now, Event::Revoked { transport: 1 })));
    let again = run(&mut it, now, 9);
    assert_eq!(again, [Act::Revoke { transport: 0 }]);
    assert!(only(&it.on(now, Event::RevokeFailed { transport: 0 })));
}

#[test]
fn a_full_table_names_a_holder_without_connection() {
    let mut table = InterestTable::new(2, 7);
    assert_eq!((table.join(ONE), table.join(TWO)), (Ok(7), Ok(7)));
    let three = Incarnation::from_bits(3);
    assert_eq!(table.join(three), Err(TooManyHolders { limit: 2, replaceable: None }));
    table.disconnected(TWO);
    assert_eq!(table.join(three), Err(TooManyHolders { limit: 2, replaceable: Some(TWO) }));
    assert_eq!(table.join(TWO), Ok(7), "who is in comes in again");
    table.remove(ONE);
    assert_eq!((table.join(three), table.len()), (Ok(7), 2));
}

/// SEG-09
#[test]
fn who_joins_during_a_withdrawal_is_told_the_new_version() {
    let mut table = InterestTable::new(8, 1);
    table.withdraw(2, 0, WithdrawalSettings::default());
    assert_eq!(table.join(ONE), Ok(2));
}
