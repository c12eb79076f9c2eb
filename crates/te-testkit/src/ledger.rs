//! A completion sink that writes everything down and looks at memory while the outcome is reported.

use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use te_transport::{CompletionSink, CompletionToken, Failure, Outcome};

use crate::report::Violation;

/// Looks at memory in the thread that reports the outcome, before anybody else learns of it.
pub type Observer = Box<dyn Fn(u32, &Outcome) -> Result<(), Violation> + Send + Sync>;

/// One report of an outcome.
#[derive(Clone, Debug)]
pub struct Reported {
    /// What was reported.
    pub outcome: Outcome,
    /// When.
    pub at: Instant,
    /// On which thread.
    pub thread: ThreadId,
}

#[derive(Default)]
struct Book {
    reports: Vec<Vec<Reported>>,
    unknown: Vec<u32>,
    violation: Option<Violation>,
}

/// Collects the outcomes of the slices of one batch.
///
/// ```
/// use std::time::{Duration, Instant};
/// use te_testkit::Ledger;
/// let ledger = Ledger::new(2);
/// ledger.token(0).done(8);
/// assert!(ledger.wait(Instant::now() + Duration::from_millis(1)).is_err(), "slice 1 is missing");
/// ledger.token(1).done(8);
/// ledger.wait(Instant::now() + Duration::from_secs(1)).unwrap();
/// assert!(ledger.outcomes().iter().all(|outcome| outcome.is_done()));
/// ```
pub struct Ledger {
    book: Mutex<Book>,
    changed: Condvar,
    observer: Option<Observer>,
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger").field("resolved", &self.resolved()).finish_non_exhaustive()
    }
}

impl CompletionSink for Ledger {
    fn complete(&self, index: u32, outcome: Outcome) {
        let seen = self.observer.as_ref().map_or(Ok(()), |observe| observe(index, &outcome));
        let mut book = self.book.lock();
        if let Err(violation) = seen {
            book.violation.get_or_insert_with(|| violation.at(format_args!("slice {index}")));
        }
        let reported = Reported { outcome, at: Instant::now(), thread: thread::current().id() };
        match usize::try_from(index).ok().and_then(|index| book.reports.get_mut(index)) {
            Some(reports) => reports.push(reported),
            None => book.unknown.push(index),
        }
        self.changed.notify_all();
    }
}

impl Ledger {
    /// A ledger for `slices` slices.
    #[must_use]
    pub fn new(slices: usize) -> Arc<Self> {
        Self::build(slices, None)
    }

    /// A ledger that looks at memory while outcomes are reported; the first violation is kept.
    #[must_use]
    pub fn observed(slices: usize, observer: Observer) -> Arc<Self> {
        Self::build(slices, Some(observer))
    }

    fn build(slices: usize, observer: Option<Observer>) -> Arc<Self> {
        let book = Book { reports: vec![Vec::new(); slices], ..Book::default() };
        Arc::new(Self { book: Mutex::new(book), changed: Condvar::new(), observer })
    }

    /// The token of slice `index`.
    pub fn token(self: &Arc<Self>, index: u32) -> CompletionToken {
        CompletionToken::new(self.clone(), index)
    }

    /// How many slices are resolved.
    #[must_use]
    pub fn resolved(&self) -> usize {
        self.book.lock().reports.iter().filter(|reports| !reports.is_empty()).count()
    }

    /// Waits until every slice is resolved.
    ///
    /// # Errors
    ///
    /// Slices that are not resolved at `until`, slices that were resolved more than once or that nobody submitted,
    /// and whatever the observer found.
    pub fn wait(&self, until: Instant) -> Result<(), Violation> {
        self.wait_for(usize::MAX, until)
    }

    /// Waits until at least `least` slices, or all, are resolved.
    ///
    /// # Errors
    ///
    /// Like [`wait`](Self::wait).
    pub fn wait_for(&self, least: usize, until: Instant) -> Result<(), Violation> {
        let mut book = self.book.lock();
        let least = least.min(book.reports.len());
        loop {
            let resolved = book.reports.iter().filter(|reports| !reports.is_empty()).count();
            if resolved >= least {
                return Self::check(&book);
            }
            if self.changed.wait_until(&mut book, until).timed_out() {
                let first = book.reports.iter().position(Vec::is_empty).unwrap_or_default();
                let of = book.reports.len();
                return Err(Violation::new(format!(
                    "{resolved} of {of} slices are resolved in time, slice {first} is not"
                )));
            }
        }
    }

