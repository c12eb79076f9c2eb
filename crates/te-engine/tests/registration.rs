//! Registration over several transports: all or nothing, resumable withdrawal, descriptors.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use common::{World, soon, until};
use te_engine::{ErrorKind, RegisterProgress, Retry, block_on};
use te_memory::{Keep, Memory, Region};
use te_segment::{Access, DescriptorBuilder, Incarnation, Location, SegmentDescriptor, TransportKind, Via};
use te_transport::{
    Assessment, Capabilities, Context, Fencing, Install, InstallError, Path, Publisher, Reach, Registration,
    Transport, TransportError,
};

/// A transport that only registers, and fails when told to.
struct Registrar {
    kind: TransportKind,
    shared: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    registered: AtomicUsize,
    asked: AtomicUsize,
    fail_register_at: AtomicUsize,
    fail_unregister: AtomicUsize,
    not_mine: AtomicBool,
    /// Registering costs nothing.
    at_once: AtomicBool,
    /// Registrations wait until two are under way.
    meet: AtomicBool,
    inside: AtomicUsize,
    /// Most registrations at the same time.
    most: AtomicUsize,
    /// Addresses as they were asked for.
    order: Mutex<Vec<u64>>,
    /// Regions are kept for a device, which unregistering does not stop.
    device: AtomicBool,
    keeps: Mutex<Vec<Keep>>,
    /// What peers need now, if that is not what was answered, and who is to be told.
    via: Mutex<Option<Via>>,
    publisher: OnceLock<Arc<dyn Publisher>>,
}

impl Counts {
    /// A registration of an address begins.
    fn enter(&self, address: u64) {
        self.order.lock().unwrap().push(address);
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        if self.meet.load(Ordering::SeqCst) {
            until("a second registration", || self.most.load(Ordering::SeqCst) > 1);
        }
    }

    fn leave(&self) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

fn registrar(kind: TransportKind) -> (Box<dyn Install>, Arc<Counts>) {
    let shared = Arc::new(Counts { fail_register_at: AtomicUsize::new(usize::MAX), ..Counts::default() });
    (Box::new(Registrar { kind, shared: shared.clone() }), shared)
}

const CAPABILITIES: Capabilities = Capabilities {
    read: true,
    write: true,
    host_memory: true,
    device_memory: false,
    max_slice: u64::MAX,
    reach: Reach::Network,
    fencing: Fencing::LocalOnly,
    checks_identity: false,
    registers_at_once: false,
};

impl Install for Registrar {
    fn kind(&self) -> TransportKind {
        self.kind.clone()
    }

    fn install(self: Box<Self>, context: &Context) -> Result<Arc<dyn Transport>, InstallError> {
        let _ = self.shared.publisher.set(context.publisher.clone());
        Ok(Arc::new(*self))
    }
}

impl Transport for Registrar {
    fn kind(&self) -> TransportKind {
        self.kind.clone()
    }

    fn capabilities(&self) -> &Capabilities {
        const QUICK: Capabilities = Capabilities { registers_at_once: true, ..CAPABILITIES };
        if self.shared.at_once.load(Ordering::SeqCst) { &QUICK } else { &CAPABILITIES }
    }

    fn advertise(&self, builder: DescriptorBuilder) -> DescriptorBuilder {
        builder
    }

    fn register(&self, region: &Region) -> Result<Registration, TransportError> {
        self.shared.enter(region.range().start());
        let answer = self.answer();
        if self.shared.device.load(Ordering::SeqCst) {
            self.shared.keeps.lock().unwrap().extend(region.keep());
        }
        self.shared.leave();
        answer
    }

    fn via(&self, _region: &Region) -> Option<Via> {
        self.shared.via.lock().unwrap().clone()
    }

    fn unregister(&self, _region: &Region) -> Result<(), TransportError> {
        let left = self.shared.fail_unregister.load(Ordering::SeqCst);
        if left > 0 {
            self.shared.fail_unregister.store(left - 1, Ordering::SeqCst);
            return Err(self.error("unregister"));
        }
        self.shared.registered.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }

    fn assess(&self, _peer: &SegmentDescriptor) -> Assessment {
        Assessment::Unusable("only registers".to_owned())
    }

    fn path(&self, _peer: &Arc<SegmentDescriptor>) -> Result<Arc<dyn Path>, String> {
        Err("only registers".to_owned())
    }

    fn fence(&self, _peer: Incarnation, _deadline: Instant) -> Result<(), TransportError> {
        Ok(())
    }

