//! When the publisher publishes and keeps, over a clock of the test's.

use super::*;

const EVERY: Duration = Duration::from_secs(3);

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

impl Machine {
    /// A change that nobody waits for.
    fn changed(&mut self, now: Instant, version: u64) {
        self.wanted(now, Wanted { version, ..self.wanted });
    }

    /// Somebody waits for this version.
    fn awaited(&mut self, now: Instant, version: u64) {
        self.wanted(now, Wanted { version: version.max(self.wanted.version), awaited: version, stop: false });
    }

    /// The publishes of a change every millisecond for so long, each done at once.
    fn run_changes(&mut self, start: Instant, count: u64) -> usize {
        let mut publishes = 0;
        for at in 0..count {
            let now = start + ms(at);
            self.changed(now, 2 + at);
            if let Step::Publish(version) = self.step(now) {
                publishes += 1;
                self.succeeded(now, version);
            }
        }
        publishes
    }
}

#[test]
fn a_thousand_changes_in_a_burst_cost_one_publish() {
    let start = Instant::now();
    let mut machine = Machine::new(start, 1, None);
    for i in 0..1_000_u64 {
        let now = start + Duration::from_micros(i);
        machine.changed(now, 2 + i);
        assert!(matches!(machine.step(now), Step::WaitUntil(_)));
    }
    assert_eq!(machine.step(start + COALESCE), Step::Publish(1_001));
    machine.succeeded(start, 1_001);
    assert_eq!(machine.step(start + COALESCE), Step::Idle);
}

#[test]
fn a_stream_of_changes_is_published_at_growing_pauses_and_never_starves() {
    let start = Instant::now();
    // After 5, 105, 305, 705 ms.
    assert_eq!(Machine::new(start, 1, None).run_changes(start, 1_000), 4);
    let publishes = Machine::new(start, 1, None).run_changes(start, 60_000);
    assert!((60..=65).contains(&publishes), "{publishes}");
}

#[test]
fn the_pause_is_short_again_after_a_calm() {
    let start = Instant::now();
    let mut machine = Machine::new(start, 1, None);
    machine.run_changes(start, 5_000);
    let later = start + Duration::from_secs(60);
    machine.succeeded(start + ms(5_000), 5_001);
    machine.changed(later, 6_000);
    assert_eq!(machine.step(later + COALESCE), Step::Publish(6_000));
    machine.succeeded(later + COALESCE, 6_000);
    machine.changed(later + COALESCE, 6_001);
    assert_eq!(machine.step(later + COALESCE), Step::WaitUntil(later + COALESCE + FIRST_GAP));
}

#[test]
fn who_waits_for_a_version_does_not_wait_for_the_pause() {
    let start = Instant::now();
    let mut machine = Machine::new(start, 1, None);
    machine.run_changes(start, 600);
    let now = start + ms(600);
    machine.changed(now, 700);
    assert!(matches!(machine.step(now + COALESCE), Step::WaitUntil(_)));
    machine.awaited(now, 700);
    assert_eq!(machine.step(now + COALESCE), Step::Publish(700));
    machine.succeeded(now + COALESCE, 700);
    // What comes after it is not waited for.
    machine.changed(now + COALESCE, 701);
    assert!(matches!(machine.step(now + COALESCE * 2), Step::WaitUntil(_)));
}

#[test]
fn failures_back_off_with_jitter_up_to_a_bound_and_success_resets() {
    let start = Instant::now();
    let mut machine = Machine::new(start, 1, None);
    machine.awaited(start, 2);
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
    machine.awaited(start, 3);
    assert_eq!(machine.step(start + COALESCE), Step::Publish(3));
}

#[test]
fn an_older_publish_does_not_count_for_a_newer_version() {
    let start = Instant::now();
    let mut machine = Machine::new(start, 1, None);
    machine.awaited(start, 5);
    machine.succeeded(start, 4);
    assert_eq!(machine.step(start + COALESCE), Step::Publish(5));
}

#[test]
fn what_is_published_is_kept_at_intervals_whatever_else_is_published() {
    let start = Instant::now();
    let mut machine = Machine::new(start, 1, Some(EVERY));
    assert_eq!(machine.step(start), Step::WaitUntil(start + EVERY));
    assert_eq!(machine.step(start + EVERY), Step::Keep);
    machine.kept(start + EVERY);
    assert_eq!(machine.step(start + EVERY), Step::WaitUntil(start + 2 * EVERY));
    // A publish writes one of two records, so it renews only that.
    machine.changed(start + 2 * EVERY - COALESCE, 2);
    assert_eq!(machine.step(start + 2 * EVERY), Step::Keep);
    machine.kept(start + 2 * EVERY);
    assert_eq!(machine.step(start + 2 * EVERY), Step::Publish(2));
}

/// A record that the store refuses for good must not cost the lease of the one that is there.
#[test]
fn publishing_that_fails_does_not_keep_from_keeping() {
    let start = Instant::now();
    let mut machine = Machine::new(start, 1, Some(EVERY));
    machine.changed(start, 2);
    let (mut now, mut kept) = (start + COALESCE, 0);
    while now < start + Duration::from_secs(60) {
        match machine.step(now) {
            Step::Publish(_) => machine.failed(now, 1.0),
            Step::Keep => {
                machine.kept(now);
                kept += 1;
            }
            Step::WaitUntil(at) => now = at,
            Step::Idle => panic!("there is something to do"),
        }
    }
    assert!(kept >= 19, "{kept}");
}

/// META-04.
#[test]
fn what_vanished_is_published_again_at_once() {
    let start = Instant::now();
    let mut machine = Machine::new(start, 7, Some(EVERY));
    machine.failed(start, 1.0);
    machine.vanished(start + EVERY);
    assert_eq!(machine.step(start + EVERY), Step::Publish(7));
}

#[test]
fn lost_name_is_left_alone_for_good() {
    let start = Instant::now();
    let mut machine = Machine::new(start, 1, Some(EVERY));
    machine.lost();
    machine.awaited(start, 9);
    assert_eq!(machine.step(start + Duration::from_secs(60)), Step::Idle);
}

#[test]
fn failed_renewal_is_repeated_before_the_lease_ends() {
    let start = Instant::now();
    let mut machine = Machine::new(start, 1, Some(EVERY));
    let mut now = start + EVERY;
    for _ in 0..20 {
        assert_eq!(machine.step(now), Step::Keep);
        machine.failed(now, 1.0);
        let Step::WaitUntil(at) = machine.step(now) else { panic!("should wait") };
        assert!(at > now && at <= now + EVERY);
        now = at;
    }
}
