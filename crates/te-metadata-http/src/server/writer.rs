//! The one thread that changes anything: decides, writes to the disk, makes visible, answers, in this order.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError},
    },
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use parking_lot::RwLock;
use tokio::sync::{oneshot, watch};

use super::{
    contents::{Bounds, Change, Command, Contents, Plan, Refusal},
    journal::Journal,
    metrics::Metrics,
};

/// Commands that may wait.
const QUEUE: usize = 4096;
/// Commands that go to the disk together.
const BATCH: usize = 256;
/// Bytes of values that go to the disk together, about.
const BATCH_BYTES: usize = 8 << 20;
/// Longest sleep between looks at the leases.
const MAX_SLEEP: Duration = Duration::from_secs(1);

/// One command and who waits for its outcome.
struct Job {
    command: Command,
    reply: oneshot::Sender<Result<u64, Refusal>>,
}

/// What requests and watches share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) contents: RwLock<Contents>,
    /// The revision that is visible.
    pub(super) changed: watch::Sender<u64>,
    /// The journal failed: nothing can be written any more.
    pub(super) broken: std::sync::atomic::AtomicBool,
    pub(super) metrics: Metrics,
}

/// Hands commands to the writer thread.
#[derive(Clone, Debug)]
pub(super) struct Writer(SyncSender<Job>);

impl Writer {
    /// Carries out a command; when this returns, its effect is on the disk and visible.
    pub(super) async fn run(&self, command: Command) -> Result<u64, Refusal> {
        let (reply, outcome) = oneshot::channel();
        match self.0.try_send(Job { command, reply }) {
            Ok(()) => outcome.await.unwrap_or(Err(Refusal::Broken)),
            Err(TrySendError::Full(_)) => Err(Refusal::Busy),
            Err(TrySendError::Disconnected(_)) => Err(Refusal::Broken),
        }
    }
}

/// Starts the thread. It ends when the last [`Writer`] is gone and everything handed to it is done.
pub(super) fn start(
    shared: Arc<Shared>,
    journal: Option<Journal>,
    bounds: Bounds,
) -> std::io::Result<(Writer, JoinHandle<()>)> {
    let (sender, jobs) = std::sync::mpsc::sync_channel(QUEUE);
    let mut work = Work { shared, journal, bounds };
    let thread = std::thread::Builder::new().name("te-metad-writer".into()).spawn(move || work.run(&jobs))?;
    Ok((Writer(sender), thread))
}

/// Milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

struct Work {
    shared: Arc<Shared>,
    journal: Option<Journal>,
    bounds: Bounds,
}

impl Work {
    fn run(&mut self, jobs: &Receiver<Job>) {
        loop {
            let next = self.shared.contents.read().next_expiry();
            let sleep =
                next.map_or(MAX_SLEEP, |at| at.saturating_duration_since(Instant::now()).min(MAX_SLEEP));
            let mut batch = Vec::new();
            match jobs.recv_timeout(sleep) {
                Ok(job) => batch.push(job),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let mut bytes = batch.iter().map(size).sum::<usize>();
            while batch.len() < BATCH && bytes < BATCH_BYTES {
                let Ok(job) = jobs.try_recv() else { break };
                bytes += size(&job);
                batch.push(job);
            }
            self.carry_out(batch);
        }
    }

    fn carry_out(&mut self, batch: Vec<Job>) {
        let is_broken = self.shared.broken.load(std::sync::atomic::Ordering::Relaxed);
        let (changes, expired, mut outcomes) = {
            let contents = self.shared.contents.read();
            let mut plan = Plan::new(&contents, self.bounds, Instant::now(), now_ms());
            let expired = plan.changes.len();
            let decide = |job: Job| match is_broken {
                true => (job.reply, Err(Refusal::Broken)),
                false => (job.reply, plan.decide(job.command)),
            };
            let outcomes: Vec<_> = batch.into_iter().map(decide).collect();
            (plan.changes, expired, outcomes)
        };
        let changes = match self.write(&changes) {
            Ok(()) => changes,
            // Leases end all the same: they begin anew with the server, and end again.
            Err(_) => {
                for (_, outcome) in &mut outcomes {
                    *outcome = Err(Refusal::Broken);
                }
                changes.into_iter().take(expired).collect()
            }
        };
        self.shared.metrics.expired.inc_by(expired as u64);
        self.show(changes);
        for (reply, outcome) in outcomes {
            // Nobody waits any more: the client is gone, the effect stays.
            let _ = reply.send(outcome);
        }
        self.compact();
    }

    fn write(&mut self, changes: &[Change]) -> Result<(), ()> {
        let Some(journal) = self.journal.as_mut().filter(|_| !changes.is_empty()) else { return Ok(()) };
        if self.shared.broken.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(());
        }
        let begun = Instant::now();
        let outcome = journal.append(changes);
        self.shared.metrics.journal_seconds.observe(begun.elapsed().as_secs_f64());
        self.shared.metrics.journal_bytes.set(i64::try_from(journal.bytes()).unwrap_or(i64::MAX));
        outcome.map_err(|error| self.fail(&error))
    }

    /// After a failed write nobody knows what is on the disk: no further write is acknowledged.
    fn fail(&self, error: &std::io::Error) {
        self.shared.broken.store(true, std::sync::atomic::Ordering::Relaxed);
        tracing::error!(target: "te::metad", %error, "the journal cannot be written; writes are refused from now on");
    }

    fn show(&self, changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        let revision = {
            let mut contents = self.shared.contents.write();
            for change in changes {
                contents.apply(change);
            }
            contents.revision
        };
        self.shared.changed.send_replace(revision);
    }

    fn compact(&mut self) {
        let contents = self.shared.contents.read();
        let Some(journal) = self.journal.as_mut().filter(|journal| journal.wants_compaction(&contents))
        else {
            return;
        };
        if self.shared.broken.load(std::sync::atomic::Ordering::Relaxed) {
            return;
        }
        let outcome = journal.compact(&contents, Instant::now());
        self.shared.metrics.journal_bytes.set(i64::try_from(journal.bytes()).unwrap_or(i64::MAX));
        drop(contents);
        if let Err(error) = outcome {
            self.fail(&error);
        }
    }
}

fn size(job: &Job) -> usize {
    match &job.command {
        Command::Put { value, .. } => value.len(),
        Command::Delete { .. } | Command::Renew { .. } => 0,
    }
}