    fn shutdown(&self, _deadline: Instant) -> Result<(), TransportError> {
        Ok(())
    }
}

impl Registrar {
    fn answer(&self) -> Result<Registration, TransportError> {
        if self.shared.not_mine.load(Ordering::SeqCst) {
            return Ok(Registration::NotMine("not such memory".to_owned()));
        }
        if self.shared.asked.fetch_add(1, Ordering::SeqCst)
            == self.shared.fail_register_at.load(Ordering::SeqCst)
        {
            return Err(self.error("register"));
        }
        self.shared.registered.fetch_add(1, Ordering::SeqCst);
        Ok(Registration::Registered(Via::Other(serde_json::json!({}))))
    }

    fn error(&self, operation: &'static str) -> TransportError {
        TransportError {
            transport: self.kind.clone(),
            operation,
            cause: "told to fail".to_owned(),
            retryable: true,
        }
    }
}

/// Words that no real transport has, so that their entries may have any form.
fn kinds() -> [TransportKind; 4] {
    ["alpha", "beta", "delta", "gamma"].map(|word| word.parse().unwrap())
}

/// RDMA-10: what a transport says to have changed by itself is served at once and published without anybody asking; who has
/// an earlier version open hears of it. A transport that has not taken the buffer is not asked.
#[test]
fn what_changes_at_a_transport_is_published() {
    let world = World::new();
    let [alpha, beta, ..] = kinds();
    let ((one, counts), (other, refuses)) = (registrar(alpha.clone()), registrar(beta.clone()));
    refuses.not_mine.store(true, Ordering::SeqCst);
    let engine = world.engine_with(World::config("one"), vec![one, other]);
    let _offered = block_on(engine.register(vec![0; 4096], Access::REMOTE)).unwrap();
    block_on(engine.published(soon())).unwrap();
    let peer = world.engine("two");
    let segment = block_on(peer.open("one")).unwrap();
    let before = segment.descriptor().version();
    for key in 1..=3 {
        let now = Via::Other(serde_json::json!({ "key": key }));
        for counts in [&counts, &refuses] {
            *counts.via.lock().unwrap() = Some(now.clone());
        }
        let told = |descriptor: &SegmentDescriptor| descriptor.buffers()[0].via_transport(&alpha).cloned();
        counts.publisher.get().unwrap().changed();
        assert_eq!(told(&engine.descriptor().unwrap()).as_ref(), Some(&now));
        until("the peer has it", || told(&segment.descriptor()).as_ref() == Some(&now));
        assert!(segment.descriptor().version() > before);
        assert_eq!(segment.descriptor().buffers()[0].via_transport(&beta), None);
    }
    // After the engine it changes nothing.
    let publisher = counts.publisher.get().unwrap().clone();
    assert!(block_on(engine.shutdown(soon())).is_clean());
    drop((engine, _offered));
    publisher.changed();
}

/// MR-11: a failure at any transport and any member of a batch leaves nothing behind, and the text has every outcome.
#[test]
fn failed_registration_is_rolled_back_at_every_position() {
    for members in [1, 3] {
        for position in 0..kinds().len() {
            for member in 0..members {
                let world = World::new();
                let (transports, counts): (Vec<_>, Vec<_>) = kinds().map(registrar).into_iter().unzip();
                let engine = world.engine_with(World::config("one"), transports);
                counts[position].fail_register_at.store(member, Ordering::SeqCst);
                let memory = |i: u8| (Memory::from_vec(vec![i; 4096]), Location::Any, Access::REMOTE);
                let batch: Vec<_> = (0..members).map(|i| memory(u8::try_from(i).unwrap())).collect();
                let failed = block_on(engine.register_batch(batch)).unwrap_err();
                assert_eq!((failed.error.kind(), failed.error.retry()), (ErrorKind::Transport, Retry::Later));
                for (at, kind) in kinds().iter().enumerate() {
                    let word = match at.cmp(&position) {
                        std::cmp::Ordering::Less => format!("{kind}: registered, rolled back"),
                        std::cmp::Ordering::Equal => format!("{kind}: failed (told to fail)"),
                        std::cmp::Ordering::Greater => format!("{kind}: not asked"),
                    };
                    assert!(
                        failed.error.cause().contains(&word),
                        "{word:?} is not in {}",
                        failed.error.cause()
                    );
                }
                assert!(counts.iter().all(|count| count.registered.load(Ordering::SeqCst) == 0));
                assert!(engine.descriptor().unwrap().buffers().is_empty());
                // The memory comes back in order, and can be registered again.
                let bytes: Vec<_> =
                    failed.memory.into_iter().map(|memory| memory.into_vec().unwrap()).collect();
                assert_eq!(
                    bytes.iter().map(|bytes| usize::from(bytes[0])).collect::<Vec<_>>(),
                    (0..members).collect::<Vec<_>>()
                );
                let again =
                    bytes.into_iter().map(|bytes| (bytes.into(), Location::Any, Access::REMOTE)).collect();
                assert_eq!(block_on(engine.register_batch(again)).unwrap().len(), members);
            }
        }
    }
}

/// MR-12: a repeated unregister asks only the transport that failed, and the address is free afterwards.
#[test]
fn unregister_goes_on_where_it_failed() {
    let world = World::new();
    let (transports, counts): (Vec<_>, Vec<_>) = kinds().map(registrar).into_iter().unzip();
    let engine = world.engine_with(World::config("one"), transports);
    let buffer = block_on(engine.register(vec![0_u8; 4096], Access::REMOTE)).unwrap();
    counts[1].fail_unregister.store(1, Ordering::SeqCst);
    let failed = block_on(buffer.unregister(soon())).unwrap_err();
    assert_eq!((failed.error.kind(), failed.error.retry()), (ErrorKind::Transport, Retry::Later));
    assert!(failed.error.cause().contains("beta: unregister failed: told to fail"), "{}", failed.error);
    let left = |counts: &[Arc<Counts>]| {
        counts.iter().map(|c| c.registered.load(Ordering::SeqCst)).collect::<Vec<_>>()
    };
    assert_eq!(left(&counts), [0, 1, 0, 0]);
    let memory = block_on(failed.buffer.unregister(soon())).unwrap();
    assert_eq!(left(&counts), [0, 0, 0, 0]);
    block_on(engine.register(memory, Access::REMOTE)).unwrap();
}

/// Contract 3: memory that a device may still touch is not given back, and the error says so and where to look.
#[test]
fn unregister_names_who_may_have_left_the_memory_with_a_device() {
    let world = World::new();
    let (transports, counts): (Vec<_>, Vec<_>) = kinds().map(registrar).into_iter().unzip();
    let engine = world.engine_with(World::config("one"), transports);
    counts[1].device.store(true, Ordering::SeqCst);
    counts[2].not_mine.store(true, Ordering::SeqCst);
    let buffer = block_on(engine.register(vec![0_u8; 4096], Access::REMOTE)).unwrap();
    let failed = block_on(buffer.unregister(soon())).unwrap_err();
    assert_eq!((failed.error.kind(), failed.error.retry()), (ErrorKind::StillHeld, Retry::Later));
    for words in ["a device may still touch the memory", "alpha, beta, gamma had the range"] {
        assert!(failed.error.cause().contains(words), "{}", failed.error);
    }
    counts[1].keeps.lock().unwrap().clear();
    assert_eq!(block_on(failed.buffer.unregister(soon())).unwrap().len(), 4096);
}

/// Contract 3, 7: a dropped buffer that a device may still touch is freed when it may not, also by an engine that has ended.
#[test]
fn dropped_buffer_is_freed_when_the_device_is_through_with_it() {
    for ended in [false, true] {
        let world = World::new();
        let (transport, counts) = registrar(TransportKind::SHM);
        let engine = world.engine_with(World::config("one"), vec![transport]);
        counts.device.store(true, Ordering::SeqCst);
        let bytes: Arc<[AtomicU8]> = (0..64).map(AtomicU8::new).collect();
        let memory = Memory::from_shared(bytes.clone());
        let buffer = block_on(engine.register(memory, Access::REMOTE)).unwrap();
        if ended {
            drop(block_on(engine.shutdown(soon())));
        }
        drop(buffer);
        until("the keys to be given up", || counts.registered.load(Ordering::SeqCst) == 0);
        // What would free it too early had the time to.
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(Arc::strong_count(&bytes), 2);
        counts.keeps.lock().unwrap().clear();
        until("the memory to be freed", || Arc::strong_count(&bytes) == 1);
    }
}

/// MR-13: memory that is registered already is refused with the range that is there, and comes back; adjacent memory is
/// fine. (Nested and crossing ranges cannot be made in safe code; the region table's tests have them.)
#[test]
fn overlap_names_the_existing_range() {
    let world = World::new();
    let engine = world.engine("one");
    let bytes: &'static mut [u8] = Box::leak(vec![0_u8; 8192].into_boxed_slice());
    let address = bytes.as_ptr() as u64;
    let (low, high) = bytes.split_at_mut(4096);
    block_on(async {
        let first = engine.register(Memory::from_static(low), Access::LOCAL).await.unwrap();
        let second = engine.register(Memory::from_static(high), Access::LOCAL).await.unwrap();
        assert_eq!(second.address(), address + 4096);
        drop(first);

        let shared: Arc<[AtomicU8]> = (0..64).map(AtomicU8::new).collect();
        let again = || engine.register(Memory::from_shared(shared.clone()), Access::REMOTE);
        let first = again().await.unwrap();
        let refused = again().await.unwrap_err();
        assert_eq!((refused.error.kind(), refused.error.retry()), (ErrorKind::Overlaps, Retry::No));
        let existing = format!("overlaps the registered range {}", first.range());
        assert!(refused.error.cause().contains(&existing), "{}", refused.error);
        assert_eq!(refused.memory.len(), 1);
        first.unregister(soon()).await.unwrap();
        again().await.unwrap();
    });
}

/// MR-19: a batch is registered in the order of its addresses by a few threads, says how far it is, and gives the buffers in
/// the order they were asked for.
#[test]
fn a_batch_is_sorted_bounded_and_observable() {
    const MEMBERS: usize = 100;
    let world = World::new();
    let (transport, counts) = registrar(TransportKind::SHM);
    let engine = world.engine_with(World::config("one"), vec![transport]);
    counts.meet.store(true, Ordering::SeqCst);
    let mut memory: Vec<_> = (0..MEMBERS).map(|_| Memory::from_vec(vec![0_u8; 512])).collect();
    memory.sort_by_key(|memory| memory.address() % 4099);
    let asked: Vec<_> = memory.iter().map(Memory::address).collect();
    let batch = memory.into_iter().map(|memory| (memory, Location::Any, Access::LOCAL)).collect();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = seen.clone();
    let progress = move |reached: RegisterProgress| told.lock().unwrap().push(reached);
    let buffers = block_on(engine.register_batch_with(batch, progress)).unwrap();
    assert_eq!(buffers.iter().map(te_engine::Buffer::address).collect::<Vec<_>>(), asked);

    let most = counts.most.load(Ordering::SeqCst);
    assert!((2..=8).contains(&most), "{most} at the same time");
    let seen = seen.lock().unwrap();
    for (number, reached) in seen.iter().enumerate() {
        assert_eq!((reached.buffers, reached.of_buffers), (number + 1, MEMBERS));
        assert_eq!((reached.bytes, reached.of_bytes), (512 * (number as u64 + 1), 512 * MEMBERS as u64));
    }
    assert_eq!(seen.len(), MEMBERS);

    // One thread does what costs nothing, and then the order can be seen.
    let (transport, counts) = registrar(TransportKind::SHM);
    counts.at_once.store(true, Ordering::SeqCst);
    let engine = world.engine_with(World::config("two"), vec![transport]);
    let mut memory: Vec<_> = (0..MEMBERS).map(|_| Memory::from_vec(vec![0_u8; 512])).collect();
    memory.sort_by_key(|memory| memory.address() % 4099);
    let batch = memory.into_iter().map(|memory| (memory, Location::Any, Access::LOCAL)).collect();
    block_on(engine.register_batch(batch)).unwrap();
    let order = counts.order.lock().unwrap();
    assert_eq!((counts.most.load(Ordering::SeqCst), order.len()), (1, MEMBERS));
    assert!(order.is_sorted(), "{order:?}");
}

/// MR-11, MR-19: of a batch that fails in the middle, all memory comes back in its order, whatever the threads did.
#[test]
fn a_batch_that_fails_gives_all_memory_back_in_order() {
    const MEMBERS: usize = 40;
    for member in [0, 1, 7, 20, MEMBERS - 1] {
        let world = World::new();
        let (transport, counts) = registrar(TransportKind::SHM);
        let engine = world.engine_with(World::config("one"), vec![transport]);
        counts.fail_register_at.store(member, Ordering::SeqCst);
        let mut memory: Vec<_> = (0..MEMBERS).map(|_| Memory::from_vec(vec![0_u8; 512])).collect();
        memory.sort_by_key(|memory| memory.address() % 4099);
        let asked: Vec<_> = memory.iter().map(Memory::address).collect();
        let batch = memory.into_iter().map(|memory| (memory, Location::Any, Access::REMOTE)).collect();
        let failed = block_on(engine.register_batch(batch)).unwrap_err();
        assert_eq!(failed.error.kind(), ErrorKind::Transport);
        assert_eq!(failed.memory.iter().map(Memory::address).collect::<Vec<_>>(), asked);
        assert_eq!(counts.registered.load(Ordering::SeqCst), 0);
        assert!(engine.descriptor().unwrap().buffers().is_empty());
        let again = failed.memory.into_iter().map(|memory| (memory, Location::Any, Access::REMOTE));
        assert_eq!(block_on(engine.register_batch(again.collect())).unwrap().len(), MEMBERS);
    }
}

/// SEL-08: "not mine" is no failure, unless nobody serves the memory.
#[test]
fn not_mine_is_no_failure_unless_all_say_so() {
    let world = World::new();
    let (transports, counts): (Vec<_>, Vec<_>) = kinds().map(registrar).into_iter().unzip();
    let engine = world.engine_with(World::config("one"), transports);
    counts[0].not_mine.store(true, Ordering::SeqCst);
    let buffer = block_on(engine.register(vec![0_u8; 4096], Access::REMOTE)).unwrap();
    let vias = |engine: &te_engine::Engine| {
        let descriptor = engine.descriptor().unwrap();
        descriptor.buffers()[0].via().keys().cloned().collect::<Vec<_>>()
    };
    assert!(!vias(&engine).contains(&kinds()[0]));
    assert_eq!(vias(&engine).len(), 3);
    // MR-01: whoever wonders why a transport does not reach the buffer finds it there.
    assert_eq!(buffer.unserved().collect::<Vec<_>>(), [(&kinds()[0], "not such memory")]);
    drop(buffer);
    for count in &counts {
        count.not_mine.store(true, Ordering::SeqCst);
    }
    let failed = block_on(engine.register(vec![0_u8; 4096], Access::REMOTE)).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::NoPath);
    assert!(failed.error.cause().contains("delta: not served (not such memory)"), "{}", failed.error);
    assert_eq!(failed.memory.len(), 1);
}

