//! The store itself: each call as requests of etcd's v3 API.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use etcd_client::{Client, Compare, CompareOp, DeleteOptions, KeyValue, KvClient, PutOptions, Txn, TxnOp};
use te_metadata::{
    BoxFuture, Entry, Key, LeasedEntry, MetadataStore, PutCondition, PutRequest, StoreError, StoreErrorKind,
    StoreInfo, StoreOperation, WatchStream,
};

use crate::{
    EtcdConfig, EtcdConfigError, SCHEME,
    failure::Failure,
    lease::{Leases, keep_alive},
    list::{PAGE_BYTES, entry},
    servers::Servers,
    watch,
};

pub(crate) struct Shared {
    pub(crate) config: EtcdConfig,
    pub(crate) servers: Arc<Servers>,
    leases: Leases,
}

/// An etcd cluster as [`MetadataStore`]. Clones share connections and leases.
///
/// Making one connects to nothing; each call connects as it needs to. One HTTP/2 connection per server is used,
/// however many calls run. The calls have to be made within a tokio runtime.
#[derive(Clone)]
pub struct EtcdStore(pub(crate) Arc<Shared>);

impl EtcdStore {
    /// A store for these servers. Does no input or output.
    ///
    /// # Errors
    /// [`EtcdConfigError`] if the configuration needs what this build lacks or contradicts itself.
    pub fn new(config: EtcdConfig) -> Result<Self, EtcdConfigError> {
        config.check()?;
        let servers = Arc::new(Servers::new(&config));
        Ok(Self(Arc::new(Shared { config, servers, leases: Leases::default() })))
    }

    fn max_value(&self) -> usize {
        self.0.config.max_value()
    }

    /// A client for keys and values that takes the answers this store can get.
    pub(crate) fn kv(&self, client: &Client) -> KvClient {
        client.kv_client().max_decoding_message_size(reply_limit(&self.0.config))
    }

    async fn read(&self, client: &Client, key: &str) -> Result<Option<KeyValue>, Failure> {
        Ok(self.kv(client).get(key, None).await?.take_kvs().into_iter().next())
    }

    /// Every put compares, also one without a condition: with what was there just before. So an attempt that a
    /// server holds up and applies late changes nothing if the key was written since.
    async fn put_once(&self, client: &Client, request: &PutRequest, made: u32) -> Result<u64, Failure> {
        let PutRequest { key, value, condition, lease } = request;
        let key = key.as_str();
        let mut found = None;
        if *condition == PutCondition::Always || lease.is_some() {
            found = self.read(client, key).await?;
            if !holds(*condition, found.as_ref()) {
                // Before the lease: a refused put must not prolong the one of what is there.
                return conflict(found.as_ref(), value, made);
            }
        }
        let lease = match lease {
            Some(lease) => Some(self.0.leases.begin(client, key, *lease).await?),
            None => None,
        };
        loop {
            let compared = match condition {
                PutCondition::Always => unchanged(found.as_ref()),
                condition => *condition,
            };
            let options = lease.map(|id| PutOptions::new().with_lease(id));
            let put = TxnOp::put(key, value.as_str(), options);
            let transaction = Txn::new().when(comparisons(key, compared)).and_then([put]);
            let answer = match self.kv(client).txn(transaction).await.map_err(Failure::from) {
                Ok(answer) => answer,
                Err(failure) => {
                    if failure == Failure::LeaseGone {
                        self.0.leases.forget(key);
                    }
                    return Err(self.with_size(failure, value.len()));
                }
            };
            if answer.succeeded() {
                let revision = answer.header().map(etcd_client::ResponseHeader::revision);
                return revision
                    .map(unsigned)
                    .ok_or_else(|| Failure::invalid("answer to a put has no header"));
            }
            found = self.read(client, key).await?;
            if *condition != PutCondition::Always {
                return conflict(found.as_ref(), value, made);
            }
        }
    }

    /// Puts the numbers into a refusal that came from the server.
    fn with_size(&self, failure: Failure, size: usize) -> Failure {
        match failure {
            Failure::Final(StoreErrorKind::TooLarge { .. }) => {
                let limit = self.max_value().min(size.saturating_sub(1));
                Failure::Final(StoreErrorKind::TooLarge { size, limit, store: SCHEME })
            }
            failure => failure,
        }
    }

