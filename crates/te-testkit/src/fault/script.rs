//! What goes wrong, and when: decided by counting and by a seed, never by time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use te_transport::{FailureKind, RemoteEffect};

/// Where in a transport something can go wrong. Calls of each are counted on their own, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Site {
    /// Installation.
    Install,
    /// Registration of a region.
    Register,
    /// Withdrawal of a region.
    Unregister,
    /// Opening a path.
    Path,
    /// Submission of one slice; those of a batch are counted in their order.
    Slice,
    /// Cutting off a peer.
    Fence,
    /// Shutdown.
    Shutdown,
}

/// Which calls of a site.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum When {
    /// All of them.
    Always,
    /// The n-th, counted from 1.
    Nth(u64),
    /// The n-th and all after it.
    From(u64),
    /// Those before the n-th.
    Before(u64),
    /// Every n-th.
    Every(u64),
    /// Each with this probability, by the script's seed.
    Chance(f64),
}

/// What goes wrong. Transports stay within their contract: each slice is resolved once, by its deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The call fails: installation, registration, withdrawal, opening a path, shutdown. A slice fails as
    /// `Unreachable` without being begun.
    Fail,
    /// A registration is answered with "not mine".
    NotMine,
    /// A slice fails without being begun.
    Refuse(FailureKind),
    /// A slice is executed and reported as failed all the same, as when the acknowledgement is lost.
    FailAfter(FailureKind, RemoteEffect),
    /// A slice is dropped without being begun, its token unused.
    Drop,
    /// A slice is executed and its token dropped unused.
    DropAfter,
    /// A slice is not begun and not resolved before its batch is cancelled or late.
    Hang,
    /// A slice is executed and its outcome kept back for so long, or until its batch is cancelled or late.
    Delay(Duration),
}

struct Rule {
    site: Site,
    when: When,
    fault: Fault,
}

struct State {
    rules: Vec<Rule>,
    counts: HashMap<Site, u64>,
    chance: StdRng,
    log: Vec<(Site, u64, Fault)>,
}

/// A list of faults for one transport. Clones are the same script: a test keeps one and changes it while it runs.
///
/// ```
/// use te_testkit::{Fault, Script, Site, When};
/// let script = Script::new(1);
/// script.add(Site::Register, When::Nth(2), Fault::Fail);
/// assert_eq!(script.count(Site::Register), 0);
/// ```
#[derive(Clone)]
pub struct Script {
    state: Arc<Mutex<State>>,
}

impl Script {
    /// A script without faults. The seed decides [`When::Chance`].
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let state = State {
            rules: Vec::new(),
            counts: HashMap::new(),
            chance: StdRng::seed_from_u64(seed),
            log: Vec::new(),
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Adds a fault. Where several apply to one call, the one added first counts.
    pub fn add(&self, site: Site, when: When, fault: Fault) {
        self.state.lock().rules.push(Rule { site, when, fault });
    }

    /// The same script with one more fault.
    #[must_use]
    pub fn with(self, site: Site, when: When, fault: Fault) -> Self {
        self.add(site, when, fault);
        self
    }

    /// Forgets all faults; counting goes on.
    pub fn clear(&self) {
        self.state.lock().rules.clear();
    }

    /// How many calls of a site there were, faulty or not.
    #[must_use]
    pub fn count(&self, site: Site) -> u64 {
        self.state.lock().counts.get(&site).copied().unwrap_or_default()
    }

    /// The faults that happened: where, at which call, and which.
    #[must_use]
    pub fn log(&self) -> Vec<(Site, u64, Fault)> {
        self.state.lock().log.clone()
    }

    /// Counts a call and says what goes wrong in it.
    pub(crate) fn next(&self, site: Site) -> Option<Fault> {
        let mut state = self.state.lock();
        let State { rules, counts, chance, log } = &mut *state;
        let call = counts.entry(site).or_default();
        *call += 1;
        let call = *call;
        let applies = |rule: &&Rule| {
            rule.site == site
                && match rule.when {
                    When::Always => true,
                    When::Nth(n) => call == n,
                    When::From(n) => call >= n,
                    When::Before(n) => call < n,
                    When::Every(n) => n > 0 && call.is_multiple_of(n),
                    When::Chance(likely) => chance.random_bool(likely.clamp(0.0, 1.0)),
                }
        };
        let fault = rules.iter().find(applies).map(|rule| rule.fault.clone())?;
        log.push((site, call, fault.clone()));
        Some(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &Script, calls: u64) -> Vec<u64> {
        for _ in 0..calls {
            script.next(Site::Slice);
        }
        script.log().into_iter().map(|(_, call, _)| call).collect()
    }

    #[test]
    fn calls_are_chosen_by_number() {
        for (when, expected) in [
            (When::Always, vec![1, 2, 3, 4, 5, 6]),
            (When::Nth(3), vec![3]),
            (When::From(5), vec![5, 6]),
            (When::Before(3), vec![1, 2]),
            (When::Every(2), vec![2, 4, 6]),
        ] {
            let script = Script::new(0).with(Site::Slice, when, Fault::Hang);
            assert_eq!(run(&script, 6), expected, "{when:?}");
        }
    }

    #[test]
    fn chance_is_decided_by_the_seed() {
        let script = |seed| Script::new(seed).with(Site::Slice, When::Chance(0.3), Fault::Hang);
        let (first, again, other) = (run(&script(4), 1000), run(&script(4), 1000), run(&script(5), 1000));
        assert_eq!(first, again);
        assert_ne!(first, other);
        assert!((200..400).contains(&first.len()), "{} of 1000", first.len());
    }

    #[test]
    fn sites_are_counted_apart() {
        let script = Script::new(0).with(Site::Register, When::Nth(1), Fault::Fail);
        assert_eq!(script.next(Site::Slice), None);
        assert_eq!(script.next(Site::Register), Some(Fault::Fail));
        assert_eq!((script.count(Site::Slice), script.count(Site::Register)), (1, 1));
    }

    #[test]
    fn first_rule_counts() {
        let script = Script::new(0).with(Site::Slice, When::Nth(1), Fault::Drop);
        script.add(Site::Slice, When::Always, Fault::Hang);
        assert_eq!(script.next(Site::Slice), Some(Fault::Drop));
        assert_eq!(script.next(Site::Slice), Some(Fault::Hang));
    }

    #[test]
    fn cleared_script_does_no_harm_and_counts_on() {
        let script = Script::new(0).with(Site::Slice, When::Always, Fault::Hang);
        script.next(Site::Slice);
        script.clear();
        assert_eq!(script.next(Site::Slice), None);
        assert_eq!(script.count(Site::Slice), 2);
    }
}
