//! Accepting connections and answering one request on each.

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    runtime::Handle,
    sync::{oneshot, watch},
    task::{JoinError, JoinHandle, JoinSet},
    time::{sleep, timeout, timeout_at},
};

use crate::{
    client::after,
    frame::{FrameDecoder, MAX_FRAME},
    handler::{Call, Handlers, Reply},
    limits::RpcLimits,
    message::{MessageError, check_json},
    native::{CloseReason, ControlMachine, Link, NativeHandler, Session},
    net::{self, Incoming, ReadError},
    table::{Budget, Charge, Table},
};

/// Bytes after a request that are read and dropped while waiting for the peer to close.
const DRAINED: usize = 64 << 10;
/// Bodies above this size are checked on a thread where that may take a while.
const CHECKED_INLINE: usize = 1 << 20;

/// What all connections of a listener share.
#[derive(Debug)]
pub(crate) struct Shared {
    handlers: Handlers,
    limits: RpcLimits,
    table: Table,
    budget: Budget,
    /// Turns true when the listener ends.
    closing: watch::Sender<bool>,
}

impl Shared {
    pub(crate) fn new(handlers: Handlers, limits: RpcLimits) -> Self {
        let table = Table::new(limits.max_connections);
        let budget = Budget::new(limits.max_buffered);
        Self { handlers, limits, table, budget, closing: watch::channel(false).0 }
    }
}

/// A listener at work. Dropping it closes the listener and all its connections at once.
#[derive(Debug)]
pub struct RpcServer {
    local: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<Instant>>,
    accepting: JoinHandle<usize>,
}

impl RpcServer {
    pub(crate) fn start(
        listener: TcpListener,
        local: SocketAddr,
        runtime: &Handle,
        shared: Arc<Shared>,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let accepting = runtime.spawn(run(listener, Arc::clone(&shared), stopped));
        Self { local, shared, stop: Some(stop), accepting }
    }

    /// The bound address.
    pub fn endpoint(&self) -> SocketAddr {
        self.local
    }

    /// Open connections at this moment.
    pub fn connections(&self) -> usize {
        self.shared.table.len()
    }

    /// Closes the listener and every connection without a whole request at once, lets requests that are being handled
    /// finish until `deadline`, then cuts them. Native connections end with a goodbye. Returns how many were cut. The port is free when this returns.
    pub async fn shutdown(mut self, deadline: Instant) -> usize {
        if let Some(stop) = self.stop.take() {
            // The other side is gone only if the runtime is, and then there is nothing to stop.
            stop.send(deadline).ok();
        }
        (&mut self.accepting).await.unwrap_or_default()
    }
}

impl Drop for RpcServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Accepts until told to stop. Its [`JoinSet`] owns the connections: they end when this ends, however that is.
async fn run(listener: TcpListener, shared: Arc<Shared>, mut stopped: oneshot::Receiver<Instant>) -> usize {
    let mut tasks = JoinSet::new();
    let mut backoff = Backoff::default();
    let deadline = loop {
        tokio::select! {
            // An error means that the server was dropped, which aborts this task anyway.
            told = &mut stopped => break told.unwrap_or_else(|_| Instant::now()),
            Some(ended) = tasks.join_next() => report(ended),
            accepted = accept(&listener, &mut backoff, &shared.table) => {
                let (stream, peer) = accepted;
                let admitted = shared.table.admit(|id| {
                    let shared = Arc::clone(&shared);
                    tasks.spawn(async move { connection(shared, id, stream, peer).await })
                });
                if !admitted {
                    tracing::debug!(target: "te::rpc", %peer, "closed: every connection is being served");
                }
            }
        }
    };
    drop(listener);
    shared.table.close_idle();
    shared.closing.send_replace(true);
    let finish = async {
        while let Some(ended) = tasks.join_next().await {
            report(ended);
        }
    };
    if timeout_at(deadline.into(), finish).await.is_ok() {
        return 0;
    }
    let cut = shared.table.len();
    tasks.shutdown().await;
    cut
}

fn report(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(target: "te::rpc", %error, "a request handler panicked");
    }
}

/// Waits for a connection, however many errors come before it.
async fn accept(listener: &TcpListener, backoff: &mut Backoff, table: &Table) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => {
                backoff.reset();
                return accepted;
            }
            // These concern one connection that is gone already.
            Err(error) if is_of_connection(&error) => {}
            Err(error) => {
                let pause = backoff.next();
                if pause == Backoff::FIRST {
                    tracing::warn!(target: "te::rpc", %error, "cannot accept connections, retrying");
                }
                // Most likely there are no file descriptors left; a connection that says nothing holds one.
                table.evict_one();
                sleep(pause).await;
            }
        }
    }
}

fn is_of_connection(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::ConnectionAborted | Kind::ConnectionReset | Kind::Interrupted | Kind::WouldBlock
    )
}

/// Pauses between failing accepts, doubling up to a second.
#[derive(Debug, Default)]
struct Backoff {
    last: Option<Duration>,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(10);
    const LAST: Duration = Duration::from_secs(1);

    fn next(&mut self) -> Duration {
        let pause = self.last.map_or(Self::FIRST, |last| (last * 2).min(Self::LAST));
        self.last = Some(pause);
        pause
    }

    fn reset(&mut self) {
        self.last = None;
    }
}

/// Takes the connection out of the table when its task ends.
struct Entry {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.shared.table.remove(self.id);
    }
}

