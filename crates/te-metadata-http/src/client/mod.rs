//! The metadata store behind an `http://` URL.

mod attempt;
mod config;
mod endpoint;
mod foreign;
mod poll;
mod sse;
#[cfg(feature = "tls")]
mod tls;
mod watch;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use te_metadata::{
    BoxFuture, Entry, Key, LeasedEntry, MetadataStore, PutRequest, StoreError, StoreErrorKind, StoreInfo,
    StoreOperation, WatchStream,
};
use te_segment::Incarnation;

use crate::protocol::DEFAULT_MAX_VALUE;
use attempt::{Ask, Failure, Reply};
pub use config::{HttpConfig, HttpConfigError};
use endpoint::{Endpoint, Kind};
use foreign::Foreign;

const SCHEME: &str = "http";
/// Log target of this crate's client.
const TARGET: &str = "te::metadata::http";

/// What clones of a store share.
struct Shared {
    config: HttpConfig,
    client: reqwest::Client,
    endpoints: Vec<Endpoint>,
    /// The endpoint that answered last.
    current: AtomicUsize,
    permits: tokio::sync::Semaphore,
    foreign: Foreign,
}

/// A metadata store behind an `http://` or `https://` URL.
///
/// Talks to any server the reference engine talks to, and finds out what it is: with
/// our server there are leases, watches, lists and compare-and-set; others can only put, get and delete. There, a
/// watch asks again for the keys that were read through this store, leases are ignored (said once, as a warning), and
/// [`close`](Self::close) removes what was to expire.
///
/// [`connect`](Self::connect) asks the server what it is; whoever reads [`info`](MetadataStore::info) once, as
/// `StoreDirectory` does, wants that. Cloning gives another handle to the same connections. Futures need a tokio
/// runtime with I/O and time enabled.
#[derive(Clone)]
pub struct HttpStore {
    shared: Arc<Shared>,
    incarnation: Option<Incarnation>,
}

impl std::fmt::Debug for HttpStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let current = self.shared.endpoint(self.shared.current.load(Ordering::Relaxed));
        f.debug_struct("HttpStore")
            .field("url", &format_args!("{}", self.shared.config))
            .field("current", &format_args!("{}", current.base))
            .field("kind", &current.kind())
            .finish()
    }
}

impl Shared {
    fn endpoint(&self, at: usize) -> &Endpoint {
        &self.endpoints[at % self.endpoints.len()]
    }
}

impl HttpStore {
    /// A store that has asked nobody yet: until the first answer, [`info`](MetadataStore::info) claims little.
    ///
    /// # Errors
    /// Certificates, keys or secrets are unusable.
    pub fn new(config: HttpConfig) -> Result<Self, HttpConfigError> {
        let client = endpoint::client(&config)?;
        let endpoints = config
            .hosts
            .iter()
            .map(|host| Endpoint::new(format!("{}://{host}{}", config.scheme, config.path)))
            .collect();
        let shared = Shared {
            client,
            endpoints,
            current: AtomicUsize::new(0),
            permits: tokio::sync::Semaphore::new(config.max_connections),
            foreign: Foreign::default(),
            config,
        };
        let incarnation = shared.config.incarnation;
        Ok(Self { shared: Arc::new(shared), incarnation })
    }

    /// A store whose server was asked what it is.
    ///
    /// # Errors
    /// No server answered by the deadline, or the one that did refuses us. Unusable certificates are
    /// [`StoreErrorKind::Invalid`].
    pub async fn connect(config: HttpConfig, deadline: Instant) -> Result<Self, StoreError> {
        let store = Self::new(config).map_err(|error| {
            StoreError::new(
                SCHEME,
                StoreOperation::Get,
                "",
                StoreErrorKind::Invalid { detail: error.to_string() },
            )
        })?;
        store.detect(deadline).await?;
        Ok(store)
    }

    /// Asks the server what it is and says what follows for this store.
    ///
    /// # Errors
    /// No server answered by the deadline, or the one that did refuses us.
    pub async fn detect(&self, deadline: Instant) -> Result<StoreInfo, StoreError> {
        self.call(StoreOperation::Get, endpoint::NO_KEY, Ask::Get { key: endpoint::NO_KEY }, deadline)
            .await?;
        Ok(self.info())
    }

