//! The store itself: each call as scripts and scans.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use redis::{Script, Value, aio::MultiplexedConnection};
use te_metadata::{
    BoxFuture, Entry, Key, LeasedEntry, MetadataStore, PutCondition, PutRequest, StoreError, StoreErrorKind,
    StoreInfo, StoreOperation, WatchStream,
};

use crate::{
    RedisConfig, RedisConfigError, SCHEME,
    failure::Failure,
    link::{Link, SharedLink},
    list::{read_all, remaining, scan, text},
    scripts::{self, COUNTER, DELETE, INLINE, PUT, READ, RENEW, RESERVED},
    watch,
};

/// A redis server as [`MetadataStore`]. Clones share one connection; each watch has another.
///
/// Making one connects to nothing; each call connects as it needs to. The calls have to be made within a tokio
/// runtime.
#[derive(Clone)]
pub struct RedisStore(SharedLink);

impl RedisStore {
    /// A store for this server. Does no input or output.
    ///
    /// # Errors
    /// [`RedisConfigError`] if the configuration needs what this build lacks, contradicts itself, or has certificates
    /// that cannot be used.
    pub fn new(config: RedisConfig) -> Result<Self, RedisConfigError> {
        Ok(Self(Arc::new(Link::new(config)?)))
    }

    async fn put_once(
        &self,
        mut connection: MultiplexedConnection,
        request: &PutRequest,
        made: u32,
    ) -> Result<u64, Failure> {
        let PutRequest { key, value, condition, lease } = request;
        let key = key.as_str();
        loop {
            // Every put compares, also one without a condition: with what was there just before. So an attempt that
            // the server applies late changes nothing if the key was written since.
            let expected = match condition {
                PutCondition::Absent => None,
                PutCondition::Revision(revision) => Some(*revision),
                PutCondition::Always => revision(&mut connection, key).await?,
            };
            let answer = invoke(&PUT, &mut connection, key, |call| {
                call.arg(value.as_str())
                    .arg(expected.map(|revision| revision.to_string()).unwrap_or_default())
                    .arg(lease.map(|lease| milliseconds(lease).to_string()).unwrap_or_default())
                    .arg(scripts::channel(self.0.config.database, key))
                    .arg(INLINE);
            });
            match answer.await {
                Ok(Answer::Done(revision)) => return Ok(revision),
                Ok(Answer::Refused(_)) if *condition == PutCondition::Always => {}
                Ok(Answer::Refused(current)) => {
                    // An attempt before this one may have put the value.
                    let found = if made > 0 { value_of(&mut connection, key).await? } else { None };
                    return match found {
                        Some(entry) if entry.value == *value => Ok(entry.revision),
                        _ => Err(Failure::Final(StoreErrorKind::Conflict { current })),
                    };
                }
                Err(Failure::Final(StoreErrorKind::TooLarge { .. })) => {
                    let size = value.len();
                    let limit = self.0.config.max_value.min(size.saturating_sub(1));
                    return Err(Failure::Final(StoreErrorKind::TooLarge { size, limit, store: SCHEME }));
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    async fn delete_once(
        &self,
        mut connection: MultiplexedConnection,
        key: &str,
        wanted: Option<u64>,
    ) -> Result<bool, Failure> {
        loop {
            let expected = match wanted {
                Some(revision) => revision,
                None => match revision(&mut connection, key).await? {
                    Some(revision) => revision,
                    None => return Ok(false),
                },
            };
            let answer = invoke(&DELETE, &mut connection, key, |call| {
                call.arg(expected.to_string()).arg(scripts::channel(self.0.config.database, key));
            });
            match answer.await? {
                Answer::Done(_) => return Ok(true),
                Answer::Refused(None) => return Ok(false),
                Answer::Refused(_) if wanted.is_none() => {}
                Answer::Refused(current) => return Err(Failure::Final(StoreErrorKind::Conflict { current })),
            }
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("config", &self.0.config).finish_non_exhaustive()
    }
}

/// The answer of a script that writes.
enum Answer {
    Done(u64),
    /// With the revision found.
    Refused(Option<u64>),
}

async fn invoke(
    script: &Script,
    connection: &mut MultiplexedConnection,
    key: &str,
    arguments: impl FnOnce(&mut redis::ScriptInvocation<'_>) + Send,
) -> Result<Answer, Failure> {
    let mut call = script.prepare_invoke();
    call.key(COUNTER).key(key).key(scripts::note(key));
    arguments(&mut call);
    let answer: Value = call.invoke_async(connection).await?;
    let parts = match &answer {
        Value::Array(parts) => parts.as_slice(),
        _ => &[],
    };
    match parts {
        [Value::Int(1), revision] => match number(revision) {
            Some(revision) => Ok(Answer::Done(revision)),
            None => Err(nonsense()),
        },
        [Value::Int(0), current] => Ok(Answer::Refused(number(current))),
        _ => Err(nonsense()),
    }
}

pub(crate) fn nonsense() -> Failure {
    Failure::invalid("a script's answer has another form")
}

pub(crate) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
        Value::SimpleString(text) => text.parse().ok(),
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

/// One key of [`READ`]'s answer: its revision and its value's bytes, if they were asked for.
pub(crate) type Found = Option<(u64, Vec<u8>)>;

/// Reads keys, in their order.
pub(crate) async fn read(
    connection: &mut MultiplexedConnection,
    keys: &[&str],
    values: bool,
) -> Result<Vec<Found>, Failure> {
    let mut call = READ.prepare_invoke();
    call.key(COUNTER);
    for key in keys {
        call.key(*key).key(scripts::note(key));
    }
    call.arg(if values { "values" } else { "revisions" });
    let Value::Array(answer) = call.invoke_async(connection).await? else { return Err(nonsense()) };
    if answer.len() != keys.len() {
        return Err(nonsense());
    }
    let found = |item| match item {
        Value::Array(parts) => match parts.as_slice() {
            [] => Ok(None),
            [revision] => Ok(Some((number(revision).ok_or_else(nonsense)?, Vec::new()))),
            [revision, Value::BulkString(value)] => {
                Ok(Some((number(revision).ok_or_else(nonsense)?, value.clone())))
            }
            _ => Err(nonsense()),
        },
        _ => Err(nonsense()),
    };
    answer.into_iter().map(found).collect()
}

async fn revision(connection: &mut MultiplexedConnection, key: &str) -> Result<Option<u64>, Failure> {
    let found = read(connection, &[key], false).await?;
    Ok(found.into_iter().next().flatten().map(|(revision, _)| revision))
}

pub(crate) async fn value_of(
    connection: &mut MultiplexedConnection,
    key: &str,
) -> Result<Option<Entry>, Failure> {
    let found = read(connection, &[key], true).await?;
    let Some((revision, value)) = found.into_iter().next().flatten() else { return Ok(None) };
    let value = String::from_utf8(value).map_err(|_| Failure::invalid("the value is not UTF-8"))?;
    Ok(Some(Entry { value, revision }))
}

fn milliseconds(lease: Duration) -> u64 {
    // The longest that the server's arithmetic takes without overflow is far above this.
    const LONGEST: u128 = 1 << 50;
    let up = lease.as_nanos().div_ceil(1_000_000).clamp(1, LONGEST);
    u64::try_from(up).unwrap_or(u64::MAX)
}

fn reserved(key: &str) -> Result<(), StoreErrorKind> {
    if key.starts_with(RESERVED) {
        let detail = format!("keys that begin with {RESERVED} are the store's own");
        return Err(StoreErrorKind::Invalid { detail });
    }
    Ok(())
}

impl MetadataStore for RedisStore {
    fn info(&self) -> StoreInfo {
        let mut info = StoreInfo::new(SCHEME);
        info.max_value = Some(self.0.config.max_value);
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
            let attempt = |mut connection, _| async move { value_of(&mut connection, key.as_str()).await };
            let found = self.0.call(deadline, attempt).await;
            found.map_err(|kind| StoreError::new(SCHEME, StoreOperation::Get, key.as_str(), kind))
        })
    }

    fn put(&self, request: PutRequest, deadline: Instant) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let (size, limit) = (request.value.len(), self.0.config.max_value);
            let outcome = match reserved(request.key.as_str()) {
                Err(kind) => Err(kind),
                Ok(()) if size > limit => Err(StoreErrorKind::TooLarge { size, limit, store: SCHEME }),
                Ok(()) => {
                    let request = &request;
                    let attempt =
                        move |connection, made| async move { self.put_once(connection, request, made).await };
                    self.0.call(deadline, attempt).await
                }
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
            let attempt =
                |connection, _| async move { self.delete_once(connection, key.as_str(), revision).await };
            let outcome = match reserved(key.as_str()) {
                Ok(()) => self.0.call(deadline, attempt).await,
                Err(kind) => Err(kind),
            };
            outcome.map_err(|kind| StoreError::new(SCHEME, StoreOperation::Delete, key.as_str(), kind))
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
            let attempt = |mut connection, _| async move {
                let answer = invoke(&RENEW, &mut connection, key.as_str(), |call| {
                    call.arg(revision.to_string()).arg(milliseconds(lease));
                });
                Ok(matches!(answer.await?, Answer::Done(_)))
            };
            let outcome = self.0.call(deadline, attempt).await;
            outcome.map_err(|kind| StoreError::new(SCHEME, StoreOperation::Renew, key.as_str(), kind))
        })
    }

    /// Not of one moment: keys written while it runs may be in it or not.
    fn list<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Vec<(Key, Entry)>, StoreError>> {
        Box::pin(async move {
            let attempt = |mut connection, _| async move {
                let keys = scan(&mut connection, prefix).await?;
                read_all(&mut connection, &keys, true).await
            };
            let found = self.0.call(deadline, attempt).await;
            let found = found.map_err(|kind| StoreError::new(SCHEME, StoreOperation::List, prefix, kind))?;
            Ok(found.into_iter().filter_map(text).collect())
        })
    }

    fn list_with_leases<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Vec<LeasedEntry>, StoreError>> {
        Box::pin(async move {
            let attempt = |mut connection, _| async move {
                let keys = scan(&mut connection, prefix).await?;
                let found: Vec<_> =
                    read_all(&mut connection, &keys, true).await?.into_iter().filter_map(text).collect();
                let names: Vec<&str> = found.iter().map(|(key, _)| key.as_str()).collect();
                let left = remaining(&mut connection, &names).await?;
                Ok(found.into_iter().zip(left).collect::<Vec<_>>())
            };
            let found = self.0.call(deadline, attempt).await;
            let found = found.map_err(|kind| StoreError::new(SCHEME, StoreOperation::List, prefix, kind))?;
            let leased = |((key, entry), remaining)| LeasedEntry { key, entry, remaining };
            Ok(found.into_iter().map(leased).collect())
        })
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<WatchStream, StoreError>> {
        Box::pin(async move {
            let outcome = watch::start(Arc::clone(&self.0), prefix.to_owned(), deadline).await;
            outcome.map_err(|kind| StoreError::new(SCHEME, StoreOperation::Watch, prefix, kind))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_rounded_up_to_milliseconds() {
        assert_eq!(milliseconds(Duration::ZERO), 1);
        assert_eq!(milliseconds(Duration::from_micros(1500)), 2);
        assert_eq!(milliseconds(Duration::MAX), 1 << 50);
    }
}
