//! Servers that can only put, get and delete: the reference's, and anybody's.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use parking_lot::Mutex;
use reqwest::Method;
use te_metadata::{PutCondition, PutRequest, StoreError, StoreErrorKind, StoreOperation};

use super::{
    HttpStore, SCHEME, TARGET,
    attempt::{Ask, Exchange, Failure, Reply, key_query, unsupported},
    endpoint::Endpoint,
    now,
};

/// Keys that watches ask for again; more are not watched.
const MAX_INTEREST: usize = 16_384;
/// Room for the words of an answer.
const WORDS: usize = 64 << 10;

/// What this process remembers in place of the server.
#[derive(Default)]
pub(super) struct Foreign {
    warned: AtomicBool,
    /// Keys that were read, with a digest of what they held.
    interest: Mutex<BTreeMap<String, Option<u64>>>,
    /// Keys put under a lease that the server ignores, with a digest of what we put.
    owed: Mutex<BTreeMap<String, u64>>,
}

impl Foreign {
    /// A key was read: watches ask for it from now on.
    pub(super) fn seen(&self, key: &str, value: Option<&str>) {
        if key == super::endpoint::NO_KEY {
            return;
        }
        let mut interest = self.interest.lock();
        if interest.contains_key(key) || interest.len() < MAX_INTEREST {
            interest.insert(key.to_owned(), value.map(digest));
        }
    }

    /// The keys that were read and begin with `prefix`, with what they held.
    pub(super) fn interest(&self, prefix: &str) -> Vec<(String, Option<u64>)> {
        let interest = self.interest.lock();
        let from = interest.range(prefix.to_owned()..);
        from.take_while(|(key, _)| key.starts_with(prefix)).map(|(key, held)| (key.clone(), *held)).collect()
    }

    /// A key is gone: nothing has to be removed later.
    pub(super) fn paid(&self, key: &str) {
        self.owed.lock().remove(key);
    }

    fn owe(&self, put: &PutRequest, server: &str) {
        if put.lease.is_none() {
            self.paid(put.key.as_str());
            return;
        }
        self.owed.lock().insert(put.key.as_str().to_owned(), digest(&put.value));
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                target: TARGET,
                server,
                "this metadata server cannot expire keys: those of an engine that dies stay until somebody removes them"
            );
        }
    }
}

/// Tells one value from another; no secret depends on it.
pub(super) fn digest(value: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl HttpStore {
    /// Puts to a server that knows no conditions. `Absent` is looked up first, so two writers may both succeed.
    pub(super) async fn put_foreign(&self, endpoint: &Endpoint, put: &PutRequest) -> Result<Reply, Failure> {
        match put.condition {
            PutCondition::Always => {}
            PutCondition::Absent => {
                if self.held_by(endpoint, put.key.as_str()).await?.is_some() {
                    return Err(Failure::Final(StoreErrorKind::Conflict { current: None }));
                }
            }
            PutCondition::Revision(_) => return Err(unsupported("compare-and-set")),
        }
        let answer = self.put_once(endpoint, put).await?;
        if answer.status.as_u16() != 400 {
            return self.accepted(endpoint, put, &answer);
        }
        // Some servers refuse to overwrite an RPC location, even with what it holds already (META-03).
        match self.held_by(endpoint, put.key.as_str()).await? {
            Some(value) if value == put.value => {
                self.shared.foreign.owe(put, &endpoint.base);
                return Ok(Reply::Revision(0));
            }
            Some(_) => {}
            None => return Err(answer.failure(put.value.len(), endpoint.max_value())),
        }
        let request = self.request(endpoint, Method::DELETE, &key_query(put.key.as_str()));
        let removed = self.exchange(endpoint, request, WORDS).await?;
        if !matches!(removed.status.as_u16(), 200 | 404) {
            return Err(removed.failure(put.value.len(), endpoint.max_value()));
        }
        let answer = self.put_once(endpoint, put).await?;
        match answer.status.as_u16() {
            // Somebody else was faster.
            400 => Err(Failure::Final(StoreErrorKind::Conflict { current: None })),
            _ => self.accepted(endpoint, put, &answer),
        }
    }

    /// Exactly 200 is success; the reference treats everything else as failure, and so do its peers.
    fn accepted(&self, endpoint: &Endpoint, put: &PutRequest, answer: &Exchange) -> Result<Reply, Failure> {
        if answer.status.as_u16() != 200 {
            return Err(answer.failure(put.value.len(), endpoint.max_value()));
        }
        self.shared.foreign.owe(put, &endpoint.base);
        Ok(Reply::Revision(0))
    }

    async fn put_once(&self, endpoint: &Endpoint, put: &PutRequest) -> Result<Exchange, Failure> {
        self.exchange(endpoint, self.put_request(endpoint, put), WORDS).await
    }

    async fn held_by(&self, endpoint: &Endpoint, key: &str) -> Result<Option<String>, Failure> {
        match self.get_value(endpoint, key).await? {
            Reply::Entry(entry) => Ok(entry.map(|entry| entry.value)),
            _ => Ok(None),
        }
    }

    /// Removes what was put under a lease that nobody will end, RPC locations first, as the reference does.
    pub(super) async fn remove_owed(&self, deadline: Instant) -> Result<usize, StoreError> {
        let owed: Vec<(String, u64)> = {
            let owed = self.shared.foreign.owed.lock();
            owed.iter().map(|(key, held)| (key.clone(), *held)).collect()
        };
        let order: BTreeSet<(bool, String, u64)> =
            owed.into_iter().map(|(key, held)| (!key.contains("rpc_meta"), key, held)).collect();
        let (mut removed, mut outcome) = (0, Ok(()));
        for (_, key, held) in order {
            match self.remove_own(&key, held, deadline).await {
                Ok(true) => removed += 1,
                Ok(false) => {}
                Err(error) => outcome = Err(error),
            }
            if now() >= deadline {
                break;
            }
        }
        outcome.map(|()| removed)
    }

    async fn remove_own(&self, key: &str, held: u64, deadline: Instant) -> Result<bool, StoreError> {
        let found = self.call(StoreOperation::Get, key, Ask::Get { key }, deadline).await?;
        let ours = matches!(&found, Reply::Entry(Some(entry)) if digest(&entry.value) == held);
        if !ours {
            self.shared.foreign.paid(key);
            return Ok(false);
        }
        let ask = Ask::Delete { key, revision: None };
        match self.call(StoreOperation::Delete, key, ask, deadline).await? {
            Reply::Done(done) => Ok(done),
            _ => Err(StoreError::new(
                SCHEME,
                StoreOperation::Delete,
                key,
                StoreErrorKind::Invalid { detail: "the answer belongs to another question".into() },
            )),
        }
    }
}
