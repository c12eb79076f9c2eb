//! Cancellation shared by the slices of one batch.
//!
//! A scope is cancelled at most once; whoever is executing its slices at that moment is told through an
//! [`Abort`] hook, which must only *wake* the executor (shut a socket down, notify a condition): the executor
//! stops touching the memory and then resolves the tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::Mutex;

/// Why a scope was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelReason {
    /// The caller cancelled or dropped the batch.
    Cancelled,
    /// The batch's deadline passed.
    Expired,
    /// The engine is shutting down.
    Shutdown,
    /// The local or remote buffer is being withdrawn.
    Withdrawn,
}

const LIVE: u8 = 0;

impl CancelReason {
    fn code(self) -> u8 {
        match self {
            Self::Cancelled => 1,
            Self::Expired => 2,
            Self::Shutdown => 3,
            Self::Withdrawn => 4,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Cancelled),
            2 => Some(Self::Expired),
            3 => Some(Self::Shutdown),
            4 => Some(Self::Withdrawn),
            _ => None,
        }
    }
}

/// Interrupts an executor. Called from any thread, at most once per attachment, and must not block.
pub trait Abort: Send + Sync {
    /// Makes the executor stop soon. The reason can be read from the scope.
    fn abort(&self);
}

struct Inner {
    state: AtomicU8,
    hooks: Mutex<Hooks>,
}

#[derive(Default)]
struct Hooks {
    next: u64,
    attached: Vec<(u64, Arc<dyn Abort>)>,
}

/// The cancellation state of one batch, shared by its slices and the paths that execute them.
#[derive(Clone)]
pub struct CancelScope {
    inner: Arc<Inner>,
}

impl Default for CancelScope {
    fn default() -> Self {
        Self::new()
    }
}

impl CancelScope {
    /// A live scope.
    #[must_use]
    pub fn new() -> Self {
        Self { inner: Arc::new(Inner { state: AtomicU8::new(LIVE), hooks: Mutex::new(Hooks::default()) }) }
    }

    /// The reason, once cancelled.
    #[must_use]
    pub fn cancelled(&self) -> Option<CancelReason> {
        CancelReason::from_code(self.inner.state.load(Ordering::Acquire))
    }

    /// Cancels the scope and interrupts every attached executor. The first reason stays; returns whether this
    /// call was the first.
    pub fn cancel(&self, reason: CancelReason) -> bool {
        let first = self
            .inner
            .state
            .compare_exchange(LIVE, reason.code(), Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        if first {
            // Taken out before calling: a hook may detach itself, which takes the same lock.
            let hooks = std::mem::take(&mut self.inner.hooks.lock().attached);
            for (_, hook) in hooks {
                hook.abort();
            }
        }
        first
    }

    /// Attaches an executor for as long as the guard lives. If the scope is cancelled already the hook is
    /// called before this returns.
    #[must_use = "dropping the guard detaches the hook"]
    pub fn attach(&self, hook: Arc<dyn Abort>) -> AbortGuard {
        let id = {
            let mut hooks = self.inner.hooks.lock();
            // Checked under the lock: `cancel` changes the state before it takes the hooks, so either it sees
            // this hook or we see its state.
            if self.cancelled().is_none() {
                hooks.next += 1;
                let id = hooks.next;
                hooks.attached.push((id, hook));
                return AbortGuard { scope: self.clone(), id };
            }
            0
        };
        hook.abort();
        AbortGuard { scope: self.clone(), id }
    }

    /// Whether both handles speak of the same batch.
    #[must_use]
    pub fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl std::fmt::Debug for CancelScope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CancelScope").field("cancelled", &self.cancelled()).finish()
    }
}

/// Detaches its hook when dropped.
#[derive(Debug)]
pub struct AbortGuard {
    scope: CancelScope,
    id: u64,
}

impl Drop for AbortGuard {
    fn drop(&mut self) {
        let mut hooks = self.scope.inner.hooks.lock();
        if let Some(at) = hooks.attached.iter().position(|(id, _)| *id == self.id) {
            hooks.attached.swap_remove(at);
        }
    }
}
