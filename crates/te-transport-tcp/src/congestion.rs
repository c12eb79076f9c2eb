//! Congestion control of connections that stay on this host.
//!
//! Algorithms of the BBR family pace what they send with a timer for each connection. Between processes of one host, where
//! no link can be congested, the pace is a limit without a purpose: it costs more than half of the throughput. Such
//! connections use an algorithm without a pace; all others keep what the system has chosen.

use std::net::{SocketAddr, UdpSocket};

use socket2::Socket;

/// Every Linux kernel has it, and every process may use it.
const UNPACED: &[u8] = b"reno";
const PACED_FAMILY: &[u8] = b"bbr";

/// What the system chose for a socket whose algorithm was changed.
#[derive(Clone, Debug)]
pub(crate) struct Chosen(Vec<u8>);

/// To be called before the socket connects: a pace once set stays with the connection.
pub(crate) fn before_connect(socket: &Socket, to: SocketAddr) {
    if is_paced(socket) && is_this_host(to) {
        unpace(socket);
    }
}

/// For a listener, from which accepted connections have their algorithm. Returns the one that [`accepted`] gives back to
/// connections from other hosts.
pub(crate) fn listening(socket: &Socket) -> Option<Chosen> {
    let chosen = socket.tcp_congestion().ok().filter(|name| name.starts_with(PACED_FAMILY))?;
    unpace(socket).then_some(Chosen(chosen))
}

/// Gives a connection from another host the system's algorithm back.
pub(crate) fn accepted(socket: &Socket, chosen: Option<&Chosen>) {
    let Some(Chosen(name)) = chosen else { return };
    let address = |address: std::io::Result<socket2::SockAddr>| Some(address.ok()?.as_socket()?.ip());
    if address(socket.peer_addr()) != address(socket.local_addr()) {
        // Without it the connection works as well, with the other algorithm.
        let _ = socket.set_tcp_congestion(name);
    }
}

fn is_paced(socket: &Socket) -> bool {
    socket.tcp_congestion().is_ok_and(|name| name.starts_with(PACED_FAMILY))
}

fn unpace(socket: &Socket) -> bool {
    socket.set_tcp_congestion(UNPACED).is_ok()
}

/// Whether packets to this address do not leave the host: the route to it begins at the address itself. Nothing is sent.
fn is_this_host(to: SocketAddr) -> bool {
    if to.ip().is_loopback() {
        return true;
    }
    let any: SocketAddr = if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    let source = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(to)?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == to.ip())
}

#[cfg(test)]
mod tests {
    use socket2::{Domain, Type};

    use super::*;

    fn socket() -> Socket {
        Socket::new(Domain::IPV4, Type::STREAM, None).unwrap()
    }

    #[test]
    fn both_ends_of_a_connection_within_the_host_are_without_a_pace() {
        let (client, listener) = (socket(), socket());
        let chosen = listening(&listener);
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        listener.listen(1).unwrap();
        let to = listener.local_addr().unwrap().as_socket().unwrap();
        before_connect(&client, to);
        client.connect(&to.into()).unwrap();
        let (server, _) = listener.accept().unwrap();
        accepted(&server, chosen.as_ref());
        assert!(!is_paced(&client) && !is_paced(&server));
    }

    #[test]
    fn other_hosts_get_the_systems_algorithm() {
        let listener = socket();
        let chosen = listening(&listener);
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        listener.listen(1).unwrap();
        let client = socket();
        // Another address of the loopback network stands for another host.
        client.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into()).unwrap();
        client.connect(&listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        accepted(&server, chosen.as_ref());
        assert_eq!(is_paced(&server), chosen.is_some());
    }

    #[test]
    fn documentation_addresses_are_other_hosts() {
        assert!(is_this_host("127.0.0.1:9".parse().unwrap()));
        assert!(is_this_host("[::1]:9".parse().unwrap()));
        assert!(!is_this_host("192.0.2.1:9".parse().unwrap()));
        assert!(!is_this_host("[2001:db8::1]:9".parse().unwrap()));
    }
}
