//! The life cycle as state machines over (now, event): no I/O, no clock, no thread, no randomness in here.
//!
//! Each machine is told what happened and says what is to be done; a shell does it. All of them are total: an event that
//! makes no sense in the present state changes nothing. `model` runs them against each other, exhaustively and in the
//! seeded simulator.
//!
//! | module | who runs it | decides |
//! |---|---|---|
//! | `attempt` | the initiator, per request | which path next, what must be stopped before, how it ends |
//! | `fence` | the target, per sender life | which attempts may still touch memory |
//! | `circuit` | the initiator, per peer and path | whether a path may be tried now |
//! | `liveness` | both, per peer | alive, suspect, lost, replaced or unknown, and when to ask |
//! | `holders` | the owner of a segment | who holds it; how a buffer is withdrawn |
//! | `holding` | who uses another's segment | what may be used, when an invalidation is acknowledged |
//! | `delivery` | the sender of notifications, per receiver life | what is sent when, and each outcome |
//! | `arrivals` | the receiver of notifications | what is taken, what is a duplicate, who waited for it |

pub(crate) mod arrivals;
#[allow(dead_code, reason = "a pure machine; batches that move between paths run it")]
pub(crate) mod attempt;
#[allow(dead_code, reason = "a pure machine; batches that move between paths run it")]
pub(crate) mod circuit;
pub(crate) mod delivery;
pub(crate) mod fence;
pub(crate) mod holders;
pub(crate) mod holding;
pub(crate) mod liveness;

#[cfg(test)]
mod model;

use std::time::{Duration, Instant};

/// A time of which nobody sees the end, where a sum would overflow the clock.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// `now + wait`; for an absurd wait a time far away.
fn after(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait).or_else(|| now.checked_add(FAR)).unwrap_or(now)
}
