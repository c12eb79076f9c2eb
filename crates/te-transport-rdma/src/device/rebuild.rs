//! Whether the device of a NIC is in use, and how it comes back after it has failed, as a state machine over (now, event):
//! no I/O, no clock, no device in here.
//!
//! ```text
//!         failed           closed           opened            all is registered
//! (InUse) ------> Closing -------> Closed --------> Filling --------------------> InUse
//!                  ^               ^    | not opened    | failed, or something could not be registered
//!                  |               +----+               |
//!                  +------------------------------------+
//! ```
//!
//! What was made from a device that has failed is gone before it is opened again, and it is tried less and less often while
//! that is in vain. One that fails soon after it came back is tried no sooner for that.

use std::time::{Duration, Instant};

use crate::store::{Circuit, Pace};

/// How soon it is looked again for what somebody else still uses.
const AGAIN: Duration = Duration::from_millis(10);

/// How fast a device is opened again. A driver that starts its device anew takes seconds for it.
const PACE: Pace = Pace {
    first: Duration::from_millis(100),
    longest: Duration::from_secs(30),
    steady: Duration::from_secs(60),
};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The device has failed.
    Failed,
    /// What was made from it is gone, and it is closed.
    Closed,
    /// It could not be opened, or not all that it needs could be made.
    NotOpened,
    /// It is open. Nothing is registered at it, and nobody uses it.
    Opened,
    /// One region more is registered at it, or was withdrawn.
    Registered,
    /// A region could not be registered at it.
    NotRegistered,
    /// Every region is registered at it, and it is used from now on.
    Complete,
    /// Somebody else still has something that the step needs.
    Busy,
    /// It is not to come back any more.
    Shut,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing.
    Rest,
    /// Nothing until then.
    WaitUntil(Instant),
    /// Close it: answered by [`Event::Closed`] or [`Event::Busy`].
    Close,
    /// Open it: answered by [`Event::Opened`] or [`Event::NotOpened`].
    Open,
    /// Register one region more at it, or put it to use if none is left: answered by [`Event::Registered`],
    /// [`Event::NotRegistered`], [`Event::Complete`] or [`Event::Busy`].
    Register,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    InUse,
    Closing { at: Instant },
    Closed { at: Instant },
    Filling { at: Instant },
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rebuild {
    state: State,
    circuit: Circuit,
    shut: bool,
}

impl Default for Rebuild {
    /// The device is in use.
    fn default() -> Self {
        Self { state: State::InUse, circuit: Circuit::new(PACE), shut: false }
    }
}

impl Rebuild {
    /// What is to be done now.
    pub(crate) fn step(&self, now: Instant) -> Step {
        let (at, step) = match self.state {
            State::InUse => return Step::Rest,
            // What is left of it goes in any case.
            State::Closing { at } => (at, Step::Close),
            _ if self.shut => return Step::Rest,
            State::Closed { at } => (at, Step::Open),
            State::Filling { at } => (at, Step::Register),
        };
        if at <= now { step } else { Step::WaitUntil(at) }
    }

    /// Whether something of a device that has failed is still there.
    pub(crate) fn is_closing(&self) -> bool {
        matches!(self.state, State::Closing { .. })
    }

