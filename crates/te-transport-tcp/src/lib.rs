//! TCP transport of the te transfer engine. Between te engines it speaks a framing of its own, with everybody else that of
//! the reference engine's data port (versions 1 and 2), on one port. It knows no names and no metadata, and moves host
//! memory only.
//!
//! # Quick start
//!
//! ```no_run
//! use te_transport::{Context, Install};
//! use te_transport_tcp::{Tcp, TcpConfig};
//!
//! fn install(context: &Context) -> Result<(), Box<dyn std::error::Error>> {
//!     let mut config = TcpConfig::default();
//!     config.set("connections_per_peer", "2")?;
//!     let transport = Tcp::new(config).start(context)?;
//!     println!("data port {}", transport.listening_on());
//!     Ok(())
//! }
//! ```
//!
//! # Guarantees
//!
//! * **Payloads are never staged.** The kernel copies between sockets and registered memory.
//! * **A completed WRITE is applied.** Native and version 2: the target says so after the last byte. Version 1: a read-back
//!   on the same connection says so, else the outcome is `Unconfirmed`.
//! * **Native requests reach whom they mean.** The connection names both lives, each request the registration of the buffer
//!   and its attempt: another life is [`te_transport::FailureKind::StaleIncarnation`], a withdrawn buffer
//!   [`te_transport::FailureKind::BufferGone`], a fenced attempt is refused or stopped, and none of them touches a byte.
//! * **Damage is noticed, if asked for.** With the setting `digest` native requests carry a digest of their payload, each or
//!   one in 64, and whoever receives the payload compares: [`te_transport::FailureKind::Damaged`].
//! * **Every request of a peer is checked** against the region table: inside one region, access allowed, not being
//!   withdrawn; and the region stays until the request has ended.
//! * **A failed request touches nothing local any more**: the connection is closed before the failure is reported.
//! * **One stalled peer delays nobody**: each busy connection has its own thread, at both ends.
//! * **Nothing is refused for being much.** What exceeds the connections of a peer waits, until its deadline.
//!
//! # Failure behaviour
//!
//! A connection that broke, timed out or lost the framing is closed and never used again. Requests of which no byte was
//! sent are tried once more on a fresh one; so are READs on a kept connection that turns out to be closed. The reference
//! framing carries neither identity nor attempts, so a WRITE that timed out may still be applied by the peer
//! ([`te_transport::RemoteEffect::MayStillApply`]); over a native connection too, until the target has fenced the attempt.
//! A refused native WRITE costs its payload, another refusal the connection. The data port is not authenticated: bind it to a network whose hosts
//! may use what is registered.
//!
//! The framings are in [`native`] and [`mod@frame`], the settings in [`TcpConfig`], the threads in `docs/decisions/0003-tcp-threads.md`.

mod backend;
mod client;
mod config;
mod congestion;
mod counters;
mod digest;
mod error;
pub mod frame;
mod framing;
mod io;
pub mod native;
mod offer;
mod progress;
mod server;

pub use backend::{Tcp, TcpTransport};
pub use config::{DigestChoice, FramingChoice, TcpConfig};
pub use counters::TcpCounters;
pub use te_transport::ConfigError;
