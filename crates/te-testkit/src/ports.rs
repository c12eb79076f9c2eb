//! Ports for tests.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

/// A TCP port of the loopback interface that was free a moment ago.
///
/// # Errors
///
/// What the system says when it gives none.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// `count` different TCP ports of the loopback interface that were free a moment ago.
///
/// # Errors
///
/// What the system says when it gives none.
pub fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    // All are bound at once, so that none is given twice.
    let listeners: Vec<_> =
        (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<io::Result<_>>()?;
    listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
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
