//! A store that goes away and comes back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use te_metadata::{
    BoxFuture, Entry, Key, LeasedEntry, MetadataStore, PutRequest, StoreError, StoreErrorKind, StoreInfo,
    StoreOperation, WatchStream,
};
use tokio::sync::watch;

/// What is wrong with a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outage {
    /// Nothing.
    #[default]
    None,
    /// Every call fails at once as unavailable, as when the server was killed.
    Down,
    /// No call is answered; each ends by its deadline, as when the server was stopped (META-05).
    Silent,
    /// Writes take effect and their answers are lost; reads work.
    LosesAnswers,
    /// Every call takes so long, or until its deadline.
    Slow(Duration),
}

/// One call that reached a [`FaultStore`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreCall {
    /// Which call.
    pub operation: StoreOperation,
    /// Its key or prefix.
    pub key: String,
}

/// A store around another one, for tests of what an engine does when its store fails. Clones share the fault.
///
/// ```
/// # use std::time::{Duration, Instant};
/// use te_metadata::{Key, MemoryStore, MetadataStore};
/// use te_testkit::{FaultStore, Outage};
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let store = FaultStore::new(MemoryStore::new());
/// let deadline = Instant::now() + Duration::from_secs(1);
/// store.set(Outage::Down);
/// assert!(store.get(&Key::new("a"), deadline).await.is_err());
/// store.set(Outage::None);
/// assert_eq!(store.get(&Key::new("a"), deadline).await, Ok(None));
/// # }
/// ```
#[derive(Clone)]
pub struct FaultStore {
    inner: Arc<dyn MetadataStore>,
    outage: Arc<watch::Sender<Outage>>,
    calls: Arc<Mutex<Vec<StoreCall>>>,
}

impl FaultStore {
    /// A store that works like `inner` until it is told otherwise.
    pub fn new(inner: impl MetadataStore + 'static) -> Self {
        let (outage, _) = watch::channel(Outage::None);
        Self { inner: Arc::new(inner), outage: Arc::new(outage), calls: Arc::default() }
    }

    /// Changes what is wrong. Calls that wait for an answer of a silent store get one when it is no longer silent.
    pub fn set(&self, outage: Outage) {
        self.outage.send_replace(outage);
    }

    /// The calls so far, in order, whatever became of them.
    #[must_use]
    pub fn calls(&self) -> Vec<StoreCall> {
        self.calls.lock().clone()
    }

    /// How many calls of one kind there were.
    #[must_use]
    pub fn count(&self, operation: StoreOperation) -> usize {
        self.calls.lock().iter().filter(|call| call.operation == operation).count()
    }

    fn error(&self, operation: StoreOperation, key: &str, kind: StoreErrorKind) -> StoreError {
        StoreError::new(self.inner.info().scheme, operation, key, kind)
    }

    fn down(&self, operation: StoreOperation, key: &str) -> StoreError {
        self.error(operation, key, StoreErrorKind::Unavailable { detail: "the test took it away".to_owned() })
    }

    /// Lets a call through, now or later; whether its answer is then lost.
    async fn pass(
        &self,
        operation: StoreOperation,
        key: &str,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        self.calls.lock().push(StoreCall { operation, key: key.to_owned() });
        let late = || self.error(operation, key, StoreErrorKind::DeadlineExceeded);
        let end = tokio::time::Instant::from_std(deadline);
        let mut outage = self.outage.subscribe();
        let answered =
            async { outage.wait_for(|outage| *outage != Outage::Silent).await.map(|outage| *outage) };
        // The sender lives as long as we do, so waiting ends only with an answer.
        let now = tokio::time::timeout_at(end, answered).await.map_err(|_| late())?.unwrap_or_default();
        match now {
            Outage::Down => Err(self.down(operation, key)),
            Outage::Slow(delay) => {
                tokio::time::timeout_at(end, tokio::time::sleep(delay)).await.map_err(|_| late())?;
                Ok(false)
            }
            Outage::LosesAnswers => {
                Ok(matches!(operation, StoreOperation::Put | StoreOperation::Delete | StoreOperation::Renew))
            }
            Outage::None | Outage::Silent => Ok(false),
        }
    }

    async fn call<T>(
        &self,
        operation: StoreOperation,
        key: &str,
        deadline: Instant,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let lost = self.pass(operation, key, deadline).await?;
        let outcome = work.await;
        if lost { Err(self.down(operation, key)) } else { outcome }
    }
}

impl MetadataStore for FaultStore {
    fn info(&self) -> StoreInfo {
        self.inner.info()
    }

    fn get<'a>(
        &'a self,
        key: &'a Key,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        Box::pin(self.call(StoreOperation::Get, key.as_str(), deadline, self.inner.get(key, deadline)))
    }

    fn put(&self, request: PutRequest, deadline: Instant) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let key = request.key.clone();
            self.call(StoreOperation::Put, key.as_str(), deadline, self.inner.put(request, deadline)).await
        })
    }

    fn delete<'a>(
        &'a self,
        key: &'a Key,
        revision: Option<u64>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        let work = self.inner.delete(key, revision, deadline);
        Box::pin(self.call(StoreOperation::Delete, key.as_str(), deadline, work))
    }

    fn renew<'a>(
        &'a self,
        key: &'a Key,
        revision: u64,
        lease: Duration,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        let work = self.inner.renew(key, revision, lease, deadline);
        Box::pin(self.call(StoreOperation::Renew, key.as_str(), deadline, work))
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Vec<(Key, Entry)>, StoreError>> {
        Box::pin(self.call(StoreOperation::List, prefix, deadline, self.inner.list(prefix, deadline)))
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<WatchStream, StoreError>> {
        Box::pin(self.call(StoreOperation::Watch, prefix, deadline, self.inner.watch(prefix, deadline)))
    }

    fn list_with_leases<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Vec<LeasedEntry>, StoreError>> {
        let work = self.inner.list_with_leases(prefix, deadline);
        Box::pin(self.call(StoreOperation::List, prefix, deadline, work))
    }

    fn close(&self, deadline: Instant) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.close(deadline)
    }
}