    fn check(book: &Book) -> Result<(), Violation> {
        if let Some(violation) = &book.violation {
            return Err(violation.clone());
        }
        if let Some(index) = book.unknown.first() {
            return Err(Violation::new(format!(
                "an outcome was reported for slice {index}, which does not exist"
            )));
        }
        match book.reports.iter().position(|reports| reports.len() > 1) {
            Some(index) => Err(Violation::new(format!("slice {index} was resolved more than once"))),
            None => Ok(()),
        }
    }

    /// The first outcome of each resolved slice, in slice order.
    #[must_use]
    pub fn outcomes(&self) -> Vec<Outcome> {
        self.reports().into_iter().map(|reported| reported.outcome).collect()
    }

    /// The first report of each resolved slice, in slice order.
    #[must_use]
    pub fn reports(&self) -> Vec<Reported> {
        self.book.lock().reports.iter().filter_map(|reports| reports.first().cloned()).collect()
    }

    /// The failures of the slices that failed, with their index.
    #[must_use]
    pub fn failures(&self) -> Vec<(usize, Failure)> {
        let book = self.book.lock();
        let first = book.reports.iter().map(|reports| reports.first());
        first
            .enumerate()
            .filter_map(|(index, reported)| match reported.map(|reported| &reported.outcome) {
                Some(Outcome::Failed(failure)) => Some((index, failure.clone())),
                _ => None,
            })
            .collect()
    }

    /// Checks that every slice completed.
    ///
    /// # Errors
    ///
    /// The first failure and how many there are.
    pub fn all_done(&self) -> Result<(), Violation> {
        let failures = self.failures();
        match failures.first() {
            Some((index, failure)) => {
                let count = failures.len();
                Err(Violation::new(format!("{count} slices failed, the first is slice {index}: {failure}")))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use te_transport::FailureKind;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    #[test]
    fn missing_outcome_is_named() {
        let ledger = Ledger::new(3);
        ledger.token(0).done(1);
        ledger.token(2).done(1);
        let violation = ledger.wait(soon()).unwrap_err();
        assert_eq!(violation.to_string(), "2 of 3 slices are resolved in time, slice 1 is not");
    }

    #[test]
    fn second_outcome_of_a_slice_is_a_violation() {
        let ledger = Ledger::new(1);
        ledger.token(0).done(1);
        ledger.token(0).done(1);
        assert_eq!(ledger.wait(soon()).unwrap_err().to_string(), "slice 0 was resolved more than once");
    }

    #[test]
    fn outcome_of_an_unknown_slice_is_a_violation() {
        let ledger = Ledger::new(1);
        ledger.token(0).done(1);
        ledger.token(5).done(1);
        assert!(ledger.wait(soon()).unwrap_err().to_string().contains("slice 5"));
    }

    #[test]
    fn observer_violation_is_kept_with_its_slice() {
        let ledger = Ledger::observed(1, Box::new(|_, _| Err(Violation::new("not applied"))));
        ledger.token(0).done(1);
        assert_eq!(ledger.wait(soon()).unwrap_err().to_string(), "slice 0: not applied");
    }

    #[test]
    fn observer_runs_on_the_completing_thread_before_waiters_wake() {
        let (seen, observed) = std::sync::mpsc::channel();
        let ledger = Ledger::observed(
            1,
            Box::new(move |_, _| {
                seen.send(thread::current().id()).map_err(|error| Violation::new(error.to_string()))
            }),
        );
        let token = ledger.token(0);
        let completing = thread::spawn(move || {
            token.done(1);
            thread::current().id()
        });
        ledger.wait(Instant::now() + Duration::from_secs(10)).unwrap();
        assert_eq!(observed.try_recv().unwrap(), completing.join().unwrap());
    }

    #[test]
    fn dropped_token_shows_as_failure() {
        let ledger = Ledger::new(1);
        drop(ledger.token(0));
        assert_eq!(ledger.failures()[0].1.kind(), FailureKind::Dropped);
        assert!(ledger.all_done().is_err());
    }
}
