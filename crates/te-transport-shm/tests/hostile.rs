//! Peers that break the protocol, lie, or do nothing.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod common;
#[path = "common/node.rs"]
mod node;

use std::os::fd::{AsFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::{named, packets, receive, send};
use node::{Move, Node, bytes, until};
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{accept, bind, connect, listen};
use te_segment::{Identity, Incarnation, SegmentDescriptor, SegmentName, TransportKind};
use te_transport::{FailureKind, Op, Path, Transport};
use te_transport_shm::ShmConfig;
use te_transport_shm::frame::{Denial, Frame, MAX_FRAME};

const LEN: usize = 100_000;

fn impatient() -> Node {
    let mut config = ShmConfig::default();
    config.set("silent_timeout", "200ms").unwrap();
    config.set("max_connections", "4").unwrap();
    config.set("withdraw_timeout", "50ms").unwrap();
    node::with(config)
}

fn dial(node: &Node) -> OwnedFd {
    let socket = packets();
    connect(&socket, &named(node.transport.socket())).unwrap();
    socket
}

fn hello(to: &Node) -> Frame {
    Frame::Hello { oldest: 1, newest: 1, from: Incarnation::from_bits(77), to: to.context.incarnation }
}

/// The words of a control page, as a peer that does as it pleases uses them.
struct Page {
    words: *mut AtomicU32,
    count: usize,
}

impl Page {
    fn map(file: &OwnedFd) -> Self {
        let size = usize::try_from(rustix::fs::fstat(file).unwrap().st_size).unwrap();
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping; the file is sealed and stays as long as it is. Never unmapped.
        let base =
            unsafe { rustix::mm::mmap(ptr::null_mut(), size, rights, MapFlags::SHARED, file, 0) }.unwrap();
        Self { words: base.cast(), count: size / 4 }
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        assert!(index < self.count);
        // SAFETY: inside of the mapping, aligned, and an atomic for everybody.
        unsafe { &*self.words.wrapping_add(index) }
    }

    fn nonce(&self, at: usize) -> [u8; 16] {
        let words: Vec<_> =
            (at..at + 4).flat_map(|at| self.word(at).load(Ordering::SeqCst).to_ne_bytes()).collect();
        words.try_into().unwrap()
    }

    /// The first slot.
    fn slot(&self) -> &AtomicU32 {
        self.word(32)
    }
}

/// Greets as an initiator would.
fn greet(to: &Node) -> (OwnedFd, Page) {
    let socket = dial(to);
    assert!(send(&socket, &hello(to).encode(), &[]));
    let (welcome, files) = receive(&socket).unwrap();
    assert!(matches!(Frame::decode(&welcome), Ok(Frame::Welcome { version: 1, .. })));
    let page = Page::map(&files[0]);
    assert!(send(&socket, &Frame::Proof { nonce: page.nonce(4) }.encode(), &[]));
    let (proven, _) = receive(&socket).unwrap();
    assert!(matches!(Frame::decode(&proven), Ok(Frame::Proven { .. })));
    (socket, page)
}

/// The target has closed the socket.
fn is_closed(socket: &OwnedFd) -> bool {
    while receive(socket).is_some() {}
    true
}

#[test]
fn a_target_refuses_other_lives_and_versions() {
    let node = impatient();
    let to = node.context.incarnation;
    let from = Incarnation::from_bits(1);
    for (frame, denial) in [
        (Frame::Hello { oldest: 1, newest: 1, from, to: from }, Denial::StaleIncarnation),
        (Frame::Hello { oldest: 2, newest: 9, from, to }, Denial::Version),
        (Frame::Hello { oldest: 0, newest: 0, from, to }, Denial::Version),
    ] {
        let socket = dial(&node);
        assert!(send(&socket, &frame.encode(), &[]));
        let (answer, _) = receive(&socket).unwrap();
        assert_eq!(Frame::decode(&answer), Ok(Frame::Refused { denial }));
        assert!(is_closed(&socket));
    }
}

/// SEC-06: strangers that say nothing are closed, and keep nobody else out for longer.
#[test]
fn silent_strangers_are_closed() {
    let (near, far) = (node::new(), impatient());
    let (local, remote) = (near.local(LEN), far.shared(LEN));
    let silent: Vec<_> = (0..8).map(|_| dial(&far)).collect();
    assert!(silent.iter().all(is_closed));
    until("all are turned away", || far.transport.counters().turned_away >= 8);
    Move::new(Op::Read, &local, &remote).done(&*near.path_to(&far));
}

/// Without the number in the page nothing is attached.
#[test]
fn a_wrong_proof_ends_the_greeting() {
    let node = impatient();
    let remote = node.shared(LEN);
    let socket = dial(&node);
    assert!(send(&socket, &hello(&node).encode(), &[]));
    receive(&socket).unwrap();
    assert!(send(&socket, &Frame::Proof { nonce: [0; 16] }.encode(), &[]));
    let (generation, address) = (remote.generation().value(), remote.range().start());
    let attach = Frame::Attach { generation, address, len: 1, write: false };
    send(&socket, &attach.encode(), &[]);
    assert!(is_closed(&socket));
    assert_eq!(node.transport.counters().attached, 0);
}

/// Anything but the right frame, and files where none belong, end the connection and nothing else.
#[test]
fn broken_frames_end_their_connection() {
    let (near, far) = (node::new(), impatient());
    let (local, remote) = (near.local(LEN), far.shared(LEN));
    let file = || rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC).unwrap();
    let long = vec![3; MAX_FRAME + 1];
    let detach = Frame::Detach { generation: 1, buffer: 0 }.encode();
    let withdrawn = Frame::Withdrawn { generation: 1 }.encode();
    for packet in [&b"x"[..], &[3; 200], &long, &detach, &withdrawn, &hello(&far).encode()] {
        let (socket, _page) = greet(&far);
        assert!(send(&socket, packet, &[]));
        assert!(is_closed(&socket), "{packet:?}");
    }
    for files in [1, 3] {
        let (socket, _page) = greet(&far);
        let files: Vec<_> = (0..files).map(|_| file()).collect();
        send(&socket, &Frame::Attach { generation: 1, address: 1, len: 1, write: true }.encode(), &files);
        assert!(is_closed(&socket));
    }
    until("the connections are gone", || far.transport.accepted_connections() == 0);
    Move::new(Op::Read, &local, &remote).done(&*near.path_to(&far));
}

