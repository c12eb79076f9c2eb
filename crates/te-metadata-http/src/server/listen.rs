//! Connections: how many, how long, and how they end.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{Router, extract::Request};
use hyper::{
    body::Incoming,
    server::conn::http1,
    service::{Service as _, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
    task::JoinSet,
};

use super::metrics::Metrics;

/// Time for a TLS handshake.
#[cfg(feature = "tls")]
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Longest head of a request: a key of 4 KiB, each byte as `%XX`, with room for headers.
const MAX_HEAD: usize = 64 << 10;
/// Pause after the system had no room for another connection.
const PAUSE: Duration = Duration::from_millis(50);

/// One connection as the others see it.
#[derive(Debug)]
struct Seat {
    /// Requests that are being answered, streams included.
    busy: AtomicU32,
    /// When the last request ended, in milliseconds since the server began.
    last: AtomicU64,
    leave: Notify,
}

/// The connections of a server.
#[derive(Debug)]
pub(super) struct Seats {
    seats: Mutex<HashMap<u64, Arc<Seat>>>,
    next: AtomicU64,
    max: usize,
    began: Instant,
    metrics: Arc<super::writer::Shared>,
}

/// A seat that is given back when this is dropped.
struct Taken {
    seats: Arc<Seats>,
    id: u64,
    seat: Arc<Seat>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut seats = self.seats.seats.lock();
        seats.remove(&self.id);
        self.seats.metrics().connections.set(i64::try_from(seats.len()).unwrap_or(i64::MAX));
    }
}

/// A request under way; ends with its body, so a stream counts for as long as it runs.
struct Busy(Arc<Seat>, Arc<Seats>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.last.store(self.1.now(), Ordering::Relaxed);
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Seats {
    pub(super) fn new(max: usize, metrics: Arc<super::writer::Shared>) -> Arc<Self> {
        let (seats, next) = (Mutex::default(), AtomicU64::new(0));
        Arc::new(Self { seats, next, max, began: Instant::now(), metrics })
    }

    fn metrics(&self) -> &Metrics {
        &self.metrics.metrics
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// A seat for a newcomer. If all are taken, the connection silent for longest leaves; if none is silent, the
    /// newcomer does.
    fn take(self: &Arc<Self>) -> Option<Taken> {
        let mut seats = self.seats.lock();
        if seats.len() >= self.max {
            self.metrics().connections_dropped.inc();
            let silent = seats.iter().filter(|(_, seat)| seat.busy.load(Ordering::Relaxed) == 0);
            let oldest =
                silent.min_by_key(|(_, seat)| seat.last.load(Ordering::Relaxed)).map(|(id, _)| *id)?;
            if let Some(seat) = seats.remove(&oldest) {
                seat.leave.notify_one();
            }
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (busy, last) = (AtomicU32::new(0), AtomicU64::new(self.now()));
        let seat = Arc::new(Seat { busy, last, leave: Notify::new() });
        seats.insert(id, Arc::clone(&seat));
        self.metrics().connections.set(i64::try_from(seats.len()).unwrap_or(i64::MAX));
        Some(Taken { seats: Arc::clone(self), id, seat })
    }
}

/// What the accept loop works with.
pub(super) struct Listening {
    pub(super) listener: TcpListener,
    pub(super) router: Router,
    pub(super) seats: Arc<Seats>,
    pub(super) silence: Duration,
    pub(super) stopping: watch::Receiver<bool>,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<tokio_rustls::TlsAcceptor>,
}

impl Listening {
    /// Accepts until the server stops, then waits for the connections to end.
    pub(super) async fn run(self) {
        let mut connections = JoinSet::new();
        let mut stopping = self.stopping.clone();
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = super::stopped(&mut stopping) => break,
                // Keeps the set small; there is nothing to learn from how a connection ended.
                Some(_) = connections.join_next() => continue,
            };
            match accepted {
                Ok((stream, peer)) => {
                    if let Some(taken) = self.seats.take() {
                        connections.spawn(self.connection(stream, peer, taken));
                    }
                }
                Err(error) => {
                    tracing::warn!(target: "te::metad", %error, "a connection could not be accepted");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        drop(self.listener);
        while connections.join_next().await.is_some() {}
    }

    fn connection(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        taken: Taken,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (router, silence, stopping) = (self.router.clone(), self.silence, self.stopping.clone());
        #[cfg(feature = "tls")]
        let tls = self.tls.clone();
        async move {
            // Answers are small and awaited.
            let _ = stream.set_nodelay(true);
            #[cfg(feature = "tls")]
            if let Some(tls) = tls {
                let handshake = tokio::time::timeout(HANDSHAKE, tls.accept(stream));
                match handshake.await {
                    Ok(Ok(stream)) => serve(stream, router, silence, stopping, taken).await,
                    Ok(Err(error)) => {
                        tracing::debug!(target: "te::metad", %peer, %error, "tls handshake failed");
                    }
                    Err(_) => tracing::debug!(target: "te::metad", %peer, "tls handshake took too long"),
                }
                return;
            }
            tracing::trace!(target: "te::metad", %peer, "connected");
            serve(stream, router, silence, stopping, taken).await;
        }
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    router: Router,
    silence: Duration,
    mut stopping: watch::Receiver<bool>,
    taken: Taken,
) {
    let (seat, seats) = (Arc::clone(&taken.seat), Arc::clone(&taken.seats));
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request: Request<Incoming>| {
        seat.busy.fetch_add(1, Ordering::Relaxed);
        let busy = Busy(Arc::clone(&seat), Arc::clone(&seats));
        let answer = router.call(request);
        async move {
            let response = answer.await?;
            Ok::<_, std::convert::Infallible>(response.map(|body| Attended { body, _busy: busy }))
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(silence).max_buf_size(MAX_HEAD);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = taken.seat.leave.notified() => return,
        () = super::stopped(&mut stopping) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = outcome {
        tracing::trace!(target: "te::metad", %error, "a connection broke");
    }
}

/// A body that keeps its connection busy until it has been sent.
struct Attended {
    body: axum::body::Body,
    _busy: Busy,
}

impl axum::body::HttpBody for Attended {
    type Data = axum::body::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Self::Data>, Self::Error>>> {
        std::pin::Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}