/// Why a connection ended without a reply. All of it is the peer's doing and normal on an open port.
#[derive(Debug, thiserror::Error)]
enum Unanswered {
    #[error("nothing came in time")]
    Silent,
    #[error("request not whole in time")]
    Slow,
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Body(MessageError),
    #[error("closed to make room")]
    Evicted,
    #[error("request refused by its handler")]
    Refused,
    #[error("request not handled in time")]
    Unhandled,
    #[error("reply of {length} bytes is larger than any peer accepts")]
    ReplyTooLong { length: usize },
    #[error("too much memory in use by replies")]
    OverBudget,
    #[error("reply not taken in time")]
    Unread,
    #[error("reply not sent: {0}")]
    Write(io::Error),
    #[error("native connection ended: {0}")]
    Native(CloseReason),
}

async fn connection(shared: Arc<Shared>, id: u64, mut stream: TcpStream, peer: SocketAddr) {
    // Made here and not before the spawn: a task that is dropped unpolled must not look into the locked table.
    let entry = Entry { shared, id };
    let shared = &*entry.shared;
    match exchange(shared, id, &mut stream, peer).await {
        // The reply is sent and our side closed; the peer may close whenever it likes, within bounds.
        Ok(()) if shared.table.answered(id) => {
            timeout(shared.limits.linger, net::drain(&stream, DRAINED)).await.ok();
        }
        Ok(()) => {}
        Err(reason @ Unanswered::ReplyTooLong { .. }) => {
            tracing::warn!(target: "te::rpc", %peer, %reason, "connection closed without a reply");
        }
        Err(reason) => {
            tracing::debug!(target: "te::rpc", %peer, %reason, "connection closed without a reply")
        }
    }
    // The socket closes before the table forgets it.
    drop(stream);
}

/// Reads a request, has it answered and sends the reply, all until one deadline that the first byte sets.
async fn exchange(
    shared: &Shared,
    id: u64,
    stream: &mut TcpStream,
    peer: SocketAddr,
) -> Result<(), Unanswered> {
    let limits = &shared.limits;
    stream.set_nodelay(true).ok();
    let mut decoder = FrameDecoder::new(limits.max_frame_strangers);
    if shared.handlers.native.is_some() {
        decoder = decoder.recognising_native();
    }
    let first = timeout(limits.silent, net::read_first(stream, &mut decoder)).await;
    let first = first.map_err(|_| Unanswered::Silent)??;

    let deadline = after(Instant::now(), limits.request).into();
    let mut charge = Charge::new(&shared.budget);
    let incoming = match first {
        Some(incoming) => incoming,
        None => timeout_at(deadline, net::read_frame(stream, &mut decoder, |bytes| charge.raise(bytes)))
            .await
            .map_err(|_| Unanswered::Slow)??,
    };
    let frame = match (incoming, &shared.handlers.native) {
        (Incoming::Frame(frame), _) => frame,
        (Incoming::Native(first), Some(handler)) => {
            return Err(Unanswered::Native(native(shared, handler, id, stream, peer, &first).await));
        }
        (Incoming::Native(_), None) => return Err(Unanswered::Refused),
    };
    if !shared.table.begin(id) {
        return Err(Unanswered::Evicted);
    }
    let call = Call { peer, kind: frame.kind, legacy: frame.legacy, body: checked(frame.body).await? };
    let reply =
        timeout_at(deadline, shared.handlers.answer(call)).await.map_err(|_| Unanswered::Unhandled)?;
    let Reply::Body(body) = reply else { return Err(Unanswered::Refused) };
    if body.len() >= MAX_FRAME {
        return Err(Unanswered::ReplyTooLong { length: body.len() });
    }
    // The request is gone by now; what counts is the reply.
    charge = Charge::new(&shared.budget);
    if !charge.raise(body.capacity()) {
        return Err(Unanswered::OverBudget);
    }
    if !shared.table.sending(id) {
        return Err(Unanswered::Evicted);
    }

    let send = async {
        net::write_frame(stream, frame.kind, frame.legacy, &body).await?;
        stream.shutdown().await
    };
    timeout_at(deadline, send).await.map_err(|_| Unanswered::Unread)?.map_err(Unanswered::Write)
}

/// Runs a native connection to its end.
async fn native(
    shared: &Shared,
    handler: &Arc<dyn NativeHandler>,
    id: u64,
    stream: &mut TcpStream,
    address: SocketAddr,
    first: &[u8],
) -> CloseReason {
    let limits = shared.limits.native.clone();
    let machine = ControlMachine::accept(handler.identity(), limits.clone(), Instant::now());
    let session = Session {
        link: Arc::new(Link::new(machine, &[], limits.clone(), None)),
        handler: Arc::clone(handler),
        address,
        limits,
        charge: Some(Charge::new(&shared.budget)),
        closing: shared.closing.subscribe(),
        admit: &|| shared.table.native(id),
    };
    session.run(stream, first).await
}

async fn checked(body: Vec<u8>) -> Result<Vec<u8>, Unanswered> {
    let check = |body: Vec<u8>| check_json(&body).map(|()| body).map_err(Unanswered::Body);
    if body.len() <= CHECKED_INLINE {
        return check(body);
    }
    let checked = tokio::task::spawn_blocking(move || check(body)).await;
    checked.unwrap_or_else(|error| Err(Unanswered::Read(ReadError::Io(io::Error::other(error)))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_between_failing_accepts_double_up_to_a_second_and_start_over() {
        let mut backoff = Backoff::default();
        let pauses: Vec<u128> = (0..9).map(|_| backoff.next().as_millis()).collect();
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        backoff.reset();
        assert_eq!(backoff.next(), Backoff::FIRST);
    }
}
