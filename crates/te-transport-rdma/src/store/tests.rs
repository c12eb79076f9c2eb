use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::endpoint::{Closed, Event, Exchange, ReadyAck, RemoteSet, Timeouts, Turn};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Pair {
    busy: bool,
    gone: bool,
}

impl Held for Pair {
    fn endpoints(&self) -> usize {
        usize::from(!self.gone)
    }

    fn is_busy(&self) -> bool {
        self.busy
    }

    fn next_generation(&self) -> Generation {
        Generation::new(9)
    }
}

/// The policy as one would write it down: oldest first, the hand as an index from the oldest.
#[derive(Default)]
struct Plain {
    /// Key, used, busy.
    queue: Vec<(u8, bool, bool)>,
    hand: Option<usize>,
}

impl Plain {
    fn remove(&mut self, key: u8) {
        let Some(at) = self.queue.iter().position(|entry| entry.0 == key) else { return };
        self.queue.remove(at);
        self.hand = match self.hand {
            Some(hand) if hand > at => Some(hand - 1),
            Some(hand) if hand == at && hand == self.queue.len() => None,
            hand => hand,
        };
    }

    fn evict(&mut self) -> Option<u8> {
        for _ in 0..2 * self.queue.len() {
            let at = self.hand.unwrap_or(0);
            let next = (at + 1 < self.queue.len()).then_some(at + 1);
            let (key, used, busy) = self.queue[at];
            if !busy && !used {
                self.hand = Some(at);
                self.remove(key);
                return Some(key);
            }
            if !busy {
                self.queue[at].1 = false;
            }
            self.hand = next;
        }
        None
    }
}

#[derive(Clone, Debug)]
enum Act {
    Insert(u8),
    Get(u8),
    Busy(u8, bool),
    Retire(u8),
    Room,
}

fn act() -> impl Strategy<Value = Act> {
    let key = 0..12_u8;
    prop_oneof![
        3 => key.clone().prop_map(Act::Insert),
        3 => key.clone().prop_map(Act::Get),
        1 => (key.clone(), any::<bool>()).prop_map(|(key, busy)| Act::Busy(key, busy)),
        1 => key.prop_map(Act::Retire),
        3 => Just(Act::Room),
    ]
}

proptest! {
    /// EP-03: the policy equals the plain one, and what is busy stays.
    #[test]
    fn the_store_evicts_as_the_plain_policy_does(acts in proptest::collection::vec(act(), 0..200), cap in 1..8_usize) {
        let mut store = Store::new(cap);
        let mut plain = Plain::default();
        for act in acts {
            match act {
                Act::Insert(key) => {
                    store.insert(key, Pair::default());
                    plain.remove(key);
                    plain.queue.push((key, false, false));
                }
                Act::Get(key) => {
                    let known = plain.queue.iter_mut().find(|entry| entry.0 == key);
                    prop_assert_eq!(store.get(&key).is_some(), known.is_some());
                    if let Some(entry) = known {
                        entry.1 = true;
                    }
                }
                Act::Busy(key, busy) => {
                    let held = store.kept().find(|(kept, _)| **kept == key).map(|(_, held)| held.busy = busy);
                    let known = plain.queue.iter_mut().find(|entry| entry.0 == key).map(|entry| entry.2 = busy);
                    prop_assert_eq!(held, known);
                }
                Act::Retire(key) => {
                    prop_assert_eq!(store.retire(&key), plain.queue.iter().any(|entry| entry.0 == key));
                    plain.remove(key);
                }
                Act::Room => {
                    // What is retired is destroyed at once.
                    store.retired().for_each(|held| held.gone = true);
                    let full = plain.queue.len() >= cap;
                    let busy = plain.queue.iter().filter(|entry| entry.2).count();
                    let expected = match full.then(|| plain.evict()) {
                        None => Room::Free,
                        Some(Some(key)) => Room::Evicted(key),
                        Some(None) => Room::Full { cap, busy, retiring: 0 },
                    };
                    prop_assert_eq!(store.room(), expected);
                }
            }
        }
    }
}

type Peers = Store<u32, Line<RemoteSet>>;

