//! A metadata store to embed: the reference engine's three requests, and what they lack.
//!
//! Reference engines use it unchanged. te engines find out what it is and get leases, compare-and-set, lists and
//! watches; keys of a living engine are protected against others. `GET /` shows the cluster in a browser.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::{Duration, Instant};
//! use te_metadata_http::server::MetadataServer;
//!
//! let server = MetadataServer::builder().bind("127.0.0.1:0".parse()?).start().await?;
//! println!("engines use {}", server.url());
//! server.shutdown(Instant::now() + Duration::from_secs(5)).await?;
//! # Ok(()) }
//! ```
//!
//! # Guarantees
//!
//! * With a file to keep things in, a write is acknowledged once it is on the disk, and visible after that: killing
//!   the server at any moment loses none. Revisions never repeat, not even across a restart.
//! * Bodies, keys, connections and watches are bounded; a silent connection never keeps a newcomer out.
//! * A watch never stays silent about lost changes: it says `resync`.
//!
//! # When it fails
//!
//! If the disk fails, writes are answered 503 from then on, `/healthz` says so, and reads go on. A journal that is
//! damaged before its end stops the start; a torn last write, which nobody was told of, is cut off.

mod auth;
mod cluster;
mod config;
mod contents;
mod events;
mod history;
mod journal;
mod listen;
mod metrics;
mod page;
mod routes;
#[cfg(feature = "tls")]
mod tls;
mod writer;

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::AtomicBool},
    thread::JoinHandle,
    time::Instant,
};

use parking_lot::RwLock;
use tokio::{net::TcpListener, sync::watch};

#[cfg(feature = "tls")]
pub use config::ServerTls;
pub use config::{ServerBuilder, ServerLimits};
pub use journal::JournalError;

use contents::{Bounds, Contents};
use history::History;
use journal::{Journal, Recovered};
use listen::{Listening, Seats};
use routes::App;
use writer::Shared;

/// Bytes of values remembered for watches that were interrupted.
const HISTORY_BYTES: usize = 64 << 20;

/// Why a server did not start, or did not stop in time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's words.
        source: std::io::Error,
    },
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A certificate or key is unusable.
    #[error("{what} is unusable: {reason}")]
    Certificate {
        /// Which one.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The thread that writes could not be started.
    #[error("the writing thread could not be started: {source}")]
    Thread {
        /// The system's words.
        source: std::io::Error,
    },
    /// Connections were still busy at the deadline; they were closed.
    #[error("connections were still busy at the deadline, and were closed")]
    StillBusy,
}

/// A running server. Dropping it closes every connection at once; writes that were handed over are still done.
#[derive(Debug)]
pub struct MetadataServer {
    address: SocketAddr,
    scheme: &'static str,
    stop: watch::Sender<bool>,
    accepting: tokio::task::JoinHandle<()>,
    writing: Option<JoinHandle<()>>,
}

impl MetadataServer {
    /// A server on `127.0.0.1:8080` that keeps everything in memory, unless told otherwise.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    async fn start(config: ServerBuilder) -> Result<Self, ServerError> {
        let now = Instant::now();
        #[cfg(feature = "tls")]
        let tls = match &config.tls {
            Some(tls) => {
                Some(tls::acceptor(tls).map_err(|(what, reason)| ServerError::Certificate { what, reason })?)
            }
            None => None,
        };
        #[cfg(feature = "tls")]
        let scheme = if tls.is_some() { "https" } else { "http" };
        #[cfg(not(feature = "tls"))]
        let scheme = "http";
        let (journal, recovered) = match &config.persist {
            Some(path) => {
                let (journal, recovered) = Journal::open(path, now)?;
                (Some(journal), recovered)
            }
            None => (None, Recovered::default()),
        };
        if recovered.torn > 0 {
            tracing::warn!(target: "te::metad", bytes = recovered.torn, "the journal ended in a torn write, which nobody was told of; it was cut off");
        }
        let bind = |source| ServerError::Bind { address: config.bind, source };
        let listener = TcpListener::bind(config.bind).await.map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        if !address.ip().is_loopback() && config.token.is_none() {
            tracing::warn!(target: "te::metad", %address, "everybody who reaches this address can read and write; set a token");
        }

        // Later than any revision of an earlier life, even one whose last changes were lost with the power.
        let revision = recovered.revision.max(writer::now_ms().saturating_mul(1000));
        let history = History::new(revision, config.limits.history, HISTORY_BYTES);
        let shared = Arc::new(Shared {
            contents: RwLock::new(Contents::new(recovered.records, revision, history)),
            changed: watch::Sender::new(revision),
            broken: AtomicBool::new(false),
            metrics: metrics::Metrics::new(),
        });
        let bounds = Bounds { keys: config.limits.max_keys, bytes: config.limits.max_bytes };
        let (writer, writing) = writer::start(Arc::clone(&shared), journal, bounds)
            .map_err(|source| ServerError::Thread { source })?;
        let (stop, stopping) = watch::channel(false);
        let seats = Seats::new(config.limits.max_connections, Arc::clone(&shared));
        let silence = config.limits.silence;
        let app = App {
            shared,
            writer,
            limits: config.limits,
            token: config.token,
            life: format!("{:032x}", rand::random::<u128>()),
            stopping: stopping.clone(),
        };
        let listening = Listening {
            listener,
            router: routes::router(Arc::new(app)),
            seats,
            silence,
            stopping,
            #[cfg(feature = "tls")]
            tls,
        };
        let accepting = tokio::spawn(listening.run());
        Ok(Self { address, scheme, stop, accepting, writing: Some(writing) })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The URL that engines are given.
    pub fn url(&self) -> String {
        format!("{}://{}/metadata", self.scheme, self.address)
    }

    /// Stops: no new connections, watches end, requests under way are answered, and everything handed over is on the
    /// disk when this returns.
    ///
    /// # Errors
    /// [`ServerError::StillBusy`] if connections had to be closed at the deadline.
    pub async fn shutdown(mut self, deadline: Instant) -> Result<(), ServerError> {
        self.stop.send_replace(true);
        let at = tokio::time::Instant::from_std(deadline);
        let ended = tokio::time::timeout_at(at, &mut self.accepting).await;
        if ended.is_err() {
            self.accepting.abort();
            // Only then are the connections gone, and with them the last that could hand something over.
            let _ = (&mut self.accepting).await;
        }
        if let Some(writing) = self.writing.take() {
            let _ = tokio::task::spawn_blocking(move || writing.join()).await;
        }
        ended.map(drop).map_err(|_| ServerError::StillBusy)
    }
}

impl Drop for MetadataServer {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        self.accepting.abort();
    }
}

/// Waits until the server stops, or is gone.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // An error says that the sender is gone, and the server with it.
    let _ = stopping.wait_for(|stop| *stop).await;
}
