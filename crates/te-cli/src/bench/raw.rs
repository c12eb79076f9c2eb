//! What plain sockets do with the same work: blocking calls, one connection a thread, the same blocks, the same number
//! of requests in flight and the same working set, in memory of the same kind. It is a yardstick and no protocol. Like ours its connections are without
//! a pace, which algorithms of the BBR family would set (`te-transport-tcp`, congestion control).
//!
//! A request is 17 bytes: direction, offset and length, little-endian. The payload of a write follows it and is
//! answered with one byte; a read is answered with its payload.

use std::io::{self, IoSlice, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;

use socket2::{Domain, SockRef, Socket, Type};
use te::{Host, Memory};

use crate::failure::{Failure, Result};
use crate::size::index;

const WRITE: u8 = 1;
const READ: u8 = 2;
const REQUEST: usize = 17;
/// Largest working set a stranger may ask for.
const LARGEST: u64 = 4 << 30;

/// Answers raw connections until the process ends.
pub(crate) struct RawServer {
    address: SocketAddr,
}

impl RawServer {
    pub(crate) fn start(host: &Host) -> Result<Self> {
        let failed = |error: io::Error| Failure::io("cannot start the raw server", &error);
        let host = host.ip().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let listener = TcpListener::bind((host, 0)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        unpace(SockRef::from(&listener)).map_err(failed)?;
        thread::spawn(move || {
            for connection in listener.incoming().map_while(io::Result::ok) {
                // A connection that ends, ends its thread; there is nobody to tell.
                thread::spawn(move || drop(serve(connection)));
            }
        });
        Ok(Self { address })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The first eight bytes of a connection are the size of its working set.
fn serve(mut connection: TcpStream) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let mut size = [0; 8];
    connection.read_exact(&mut size)?;
    let mut area = memory(index(u64::from_le_bytes(size).min(LARGEST)), 1)?;
    let mut request = [0; REQUEST];
    loop {
        connection.read_exact(&mut request)?;
        let number = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&request[at..at + 8]);
            index(u64::from_le_bytes(bytes))
        };
        let (offset, len) = (number(1), number(9));
        let outside = || io::Error::new(io::ErrorKind::InvalidData, "outside the working set");
        let end = offset.checked_add(len).ok_or_else(outside)?;
        let part = bytes(&mut area)?.get_mut(offset..end).ok_or_else(outside)?;
        match request[0] {
            WRITE => {
                connection.read_exact(part)?;
                connection.write_all(&[0])?;
            }
            READ => connection.write_all(part)?,
            _ => return Err(outside()),
        }
    }
}

/// One connection of one thread.
pub(crate) struct RawClient {
    connection: TcpStream,
    area: Memory,
}

impl RawClient {
    /// Connects, with a working set of `size` bytes at both ends.
    pub(crate) fn connect(address: SocketAddr, size: u64) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        unpace(SockRef::from(&socket))?;
        socket.connect(&address.into())?;
        let mut connection = TcpStream::from(socket);
        connection.set_nodelay(true)?;
        connection.write_all(&size.to_le_bytes())?;
        Ok(Self { connection, area: memory(index(size), 2)? })
    }

    /// `batch` requests of `block` bytes from `offset` on, all sent before the first answer is read.
    pub(crate) fn batch(&mut self, write: bool, offset: u64, block: u64, batch: u64) -> io::Result<()> {
        let Self { connection, area } = self;
        let area = bytes(area)?;
        for at in (0..batch).map(|i| offset + i * block) {
            let mut request = [0; REQUEST];
            request[0] = if write { WRITE } else { READ };
            request[1..9].copy_from_slice(&at.to_le_bytes());
            request[9..].copy_from_slice(&block.to_le_bytes());
            let payload: &[u8] = if write { &area[index(at)..index(at + block)] } else { &[] };
            let mut parts = [IoSlice::new(&request), IoSlice::new(payload)];
            write_all(connection, &mut parts)?;
        }
        if write {
            let mut answers = vec![0; index(batch)];
            return connection.read_exact(&mut answers);
        }
        connection.read_exact(&mut area[index(offset)..index(offset + block * batch)])
    }
}

/// Memory of the kind that the engine allocates, touched.
fn memory(len: usize, fill: u8) -> io::Result<Memory> {
    let mut memory = Memory::allocate(len).map_err(io::Error::other)?;
    bytes(&mut memory)?.fill(fill);
    Ok(memory)
}

/// All of it: nobody else has it.
fn bytes(memory: &mut Memory) -> io::Result<&mut [u8]> {
    memory.bytes_mut().ok_or_else(|| io::Error::other("the memory is shared"))
}

/// Before the socket connects or accepts: its connections have no pace.
fn unpace(socket: SockRef<'_>) -> io::Result<()> {
    if socket.tcp_congestion()?.starts_with(b"bbr") { socket.set_tcp_congestion(b"reno") } else { Ok(()) }
}

/// Writes every byte of every part.
fn write_all(connection: &mut TcpStream, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match connection.write_vectored(parts) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut parts, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let server = RawServer::start(&"127.0.0.1".parse().unwrap()).unwrap();
        let mut client = RawClient::connect(server.address(), 1 << 20).unwrap();
        client.batch(true, 4096, 4096, 16).unwrap();
        bytes(&mut client.area).unwrap().fill(9);
        client.batch(false, 0, 4096, 32).unwrap();
        let area = bytes(&mut client.area).unwrap();
        assert!(area[..4096].iter().all(|byte| *byte == 1));
        assert!(area[4096..17 * 4096].iter().all(|byte| *byte == 2));
        assert_eq!(area[17 * 4096], 1);
    }

    #[test]
    fn a_request_outside_the_working_set_ends_the_connection() {
        let server = RawServer::start(&"127.0.0.1".parse().unwrap()).unwrap();
        let mut client = RawClient::connect(server.address(), 4096).unwrap();
        client.area = memory(8192, 0).unwrap();
        assert!(client.batch(false, 4096, 4096, 1).is_err());
    }
}
