//! Handshake objects of RDMA endpoints: what is read comes back, and what it means is consistent.
//!
//! The first byte chooses whether the rest is a whole object or damages a golden one; then comes where, how much is
//! replaced, and by what.

#![no_main]

use libfuzzer_sys::fuzz_target;
use te_transport_rdma::wire::{Handshake, Reading};

const VECTORS: &str = include_str!("../../docs/wire/vectors/rdma-handshake-v1.tsv");

fn object(data: &[u8]) -> Option<Vec<u8>> {
    let [which, at_low, at_high, replaced, with @ ..] = data else { return None };
    let Some(line) = VECTORS.lines().skip(1).nth(usize::from(*which)) else {
        return Some(data[1..].to_vec());
    };
    let mut bytes = line.split('\t').nth(1)?.as_bytes().to_vec();
    let at = usize::from(u16::from_le_bytes([*at_low, *at_high])).min(bytes.len());
    let end = at.saturating_add((*replaced).into()).min(bytes.len());
    bytes.splice(at..end, with.iter().copied());
    Some(bytes)
}

fuzz_target!(|data: &[u8]| {
    let Some(bytes) = object(data) else { return };
    let Ok(handshake) = Handshake::decode(&bytes) else { return };
    let again = Handshake::decode(&handshake.encode()).expect("what we write we read");
    assert_eq!(again, handshake);
    let Ok(Reading::Open(offer) | Reading::Confirm(offer)) = handshake.clone().read() else { return };
    assert!((1..=255).contains(&offer.queue_pairs.len()));
    assert!(offer.terms.as_ref().is_none_or(|terms| terms.psn.len() == offer.queue_pairs.len()));
    // Its own reflection is an answer to it.
    let mut ours = offer.clone();
    std::mem::swap(&mut ours.from, &mut ours.to);
    let answer =
        Handshake::decode(&Handshake::accept(&offer, ours.clone()).encode()).expect("what we write we read");
    if handshake.refusal.is_empty() {
        assert_eq!(answer.read_answer(&offer), Ok(Ok(ours)));
    }
});
