//! A way between two peers that a test can stall and cut.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::{Condvar, Mutex};
use te_segment::SegmentDescriptor;

/// What a test does to the way between two peers.
pub trait LinkControl: Send + Sync {
    /// From now on no byte passes, in either direction; what was sent before may have arrived. Peers see a peer that
    /// is silent, not one that is gone.
    fn stall(&self);

    /// Lets bytes pass again, those first that were held back.
    fn resume(&self);

    /// Breaks what is open now. New connections work.
    fn cut(&self);
}

/// A far peer that is reached over a controlled link.
#[derive(Clone)]
pub struct Link {
    /// The far peer as the near one must be told to reach it over this link.
    pub descriptor: Arc<SegmentDescriptor>,
    /// The controls.
    pub control: Arc<dyn LinkControl>,
}

const PIECE: usize = 64 << 10;

#[derive(Default)]
struct State {
    stalled: bool,
    closed: bool,
    next: usize,
    // Both ends of each connection, to break them.
    open: Vec<(usize, TcpStream, TcpStream)>,
}

struct Shared {
    target: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
    forwarded: AtomicUsize,
}

/// A TCP proxy on the loopback interface.
pub struct TcpProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl TcpProxy {
    /// Listens on a free port and forwards every connection to `target`.
    ///
    /// # Errors
    ///
    /// When no port can be bound.
    pub fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let (state, changed) = (Mutex::new(State::default()), Condvar::new());
        let shared = Arc::new(Shared { target, state, changed, forwarded: AtomicUsize::new(0) });
        let accepting = shared.clone();
        thread::spawn(move || accepting.accept(&listener));
        Ok(Self { address, shared })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many bytes it has passed on so far, in both directions together.
    #[must_use]
    pub fn forwarded(&self) -> usize {
        self.shared.forwarded.load(Ordering::Relaxed)
    }
}

impl LinkControl for TcpProxy {
    fn stall(&self) {
        self.shared.state.lock().stalled = true;
    }

    fn resume(&self) {
        self.shared.state.lock().stalled = false;
        self.shared.changed.notify_all();
    }

    fn cut(&self) {
        let open = std::mem::take(&mut self.shared.state.lock().open);
        for (_, near, far) in open {
            // Fails only if the other side was faster.
            let _ = near.shutdown(Shutdown::Both);
            let _ = far.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state.lock();
            state.closed = true;
            state.stalled = false;
        }
        self.shared.changed.notify_all();
        self.cut();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for near in listener.incoming().flatten() {
            if self.state.lock().closed {
                return;
            }
            let shared = self.clone();
            thread::spawn(move || {
                // A connection that cannot be forwarded is closed, as the peer's refusal would do.
                let _ = shared.forward(near);
            });
        }
    }

    fn forward(self: Arc<Self>, near: TcpStream) -> io::Result<()> {
        if !self.pass() {
            return Ok(());
        }
        let far = TcpStream::connect(self.target)?;
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        let (near_reader, far_reader) = (near.try_clone()?, far.try_clone()?);
        let id = {
            let mut state = self.state.lock();
            let id = state.next;
            state.next += 1;
            state.open.push((id, near.try_clone()?, far.try_clone()?));
            id
        };
        let back = self.clone();
        let backward = thread::spawn(move || back.pump(far_reader, near));
        self.pump(near_reader, far);
        // A pump ends with its direction; the connection is forgotten with both.
        let _ = backward.join();
        self.state.lock().open.retain(|(other, ..)| *other != id);
        Ok(())
    }

    fn pump(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut piece = vec![0; PIECE];
        while let Ok(count @ 1..) = from.read(&mut piece) {
            let Some(piece) = piece.get(..count) else { break };
            if !self.pass() || to.write_all(piece).is_err() {
                break;
            }
            self.forwarded.fetch_add(count, Ordering::Relaxed);
        }
        let _ = to.shutdown(Shutdown::Write);
        let _ = from.shutdown(Shutdown::Read);
    }

    /// Waits while the link is stalled; false when it is closed.
    fn pass(&self) -> bool {
        let mut state = self.state.lock();
        while state.stalled && !state.closed {
            self.changed.wait(&mut state);
        }
        !state.closed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A listener that sends back what it gets, and a proxy before it.
    fn echo() -> (TcpProxy, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let target = listener.local_addr().unwrap();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                thread::spawn(move || {
                    let mut reader = stream.try_clone().unwrap();
                    let _ = io::copy(&mut reader, &mut stream);
                });
            }
        });
        let proxy = TcpProxy::start(target).unwrap();
        let stream = connect(&proxy);
        (proxy, stream)
    }

    fn connect(proxy: &TcpProxy) -> TcpStream {
        let stream = TcpStream::connect(proxy.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }

    fn exchange(stream: &mut TcpStream) -> io::Result<[u8; 5]> {
        let mut answer = [0; 5];
        stream.write_all(b"hello")?;
        stream.read_exact(&mut answer)?;
        Ok(answer)
    }

    #[test]
    fn proxy_passes_bytes_both_ways() {
        let (proxy, mut stream) = echo();
        assert_eq!(&exchange(&mut stream).unwrap(), b"hello");
        assert!(proxy.forwarded() >= 5);
    }

    #[test]
    fn stalled_proxy_passes_nothing_until_resumed() {
        let (proxy, mut stream) = echo();
        exchange(&mut stream).unwrap();
        proxy.stall();
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        exchange(&mut stream).unwrap_err();
        proxy.resume();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"hello");
    }

    #[test]
    fn cut_breaks_open_connections_and_new_ones_work() {
        let (proxy, mut stream) = echo();
        exchange(&mut stream).unwrap();
        proxy.cut();
        exchange(&mut stream).unwrap_err();
        exchange(&mut connect(&proxy)).unwrap();
    }
}
