//! System calls on one connection. All `unsafe` of this crate is here.
//!
//! Sockets are blocking with a receive and send timeout of [`TICK`], so that in the common case one call moves a whole
//! payload without a poll before it, and yet no call lasts longer than the tick without moving bytes. When less
//! time than a tick is left, the call polls for exactly that time and does not block.
//!
//! A [`Wire`] belongs to one thread at a time and is the only way to do I/O on the descriptor; its [`Interrupter`]
//! can be given to others and does nothing but wake the owner.

mod spans;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use socket2::{SockRef, Socket, TcpKeepalive};
use te_transport::Abort;

pub(crate) use spans::Spans;

/// Longest time a call waits without moving a byte, and the resolution of everything that is checked between calls.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// How long a wait looks before it sleeps. Waking a sleeping thread on another core costs about as
/// much; longer would take the core from whoever is to send.
const SPIN: Duration = Duration::from_micros(50);

/// Payloads longer than this are waited for asleep at once: they come in so many pieces that one wake-up more is nothing.
const SPIN_BYTES: usize = 1 << 20;

/// Most bytes one call moves, so that deadlines are looked at between calls even on a connection that never waits.
pub(crate) const CALL_BYTES: usize = 4 << 20;

/// What one call did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// This many bytes moved, at least one.
    Moved(usize),
    /// Nothing moved in the time allowed.
    Quiet,
    /// The peer has finished sending.
    Eof,
}

/// For what a receiving call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing: it takes what is there.
    No,
    /// The first byte.
    Some,
    /// All bytes asked for.
    All,
}

/// Wakes the owner of a [`Wire`] by shutting the connection down. Harmless after the wire is closed.
pub(crate) struct Interrupter {
    fd: Mutex<Option<OwnedFd>>,
    interrupted: AtomicBool,
}

impl Interrupter {
    pub(crate) fn interrupt(&self) {
        self.interrupted.store(true, Ordering::Release);
        if let Some(fd) = &*self.fd.lock() {
            // Fails only if the connection is gone already, which is what is wanted.
            let _ = SockRef::from(fd).shutdown(std::net::Shutdown::Both);
        }
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Acquire)
    }
}

impl Abort for Interrupter {
    fn abort(&self) {
        self.interrupt();
    }
}

/// A connected TCP socket and the right to do I/O on it. Dropping it closes the connection.
pub(crate) struct Wire {
    /// Open as long as the wire lives: only `Drop` takes the descriptor out of the interrupter.
    fd: RawFd,
    interrupter: Arc<Interrupter>,
    reset: bool,
}

impl Wire {
    /// Takes a connected socket and sets it up: no Nagle delay, keep-alive, blocking with the tick as timeout.
    pub(crate) fn new(socket: Socket, keepalive: Duration) -> io::Result<Self> {
        socket.set_nonblocking(false)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_read_timeout(Some(TICK))?;
        socket.set_write_timeout(Some(TICK))?;
        let probe = (keepalive / 3).max(Duration::from_secs(1));
        let keepalive = TcpKeepalive::new().with_time(keepalive).with_interval(probe).with_retries(3);
        socket.set_tcp_keepalive(&keepalive)?;
        let fd = socket.into_raw_fd();
        // SAFETY: `into_raw_fd` has just given up the ownership of this open descriptor.
        let owned = unsafe { OwnedFd::from_raw_fd(fd) };
        let interrupter = Interrupter { fd: Mutex::new(Some(owned)), interrupted: AtomicBool::new(false) };
        Ok(Self { fd, interrupter: Arc::new(interrupter), reset: false })
    }

    pub(crate) fn interrupter(&self) -> &Arc<Interrupter> {
        &self.interrupter
    }

    /// Closes at once: what the kernel has not sent yet is discarded and the peer sees a reset.
    pub(crate) fn reset(mut self) {
        self.reset = true;
    }

