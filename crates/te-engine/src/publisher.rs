//! Keeps the directory up to date: coalesced, paced, retried with back-off, never on a thread that moves data.
//!
//! A first change is published after [`COALESCE`]. While changes go on, the pauses between two publishes grow from
//! [`FIRST_GAP`] to [`LONGEST_GAP`], so that registering thousands of buffers one by one costs a handful of writes. Who
//! waits for a version does not wait for a pause.
//!
//! [`Machine`] decides over (now, event); [`run`] performs.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rand::RngExt;
use te_metadata::{Directory, Kept};
use te_segment::RpcLocation;
use te_transport::Publisher;
use tokio::sync::watch;

use crate::error::{Error, ErrorKind};
use crate::local::LocalSegment;

/// Registrations within this time of each other are published together.
const COALESCE: Duration = Duration::from_millis(5);
/// Pause after a publish, while changes go on; it doubles with each that finds it running.
const FIRST_GAP: Duration = Duration::from_millis(100);
/// Longest pause after a publish: how far behind what nobody waits for can be.
const LONGEST_GAP: Duration = Duration::from_secs(1);

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing until a new version appears.
    Idle,
    /// Nothing until then.
    WaitUntil(Instant),
    /// Publish this version now.
    Publish(u64),
    /// Keep what is published alive.
    Keep,
}

/// What the engine wants of the publisher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Newest version there is.
    pub(crate) version: u64,
    /// Newest version that somebody waits for.
    pub(crate) awaited: u64,
    /// Nothing any more.
    pub(crate) stop: bool,
}

/// Decides when to publish and when to keep.
#[derive(Debug)]
pub(crate) struct Machine {
    wanted: Wanted,
    published: u64,
    /// When the first change came that is not out yet.
    changed_at: Option<Instant>,
    /// When the last publish ended, and the pause after it.
    last: Option<Instant>,
    gap: Duration,
    /// Nothing is tried before, after a failure.
    retry_at: Option<Instant>,
    failures: u32,
    keep_every: Option<Duration>,
    keep_at: Instant,
    lost: bool,
}

impl Machine {
    /// `published` is the version that is out already, `keep_every` how often it has to be kept.
    pub(crate) fn new(now: Instant, published: u64, keep_every: Option<Duration>) -> Self {
        Self {
            wanted: Wanted { version: published, ..Wanted::default() },
            published,
            changed_at: None,
            last: None,
            gap: FIRST_GAP,
            retry_at: None,
            failures: 0,
            keep_every,
            keep_at: now + keep_every.unwrap_or_default(),
            lost: false,
        }
    }

    /// The offer has this version now, and somebody may wait for it.
    pub(crate) fn wanted(&mut self, now: Instant, wanted: Wanted) {
        if wanted.version > self.wanted.version {
            self.changed_at.get_or_insert(now);
        }
        self.wanted = wanted;
    }

    pub(crate) fn step(&self, now: Instant) -> Step {
        if self.lost {
            return Step::Idle;
        }
        let keep_at = self.keep_every.map(|_| self.keep_at);
        // First: publishing does not renew everything, and a stream of changes must not starve a lease.
        if keep_at.is_some_and(|at| at <= now) {
            return Step::Keep;
        }
        let publish_at = (!self.is_current()).then(|| self.publish_at(now));
        match publish_at {
            Some(at) if at <= now => Step::Publish(self.wanted.version),
            at => match at.into_iter().chain(keep_at).min() {
                Some(at) => Step::WaitUntil(at),
                None => Step::Idle,
            },
        }
    }

    fn publish_at(&self, now: Instant) -> Instant {
        if let Some(at) = self.retry_at {
            return at;
        }
        // What vanished is published again without a change.
        let Some(changed) = self.changed_at else { return now };
        let soon = changed + COALESCE;
        match self.last {
            Some(last) if self.wanted.awaited <= self.published => soon.max(last + self.gap),
            _ => soon,
        }
    }

    pub(crate) fn succeeded(&mut self, now: Instant, version: u64) {
        let busy = self.changed_at.zip(self.last).is_some_and(|(changed, last)| changed < last + self.gap);
        self.gap = if busy { (self.gap * 2).min(LONGEST_GAP) } else { FIRST_GAP };
        self.last = Some(now);
        self.published = self.published.max(version);
        self.changed_at = (self.wanted.version > self.published).then_some(now);
        self.retry_at = None;
        self.failures = 0;
    }

    /// Whether the newest version is out.
    pub(crate) fn is_current(&self) -> bool {
        self.wanted.version <= self.published
    }

    pub(crate) fn kept(&mut self, now: Instant) {
        self.keep_at = now + self.keep_every.unwrap_or_default();
        // A publish that fails keeps its pauses.
        if self.is_current() {
            self.retry_at = None;
            self.failures = 0;
        }
    }

    /// What was published is gone: publish the same version again.
    pub(crate) fn vanished(&mut self, now: Instant) {
        self.kept(now);
        self.published = 0;
        self.changed_at = None;
        self.retry_at = None;
    }

    /// Somebody else has the name: nothing is published any more.
    pub(crate) fn lost(&mut self) {
        self.lost = true;
    }

