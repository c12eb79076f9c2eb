//! A hang becomes a message.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

/// Something did not finish in time, or ended without a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Stuck {
    /// It still runs. Its thread is left behind.
    #[error("{what} still runs after {limit:?}")]
    Hangs {
        /// What was run.
        what: String,
        /// How long it was waited for.
        limit: Duration,
    },
    /// It panicked.
    #[error("{what} panicked: {message}")]
    Panicked {
        /// What was run.
        what: String,
        /// The panic's message.
        message: String,
    },
    /// No thread could be started for it.
    #[error("{what} could not be started: {cause}")]
    NotStarted {
        /// What should have run.
        what: String,
        /// What the system says.
        cause: String,
    },
}

/// Runs `work` on a thread of its own and waits at most `limit` for its result.
///
/// # Errors
///
/// See [`Stuck`]; a thread that hangs stays behind until the process ends.
pub fn within<T: Send + 'static>(
    limit: Duration,
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Stuck> {
    let (result, done) = mpsc::channel();
    let worker = thread::Builder::new()
        .name(what.to_owned())
        .spawn(move || {
            // Nobody listens any more when the limit has passed; the result is then of no use.
            let _ = result.send(work());
        })
        .map_err(|error| Stuck::NotStarted { what: what.to_owned(), cause: error.to_string() })?;
    match done.recv_timeout(limit) {
        Ok(value) => Ok(value),
        Err(RecvTimeoutError::Timeout) => Err(Stuck::Hangs { what: what.to_owned(), limit }),
        Err(RecvTimeoutError::Disconnected) => {
            let message = match worker.join() {
                Ok(()) => "ended without a result".to_owned(),
                Err(panic) => panic_message(&*panic),
            };
            Err(Stuck::Panicked { what: what.to_owned(), message })
        }
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

/// Ends the process with a message if it lives longer than its limit: for tests that cannot run on another thread.
///
/// ```
/// let _watchdog = te_testkit::Watchdog::new("this example", std::time::Duration::from_secs(60));
/// ```
#[derive(Debug)]
pub struct Watchdog {
    // Dropping the sender wakes the thread and ends it.
    _alive: Sender<()>,
}

impl Watchdog {
    /// Starts the clock; dropping the watchdog stops it.
    #[must_use = "a dropped watchdog watches nothing"]
    pub fn new(what: &str, limit: Duration) -> Self {
        Self::with_action(what, limit, |message| {
            eprintln!("{message}");
            std::process::abort();
        })
    }

    fn with_action(what: &str, limit: Duration, action: impl FnOnce(&str) + Send + 'static) -> Self {
        let (alive, ended) = mpsc::channel();
        let message = format!("{what} still runs after {limit:?}");
        thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                action(&message);
            }
        });
        Self { _alive: alive }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_in_time_is_passed_on() {
        assert_eq!(within(Duration::from_secs(10), "sum", || 1 + 1), Ok(2));
    }

    #[test]
    fn hang_is_reported_by_name() {
        let (release, wait) = mpsc::channel::<()>();
        let stuck = within(Duration::from_millis(20), "a receiver", move || wait.recv()).unwrap_err();
        drop(release);
        assert_eq!(stuck.to_string(), "a receiver still runs after 20ms");
    }

    #[test]
    fn panic_is_reported_with_its_message() {
        let stuck = within(Duration::from_secs(10), "a step", || panic!("no such {}", "thing")).unwrap_err();
        assert_eq!(stuck.to_string(), "a step panicked: no such thing");
    }

    #[test]
    fn watchdog_acts_when_its_limit_passes() {
        let (acted, action) = mpsc::channel();
        let _watchdog = Watchdog::with_action("a test", Duration::from_millis(10), move |message| {
            acted.send(message.to_owned()).unwrap();
        });
        let message = action.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(message, "a test still runs after 10ms");
    }

    #[test]
    fn dropped_watchdog_does_not_act() {
        let (acted, action) = mpsc::channel::<()>();
        drop(Watchdog::with_action("a test", Duration::from_secs(600), move |_| {
            acted.send(()).unwrap();
        }));
        // The closure, and with it the sender, is dropped unused.
        assert_eq!(action.recv_timeout(Duration::from_secs(10)), Err(RecvTimeoutError::Disconnected));
    }
}
