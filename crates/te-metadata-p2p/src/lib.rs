//! Metadata without a store: a segment's name is its owner's address, and the owner hands out the descriptor itself.
//!
//! [`P2pDirectory`] resolves `host:port` names by one metadata exchange with the peer, as the reference engine does
//! (wire spec: the metadata message of the control port). The other side of it, [`exchange_handler`], answers such
//! requests with the own descriptor, kept in [`OwnDescriptor`] or supplied by a function.
//!
//! # Quick start
//!
//! ```
//! use std::{sync::Arc, time::{Duration, Instant}};
//! use te_metadata::Directory;
//! use te_metadata_p2p::{OwnDescriptor, P2pDirectory, exchange_handler, own_name};
//! use te_rpc::{Bind, Handlers, PortChoice, RpcClient, RpcLimits, RpcListener};
//! use te_segment::{Endpoint, Identity, Incarnation, SegmentDescriptor};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The name comes from the advertised host and the port that the listener got.
//! let host: te_segment::Host = "127.0.0.1".parse()?;
//! let listener = RpcListener::bind(Bind { host: host.clone(), port: PortChoice::default() }).await?;
//! let name = own_name(&host, listener.port())?;
//! let here: Endpoint = name.as_str().parse()?;
//!
//! let own = OwnDescriptor::default();
//! let directory = P2pDirectory::serving(RpcClient::new(RpcLimits::default()), own.clone());
//! let handlers = Handlers { metadata: Some(Arc::new(exchange_handler(own.provider()))), ..Handlers::default() };
//! let server = listener.serve(handlers, RpcLimits::default());
//!
//! let deadline = Instant::now() + Duration::from_secs(5);
//! let identity = Identity::Te { incarnation: Incarnation::from_bits(7), control: Some(here.clone()) };
//! let descriptor = SegmentDescriptor::builder(name.clone()).identity(identity).build()?;
//! directory.publish(Arc::new(descriptor), here.into(), deadline).await?;
//!
//! let found = directory.resolve(&name, deadline).await?; // any peer can do this
//! assert_eq!(found.descriptor.incarnation(), Some(Incarnation::from_bits(7)));
//! server.shutdown(deadline).await;
//! # Ok(()) }
//! ```
//!
//! # Guarantees
//!
//! * A peer is answered in its own terms: `tcp` peers get a `tcp` record, `rdma` peers an `rdma` record, te peers all
//!   of it in the extension.
//! * What is published is what the next request is answered with; publishing sends nothing.
//! * The handler never waits for another peer (META-07): a provider is a plain function.
//! * IPv4, IPv6 and host names alike; an IPv6 host is in brackets in a name.
//!
//! # When it fails
//!
//! Every error names the peer's address. A refused connection ([`DirectoryError::Refused`]) is told apart from silence
//! ([`DirectoryError::Unavailable`], [`DirectoryError::DeadlineExceeded`]), an engine that publishes in a store
//! ([`DirectoryError::NotAP2pPeer`]) from one whose answer is no descriptor. There is no store to say "not published":
//! this directory never answers [`DirectoryError::NotFound`].
//!
//! [`DirectoryError::Refused`]: te_metadata::DirectoryError::Refused
//! [`DirectoryError::Unavailable`]: te_metadata::DirectoryError::Unavailable
//! [`DirectoryError::DeadlineExceeded`]: te_metadata::DirectoryError::DeadlineExceeded
//! [`DirectoryError::NotAP2pPeer`]: te_metadata::DirectoryError::NotAP2pPeer
//! [`DirectoryError::NotFound`]: te_metadata::DirectoryError::NotFound

#![forbid(unsafe_code)]

mod directory;
mod exchange;
mod name;
mod own;
mod requester;

pub use directory::P2pDirectory;
pub use exchange::{Provider, exchange_handler};
pub use name::own_name;
pub use own::OwnDescriptor;
