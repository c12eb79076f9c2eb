//! How an open peer and the paths to it stand: what is believed of its life, and their circuits.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use te::{Location, Op, PathCircuit, PathCircuitState, PeerState, Policy, Segment};

use super::transports;

/// What is believed of the peer's life, since when and why.
pub(crate) fn life(peer: &PeerState) -> String {
    format!("{} for {:.1} s: {}", peer.life, peer.since.elapsed().as_secs_f64(), peer.cause)
}

pub(crate) fn life_as_json(peer: &PeerState) -> Value {
    let since = u64::try_from(peer.since.elapsed().as_millis()).unwrap_or(u64::MAX);
    json!({ "life": peer.life.to_string(), "for_ms": since, "cause": peer.cause.to_string() })
}

/// The circuits of the paths to the peer that this process could use.
pub(crate) fn circuits(segment: &Segment) -> Vec<PathCircuit> {
    // Paths are opened by planning, which is the same for buffers that the same transports reach.
    let mut planned = BTreeSet::new();
    for (number, buffer) in segment.descriptor().buffers().iter().enumerate() {
        let op = if buffer.access().allows_read() { Op::Read } else { Op::Write };
        let reached = transports(buffer).into_iter().map(ToOwned::to_owned).collect::<Vec<_>>();
        if planned.insert(reached)
            && let Ok(range) = segment.buffer(number)
        {
            // Where nothing is usable there is no path to tell of.
            let _ = segment.explain(op, &range, &Location::Any, &Policy::default());
        }
    }
    segment.circuits()
}

pub(crate) fn circuit_as_json(circuit: &PathCircuit) -> Value {
    let (state, remaining) = match circuit.state {
        PathCircuitState::Closed => ("closed", None),
        PathCircuitState::Open { remaining } => ("open", Some(remaining)),
        _ => ("half open", None),
    };
    json!({
        "transport": circuit.path.transport().as_str(),
        "path": circuit.path.to_string(),
        "circuit": state,
        "open_for_ms": remaining.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        "failures": circuit.failures,
        "last_failure": circuit.last_failure.map(|kind| kind.to_string()),
    })
}
