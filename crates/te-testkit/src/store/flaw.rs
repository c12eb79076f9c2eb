//! Ways in which a store can break the contract.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use te_metadata::{
    BoxFuture, Entry, Key, LeasedEntry, MetadataStore, PutCondition, PutRequest, StoreError, StoreErrorKind,
    StoreInfo, StoreOperation, WatchEvent, WatchSource, WatchStream,
};

macro_rules! flaws {
    ($($(#[$doc:meta])* $flaw:ident,)*) => {
        /// One way to break the contract of metadata stores, see [`FlawedStore`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum StoreFlaw {
            $($(#[$doc])* $flaw,)*
        }

        impl StoreFlaw {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$flaw,)*];
        }
    };
}

flaws! {
    /// Reports a missing key as an outage.
    FailsOnMissing,
    /// Trims values.
    TrimsValues,
    /// Reads of other handles see an old value.
    CachesReads,
    /// Gives every value the same revision.
    ForgetsRevisions,
    /// Refuses to overwrite.
    RefusesOverwrite,
    /// Deletes nothing and says that it did.
    KeepsDeleted,
    /// Refuses values as large as the limit.
    LimitsTooEarly,
    /// Takes values over the limit.
    IgnoresLimit,
    /// Does not look at deadlines.
    IgnoresDeadline,
    /// Answers for a server that does not.
    InventsAnswers,
    /// Claims absent keys without looking.
    IgnoresAbsence,
    /// Writes and deletes without comparing revisions.
    IgnoresRevision,
    /// Now and then says that a conditional put took effect and does nothing.
    LosesUpdates,
    /// Mixes up the keys of tasks that write at the same time.
    MixesKeys,
    /// Takes upper and lower case for the same.
    FoldsCase,
    /// Decodes percent signs in keys.
    DecodesKeys,
    /// Shortens keys to 255 bytes.
    ShortensKeys,
    /// Lists in the order of writing.
    ListsUnsorted,
    /// Lists keys without the prefix too.
    ListsTooMuch,
    /// Tells watchers nothing of deletions.
    HidesDeletions,
    /// Tells watchers of changes before the watch.
    ReplaysOldChanges,
    /// Tells watchers of keys without their prefix.
    WatchesTooMuch,
    /// Loses an event when the wait for it is given up.
    LosesOnDrop,
    /// Tells each change to one watcher only.
    SplitsEvents,
    /// Leases never end.
    NeverExpires,
    /// Leases end at once.
    ExpiresAtOnce,
    /// Renewals have no effect.
    ForgetsRenewals,
    /// Renews whatever the revision.
    RenewsAnything,
    /// A put without a lease keeps the old lease.
    KeepsLease,
    /// The end of a lease is not told.
    ExpiresQuietly,
    /// Lists keys as if none had a lease.
    HidesLeases,
    /// Lists every lease with the length it was put with.
    ListsWholeLeases,
}

/// A store that breaks one promise of the contract, around one that keeps them. It shows that the conformance suite
/// notices.
#[derive(Clone)]
pub struct FlawedStore {
    inner: Arc<dyn MetadataStore>,
    flaw: StoreFlaw,
    limit: Option<usize>,
    memory: Arc<Mutex<Memory>>,
}

#[derive(Default)]
struct Memory {
    reads: HashMap<String, Option<Entry>>,
    last_key: Option<Key>,
    leases: HashMap<String, Duration>,
    order: Vec<String>,
    watchers: usize,
    updates: u64,
}

impl FlawedStore {
    /// `inner`, with a flaw. `limit` is the largest value that the flawed store states.
    pub fn new(inner: impl MetadataStore + 'static, flaw: StoreFlaw, limit: Option<usize>) -> Self {
        Self { inner: Arc::new(inner), flaw, limit, memory: Arc::default() }
    }

    fn has(&self, flaw: StoreFlaw) -> bool {
        self.flaw == flaw
    }

    /// The key as the flawed store understands it.
    fn misread(&self, key: &Key) -> Key {
        let text = key.as_str();
        match self.flaw {
            StoreFlaw::FoldsCase => Key::new(text.to_lowercase()),
            StoreFlaw::DecodesKeys => Key::new(text.replace("%20", " ").replace("%2F", "/")),
            StoreFlaw::ShortensKeys => Key::new(text.chars().take(255).collect::<String>()),
            _ => key.clone(),
        }
    }

    fn deadline(&self, deadline: Instant) -> Instant {
        let late = Instant::now() + Duration::from_secs(60);
        if self.has(StoreFlaw::IgnoresDeadline) { late } else { deadline }
    }

    fn fails(&self, operation: StoreOperation, key: &Key, kind: StoreErrorKind) -> StoreError {
        StoreError::new(self.inner.info().scheme, operation, key.as_str(), kind)
    }

    async fn put_flawed(&self, request: PutRequest, deadline: Instant) -> Result<u64, StoreError> {
        let mut request = PutRequest { key: self.misread(&request.key), ..request };
        let size = request.value.len();
        let limit = match self.flaw {
            StoreFlaw::IgnoresLimit => None,
            StoreFlaw::LimitsTooEarly => self.limit.map(|limit| limit - 1),
            _ => self.limit,
        };
        if let Some(limit) = limit.filter(|limit| size > *limit) {
            let kind = StoreErrorKind::TooLarge { size, limit, store: "flawed" };
            return Err(self.fails(StoreOperation::Put, &request.key, kind));
        }
        match self.flaw {
            StoreFlaw::TrimsValues => request.value = request.value.trim().to_owned(),
            StoreFlaw::IgnoresAbsence if request.condition == PutCondition::Absent => {
                request.condition = PutCondition::Always;
            }
            StoreFlaw::IgnoresRevision if request.condition != PutCondition::Absent => {
                request.condition = PutCondition::Always;
            }
            StoreFlaw::RefusesOverwrite if request.condition == PutCondition::Always => {
                request.condition = PutCondition::Absent;
            }
            StoreFlaw::LosesUpdates if matches!(request.condition, PutCondition::Revision(_)) => {
                let mut memory = self.memory.lock();
                memory.updates += 1;
                if memory.updates.is_multiple_of(20) {
                    return Ok(1);
                }
            }
            StoreFlaw::NeverExpires => request.lease = None,
            StoreFlaw::ExpiresAtOnce => request.lease = request.lease.map(|lease| lease / 10),
            StoreFlaw::KeepsLease => {
                let mut memory = self.memory.lock();
                let old = memory.leases.get(request.key.as_str()).copied();
                request.lease = request.lease.or(old);
                if let Some(lease) = request.lease {
                    memory.leases.insert(request.key.as_str().to_owned(), lease);
                }
            }
            StoreFlaw::ListsWholeLeases => {
                if let Some(lease) = request.lease {
                    self.memory.lock().leases.insert(request.key.as_str().to_owned(), lease);
                }
            }
            _ => {}
        }
        if self.has(StoreFlaw::MixesKeys) {
            let last = self.memory.lock().last_key.replace(request.key.clone());
            // Others get their turn between the two halves of the call, as in a client that is shared without a lock.
            tokio::task::yield_now().await;
            let changed = self.memory.lock().last_key.clone();
            if let (Some(_), Some(other)) = (last, changed) {
                request.key = other;
            }
        }
        self.memory.lock().order.push(request.key.as_str().to_owned());
        self.inner.put(request, deadline).await
    }
}

impl MetadataStore for FlawedStore {
    fn info(&self) -> StoreInfo {
        let mut info = self.inner.info();
        info.max_value = self.limit;
        info
    }

    fn get<'a>(
        &'a self,
        key: &'a Key,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        Box::pin(async move {
            let key = self.misread(key);
            let mut found = self.inner.get(&key, self.deadline(deadline)).await?;
            match (&mut found, self.flaw) {
                (None, StoreFlaw::FailsOnMissing) => {
                    let kind = StoreErrorKind::Unavailable { detail: "404".to_owned() };
                    return Err(self.fails(StoreOperation::Get, &key, kind));
                }
                (Some(entry), StoreFlaw::ForgetsRevisions) => entry.revision = 1,
                _ => {}
            }
            if self.has(StoreFlaw::CachesReads) {
                let mut memory = self.memory.lock();
                return Ok(memory.reads.entry(key.as_str().to_owned()).or_insert(found).clone());
            }
            Ok(found)
        })
    }

    fn put(&self, request: PutRequest, deadline: Instant) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move { self.put_flawed(request, self.deadline(deadline)).await })
    }

    fn delete<'a>(
        &'a self,
        key: &'a Key,
        revision: Option<u64>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let key = self.misread(key);
            if self.has(StoreFlaw::KeepsDeleted) {
                return Ok(self.inner.get(&key, deadline).await?.is_some());
            }
            let revision = revision.filter(|_| !self.has(StoreFlaw::IgnoresRevision));
            self.inner.delete(&key, revision, self.deadline(deadline)).await
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
            match self.flaw {
                StoreFlaw::ForgetsRenewals | StoreFlaw::NeverExpires => {
                    Ok(self.inner.get(key, deadline).await?.is_some())
                }
                StoreFlaw::RenewsAnything => {
                    self.inner.renew(key, revision, lease, deadline).await?;
                    Ok(true)
                }
                _ => self.inner.renew(key, revision, lease, deadline).await,
            }
        })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Vec<(Key, Entry)>, StoreError>> {
        Box::pin(async move {
            let deadline = self.deadline(deadline);
            let asked = match self.flaw {
                StoreFlaw::ListsTooMuch => prefix.trim_end_matches('/'),
                _ => prefix,
            };
            let mut listed = self.inner.list(asked, deadline).await?;
            if self.has(StoreFlaw::ListsUnsorted) {
                let order = self.memory.lock().order.clone();
                listed.sort_by_key(|(key, _)| order.iter().position(|other| other == key.as_str()));
            }
            Ok(listed)
        })
    }

    fn list_with_leases<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Vec<LeasedEntry>, StoreError>> {
        Box::pin(async move {
            let mut listed = self.inner.list_with_leases(prefix, self.deadline(deadline)).await?;
            for found in &mut listed {
                found.remaining = match self.flaw {
                    StoreFlaw::HidesLeases => None,
                    StoreFlaw::ListsWholeLeases => self.memory.lock().leases.get(found.key.as_str()).copied(),
                    _ => found.remaining,
                };
            }
            Ok(listed)
        })
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<WatchStream, StoreError>> {
        Box::pin(async move {
            let asked = match self.flaw {
                StoreFlaw::WatchesTooMuch => prefix.trim_end_matches('/'),
                _ => prefix,
            };
            let old = match self.flaw {
                StoreFlaw::ReplaysOldChanges => self.inner.list(asked, deadline).await?,
                _ => Vec::new(),
            };
            let old = old.into_iter().map(|(key, entry)| WatchEvent::Put { key, entry }).collect();
            let inner = self.inner.watch(asked, deadline).await?;
            let number = {
                let mut memory = self.memory.lock();
                memory.watchers += 1;
                memory.watchers
            };
            Ok(WatchStream::new(FlawedWatch { inner, flaw: self.flaw, old, number, leased: false }))
        })
    }
}

struct FlawedWatch {
    inner: WatchStream,
    flaw: StoreFlaw,
    old: Vec<WatchEvent>,
    number: usize,
    leased: bool,
}

impl WatchSource for FlawedWatch {
    fn next(&mut self) -> BoxFuture<'_, Option<Result<WatchEvent, StoreError>>> {
        Box::pin(async move {
            if let Some(event) = self.old.pop() {
                return Some(Ok(event));
            }
            loop {
                let event = self.inner.next().await?;
                match (self.flaw, &event) {
                    (StoreFlaw::HidesDeletions, Ok(WatchEvent::Delete { .. })) => {}
                    (StoreFlaw::SplitsEvents, _) if self.number == 2 => {}
                    (StoreFlaw::ExpiresQuietly, Ok(WatchEvent::Delete { .. })) if self.leased => {}
                    (StoreFlaw::LosesOnDrop, _) => {
                        // The event is taken already; who gives up here loses it.
                        tokio::time::sleep(Duration::from_micros(500)).await;
                        return Some(event);
                    }
                    (StoreFlaw::ExpiresQuietly, Ok(WatchEvent::Put { .. })) => {
                        self.leased = true;
                        return Some(event);
                    }
                    _ => return Some(event),
                }
            }
        })
    }
}
