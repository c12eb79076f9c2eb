//! The threads of one transport, counted so that a shutdown can wait for their end.
//!
//! For backends with threads of their own.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Enough for the deepest call and its stack buffers; only touched pages cost memory.
const STACK: usize = 256 << 10;

/// Counts the threads that work for a transport, its own and callers', by role.
pub struct Threads {
    /// What their names begin with, `te-tcp` for example.
    name: &'static str,
    running: Mutex<BTreeMap<&'static str, usize>>,
    ended: Condvar,
    /// Callers' threads at work. They come and go with every transfer, so they are only counted.
    callers: AtomicUsize,
}

/// A caller's thread at work.
pub struct Caller<'a>(&'a Threads);

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        self.0.callers.fetch_sub(1, Ordering::Release);
    }
}

/// One running thread.
pub(crate) struct Running {
    threads: Arc<Threads>,
    role: &'static str,
}

impl Threads {
    /// None run yet. `name` and a role make the name of each, of which the system shows 15 bytes.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self { name, running: Mutex::default(), ended: Condvar::new(), callers: AtomicUsize::new(0) }
    }

    /// Counts the calling thread for as long as the guard lives.
    #[must_use]
    pub fn caller(&self) -> Caller<'_> {
        self.callers.fetch_add(1, Ordering::Relaxed);
        Caller(self)
    }

    fn enter(self: &Arc<Self>, role: &'static str) -> Running {
        *self.running.lock().entry(role).or_insert(0) += 1;
        Running { threads: self.clone(), role }
    }

    /// Starts a thread.
    ///
    /// # Errors
    ///
    /// When the system has none left.
    pub fn spawn(
        self: &Arc<Self>,
        role: &'static str,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let running = self.enter(role);
        let thread = thread::Builder::new().name(format!("{}-{role}", self.name)).stack_size(STACK);
        thread.spawn(move || {
            // Moved in first, so that it is dropped last.
            let _running = running;
            body();
        })?;
        Ok(())
    }

    /// Waits until none runs.
    ///
    /// # Errors
    ///
    /// What still runs at the deadline, for example `2 serve, 1 connect`.
    pub fn wait_ended(&self, deadline: Instant) -> Result<(), String> {
        let mut running = self.running.lock();
        loop {
            let callers = self.callers.load(Ordering::Acquire);
            if running.is_empty() && callers == 0 {
                return Ok(());
            }
            let now = Instant::now();
            if now >= deadline {
                let mut names: Vec<_> =
                    running.iter().map(|(role, count)| format!("{count} {role}")).collect();
                if callers > 0 {
                    names.push(format!("{callers} caller"));
                }
                return Err(names.join(", "));
            }
            // Callers end without a signal.
            let next = if callers > 0 { deadline.min(now + Duration::from_millis(2)) } else { deadline };
            self.ended.wait_until(&mut running, next);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut running = self.threads.running.lock();
        if let Some(count) = running.get_mut(self.role) {
            *count -= 1;
            if *count == 0 {
                running.remove(self.role);
            }
        }
        drop(running);
        self.threads.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn waiting_names_what_still_runs() {
        let threads = Arc::new(Threads::new("te-test"));
        let (stop, stopped) = mpsc::channel::<()>();
        threads
            .spawn("serve", move || {
                let _ = stopped.recv();
            })
            .unwrap();
        let error = threads.wait_ended(Instant::now() + Duration::from_millis(20)).unwrap_err();
        assert_eq!(error, "1 serve");
        drop(stop);
        threads.wait_ended(Instant::now() + Duration::from_secs(10)).unwrap();
    }
}
