//! One request and its attempts over the plan's paths: failover at submit, at completion and at silence (contract 9).
//!
//! ```text
//!  Ready ──start──▶ Running ──done──────────────────────────────▶ Finished
//!                    │  ▲ ▲                                          ▲
//!        failed ─────┤  │ └── next path ──────────┐                  │
//!                    │  │                         │                  │
//!    silent, late or │  │ (nothing can come       │ fenced, or       │ no path left, deadline,
//!    cancelled       ▼  │  any more)              │ duplicates are   │ cancelled, refused,
//!                 Stopping ──failed──▶ Fencing ───┤ allowed          │ or must not move
//!                    │      (a write that         └──────────────────┤
//!                    │       may still apply)                        │
//!                    └──done, or failed with nothing left to do──────┘
//! ```
//!
//! * One attempt at a time. The next begins only after the transport has reported the end of the last one, which it
//!   does when nothing local can touch the buffers any more: that is the local fence.
//! * A READ needs nothing else, nor does a WRITE on a path that does all of it locally. A WRITE that may still apply moves
//!   only when the target has acknowledged a fence for (request, attempt), or where the caller allows late duplicates.
//! * A silent attempt that may not move, or has nowhere to go, is left alone until the deadline: slow is not dead.
//! * A WRITE whose target can fence is stopped a little before the deadline, so that the acknowledgement still comes in
//!   time and the caller learns that nothing is written later.
//! * The bytes are those of the one attempt that was done: no attempt after it, none counted twice.

use std::array;
use std::iter::Flatten;
use std::sync::Arc;
use std::time::{Duration, Instant};

use te_transport::{FailureKind, Fencing, Op, RemoteEffect};

use super::after;

/// What the caller and the configuration say about moving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AttemptPolicy {
    /// So long without a sign of progress an attempt counts as silent. Default 5 s.
    pub(crate) silence: Duration,
    /// So long the target's acknowledgement of a fence is awaited where another way is open.
    pub(crate) fence_wait: Duration,
    /// So long before the deadline a WRITE is stopped whose target can fence; at most a tenth of the whole time.
    pub(crate) reserve: Duration,
    /// Whether a WRITE may be re-sent although an older attempt may still be applied later.
    pub(crate) allow_late_duplicate: bool,
}

impl Default for AttemptPolicy {
    fn default() -> Self {
        Self {
            silence: Duration::from_secs(5),
            fence_wait: Duration::from_secs(2),
            reserve: Duration::from_millis(100),
            allow_late_duplicate: false,
        }
    }
}

impl AttemptPolicy {
    /// When a WRITE is stopped whose target can fence.
    pub(crate) fn cutoff(&self, started: Instant, deadline: Instant) -> Instant {
        let reserve = self.reserve.min(deadline.saturating_duration_since(started) / 10);
        deadline.checked_sub(reserve).unwrap_or(deadline)
    }
}

/// What happened. Attempts count from 1; an event of another attempt than the present one changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AttemptEvent {
    /// The request is submitted.
    Start,
    /// Bytes of the attempt moved.
    Heard { attempt: u32 },
    /// The attempt is applied at its destination.
    Done { attempt: u32, bytes: u64 },
    /// The attempt ended without success, and nothing local touches its buffers any more.
    Failed { attempt: u32, kind: FailureKind, effect: RemoteEffect },
    /// The target applies nothing more of this attempt or an older one: it acknowledged the fence, or its life is over.
    Fenced { attempt: u32 },
    /// The target will never acknowledge a fence.
    Unfenceable { attempt: u32 },
    /// The caller does not want it any more.
    Cancel,
    /// Time passed; see [`Attempts::wake_at`].
    Tick,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AttemptAction {
    /// Begin this attempt on the path with this number in the plan.
    Submit { attempt: u32, path: usize },
    /// Stop the attempt locally; its end is reported as `Done` or `Failed`.
    FenceLocal { attempt: u32 },
    /// Make the target refuse and stop this attempt and older ones, repeated until answered or the request is over. After
    /// `Finish` it is a last favour: nobody waits for the answer.
    FenceTarget { attempt: u32 },
    /// The request is over. The last action but for one `FenceTarget`, and given once.
    Finish(AttemptOutcome),
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AttemptOutcome {
    /// Applied at its destination.
    Done {
        /// Bytes of the request, once.
        bytes: u64,
        /// Attempts it took.
        attempts: u32,
        /// An older attempt may still write the same bytes again: only where that was allowed.
        late_duplicate: bool,
    },
    /// Not done.
    Failed {
        /// How the last attempt ended; `TimedOut` for silence and the deadline.
        kind: FailureKind,
        /// What all attempts together may have done, or may still do.
        effect: RemoteEffect,
        /// Attempts that were made.
        attempts: u32,
        /// The path of the last one.
        path: Option<usize>,
    },
}

/// At most two actions follow from one event.
pub(crate) type AttemptActions = Flatten<array::IntoIter<Option<AttemptAction>, 2>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Why {
    Silent,
    Expired,
    Cancelled,
    Broken(FailureKind),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    Ready,
    Running { path: usize, heard: Instant },
    Stopping { path: usize, why: Why },
    Fencing { why: Why, until: Instant },
    Finished,
}

/// The machine of one request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Attempts {
    op: Op,
    paths: Arc<[Fencing]>,
    policy: AttemptPolicy,
    deadline: Instant,
    state: State,
    /// The number of the present attempt.
    attempt: u32,
    /// The first path not tried yet.
    next: usize,
    /// An attempt changed the target, or could have.
    touched: bool,
    /// Attempts that may still apply and that a fence at the target would stop.
    loose: bool,
    /// Attempts that may still apply and that nothing stops.
    astray: bool,
}

