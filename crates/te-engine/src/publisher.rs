//! Keeps the directory up to date: coalesced, retried with back-off, never on a thread that moves data.
//!
//! [`Machine`] decides over (now, event); [`run`] performs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::RngExt;
use te_metadata::Directory;
use te_segment::RpcLocation;
use tokio::sync::watch;

use crate::error::{Error, ErrorKind};
use crate::local::LocalSegment;

/// Registrations within this time of each other are published together.
const COALESCE: Duration = Duration::from_millis(5);
/// The version that means the end.
pub(crate) const STOP: u64 = u64::MAX;

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
}

/// Decides when to publish.
#[derive(Debug)]
pub(crate) struct Machine {
    wanted: u64,
    published: u64,
    not_before: Option<Instant>,
    failures: u32,
}

impl Machine {
    /// `published` is the version that is out already.
    pub(crate) fn new(published: u64) -> Self {
        Self { wanted: published, published, not_before: None, failures: 0 }
    }

    /// The offer has this version now.
    pub(crate) fn wanted(&mut self, now: Instant, version: u64) {
        if version > self.wanted {
            self.wanted = version;
            self.not_before.get_or_insert(now + COALESCE);
        }
    }

    pub(crate) fn step(&self, now: Instant) -> Step {
        if self.wanted <= self.published {
            return Step::Idle;
        }
        match self.not_before {
            Some(at) if at > now => Step::WaitUntil(at),
            _ => Step::Publish(self.wanted),
        }
    }

    pub(crate) fn succeeded(&mut self, version: u64) {
        self.published = self.published.max(version);
        self.not_before = None;
        self.failures = 0;
    }

    /// Tries again after a pause that doubles; `jitter` in 0..=1 spreads a fleet's retries over half of it.
    pub(crate) fn failed(&mut self, now: Instant, jitter: f64) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(10)).min(LONGEST_PAUSE);
        self.failures += 1;
        self.not_before = Some(now + pause.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0));
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

/// Publishes until it is told to [`STOP`] or the wake-up channel closes.
pub(crate) async fn run(
    local: Arc<LocalSegment>,
    directory: Arc<dyn Directory>,
    location: RpcLocation,
    timeout: Duration,
    mut wake: watch::Receiver<u64>,
    progress: watch::Sender<Progress>,
) {
    let mut machine = Machine::new(progress.borrow().published);
    loop {
        let wanted = *wake.borrow_and_update();
        if wanted == STOP {
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
                    machine.succeeded(version);
                    progress.send_modify(|progress| {
                        progress.published = progress.published.max(version);
                        progress.failure = None;
                    });
                }
                Err(error) => {
                    tracing::warn!(target: "te::engine", %error, "publishing the segment failed");
                    machine.failed(Instant::now(), rand::rng().random::<f64>());
                    let repeat = error.retry() == crate::error::Retry::Later;
                    let text: Arc<str> = error.to_string().into();
                    progress.send_modify(|progress| progress.failure = Some((text, repeat)));
                }
            },
        }
    }
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
mod tests {
    use super::*;

    #[test]
    fn a_thousand_changes_in_a_burst_cost_one_publish() {
        let start = Instant::now();
        let mut machine = Machine::new(1);
        let mut publishes = 0;
        for i in 0..1_000_u64 {
            let now = start + Duration::from_micros(i);
            machine.wanted(now, 2 + i);
            if let Step::Publish(version) = machine.step(now) {
                publishes += 1;
                machine.succeeded(version);
            }
        }
        assert_eq!(publishes, 0);
        assert_eq!(machine.step(start + COALESCE), Step::Publish(1_001));
        machine.succeeded(1_001);
        assert_eq!(machine.step(start + COALESCE), Step::Idle);
    }

    #[test]
    fn a_stream_of_changes_does_not_starve_publishing() {
        let start = Instant::now();
        let mut machine = Machine::new(1);
        let mut publishes = 0;
        for i in 0..100_u32 {
            let now = start + Duration::from_millis(1) * i;
            machine.wanted(now, u64::from(2 + i));
            if let Step::Publish(version) = machine.step(now) {
                publishes += 1;
                machine.succeeded(version);
            }
        }
        assert!((15..=20).contains(&publishes), "{publishes}");
    }

    #[test]
    fn failures_back_off_with_jitter_up_to_a_bound_and_success_resets() {
        let start = Instant::now();
        let mut machine = Machine::new(1);
        machine.wanted(start, 2);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            machine.failed(start, 1.0);
            let Step::WaitUntil(at) = machine.step(start) else { panic!("should wait") };
            pauses.push(at - start);
        }
        assert_eq!(pauses[0], FIRST_PAUSE);
        assert_eq!(pauses[1], FIRST_PAUSE * 2);
        assert_eq!(pauses[11], LONGEST_PAUSE);
        machine.failed(start, 0.0);
        assert_eq!(machine.step(start), Step::WaitUntil(start + LONGEST_PAUSE / 2));
        machine.succeeded(2);
        assert_eq!(machine.step(start), Step::Idle);
        machine.wanted(start, 3);
        assert_eq!(machine.step(start + COALESCE), Step::Publish(3));
    }

    #[test]
    fn an_older_publish_does_not_count_for_a_newer_version() {
        let start = Instant::now();
        let mut machine = Machine::new(1);
        machine.wanted(start, 5);
        machine.succeeded(4);
        assert_eq!(machine.step(start + COALESCE), Step::Publish(5));
    }
}
