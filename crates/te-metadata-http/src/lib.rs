//! Not a transfer path: metadata over HTTP. A client for any store that speaks the reference engine's three requests,
//! and a server to embed that adds what they lack.
//!
//! # Quick start
//!
//! ```
//! # #[cfg(all(feature = "client", feature = "server"))]
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::{Duration, Instant};
//! use te_metadata::{Key, MetadataStore, PutRequest};
//! use te_metadata_http::{HttpConfig, HttpStore, server::MetadataServer};
//!
//! let server = MetadataServer::builder().bind("127.0.0.1:0".parse()?).start().await?;
//!
//! let deadline = Instant::now() + Duration::from_secs(5);
//! let store = HttpStore::connect(HttpConfig::parse(&server.url())?, deadline).await?;
//! assert!(store.info().leases); // ours; any other server could only put, get and delete
//!
//! let key = Key::new("mooncake/ram/decode-7");
//! store.put(PutRequest::new(key.clone(), "{}".into()).leased(Duration::from_secs(10)), deadline).await?;
//! assert_eq!(store.get(&key, deadline).await?.map(|entry| entry.value).as_deref(), Some("{}"));
//! server.shutdown(deadline).await?;
//! # Ok(()) }
//! # #[cfg(not(all(feature = "client", feature = "server")))] fn main() {}
//! ```
//!
//! # Features
//!
//! `client` (default) is `HttpStore`, `server` the server, `tls` https on whichever of them is there.
//!
//! # Guarantees
//!
//! * Every call ends by its deadline; a server that accepts and stays silent is passed over for the next one (META-05).
//! * A bounded number of connections, whatever the number of callers (META-10).
//! * Nothing is read from the environment: no proxy variables, no process-wide TLS provider.
//! * Tokens and passwords are in no error, no log and no `Debug` text.
//!
//! # When it fails
//!
//! Errors are those of `te-metadata`. "Not there" is only ever what the store itself said: an answer that passes for
//! our server's without being signed by it, such as a proxy's 404, counts as an outage.

#![forbid(unsafe_code)]

#[cfg(feature = "client")]
mod client;
#[cfg(any(feature = "client", feature = "server"))]
mod protocol;
#[cfg(any(feature = "client", feature = "server"))]
#[cfg(feature = "server")]
pub mod server;
#[cfg(all(feature = "tls", any(feature = "client", feature = "server")))]
mod tls;

#[cfg(feature = "client")]
pub use client::{HttpConfig, HttpConfigError, HttpStore};
