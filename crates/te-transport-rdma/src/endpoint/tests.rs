use std::time::Instant;

use te_segment::{Generation, Incarnation};

use super::*;

type Steps = Vec<Step<u8>>;

/// Numbers as queue pairs; none is known to be later than another.
impl PeerSet for u8 {
    fn is_later_than(&self, _: &Self) -> bool {
        false
    }
}

fn generation(number: u64) -> Generation {
    Generation::new(number)
}

fn step(endpoint: u64, action: Action<u8>) -> Step<u8> {
    Step { endpoint: Some(generation(endpoint)), action }
}

fn refused(exchange: u64, refusal: Refusal) -> Steps {
    vec![Step { endpoint: None, action: Action::Answer(Exchange(exchange), Verdict::Refuse(refusal)) }]
}

struct Rig {
    line: Line<u8>,
    now: Instant,
}

impl Rig {
    fn new() -> Self {
        Self { line: Line::new(generation(1), Turn::Leads, Timeouts::default()), now: Instant::now() }
    }

    fn tell(&mut self, event: Event<u8>) -> Steps {
        self.line.handle(self.now, event)
    }

    /// A line whose passive endpoint is joined to `peer` and confirmed.
    fn accepted(peer: u8) -> Self {
        let mut rig = Self::new();
        rig.accept(peer);
        rig
    }

    fn accept(&mut self, peer: u8) -> Generation {
        self.tell(Event::PeerOpens(Exchange(1), peer, ReadyAck::Expected));
        let fresh = self.line.current().unwrap().generation();
        self.tell(Event::Link(fresh, true));
        self.tell(Event::PeerConfirms(Exchange(2), peer, None));
        assert!(self.line.current().unwrap().is_ready());
        fresh
    }
}

#[test]
fn an_active_endpoint_is_ready_when_the_peer_has_confirmed() {
    let mut rig = Rig::new();
    assert_eq!(rig.tell(Event::Want), [step(1, Action::Create), step(1, Action::Open)]);
    assert_eq!(rig.tell(Event::Want), [], "one at a time");
    let opened = Event::Opened(generation(1), Ok((7, ReadyAck::Expected)));
    assert_eq!(rig.tell(opened), [step(1, Action::Link(7))]);
    assert_eq!(rig.tell(Event::Link(generation(1), true)), [step(1, Action::Confirm)]);
    assert_eq!(rig.line.post(1), Err(NotReady { generation: generation(1) }));
    assert_eq!(rig.tell(Event::Confirmed(generation(1), Ok(()))), [step(1, Action::Ready)]);
    assert_eq!(rig.line.post(3), Ok(generation(1)));
    assert_eq!(rig.line.outstanding(), 3);
}

/// A NIC toward itself: the line hears its own open, and its queue pairs are joined to themselves.
#[test]
fn a_line_to_itself_is_joined_to_itself() {
    let mut rig = Rig::new();
    rig.tell(Event::Want);
    assert_eq!(rig.tell(Event::PeerOpens(Exchange(1), 7, ReadyAck::Expected)), [step(1, Action::Link(7))]);
    rig.tell(Event::Link(generation(1), true));
    assert_eq!(
        rig.tell(Event::Opened(generation(1), Ok((7, ReadyAck::Expected)))),
        [step(1, Action::Confirm)]
    );
    let confirms = Event::PeerConfirms(Exchange(2), 7, Some(generation(1)));
    let confirmed = Action::Answer(Exchange(2), Verdict::Confirmed);
    assert_eq!(rig.tell(confirms), [step(1, confirmed), step(1, Action::Ready)]);
    assert_eq!(rig.tell(Event::Confirmed(generation(1), Ok(()))), []);
    assert_eq!((rig.line.endpoints(), rig.line.post(1)), (1, Ok(generation(1))));
}

/// EP-04: the same request again gets the same answer, and traffic goes on.
#[test]
fn a_repeated_open_changes_nothing() {
    let mut rig = Rig::accepted(7);
    rig.line.post(2).unwrap();
    let accepted = [step(1, Action::Answer(Exchange(9), Verdict::Accept))];
    assert_eq!(rig.tell(Event::PeerOpens(Exchange(9), 7, ReadyAck::Expected)), accepted);
    let confirmed = [step(1, Action::Answer(Exchange(10), Verdict::Confirmed))];
    assert_eq!(rig.tell(Event::PeerConfirms(Exchange(10), 7, None)), confirmed);
    assert_eq!((rig.line.outstanding(), rig.line.endpoints()), (2, 1));
    assert!(rig.line.current().unwrap().is_ready());
}

/// EP-05: the peer has lost its state. Its first open already gets a fresh endpoint.
#[test]
fn a_peer_that_lost_its_state_gets_a_fresh_endpoint() {
    let mut rig = Rig::accepted(7);
    rig.line.post(1).unwrap();
    let steps = rig.tell(Event::PeerOpens(Exchange(3), 8, ReadyAck::Expected));
    let expected = [
        step(1, Action::Closed(Closed::Replaced)),
        step(1, Action::Flush),
        step(2, Action::Create),
        step(2, Action::Link(8)),
    ];
    assert_eq!(steps, expected);
    assert_eq!(rig.tell(Event::Completed(generation(1), 1)), [step(1, Action::Destroy)]);
    assert_eq!(rig.tell(Event::Destroyed(generation(1), true)), []);
    assert_eq!(rig.line.endpoints(), 1);
    // What was joined to the first endpoint cannot come back.
    rig.tell(Event::Link(generation(2), true));
    rig.tell(Event::Broken(generation(2)));
    assert_eq!(rig.tell(Event::PeerOpens(Exchange(4), 8, ReadyAck::Expected)), refused(4, Refusal::Stale));
}

