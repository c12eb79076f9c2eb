//! Ports for tests.
//!
//! Below the range from which the system takes the local ports of outgoing connections (32768 and up): a server that a
//! test stops and starts again must find its port free, whatever other tests connect to meanwhile.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::net::{Ipv4Addr, TcpListener};

const FIRST: u16 = 22_000;
const COUNT: u16 = 10_000;

/// A TCP port of the loopback interface that was free a moment ago.
///
/// # Errors
///
/// When none is.
pub fn free_port() -> io::Result<u16> {
    bind()?.local_addr().map(|address| address.port())
}

/// `count` different TCP ports of the loopback interface that were free a moment ago.
///
/// # Errors
///
/// When there are not so many.
pub fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    // All are bound at once, so that none is given twice.
    let listeners: Vec<_> = (0..count).map(|_| bind()).collect::<io::Result<_>>()?;
    listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

/// The search starts at random: tests that run at the same time rarely ask for the same port.
fn bind() -> io::Result<TcpListener> {
    let start = RandomState::new().hash_one(()) % u64::from(COUNT);
    let ports = (0..u64::from(COUNT)).map(|step| (start + step) % u64::from(COUNT));
    ports
        .filter_map(|offset| FIRST.checked_add(u16::try_from(offset).ok()?))
        .find_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::AddrInUse, "no free port for a test"))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn free_port_can_be_bound() {
        let port = free_port().unwrap();
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    }

    #[test]
    fn free_ports_differ() {
        let ports = free_ports(32).unwrap();
        assert_eq!(ports.iter().collect::<HashSet<_>>().len(), 32);
    }
}
