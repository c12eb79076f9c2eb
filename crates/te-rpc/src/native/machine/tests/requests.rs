//! Requests, answers, deadlines and the end of an open connection.

use super::*;
use crate::native::{BatchOutcome, FenceOutcome, FencedAttempt, MAX_MESSAGE, OverBound};

#[test]
fn a_request_is_asked_and_its_answer_comes_back() {
    let mut pair = Pair::open();
    let id = pair.ask(interest());
    let (_, asked) = pair.run(Ok(()));
    assert_eq!(asked, [Output::Asked(id, interest())]);
    pair.target.answer(id, interest_answer());
    let (answered, _) = pair.run(Ok(()));
    assert_eq!(answered, [Output::Answered(id, interest_answer())]);
}

#[test]
fn both_sides_may_ask() {
    let mut pair = Pair::open();
    let request = Request::Invalidate { version: DescriptorVersion::new(9), withdrawn: Vec::new() };
    let id = pair.target.request(request.clone(), pair.now + Duration::from_secs(1)).unwrap();
    let (asked, _) = pair.run(Ok(()));
    assert_eq!(asked, [Output::Asked(id, request)]);
}

#[test]
fn a_request_that_comes_twice_is_asked_once_and_answered_once() {
    let mut pair = Pair::open();
    let id = RequestId::new(1);
    let frame = interest().into_frame(id);
    pair.target.receive(pair.now, frame.clone());
    pair.target.receive(pair.now, frame.clone());
    assert_eq!(outputs(&mut pair.target), [Output::Asked(id, interest())]);
    pair.target.answer(id, interest_answer());
    pair.target.answer(id, interest_answer());
    pair.target.receive(pair.now, frame);
    assert_eq!(outputs(&mut pair.target), [Output::Send(interest_answer().into_frame(id))]);
}

#[test]
fn an_answer_that_comes_twice_counts_once() {
    let mut pair = Pair::open();
    let id = pair.ask(interest());
    outputs(&mut pair.opener);
    let frame = interest_answer().into_frame(id);
    pair.opener.receive(pair.now, frame.clone());
    pair.opener.receive(pair.now, frame);
    assert_eq!(outputs(&mut pair.opener), [Output::Answered(id, interest_answer())]);
}

#[test]
fn an_answer_to_a_request_that_was_never_sent_is_a_violation() {
    for id in [0, 2, u64::MAX].map(RequestId::new) {
        let mut pair = Pair::open();
        pair.ask(interest());
        outputs(&mut pair.opener);
        pair.opener.receive(pair.now, ControlFrame::InvalidateAck { id });
        assert_violation(&outputs(&mut pair.opener), &Violation::UnknownAnswer { id });
    }
}

#[test]
fn an_answer_of_another_kind_or_length_is_a_violation() {
    let attempts = vec![FencedAttempt { request: 8, attempt: 1 }; 2];
    for (request, answer) in [
        (interest(), Answer::Invalidate),
        (Request::Fence { requests: attempts }, Answer::Fence { stopped: vec![FenceOutcome::Stopped] }),
    ] {
        let mut pair = Pair::open();
        let id = pair.ask(request);
        outputs(&mut pair.opener);
        pair.opener.receive(pair.now, answer.into_frame(id));
        assert_violation(&outputs(&mut pair.opener), &Violation::WrongAnswer { id });
    }
}

#[test]
fn a_wrong_answer_of_ours_is_not_sent() {
    let mut pair = Pair::open();
    let id = pair.ask(interest());
    pair.run(Ok(()));
    pair.target.answer(id, Answer::Notify { taken: true });
    assert!(matches!(last_frame(&outputs(&mut pair.target)), ControlFrame::Goodbye { .. }));
}

#[test]
fn a_deadline_ends_its_request_and_a_late_answer_is_dropped() {
    let mut pair = Pair::open();
    let id = pair.ask(interest());
    outputs(&mut pair.opener);
    let deadline = pair.opener.wake_at().unwrap();
    pair.opener.tick(deadline - Duration::from_nanos(1));
    assert_eq!(outputs(&mut pair.opener), []);
    pair.opener.tick(deadline);
    pair.opener.tick(deadline);
    assert_eq!(outputs(&mut pair.opener), [Output::Expired(id)]);
    assert_eq!(pair.opener.pending(), 0);
    pair.opener.receive(deadline, interest_answer().into_frame(id));
    assert_eq!(outputs(&mut pair.opener), []);
    assert!(pair.opener.peer().is_some());
}

