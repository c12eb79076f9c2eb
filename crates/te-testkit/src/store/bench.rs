//! A store, keys of one's own, and calls with patience.

use std::sync::Arc;
use std::time::{Duration, Instant};

use te_metadata::{
    Entry, Key, MetadataStore, PutCondition, PutRequest, StoreError, StoreErrorKind, WatchEvent, WatchStream,
};

use super::StoreRig;
use crate::report::{Violation, ensure};

/// How long a call may take that is expected to work.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct StoreBench {
    pub(super) rig: Arc<dyn StoreRig>,
    pub(super) store: Arc<dyn MetadataStore>,
    own: String,
}

impl StoreBench {
    pub(super) async fn open(rig: Arc<dyn StoreRig>) -> Result<Self, Violation> {
        let store = rig.open().await.map_err(|violation| violation.at("opening the store"))?;
        // Random, because stores outlive the process.
        Ok(Self { rig, store, own: format!("te-conformance/{:016x}/", rand::random::<u64>()) })
    }

    /// The prefix of the keys of this case.
    pub(super) fn prefix(&self) -> &str {
        &self.own
    }

    /// A key of this case.
    pub(super) fn key(&self, rest: &str) -> Key {
        Key::new(format!("{}{rest}", self.own))
    }

    pub(super) fn grace(&self) -> Duration {
        self.rig.grace()
    }

    pub(super) async fn put(&self, key: &Key, value: &str) -> Result<u64, Violation> {
        self.request(PutRequest::new(key.clone(), value.to_owned())).await
    }

    pub(super) async fn put_on(
        &self,
        key: &Key,
        value: &str,
        condition: PutCondition,
    ) -> Result<u64, StoreError> {
        self.store.put(PutRequest::new(key.clone(), value.to_owned()).on(condition), patience()).await
    }

    pub(super) async fn put_leased(&self, key: &Key, value: &str, lease: Duration) -> Result<u64, Violation> {
        self.request(PutRequest::new(key.clone(), value.to_owned()).leased(lease)).await
    }

    async fn request(&self, request: PutRequest) -> Result<u64, Violation> {
        Ok(self.store.put(request, patience()).await?)
    }

    pub(super) async fn get(&self, key: &Key) -> Result<Option<Entry>, Violation> {
        Ok(self.store.get(key, patience()).await?)
    }

    /// The value of a key that must be there.
    pub(super) async fn entry(&self, key: &Key) -> Result<Entry, Violation> {
        self.get(key).await?.ok_or_else(|| Violation::new(format!("key {key:?} holds nothing")))
    }

    pub(super) async fn delete(&self, key: &Key) -> Result<bool, Violation> {
        Ok(self.store.delete(key, None, patience()).await?)
    }

    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<(Key, Entry)>, Violation> {
        Ok(self.store.list(prefix, patience()).await?)
    }

    pub(super) async fn watch(&self, prefix: &str) -> Result<WatchStream, Violation> {
        Ok(self.store.watch(prefix, patience()).await?)
    }

    /// Checks the value of a key.
    pub(super) async fn expect(&self, key: &Key, value: Option<&str>) -> Result<(), Violation> {
        let found = self.get(key).await?.map(|entry| entry.value);
        ensure!(
            found.as_deref() == value,
            "key {:?} holds {} instead of {}",
            shorten(key.as_str()),
            shown(found.as_deref()),
            shown(value)
        );
        Ok(())
    }

    /// The next event of a watch, at the latest after the grace.
    pub(super) async fn event(&self, watch: &mut WatchStream) -> Result<WatchEvent, Violation> {
        match tokio::time::timeout(self.grace(), watch.next()).await {
            Ok(Some(event)) => Ok(event?),
            Ok(None) => Err(Violation::new("the watch ended")),
            Err(_) => Err(Violation::new("no event came")),
        }
    }
}

/// The deadline of calls that are expected to work.
pub(super) fn patience() -> Instant {
    Instant::now() + PATIENCE
}

pub(super) fn is_conflict(error: &StoreError) -> bool {
    matches!(error.kind, StoreErrorKind::Conflict { .. })
}

fn shown(value: Option<&str>) -> String {
    value.map_or_else(|| "nothing".to_owned(), |value| format!("{:?}", shorten(value)))
}

fn shorten(text: &str) -> String {
    const MOST: usize = 60;
    let short: String = text.chars().take(MOST).collect();
    if short.len() < text.len() { format!("{short}… ({} bytes)", text.len()) } else { short }
}