/// META-12: in whatever order transports are installed, each buffer lists all of them.
#[test]
fn every_installation_order_lists_all_transports() {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for order in orders {
        let world = World::new();
        let transports = order.map(|at| registrar(kinds()[at].clone()).0).into_iter().collect();
        let engine = world.engine_with(World::config("one"), transports);
        let _buffer = block_on(engine.register(vec![0_u8; 4096], Access::REMOTE)).unwrap();
        let descriptor = engine.descriptor().unwrap();
        for kind in &kinds()[..3] {
            assert!(descriptor.buffers()[0].via().contains_key(kind), "{kind} is missing in order {order:?}");
        }
    }
}

/// META-13: there is a descriptor before anything is registered or installed.
#[test]
fn descriptor_exists_from_the_start() {
    let config = World::config("one");
    let bound = block_on(te_engine::Bound::bind(config, te_engine::RuntimeChoice::Owned)).unwrap();
    let descriptor = bound.local().descriptor().unwrap();
    assert_eq!(descriptor.name().as_str(), "one");
    assert!(descriptor.buffers().is_empty());
    assert_eq!(descriptor.incarnation(), Some(bound.local().incarnation()));
}

/// META-06: a wildcard is never advertised.
#[test]
fn wildcard_is_not_advertised() {
    let mut config = World::config("one");
    config.advertise = "0.0.0.0".parse().unwrap();
    let error = block_on(te_engine::Bound::bind(config, te_engine::RuntimeChoice::Owned)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.cause().contains("0.0.0.0 is a wildcard"), "{error}");
}

/// Limits are errors, never stalls.
#[test]
fn region_limit_is_an_error() {
    let world = World::new();
    let mut config = World::config("one");
    config.limits.regions = 2;
    let engine = world.engine_with(config, vec![registrar(TransportKind::SHM).0]);
    let register = || block_on(engine.register(vec![0_u8; 16], Access::LOCAL));
    let (_first, second) = (register().unwrap(), register().unwrap());
    assert_eq!(register().unwrap_err().error.kind(), ErrorKind::LimitReached);
    block_on(second.unregister(soon())).unwrap();
    register().unwrap();
}
