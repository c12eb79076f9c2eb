//! Two sides of a connection, and memory for them.

#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, reason = "in tests a failure is a panic")]

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::Arc;

use te_sys_verbs::{
    Access, Completion, CompletionQueue, Context, Gid, MemoryRegion, Mtu, PairSize, Path, ProtectionDomain,
    QueuePair, QueueSize, Remote, ToInit, ToReceive, ToSend, TransitionError, Verbs, VerbsError,
};

pub(crate) const REQUESTS: u32 = 64;

/// Everything one side has.
pub(crate) struct Side {
    pub(crate) context: Context,
    pub(crate) domain: ProtectionDomain,
    pub(crate) queue: CompletionQueue,
    pub(crate) pair: QueuePair,
    pub(crate) gid_index: u8,
    pub(crate) cookie: usize,
}

impl Side {
    pub(crate) fn open(verbs: &Verbs, nic: &str, gid_index: u8) -> Self {
        Self::open_with(verbs, nic, gid_index, QueueSize { entries: 256, vector: 0 })
    }

    pub(crate) fn open_with(verbs: &Verbs, nic: &str, gid_index: u8, size: QueueSize) -> Self {
        let context = verbs.open(nic).unwrap();
        let domain = context.protection_domain().unwrap();
        let channel = context.completion_channel().unwrap();
        let cookie = 0x1234;
        let queue = context.completion_queue(size, Some(&channel), cookie).unwrap();
        let size = PairSize { requests: REQUESTS, receives: 16, ranges: 4, inline: 0 };
        let pair = domain.queue_pair(size, &queue, &queue, cookie).unwrap();
        Self { context, domain, queue, pair, gid_index, cookie }
    }

    pub(crate) fn gid(&self) -> Gid {
        self.context.gid(1, self.gid_index).unwrap()
    }

    pub(crate) fn to_init(&self) -> Result<(), TransitionError> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        self.pair.to_init(&ToInit { port: 1, pkey_index: 0, access })
    }

    pub(crate) fn receive_from(&self, gid: Gid, peer: u32) -> ToReceive {
        let port = self.context.port(1).unwrap();
        ToReceive {
            path: Path {
                gid,
                lid: port.lid,
                gid_index: self.gid_index,
                port: 1,
                hop_limit: 16,
                traffic_class: 0,
                service_level: 0,
                global: true,
            },
            mtu: port.active_mtu.unwrap_or(Mtu::B1024),
            peer,
            first_packet: 0,
            reads: 4,
            min_rnr_timer: 12,
        }
    }
}

pub(crate) const SEND: ToSend = ToSend { timeout: 14, retries: 7, rnr_retries: 7, first_packet: 0, reads: 4 };

/// Connects two queue pairs with each other, or one with itself.
pub(crate) fn connect(a: &Side, b: &Side) -> Result<(), TransitionError> {
    for (own, peer) in [(a, b), (b, a)] {
        own.to_init()?;
        own.pair.to_receive(&own.receive_from(peer.gid(), peer.pair.number()))?;
        own.pair.to_send(&SEND)?;
        if std::ptr::eq(a, b) {
            break;
        }
    }
    Ok(())
}

/// Bytes that devices read and write, in cells since nobody asks before.
#[derive(Debug)]
pub(crate) struct Memory(Box<[UnsafeCell<u8>]>);

// SAFETY: bytes are only read when nothing is under way.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// Registered memory.
#[derive(Debug)]
pub(crate) struct Area {
    memory: Arc<Memory>,
    pub(crate) region: MemoryRegion,
}

impl Area {
    pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
        (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed).wrapping_add((i >> 8) as u8)).collect()
    }

    pub(crate) fn new(side: &Side, len: usize, seed: u8) -> Self {
        Self::with_access(side, len, seed, Access::REMOTE_READ | Access::REMOTE_WRITE | Access::LOCAL_WRITE)
    }

    pub(crate) fn with_access(side: &Side, len: usize, seed: u8, access: Access) -> Self {
        Self::register(&side.domain, Self::pattern(len, seed), access).unwrap()
    }

    pub(crate) fn attempt(side: &Side, len: usize) -> Result<Self, VerbsError> {
        Self::register(&side.domain, vec![0; len], Access::LOCAL_WRITE)
    }

    pub(crate) fn register(
        domain: &ProtectionDomain,
        bytes: Vec<u8>,
        access: Access,
    ) -> Result<Self, VerbsError> {
        let memory = Arc::new(Memory(bytes.into_iter().map(UnsafeCell::new).collect()));
        let start = NonNull::from(&*memory.0).cast();
        let keep: Arc<Memory> = Arc::clone(&memory);
        // SAFETY: the memory is in cells, and lives while the region's share of it does.
        let region = unsafe { domain.register(start, memory.0.len(), access, Some(Box::new(keep))) }?;
        Ok(Self { memory, region })
    }

    pub(crate) fn remote(&self) -> Remote {
        Remote { address: self.region.address(), rkey: self.region.rkey() }
    }

    /// A copy, to be made when nothing is under way.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        // SAFETY: nothing writes now.
        self.memory.0.iter().map(|cell| unsafe { *cell.get() }).collect()
    }
}

/// Everything that has arrived.
pub(crate) fn drain(queue: &CompletionQueue) -> Vec<Completion> {
    let mut room = [Completion::default(); 8];
    let mut all = Vec::new();
    loop {
        let got = queue.poll(&mut room).unwrap();
        all.extend_from_slice(got);
        if got.len() < 8 {
            return all;
        }
    }
}

/// The one completion that has arrived.
pub(crate) fn one(queue: &CompletionQueue) -> Completion {
    let all = drain(queue);
    assert_eq!(all.len(), 1, "{all:?}");
    all[0]
}