    /// The same store as used by this incarnation: our server protects its leased keys against other writers.
    pub fn with_incarnation(&self, incarnation: Incarnation) -> Self {
        Self { shared: Arc::clone(&self.shared), incarnation: Some(incarnation) }
    }

    /// Where the store is, without user and password.
    pub fn url(&self) -> String {
        self.shared.config.to_string()
    }

    /// Removes the keys that were put under a lease and that the server will not expire by itself, unless somebody
    /// else wrote them since. Says how many. To be called before the program ends; with our server there are none.
    ///
    /// # Errors
    /// A key could not be removed; those after it were tried too.
    pub async fn close(&self, deadline: Instant) -> Result<usize, StoreError> {
        self.remove_owed(deadline).await
    }

    /// Asks the endpoints in turn, the one that answered last first, until one answers or the deadline passes.
    async fn call(
        &self,
        operation: StoreOperation,
        key: &str,
        ask: Ask<'_>,
        deadline: Instant,
    ) -> Result<Reply, StoreError> {
        let failed = |kind| StoreError::new(SCHEME, operation, key, kind);
        // A timer alone would let a quick answer pass.
        if now() >= deadline {
            return Err(failed(StoreErrorKind::DeadlineExceeded));
        }
        let at = tokio::time::Instant::from_std(deadline);
        let permit = tokio::time::timeout_at(at, self.shared.permits.acquire()).await;
        let Ok(_permit) = permit else { return Err(failed(StoreErrorKind::DeadlineExceeded)) };

        let (count, first) = (self.shared.endpoints.len(), self.shared.current.load(Ordering::Relaxed));
        let (mut details, mut may_have_applied) = (Vec::new(), false);
        for attempt in 0..count {
            let endpoint = self.shared.endpoint(first + attempt);
            // A frozen server gets its share of the time, so that the next one has some left (META-05).
            let left = deadline.saturating_duration_since(now());
            let share = left / u32::try_from(count - attempt).unwrap_or(u32::MAX);
            let mut outcome = self.attempt(endpoint, &ask, share).await;
            // A connection kept from earlier may have been closed meanwhile; that says nothing about the server.
            if let Err(Failure::Broken { .. }) = outcome {
                may_have_applied = true;
                let left = deadline.saturating_duration_since(now());
                outcome = self.attempt(endpoint, &ask, left.min(share)).await;
            }
            match outcome {
                Ok(reply) => {
                    self.shared.current.store((first + attempt) % count, Ordering::Relaxed);
                    return Ok(reply);
                }
                Err(Failure::Final(kind)) => {
                    self.shared.current.store((first + attempt) % count, Ordering::Relaxed);
                    if may_have_applied && matches!(kind, StoreErrorKind::Conflict { .. }) {
                        return self.own_write(endpoint, &ask, deadline).await.ok_or_else(|| failed(kind));
                    }
                    return Err(failed(kind));
                }
                Err(Failure::Silent) => {
                    may_have_applied = true;
                    details.push(format!("{} did not answer in {} ms", endpoint.base, share.as_millis()));
                }
                Err(Failure::Broken { detail }) => {
                    may_have_applied = true;
                    details.push(format!("{}: {detail}", endpoint.base));
                }
                Err(Failure::Unreachable { detail }) => details.push(format!("{}: {detail}", endpoint.base)),
            }
        }
        if now() >= deadline {
            return Err(failed(StoreErrorKind::DeadlineExceeded));
        }
        Err(failed(StoreErrorKind::Unavailable { detail: details.join("; ") }))
    }

    /// Whether a conflict is with our own write: an earlier attempt got no answer and took effect all the same.
    async fn own_write(&self, endpoint: &Endpoint, ask: &Ask<'_>, deadline: Instant) -> Option<Reply> {
        let Ask::Put(request) = ask else { return None };
        let left = deadline.saturating_duration_since(now());
        let found = self.attempt(endpoint, &Ask::Get { key: request.key.as_str() }, left).await;
        match found {
            Ok(Reply::Entry(Some(entry))) if entry.value == request.value => {
                Some(Reply::Revision(entry.revision))
            }
            _ => None,
        }
    }
}

