//! Withdrawing memory that te peers know of: who holds it is told, and who does not answer is cut off.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{World, soon, until};
use te_engine::{Deadline, Engine, ErrorKind, block_on};
use te_metadata::StoreOperation;
use te_rpc::BoxFuture;
use te_rpc::native::{
    Answer, NativeClient, NativeHandler, NativeLimits, NativePeer, PeerId, Request, Target,
};
use te_segment::{Access, DescriptorVersion, Endpoint, Incarnation, TransportKind};
use te_testkit::{Fault, FaultTransport, Outage, Script, Site, When};

/// A holder that hears and never acknowledges.
#[derive(Default)]
struct Stubborn {
    withdrawals: AtomicUsize,
    announcements: AtomicUsize,
}

const STUBBORN: Incarnation = Incarnation::from_bits(77);

impl NativeHandler for Stubborn {
    fn identity(&self) -> PeerId {
        PeerId { incarnation: STUBBORN, name: "stubborn".to_owned() }
    }

    fn handle(self: Arc<Self>, _: NativePeer, request: Request) -> BoxFuture<'static, Answer> {
        match request {
            Request::Invalidate { withdrawn, .. } if withdrawn.is_empty() => {
                self.announcements.fetch_add(1, Ordering::SeqCst);
                Box::pin(std::future::ready(Answer::Invalidate))
            }
            _ => {
                self.withdrawals.fetch_add(1, Ordering::SeqCst);
                Box::pin(std::future::pending())
            }
        }
    }
}

fn target(engine: &Engine) -> Target {
    format!("127.0.0.1:{}", engine.control_port()).parse::<Endpoint>().unwrap().into()
}

fn interest(client: &NativeClient, owner: &Engine) -> DescriptorVersion {
    let (client, to) = (client.clone(), target(owner));
    block_on(async move { client.interest(&to, DescriptorVersion::new(0), soon().instant()).await }).unwrap()
}

/// A client on a control thread of its own, which ends when the last member is dropped.
fn on_a_thread(
    handler: Arc<Stubborn>,
) -> (NativeClient, tokio::runtime::Handle, tokio::sync::oneshot::Sender<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let handle = runtime.handle().clone();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    std::thread::spawn(move || runtime.block_on(stopped).unwrap_err());
    let client = NativeClient::new(handler, NativeLimits::default());
    (client, handle, stop)
}

/// MR-09, SEG-09: a holder hears of a withdrawal before the memory is back, and begins nothing new on it.
#[test]
fn a_holder_does_not_use_what_is_withdrawn() {
    let world = World::new();
    let (owner, holder) = (world.engine("owner"), world.engine("holder"));
    let (peer, kept) = block_on(async {
        let gone = owner.register(vec![0_u8; 4096], Access::REMOTE).await.unwrap();
        let kept = owner.register(vec![0_u8; 4096], Access::REMOTE).await.unwrap();
        owner.published(soon()).await.unwrap();
        let local = holder.register(vec![1_u8; 4096], Access::LOCAL).await.unwrap();
        let peer = holder.open("owner").await.unwrap();
        let withdrawn = peer.range(gone.address(), 4096).unwrap();
        let offered = peer.range(kept.address(), 4096).unwrap();
        assert_eq!(gone.unregister(soon()).await.unwrap().len(), 4096);
        let refused = holder.batch().write(local.slice(..), &withdrawn).submit().unwrap_err();
        assert_eq!((refused.kind(), refused.peer()), (ErrorKind::BufferGone, Some("owner")));
        holder.batch().write(local.slice(..), &offered).run().unwrap();
        (peer, kept)
    });
    // The holder's own view follows.
    until("a newer snapshot", || peer.descriptor().buffers().len() == 1);
    assert_eq!(peer.buffer(0).unwrap().range(), kept.range());
}

/// SEG-09: what is registered later is seen without asking.
#[test]
fn holders_hear_of_what_is_registered_later() {
    let world = World::new();
    let (owner, holder) = (world.engine("owner"), world.engine("holder"));
    let peer = block_on(holder.open("owner")).unwrap();
    assert_eq!(peer.descriptor().buffers().len(), 0);
    let offered = block_on(owner.register(vec![0_u8; 4096], Access::REMOTE)).unwrap();
    until("a newer snapshot", || peer.range(offered.address(), 4096).is_ok());
}

