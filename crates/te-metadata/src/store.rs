//! The contract a key-value store fulfils to serve as metadata store.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{error::StoreError, key::Key, watch::WatchStream};

/// A boxed future that can be sent to another thread.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a store is and can do. Known without asking the server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreInfo {
    /// The scheme of the store's URL, such as `etcd`; names the store in errors.
    pub scheme: &'static str,
    /// Largest value it takes, in bytes; `None` if it states no limit.
    pub max_value: Option<usize>,
    /// A [`PutRequest::lease`] is honoured and [`MetadataStore::renew`] works.
    pub leases: bool,
    /// [`MetadataStore::list`] works.
    pub list: bool,
    /// [`MetadataStore::watch`] works.
    pub watch: bool,
    /// A watch tells every change of every key. Without it, it looks now and then at keys that were read through this
    /// store, and tells what differs.
    pub every_change: bool,
    /// Any text is a key of its own. Without it, keys that begin or end with white space are
    /// [`Invalid`](crate::StoreErrorKind::Invalid), because the server may cut that off.
    pub exact_keys: bool,
    /// Conditions other than [`PutCondition::Always`] are decided by the server, atomically.
    pub conditional: bool,
    /// Values end in one `\n`, as the reference engine writes them to this kind of store (wire spec).
    pub trailing_newline: bool,
}

impl StoreInfo {
    /// A store with no stated limit and none of the optional abilities.
    pub fn new(scheme: &'static str) -> Self {
        Self {
            scheme,
            max_value: None,
            leases: false,
            list: false,
            watch: false,
            every_change: false,
            exact_keys: false,
            conditional: false,
            trailing_newline: false,
        }
    }
}

/// A value as the store holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The text, exactly as it was put.
    pub value: String,
    /// Grows with every change of the store; `0` from a store that has no revisions.
    pub revision: u64,
}

/// A key of a list that says how long leases last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedEntry {
    /// The key.
    pub key: Key,
    /// What it holds.
    pub entry: Entry,
    /// The key is deleted after this time unless its lease is renewed. `None` if it has no lease, or the store cannot
    /// say. Whole seconds, rounded down, from stores that count so.
    pub remaining: Option<Duration>,
}

/// When a put takes effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PutCondition {
    /// Whatever the key holds.
    #[default]
    Always,
    /// Only if the key holds nothing.
    Absent,
    /// Only if the key's value still has this revision: compare-and-set.
    Revision(u64),
}

/// One value to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutRequest {
    /// Where.
    pub key: Key,
    /// What.
    pub value: String,
    /// On which condition.
    pub condition: PutCondition,
    /// The store deletes the key this long after the put or the last renewal; `None` keeps it for ever. A store
    /// without leases keeps it all the same; it may remember to delete it in [`MetadataStore::close`].
    pub lease: Option<Duration>,
}

impl PutRequest {
    /// An unconditional put without a lease.
    pub fn new(key: Key, value: String) -> Self {
        Self { key, value, condition: PutCondition::Always, lease: None }
    }

    /// The same put on a condition.
    pub fn on(self, condition: PutCondition) -> Self {
        Self { condition, ..self }
    }

    /// The same put under a lease.
    pub fn leased(self, lease: Duration) -> Self {
        Self { lease: Some(lease), ..self }
    }
}

/// A key-value store that holds segment records.
///
/// Every call ends by its `deadline`, whatever the server does (META-05): a call that cannot ends
/// [`StoreErrorKind::DeadlineExceeded`](crate::StoreErrorKind::DeadlineExceeded). A missing key is a value, never an
/// error: the difference between "not there" and "did not answer" is what the segment cache lives on. Calls may run
/// concurrently and may be dropped; a dropped write may or may not have taken effect.
pub trait MetadataStore: Send + Sync {
    /// What this store is and can do.
    fn info(&self) -> StoreInfo;

    /// The value of a key; `None` only if the store itself said that there is none.
    fn get<'a>(&'a self, key: &'a Key, deadline: Instant)
    -> BoxFuture<'a, Result<Option<Entry>, StoreError>>;

    /// Writes a value and returns its revision. Putting the same value twice is no conflict (META-03).
    fn put(&self, request: PutRequest, deadline: Instant) -> BoxFuture<'_, Result<u64, StoreError>>;

    /// Deletes a key, with `Some(revision)` only that revision of it. `false` if there was nothing to delete.
    fn delete<'a>(
        &'a self,
        key: &'a Key,
        revision: Option<u64>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Starts the lease of a key anew, only if it still holds this revision. `false` if it does not: the key
    /// expired, was deleted or was written by somebody else.
    fn renew<'a>(
        &'a self,
        key: &'a Key,
        revision: u64,
        lease: Duration,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// All keys that begin with `prefix`, in byte order.
    fn list<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Vec<(Key, Entry)>, StoreError>>;

    /// The same as [`list`](Self::list), with what is left of the leases. May cost more than that: for people who look,
    /// not for engines that resolve.
    fn list_with_leases<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Vec<LeasedEntry>, StoreError>> {
        Box::pin(async move {
            let listed = self.list(prefix, deadline).await?;
            let unknown = |(key, entry)| LeasedEntry { key, entry, remaining: None };
            Ok(listed.into_iter().map(unknown).collect())
        })
    }

    /// Deletes what was put under a lease and what the server will not delete by itself, unless somebody else wrote it
    /// since. To be called by whoever wrote, after the last write. Nothing to do for a store with leases.
    fn close(&self, deadline: Instant) -> BoxFuture<'_, Result<(), StoreError>> {
        let _ = deadline;
        Box::pin(std::future::ready(Ok(())))
    }

    /// The changes, from now on, of the keys that begin with `prefix`. The deadline is for the start only.
    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<WatchStream, StoreError>>;
}

impl<S: MetadataStore + ?Sized> MetadataStore for Arc<S> {
    fn info(&self) -> StoreInfo {
        (**self).info()
    }

    fn get<'a>(
        &'a self,
        key: &'a Key,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        (**self).get(key, deadline)
    }

    fn put(&self, request: PutRequest, deadline: Instant) -> BoxFuture<'_, Result<u64, StoreError>> {
        (**self).put(request, deadline)
    }

    fn delete<'a>(
        &'a self,
        key: &'a Key,
        revision: Option<u64>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        (**self).delete(key, revision, deadline)
    }

    fn renew<'a>(
        &'a self,
        key: &'a Key,
        revision: u64,
        lease: Duration,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        (**self).renew(key, revision, lease, deadline)
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Vec<(Key, Entry)>, StoreError>> {
        (**self).list(prefix, deadline)
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<WatchStream, StoreError>> {
        (**self).watch(prefix, deadline)
    }

    fn list_with_leases<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Vec<LeasedEntry>, StoreError>> {
        (**self).list_with_leases(prefix, deadline)
    }

    fn close(&self, deadline: Instant) -> BoxFuture<'_, Result<(), StoreError>> {
        (**self).close(deadline)
    }
}
