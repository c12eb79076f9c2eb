//! Not a redis client for general use: a redis server as the metadata store of te engines.
//!
//! [`RedisStore`] keeps segment records in a redis server (6 or later, or one that speaks like it) under the keys and
//! with the values of the reference engine, so both kinds of engine share one store.
//!
//! # Quick start
//!
//! ```no_run
//! use std::time::{Duration, Instant};
//! use te_metadata::{Key, MetadataStore, PutRequest};
//! use te_metadata_redis::{RedisConfig, RedisStore};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = RedisStore::new(RedisConfig::parse("redis://10.0.0.1:6379/0")?)?;
//! let deadline = || Instant::now() + Duration::from_secs(2);
//!
//! let lease = Duration::from_secs(10);
//! let record = PutRequest::new(Key::new("mooncake/ram/node-a"), "{}\n".to_owned()).leased(lease);
//! let key = record.key.clone();
//! let revision = store.put(record, deadline()).await?;
//! assert!(store.renew(&key, revision, lease, deadline()).await?);
//! # Ok(()) }
//! ```
//!
//! # Guarantees
//!
//! * Every call ends by its deadline, also when the server stops answering while its connection stays up.
//! * Puts, deletes and renewals are decided by the server, atomically, in scripts. They need revisions, which redis
//!   does not have: a note beside each key (`te:revision:KEY`) holds one, together with the hash of the value it is
//!   about. Writers that know nothing of it are noticed by that hash, so a comparison is right against them as well;
//!   only a value that others replaced and then put back is taken for unchanged.
//! * Revisions grow with every change made through this crate, also after the server lost its data, as long as its
//!   clock is not set back.
//! * A leased key ends by itself when nobody renews it.
//! * Changes made through this crate are told to watches one by one, in order. Expired keys, and what others wrote, are
//!   noticed through keyspace events where the server has them switched on (`notify-keyspace-events KA`), else within
//!   [`poll_interval`](RedisConfig::poll_interval); of several such changes the last is told. After a lost connection
//!   a watch says [`WatchEvent::Resync`](te_metadata::WatchEvent::Resync) and goes on.
//! * All calls use one connection, and each watch one of its own.
//! * A value over the limit is refused before anything is sent.
//! * Passwords and keys appear in no error, log line or `Debug` output.
//!
//! # When it fails
//!
//! While the server refuses, a call tries again with growing pauses for [`patience`](RedisConfig::patience), then ends
//! `Unavailable` with the address and the reason. A call that was sent and not answered by its deadline ends
//! `DeadlineExceeded`; a write among them may still take effect, but not after a later write of the same key: every
//! write compares with what was there just before. A conditional put whose answer was lost is tried again; if the key
//! then holds exactly the value, it counts as done. A delete that is tried again answers `false` if the first attempt
//! had deleted the key. A server that evicts keys (`maxmemory-policy`) may evict records; do not let it.
//!
//! # Features
//!
//! `tls`: `rediss://`, [`RedisConfig::ca_pem`], [`RedisConfig::identity_pem`], by rustls with ring. Nothing
//! process-wide is installed.

#![forbid(unsafe_code)]

mod config;
mod failure;
mod link;
mod list;
mod scripts;
mod store;
#[cfg(feature = "tls")]
mod tls;
mod watch;

pub use config::{DEFAULT_MAX_VALUE, DEFAULT_PORT, RedisConfig, RedisConfigError};
pub use store::RedisStore;

/// Names the store in errors.
const SCHEME: &str = "redis";