/// Contract 3: a holder with a request under way acknowledges when that has ended, and is not cut off.
#[test]
fn a_withdrawal_waits_for_the_holders_request() {
    let world = World::new();
    let owner = world.engine("owner");
    let slow = world.transport(TransportKind::SHM).with_pace(64 << 10, Duration::from_millis(20));
    let holder = world.engine_with(World::config("holder"), vec![Box::new(slow)]);
    block_on(async {
        let offered = owner.register(vec![0_u8; 1 << 20], Access::REMOTE).await.unwrap();
        owner.published(soon()).await.unwrap();
        let local = holder.register(vec![5_u8; 1 << 20], Access::LOCAL).await.unwrap();
        let remote = holder.open("owner").await.unwrap().range(offered.address(), 1 << 20).unwrap();
        let batch = holder.batch().write(local.slice(..), &remote).submit().unwrap();
        assert_eq!(offered.unregister(soon()).await.unwrap().len(), 1 << 20);
        let connected = owner.peers().into_iter().any(|peer| peer.incarnation == Some(holder.incarnation()));
        assert!(connected, "its connection was not closed");
        // The target stops it in the middle or refuses it; either way it is over.
        drop(batch.wait_until(soon()).unwrap());
    });
}

/// MR-09, contract 3: who does not acknowledge is cut off after the announcement's time, and the memory comes back.
#[test]
fn a_holder_that_never_acknowledges_is_cut_off() {
    let world = World::new();
    let mut config = World::config("owner");
    config.limits.announce = Duration::from_millis(100);
    let owner = world.engine_with(config, vec![Box::new(world.transport(TransportKind::SHM))]);
    let offered = block_on(owner.register(vec![0_u8; 4096], Access::REMOTE)).unwrap();
    let holder = Arc::new(Stubborn::default());
    let (client, handle, _stop) = on_a_thread(holder.clone());
    let _entered = handle.enter();
    interest(&client, &owner);
    assert_eq!(owner.peers().len(), 1);
    let memory = block_on(offered.unregister(soon())).unwrap();
    assert_eq!(memory.len(), 4096);
    assert_eq!(holder.withdrawals.load(Ordering::SeqCst), 1);
    until("the connection to end", || client.connected(&target(&owner).endpoint).is_none());
    // Only a new hello makes it a holder again; what it knew before is older than what is served.
    let before = owner.descriptor().unwrap().version().unwrap();
    assert!(interest(&client, &owner) >= before);
}

/// FO-14, contract 3: a transport that fails to cut a holder off is asked again.
#[test]
fn a_fence_that_fails_is_repeated() {
    let world = World::new();
    let script = Script::new(1).with(Site::Fence, When::Before(3), Fault::Fail);
    let mut config = World::config("owner");
    config.limits.announce = Duration::from_millis(20);
    let faulty = FaultTransport::new(world.transport(TransportKind::SHM), &script);
    let owner = world.engine_with(config, vec![Box::new(faulty)]);
    let offered = block_on(owner.register(vec![0_u8; 4096], Access::REMOTE)).unwrap();
    let (client, handle, _stop) = on_a_thread(Arc::new(Stubborn::default()));
    let _entered = handle.enter();
    interest(&client, &owner);
    assert_eq!(block_on(offered.unregister(soon())).unwrap().len(), 4096);
    assert_eq!(script.count(Site::Fence), 3);
}

/// Contract 3: at the deadline the error names who holds the memory, and the next call goes on.
#[test]
fn the_error_names_the_holder_that_did_not_acknowledge() {
    let world = World::new();
    let owner = world.engine("owner");
    let offered = block_on(owner.register(vec![0_u8; 4096], Access::REMOTE)).unwrap();
    let holder = Arc::new(Stubborn::default());
    let (client, handle, _stop) = on_a_thread(holder.clone());
    let _entered = handle.enter();
    interest(&client, &owner);
    // Less than the announcement may take.
    let failed = block_on(offered.unregister(Deadline::after(Duration::from_millis(100)))).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::StillHeld);
    let said = format!("stubborn (incarnation {STUBBORN}) did not acknowledge");
    assert!(failed.error.cause().contains(&said), "{}", failed.error);
    assert_eq!(failed.error.peer(), Some("stubborn"));
    assert_eq!(block_on(failed.buffer.unregister(soon())).unwrap().len(), 4096);
}