/// Tokio's clock, which tests can stop.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// A reply that does not fit the question: the match in [`HttpStore::attempt`] makes this impossible.
fn mismatch<T>(operation: StoreOperation, key: &str) -> Result<T, StoreError> {
    let detail = "the answer belongs to another question".to_owned();
    Err(StoreError::new(SCHEME, operation, key, StoreErrorKind::Invalid { detail }))
}

impl MetadataStore for HttpStore {
    fn info(&self) -> StoreInfo {
        let endpoint = self.shared.endpoint(self.shared.current.load(Ordering::Relaxed));
        let mut info = StoreInfo::new(SCHEME);
        info.watch = true;
        info.max_value = Some(DEFAULT_MAX_VALUE);
        if endpoint.kind() == Kind::Te {
            (info.leases, info.conditional) = (true, true);
            (info.list, info.every_change, info.exact_keys) = (true, true, true);
            info.max_value = Some(endpoint.max_value());
        }
        info
    }

    fn get<'a>(
        &'a self,
        key: &'a Key,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        Box::pin(async move {
            let ask = Ask::Get { key: key.as_str() };
            match self.call(StoreOperation::Get, key.as_str(), ask, deadline).await? {
                Reply::Entry(entry) => Ok(entry),
                _ => mismatch(StoreOperation::Get, key.as_str()),
            }
        })
    }

    fn put(&self, request: PutRequest, deadline: Instant) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let limit = self.info().max_value.unwrap_or(usize::MAX);
            let (key, size) = (request.key.as_str(), request.value.len());
            if size > limit {
                let kind = StoreErrorKind::TooLarge { size, limit, store: SCHEME };
                return Err(StoreError::new(SCHEME, StoreOperation::Put, key, kind));
            }
            match self.call(StoreOperation::Put, key, Ask::Put(&request), deadline).await? {
                Reply::Revision(revision) => Ok(revision),
                _ => mismatch(StoreOperation::Put, key),
            }
        })
    }

    fn delete<'a>(
        &'a self,
        key: &'a Key,
        revision: Option<u64>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let ask = Ask::Delete { key: key.as_str(), revision };
            match self.call(StoreOperation::Delete, key.as_str(), ask, deadline).await? {
                Reply::Done(done) => Ok(done),
                _ => mismatch(StoreOperation::Delete, key.as_str()),
            }
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
            let ask = Ask::Renew { key: key.as_str(), revision, lease };
            match self.call(StoreOperation::Renew, key.as_str(), ask, deadline).await? {
                Reply::Done(done) => Ok(done),
                _ => mismatch(StoreOperation::Renew, key.as_str()),
            }
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
            let mut found = Vec::new();
            loop {
                let after = found.last().map(|last: &LeasedEntry| last.key.as_str());
                let ask = Ask::List { prefix, after };
                let Reply::Page(page) = self.call(StoreOperation::List, prefix, ask, deadline).await? else {
                    return mismatch(StoreOperation::List, prefix);
                };
                // A page that says there is more and has nothing would be asked for for ever.
                let more = page.more && !page.entries.is_empty();
                found.extend(page.entries.into_iter().map(|one| LeasedEntry {
                    key: Key::new(one.key),
                    entry: Entry { value: one.value, revision: one.revision },
                    remaining: one.lease_ms.map(Duration::from_millis),
                }));
                if !more {
                    return Ok(found);
                }
            }
        })
    }

    fn close(&self, deadline: Instant) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move { self.remove_owed(deadline).await.map(drop) })
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<WatchStream, StoreError>> {
        Box::pin(async move {
            match self
                .call(StoreOperation::Watch, prefix, Ask::Watch { prefix, resume: None }, deadline)
                .await?
            {
                Reply::Stream(response) => {
                    Ok(WatchStream::new(watch::ServerWatch::new(self.clone(), prefix, response)))
                }
                Reply::NoWatch => Ok(WatchStream::new(poll::PollWatch::new(self.clone(), prefix))),
                _ => mismatch(StoreOperation::Watch, prefix),
            }
        })
    }
}