    /// Compares like a put does.
    async fn delete_once(&self, client: &Client, key: &str, revision: Option<u64>) -> Result<bool, Failure> {
        loop {
            let Some(found) = self.read(client, key).await? else { return Ok(false) };
            let current = revision_of(&found);
            if revision.is_some_and(|expected| expected != current) {
                return Err(Failure::Final(StoreErrorKind::Conflict { current: Some(current) }));
            }
            let delete = TxnOp::delete(key, None::<DeleteOptions>);
            let compared = comparisons(key, PutCondition::Revision(current));
            if self.kv(client).txn(Txn::new().when(compared).and_then([delete])).await?.succeeded() {
                return Ok(true);
            }
        }
    }

    async fn renew_once(&self, client: &Client, key: &str, revision: u64) -> Result<bool, Failure> {
        let mut renewed = None;
        if let Some(id) = self.0.leases.of(key) {
            match keep_alive(client, id).await {
                Ok(()) => renewed = Some(id),
                Err(Failure::LeaseGone) => self.0.leases.forget(key),
                Err(failure) => return Err(failure),
            }
        }
        // Read after the renewal: if the key is there now, it has not ended in between.
        let Some(found) = self.read(client, key).await? else { return Ok(false) };
        if revision_of(&found) != revision || found.lease() == 0 {
            return Ok(false);
        }
        if renewed == Some(found.lease()) {
            return Ok(true);
        }
        // Put by an earlier life of this process, or by another store for the same engine.
        match keep_alive(client, found.lease()).await {
            Ok(()) => Ok(true),
            Err(Failure::LeaseGone) => Ok(false),
            Err(failure) => Err(failure),
        }
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdStore").field("config", &self.0.config).finish_non_exhaustive()
    }
}

/// Most bytes of one answer.
pub(crate) fn reply_limit(config: &EtcdConfig) -> usize {
    PAGE_BYTES.saturating_add(config.max_request.saturating_mul(2))
}

fn unsigned(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or_default()
}

pub(crate) fn revision_of(pair: &KeyValue) -> u64 {
    unsigned(pair.mod_revision())
}

fn holds(condition: PutCondition, found: Option<&KeyValue>) -> bool {
    match condition {
        PutCondition::Always => true,
        PutCondition::Absent => found.is_none(),
        PutCondition::Revision(expected) => found.is_some_and(|found| revision_of(found) == expected),
    }
}

/// The condition that nothing has changed since `found` was read.
fn unchanged(found: Option<&KeyValue>) -> PutCondition {
    found.map_or(PutCondition::Absent, |found| PutCondition::Revision(revision_of(found)))
}

/// A condition as etcd compares it; a key that is not there has version and revision 0.
fn comparisons(key: &str, condition: PutCondition) -> Vec<Compare> {
    match condition {
        PutCondition::Always => Vec::new(),
        PutCondition::Absent => vec![Compare::version(key, CompareOp::Equal, 0)],
        PutCondition::Revision(revision) => vec![
            Compare::version(key, CompareOp::Greater, 0),
            Compare::mod_revision(key, CompareOp::Equal, i64::try_from(revision).unwrap_or(i64::MAX)),
        ],
    }
}

/// The refusal of a conditional put, or the revision if an earlier attempt of this very call had put the value.
fn conflict(found: Option<&KeyValue>, value: &str, made: u32) -> Result<u64, Failure> {
    match found {
        Some(found) if made > 0 && found.value() == value.as_bytes() => Ok(revision_of(found)),
        found => Err(Failure::Final(StoreErrorKind::Conflict { current: found.map(revision_of) })),
    }
}

/// Keys are never empty for etcd; the first of all is one zero byte.
pub(crate) fn first_key(prefix: &str) -> Vec<u8> {
    if prefix.is_empty() { vec![0] } else { prefix.as_bytes().to_vec() }
}

