//! Withdrawal of a region: block, announce, drain, fence, revoke, release. The shell of [`machines::holders`].
//!
//! [`machines::holders`]: crate::machines::holders

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use te_memory::{Memory, Region, ReleaseError};
use te_segment::Incarnation;
use te_transport::Transport;
use tokio::sync::Notify;

use crate::buffer::TransportSet;
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result, Retry};
use crate::machines::holders::{
    self, StillHeld, WithdrawalAction, WithdrawalEvent, WithdrawalPhase, WithdrawalSettings,
};

/// A holder whose last request has just ended is given this to acknowledge before it is cut off.
const GRACE: Duration = Duration::from_millis(50);
/// Pause before something that failed is done again.
const AGAIN: Duration = Duration::from_millis(50);
/// How long one background run takes before it says what still holds the memory.
const UNATTENDED: Duration = Duration::from_secs(3600);

/// The withdrawal of one region. A failed run keeps what it reached, so that the next goes on from there.
pub(crate) struct Withdrawal {
    region: Region,
    registered: TransportSet,
    course: Option<Arc<Course>>,
}

/// A withdrawal that has begun; peers' words on it come in at any time.
pub(crate) struct Course {
    region: Region,
    /// The descriptor of this version does not have the buffer, any more or ever.
    version: u64,
    /// The positions of the transports that the machine counts.
    transports: Vec<usize>,
    state: Mutex<State>,
    wake: Notify,
}

struct State {
    machine: holders::Withdrawal,
    todo: VecDeque<WithdrawalAction>,
    /// Why transports have not given up their keys.
    failures: BTreeMap<usize, String>,
    /// Why holders are not cut off.
    unfenced: BTreeMap<Incarnation, String>,
    released: Option<std::result::Result<Memory, ReleaseError>>,
}

impl Withdrawal {
    pub(crate) fn new(region: Region, registered: TransportSet) -> Self {
        Self { region, registered, course: None }
    }

    /// Runs until the memory is free or the deadline passes.
    pub(crate) async fn run(mut self, core: Arc<Core>, deadline: Instant) -> (Self, Result<Memory>) {
        let course = self.begin(&core);
        let worker = core.clone();
        let ran = core.runtime().run("unregister", async move { course.run(&worker, deadline).await }).await;
        (self, ran)
    }

    /// Goes on without anybody waiting; the memory is freed when nothing uses it any more.
    pub(crate) fn in_background(mut self, core: Arc<Core>) {
        if core.check_running("unregister").is_err() {
            return self.without_runtime(&core);
        }
        let course = self.begin(&core);
        let unattended = Unattended { withdrawal: Some(self), core: core.clone() };
        core.runtime().handle().spawn(unattended.run(course));
    }

    /// Blocks the region, once: what is served from now on does not have it.
    fn begin(&mut self, core: &Arc<Core>) -> Arc<Course> {
        if let Some(course) = &self.course {
            return course.clone();
        }
        self.region.block();
        let offered = self.region.access().is_remote();
        if offered {
            core.local().bump();
            core.wake_publisher();
        }
        let version = core.local().version();
        let count = core.transports().len();
        let transports: Vec<_> = (0..count).filter(|index| self.registered.contains(*index)).collect();
        let limits = core.limits();
        let settings = WithdrawalSettings { announce: limits.announce, drain: limits.drain };
        let registered = transports.len();
        let begun = |machine| {
            let state = State {
                machine,
                todo: VecDeque::new(),
                failures: BTreeMap::new(),
                unfenced: BTreeMap::new(),
                released: None,
            };
            let (region, state) = (self.region.clone(), Mutex::new(state));
            Arc::new(Course { region, version, transports, state, wake: Notify::new() })
        };
        let course = if offered {
            core.peers().interest().withdraw(version, registered, settings, begun)
        } else {
            begun(holders::Withdrawal::unoffered(registered, settings))
        };
        // Counts only fall after the block, so the later word is the newer one.
        course.tell(course.held());
        let drained: Weak<Course> = Arc::downgrade(&course);
        self.region.on_drained(move || {
            if let Some(course) = drained.upgrade() {
                course.tell(WithdrawalEvent::Held { local: 0, remote: 0 });
            }
        });
        self.course = Some(course.clone());
        course
    }

    /// For an engine that has ended: nobody is told, and the memory is freed by whoever drops the last hold.
    fn without_runtime(self, core: &Arc<Core>) {
        self.region.block();
        if self.region.access().is_remote() {
            core.local().bump();
        }
        let (region, core) = (self.region.clone(), core.clone());
        region.on_drained(move || {
            let transports = core.transports();
            let left = self.transports_left(transports.len());
            let failed = left.into_iter().any(|index| transports[index].unregister(&self.region).is_err());
            if failed {
                tracing::warn!(target: "te::engine", range = %self.region.range(), "a dropped buffer stays registered");
                return;
            }
            core.local().forget_vias(self.region.generation());
            // The memory is freed here, or when no device has it any more.
            self.region.abandon();
        });
    }

