//! A watch where the server has none: the keys that were read are read again.

use std::collections::{BTreeMap, VecDeque};

use te_metadata::{BoxFuture, Key, StoreError, StoreOperation, WatchEvent, WatchSource};
use tokio::time::Instant;

use super::{
    HttpStore, TARGET,
    attempt::{Ask, Reply},
    foreign::digest,
};

/// Asks for each key of interest once per interval and reports what differs.
///
/// A value that comes and goes within one interval is not seen. An outage is no change: what was known stays known.
pub(super) struct PollWatch {
    store: HttpStore,
    prefix: String,
    known: BTreeMap<String, Option<u64>>,
    /// Keys of this round that are still to be asked for.
    pending: VecDeque<String>,
    next_round: Instant,
}

impl PollWatch {
    pub(super) fn new(store: HttpStore, prefix: &str) -> Self {
        let known = store.shared.foreign.interest(prefix).into_iter().collect();
        let next_round = Instant::now() + store.shared.config.poll_interval;
        Self { store, prefix: prefix.to_owned(), known, pending: VecDeque::new(), next_round }
    }

    fn begin_round(&mut self) {
        self.next_round = Instant::now() + self.store.shared.config.poll_interval;
        for (key, held) in self.store.shared.foreign.interest(&self.prefix) {
            self.known.entry(key).or_insert(held);
        }
        self.pending = self.known.keys().cloned().collect();
    }

    /// Compares one key with what was known of it.
    fn compare(&mut self, key: &str, found: Option<te_metadata::Entry>) -> Option<WatchEvent> {
        let held = found.as_ref().map(|entry| digest(&entry.value));
        let before = self.known.insert(key.to_owned(), held)?;
        if before == held {
            return None;
        }
        let key = Key::new(key);
        Some(match found {
            Some(entry) => WatchEvent::Put { key, entry },
            None => WatchEvent::Delete { key, revision: 0 },
        })
    }
}

impl WatchSource for PollWatch {
    fn next(&mut self) -> BoxFuture<'_, Option<Result<WatchEvent, StoreError>>> {
        Box::pin(async move {
            loop {
                let Some(key) = self.pending.front().cloned() else {
                    tokio::time::sleep_until(self.next_round).await;
                    self.begin_round();
                    continue;
                };
                let deadline = (Instant::now() + self.store.shared.config.connect * 2).into_std();
                let found =
                    self.store.call(StoreOperation::Watch, &key, Ask::Get { key: &key }, deadline).await;
                self.pending.pop_front();
                match found {
                    Ok(Reply::Entry(found)) => {
                        if let Some(event) = self.compare(&key, found) {
                            return Some(Ok(event));
                        }
                    }
                    Ok(_) => {}
                    Err(error) => {
                        // The others would fail alike: next round.
                        self.pending.clear();
                        tracing::debug!(target: TARGET, %error, "asking again failed");
                    }
                }
            }
        })
    }
}
