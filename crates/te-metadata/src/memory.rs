//! A metadata store in the memory of this process.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use crate::{
    error::{StoreError, StoreErrorKind, StoreOperation},
    key::Key,
    store::{BoxFuture, Entry, LeasedEntry, MetadataStore, PutCondition, PutRequest, StoreInfo},
    watch::{WatchEvent, WatchSource, WatchStream},
};

const SCHEME: &str = "memory";
/// Changes a watcher may lag behind before it is told to read again.
const WATCH_BACKLOG: usize = 4096;
/// Shortest sleep of a watcher, for clocks that do not move by themselves.
const MIN_SLEEP: Duration = Duration::from_millis(1);

type Now = Arc<dyn Fn() -> Instant + Send + Sync>;

struct Record {
    entry: Entry,
    expires: Option<Instant>,
}

struct Watcher {
    prefix: String,
    sender: mpsc::Sender<WatchEvent>,
    lagged: Arc<AtomicBool>,
}

#[derive(Default)]
struct Contents {
    revision: u64,
    records: BTreeMap<String, Record>,
    watchers: Vec<Watcher>,
}

impl Contents {
    fn next_revision(&mut self) -> u64 {
        self.revision += 1;
        self.revision
    }

    fn tell(&mut self, event: &WatchEvent) {
        let key = match event {
            WatchEvent::Put { key, .. } | WatchEvent::Delete { key, .. } => key.as_str(),
            WatchEvent::Resync => "",
        };
        self.watchers.retain(|watcher| {
            if !key.starts_with(&watcher.prefix) {
                return !watcher.sender.is_closed();
            }
            match watcher.sender.try_send(event.clone()) {
                Ok(()) => true,
                Err(mpsc::error::TrySendError::Full(_)) => {
                    watcher.lagged.store(true, Ordering::Release);
                    true
                }
                Err(mpsc::error::TrySendError::Closed(_)) => false,
            }
        });
    }

    fn remove(&mut self, key: &str) {
        if self.records.remove(key).is_some() {
            let revision = self.next_revision();
            self.tell(&WatchEvent::Delete { key: Key::new(key), revision });
        }
    }

    fn expire(&mut self, now: Instant) {
        let ended = |record: &Record| record.expires.is_some_and(|at| at <= now);
        let keys: Vec<String> =
            self.records.iter().filter(|(_, record)| ended(record)).map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.remove(&key);
        }
    }

    fn next_expiry(&self) -> Option<Instant> {
        self.records.values().filter_map(|record| record.expires).min()
    }
}

struct Shared {
    contents: Mutex<Contents>,
    now: Now,
    lease_changed: Notify,
    max_value: Option<usize>,
}

impl Shared {
    /// Runs `work` on the contents after dropping what has expired.
    fn with<T>(&self, work: impl FnOnce(&mut Contents, Instant) -> T) -> T {
        let now = (self.now)();
        let mut contents = self.contents.lock();
        contents.expire(now);
        work(&mut contents, now)
    }
}

/// An in-memory [`MetadataStore`], shared by cloning: for tests, and for engines of one process.
///
/// It can everything the contract names: revisions, conditional puts, leases, listing, watching. Leases end by
/// tokio's clock, or by a clock passed in; each call first drops what has expired, and a watcher wakes up for the
/// next expiry by itself.
#[derive(Clone)]
pub struct MemoryStore(Arc<Shared>);

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore").field("keys", &self.0.contents.lock().records.len()).finish()
    }
}

impl MemoryStore {
    /// An empty store whose leases end by tokio's clock.
    pub fn new() -> Self {
        Self::build(Arc::new(tokio_now), None)
    }

    /// An empty store whose leases end by `now`.
    pub fn with_clock(now: impl Fn() -> Instant + Send + Sync + 'static) -> Self {
        Self::build(Arc::new(now), None)
    }

    /// An empty store that refuses values over `limit` bytes.
    pub fn with_max_value(limit: usize) -> Self {
        Self::build(Arc::new(tokio_now), Some(limit))
    }

    fn build(now: Now, max_value: Option<usize>) -> Self {
        Self(Arc::new(Shared {
            contents: Mutex::new(Contents::default()),
            now,
            lease_changed: Notify::new(),
            max_value,
        }))
    }

    fn call<T>(
        &self,
        operation: StoreOperation,
        key: &str,
        deadline: Instant,
        work: impl FnOnce(&mut Contents, Instant) -> Result<T, StoreErrorKind>,
    ) -> Result<T, StoreError> {
        let outcome =
            if tokio_now() >= deadline { Err(StoreErrorKind::DeadlineExceeded) } else { self.0.with(work) };
        outcome.map_err(|kind| StoreError::new(SCHEME, operation, key, kind))
    }

