//! Proof that a peer runs on this host, or in this process. Made when a segment is opened or refreshed, so that planning
//! needs no I/O.

use std::sync::Arc;
use std::time::Instant;

use te_segment::{Access, SegmentDescriptor};
use te_select::Locality;
use te_transport::{Reach, Transport};

use crate::core::Core;

fn of_host(transport: &Arc<dyn Transport>) -> bool {
    transport.capabilities().reach == Reach::Host
}

/// Has every transport within a host try to prove that the peer is on this one. A peer that does not answer costs no more
/// than the connect timeout, and leaves the other transports.
pub(crate) async fn prove(core: &Arc<Core>, peer: Arc<SegmentDescriptor>) {
    if peer.incarnation().is_none() {
        return;
    }
    let transports = core.transports();
    if !transports.iter().any(|transport| of_host(transport) && !transport.has_proven(&peer)) {
        return;
    }
    let deadline = Instant::now() + core.limits().connect;
    let asked = tokio::task::spawn_blocking(move || {
        for transport in transports.iter().filter(|transport| of_host(transport)) {
            if let Err(reason) = transport.prove(&peer, deadline) {
                tracing::debug!(target: "te::engine", transport = %transport.kind(), peer = %peer.name(), reason, "no proof of locality");
            }
        }
    });
    // Fails only when the runtime ends, and then nobody plans any more.
    let _ = asked.await;
}

/// The closest place of the peer that one of the transports has proven: no I/O. What is in this process is on this host.
pub(crate) fn proven(transports: &[Arc<dyn Transport>], peer: &SegmentDescriptor) -> Locality {
    let proofs = transports.iter().filter(|transport| transport.has_proven(peer));
    let places = proofs.map(|transport| match transport.capabilities().reach {
        Reach::Process => Locality::SameProcess,
        _ => Locality::SameHost,
    });
    places.min().unwrap_or(Locality::Network)
}

/// Whether memory with this access is worth allocating where other processes of this host can map it.
pub(crate) fn shares(core: &Core, access: Access) -> bool {
    access.allows_read() && core.transports().iter().any(of_host)
}
