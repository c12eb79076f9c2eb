//! Unix sockets with whole packets, in the abstract name space: no file is left behind, and a name ends with its socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::cmsg_space;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, sendmsg, shutdown, socket_with,
};

use crate::frame::{Frame, MAX_FRAME};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// Pause before a full backlog is tried again.
const AGAIN: Duration = Duration::from_millis(2);
/// How long a peer that does not read its packets is waited for.
const SEND_PATIENCE: Duration = Duration::from_secs(1);

/// Who is at the other end, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// Its process; 0 if that cannot be seen from here.
    pub(crate) pid: i32,
    pub(crate) uid: u32,
}

/// A packet, and the file that came with it.
pub(crate) struct Packet {
    pub(crate) frame: Frame,
    pub(crate) file: Option<OwnedFd>,
}

/// Why no packet came.
#[derive(Debug)]
pub(crate) enum RecvError {
    /// The other side has closed the socket.
    Closed,
    /// Nothing has come.
    Nothing,
    /// What came is no frame, or the socket is broken.
    Broken(String),
}

/// One end of a connection. It never blocks: whoever waits uses [`wait`].
pub(crate) struct Socket(OwnedFd);

fn flags() -> SocketFlags {
    SocketFlags::CLOEXEC | SocketFlags::NONBLOCK
}

fn open() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags(), None)?)
}

/// A socket that accepts connections under a name.
pub(crate) struct Listener(OwnedFd);

impl Listener {
    pub(crate) fn bind(name: &str) -> io::Result<Self> {
        let socket = open()?;
        bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        listen(&socket, BACKLOG)?;
        Ok(Self(socket))
    }

    /// The next connection, if one waits.
    pub(crate) fn accept(&self) -> io::Result<Socket> {
        Ok(Socket(accept_with(&self.0, flags())?))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Socket {
    /// Connects to a name. A listener with a full backlog is tried until the deadline, or until `stopped`.
    pub(crate) fn connect(name: &str, deadline: Instant, stopped: &dyn Fn() -> bool) -> io::Result<Self> {
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        loop {
            let socket = open()?;
            match connect(&socket, &address) {
                Ok(()) => return Ok(Self(socket)),
                Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline && !stopped() => {
                    std::thread::sleep(AGAIN);
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Sends a frame. Waits a moment for a peer that does not read.
    pub(crate) fn send(&self, frame: &Frame, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let until = Instant::now() + SEND_PATIENCE;
        loop {
            match self.try_send(frame, file) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {
                    wait(&mut [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::OUT)], Some(until))?;
                }
                sent => return sent,
            }
        }
    }

    /// Sends a frame if there is room for it now.
    pub(crate) fn try_send(&self, frame: &Frame, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let packet = frame.encode();
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = file.map(|file| [file]);
        if let Some(files) = &files {
            control.push(SendAncillaryMessage::ScmRights(files));
        }
        loop {
            match sendmsg(&self.0, &[IoSlice::new(&packet)], &mut control, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// The next packet, if one has come.
    pub(crate) fn recv(&self) -> Result<Packet, RecvError> {
        // One more than a frame has: a longer packet is cut and does not pass for a frame.
        let mut packet = [0; MAX_FRAME + 1];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut parts = [IoSliceMut::new(&mut packet)];
            match recvmsg(&self.0, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) => break received,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(RecvError::Nothing),
                Err(Errno::CONNRESET | Errno::PIPE) => return Err(RecvError::Closed),
                Err(errno) => return Err(RecvError::Broken(io::Error::from(errno).to_string())),
            }
        };
        let mut files = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                files.extend(passed);
            }
        }
        if received.bytes == 0 {
            return Err(RecvError::Closed);
        }
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) || files.len() > 1 {
            return Err(RecvError::Broken("a packet is too long, or too many files came with it".to_owned()));
        }
        let packet = packet.get(..received.bytes).unwrap_or_default();
        let frame = Frame::decode(packet).map_err(|error| RecvError::Broken(error.to_string()))?;
        let file = files.pop();
        let carries = matches!(frame, Frame::Welcome { .. } | Frame::Attached { file: true, .. });
        if carries != file.is_some() {
            return Err(RecvError::Broken("a file is missing, or came with the wrong frame".to_owned()));
        }
        Ok(Packet { frame, file })
    }

    /// Whether the other side has closed it.
    pub(crate) fn has_hung_up(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut fds, Some(&now)), Ok(1..)) && fds[0].revents().intersects(PollFlags::HUP)
    }