#[test]
fn requests_without_an_answer_are_bounded() {
    let limits = NativeLimits { max_pending: 2, ..NativeLimits::default() };
    let mut pair = Pair::new(Expectation::default(), limits.clone(), limits);
    pair.run(Ok(()));
    let ids = [pair.ask(interest()), pair.ask(interest())];
    let refused = pair.opener.request(interest(), pair.now);
    assert_eq!(refused, Err(NotSent::TooManyPending { limit: 2 }));
    pair.run(Ok(()));
    assert!(!pair.target.wants_input(), "the peer has enough to answer");
    pair.target.answer(ids[1], interest_answer());
    assert!(pair.target.wants_input());
    pair.run(Ok(()));
    assert_eq!(pair.opener.pending(), 1);
}

#[test]
fn a_request_that_no_peer_accepts_is_not_sent() {
    let mut pair = Pair::open();
    let message = "m".repeat(MAX_MESSAGE + 1);
    let request = Request::Notify { batch: 1, name: String::new(), message, outcome: BatchOutcome::Success };
    let refused = pair.opener.request(request, pair.now + Duration::from_secs(1));
    assert!(matches!(refused, Err(NotSent::OverBound(OverBound { member: "message", .. }))), "{refused:?}");
    assert_eq!(outputs(&mut pair.opener), []);
    assert_eq!(pair.ask(interest()), RequestId::new(1));
}

#[test]
fn nothing_can_be_asked_before_the_handshake_or_after_the_end() {
    let mut pair = Pair::new(Expectation::default(), NativeLimits::default(), NativeLimits::default());
    assert_eq!(pair.opener.request(interest(), pair.now), Err(NotSent::NotOpen));
    pair.run(Ok(()));
    pair.opener.close("done");
    assert_eq!(pair.opener.request(interest(), pair.now), Err(NotSent::NotOpen));
}

#[test]
fn a_probe_is_answered_without_asking() {
    let mut pair = Pair::open();
    let id = pair.ask(Request::Probe);
    let (opener, target) = pair.run(Ok(()));
    assert_eq!(target, []);
    assert_eq!(opener, [Output::Answered(id, Answer::Probe)]);
}

#[test]
fn a_silent_peer_is_probed_and_then_closed() {
    let limits = NativeLimits::default();
    let mut pair = Pair::open();
    let idle = pair.now + limits.idle;
    assert_eq!(pair.opener.wake_at(), Some(idle));
    pair.opener.tick(idle);
    let probe = outputs(&mut pair.opener);
    assert!(matches!(probe[..], [Output::Send(ControlFrame::Probe { .. })]), "{probe:?}");
    pair.opener.tick(idle + limits.silent - Duration::from_nanos(1));
    assert_eq!(outputs(&mut pair.opener), []);
    pair.opener.tick(idle + limits.silent);
    assert_eq!(outputs(&mut pair.opener), [Output::Closed(CloseReason::Silent)]);
}

#[test]
fn a_peer_that_answers_the_keep_alive_stays() {
    let limits = NativeLimits::default();
    let mut pair = Pair::open();
    for _ in 0..20 {
        pair.now += limits.idle;
        pair.opener.tick(pair.now);
        let (opener, target) = pair.run(Ok(()));
        assert!(opener.is_empty() && target.is_empty());
    }
    assert!(pair.opener.peer().is_some() && pair.target.peer().is_some());
}

#[test]
fn a_goodbye_ends_the_connection_and_says_why() {
    let mut pair = Pair::open();
    pair.ask(interest());
    pair.target.close("going");
    let (opener, target) = pair.run(Ok(()));
    assert_eq!(opener, [Output::Closed(CloseReason::Goodbye { reason: "going".to_owned() })]);
    assert_eq!(target, [Output::Closed(CloseReason::Closed { reason: "going".to_owned() })]);
    assert_eq!((pair.opener.pending(), pair.opener.wake_at()), (0, None));
}