    /// Takes in what happened; what makes no sense now changes nothing. `roll` is a random number.
    pub(crate) fn handle(&mut self, now: Instant, event: Event, roll: u32) {
        self.state = match (self.state, event) {
            (_, Event::Shut) => {
                self.shut = true;
                return;
            }
            (State::InUse, Event::Failed) => {
                self.circuit.worked(now);
                self.circuit.failed(now, roll);
                State::Closing { at: now }
            }
            (State::Filling { .. }, Event::Failed | Event::NotRegistered) => {
                self.circuit.failed(now, roll);
                State::Closing { at: now }
            }
            (State::Closing { .. }, Event::Closed) => {
                State::Closed { at: self.circuit.until().unwrap_or(now) }
            }
            (State::Closing { .. }, Event::Busy) => State::Closing { at: now + AGAIN },
            (State::Closed { .. }, Event::NotOpened) => {
                self.circuit.failed(now, roll);
                State::Closed { at: self.circuit.until().unwrap_or(now) }
            }
            (State::Closed { .. }, Event::Opened) | (State::Filling { .. }, Event::Registered) => {
                State::Filling { at: now }
            }
            (State::Filling { .. }, Event::Busy) => State::Filling { at: now + AGAIN },
            (State::Filling { .. }, Event::Complete) => State::InUse,
            (state, _) => state,
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// In the middle of the spread.
    const ROLL: u32 = u32::MAX / 2;

    struct Rig {
        now: Instant,
        rebuild: Rebuild,
    }

    impl Rig {
        fn new() -> Self {
            Self { now: Instant::now(), rebuild: Rebuild::default() }
        }

        /// What happens at the next thing to be done, after the wait for it; how long that was.
        fn then(&mut self, step: Step, event: Event) -> Duration {
            let waited = match self.rebuild.step(self.now) {
                Step::WaitUntil(at) => at - self.now,
                _ => Duration::ZERO,
            };
            self.now += waited;
            assert_eq!(self.rebuild.step(self.now), step);
            self.tell(event);
            waited
        }

        fn tell(&mut self, event: Event) {
            self.rebuild.handle(self.now, event, ROLL);
        }

        /// The device fails and comes back at the first try; how long that was waited for.
        fn lose(&mut self) -> Duration {
            self.tell(Event::Failed);
            self.then(Step::Close, Event::Closed);
            let waited = self.then(Step::Open, Event::Opened);
            self.then(Step::Register, Event::Complete);
            assert_eq!(self.rebuild.step(self.now), Step::Rest);
            waited
        }
    }

    fn is_about(found: Duration, expected: u64) -> bool {
        found.abs_diff(Duration::from_millis(expected)) <= Duration::from_millis(1)
    }

    #[test]
    fn a_device_comes_back_once_what_was_made_from_it_is_gone_and_all_is_registered() {
        let mut rig = Rig::new();
        assert_eq!(rig.rebuild.step(rig.now), Step::Rest);
        rig.tell(Event::Failed);
        assert_eq!(rig.then(Step::Close, Event::Busy), Duration::ZERO);
        assert_eq!(rig.then(Step::Close, Event::Busy), AGAIN);
        assert!(rig.rebuild.is_closing());
        rig.then(Step::Close, Event::Closed);
        assert!(!rig.rebuild.is_closing());
        assert!(rig.then(Step::Open, Event::Opened) <= PACE.first);
        assert_eq!(rig.then(Step::Register, Event::Registered), Duration::ZERO);
        assert_eq!(rig.then(Step::Register, Event::Busy), Duration::ZERO);
        assert_eq!(rig.then(Step::Register, Event::Complete), AGAIN);
        assert_eq!(rig.rebuild.step(rig.now), Step::Rest);
    }

    #[test]
    fn a_device_that_does_not_come_back_is_tried_less_and_less_often() {
        let mut rig = Rig::new();
        rig.tell(Event::Failed);
        rig.then(Step::Close, Event::Closed);
        for expected in [100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000] {
            let waited = rig.then(Step::Open, Event::NotOpened);
            assert!(is_about(waited, expected), "{waited:?} {expected}");
        }
    }

    #[test]
    fn a_device_at_which_not_all_can_be_registered_is_closed_and_tried_later() {
        let mut rig = Rig::new();
        rig.tell(Event::Failed);
        rig.then(Step::Close, Event::Closed);
        for (event, expected) in
            [(Event::NotRegistered, 100), (Event::Failed, 200), (Event::NotRegistered, 400)]
        {
            let waited = rig.then(Step::Open, Event::Opened);
            assert!(is_about(waited, expected), "{waited:?} {expected}");
            rig.then(Step::Register, event);
            rig.then(Step::Close, Event::Closed);
        }
    }

    #[test]
    fn a_device_that_fails_again_and_again_is_not_tried_sooner_for_having_come_back() {
        let mut rig = Rig::new();
        for expected in [100, 200, 400] {
            let waited = rig.lose();
            assert!(is_about(waited, expected), "{waited:?} {expected}");
        }
        rig.now += PACE.steady;
        let waited = rig.lose();
        assert!(is_about(waited, 100), "{waited:?}");
    }

    #[test]
    fn at_the_end_it_is_closed_and_stays_so() {
        let mut rig = Rig::new();
        rig.tell(Event::Failed);
        rig.tell(Event::Shut);
        rig.then(Step::Close, Event::Closed);
        assert_eq!(rig.rebuild.step(rig.now + PACE.longest), Step::Rest);
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let all = [
            Event::Failed,
            Event::Closed,
            Event::NotOpened,
            Event::Opened,
            Event::Registered,
            Event::NotRegistered,
            Event::Complete,
            Event::Busy,
        ];
        proptest::collection::vec(proptest::sample::select(all.to_vec()), 0..200)
    }

    proptest! {
        /// Whatever comes in whatever order, it is used only after it was opened, filled and completed, it is opened only after
        /// it was closed, and every wait ends.
        #[test]
        fn no_order_of_events_leads_astray(events in events()) {
            let mut rig = Rig::new();
            for event in events {
                let before = rig.rebuild.state;
                rig.tell(event);
                match (before, rig.rebuild.state) {
                    (before, after) if before == after => {}
                    (State::InUse, after) => assert!(matches!(after, State::Closing { .. })),
                    (State::Closing { .. }, after) => {
                        assert!(matches!(after, State::Closing { .. } | State::Closed { .. }));
                    }
                    (State::Closed { .. }, after) => {
                        assert!(matches!(after, State::Closed { .. } | State::Filling { .. }));
                    }
                    (State::Filling { .. }, _) => {}
                }
                if let Step::WaitUntil(at) = rig.rebuild.step(rig.now) {
                    assert!(at - rig.now <= PACE.longest.mul_f64(1.25));
                    rig.now = at;
                }
            }
        }
    }
}
