//! The default order of transports.

use te_segment::TransportKind;

/// Best first: same-process copy, GPU IPC, shared memory, multi-node NVLink, CXL, RDMA, TCP. `hip` is GPU IPC of
/// the other vendor and shares its place; `nvlink` covers both its intra-node and its fabric form, the transport
/// itself tells them apart.
pub const DEFAULT_ORDER: [TransportKind; 7] = [
    TransportKind::LOCAL,
    TransportKind::HIP,
    TransportKind::NVLINK,
    TransportKind::SHM,
    TransportKind::CXL,
    TransportKind::RDMA,
    TransportKind::TCP,
];

/// Place of a transport in the default order; unknown ones come last.
#[must_use]
pub fn rank(kind: &TransportKind) -> usize {
    DEFAULT_ORDER.iter().position(|known| known == kind).unwrap_or(DEFAULT_ORDER.len())
}
