//! Keeps the directory up to date: coalesced, retried with back-off, never on a thread that moves data.
//!
//! [`Machine`] decides over (now, event); [`run`] performs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::RngExt;
use te_metadata::{Directory, Kept};
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
    /// Keep what is published alive.
    Keep,
}

/// Decides when to publish and when to keep.
#[derive(Debug)]
pub(crate) struct Machine {
    wanted: u64,
    published: u64,
    not_before: Option<Instant>,
    failures: u32,
    keep_every: Option<Duration>,
    keep_at: Instant,
    lost: bool,
}

impl Machine {
    /// `published` is the version that is out already, `keep_every` how often it has to be kept.
    pub(crate) fn new(now: Instant, published: u64, keep_every: Option<Duration>) -> Self {
        let keep_at = now + keep_every.unwrap_or_default();
        Self { wanted: published, published, not_before: None, failures: 0, keep_every, keep_at, lost: false }
    }

    /// The offer has this version now.
    pub(crate) fn wanted(&mut self, now: Instant, version: u64) {
        if version > self.wanted {
            self.wanted = version;
            self.not_before.get_or_insert(now + COALESCE);
        }
    }

    pub(crate) fn step(&self, now: Instant) -> Step {
        if self.lost {
            return Step::Idle;
        }
        if self.wanted > self.published {
            return match self.not_before {
                Some(at) if at > now => Step::WaitUntil(at),
                _ => Step::Publish(self.wanted),
            };
        }
        match self.keep_every {
            None => Step::Idle,
            Some(_) if self.keep_at <= now => Step::Keep,
            Some(_) => Step::WaitUntil(self.keep_at),
        }
    }

    pub(crate) fn succeeded(&mut self, now: Instant, version: u64) {
        self.published = self.published.max(version);
        self.not_before = None;
        self.failures = 0;
        self.kept(now);
    }

    pub(crate) fn kept(&mut self, now: Instant) {
        self.keep_at = now + self.keep_every.unwrap_or_default();
    }

    /// What was published is gone: publish the same version again.
    pub(crate) fn vanished(&mut self) {
        self.published = 0;
        self.not_before = None;
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
        self.not_before = Some(until);
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

/// Publishes until it is told to [`STOP`] or the wake-up channel closes.
pub(crate) async fn run(
    local: Arc<LocalSegment>,
    directory: Arc<dyn Directory>,
    location: RpcLocation,
    timeout: Duration,
    mut wake: watch::Receiver<u64>,
    progress: watch::Sender<Progress>,
) {
    let published = progress.borrow().published;
    let mut machine = Machine::new(Instant::now(), published, directory.keep_interval());
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
                    machine.succeeded(Instant::now(), version);
                    progress.send_modify(|progress| {
                        progress.published = progress.published.max(version);
                        progress.failure = None;
                    });
                }
                Err(error) => failed(&mut machine, &progress, &error),
            },
            Step::Keep => match directory.keep(Instant::now() + timeout).await {
                Ok(Kept::Kept) => {
                    machine.kept(Instant::now());
                    progress.send_if_modified(|progress| progress.failure.take().is_some());
                }
                Ok(_) => {
                    tracing::warn!(target: "te::engine", name = %local.name(), "the segment is no longer published");
                    machine.vanished();
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
mod tests {
    use super::*;

    #[test]
    fn a_thousand_changes_in_a_burst_cost_one_publish() {
        let start = Instant::now();
        let mut machine = Machine::new(start, 1, None);
        let mut publishes = 0;
        for i in 0..1_000_u64 {
            let now = start + Duration::from_micros(i);
            machine.wanted(now, 2 + i);
            if let Step::Publish(version) = machine.step(now) {
                publishes += 1;
                machine.succeeded(now, version);
            }
        }
        assert_eq!(publishes, 0);
        assert_eq!(machine.step(start + COALESCE), Step::Publish(1_001));
        machine.succeeded(start, 1_001);
        assert_eq!(machine.step(start + COALESCE), Step::Idle);
    }

    #[test]
    fn a_stream_of_changes_does_not_starve_publishing() {
        let start = Instant::now();
        let mut machine = Machine::new(start, 1, None);
        let mut publishes = 0;
        for i in 0..100_u32 {
            let now = start + Duration::from_millis(1) * i;
            machine.wanted(now, u64::from(2 + i));
            if let Step::Publish(version) = machine.step(now) {
                publishes += 1;
                machine.succeeded(now, version);
            }
        }
        assert!((15..=20).contains(&publishes), "{publishes}");
    }

    #[test]
    fn failures_back_off_with_jitter_up_to_a_bound_and_success_resets() {
        let start = Instant::now();
        let mut machine = Machine::new(start, 1, None);
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
        machine.succeeded(start, 2);
        assert_eq!(machine.step(start), Step::Idle);
        machine.wanted(start, 3);
        assert_eq!(machine.step(start + COALESCE), Step::Publish(3));
    }

    #[test]
    fn an_older_publish_does_not_count_for_a_newer_version() {
        let start = Instant::now();
        let mut machine = Machine::new(start, 1, None);
        machine.wanted(start, 5);
        machine.succeeded(start, 4);
        assert_eq!(machine.step(start + COALESCE), Step::Publish(5));
    }

    #[test]
    fn what_is_published_is_kept_at_intervals() {
        let start = Instant::now();
        let every = Duration::from_secs(3);
        let mut machine = Machine::new(start, 1, Some(every));
        assert_eq!(machine.step(start), Step::WaitUntil(start + every));
        assert_eq!(machine.step(start + every), Step::Keep);
        machine.kept(start + every);
        assert_eq!(machine.step(start + every), Step::WaitUntil(start + 2 * every));
        // Publishing renews as well.
        machine.wanted(start + every, 2);
        machine.succeeded(start + every + COALESCE, 2);
        assert_eq!(machine.step(start + 2 * every), Step::WaitUntil(start + 2 * every + COALESCE));
    }

    /// META-04.
    #[test]
    fn what_vanished_is_published_again_at_once() {
        let start = Instant::now();
        let mut machine = Machine::new(start, 7, Some(Duration::from_secs(3)));
        machine.vanished();
        assert_eq!(machine.step(start), Step::Publish(7));
    }

    #[test]
    fn lost_name_is_left_alone_for_good() {
        let start = Instant::now();
        let mut machine = Machine::new(start, 1, Some(Duration::from_secs(3)));
        machine.lost();
        machine.wanted(start, 9);
        assert_eq!(machine.step(start + Duration::from_secs(60)), Step::Idle);
    }

    #[test]
    fn failed_renewal_is_repeated_before_the_lease_ends() {
        let start = Instant::now();
        let every = Duration::from_secs(3);
        let mut machine = Machine::new(start, 1, Some(every));
        let mut now = start + every;
        for _ in 0..20 {
            assert_eq!(machine.step(now), Step::Keep);
            machine.failed(now, 1.0);
            let Step::WaitUntil(at) = machine.step(now) else { panic!("should wait") };
            assert!(at > now && at <= now + every);
            now = at;
        }
    }
}