    pub(crate) fn shutdown_write(&mut self) -> io::Result<()> {
        SockRef::from(&*self).shutdown(std::net::Shutdown::Write)
    }

    /// Bytes that must be there before a poll reports the connection as readable.
    pub(crate) fn set_low_water(&mut self, bytes: libc::c_int) -> io::Result<()> {
        let size = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the option value is an int that lives during the call, and `size` is its size.
        let result = unsafe {
            libc::setsockopt(self.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, ptr::from_ref(&bytes).cast(), size)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Sends the first bytes of `spans` and moves the list on, within `left`.
    ///
    /// # Safety
    ///
    /// Every range of `spans` is mapped during the call.
    pub(crate) unsafe fn send(&mut self, spans: &mut Spans, left: Duration) -> io::Result<Step> {
        if spans.is_empty() {
            return Ok(Step::Quiet);
        }
        let Some(flags) = self.blocking_flags(left, PollFlags::OUT, 0)? else { return Ok(Step::Quiet) };
        let fd = self.fd;
        let step = spans.with_message(|message| {
            // SAFETY: the message's ranges are mapped, which the caller upholds; the descriptor is ours and open.
            retry(|| unsafe {
                libc::syscall(libc::SYS_sendmsg, fd, ptr::from_mut(message), flags | libc::MSG_NOSIGNAL)
            })
        })?;
        if let Step::Moved(bytes) = step {
            spans.advance(bytes);
        }
        Ok(step)
    }

    /// Receives into the first bytes of `spans`, waiting no longer than `left`. The list is not moved on.
    ///
    /// # Safety
    ///
    /// Every range of `spans` is mapped during the call, and writes by the kernel are among the accesses that its
    /// other users are prepared for.
    pub(crate) unsafe fn recv(&mut self, spans: &mut Spans, wait: Wait, left: Duration) -> io::Result<Step> {
        if spans.is_empty() {
            return Ok(Step::Quiet);
        }
        if wait != Wait::No && left >= TICK && spans.bytes() <= SPIN_BYTES {
            let until = Instant::now() + SPIN;
            loop {
                // SAFETY: what the caller upholds.
                match unsafe { self.recv_spans(spans, libc::MSG_DONTWAIT) }? {
                    Step::Quiet if Instant::now() < until => std::hint::spin_loop(),
                    Step::Quiet => break,
                    step => return Ok(step),
                }
            }
        }
        let Some(flags) = self.receiving_flags(wait, left)? else { return Ok(Step::Quiet) };
        // SAFETY: what the caller upholds.
        unsafe { self.recv_spans(spans, flags) }
    }

    /// One receiving call.
    ///
    /// # Safety
    ///
    /// As for [`recv`](Self::recv).
    unsafe fn recv_spans(&mut self, spans: &mut Spans, flags: libc::c_int) -> io::Result<Step> {
        let fd = self.fd;
        if let Some((start, len)) = spans.only() {
            // SAFETY: as below, for the one range; this call spares the kernel the copying of a message.
            return retry(|| unsafe { recv(fd, start, len, flags) });
        }
        spans.with_message(|message| {
            // SAFETY: the message's ranges are mapped and may be written, which the caller upholds; the descriptor is
            // ours and open.
            retry(|| unsafe { libc::syscall(libc::SYS_recvmsg, fd, ptr::from_mut(message), flags) })
        })
    }

    /// Waits for bytes without taking any, at most for `left`; whether some are there. A connection that its peer has reset
    /// is an error even if bytes of it are still here: whoever resets has given up what it sent.
    pub(crate) fn await_bytes(&mut self, left: Duration) -> io::Result<bool> {
        let events = poll_events(self.as_fd(), PollFlags::IN, left.min(TICK))?;
        if events.intersects(PollFlags::ERR | PollFlags::HUP) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(!events.is_empty())
    }

    /// Sends `bytes` or a first part of them within `left`.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8], left: Duration) -> io::Result<Step> {
        let Some(flags) = self.blocking_flags(left, PollFlags::OUT, 0)? else { return Ok(Step::Quiet) };
        let (fd, start, len) = (self.fd, bytes.as_ptr(), bytes.len());
        let (flags, none) = (flags | libc::MSG_NOSIGNAL, ptr::null::<libc::sockaddr>());
        // SAFETY: the bytes are borrowed during the call and only read; no address is given.
        retry(|| unsafe { libc::syscall(libc::SYS_sendto, fd, start, len, flags, none, 0) })
    }

    /// Receives into `buffer`, waiting no longer than `left`.
    pub(crate) fn recv_bytes(&mut self, buffer: &mut [u8], wait: Wait, left: Duration) -> io::Result<Step> {
        if wait != Wait::No && left >= TICK {
            let until = Instant::now() + SPIN;
            loop {
                match self.recv_slice(buffer, libc::MSG_DONTWAIT)? {
                    Step::Quiet if Instant::now() < until => std::hint::spin_loop(),
                    Step::Quiet => break,
                    step => return Ok(step),
                }
            }
        }
        let Some(flags) = self.receiving_flags(wait, left)? else { return Ok(Step::Quiet) };
        self.recv_slice(buffer, flags)
    }

    /// Whether bytes or the end of the stream are waiting, without taking them.
    pub(crate) fn peek(&mut self) -> io::Result<Step> {
        self.recv_slice(&mut [0], libc::MSG_DONTWAIT | libc::MSG_PEEK)
    }

    /// Throws away received bytes, at most `most`, within `left`. Nothing is copied.
    pub(crate) fn discard(&mut self, most: usize, left: Duration) -> io::Result<Step> {
        let Some(flags) = self.blocking_flags(left, PollFlags::IN, 0)? else { return Ok(Step::Quiet) };
        let (fd, most, flags) = (self.fd, most.min(1 << 30), flags | libc::MSG_TRUNC);
        // SAFETY: for a TCP socket `MSG_TRUNC` discards the bytes and never writes to the buffer, so null is allowed.
        retry(|| unsafe { recv(fd, ptr::null_mut(), most, flags) })
    }

    fn recv_slice(&mut self, buffer: &mut [u8], flags: libc::c_int) -> io::Result<Step> {
        let (fd, start, len) = (self.fd, buffer.as_mut_ptr(), buffer.len());
        // SAFETY: the buffer is borrowed exclusively during the call; the descriptor is ours and open.
        retry(|| unsafe { recv(fd, start, len, flags) })
    }

    fn receiving_flags(&self, wait: Wait, left: Duration) -> io::Result<Option<i32>> {
        match wait {
            Wait::No => Ok(Some(libc::MSG_DONTWAIT)),
            Wait::Some => self.blocking_flags(left, PollFlags::IN, 0),
            Wait::All => self.blocking_flags(left, PollFlags::IN, libc::MSG_WAITALL),
        }
    }

    /// The flags for a call that may last `left`: it blocks if a tick fits, else it is polled for here and does not
    /// block. `None` when the time is up.
    fn blocking_flags(&self, left: Duration, events: PollFlags, blocking: i32) -> io::Result<Option<i32>> {
        if left >= TICK {
            return Ok(Some(blocking));
        }
        Ok(poll(self.as_fd(), events, left)?.then_some(libc::MSG_DONTWAIT))
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor stays open while the wire lives, because only `Drop` closes it.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }
}

impl AsRawFd for Wire {
    fn as_raw_fd(&self) -> RawFd {
        self.fd
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.reset {
            // On failure the close is an orderly one, which loses nothing but time.
            let _ = SockRef::from(&*self).set_linger(Some(Duration::ZERO));
        }
        drop(self.interrupter.fd.lock().take());
    }
}

/// Waits until one of `events` is there or `left` is over; whether one is there.
pub(crate) fn poll(fd: BorrowedFd<'_>, events: PollFlags, left: Duration) -> io::Result<bool> {
    poll_events(fd, events, left).map(|events| !events.is_empty())
}

fn poll_events(fd: BorrowedFd<'_>, events: PollFlags, left: Duration) -> io::Result<PollFlags> {
    let mut fds = [PollFd::from_borrowed_fd(fd, events)];
    let timeout = Timespec { tv_sec: left.as_secs().min(3600) as _, tv_nsec: left.subsec_nanos() as _ };
    match rustix::event::poll(&mut fds, Some(&timeout)) {
        Ok(_) => Ok(fds[0].revents()),
        // The caller looks at its clock and comes back.
        Err(rustix::io::Errno::INTR) => Ok(PollFlags::empty()),
        Err(error) => Err(error.into()),
    }
}

/// The system call itself: the C library's function is a cancellation point, which costs two atomic operations.
///
/// # Safety
///
/// `len` bytes from `start` may be written, or the flags say that none will be.
unsafe fn recv(fd: RawFd, start: *mut u8, len: usize, flags: libc::c_int) -> libc::c_long {
    let (none, no_len) = (ptr::null_mut::<libc::sockaddr>(), ptr::null_mut::<libc::socklen_t>());
    // SAFETY: the caller upholds what concerns the buffer; no address is asked for.
    unsafe { libc::syscall(libc::SYS_recvfrom, fd, start, len, flags, none, no_len) }
}

fn retry(mut call: impl FnMut() -> libc::c_long) -> io::Result<Step> {
    loop {
        if let Ok(bytes) = usize::try_from(call()) {
            return Ok(if bytes == 0 { Step::Eof } else { Step::Moved(bytes) });
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => return Ok(Step::Quiet),
            _ => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    use super::*;

    fn pair() -> (Wire, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        (Wire::new(Socket::from(stream), Duration::from_secs(30)).unwrap(), other)
    }

    /// TCP-09: small messages are not delayed.
    #[test]
    fn nagle_is_off() {
        let (wire, _other) = pair();
        assert!(SockRef::from(&wire).tcp_nodelay().unwrap());
    }

    #[test]
    fn a_short_wait_ends_in_time() {
        let (mut wire, _other) = pair();
        let start = Instant::now();
        let step = wire.recv_bytes(&mut [0; 8], Wait::All, Duration::from_millis(20)).unwrap();
        assert_eq!(step, Step::Quiet);
        assert!(start.elapsed() >= Duration::from_millis(19));
        assert!(start.elapsed() < Duration::from_millis(90));
    }

    #[test]
    fn a_long_wait_ends_after_a_tick() {
        let (mut wire, _other) = pair();
        assert_eq!(wire.recv_bytes(&mut [0; 8], Wait::All, Duration::from_secs(60)).unwrap(), Step::Quiet);
    }

    #[test]
    fn interrupting_wakes_the_owner() {
        let (mut wire, _other) = pair();
        let interrupter = wire.interrupter().clone();
        let waker = std::thread::spawn(move || interrupter.interrupt());
        assert_eq!(wire.recv_bytes(&mut [0; 8], Wait::All, Duration::from_secs(60)).unwrap(), Step::Eof);
        waker.join().unwrap();
    }

    #[test]
    fn interrupting_a_closed_wire_touches_no_other_descriptor() {
        let (wire, _other) = pair();
        let interrupter = wire.interrupter().clone();
        drop(wire);
        let (mut next, mut other) = pair();
        interrupter.interrupt();
        io::Write::write_all(&mut other, b"x").unwrap();
        assert_eq!(next.recv_bytes(&mut [0], Wait::All, Duration::from_secs(5)).unwrap(), Step::Moved(1));
    }

    #[test]
    fn reset_is_seen_as_a_reset() {
        let (wire, mut other) = pair();
        wire.reset();
        let error = io::Read::read(&mut other, &mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}
