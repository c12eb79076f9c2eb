//! Values that a program forgets: memory is leaked and nothing else (contract 2). Nothing that is forgotten is freed while
//! anybody can still touch it, and everything else goes on.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::future::Future;
use std::mem::forget;
use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use te::{Access, Buffer, Deadline, Engine, Memory, RemoteRange};
use te_engine::block_on;
use te_testkit::pattern;

const LEN: usize = 8 << 20;

fn soon() -> Deadline {
    Deadline::after_secs(20)
}

/// An owner that offers `LEN` bytes with a pattern, and an initiator; over each transport.
struct Pair {
    owner: Engine,
    offered: Buffer,
    engine: Engine,
    remote: RemoteRange,
}

impl Pair {
    fn each(check: impl Fn(Self)) {
        for transport in ["tcp", "shm", "local"] {
            let group = te::LocalGroup::new();
            let build = || {
                let builder = te::builder("127.0.0.1").local_group(&group);
                block_on(builder.set("transports", transport).build()).unwrap()
            };
            let (owner, engine) = (build(), build());
            let offered = block_on(owner.register(pattern(3, LEN), Access::REMOTE)).unwrap();
            let remote = block_on(engine.open(owner.name().as_str())).unwrap().buffer(0).unwrap();
            check(Self { owner, offered, engine, remote });
        }
    }

    /// Memory whose owner tells whether it has been freed.
    fn local(&self) -> (Buffer, Weak<[AtomicU8]>) {
        let bytes: Arc<[AtomicU8]> = (0..LEN).map(|_| AtomicU8::new(0)).collect();
        let freed = Arc::downgrade(&bytes);
        (block_on(self.engine.register(Memory::from_shared(bytes), Access::LOCAL)).unwrap(), freed)
    }

    /// Everything else works: a whole read into other memory.
    fn still_works(&self) {
        let other = block_on(self.engine.register(vec![0_u8; LEN], Access::LOCAL)).unwrap();
        self.engine.batch().read(&self.remote, other.slice(..)).run().unwrap();
        let memory = block_on(other.unregister(soon())).unwrap();
        assert!(memory.bytes().unwrap() == pattern(3, LEN));
    }

    fn settled(&self) {
        until("nothing is in flight", || self.engine.metrics().transports.iter().all(|of| of.in_flight == 0));
    }

    fn end(self) {
        let Self { owner, offered, engine, .. } = self;
        block_on(offered.unregister(soon())).unwrap();
        for engine in [engine, owner] {
            block_on(engine.shutdown(Deadline::after_secs(5)));
        }
    }
}

fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !reached() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn poll_once<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// The batch goes on; its memory stays until it has ended, and can be taken back then.
#[test]
fn forgotten_batch_keeps_its_memory_until_it_has_ended() {
    Pair::each(|pair| {
        let (local, freed) = pair.local();
        forget(pair.engine.batch().read(&pair.remote, local.slice(..)).submit().unwrap());
        // Polled, and then forgotten with the waker it keeps.
        let mut waiting = pair.engine.batch().read(&pair.remote, local.slice(..)).submit().unwrap();
        let _ = poll_once(pin!(&mut waiting));
        forget(waiting);
        pair.settled();
        pair.still_works();
        let memory = block_on(local.unregister(soon())).unwrap();
        let bytes = memory.into_shared().unwrap();
        assert!(bytes.iter().map(|byte| byte.load(Ordering::Relaxed)).eq(pattern(3, LEN)));
        assert!(freed.upgrade().is_some());
        drop(bytes);
        assert!(freed.upgrade().is_none(), "nobody has it any more");
        pair.end();
    });
}

/// The buffer is dropped while a forgotten batch fills it: its memory is freed when nothing touches it, not before.
#[test]
fn memory_of_a_forgotten_batch_is_freed_behind_it() {
    Pair::each(|pair| {
        for _ in 0..20 {
            let (local, freed) = pair.local();
            forget(pair.engine.batch().read(&pair.remote, local.slice(..)).submit().unwrap());
            drop(local);
            // Withdrawn in the background, once the batch has ended or was cut off.
            until("the memory is freed", || freed.upgrade().is_none());
        }
        pair.settled();
        pair.still_works();
        pair.end();
    });
}

/// A forgotten guard stays registered for good.
#[test]
fn forgotten_buffer_stays_and_is_served() {
    Pair::each(|pair| {
        let (local, freed) = pair.local();
        let slice = local.slice(..);
        forget(local);
        pair.engine.batch().read(&pair.remote, slice).run().unwrap();
        let shared = freed.upgrade().unwrap();
        assert!(shared.iter().map(|byte| byte.load(Ordering::Relaxed)).eq(pattern(3, LEN)));
        // What the owner forgets is read by peers all the same.
        let more = block_on(pair.owner.register(pattern(5, LEN), Access::REMOTE)).unwrap();
        let address = more.range();
        forget(more);
        let segment = pair.remote.segment().clone();
        block_on(segment.sync()).unwrap();
        let remote = segment.range(address.start(), address.len()).unwrap();
        let other = block_on(pair.engine.register(vec![0_u8; LEN], Access::LOCAL)).unwrap();
        pair.engine.batch().read(&remote, other.slice(..)).run().unwrap();
        let memory = block_on(other.unregister(soon())).unwrap();
        assert!(memory.bytes().unwrap() == pattern(5, LEN));
        pair.end();
        assert!(freed.upgrade().is_some(), "the engine is gone, and the memory is not freed under a guard");
    });
}

/// A withdrawal that is begun and forgotten leaves the buffer withdrawn or not, and its memory in place.
#[test]
fn forgotten_withdrawal_leaves_memory_in_place() {
    Pair::each(|pair| {
        let (local, freed) = pair.local();
        let mut withdrawing = Box::pin(local.unregister(soon()));
        let done = poll_once(withdrawing.as_mut()).is_ready();
        forget(withdrawing);
        assert!(done || freed.upgrade().is_some());
        pair.still_works();
        pair.end();
    });
}