    fn transports_left(&self, count: usize) -> Vec<usize> {
        let all = (0..count).filter(|index| self.registered.contains(*index));
        match &self.course {
            None => all.collect(),
            Some(course) => {
                let state = course.state.lock();
                let left = state.machine.transports();
                left.filter_map(|place| course.transports.get(place).copied()).collect()
            }
        }
    }
}

/// Whether nothing but a device is in the way of the memory's release.
fn is_kept(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    source.and_then(|source| source.downcast_ref()) == Some(&ReleaseError::Kept)
}

/// Makes sure that a withdrawal without an owner goes on even when the runtime ends.
struct Unattended {
    withdrawal: Option<Withdrawal>,
    core: Arc<Core>,
}

impl Unattended {
    async fn run(mut self, course: Arc<Course>) {
        loop {
            match course.clone().run(&self.core, Instant::now() + UNATTENDED).await {
                Ok(memory) => {
                    self.withdrawal = None;
                    return drop(memory);
                }
                Err(error) if is_kept(&error) => {
                    tracing::warn!(target: "te::engine", %error, "a dropped buffer is freed later");
                    // All else is done. Another run would fail at once again, so whoever keeps it frees it.
                    self.withdrawal = None;
                    return course.region.abandon();
                }
                Err(error) if error.kind() == ErrorKind::StillHeld => {
                    tracing::warn!(target: "te::engine", %error, "a dropped buffer is still in use");
                }
                Err(error) => {
                    tracing::warn!(target: "te::engine", %error, "a dropped buffer stays registered");
                    self.withdrawal = None;
                    return;
                }
            }
        }
    }
}

impl Drop for Unattended {
    fn drop(&mut self) {
        if let Some(withdrawal) = self.withdrawal.take() {
            withdrawal.without_runtime(&self.core);
        }
    }
}

impl Course {
    /// Something happened.
    pub(crate) fn tell(&self, event: WithdrawalEvent) {
        {
            let mut state = self.state.lock();
            let actions = state.machine.on(Instant::now(), event);
            state.todo.extend(actions);
        }
        self.wake.notify_one();
    }

    fn held(&self) -> WithdrawalEvent {
        let holds = self.region.holds();
        WithdrawalEvent::Held { local: holds.local, remote: holds.remote }
    }