/// MR-09: a peer that was stopped in the middle of a copy holds the memory up, and is named, until its process ends.
#[test]
fn a_stopped_holder_is_named_until_it_lets_go() {
    let far = impatient();
    let remote = far.shared(LEN);
    let (socket, page) = greet(&far);
    let (generation, address) = (remote.generation().value(), remote.range().start());
    assert!(send(&socket, &Frame::Attach { generation, address, len: 5, write: true }.encode(), &[]));
    let (attached, files) = receive(&socket).unwrap();
    let Ok(Frame::Attached { buffer, file: true, .. }) = Frame::decode(&attached) else {
        panic!("{attached:?}")
    };
    assert_eq!(files.len(), 1);
    page.slot().store(buffer + 1, Ordering::SeqCst);

    remote.block();
    for _ in 0..2 {
        let error = far.transport.unregister(&remote).unwrap_err();
        let named = format!("process {} (incarnation {}", std::process::id(), Incarnation::from_bits(77));
        assert!(error.to_string().contains(&named) && error.retryable, "{error}");
    }
    let error = far.transport.fence(Incarnation::from_bits(77), Instant::now()).unwrap_err();
    assert!(error.to_string().contains("still being copied by process"), "{error}");
    // It goes on: the word is there, and it clears the slot.
    let (withdrawn, _) = receive(&socket).unwrap();
    assert_eq!(Frame::decode(&withdrawn), Ok(Frame::Withdrawn { generation }));
    page.slot().store(0, Ordering::SeqCst);
    far.transport.unregister(&remote).unwrap();

    // Another one ends in the middle.
    let other = far.shared(LEN);
    let (socket, page) = greet(&far);
    let (generation, address) = (other.generation().value(), other.range().start());
    assert!(send(&socket, &Frame::Attach { generation, address, len: 5, write: true }.encode(), &[]));
    let (attached, _) = receive(&socket).unwrap();
    let Ok(Frame::Attached { buffer, .. }) = Frame::decode(&attached) else { panic!("{attached:?}") };
    page.slot().store(buffer + 1, Ordering::SeqCst);
    other.block();
    far.transport.unregister(&other).unwrap_err();
    drop(socket);
    far.transport.unregister(&other).unwrap();
}

