//! Whole frames over a socket, and names to addresses.
//!
//! Everything is sent with plain `send`, which the standard library calls with `MSG_NOSIGNAL`. Vectored writes are
//! not used: they end in `writev`, which cannot suppress the signal, and a peer that closes early would kill a host
//! process that did not ignore `SIGPIPE`.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
};

use te_segment::Host;
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::frame::{self, Frame, FrameDecoder, FrameKind, FrameReject, Progress};

/// Bytes per read. The buffer lives on the stack between two waits only, so an idle connection holds none.
const CHUNK: usize = 16 << 10;
/// Bodies up to this many bytes are sent together with their head.
const COALESCED: usize = 16 << 10;

/// Why no whole frame was read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("{0}")]
    Io(io::Error),
    #[error("closed before the frame was whole")]
    Closed,
    #[error(transparent)]
    Reject(FrameReject),
    #[error("too much memory in use by unfinished requests")]
    OverBudget,
}

/// What a connection brought.
#[derive(Debug)]
pub(crate) enum Incoming {
    Frame(Frame),
    /// A native connection, with the bytes that came behind its preamble.
    Native(Vec<u8>),
}

/// Waits for the first byte; gives the frame if it comes at once. A socket can be ready without having any.
pub(crate) async fn read_first(
    stream: &TcpStream,
    decoder: &mut FrameDecoder,
) -> Result<Option<Incoming>, ReadError> {
    loop {
        stream.readable().await.map_err(ReadError::Io)?;
        let incoming = read_available(stream, decoder)?;
        if incoming.is_some() || decoder.has_started() {
            return Ok(incoming);
        }
    }
}

/// Reads one frame. `charge` is told how much memory the body holds and may end the read by saying no.
pub(crate) async fn read_frame(
    stream: &TcpStream,
    decoder: &mut FrameDecoder,
    mut charge: impl FnMut(usize) -> bool,
) -> Result<Incoming, ReadError> {
    loop {
        if !charge(decoder.allocated()) {
            return Err(ReadError::OverBudget);
        }
        stream.readable().await.map_err(ReadError::Io)?;
        if let Some(incoming) = read_available(stream, decoder)? {
            return Ok(incoming);
        }
    }
}

fn read_available(stream: &TcpStream, decoder: &mut FrameDecoder) -> Result<Option<Incoming>, ReadError> {
    let mut chunk = [0; CHUNK];
    match stream.try_read(&mut chunk) {
        Ok(0) => Err(ReadError::Closed),
        Ok(read) => match decoder.feed(&chunk[..read]).map_err(ReadError::Reject)? {
            Progress::NeedMore => Ok(None),
            Progress::Frame { frame, .. } => Ok(Some(Incoming::Frame(frame))),
            Progress::Native { consumed } => Ok(Some(Incoming::Native(chunk[consumed..read].to_vec()))),
        },
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(ReadError::Io(error)),
    }
}

/// Sends one frame.
pub(crate) async fn write_frame(
    stream: &mut TcpStream,
    kind: FrameKind,
    legacy: bool,
    body: &[u8],
) -> io::Result<()> {
    if body.len() <= COALESCED {
        return stream.write_all(&frame::encode(kind, legacy, body)).await;
    }
    let (head, len) = frame::head(kind, legacy, body.len());
    stream.write_all(&head[..len]).await?;
    stream.write_all(body).await
}

/// Reads and drops what still comes until the peer closes, at most `limit` bytes.
pub(crate) async fn drain(stream: &TcpStream, mut limit: usize) {
    let mut chunk = [0; 512];
    while stream.readable().await.is_ok() {
        match stream.try_read(&mut chunk) {
            Ok(0) => return,
            Ok(read) if read >= limit => return,
            Ok(read) => limit -= read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// The addresses of `host`, in the order of the resolver. Never empty.
pub(crate) async fn resolve(host: &Host, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Host::V4(_) | Host::V6 { scope: None, .. } = host {
        return host.ip().map(|ip| vec![SocketAddr::new(ip, port)]).ok_or_else(no_address);
    }
    // Scoped addresses take this way too: the resolver knows the numbers of interface names.
    let host = host.bare();
    let lookup = move || (host.as_str(), port).to_socket_addrs().map(Vec::from_iter);
    let addresses: Vec<SocketAddr> =
        tokio::task::spawn_blocking(lookup).await.map_err(io::Error::other)??;
    if addresses.is_empty() { Err(no_address()) } else { Ok(addresses) }
}

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the name has no address")
}
