//! Drives one native connection over its socket, in either role.

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    sync::watch,
    task::{JoinError, JoinSet},
    time::{sleep_until, timeout},
};

use super::{
    close::{CloseReason, END_OF_LIFE},
    codec::ControlDecoder,
    frame::{PeerId, RefuseReason, RequestId},
    handler::NativeHandler,
    limits::NativeLimits,
    peer::{Link, NativePeer},
    request::{Answer, Request},
};
use crate::{client::after, net, table::Charge};

/// Bytes per read. The buffer lives on the stack between two waits only.
const CHUNK: usize = 16 << 10;
/// Bytes that are read and dropped while waiting for the peer to close.
const DRAINED: usize = 64 << 10;

type Tasks = JoinSet<(RequestId, Option<Answer>)>;

/// What a connection needs besides its socket.
pub(crate) struct Session<'a> {
    pub(crate) link: Arc<Link>,
    pub(crate) handler: Arc<dyn NativeHandler>,
    pub(crate) address: SocketAddr,
    pub(crate) limits: NativeLimits,
    /// Pays for the memory of the connection.
    pub(crate) charge: Option<Charge<'a>>,
    /// Turns true, or loses its sender, when the connection should end in good order.
    pub(crate) closing: watch::Receiver<bool>,
    /// Whether there is a place for a peer that opened this connection.
    pub(crate) admit: &'a (dyn Fn() -> bool + Sync),
}

impl Session<'_> {
    /// Runs the connection to its end. `first` are bytes that were read already.
    pub(crate) async fn run(mut self, stream: &mut TcpStream, first: &[u8]) -> CloseReason {
        let mut ending = *self.closing.borrow();
        let mut decoder = ControlDecoder::new();
        decoder.feed(first);
        let mut tasks = Tasks::new();
        let mut end = End { link: Arc::clone(&self.link), handler: Arc::clone(&self.handler), peer: None };
        loop {
            self.take_frames(&mut decoder);
            let step = self.link.step(Instant::now());
            if let Some(id) = step.opened {
                let peer =
                    NativePeer { link: Arc::clone(&self.link), id: Arc::new(id), address: self.address };
                self.handler.opened(&peer);
                end.peer = Some(peer);
            }
            if let Some(reason) = step.closed {
                end.now();
                tasks.abort_all();
                self.last_words(stream, &reason).await;
                return reason;
            }
            if let Some(peer) = &end.peer {
                for (id, request) in step.asked {
                    self.serve(&mut tasks, peer, id, request);
                }
            }
            if let Some(peer) = step.knock {
                let verdict = self.welcome(peer).await;
                self.link.decide(verdict);
                continue;
            }
            let memory = decoder.allocated() + step.queued;
            if self.charge.as_mut().is_some_and(|charge| !charge.set(memory)) {
                self.link.end(CloseReason::OverBudget);
                continue;
            }
            if ending && step.serving == 0 {
                self.link.close(END_OF_LIFE);
                continue;
            }
            let waiting = Waiting { reads: step.reads, writes: step.writes, wake_at: step.wake_at };
            self.wait(waiting, stream, &mut decoder, &mut tasks, &mut ending).await;
        }
    }

    async fn wait(
        &mut self,
        waiting: Waiting,
        stream: &TcpStream,
        decoder: &mut ControlDecoder,
        tasks: &mut Tasks,
        ending: &mut bool,
    ) {
        let wake_at = waiting.wake_at.unwrap_or_else(|| after(Instant::now(), Duration::from_secs(60)));
        let result = tokio::select! {
            ready = stream.readable(), if waiting.reads => ready.and_then(|()| read(stream, decoder)),
            ready = stream.writable(), if waiting.writes => ready.and_then(|()| self.link.write(stream)),
            () = self.link.wake.notified() => self.link.write(stream),
            Some(ended) = tasks.join_next() => {
                self.served(ended);
                Ok(())
            }
            _ = self.closing.changed(), if !*ending => {
                *ending = true;
                Ok(())
            }
            () = sleep_until(wake_at.into()) => Ok(()),
        };
        if let Err(error) = result {
            // A peer that closed while we sent may have said why.
            read(stream, decoder).ok();
            self.take_frames(decoder);
            let error = Some(error.kind()).filter(|kind| *kind != io::ErrorKind::UnexpectedEof);
            self.link.end(CloseReason::Lost { error });
        }
    }

    /// Hands whole frames to the machine, as long as it wants any.
    fn take_frames(&self, decoder: &mut ControlDecoder) {
        let mut state = self.link.lock();
        while state.machine.wants_input() {
            if state.machine.peer().is_some() {
                decoder.open();
            }
            match decoder.next_frame() {
                Ok(Some(frame)) => state.machine.receive(Instant::now(), frame),
                Ok(None) => return,
                Err(reject) => return state.machine.reject(reject),
            }
        }
    }

    async fn welcome(&self, peer: PeerId) -> Result<(), RefuseReason> {
        if *self.closing.borrow() {
            return Err(RefuseReason::ShuttingDown);
        }
        if !(self.admit)() {
            return Err(RefuseReason::Busy);
        }
        let verdict = Arc::clone(&self.handler).welcome(peer);
        timeout(self.limits.handshake, verdict).await.unwrap_or(Err(RefuseReason::Busy))
    }

    fn serve(&self, tasks: &mut Tasks, peer: &NativePeer, id: RequestId, request: Request) {
        let answer = Arc::clone(&self.handler).handle(peer.clone(), request);
        let limit = self.limits.request;
        tasks.spawn(async move { (id, timeout(limit, answer).await.ok()) });
    }

    fn served(&self, ended: Result<(RequestId, Option<Answer>), JoinError>) {
        match ended {
            Ok((id, Some(answer))) => self.link.answer(id, answer),
            Ok((_, None)) => self.link.close("a request was not answered in time"),
            Err(error) if error.is_panic() => {
                tracing::error!(target: "te::rpc", peer = %self.address, %error, "a request handler panicked");
                self.link.close("a request could not be answered");
            }
            Err(_) => {}
        }
    }

    /// Sends what is left, which explains the end, and lets the peer close.
    async fn last_words(&self, stream: &mut TcpStream, reason: &CloseReason) {
        if let CloseReason::Lost { .. } | CloseReason::NotReading | CloseReason::OverBudget = reason {
            return;
        }
        let send = async {
            while self.link.lock().queue.len() > 0 {
                stream.writable().await?;
                self.link.write(stream)?;
            }
            stream.shutdown().await?;
            net::drain(stream, DRAINED).await;
            Ok::<(), io::Error>(())
        };
        timeout(self.limits.linger, send).await.ok();
    }
}

/// What matters while waiting.
struct Waiting {
    reads: bool,
    writes: bool,
    wake_at: Option<Instant>,
}

fn read(stream: &TcpStream, decoder: &mut ControlDecoder) -> io::Result<()> {
    let mut chunk = [0; CHUNK];
    match stream.try_read(&mut chunk) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(read) => {
            decoder.feed(&chunk[..read]);
            Ok(())
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Tells everyone that the connection is over, once, however its task ends.
struct End {
    link: Arc<Link>,
    handler: Arc<dyn NativeHandler>,
    peer: Option<NativePeer>,
}

impl End {
    fn now(&mut self) {
        self.link.end(CloseReason::Lost { error: None });
        if let Some(peer) = self.peer.take() {
            self.handler.gone(&peer);
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.now();
    }
}
