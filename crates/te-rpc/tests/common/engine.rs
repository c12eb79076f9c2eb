//! An engine that answers native requests and remembers what it saw.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use te_rpc::{BoxFuture, Handlers, PortChoice, RpcLimits, RpcListener, RpcServer, native::*};
use te_segment::{DescriptorVersion, Generation, Incarnation};
use tokio::time::sleep;

use super::{Inbox, PATIENCE, handlers, listen, loopback};

/// The batch whose notification panics.
pub(crate) const PANICS: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Engine {
    id: PeerId,
    /// Whether peers are refused.
    pub(crate) unwelcome: AtomicBool,
    /// Whether a notification waits for ever.
    pub(crate) slow: AtomicBool,
    /// How long a notification waits, in milliseconds.
    pub(crate) delay: AtomicU64,
    pub(crate) opened: Mutex<Vec<NativePeer>>,
    pub(crate) holders: Mutex<Vec<NativePeer>>,
    pub(crate) notified: Mutex<Vec<u64>>,
    pub(crate) withdrawn: Mutex<Vec<Generation>>,
    pub(crate) asked: AtomicUsize,
    pub(crate) gone: AtomicUsize,
}

impl Engine {
    pub(crate) fn new(life: u128, name: &str) -> Arc<Self> {
        Arc::new(Self {
            id: PeerId { incarnation: Incarnation::from_bits(life), name: name.to_owned() },
            unwelcome: AtomicBool::default(),
            slow: AtomicBool::default(),
            delay: AtomicU64::default(),
            opened: Mutex::default(),
            holders: Mutex::default(),
            notified: Mutex::default(),
            withdrawn: Mutex::default(),
            asked: AtomicUsize::default(),
            gone: AtomicUsize::default(),
        })
    }

    /// What it does before it returns a future keeps the order of the requests.
    fn begin(&self, peer: NativePeer, request: Request) -> Answer {
        self.asked.fetch_add(1, Ordering::SeqCst);
        match request {
            Request::Interest { .. } => {
                self.holders.lock().unwrap().push(peer);
                Answer::Interest { version: DescriptorVersion::new(7) }
            }
            Request::Invalidate { withdrawn, .. } => {
                self.withdrawn.lock().unwrap().extend(withdrawn);
                Answer::Invalidate
            }
            Request::Fence { requests } => {
                let outcome = |request: FencedAttempt| match request.request {
                    1 => FenceOutcome::Applied,
                    _ => FenceOutcome::Stopped,
                };
                Answer::Fence { stopped: requests.into_iter().map(outcome).collect() }
            }
            Request::Notify { batch, .. } => {
                self.notified.lock().unwrap().push(batch);
                Answer::Notify { taken: true }
            }
            other => panic!("unexpected {other:?}"),
        }
    }
}

impl NativeHandler for Engine {
    fn identity(&self) -> PeerId {
        self.id.clone()
    }

    fn welcome(self: Arc<Self>, _: PeerId) -> BoxFuture<'static, Result<(), RefuseReason>> {
        Box::pin(async move {
            let unwelcome = self.unwelcome.load(Ordering::SeqCst);
            if unwelcome { Err(RefuseReason::ShuttingDown) } else { Ok(()) }
        })
    }

    fn opened(&self, peer: &NativePeer) {
        self.opened.lock().unwrap().push(peer.clone());
    }

    fn handle(self: Arc<Self>, peer: NativePeer, request: Request) -> BoxFuture<'static, Answer> {
        let answer = self.begin(peer, request.clone());
        Box::pin(async move {
            if let Request::Notify { batch, .. } = request {
                assert_ne!(batch, PANICS, "as the test wants it");
                sleep(Duration::from_millis(self.delay.load(Ordering::SeqCst))).await;
                if self.slow.load(Ordering::SeqCst) {
                    sleep(PATIENCE * 2).await;
                }
            }
            answer
        })
    }

    fn gone(&self, _: &NativePeer) {
        self.gone.fetch_add(1, Ordering::SeqCst);
    }
}

fn serve_on(listener: RpcListener, engine: &Arc<Engine>, limits: RpcLimits) -> RpcServer {
    let native: Arc<dyn NativeHandler> = engine.clone();
    listener.serve(Handlers { native: Some(native), ..handlers(&Inbox::default()) }, limits)
}

pub(crate) async fn serve_engine(engine: &Arc<Engine>, limits: RpcLimits) -> RpcServer {
    serve_on(listen().await, engine, limits)
}

/// A later life at the port of an earlier one.
pub(crate) async fn serve_engine_at(engine: &Arc<Engine>, port: u16) -> RpcServer {
    let bind = loopback(PortChoice::Fixed(port));
    serve_on(RpcListener::bind(bind).await.unwrap(), engine, RpcLimits::default())
}

pub(crate) fn client(limits: NativeLimits) -> NativeClient {
    NativeClient::new(Engine::new(2, "client"), limits)
}

/// Whoever answers at the server.
pub(crate) fn target(server: &RpcServer) -> Target {
    Target::from(te_segment::Endpoint::try_from(server.endpoint()).unwrap())
}

pub(crate) fn life(bits: u128) -> Expectation {
    Expectation { incarnation: Some(Incarnation::from_bits(bits)), name: None }
}

/// That life and no other.
pub(crate) fn expecting(server: &RpcServer, bits: u128) -> Target {
    Target { expects: life(bits), ..target(server) }
}
