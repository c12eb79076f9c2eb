//! Where a peer's data port is, and connecting to it in bounded time.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use te_segment::{Endpoint, Host, SegmentDescriptor};
use te_transport::{FailureKind, Threads};

use crate::congestion;
use crate::io::{TICK, Wire, poll};
use crate::server::{scoped, with_port};

/// Finds the host of a peer's data port: the one published beside the port, else that of its control endpoint, else
/// that of a peer-to-peer name (wire spec, data host).
pub(crate) fn data_endpoint(peer: &SegmentDescriptor) -> Result<Endpoint, String> {
    let Some(service) = peer.tcp() else {
        return Err(format!("{} advertises no tcp data port", peer.name()));
    };
    let host = match (&service.host, peer.control()) {
        (Some(host), _) => host.clone(),
        (None, Some(control)) => control.host().clone(),
        (None, None) => match peer.name().as_str().parse::<Endpoint>() {
            Ok(name) => name.host().clone(),
            Err(_) => return Err(format!("{} advertises a tcp data port but no host for it", peer.name())),
        },
    };
    if host.is_unspecified() {
        return Err(format!("{} advertises the wildcard address as its data host", peer.name()));
    }
    Endpoint::new(host, service.port.get()).map_err(|error| error.to_string())
}

/// Why no connection came about.
#[derive(Debug)]
pub(crate) enum ConnectError {
    /// Every address failed; the last one with its error, or the resolver's words.
    Failed(String),
    /// The time was over, or the caller said stop, before that was known.
    Stopped,
    /// The peer answered, and another connection would be answered the same.
    Refused(FailureKind, String),
}

/// Time and threads for connecting.
pub(crate) struct Dialer<'a> {
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) threads: &'a Arc<Threads>,
    pub(crate) keepalive: Duration,
    /// Until when to try.
    pub(crate) until: Instant,
    /// Looked at once a tick.
    pub(crate) stop: &'a dyn Fn() -> bool,
}

impl Dialer<'_> {
    /// Resolves the host. Addresses need no thread and no time.
    pub(crate) fn resolve(&self) -> Result<Arc<[SocketAddr]>, ConnectError> {
        let (host, port) = (self.endpoint.host(), self.endpoint.port());
        if let Some(address) = self.endpoint.socket_addr() {
            return Ok(Arc::from([address]));
        }
        let failed =
            |error: io::Error| ConnectError::Failed(format!("cannot resolve {}: {error}", host.bare()));
        match host {
            Host::V6 { addr, scope: Some(scope) } => {
                Ok(Arc::from([with_port(scoped(*addr, scope).map_err(failed)?, port)]))
            }
            _ => self.ask_resolver(host.bare(), port),
        }
    }

    /// The system's resolver takes as long as it likes, so it gets a thread of its own.
    fn ask_resolver(&self, name: String, port: u16) -> Result<Arc<[SocketAddr]>, ConnectError> {
        let (answer, answered) = mpsc::channel();
        let asked = name.clone();
        let started = self.threads.spawn("resolve", move || {
            // Nobody may be waiting any more.
            let _ = answer.send((asked.as_str(), port).to_socket_addrs().map(Vec::from_iter));
        });
        let failed = |error: io::Error| ConnectError::Failed(format!("cannot resolve {name}: {error}"));
        started.map_err(failed)?;
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            match answered.recv_timeout(left.min(TICK)) {
                Ok(Ok(addresses)) if addresses.is_empty() => {
                    return Err(ConnectError::Failed(format!("{name} has no address")));
                }
                Ok(Ok(addresses)) => return Ok(addresses.into()),
                Ok(Err(error)) => return Err(failed(error)),
                Err(_) if (self.stop)() => return Err(ConnectError::Stopped),
                Err(_) if left.is_zero() => {
                    return Err(ConnectError::Failed(format!(
                        "no answer of the resolver about {name} in time"
                    )));
                }
                Err(_) => {}
            }
        }
    }

    /// Connects to the first address that answers.
    pub(crate) fn connect(&self, addresses: &[SocketAddr]) -> Result<Wire, ConnectError> {
        let mut last = None;
        for (index, address) in addresses.iter().enumerate() {
            let left = self.until.saturating_duration_since(Instant::now());
            // The addresses still to try share what is left, so that a silent one does not use up all of it.
            let share = left / u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
            match self.connect_to(*address, Instant::now() + share) {
                Ok(wire) => return Ok(wire),
                Err(None) => return Err(ConnectError::Stopped),
                Err(Some(error)) => last = Some(format!("cannot connect to data port {address}: {error}")),
            }
        }
        Err(ConnectError::Failed(last.unwrap_or_else(|| format!("{} has no address", self.endpoint))))
    }

    /// `Err(None)` when stopped.
    fn connect_to(&self, address: SocketAddr, until: Instant) -> Result<Wire, Option<io::Error>> {
        let start = Instant::now();
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        congestion::before_connect(&socket, address);
        socket.set_nonblocking(true)?;
        match socket.connect(&address.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => loop {
                let left = until.saturating_duration_since(Instant::now());
                if poll(std::os::fd::AsFd::as_fd(&socket), PollFlags::OUT, left.min(TICK))? {
                    if let Some(error) = socket.take_error()? {
                        return Err(Some(error));
                    }
                    break;
                }
                if (self.stop)() {
                    return Err(None);
                }
                if left <= TICK && Instant::now() >= until {
                    let waited = start.elapsed().as_millis();
                    let error = format!("no answer within {waited} ms");
                    return Err(Some(io::Error::new(io::ErrorKind::TimedOut, error)));
                }
            },
            Err(error) => return Err(Some(error)),
        }
        // A connection to a free local port can meet itself.
        let own = SockRef::from(&socket).local_addr()?.as_socket();
        if own == Some(address) {
            return Err(Some(io::Error::new(io::ErrorKind::ConnectionRefused, "nobody listens there")));
        }
        Ok(Wire::new(socket, self.keepalive)?)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn dial(endpoint: &str, time: Duration, stop: &dyn Fn() -> bool) -> Result<Wire, ConnectError> {
        let endpoint: Endpoint = endpoint.parse().unwrap();
        let threads = Arc::new(Threads::new("te-tcp"));
        let until = Instant::now() + time;
        let keepalive = Duration::from_secs(30);
        let dialer = Dialer { endpoint: &endpoint, threads: &threads, keepalive, until, stop };
        dialer.connect(&dialer.resolve()?)
    }

    #[test]
    fn name_is_resolved() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(dial(&format!("localhost:{port}"), Duration::from_secs(5), &|| false).is_ok());
    }

    /// META-21: the address tried is named, and that it is the data port.
    #[test]
    fn refused_connection_names_the_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let Err(ConnectError::Failed(text)) = dial(&address.to_string(), Duration::from_secs(5), &|| false)
        else {
            panic!("connected to nobody")
        };
        assert!(text.contains(&format!("data port {address}")), "{text}");
    }

    #[test]
    fn connecting_to_a_full_backlog_ends_in_time() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        socket.bind(&any.into()).unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap().to_string();
        let mut held = Vec::new();
        let start = Instant::now();
        let error = loop {
            match dial(&address, Duration::from_millis(150), &|| false) {
                Ok(wire) => held.push(wire),
                Err(error) => break error,
            }
        };
        assert!(matches!(&error, ConnectError::Failed(text) if text.contains("no answer")), "{error:?}");
        assert!(start.elapsed() < Duration::from_secs(5));
    }
}
