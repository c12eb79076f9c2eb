//! Many keys at once: page by page, all of one moment, and what is left of their leases.

use std::{collections::BTreeSet, time::Instant};

use etcd_client::{Client, GetOptions, KeyValue, SortOrder, SortTarget};
use te_metadata::{Entry, Key, LeasedEntry, StoreErrorKind};

use crate::{
    failure::Failure,
    lease,
    store::{EtcdStore, first_key, range_end, revision_of},
};

/// What one page of a listing may hold, in bytes, if every value is as large as can be.
pub(crate) const PAGE_BYTES: usize = 64 << 20;
/// Most keys of one page.
const PAGE_KEYS: usize = 512;

impl EtcdStore {
    fn page(&self) -> usize {
        (PAGE_BYTES / self.0.config.max_request).clamp(1, PAGE_KEYS)
    }

    /// The keys with a prefix, each with the number of its lease, 0 if it has none.
    pub(crate) async fn list_all(
        &self,
        prefix: &str,
        deadline: Instant,
    ) -> Result<Vec<(Key, Entry, i64)>, StoreErrorKind> {
        let mut found = Vec::new();
        // A listing shows one moment. If its history is gone before the end, it begins again.
        let mut at = 0;
        let mut from: Option<Vec<u8>> = None;
        loop {
            let page = self.0.servers.call(deadline, |client, _| {
                let from = from.clone();
                async move {
                    match self.page_from(&client, prefix, from, at).await {
                        Err(Failure::Compacted) => Ok(None),
                        page => page.map(Some),
                    }
                }
            });
            let Some((page, more, revision)) = page.await? else {
                (at, from) = (0, None);
                found.clear();
                continue;
            };
            at = revision;
            from = page.last().filter(|_| more).map(|last| next_key(last.key()));
            for pair in page {
                match entry(&pair) {
                    Some((key, entry)) => found.push((key, entry, pair.lease())),
                    None => tracing::debug!(key = ?pair.key(), "left out of a listing: not UTF-8"),
                }
            }
            if from.is_none() {
                return Ok(found);
            }
        }
    }

    /// The same, with what is left of the leases. A lease that ended since has nothing left.
    pub(crate) async fn list_leased(
        &self,
        prefix: &str,
        deadline: Instant,
    ) -> Result<Vec<LeasedEntry>, StoreErrorKind> {
        let listed = self.list_all(prefix, deadline).await?;
        let leases: BTreeSet<i64> = listed.iter().map(|(_, _, lease)| *lease).filter(|id| *id != 0).collect();
        let attempt = |client, _| {
            let leases = leases.clone();
            async move { lease::remaining(&client, leases).await }
        };
        let left = self.0.servers.call(deadline, attempt).await?;
        let leased = |(key, entry, lease)| LeasedEntry { key, entry, remaining: left.get(&lease).copied() };
        Ok(listed.into_iter().map(leased).collect())
    }

    async fn page_from(
        &self,
        client: &Client,
        prefix: &str,
        from: Option<Vec<u8>>,
        revision: i64,
    ) -> Result<(Vec<KeyValue>, bool, i64), Failure> {
        let limit = i64::try_from(self.page()).unwrap_or(i64::MAX);
        let options = GetOptions::new()
            .with_range(range_end(prefix))
            .with_limit(limit)
            .with_revision(revision)
            .with_sort(SortTarget::Key, SortOrder::Ascend);
        let from = from.unwrap_or_else(|| first_key(prefix));
        let mut answer = self.kv(client).get(from, Some(options)).await?;
        let now = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        let at = if revision == 0 { now } else { revision };
        Ok((answer.take_kvs(), answer.more(), at))
    }
}

pub(crate) fn entry(pair: &KeyValue) -> Option<(Key, Entry)> {
    let key = std::str::from_utf8(pair.key()).ok()?;
    let value = std::str::from_utf8(pair.value()).ok()?;
    Some((Key::new(key), Entry { value: value.to_owned(), revision: revision_of(pair) }))
}

fn next_key(key: &[u8]) -> Vec<u8> {
    let mut next = key.to_vec();
    next.push(0);
    next
}
