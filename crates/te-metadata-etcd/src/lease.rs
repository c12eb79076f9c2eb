//! Leases: one for each key that is put with one.

use std::{collections::HashMap, time::Duration};

use etcd_client::{Client, Error};
use parking_lot::Mutex;

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