/// Runs what a line says as a device does that flushes at once.
fn run(store: &mut Peers, key: u32, now: Instant, event: Event<RemoteSet>) {
    use crate::endpoint::Action;

    let mut events = vec![event];
    while let Some(event) = events.pop() {
        let mut lines: Vec<_> =
            store.kept().filter(|(kept, _)| **kept == key).map(|(_, line)| line).collect();
        let Some(line) = lines.first_mut() else { return };
        for step in line.handle(now, event) {
            let of = step.endpoint.unwrap_or_default();
            match step.action {
                Action::Link(_) => events.push(Event::Link(of, true)),
                Action::Destroy => events.push(Event::Destroyed(of, true)),
                _ => {}
            }
        }
    }
}

/// EP-01: peers that open and die, a thousand of them, and nobody inserts afterwards.
#[test]
fn a_thousand_dying_peers_leave_nothing_behind() {
    let start = Instant::now();
    let (cap, timeouts) = (64, Timeouts { ready_ack: Duration::from_secs(1), ..Timeouts::default() });
    let mut store = Peers::new(cap);
    for peer in 0..1_000 {
        while let Room::Evicted(key) = store.room() {
            store.retired().for_each(|line| {
                let steps = line.handle(start, Event::Close(Closed::Evicted));
                for step in steps {
                    line.handle(start, Event::Destroyed(step.endpoint.unwrap_or_default(), true));
                }
            });
            assert_ne!(key, peer);
        }
        assert_eq!(store.room(), Room::Free);
        let first = store.first_generation();
        store.insert(peer, Line::new(first, Turn::Leads, timeouts));
        let set = RemoteSet::of_numbers(vec![peer]);
        run(&mut store, peer, start, Event::PeerOpens(Exchange(1), set, ReadyAck::Expected));
        assert!(store.endpoints() <= cap, "{}", store.endpoints());
    }
    assert_eq!(store.endpoints(), cap);
    // They never confirm. Two seconds later nothing of them is left.
    let later = start + Duration::from_secs(2);
    for peer in 0..1_000 {
        run(&mut store, peer, later, Event::Tick);
    }
    store.reclaim();
    assert_eq!((store.endpoints(), store.kept().count()), (0, 0));
    assert!(store.first_generation() > Generation::new(1), "numbers are not used twice");
}

/// EP-07: an endpoint that opens and breaks at its first work, at once and again and again.
#[test]
fn a_path_that_breaks_at_once_is_opened_at_most_five_times_in_ten_seconds() {
    for roll in [0, 1, u32::MAX / 2, u32::MAX] {
        let start = Instant::now();
        let mut circuit = Circuit::new(Pace::default());
        let (mut opens, mut now) = (0, start);
        while now < start + Duration::from_secs(10) {
            if circuit.may_open(now).is_ok() {
                opens += 1;
                circuit.failed(now, roll);
                // Another path of the peer completes work meanwhile, which proves nothing yet.
                circuit.worked(now + Duration::from_millis(1));
            }
            now += Duration::from_millis(5);
        }
        assert!((2..=5).contains(&opens), "{opens} with {roll}");
        assert!(matches!(circuit.state(now), CircuitState::Open { failures: 2.., .. }));
    }
}

#[test]
fn pauses_are_spread_and_bounded() {
    let now = Instant::now();
    let pause = |failures, roll| {
        let mut circuit = Circuit::new(Pace::default());
        (0..failures).for_each(|_| circuit.failed(now, roll));
        circuit.may_open(now).unwrap_err() - now
    };
    assert_eq!(pause(1, 0), Duration::from_millis(750));
    assert_eq!(pause(1, u32::MAX), Duration::from_millis(1_250));
    assert_eq!(pause(3, 0), Duration::from_secs(3));
    assert_eq!(pause(1_000, 0), Duration::from_millis(22_500));
}

#[test]
fn a_circuit_closes_after_work_that_follows_a_quiet_time() {
    let now = Instant::now();
    let mut circuit = Circuit::new(Pace::default());
    assert_eq!(circuit.state(now), CircuitState::Closed);
    circuit.failed(now, 0);
    let later = now + Duration::from_secs(2);
    assert_eq!(circuit.state(later), CircuitState::Probing { failures: 1 });
    circuit.worked(later);
    assert_eq!(circuit.state(later), CircuitState::Probing { failures: 1 });
    circuit.worked(now + Duration::from_secs(5));
    assert_eq!(circuit.state(now), CircuitState::Closed);
}
