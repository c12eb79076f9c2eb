//! Native frames in any portions, and a connection that is fed with them.
//!
//! The first byte chooses the role, the second how the rest is cut; the rest is what a peer sends, behind a good
//! handshake if the first byte says so.

#![no_main]

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use libfuzzer_sys::fuzz_target;
use te_rpc::native::*;
use te_segment::{DescriptorVersion, Incarnation};

/// Decodes in portions of `step` bytes. Memory must follow what arrived, not what was claimed.
fn decode(bytes: &[u8], step: usize) -> (Vec<ControlFrame>, Option<ControlReject>) {
    let mut decoder = ControlDecoder::new();
    decoder.open();
    let mut frames = Vec::new();
    let mut fed = 0;
    for portion in bytes.chunks(step) {
        decoder.feed(portion);
        fed += portion.len();
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(reject) => return (frames, Some(reject)),
            }
        }
        assert!(decoder.allocated() <= (2 * fed).max(16 << 10));
    }
    (frames, None)
}

fn peer(bits: u128) -> PeerId {
    PeerId { incarnation: Incarnation::from_bits(bits), name: "fuzz".to_owned() }
}

/// An answer that fits.
fn answer(request: Request) -> Answer {
    match request {
        Request::Interest { known } => Answer::Interest { version: known },
        Request::Fence { requests } => Answer::Fence { stopped: vec![FenceOutcome::Stopped; requests.len()] },
        Request::Notify { .. } => Answer::Notify { taken: true },
        Request::Probe => Answer::Probe,
        _ => Answer::Invalidate,
    }
}

/// Feeds a connection. Every request of the peer is asked once, every one of ours ends at most once, and the end is
/// the last thing that happens.
fn converse(opener: bool, greet: bool, frames: Vec<ControlFrame>) {
    let mut now = Instant::now();
    let limits = NativeLimits { max_pending: 8, ..NativeLimits::default() };
    let mut machine = if opener {
        ControlMachine::open(peer(1), Expectation::default(), limits, now)
    } else {
        ControlMachine::accept(peer(1), limits, now)
    };
    let PeerId { incarnation, name } = peer(2);
    let greeting = if opener {
        ControlFrame::Welcome { version: 1, incarnation, name }
    } else {
        ControlFrame::Hello { version: 1, from: incarnation, name, expects: None, expects_name: None }
    };
    let (mut asked, mut ended) = (BTreeSet::new(), BTreeSet::new());
    let mut over = false;
    for frame in greet.then_some(greeting).into_iter().chain(frames) {
        now += Duration::from_millis(700);
        machine.tick(now);
        machine.request(Request::Interest { known: DescriptorVersion::new(1) }, now + Duration::from_secs(2)).ok();
        if machine.wants_input() {
            machine.receive(now, frame);
        }
        while let Some(output) = machine.poll() {
            assert!(!over, "{output:?} after the end");
            match output {
                Output::Knock(_) => machine.decide(now, Ok(())),
                Output::Asked(id, request) => {
                    assert!(asked.insert(id), "asked twice");
                    machine.answer(id, answer(request));
                }
                Output::Answered(id, _) | Output::Expired(id) => assert!(ended.insert(id), "ended twice"),
                Output::Closed(_) => over = true,
                Output::Send(frame) => assert!(encode(&frame).is_ok(), "{frame:?}"),
                _ => {}
            }
        }
        assert!(machine.pending() <= 8 && machine.serving() == 0);
        assert_eq!(over, machine.is_closed());
    }
}

fuzz_target!(|data: &[u8]| {
    let [role, step, bytes @ ..] = data else { return };
    let step = usize::from(*step) + 1;

    let whole = decode(bytes, bytes.len().max(1));
    assert_eq!(whole, decode(bytes, step));
    for frame in &whole.0 {
        let again = encode(frame).expect("what was decoded can be encoded");
        assert_eq!(decode(&again, step), (vec![frame.clone()], None));
    }
    converse(role & 1 == 0, role & 2 == 0, whole.0);
});