impl Attempts {
    /// A request with a path per member of `paths`, in the plan's order.
    pub(crate) fn new(
        now: Instant,
        op: Op,
        paths: Arc<[Fencing]>,
        deadline: Instant,
        policy: AttemptPolicy,
    ) -> Self {
        let whole = deadline.saturating_duration_since(now);
        let policy = AttemptPolicy { reserve: policy.reserve.min(whole / 10), ..policy };
        let (state, attempt, next) = (State::Ready, 0, 0);
        let (touched, loose, astray) = (false, false, false);
        Self { op, paths, policy, deadline, state, attempt, next, touched, loose, astray }
    }

    /// Whether it is over.
    #[cfg(test)]
    pub(crate) fn is_finished(&self) -> bool {
        self.state == State::Finished
    }

    /// Whether it waits for the target's acknowledgement of a fence.
    pub(crate) fn awaits_fence(&self) -> bool {
        matches!(self.state, State::Fencing { .. })
    }

    /// When the next `Tick` is due, if time alone can change anything.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        match self.state {
            State::Running { path, heard } => {
                let late = self.cutoff(path);
                Some(if self.may_leave(path) { late.min(after(heard, self.policy.silence)) } else { late })
            }
            State::Fencing { until, .. } => Some(until),
            State::Ready | State::Stopping { .. } | State::Finished => None,
        }
    }

    /// Takes an event in and says what follows.
    pub(crate) fn on(&mut self, now: Instant, event: AttemptEvent) -> AttemptActions {
        let actions = match event {
            AttemptEvent::Start if self.state == State::Ready => {
                self.go_on(now, Why::Broken(FailureKind::Unreachable))
            }
            AttemptEvent::Heard { attempt } if attempt == self.attempt => self.heard(now),
            AttemptEvent::Done { attempt, bytes } if attempt == self.attempt => self.done(bytes),
            AttemptEvent::Failed { attempt, kind, effect } if attempt == self.attempt => {
                self.failed(now, kind, effect)
            }
            AttemptEvent::Fenced { attempt } if attempt == self.attempt => self.fenced(now),
            AttemptEvent::Unfenceable { attempt } if attempt == self.attempt => self.unfenced(now),
            AttemptEvent::Cancel => self.cancel(now),
            AttemptEvent::Tick => self.tick(now),
            _ => NOTHING,
        };
        actions.into_iter().flatten()
    }

    fn heard(&mut self, now: Instant) -> Actions {
        if let State::Running { heard, .. } = &mut self.state {
            *heard = now;
        }
        NOTHING
    }

    fn done(&mut self, bytes: u64) -> Actions {
        if !matches!(self.state, State::Running { .. } | State::Stopping { .. }) {
            return NOTHING;
        }
        self.state = State::Finished;
        let late_duplicate = self.loose || self.astray;
        one(AttemptAction::Finish(AttemptOutcome::Done { bytes, attempts: self.attempt, late_duplicate }))
    }

    fn failed(&mut self, now: Instant, kind: FailureKind, effect: RemoteEffect) -> Actions {
        let (path, why) = match self.state {
            State::Running { path, .. } => (path, Why::Broken(kind)),
            State::Stopping { path, why } => (path, why),
            _ => return NOTHING,
        };
        // A READ changes nothing at the peer, whatever a transport says.
        let effect = if self.op == Op::Read { RemoteEffect::None } else { effect };
        self.touched |= effect != RemoteEffect::None;
        if effect != RemoteEffect::MayStillApply {
            return self.go_on(now, why);
        }
        if !self.can_fence(path) {
            self.astray = true;
            return if self.policy.allow_late_duplicate { self.go_on(now, why) } else { self.finish(why) };
        }
        self.loose = true;
        let attempt = self.attempt;
        let fence = AttemptAction::FenceTarget { attempt };
        if now >= self.deadline {
            let [finish, _] = self.finish(Why::Expired.unless(why));
            return [finish, Some(fence)];
        }
        // The answer is awaited for a while; to the deadline where the request cannot move without it.
        let stuck = self.moves(why) && self.has_next() && !self.policy.allow_late_duplicate;
        let until = if stuck { self.deadline } else { self.deadline.min(after(now, self.policy.fence_wait)) };
        self.state = State::Fencing { why, until };
        one(fence)
    }

    fn fenced(&mut self, now: Instant) -> Actions {
        let State::Fencing { why, .. } = self.state else { return NOTHING };
        self.loose = false;
        self.go_on(now, why)
    }

    fn unfenced(&mut self, now: Instant) -> Actions {
        let State::Fencing { why, .. } = self.state else { return NOTHING };
        if self.policy.allow_late_duplicate { self.go_on(now, why) } else { self.finish(why) }
    }

    fn cancel(&mut self, now: Instant) -> Actions {
        match &mut self.state {
            State::Ready => return self.finish(Why::Cancelled),
            State::Running { path, .. } => {
                self.state = State::Stopping { path: *path, why: Why::Cancelled };
                return one(AttemptAction::FenceLocal { attempt: self.attempt });
            }
            State::Stopping { why, .. } => *why = Why::Cancelled,
            State::Fencing { why, until } => {
                *why = Why::Cancelled;
                *until = (*until).min(after(now, self.policy.fence_wait));
            }
            State::Finished => {}
        }
        NOTHING
    }

    fn tick(&mut self, now: Instant) -> Actions {
        match self.state {
            State::Running { path, heard } => {
                let why = if now >= self.cutoff(path) {
                    Why::Expired
                } else if self.may_leave(path) && now >= after(heard, self.policy.silence) {
                    Why::Silent
                } else {
                    return NOTHING;
                };
                self.state = State::Stopping { path, why };
                one(AttemptAction::FenceLocal { attempt: self.attempt })
            }
            State::Fencing { why, until } if now >= until => {
                if self.policy.allow_late_duplicate {
                    return self.go_on(now, why);
                }
                let why = if now >= self.deadline { Why::Expired.unless(why) } else { why };
                self.finish(why)
            }
            _ => NOTHING,
        }
    }

    /// The last attempt is fenced, or may be left behind: the next path, or the end.
    fn go_on(&mut self, now: Instant, why: Why) -> Actions {
        if !self.moves(why) || !self.has_next() {
            return self.finish(why);
        }
        let path = self.next;
        if now >= self.cutoff(path) {
            return self.finish(Why::Expired);
        }
        self.next += 1;
        self.attempt += 1;
        self.state = State::Running { path, heard: now };
        one(AttemptAction::Submit { attempt: self.attempt, path })
    }

    fn finish(&mut self, why: Why) -> Actions {
        self.state = State::Finished;
        let effect = match (self.loose || self.astray, self.touched) {
            (true, _) => RemoteEffect::MayStillApply,
            (false, true) => RemoteEffect::MayHaveApplied,
            (false, false) => RemoteEffect::None,
        };
        one(AttemptAction::Finish(AttemptOutcome::Failed {
            kind: why.kind(),
            effect,
            attempts: self.attempt,
            path: self.next.checked_sub(1),
        }))
    }

    fn has_next(&self) -> bool {
        self.next < self.paths.len()
    }

    /// Whether another path can be expected to do better.
    fn moves(&self, why: Why) -> bool {
        match why {
            Why::Silent => true,
            Why::Expired | Why::Cancelled => false,
            Why::Broken(kind) => !matches!(
                kind,
                // The target's word, the caller's wish, our own memory: the same on every path.
                FailureKind::Rejected
                    | FailureKind::StaleIncarnation
                    | FailureKind::BufferGone
                    | FailureKind::Cancelled
                    | FailureKind::LocalMemory
                    | FailureKind::Shutdown
            ),
        }
    }

    fn can_fence(&self, path: usize) -> bool {
        self.paths.get(path) == Some(&Fencing::Target)
    }

    /// Whether a silent attempt on this path can be given up for another one.
    fn may_leave(&self, path: usize) -> bool {
        let stops = matches!(self.paths.get(path), Some(Fencing::Target | Fencing::Immediate));
        self.has_next() && (self.op == Op::Read || stops || self.policy.allow_late_duplicate)
    }

    /// When an attempt on this path is stopped for the deadline.
    fn cutoff(&self, path: usize) -> Instant {
        let fenced = self.op == Op::Write && self.can_fence(path);
        let reserve = if fenced { self.policy.reserve } else { Duration::ZERO };
        self.deadline.checked_sub(reserve).unwrap_or(self.deadline)
    }
}

type Actions = [Option<AttemptAction>; 2];

const NOTHING: Actions = [None, None];

fn one(action: AttemptAction) -> Actions {
    [Some(action), None]
}

impl Why {
    fn kind(self) -> FailureKind {
        match self {
            Self::Silent | Self::Expired => FailureKind::TimedOut,
            Self::Cancelled => FailureKind::Cancelled,
            Self::Broken(kind) => kind,
        }
    }

    /// The caller's own wish is told as such even when the deadline has passed meanwhile.
    fn unless(self, other: Self) -> Self {
        if other == Self::Cancelled { other } else { self }
    }
}

#[cfg(test)]
mod tests;
