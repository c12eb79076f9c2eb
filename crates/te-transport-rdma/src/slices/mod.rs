//! From slices to work requests and back: cutting, posting, and completing each exactly once.
//!
//! A slice is [cut](Cut) where a registration ends on either side and at the slice size. The pieces become
//! [`WorkRequest`]s of a [`SendQueue`], which signals few of them and accounts for all: what a signalled one completes, the
//! ones posted before it on the same queue pair have completed too.
//!
//! ```
//! use te_segment::{AddressRange, MemoryKey};
//! use te_transport::Op;
//! use te_transport_rdma::slices::{Cut, Draft, QueueSettings, SendQueue, SliceSize, Status};
//!
//! let local = AddressRange::new(0x1000, 300_000)?;
//! let remote = AddressRange::new(0x9000, 300_000)?;
//! let mut drafts = std::collections::VecDeque::new();
//! for (number, piece) in Cut::new(local, &[local], remote, &[remote], SliceSize::default().of(300_000, 1))?.enumerate() {
//!     let (local_key, remote_key) = (MemoryKey::new(1), MemoryKey::new(2));
//!     drafts.push_back(Draft { op: Op::Write, piece, local_key, remote_key, owner: number });
//! }
//! let mut queue = SendQueue::new(QueueSettings::default());
//! let mut list = Vec::new();
//! queue.post(&mut drafts, usize::MAX, &mut list);
//! // The device completes the last one, which is signalled: all are done.
//! let last = list.last().unwrap();
//! assert!(last.signalled);
//! let mut outcomes = Vec::new();
//! assert_eq!(queue.complete(last.id, Status::Done, &mut outcomes), list.len());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cut;
mod queue;
mod slots;

#[cfg(test)]
mod tests;

use te_segment::MemoryKey;
use te_transport::Op;

pub use cut::{Cut, NotCovered, Piece, SliceSize};
pub use queue::{QueueSettings, Refused, SendQueue, completion_entries};
pub use slots::{Slots, WorkId};

use crate::error::WorkError;

/// A piece of a slice that is to be posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft<T> {
    /// Direction.
    pub op: Op,
    /// The bytes here and there.
    pub piece: Piece,
    /// Key of the registration here, at the NIC it is posted on.
    pub local_key: MemoryKey,
    /// Key of the peer's registration, at the NIC it goes to.
    pub remote_key: MemoryKey,
    /// Whom the outcome is for.
    pub owner: T,
}

/// One work request as data. Whoever posts it fills in the vendor's structure from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkRequest {
    /// What comes back in the completion.
    pub id: WorkId,
    /// Direction.
    pub op: Op,
    /// The bytes here and there.
    pub piece: Piece,
    /// Key of the registration here.
    pub local_key: MemoryKey,
    /// Key of the peer's registration.
    pub remote_key: MemoryKey,
    /// Whether the device is to report its completion. A failure is always reported.
    pub signalled: bool,
    /// Whether the bytes are copied into the request when it is posted, so that the device does not read them later.
    pub inline: bool,
}

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Its bytes are at their destination.
    Done,
    /// It failed, or was flushed behind one that did.
    Failed(WorkError),
    /// Its queue pairs were destroyed before it completed: nothing local touches its memory any more.
    Forfeited,
}