/// A peer that breaks the protocol while it copies is waited for all the same.
#[test]
fn breaking_the_protocol_does_not_let_go_of_memory() {
    let far = impatient();
    let remote = far.shared(LEN);
    let (socket, page) = greet(&far);
    let (generation, address) = (remote.generation().value(), remote.range().start());
    assert!(send(&socket, &Frame::Attach { generation, address, len: 5, write: true }.encode(), &[]));
    let (attached, _) = receive(&socket).unwrap();
    let Ok(Frame::Attached { buffer, .. }) = Frame::decode(&attached) else { panic!("{attached:?}") };
    page.slot().store(buffer + 1, Ordering::SeqCst);
    // Giving a buffer back that is being copied is a lie.
    assert!(send(&socket, &Frame::Detach { generation, buffer }.encode(), &[]));
    until("the page is closed", || page.word(16).load(Ordering::SeqCst) == 1);
    remote.block();
    far.transport.unregister(&remote).unwrap_err();
    page.slot().store(0, Ordering::SeqCst);
    far.transport.unregister(&remote).unwrap();
}

/// Too many buffers are denied, and the rest works.
#[test]
fn more_buffers_than_allowed_are_denied() {
    let mut config = ShmConfig::default();
    config.set("max_buffers", "2").unwrap();
    let (near, far) = (node::new(), node::with(config));
    let (local, path) = (near.local(LEN), near.path_to(&far));
    let remotes = [far.shared(LEN), far.shared(LEN), far.shared(LEN)];
    Move::new(Op::Read, &local, &remotes[0]).done(&*path);
    Move::new(Op::Read, &local, &remotes[1]).done(&*path);
    let (kind, text) = Move::new(Op::Read, &local, &remotes[2]).fails(&*path);
    assert_eq!(kind, FailureKind::Unsupported);
    assert!(text.contains("max_buffers"), "{text}");
    far.withdraw(&remotes[0]);
    until("the mapping is dropped", || near.transport.mappings() == 1);
    // The number comes back with the next packet of the initiator.
    until("there is room", || Move::new(Op::Read, &local, &remotes[2]).run(&*path).is_done());
}

/// A target of our own making.
struct Impostor {
    listener: OwnedFd,
    name: String,
    life: Incarnation,
}

impl Impostor {
    fn new() -> Self {
        let name = format!("te-impostor-{:032x}", rand::random::<u128>());
        let listener = packets();
        bind(&listener, &named(&name)).unwrap();
        listen(&listener, 8).unwrap();
        Self { listener, name, life: Incarnation::from_bits(rand::random()) }
    }

    fn path_from(&self, near: &Node) -> std::sync::Arc<dyn Path> {
        let identity = Identity::Te { incarnation: self.life, control: None };
        let data = serde_json::json!({ "version": 1, "socket": self.name });
        let builder = SegmentDescriptor::builder(SegmentName::new("impostor").unwrap()).identity(identity);
        let descriptor = builder.data(TransportKind::SHM, data).build().unwrap();
        near.transport.path(&std::sync::Arc::new(descriptor)).unwrap()
    }
}

