//! Not an etcd client for general use: etcd as the metadata store of te engines.
//!
//! [`EtcdStore`] keeps segment records in an etcd cluster (v3 API, 3.4 or later) under the keys and with the values of
//! the reference engine, so both kinds of engine share one store.
//!
//! # Quick start
//!
//! ```no_run
//! use std::time::{Duration, Instant};
//! use te_metadata::{Key, MetadataStore, PutRequest};
//! use te_metadata_etcd::{EtcdConfig, EtcdStore};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = EtcdStore::new(EtcdConfig::parse("etcd://10.0.0.1:2379,10.0.0.2:2379")?)?;
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
//! * Every call ends by its deadline, also when a server stops answering while its connection stays up. With several
//!   endpoints the next one is tried in time.
//! * Conditional puts and deletes are decided by the cluster, atomically, by the key's modification revision.
//! * A leased key ends by itself when nobody renews it. Lease times are whole seconds, rounded up; servers raise very
//!   short ones to about 1.5 times their election timeout (2 s by default). A lease keeps the length it was put with.
//! * A watch goes on after its connection, its server or the cluster's data were lost; if changes may have been
//!   missed, it says so with [`WatchEvent::Resync`](te_metadata::WatchEvent::Resync).
//! * A value over the limit is refused before anything is sent.
//! * Passwords and keys appear in no error, log line or `Debug` output.
//!
//! # When it fails
//!
//! While every endpoint refuses, a call tries again with growing pauses for
//! [`patience`](EtcdConfig::patience), then ends `Unavailable` with the address and the reason. A call that was sent and
//! not answered by its deadline ends `DeadlineExceeded`; a write among them may still take effect, but not after a later
//! write of the same key: every write compares with what was there just before. A conditional put whose answer was lost
//! is tried again; if the key then holds exactly the value, it counts as done. A delete that is tried again answers
//! `false` if the first attempt had deleted the key.
//!
//! # Features
//!
//! `tls`: TLS with rustls and ring; `etcds://`, [`EtcdConfig::ca_pem`], [`EtcdConfig::identity_pem`]. Building the
//! crate needs `protoc` and the well-known protos (Debian: `protobuf-compiler libprotobuf-dev`).

#![forbid(unsafe_code)]

mod config;
mod failure;
mod lease;
mod list;
mod servers;
mod store;
mod watch;

pub use config::{DEFAULT_MAX_REQUEST, DEFAULT_PORT, EtcdConfig, EtcdConfigError};
pub use store::EtcdStore;

/// Names the store in errors.
const SCHEME: &str = "etcd";
