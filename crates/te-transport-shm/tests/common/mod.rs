//! A way to a target that can be stalled and cut: a proxy of its Unix socket that passes packets and files on.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use rustix::cmsg_space;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept, bind,
    connect, listen, recvmsg, sendmsg, shutdown, socket_with,
};
use te_segment::{SegmentDescriptor, TransportKind};
use te_testkit::{Link, LinkControl, Violation, redescribe};

/// A blocking socket that keeps packets whole.
pub(crate) fn packets() -> OwnedFd {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

/// The address of a name.
pub(crate) fn named(name: &str) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()
}

/// Sends a packet with its files.
pub(crate) fn send(socket: impl AsFd, packet: &[u8], files: &[OwnedFd]) -> bool {
    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    }
    sendmsg(socket, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL).is_ok()
}

/// The next packet with its files; none at the end.
pub(crate) fn receive(socket: impl AsFd) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    let mut packet = vec![0; 4096];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut packet)];
    let received = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            files.extend(passed);
        }
    }
    packet.truncate(received.bytes);
    (received.bytes > 0).then_some((packet, files))
}

#[derive(Default)]
struct State {
    stalled: bool,
    closed: bool,
    open: Vec<Arc<OwnedFd>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct Proxy {
    shared: Arc<Shared>,
    name: String,
}

impl LinkControl for Proxy {
    fn stall(&self) {
        self.shared.state.lock().unwrap().stalled = true;
    }

    fn resume(&self) {
        self.shared.state.lock().unwrap().stalled = false;
        self.shared.changed.notify_all();
    }

    fn cut(&self) {
        for socket in std::mem::take(&mut self.shared.state.lock().unwrap().open) {
            let _ = shutdown(&*socket, Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state.lock().unwrap();
            state.closed = true;
        }
        self.shared.changed.notify_all();
        self.cut();
        // Wakes the thread that accepts.
        let _ = connect(packets(), &named(&self.name));
    }
}

impl Shared {
    fn pump(&self, from: &OwnedFd, to: &OwnedFd) {
        while let Some((packet, files)) = receive(from) {
            let mut state = self.state.lock().unwrap();
            while state.stalled && !state.closed {
                state = self.changed.wait(state).unwrap();
            }
            drop(state);
            if !send(to, &packet, &files) {
                break;
            }
        }
        let _ = shutdown(from, Shutdown::Both);
        let _ = shutdown(to, Shutdown::Both);
    }
}

/// A proxy before the far side, and the descriptor that leads through it.
pub(crate) fn proxy_link(far: &SegmentDescriptor) -> Result<Link, Violation> {
    let data = far.data(&TransportKind::SHM).ok_or_else(|| Violation::new("no shared memory is offered"))?;
    let target = data["socket"].as_str().ok_or_else(|| Violation::new("no socket is named"))?.to_owned();
    let name = format!("te-proxy-{:032x}", rand::random::<u128>());
    let listener = packets();
    bind(&listener, &named(&name))?;
    listen(&listener, 64)?;
    let shared = Arc::<Shared>::default();
    let accepting = shared.clone();
    thread::spawn(move || {
        while let Ok(near) = accept(&listener) {
            let near = Arc::new(near);
            let far = Arc::new(packets());
            {
                let mut state = accepting.state.lock().unwrap();
                if state.closed {
                    return;
                }
                if connect(&*far, &named(&target)).is_err() {
                    let _ = shutdown(&*near, Shutdown::Both);
                    continue;
                }
                state.open.extend([near.clone(), far.clone()]);
            }
            for (from, to) in [(near.clone(), far.clone()), (far, near)] {
                let pumping = accepting.clone();
                thread::spawn(move || pumping.pump(&from, &to));
            }
        }
    });
    let mut through = data.clone();
    through["socket"] = name.clone().into();
    let descriptor = redescribe(far, |builder| builder.data(TransportKind::SHM, through))?;
    let control = Arc::new(Proxy { shared, name });
    Ok(Link { descriptor: Arc::new(descriptor), control })
}
