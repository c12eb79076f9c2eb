//! Finding an address and a port to listen on.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use socket2::{Domain, Protocol, Socket, Type};
use te_segment::Host;
use te_transport::PortRange;

/// Listens on `host`, on the first free port of `ports` in the order that starts at `seed`.
///
/// Address reuse stays off: a port on which connections of an earlier life linger is left alone, so that the data
/// port of this life is a fresh one.
pub(crate) fn listen(host: &Host, ports: PortRange, seed: u64) -> Result<(Socket, SocketAddr), String> {
    if ports.min == 0 || ports.min > ports.max {
        return Err(format!("no port range: {} to {}", ports.min, ports.max));
    }
    let addresses = addresses(host).map_err(|error| format!("cannot resolve {}: {error}", host.bare()))?;
    let count = u64::from(ports.max - ports.min) + 1;
    let mut last = None;
    for address in addresses {
        for step in 0..count {
            // Below 65536 by construction.
            let port = ports.min + u16::try_from((seed + step) % count).unwrap_or(0);
            let address = with_port(address, port);
            match listen_on(address) {
                Ok(socket) => return Ok((socket, address)),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = Some((address, error)),
                Err(error) => {
                    last = Some((address, error));
                    break;
                }
            }
        }
    }
    Err(match last {
        Some((_, error)) if error.kind() == io::ErrorKind::AddrInUse => {
            format!("no free port from {} to {} on {}", ports.min, ports.max, host.bare())
        }
        Some((address, error)) => format!("cannot listen on {address}: {error}"),
        None => format!("{} has no address", host.bare()),
    })
}

fn listen_on(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        // The wildcard serves IPv4 as well, as the reference's does; of a real address nothing changes.
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.bind(&address.into())?;
    socket.listen(4096)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// The addresses of `host` with port 0.
fn addresses(host: &Host) -> io::Result<Vec<SocketAddr>> {
    match host {
        Host::V4(addr) => Ok(vec![SocketAddr::from((*addr, 0))]),
        Host::V6 { addr, scope: None } => Ok(vec![SocketAddr::from((*addr, 0))]),
        Host::V6 { addr, scope: Some(scope) } => Ok(vec![scoped(*addr, scope)?]),
        Host::Name(name) => Ok((name.as_str(), 0).to_socket_addrs()?.collect()),
    }
}

/// A scoped address; the scope is an interface's name or number.
pub(crate) fn scoped(addr: Ipv6Addr, scope: &str) -> io::Result<SocketAddr> {
    let index = match scope.parse() {
        Ok(index) => index,
        Err(_) => {
            let flags = SocketFlags::CLOEXEC;
            let probe = rustix::net::socket_with(AddressFamily::INET6, SocketType::DGRAM, flags, None)?;
            rustix::net::netdevice::name_to_index(&probe, scope)?
        }
    };
    Ok(SocketAddr::V6(SocketAddrV6::new(addr, 0, 0, index)))
}

/// The same address with another port.
pub(crate) fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loopback() -> Host {
        "127.0.0.1".parse().unwrap()
    }

    #[test]
    fn port_is_within_the_range() {
        let (_socket, address) =
            listen(&loopback(), PortRange { min: 21_000, max: 21_500 }, u64::MAX / 3).unwrap();
        assert!((21_000..=21_500).contains(&address.port()));
    }

    #[test]
    fn taken_port_is_passed_over_and_the_last_one_is_an_error() {
        let (first, taken) = listen(&loopback(), PortRange { min: 21_600, max: 21_900 }, 7).unwrap();
        let only = PortRange { min: taken.port(), max: taken.port() };
        let error = listen(&loopback(), only, 0).unwrap_err();
        assert!(error.starts_with("no free port from"), "{error}");
        drop(first);
        assert!(listen(&loopback(), only, 0).is_ok());
    }

    #[test]
    fn foreign_address_is_named() {
        let host: Host = "192.0.2.1".parse().unwrap();
        let error = listen(&host, PortRange::default(), 0).unwrap_err();
        assert!(error.contains("192.0.2.1"), "{error}");
    }

    #[test]
    fn scope_by_name_becomes_a_number() {
        let address = scoped(Ipv6Addr::LOCALHOST, "lo").unwrap();
        assert!(matches!(address, SocketAddr::V6(v6) if v6.scope_id() > 0));
    }
}
