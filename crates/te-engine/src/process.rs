//! What the handles of an engine are in a child of fork: useless, and nothing that the parent would notice.

use std::mem;
use std::ops::Deref;
use std::sync::Arc;

use te_memory::ForkMark;

/// What rests on threads, connections and keys of one process.
pub(crate) trait OfProcess {
    /// Which process.
    fn mark(&self) -> &ForkMark;
}

/// A counted reference, as [`Arc`]. A child of the process never drops what is behind it: that would shut down
/// connections and destroy queue pairs that the parent uses, or wait for threads that are not there.
pub(crate) struct InProcess<T: OfProcess>(Arc<T>);

impl<T: OfProcess> InProcess<T> {
    pub(crate) fn arc(&self) -> &Arc<T> {
        &self.0
    }
}

impl<T: OfProcess> From<Arc<T>> for InProcess<T> {
    fn from(shared: Arc<T>) -> Self {
        Self(shared)
    }
}

impl<T: OfProcess> Clone for InProcess<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: OfProcess> Deref for InProcess<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: OfProcess> Drop for InProcess<T> {
    fn drop(&mut self) {
        // The others change nothing, and are most. A child has no second thread that could drop one at this moment.
        if Arc::strong_count(&self.0) == 1 && self.0.mark().is_forked() {
            mem::forget(self.0.clone());
        }
    }
}