    /// Tries again after a pause that doubles; `jitter` in 0..=1 spreads a fleet's retries over half of it.
    pub(crate) fn failed(&mut self, now: Instant, jitter: f64) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(10)).min(LONGEST_PAUSE);
        self.failures += 1;
        let until = now + pause.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0);
        self.retry_at = Some(until);
        // A lease is renewed sooner than the longest pause allows.
        self.keep_at = until.min(now + self.keep_every.unwrap_or(pause));
    }
}

/// What is known of publishing, for those who wait for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    /// Newest version that is out.
    pub(crate) published: u64,
    /// Why the last attempt failed, if it did, and whether it will be repeated.
    pub(crate) failure: Option<(Arc<str>, bool)>,
}

/// This version is there to be published.
pub(crate) fn wake(wake: &watch::Sender<Wanted>, version: u64) {
    wake.send_modify(|wanted| wanted.version = wanted.version.max(version));
}

/// The engine's side of [`Publisher`], for transports. They are owned by what this is about, so it owns none of that.
pub(crate) struct Republish {
    local: Weak<LocalSegment>,
    wake: Weak<watch::Sender<Wanted>>,
}

impl Republish {
    pub(crate) fn new(local: &Arc<LocalSegment>, wake: &Arc<watch::Sender<Wanted>>) -> Self {
        Self { local: Arc::downgrade(local), wake: Arc::downgrade(wake) }
    }
}

impl Publisher for Republish {
    fn changed(&self) {
        let (Some(local), Some(sender)) = (self.local.upgrade(), self.wake.upgrade()) else { return };
        local.bump();
        wake(&sender, local.version());
    }
}

/// Publishes until it is told to stop or the wake-up channel closes.
pub(crate) async fn run(
    local: Arc<LocalSegment>,
    directory: Arc<dyn Directory>,
    location: RpcLocation,
    timeout: Duration,
    mut wake: watch::Receiver<Wanted>,
    progress: watch::Sender<Progress>,
) {
    let published = progress.borrow().published;
    let keep_every = directory.keep_interval();
    // A renewal that gets no answer must leave time for the next one.
    let keep_timeout = keep_every.map_or(timeout, |every| every.min(timeout));
    let mut machine = Machine::new(Instant::now(), published, keep_every);
    loop {
        let wanted = *wake.borrow_and_update();
        if wanted.stop {
            return;
        }
        machine.wanted(Instant::now(), wanted);
        match machine.step(Instant::now()) {
            Step::Idle => {
                if wake.changed().await.is_err() {
                    return;
                }
            }
            // Woken early it only looks again; a stop must not wait out a back-off.
            Step::WaitUntil(at) => {
                if let Ok(Err(_)) = tokio::time::timeout_at(at.into(), wake.changed()).await {
                    return;
                }
            }
            Step::Publish(_) => match publish_once(&local, directory.as_ref(), &location, timeout).await {
                Ok(version) => {
                    machine.succeeded(Instant::now(), version);
                    progress.send_modify(|progress| {
                        progress.published = progress.published.max(version);
                        progress.failure = None;
                    });
                }
                Err(error) => failed(&mut machine, &progress, &error),
            },
            Step::Keep => match directory.keep(Instant::now() + keep_timeout).await {
                Ok(Kept::Kept) => {
                    machine.kept(Instant::now());
                    if machine.is_current() {
                        progress.send_if_modified(|progress| progress.failure.take().is_some());
                    }
                }
                Ok(_) => {
                    tracing::warn!(target: "te::engine", name = %local.name(), "the segment is no longer published");
                    machine.vanished(Instant::now());
                }
                Err(error) => {
                    let operation = format!("keep segment {} published", local.name());
                    failed(&mut machine, &progress, &Error::from_directory(operation, None, error));
                }
            },
        }
    }
}

fn failed(machine: &mut Machine, progress: &watch::Sender<Progress>, error: &Error) {
    tracing::warn!(target: "te::engine", %error, "publishing the segment failed");
    if error.kind() == ErrorKind::Name {
        machine.lost();
    } else {
        machine.failed(Instant::now(), rand::rng().random::<f64>());
    }
    let repeat = error.retry() == crate::error::Retry::Later;
    let text: Arc<str> = error.to_string().into();
    progress.send_modify(|progress| progress.failure = Some((text, repeat)));
}

/// Publishes the current descriptor and returns its version.
pub(crate) async fn publish_once(
    local: &LocalSegment,
    directory: &dyn Directory,
    location: &RpcLocation,
    timeout: Duration,
) -> Result<u64, Error> {
    let operation = || format!("publish segment {}", local.name());
    let descriptor = local.descriptor().map_err(|error| {
        Error::new(ErrorKind::DescriptorInvalid, operation(), error.to_string()).with_source(error)
    })?;
    let version = descriptor.version().map_or(0, te_segment::DescriptorVersion::value);
    directory
        .publish(descriptor, location.clone(), Instant::now() + timeout)
        .await
        .map_err(|error| Error::from_directory(operation(), None, error))?;
    Ok(version)
}

#[cfg(test)]
mod tests;
