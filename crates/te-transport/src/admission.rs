//! Attempts of requests, and how a target keeps older ones from taking effect.
//!
//! A request keeps its number while it moves from path to path; each try is an attempt with a higher count. A target that
//! can fence asks [`Admission`] before a request of a te peer touches memory and says when it has ended, so that the
//! engine can refuse and stop attempts that their sender has given up.

use std::fmt;
use std::sync::Arc;

use te_segment::Incarnation;

use crate::cancel::Abort;

/// One attempt of a request, as both ends name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId {
    /// Number of the request, unique in the life of its sender and growing.
    pub request: u64,
    /// Counts from 1.
    pub attempt: u32,
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {} attempt {}", self.request, self.attempt)
    }
}

/// Decides at the target whether attempts of a peer may touch memory.
pub trait Admission: Send + Sync {
    /// Whether all of them may, which is as much as whether any may: one that is fenced costs the others their admission.
    /// If they may, `executor` is interrupted when one of them is fenced while it runs, and [`ended`](Self::ended) must be
    /// called once when they touch nothing any more; [`Admitted`] does both. Parts of one attempt may run at the same
    /// time, and stand beside each other in `ids`.
    fn admit(&self, peer: Incarnation, ids: &[AttemptId], executor: &Arc<dyn Abort>) -> bool;

    /// Attempts admitted together, or these parts of them, touch nothing any more.
    fn ended(&self, peer: Incarnation, ids: &[AttemptId], executor: &Arc<dyn Abort>);
}

/// Admitted attempts, or parts of them. Dropping it says that they have ended.
#[must_use = "dropping it ends the attempts"]
pub struct Admitted<'a> {
    admission: &'a dyn Admission,
    executor: &'a Arc<dyn Abort>,
    peer: Incarnation,
    ids: &'a [AttemptId],
}

impl<'a> Admitted<'a> {
    /// Asks for admission. `None`: refuse the requests, one of them is fenced.
    pub fn ask(
        admission: &'a dyn Admission,
        peer: Incarnation,
        ids: &'a [AttemptId],
        executor: &'a Arc<dyn Abort>,
    ) -> Option<Self> {
        // Not built in advance: dropping one that was not admitted would end what never began.
        admission.admit(peer, ids, executor).then(|| Self { admission, executor, peer, ids })
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.admission.ended(self.peer, self.ids, self.executor);
    }
}

/// Admits everything: for transports that run without an engine, as in tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct AdmitAll;

impl Admission for AdmitAll {
    fn admit(&self, _: Incarnation, _: &[AttemptId], _: &Arc<dyn Abort>) -> bool {
        true
    }

    fn ended(&self, _: Incarnation, _: &[AttemptId], _: &Arc<dyn Abort>) {}
}
