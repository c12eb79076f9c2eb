//! Where to listen.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    io,
    net::SocketAddr,
    sync::Arc,
};

use socket2::{Domain, Protocol, Socket, Type};
use te_segment::{Endpoint, Host};
use tokio::{net::TcpListener, runtime::Handle};

use crate::{
    error::RpcError,
    handler::Handlers,
    limits::RpcLimits,
    net,
    server::{RpcServer, Shared},
};

const BACKLOG: i32 = 1024;

/// How to choose the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortChoice {
    /// This port; 0 lets the operating system choose any.
    Fixed(u16),
    /// A free port of a range, both ends included. The search starts at random, so that two lives of one process
    /// rarely have the same port.
    Free {
        /// First port.
        min: u16,
        /// Last port.
        max: u16,
    },
}

impl Default for PortChoice {
    /// The range of the reference engine, 15000 to 17000.
    fn default() -> Self {
        Self::Free { min: 15000, max: 17000 }
    }
}

/// Where to listen. What is advertised to peers is another matter and not known here, but by default both are the
/// same ([`Bind::advertised`]); all interfaces are bound only for a `host` that says so, `0.0.0.0` or `::`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bind {
    /// The address of a local interface, or a name that resolves to one; of its addresses the first that can be bound
    /// is, IPv4 before IPv6. `::` takes IPv4 connections as well.
    pub host: Host,
    /// The port.
    pub port: PortChoice,
}

impl Bind {
    /// Listens exactly where peers are told to connect (SEC-04).
    pub fn advertised(endpoint: &Endpoint) -> Self {
        Self { host: endpoint.host().clone(), port: PortChoice::Fixed(endpoint.port()) }
    }
}

/// A bound socket that peers can already connect to; [`serve`](Self::serve) makes it answer.
#[derive(Debug)]
pub struct RpcListener {
    listener: TcpListener,
    local: SocketAddr,
    runtime: Handle,
}

impl RpcListener {
    /// Binds and listens. Must run inside a tokio runtime with I/O and time, which then runs the server.
    pub async fn bind(bind: Bind) -> Result<Self, RpcError> {
        let runtime = Handle::try_current().map_err(|_| RpcError::NoRuntime)?;
        let port = match bind.port {
            PortChoice::Fixed(port) => port,
            PortChoice::Free { min, max } if min == 0 || min > max => {
                return Err(RpcError::PortRange { min, max });
            }
            PortChoice::Free { .. } => 0,
        };
        let failed = |source| RpcError::Bind { host: bind.host.clone(), port, source };
        let mut addresses = net::resolve(&bind.host, port).await.map_err(failed)?;
        if !bind.host.is_unspecified() {
            // A name never stands for all interfaces, whatever the resolver says.
            addresses.retain(|address| !address.ip().to_canonical().is_unspecified());
        }
        addresses.sort_by_key(SocketAddr::is_ipv6);
        let mut error = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in addresses {
            let listener = match bind.port {
                PortChoice::Fixed(_) => listen(address, true),
                PortChoice::Free { min, max } => listen_in(address, min, max),
            };
            match listener.and_then(|listener| Ok((listener.local_addr()?, listener))) {
                Ok((local, listener)) => return Ok(Self { listener, local, runtime }),
                Err(failure) => error = failure,
            }
        }
        match bind.port {
            PortChoice::Free { min, max } if error.kind() == io::ErrorKind::AddrInUse => {
                Err(RpcError::NoFreePort { host: bind.host, min, max })
            }
            _ => Err(failed(error)),
        }
    }

    /// The bound address, with the chosen port.
    pub fn endpoint(&self) -> SocketAddr {
        self.local
    }

    /// The chosen port.
    pub fn port(&self) -> u16 {
        self.local.port()
    }

    /// Starts answering.
    pub fn serve(self, handlers: Handlers, limits: RpcLimits) -> RpcServer {
        let shared = Arc::new(Shared::new(handlers, limits));
        RpcServer::start(self.listener, self.local, &self.runtime, shared)
    }
}

fn listen_in(address: SocketAddr, min: u16, max: u16) -> io::Result<TcpListener> {
    let ports = u32::from(max - min) + 1;
    let start = RandomState::new().build_hasher().finish() as u32 % ports;
    for step in 0..ports {
        let offset = (start + step) % ports;
        let Ok(port) = u16::try_from(u32::from(min) + offset) else { continue };
        match listen(SocketAddr::new(address.ip(), port), false) {
            // A port may also be reserved, or closed to this user.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied) => {}
            other => return other,
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// `reuse` lets a fixed port be bound again while connections of an earlier life fade out; it does not let two
/// listeners share a port.
fn listen(address: SocketAddr, reuse: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_reuse_address(reuse)?;
    socket.bind(&address.into())?;
    // Accepted connections inherit it. Without it what is left of them would keep the port from the next life, which
    // wants this very one.
    socket.set_reuse_address(true)?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    TcpListener::from_std(socket.into())
}
