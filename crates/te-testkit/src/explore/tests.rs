use super::*;

/// A sender that repeats until it hears; a receiver that counts.
struct Repeat {
    dedup: bool,
    gives_up: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Message {
    Data,
    Ack,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    wire: Wire<Message>,
    sent: u8,
    heard: bool,
    taken: u8,
}

#[derive(Clone, Debug)]
enum Step {
    Send,
    Wire(Move),
}

impl Model for Repeat {
    type State = State;
    type Step = Step;

    fn starts(&self) -> Vec<State> {
        vec![State { wire: Wire::new(3, 1), sent: 0, heard: false, taken: 0 }]
    }

    fn steps(&self, state: &State) -> Vec<Step> {
        let mut steps: Vec<_> = state.wire.moves().into_iter().map(Step::Wire).collect();
        // Resends only when nothing is under way, so that the model is finite.
        if !state.heard && state.wire.flying().is_empty() && (state.sent == 0 || !self.gives_up) {
            steps.push(Step::Send);
        }
        steps
    }

    fn apply(&self, state: &mut State, step: &Step) {
        match step {
            Step::Send => {
                state.sent = 1;
                state.wire.send(Message::Data);
            }
            Step::Wire(step) => match state.wire.make(*step) {
                Some(Message::Data) => {
                    state.taken += u8::from(state.taken == 0 || !self.dedup);
                    state.wire.send(Message::Ack);
                }
                Some(Message::Ack) => state.heard = true,
                None => {}
            },
        }
    }

    fn check(&self, state: &State) -> Result<(), String> {
        if state.taken <= 1 { Ok(()) } else { Err("taken twice".into()) }
    }

    fn at_end(&self, state: &State) -> Result<(), String> {
        if state.heard { Ok(()) } else { Err("never heard".into()) }
    }
}

fn why(finding: Finding) -> (String, usize) {
    match finding {
        Finding::Violation { why, steps, .. } => (why, steps.len()),
        other => panic!("{other}"),
    }
}

#[test]
fn a_correct_model_is_explored_completely() {
    let seen = explore(&Repeat { dedup: true, gives_up: false }, 1000).unwrap();
    assert!(seen.states > 10 && seen.ends > 1 && seen.steps > seen.states, "{seen:?}");
}

#[test]
fn a_counterexample_is_shortest() {
    // Sent, duplicated on arrival, and arrived once more.
    let finding = explore(&Repeat { dedup: false, gives_up: false }, 1000).unwrap_err();
    assert_eq!(why(finding), ("taken twice".into(), 3));
}

#[test]
fn an_end_that_should_not_be_one_is_found() {
    let finding = explore(&Repeat { dedup: true, gives_up: true }, 1000).unwrap_err();
    assert_eq!(why(finding), ("never heard".into(), 2));
}

#[test]
fn too_many_states_prove_nothing() {
    let finding = explore(&Repeat { dedup: true, gives_up: false }, 5).unwrap_err();
    assert_eq!(finding, Finding::TooManyStates { limit: 5 });
}

/// Counts up to 3; past 1 it may fall into a circle of two states.
struct Circle;

impl Model for Circle {
    type State = u8;
    type Step = u8;

    fn starts(&self) -> Vec<u8> {
        vec![0]
    }

    fn steps(&self, state: &u8) -> Vec<u8> {
        match state {
            0 => vec![1],
            1 => vec![2, 10],
            2 => vec![3],
            10 => vec![11],
            11 => vec![10],
            _ => vec![],
        }
    }

    fn apply(&self, state: &mut u8, step: &u8) {
        *state = *step;
    }
}

#[test]
fn going_round_for_ever_is_found() {
    let finding = explore(&Circle, 100).unwrap_err();
    assert_eq!(why(finding), ("no end can be reached from here".into(), 2));
}

#[test]
fn equal_bags_are_equal_states() {
    let (mut one, mut two) = (Wire::new(2, 0), Wire::new(2, 0));
    one.send(Message::Ack);
    one.send(Message::Data);
    two.send(Message::Data);
    two.send(Message::Ack);
    assert_eq!(one, two);
    one.send(Message::Ack);
    assert_eq!(one, two, "over the limit");
    assert_eq!(one.moves(), [Move::Deliver(0), Move::Deliver(1)], "no fault without a budget");
}
