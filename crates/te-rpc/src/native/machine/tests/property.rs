//! The machine under any inputs.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Input {
    Frame(ControlFrame),
    Ask(u64),
    Answer(u64),
    Decide(bool),
    Pass(u64),
    Close,
}

fn input() -> impl Strategy<Value = Input> {
    let id = (0_u64..6).prop_map(RequestId::new).boxed();
    let frame = prop_oneof![
        2 => Just(outputs(&mut Pair::new(Expectation::default(), speaking(1, 1), speaking(1, 1)).opener))
            .prop_map(|hello| match &hello[0] { Output::Send(frame) => frame.clone(), _ => unreachable!() }),
        2 => Just(ControlFrame::Welcome { version: 1, incarnation: Incarnation::from_bits(2), name: String::new() }),
        6 => id.clone().prop_map(|id| interest().into_frame(id)),
        6 => id.clone().prop_map(|id| interest_answer().into_frame(id)),
        1 => id.clone().prop_map(|id| ControlFrame::InvalidateAck { id }),
        2 => id.clone().prop_map(|id| ControlFrame::Probe { id }),
        2 => id.prop_map(|id| ControlFrame::ProbeAck { id }),
        1 => Just(ControlFrame::goodbye("bye")),
    ];
    prop_oneof![
        8 => frame.prop_map(Input::Frame),
        4 => (0_u64..5).prop_map(Input::Ask),
        4 => (0_u64..6).prop_map(Input::Answer),
        3 => any::<bool>().prop_map(Input::Decide),
        3 => (0_u64..4000).prop_map(Input::Pass),
        1 => Just(Input::Close),
    ]
}

proptest! {
    /// For any inputs: one end for each request, one answer for each question, and the end comes last.
    #[test]
    fn whatever_happens_nothing_ends_twice(role in any::<bool>(), inputs in prop::collection::vec(input(), 0..60)) {
        let mut now = Instant::now();
        let limits = NativeLimits { max_pending: 3, ..NativeLimits::default() };
        let mut machine = if role {
            ControlMachine::open(opener_id(), Expectation::default(), limits, now)
        } else {
            ControlMachine::accept(target_id(), limits, now)
        };
        let mut sent = Vec::new();
        let mut ended = Vec::new();
        let mut asked = Vec::new();
        let mut answered = Vec::new();
        let mut closed = 0;
        for input in inputs {
            match input {
                Input::Frame(frame) => machine.receive(now, frame),
                Input::Ask(seconds) => sent.extend(machine.request(interest(), now + Duration::from_secs(seconds)).ok()),
                Input::Answer(id) => machine.answer(RequestId::new(id), interest_answer()),
                Input::Decide(welcome) => machine.decide(now, welcome.then_some(()).ok_or(RefuseReason::Busy)),
                Input::Pass(millis) => {
                    now += Duration::from_millis(millis);
                    machine.tick(now);
                    prop_assert!(machine.wake_at().is_none_or(|at| at > now));
                }
                Input::Close => machine.close("done"),
            }
            for output in outputs(&mut machine) {
                prop_assert_eq!(closed, 0, "{:?} after the end", output);
                match output {
                    Output::Answered(id, _) | Output::Expired(id) => ended.push(id),
                    Output::Asked(id, _) => asked.push(id),
                    Output::Send(ControlFrame::InterestAck { id, .. }) => answered.push(id),
                    Output::Closed(_) => closed += 1,
                    _ => {}
                }
            }
            prop_assert!(machine.pending() <= 3);
            prop_assert_eq!(machine.is_closed(), closed == 1);
        }
        for ids in [&mut ended, &mut asked, &mut answered] {
            let all = ids.len();
            ids.sort();
            ids.dedup();
            prop_assert_eq!(ids.len(), all, "twice");
        }
        prop_assert!(ended.iter().all(|id| sent.contains(id)));
        prop_assert!(answered.iter().all(|id| asked.contains(id)));
        prop_assert_eq!(machine.is_closed() || machine.pending() + ended.len() == sent.len(), true);
    }
}