/// RDMA-07
#[test]
fn a_late_reply_is_dropped() {
    let mut rig = Rig::new();
    rig.tell(Event::Want);
    rig.tell(Event::Opened(generation(1), Err(Closed::NoAnswer)));
    rig.tell(Event::Destroyed(generation(1), true));
    rig.tell(Event::Want);
    let before = rig.line.clone();
    assert_eq!(rig.tell(Event::Opened(generation(1), Ok((7, ReadyAck::Expected)))), []);
    assert_eq!(rig.tell(Event::Confirmed(generation(1), Ok(()))), []);
    assert_eq!(rig.tell(Event::Link(generation(1), true)), []);
    assert_eq!(rig.line, before);
}

/// EP-02: work that never completes fails once its queue pairs are destroyed, not before.
#[test]
fn work_that_is_not_flushed_is_forfeited_after_the_destruction() {
    let mut rig = Rig::accepted(7);
    rig.line.post(3).unwrap();
    let closed = rig.tell(Event::Close(Closed::Evicted));
    assert_eq!(closed, [step(1, Action::Closed(Closed::Evicted)), step(1, Action::Flush)]);
    assert_eq!(rig.tell(Event::Completed(generation(1), 1)), []);
    rig.now = rig.line.wake_at().unwrap();
    assert_eq!(rig.tell(Event::Tick), [step(1, Action::Destroy)]);
    assert_eq!(rig.tell(Event::Destroyed(generation(1), false)), []);
    assert_eq!(rig.line.endpoints(), 1, "they still exist");
    rig.now = rig.line.wake_at().unwrap();
    assert_eq!(rig.tell(Event::Tick), [step(1, Action::Destroy)]);
    assert_eq!(rig.tell(Event::Destroyed(generation(1), true)), [step(1, Action::Forfeit(2))]);
    assert_eq!((rig.line.endpoints(), rig.line.outstanding(), rig.line.wake_at()), (0, 0, None));
}

#[test]
fn queue_pairs_that_cannot_be_made_or_joined_are_told_to_the_peer() {
    let mut rig = Rig::new();
    rig.tell(Event::PeerOpens(Exchange(1), 7, ReadyAck::Expected));
    let refusal = Verdict::Refuse(Refusal::LinkFailed);
    let steps = rig.tell(Event::Link(generation(1), false));
    let expected = [
        step(1, Action::Answer(Exchange(1), refusal)),
        step(1, Action::Closed(Closed::LinkFailed)),
        step(1, Action::Destroy),
    ];
    assert_eq!(steps, expected);
    let mut rig = Rig::new();
    rig.tell(Event::Want);
    let steps = rig.tell(Event::Link(generation(1), false));
    assert_eq!(steps, [step(1, Action::Closed(Closed::LinkFailed)), step(1, Action::Destroy)]);
}

#[test]
fn requests_wait_while_queue_pairs_are_joined() {
    let mut rig = Rig::new();
    rig.tell(Event::PeerOpens(Exchange(1), 7, ReadyAck::Expected));
    assert_eq!(rig.tell(Event::PeerOpens(Exchange(2), 7, ReadyAck::Expected)), []);
    assert_eq!(rig.tell(Event::Close(Closed::Shutdown)), []);
    let steps = rig.tell(Event::Link(generation(1), true));
    let expected = [
        step(1, Action::Answer(Exchange(1), Verdict::Accept)),
        step(1, Action::Answer(Exchange(2), Verdict::Accept)),
        step(1, Action::Closed(Closed::Shutdown)),
        step(1, Action::Destroy),
    ];
    assert_eq!(steps, expected);
    assert_eq!(rig.tell(Event::Want), []);
    assert_eq!(rig.tell(Event::PeerOpens(Exchange(3), 8, ReadyAck::Expected)), refused(3, Refusal::Shutdown));
}

#[test]
fn a_peer_cannot_make_more_endpoints_than_are_destroyed() {
    let mut rig = Rig::new();
    for peer in 0..100 {
        let before = rig.line.endpoints();
        let steps = rig.tell(Event::PeerOpens(Exchange(1), peer, ReadyAck::Expected));
        if steps.iter().any(|step| step.action == Action::Create) {
            let fresh = rig.line.current().unwrap().generation();
            rig.tell(Event::Link(fresh, true));
            rig.tell(Event::PeerConfirms(Exchange(2), peer, None));
            rig.line.post(1).unwrap();
        } else {
            assert!(steps.contains(&refused(1, Refusal::Busy)[0]), "{steps:?}");
        }
        assert!(rig.line.endpoints() <= 9 && rig.line.endpoints() >= before.min(8));
    }
}

#[test]
fn sets_of_te_engines_are_ordered_within_a_life() {
    let set = |life, number| RemoteSet {
        queue_pairs: vec![1],
        of: Some((Incarnation::from_bits(life), generation(number))),
    };
    assert!(set(1, 2).is_later_than(&set(1, 1)));
    assert!(!set(1, 1).is_later_than(&set(1, 1)) && !set(1, 1).is_later_than(&set(1, 2)));
    assert!(!set(2, 2).is_later_than(&set(1, 1)), "lives have no order");
    let untold = RemoteSet::of_numbers(vec![1]);
    assert!(!set(1, 2).is_later_than(&untold) && !untold.is_later_than(&set(1, 2)));
}
