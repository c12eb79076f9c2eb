//! Leases: one for each key that is put with one.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use etcd_client::{Client, Error};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::failure::Failure;

#[derive(Clone, Copy, Debug)]
struct Held {
    id: i64,
    /// As asked for, in seconds.
    ttl: i64,
}

/// The leases this store was given. A lease belongs to one key, so that one key's end is no other key's.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    held: Mutex<HashMap<String, Held>>,
}

impl Leases {
    /// A lease that has just begun, for `key`: the one it had, kept alive, or a new one if that has ended.
    pub(crate) async fn begin(&self, client: &Client, key: &str, lease: Duration) -> Result<i64, Failure> {
        let ttl = seconds(lease);
        let held = self.held.lock().get(key).copied();
        if let Some(held) = held.filter(|held| held.ttl == ttl) {
            match keep_alive(client, held.id).await {
                Ok(()) => return Ok(held.id),
                Err(Failure::LeaseGone) => self.forget(key),
                Err(failure) => return Err(failure),
            }
        }
        let granted = client.lease_client().grant(ttl, None).await?;
        self.held.lock().insert(key.to_owned(), Held { id: granted.id(), ttl });
        Ok(granted.id())
    }

    pub(crate) fn of(&self, key: &str) -> Option<i64> {
        self.held.lock().get(key).map(|held| held.id)
    }

    pub(crate) fn forget(&self, key: &str) {
        self.held.lock().remove(key);
    }
}

/// Starts a lease anew.
pub(crate) async fn keep_alive(client: &Client, id: i64) -> Result<(), Failure> {
    match client.lease_client().keep_alive(id).await {
        Ok(_) => Ok(()),
        Err(Error::WatchError(words)) => Err(Failure::Outage(words)),
        Err(error) => Err(error.into()),
    }
}

/// What is left of each lease. Asks for many at once, over the one connection.
pub(crate) async fn remaining(
    client: &Client,
    leases: BTreeSet<i64>,
) -> Result<HashMap<i64, Duration>, Failure> {
    let mut left = HashMap::with_capacity(leases.len());
    let mut leases = leases.into_iter();
    let mut asked = JoinSet::new();
    loop {
        while asked.len() < ASKED
            && let Some(id) = leases.next()
        {
            let mut client = client.lease_client();
            asked.spawn(async move { (id, client.time_to_live(id, None).await) });
        }
        let Some(answer) = asked.join_next().await else { return Ok(left) };
        let (id, answer) = answer.map_err(|error| Failure::Outage(error.to_string()))?;
        // What has ended is answered with -1.
        left.insert(id, Duration::from_secs(u64::try_from(answer?.ttl()).unwrap_or(0)));
    }
}

/// Leases asked for at the same time.
const ASKED: usize = 64;

/// Whole seconds, at least one, rounded up: a key never ends earlier than asked.
fn seconds(lease: Duration) -> i64 {
    let up = lease.as_secs().saturating_add(u64::from(lease.subsec_nanos() > 0));
    i64::try_from(up).unwrap_or(i64::MAX).clamp(1, LONGEST)
}

/// The longest lease servers grant, in seconds.
const LONGEST: i64 = 9_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_rounded_up_to_seconds() {
        assert_eq!(seconds(Duration::ZERO), 1);
        assert_eq!(seconds(Duration::from_millis(1500)), 2);
        assert_eq!(seconds(Duration::from_secs(10)), 10);
        assert_eq!(seconds(Duration::MAX), LONGEST);
    }
}