    fn put_now(&self, request: PutRequest, deadline: Instant) -> Result<u64, StoreError> {
        let PutRequest { key, value, condition, lease } = request;
        let revision = self.call(StoreOperation::Put, key.as_str(), deadline, |contents, now| {
            if let Some(limit) = self.0.max_value.filter(|limit| value.len() > *limit) {
                return Err(StoreErrorKind::TooLarge { size: value.len(), limit, store: SCHEME });
            }
            let current = contents.records.get(key.as_str()).map(|record| record.entry.revision);
            let holds = match condition {
                PutCondition::Always => true,
                PutCondition::Absent => current.is_none(),
                PutCondition::Revision(expected) => current == Some(expected),
            };
            if !holds {
                return Err(StoreErrorKind::Conflict { current });
            }
            let revision = contents.next_revision();
            let entry = Entry { value, revision };
            let expires = lease.and_then(|lease| now.checked_add(lease));
            contents.records.insert(key.as_str().to_owned(), Record { entry: entry.clone(), expires });
            contents.tell(&WatchEvent::Put { key: key.clone(), entry });
            Ok(revision)
        })?;
        if lease.is_some() {
            self.0.lease_changed.notify_waiters();
        }
        Ok(revision)
    }
}

fn tokio_now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl MetadataStore for MemoryStore {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            max_value: self.0.max_value,
            leases: true,
            list: true,
            watch: true,
            every_change: true,
            exact_keys: true,
            conditional: true,
            ..StoreInfo::new(SCHEME)
        }
    }

    fn get<'a>(
        &'a self,
        key: &'a Key,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        Box::pin(async move {
            self.call(StoreOperation::Get, key.as_str(), deadline, |contents, _| {
                Ok(contents.records.get(key.as_str()).map(|record| record.entry.clone()))
            })
        })
    }

    fn put(&self, request: PutRequest, deadline: Instant) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move { self.put_now(request, deadline) })
    }

    fn delete<'a>(
        &'a self,
        key: &'a Key,
        revision: Option<u64>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            self.call(StoreOperation::Delete, key.as_str(), deadline, |contents, _| {
                let Some(current) = contents.records.get(key.as_str()).map(|record| record.entry.revision)
                else {
                    return Ok(false);
                };
                if revision.is_some_and(|expected| expected != current) {
                    return Err(StoreErrorKind::Conflict { current: Some(current) });
                }
                contents.remove(key.as_str());
                Ok(true)
            })
        })
    }

    fn renew<'a>(
        &'a self,
        key: &'a Key,
        revision: u64,
        lease: Duration,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let renewed = self.call(StoreOperation::Renew, key.as_str(), deadline, |contents, now| {
                match contents.records.get_mut(key.as_str()) {
                    Some(record) if record.entry.revision == revision => {
                        record.expires = now.checked_add(lease);
                        Ok(true)
                    }
                    _ => Ok(false),
                }
            })?;
            self.0.lease_changed.notify_waiters();
            Ok(renewed)
        })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Vec<(Key, Entry)>, StoreError>> {
        Box::pin(async move {
            let listed = self.list_with_leases(prefix, deadline).await?;
            Ok(listed.into_iter().map(|found| (found.key, found.entry)).collect())
        })
    }

    fn list_with_leases<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Vec<LeasedEntry>, StoreError>> {
        Box::pin(async move {
            self.call(StoreOperation::List, prefix, deadline, |contents, now| {
                let from = contents.records.range(prefix.to_owned()..);
                let found = from.take_while(|(key, _)| key.starts_with(prefix));
                let leased = |(key, record): (&String, &Record)| LeasedEntry {
                    key: Key::new(key.as_str()),
                    entry: record.entry.clone(),
                    remaining: record.expires.map(|at| at.saturating_duration_since(now)),
                };
                Ok(found.map(leased).collect())
            })
        })
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<WatchStream, StoreError>> {
        Box::pin(async move {
            self.call(StoreOperation::Watch, prefix, deadline, |contents, _| {
                let (sender, receiver) = mpsc::channel(WATCH_BACKLOG);
                let lagged = Arc::new(AtomicBool::new(false));
                contents.watchers.push(Watcher {
                    prefix: prefix.to_owned(),
                    sender,
                    lagged: Arc::clone(&lagged),
                });
                Ok(WatchStream::new(MemoryWatch { store: self.clone(), receiver, lagged }))
            })
        })
    }
}

struct MemoryWatch {
    store: MemoryStore,
    receiver: mpsc::Receiver<WatchEvent>,
    lagged: Arc<AtomicBool>,
}

impl WatchSource for MemoryWatch {
    fn next(&mut self) -> BoxFuture<'_, Option<Result<WatchEvent, StoreError>>> {
        Box::pin(async move {
            loop {
                // Registered before looking at the leases, so that no change between the two is missed.
                let changed = self.store.0.lease_changed.notified();
                let next = self
                    .store
                    .0
                    .with(|contents, now| contents.next_expiry().map(|at| at.saturating_duration_since(now)));
                // The backlog comes before what was lost after it.
                if self.receiver.is_empty() && self.lagged.swap(false, Ordering::AcqRel) {
                    return Some(Ok(WatchEvent::Resync));
                }
                let expiry = async {
                    match next {
                        Some(delay) => tokio::time::sleep(delay.max(MIN_SLEEP)).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    event = self.receiver.recv() => return event.map(Ok),
                    () = changed => {}
                    () = expiry => {}
                }
            }
        })
    }
}
