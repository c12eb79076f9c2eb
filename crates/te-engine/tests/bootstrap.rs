//! Set-up messages of transports, between engines and over real sockets.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use common::World;
use te_engine::{Engine, EngineConfig};
use te_segment::{Endpoint, TransportKind};
use te_testkit::CopyTransport;
use te_transport::{BootstrapError, BootstrapHandler, BoxFuture, Context, Install, InstallError, Transport};

/// Far more than an exchange takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Lets the test see what the engine hands to its transport.
struct Tapped {
    transport: CopyTransport,
    context: Arc<OnceLock<Context>>,
}

impl Install for Tapped {
    fn kind(&self) -> TransportKind {
        self.transport.kind()
    }

    fn install(self: Box<Self>, context: &Context) -> Result<Arc<dyn Transport>, InstallError> {
        assert!(self.context.set(context.clone()).is_ok(), "installed once");
        Box::new(self.transport).install(context)
    }
}

/// An engine, and what its transport got.
struct Node {
    engine: Engine,
    context: Context,
}

impl Node {
    fn new(world: &World, config: EngineConfig) -> Self {
        let context = Arc::<OnceLock<Context>>::default();
        let tapped = Tapped { transport: world.transport(TransportKind::SHM), context: context.clone() };
        let engine = world.engine_with(config, vec![Box::new(tapped)]);
        Self { engine, context: context.get().unwrap().clone() }
    }

    fn named(world: &World, name: &str) -> Self {
        Self::new(world, World::config(name))
    }

    fn control(&self) -> Endpoint {
        format!("127.0.0.1:{}", self.engine.control_port()).parse().unwrap()
    }

    fn handle(&self, protocol: &str, handler: impl BootstrapHandler + 'static) {
        assert!(
            self.context.bootstrap.handle(protocol, Arc::new(handler)),
            "the first handler of {protocol}"
        );
    }

    async fn exchange(&self, peer: &Node, protocol: &str, message: &[u8]) -> Result<Vec<u8>, BootstrapError> {
        let deadline = Instant::now() + PATIENCE;
        let (peer, message) = (peer.control(), message.to_vec());
        self.context.bootstrap.exchange(&peer, protocol, "device", message, deadline).await
    }
}

fn run<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Answers on another thread, as who has to create something first; refuses what is empty.
struct Echo;

impl BootstrapHandler for Echo {
    fn answer<'a>(
        &'a self,
        from: &'a Endpoint,
        device_path: &'a str,
        message: &'a [u8],
    ) -> BoxFuture<'a, Option<Vec<u8>>> {
        let answer = (!message.is_empty()).then(|| {
            let mut answer = format!("{from} {device_path} ").into_bytes();
            answer.extend_from_slice(message);
            answer
        });
        let (done, made) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            done.send(answer)
        });
        Box::pin(async move { made.await.unwrap() })
    }
}

/// Takes messages and never answers.
struct Silent;

impl BootstrapHandler for Silent {
    fn answer<'a>(&'a self, _: &'a Endpoint, _: &'a str, _: &'a [u8]) -> BoxFuture<'a, Option<Vec<u8>>> {
        Box::pin(std::future::pending())
    }
}

#[test]
fn answers_of_other_threads_are_awaited_and_arrive_whole() {
    let world = World::new();
    let (target, initiator) = (Node::named(&world, "target"), Node::named(&world, "initiator"));
    target.handle("echo", Echo);
    run(async {
        let message = [0, 255, b'\n', 7];
        let mut expected = format!("{} device ", initiator.control()).into_bytes();
        expected.extend_from_slice(&message);
        assert_eq!(initiator.exchange(&target, "echo", &message).await.unwrap(), expected);
        let refused = initiator.exchange(&target, "echo", b"").await.unwrap_err();
        assert!(refused.cause.contains("echo refused the message"), "{refused}");
        assert!(!refused.retryable);
    });
}

#[test]
fn handler_that_never_answers_costs_a_peer_one_control_request() {
    let world = World::new();
    let mut config = World::config("target");
    config.limits.control_request = Duration::from_millis(300);
    let (target, initiator) = (Node::new(&world, config), Node::named(&world, "initiator"));
    target.handle("silent", Silent);
    target.handle("echo", Echo);
    run(async {
        let began = Instant::now();
        initiator.exchange(&target, "silent", b"hello").await.unwrap_err();
        // The initiator itself would wait for 5 s.
        assert!(began.elapsed() < Duration::from_secs(4), "waited for {:?}", began.elapsed());
        let (silent, echo) = tokio::join!(
            initiator.exchange(&target, "silent", b"1"),
            initiator.exchange(&target, "echo", b"2")
        );
        silent.unwrap_err();
        echo.unwrap();
    });
}