    /// One run, on the control runtime.
    async fn run(self: Arc<Self>, core: &Arc<Core>, deadline: Instant) -> Result<Memory> {
        self.tell(WithdrawalEvent::Run { deadline });
        loop {
            let mut publish = false;
            while let Some(action) = self.next() {
                match action {
                    WithdrawalAction::Publish => publish = true,
                    WithdrawalAction::Invalidate { .. } => self.act(core, action, deadline),
                    // Holders are told before, everything else happens after the announcement.
                    action => {
                        if std::mem::take(&mut publish) {
                            self.publish(core, deadline).await;
                        }
                        if let WithdrawalAction::Finish(result) = action {
                            return self.finish(core, result);
                        }
                        self.act(core, action, deadline);
                    }
                }
            }
            if publish {
                self.publish(core, deadline).await;
                continue;
            }
            let wake_at = self.state.lock().machine.wake_at().unwrap_or(deadline);
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep_until(wake_at.into()) => self.tell(WithdrawalEvent::Tick),
            }
        }
    }

    /// A directory that does not answer delays nothing: the publisher goes on in the background.
    async fn publish(&self, core: &Core, deadline: Instant) {
        let until = Core::within(deadline, core.limits().announce);
        if let Err(error) = core.published_by(until).await {
            tracing::debug!(target: "te::engine", %error, "going on with a withdrawal");
        }
    }

    fn next(&self) -> Option<WithdrawalAction> {
        self.state.lock().todo.pop_front()
    }

    fn act(self: &Arc<Self>, core: &Arc<Core>, action: WithdrawalAction, deadline: Instant) {
        match action {
            WithdrawalAction::Invalidate { holder } => {
                core.peers().interest().invalidate(self, holder, self.version, self.region.generation());
            }
            WithdrawalAction::Fence { holder } => {
                tokio::spawn(self.clone().fence(core.clone(), holder, deadline));
            }
            WithdrawalAction::Revoke { transport } => self.revoke(core, transport),
            WithdrawalAction::Release => self.release(core),
            WithdrawalAction::Cut => {
                tokio::spawn(self.clone().cut(core.clone(), deadline));
            }
            WithdrawalAction::Publish | WithdrawalAction::Finish(_) => {}
        }
    }

    /// Cuts this engine's own batches off the buffer. Looks again until all are over: one that took its hold before the
    /// block may be entered in its lane only later.
    async fn cut(self: Arc<Self>, core: Arc<Core>, deadline: Instant) {
        while self.region.holds().local > 0 {
            for batch in core.mover().lanes().batches() {
                if batch.uses_locally(&self.region) {
                    batch.cut_off(&self.region);
                }
            }
            if Instant::now() + AGAIN >= deadline {
                return;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn fence(self: Arc<Self>, core: Arc<Core>, holder: Incarnation, deadline: Instant) {
        if self.waits_for(holder) == Some(true) {
            tokio::time::sleep(GRACE).await;
        }
        while self.waits_for(holder).is_some() {
            match core.peers().cut_off(&core, holder, deadline).await {
                Ok(()) => return,
                Err(cause) => {
                    self.state.lock().unfenced.insert(holder, cause);
                }
            }
            if Instant::now() + AGAIN >= deadline {
                return;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    fn waits_for(&self, holder: Incarnation) -> Option<bool> {
        self.state.lock().machine.waits_for(holder)
    }

    fn revoke(self: &Arc<Self>, core: &Arc<Core>, transport: usize) {
        let (course, transports) = (self.clone(), core.transports());
        tokio::task::spawn_blocking(move || {
            let place = course.transports.get(transport).copied();
            let Some(asked) = place.and_then(|place| transports.get(place)) else { return };
            match asked.unregister(&course.region) {
                Ok(()) => course.tell(WithdrawalEvent::Revoked { transport }),
                Err(error) => {
                    course.state.lock().failures.insert(transport, error.to_string());
                    course.tell(WithdrawalEvent::RevokeFailed { transport });
                }
            }
        });
    }

    fn release(&self, core: &Core) {
        core.local().forget_vias(self.region.generation());
        let released = self.region.release();
        let event = if released.is_ok() { WithdrawalEvent::Released } else { WithdrawalEvent::ReleaseFailed };
        self.state.lock().released = Some(released);
        self.tell(event);
    }

    fn finish(&self, core: &Core, result: std::result::Result<(), StillHeld>) -> Result<Memory> {
        let operation = || format!("unregister {}", self.region.range());
        let released = self.state.lock().released.take();
        match (result, released) {
            (Ok(()), Some(Ok(memory))) => Ok(memory),
            (_, Some(Err(error))) => {
                let kind = match error {
                    ReleaseError::Released => ErrorKind::BufferGone,
                    ReleaseError::Kept => return Err(self.explain_kept(core, operation())),
                    _ => ErrorKind::StillHeld,
                };
                Err(Error::new(kind, operation(), error.to_string()).with_source(error))
            }
            (Ok(()), None) => {
                Err(Error::new(ErrorKind::BufferGone, operation(), "the memory was given back before"))
            }
            (Err(held), _) => Err(self.explain(core, held, operation())),
        }
    }

    /// Names whoever may have given it to a device that is not known to have stopped.
    fn explain_kept(&self, core: &Core, operation: String) -> Error {
        let all = core.transports();
        let kinds =
            self.transports.iter().filter_map(|place| all.get(*place)).map(|one| one.kind().to_string());
        let kinds = kinds.collect::<Vec<_>>().join(", ");
        let mut cause = ReleaseError::Kept.to_string();
        if !kinds.is_empty() {
            cause.push_str(&format!("; {kinds} had the range and gave up the keys"));
        }
        Error::new(ErrorKind::StillHeld, operation, cause)
            .with_retry(Retry::Later)
            .with_source(ReleaseError::Kept)
    }

    /// Names everything that still holds the range.
    fn explain(&self, core: &Core, held: StillHeld, operation: String) -> Error {
        let state = self.state.lock();
        let all = core.transports();
        let kinds = held.transports.iter().filter_map(|place| {
            let transport: &Arc<dyn Transport> = all.get(*self.transports.get(*place)?)?;
            let unanswered = || format!("{} has not given up its keys yet", transport.kind());
            Some(state.failures.get(place).cloned().unwrap_or_else(unanswered))
        });
        if held.phase == WithdrawalPhase::Revoking {
            let cause = kinds.collect::<Vec<_>>().join("; ");
            return Error::new(ErrorKind::Transport, operation, cause).with_retry(Retry::Later);
        }
        let holds = self.region.holds();
        let mut cause = format!("still held by {} local and {} remote requests", holds.local, holds.remote);
        let mut peer = None;
        for holder in &held.holders {
            let name = core.peers().interest().name_of(*holder).unwrap_or_default();
            cause.push_str(&format!("; {name} (incarnation {holder}) did not acknowledge"));
            if let Some(why) = state.unfenced.get(holder) {
                cause.push_str(&format!(" and could not be cut off: {why}"));
            }
            peer.get_or_insert(name);
        }
        let error = Error::new(ErrorKind::StillHeld, operation, cause).with_retry(Retry::Later);
        match peer {
            Some(peer) => error.with_peer(peer),
            None => error,
        }
    }
}
