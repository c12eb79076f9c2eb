//! Real metadata servers for tests: on free ports of the loopback interface, with their data in a folder of their own,
//! gone with the test.

mod etcd;
mod process;
mod redis;

pub use etcd::EtcdServer;
pub use redis::RedisServer;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use process::ServerProcess;

/// How long a server may take to start.
const START: Duration = Duration::from_secs(30);

/// Waits until the server takes connections.
fn wait(process: &ServerProcess, program: &str, port: u16) -> io::Result<()> {
    let until = Instant::now() + START;
    while TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).is_err() {
        if !process.runs() {
            return Err(io::Error::other(format!("{program} ended while it started")));
        }
        if Instant::now() > until {
            return Err(io::Error::other(format!("{program} did not start within {START:?}")));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Connections of this host to a port of the loopback interface, by the kernel's table.
fn connections(port: u16) -> io::Result<usize> {
    let table = std::fs::read_to_string("/proc/net/tcp")?;
    let remote = format!("0100007F:{port:04X}");
    let established = |line: &&str| {
        let mut words = line.split_whitespace().skip(2);
        words.next() == Some(&remote) && words.next() == Some("01")
    };
    Ok(table.lines().filter(established).count())
}

/// A server that was stopped, or never ran.
fn stopped(program: &str) -> io::Error {
    io::Error::other(format!("{program} does not run"))
}