/// Contract 3: a holder whose process was killed delays nothing.
#[test]
fn a_holder_that_was_killed_delays_nothing() {
    let world = World::new();
    let mut config = World::config("owner");
    config.limits.announce = Duration::from_secs(60);
    let owner = world.engine_with(config, vec![Box::new(world.transport(TransportKind::SHM))]);
    let offered = block_on(owner.register(vec![0_u8; 4096], Access::REMOTE)).unwrap();
    block_on(owner.published(soon())).unwrap();
    let holder = world.mortal(World::config("holder"));
    let _open = block_on(holder.engine.open("owner")).unwrap();
    assert_eq!(owner.peers().len(), 1);
    holder.kill();
    // An announcement that waited for it would not be over by then.
    assert_eq!(block_on(offered.unregister(soon())).unwrap().len(), 4096);
}

/// Contract 3, 7: a buffer that is dropped is withdrawn from its holders all the same.
#[test]
fn a_dropped_buffer_is_withdrawn_from_its_holders() {
    let world = World::new();
    let (owner, holder) = (world.engine("owner"), world.engine("holder"));
    let offered = block_on(owner.register(vec![0_u8; 4096], Access::REMOTE)).unwrap();
    block_on(owner.published(soon())).unwrap();
    let local = block_on(holder.register(vec![1_u8; 4096], Access::LOCAL)).unwrap();
    let remote = block_on(holder.open("owner")).unwrap().range(offered.address(), 4096).unwrap();
    drop(offered);
    until("the withdrawal", || {
        let submitted = holder.batch().write(local.slice(..), &remote).submit();
        submitted.is_err_and(|error| error.kind() == ErrorKind::BufferGone)
    });
}

/// Contract 3: memory that no peer may use is not part of the offer, so that a store which does not answer, holders and
/// what is published have nothing to do with it.
#[test]
fn memory_of_our_own_is_nobody_elses_business() {
    let world = World::new();
    let mut config = World::config("owner");
    // Whoever waited for an announcement would wait for the whole test.
    config.limits.announce = Duration::from_secs(600);
    let owner = world.engine_with(config, vec![Box::new(world.transport(TransportKind::SHM))]);
    let offered = block_on(owner.register(vec![0_u8; 4096], Access::REMOTE)).unwrap();
    block_on(owner.published(soon())).unwrap();
    let holder = Arc::new(Stubborn::default());
    let (client, handle, _stop) = on_a_thread(holder.clone());
    let _entered = handle.enter();
    let version = interest(&client, &owner);
    let writes = world.store.count(StoreOperation::Put);
    world.store.set(Outage::Silent);
    block_on(async {
        let own = owner.register(vec![1_u8; 4096], Access::LOCAL).await.unwrap();
        owner.published(soon()).await.unwrap();
        assert_eq!(own.unregister(soon()).await.unwrap().len(), 4096);
        drop(owner.register(vec![1_u8; 4096], Access::LOCAL).await.unwrap());
        owner.published(soon()).await.unwrap();
    });
    assert_eq!(owner.descriptor().unwrap().version(), Some(version));
    assert_eq!(world.store.count(StoreOperation::Put), writes);
    assert_eq!(holder.withdrawals.load(Ordering::SeqCst), 0);
    world.store.set(Outage::None);
    drop(offered);
}

/// An engine that opens its own segment is a holder like others.
#[test]
fn an_engine_can_withdraw_what_it_opened_itself() {
    let world = World::new();
    let engine = world.engine("self");
    block_on(async {
        let offered = engine.register(vec![0_u8; 4096], Access::REMOTE).await.unwrap();
        engine.published(soon()).await.unwrap();
        let local = engine.register(vec![1_u8; 4096], Access::LOCAL).await.unwrap();
        let remote = engine.open("self").await.unwrap().range(offered.address(), 4096).unwrap();
        engine.batch().write(local.slice(..), &remote).run().unwrap();
        assert_eq!(offered.unregister(soon()).await.unwrap().len(), 4096);
        let refused = engine.batch().write(local.slice(..), &remote).submit().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BufferGone);
    });
}