    /// Closes it for both sides, for whoever still has it.
    pub(crate) fn close(&self) {
        // Fails only if the other side was faster.
        let _ = shutdown(&self.0, Shutdown::Both);
    }

    /// Who is at the other end.
    pub(crate) fn credentials(&self) -> io::Result<Credentials> {
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = libc::socklen_t::try_from(size_of_val(&found)).unwrap_or_default();
        // SAFETY: the kernel writes at most `len` bytes, which is the size of the structure, and any bytes are a valid one.
        let rc = unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut len,
            )
        };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Credentials { pid: found.pid, uid: found.uid })
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether a process of this user may be a peer: the same user, or the administrator, who may do anything anyway.
pub(crate) fn is_trusted(credentials: Credentials) -> bool {
    credentials.uid == 0 || credentials.uid == rustix::process::geteuid().as_raw()
}

/// Waits until one of them is ready, or until the deadline. Returns early if a signal comes.
pub(crate) fn wait(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> io::Result<()> {
    let left = deadline.map(|deadline| {
        let left = deadline.saturating_duration_since(Instant::now());
        Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        }
    });
    match poll(fds, left.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Wakes a thread that waits for it among other things. Clones wake the same one.
#[derive(Clone)]
pub(crate) struct Bell(Arc<OwnedFd>);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    pub(crate) fn ring(&self) {
        // Fails only when it rings already.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Silences it, so that it can be waited for again.
    pub(crate) fn answer(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Listener, Socket, Socket) {
        let name = format!("te-test-{:032x}", rand::random::<u128>());
        let listener = Listener::bind(&name).unwrap();
        let near = Socket::connect(&name, Instant::now() + Duration::from_secs(10), &|| false).unwrap();
        let far = listener.accept().unwrap();
        (listener, near, far)
    }

    impl Socket {
        /// Waits for the next packet.
        fn recv_until(&self, deadline: Instant) -> Result<Packet, RecvError> {
            loop {
                match self.recv() {
                    Err(RecvError::Nothing) if Instant::now() < deadline => {
                        wait(&mut [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)], Some(deadline))
                            .unwrap();
                    }
                    outcome => return outcome,
                }
            }
        }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn frames_and_files_pass() {
        let (_listener, near, far) = pair();
        assert!(matches!(far.recv(), Err(RecvError::Nothing)));
        let welcome = Frame::Welcome { version: 1, slots: 2, buffers: 3, witness: 4 };
        let file = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        near.send(&welcome, Some(file.as_fd())).unwrap();
        let packet = far.recv_until(soon()).unwrap();
        assert_eq!(packet.frame, welcome);
        assert!(packet.file.is_some());
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(near.credentials().unwrap().pid, own);
        assert!(is_trusted(far.credentials().unwrap()));
    }

    #[test]
    fn files_in_the_wrong_place_are_refused() {
        let (_listener, near, far) = pair();
        let file = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        near.send(&Frame::Withdrawn { generation: 1 }, Some(file.as_fd())).unwrap();
        assert!(matches!(far.recv_until(soon()), Err(RecvError::Broken(_))));
        near.send(&Frame::Welcome { version: 1, slots: 2, buffers: 3, witness: 4 }, None).unwrap();
        assert!(matches!(far.recv_until(soon()), Err(RecvError::Broken(_))));
    }

    #[test]
    fn closing_is_seen() {
        let (_listener, near, far) = pair();
        assert!(!far.has_hung_up());
        drop(near);
        assert!(far.has_hung_up());
        assert!(matches!(far.recv_until(soon()), Err(RecvError::Closed)));
        assert!(far.send(&Frame::Withdrawn { generation: 1 }, None).is_err());
    }

    #[test]
    fn nobody_listens_under_an_unknown_name() {
        let error = Socket::connect("te-test-nobody", soon(), &|| false).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn full_backlog_costs_the_deadline_and_no_more() {
        let name = format!("te-test-{:032x}", rand::random::<u128>());
        let _listener = Listener::bind(&name).unwrap();
        let mut open = Vec::new();
        let error = loop {
            match Socket::connect(&name, Instant::now(), &|| false) {
                Ok(socket) => open.push(socket),
                Err(error) => break error,
            }
            assert!(open.len() < 10_000, "the backlog has no end");
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