/// The end of the range of keys that begin with `prefix`. UTF-8 has no byte 255, so the last byte can be raised.
pub(crate) fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    match end.last_mut() {
        Some(last) => *last = last.saturating_add(1),
        // To etcd, one zero byte as an end is no end.
        None => end.push(0),
    }
    end
}

impl MetadataStore for EtcdStore {
    fn info(&self) -> StoreInfo {
        let mut info = StoreInfo::new(SCHEME);
        info.max_value = Some(self.max_value());
        (info.leases, info.watch, info.conditional, info.trailing_newline) = (true, true, true, true);
        (info.list, info.every_change, info.exact_keys) = (true, true, true);
        info
    }

    fn get<'a>(
        &'a self,
        key: &'a Key,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        Box::pin(async move {
            let found = self.0.servers.call(deadline, |client, _| async move {
                match self.read(&client, key.as_str()).await? {
                    None => Ok(None),
                    Some(pair) => match entry(&pair) {
                        Some((_, entry)) => Ok(Some(entry)),
                        None => Err(Failure::invalid("the value is not UTF-8")),
                    },
                }
            });
            found.await.map_err(|kind| StoreError::new(SCHEME, StoreOperation::Get, key.as_str(), kind))
        })
    }

    fn put(&self, request: PutRequest, deadline: Instant) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let (size, limit) = (request.value.len(), self.max_value());
            let outcome = if size > limit {
                Err(StoreErrorKind::TooLarge { size, limit, store: SCHEME })
            } else {
                let request = &request;
                let attempt = move |client, made| async move { self.put_once(&client, request, made).await };
                self.0.servers.call(deadline, attempt).await
            };
            outcome.map_err(|kind| StoreError::new(SCHEME, StoreOperation::Put, request.key.as_str(), kind))
        })
    }

    fn delete<'a>(
        &'a self,
        key: &'a Key,
        revision: Option<u64>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let attempt = |client, _| async move { self.delete_once(&client, key.as_str(), revision).await };
            let outcome = self.0.servers.call(deadline, attempt).await;
            if matches!(outcome, Ok(true)) {
                self.0.leases.forget(key.as_str());
            }
            outcome.map_err(|kind| StoreError::new(SCHEME, StoreOperation::Delete, key.as_str(), kind))
        })
    }

    /// The lease keeps the length it was put with. A key that was put without a lease cannot be given one without
    /// changing its revision, so renewing it answers `false`.
    fn renew<'a>(
        &'a self,
        key: &'a Key,
        revision: u64,
        _lease: Duration,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let attempt = |client, _| async move { self.renew_once(&client, key.as_str(), revision).await };
            let outcome = self.0.servers.call(deadline, attempt).await;
            outcome.map_err(|kind| StoreError::new(SCHEME, StoreOperation::Renew, key.as_str(), kind))
        })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Vec<(Key, Entry)>, StoreError>> {
        Box::pin(async move {
            match self.list_all(prefix, deadline).await {
                Ok(found) => Ok(found.into_iter().map(|(key, entry, _)| (key, entry)).collect()),
                Err(kind) => Err(StoreError::new(SCHEME, StoreOperation::List, prefix, kind)),
            }
        })
    }

    /// One more question for each lease, many at once.
    fn list_with_leases<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Vec<LeasedEntry>, StoreError>> {
        Box::pin(async move {
            let outcome = self.list_leased(prefix, deadline).await;
            outcome.map_err(|kind| StoreError::new(SCHEME, StoreOperation::List, prefix, kind))
        })
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<WatchStream, StoreError>> {
        Box::pin(async move {
            let limit = reply_limit(&self.0.config);
            let outcome = watch::start(Arc::clone(&self.0.servers), prefix.to_owned(), limit, deadline).await;
            outcome.map_err(|kind| StoreError::new(SCHEME, StoreOperation::Watch, prefix, kind))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_a_prefix_ends_before_the_next() {
        assert_eq!((first_key("a/"), range_end("a/")), (b"a/".to_vec(), b"a0".to_vec()));
        assert_eq!((first_key(""), range_end("")), (vec![0], vec![0]));
        assert_eq!(range_end("é"), [0xc3, 0xaa]);
    }
}
