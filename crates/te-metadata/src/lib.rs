//! Not a metadata store of its own and no network code: the contract that stores fulfil, the keys and values that
//! engines exchange through them, and the cache of what was found there.
//!
//! Three layers. A [`MetadataStore`] holds texts under keys (etcd, redis, http, or [`MemoryStore`] in this process). A
//! [`Directory`] publishes this engine's descriptor and resolves names to descriptors; [`StoreDirectory`] does so over a
//! store, another crate by asking the peer itself. A [`SegmentCache`] keeps what the engine has open.
//!
//! # Quick start
//!
//! ```
//! use std::{sync::Arc, time::{Duration, Instant}};
//! use te_metadata::{Directory, DirectoryError, Keys, MemoryStore, SegmentCache, StoreDirectory};
//! use te_segment::{Identity, Incarnation, SegmentDescriptor, SegmentName};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let directory: Arc<dyn Directory> = Arc::new(StoreDirectory::new(MemoryStore::new(), Keys::default()));
//! let name = SegmentName::new("decode-7")?;
//! let deadline = || Instant::now() + Duration::from_secs(1);
//!
//! let control = "10.0.0.7:15893".parse()?;
//! let identity = Identity::Te { incarnation: Incarnation::from_bits(7), control: Some(control) };
//! let descriptor = Arc::new(SegmentDescriptor::builder(name.clone()).identity(identity).build()?);
//! directory.publish(descriptor, "10.0.0.7:15893".parse::<te_segment::Endpoint>()?.into(), deadline()).await?;
//!
//! let cache = SegmentCache::new(directory.clone());
//! let segment = cache.open(&name, deadline()).await?;
//! assert_eq!(segment.snapshot().descriptor.incarnation(), Some(Incarnation::from_bits(7)));
//!
//! directory.withdraw(&name, deadline()).await?;
//! assert!(matches!(cache.open(&name, deadline()).await, Err(DirectoryError::NotFound { .. })));
//! assert!(segment.snapshot().descriptor.buffers().is_empty()); // what is held stays readable
//! # Ok(()) }
//! ```
//!
//! # Guarantees
//!
//! * Every call takes a deadline and ends by it.
//! * "Not published" and "no answer" are different values everywhere: [`DirectoryError::NotFound`] is only ever the
//!   directory's own statement, and [`DirectoryError::is_outage`] says nothing about a segment.
//! * A snapshot never changes and is always whole; readers take no lock.
//! * Concurrent opens of one name make one fetch. A failed refresh keeps the snapshot. An outage expires nothing.
//! * No two names of one deployment share a key.
//! * Nothing read from a store is trusted: every value is decoded totally, with limits.
//!
//! # When it fails
//!
//! A [`StoreError`] names the store, the call, the key and the reason; a [`DirectoryError`] the segment, who was asked,
//! and whether repeating the call can help ([`DirectoryError::is_retryable`]). A record over the store's limit is
//! refused before anything is sent. Nothing here retries by itself.

#![forbid(unsafe_code)]

pub mod backend;
mod cache;
mod directory;
mod error;
mod key;
mod memory;
mod store;
mod store_directory;
mod timestamp;
mod watch;

pub use cache::{CachedSegment, Cause, Refreshed, SegmentCache, SegmentState, Snapshot};
pub use directory::{Directory, DirectoryEvent, DirectoryWatch, Kept, NameRule, Resolved, Source};
pub use error::{DirectoryError, DirectoryOperation, StoreError, StoreErrorKind, StoreOperation};
pub use key::{ClusterId, ClusterIdError, Key, KeySubject, Keys};
pub use memory::MemoryStore;
pub use store::{BoxFuture, Entry, LeasedEntry, MetadataStore, PutCondition, PutRequest, StoreInfo};
pub use store_directory::{HolderAnswer, HolderProbe, StoreDirectory};
pub use timestamp::format_timestamp;
pub use watch::{WatchEvent, WatchSource, WatchStream};