fn file(len: u64, seals: SealFlags) -> OwnedFd {
    let file = rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

/// What a target may pass as its control page; none of it is believed.
#[test]
fn control_pages_that_are_none_are_refused() {
    let (near, far) = (node::new(), node::new());
    let (local, remote) = (near.local(LEN), far.shared(LEN));
    let sealed = SealFlags::SHRINK | SealFlags::GROW;
    let cases = [
        (file(1 << 20, SealFlags::empty()), 128, 64),
        (file(4096, sealed), 128, 64),
        (file(1 << 20, sealed), 128, 64),
        (file(1 << 20, sealed), u32::MAX, u32::MAX),
        (std::io::pipe().map(|(reader, _)| OwnedFd::from(reader)).unwrap(), 128, 64),
    ];
    for (file, slots, buffers) in cases {
        let impostor = Impostor::new();
        let path = impostor.path_from(&near);
        let welcome = Frame::Welcome { version: 1, slots, buffers, witness: 0 };
        let outcome = std::thread::scope(|scope| {
            scope.spawn(|| {
                let socket = accept(&impostor.listener).unwrap();
                receive(&socket).unwrap();
                assert!(send(&socket, &welcome.encode(), &[file]));
                while receive(&socket).is_some() {}
            });
            Move::new(Op::Write, &local, &remote).fails(&*path)
        });
        assert_eq!(outcome.0, FailureKind::Protocol, "{}", outcome.1);
    }
}

/// SEG-02: a target that greets well, and then passes a file that would raise a signal at the first touch.
#[test]
fn files_that_can_shrink_are_never_mapped() {
    let (near, far) = (node::new(), node::new());
    let (local, remote) = (near.local(LEN), far.shared(LEN));
    local.fill(8).unwrap();
    for (file, cause) in [
        (file(1 << 20, SealFlags::empty()), "its size is not sealed"),
        (file(4096, SealFlags::SHRINK), "it has 4096 bytes"),
    ] {
        // The real target greets, with the life of the impostor's descriptor; the impostor answers what is attached.
        let impostor = Impostor { life: far.context.incarnation, ..Impostor::new() };
        let path = impostor.path_from(&near);
        let (generation, range) = (remote.generation().value(), remote.range());
        let attached = Frame::Attached {
            generation,
            buffer: 0,
            address: range.start(),
            len: range.len(),
            read: true,
            write: true,
            file: true,
        };
        let (kind, text) = std::thread::scope(|scope| {
            scope.spawn(|| {
                let near_end = accept(&impostor.listener).unwrap();
                let far_end = dial(&far);
                for (from, to) in [(&near_end, &far_end), (&far_end, &near_end)].repeat(2) {
                    let (packet, files) = receive(from).unwrap();
                    assert!(send(to, &packet, &files));
                }
                receive(&near_end).unwrap();
                assert!(send(&near_end, &attached.encode(), &[file]));
                while receive(&near_end).is_some() {}
            });
            let failed = Move::new(Op::Read, &local, &remote).fails(&*path);
            near.transport.fence(Incarnation::from_bits(0), Instant::now()).unwrap();
            // Lets the impostor's thread end.
            drop(path);
            failed
        });
        assert_eq!(kind, FailureKind::Protocol, "{text}");
        assert!(text.contains(cause), "{text}");
    }
    assert_eq!((bytes(&local), near.transport.mappings()), (vec![8; LEN], 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever a stranger sends, others are served.
    #[test]
    fn any_packets_leave_the_target_alone(sent in prop::collection::vec(
        prop::collection::vec(any::<u8>(), 1..80), 1..6,
    ), greeted in any::<bool>()) {
        let far = impatient();
        let remote = far.shared(64);
        let socket = if greeted { greet(&far).0 } else { dial(&far) };
        for packet in &sent {
            send(&socket, packet, &[]);
        }
        drop(socket);
        let near = node::new();
        let local = near.local(64);
        Move::new(Op::Read, &local, &remote).done(&*near.path_to(&far));
        until("the stranger is gone", || far.transport.accepted_connections() <= 1);
        far.transport.shutdown(Instant::now() + Duration::from_secs(60)).unwrap();
    }
}

/// The socket itself is what the descriptor names, and its peers are asked who they are by the kernel.
#[test]
fn sockets_know_their_peer() {
    let node = impatient();
    let socket = dial(&node);
    let found = rustix::net::sockopt::socket_peercred(socket.as_fd()).unwrap();
    assert_eq!(found.pid.as_raw_nonzero().get(), i32::try_from(std::process::id()).unwrap());
}
