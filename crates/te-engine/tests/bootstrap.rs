//! Set-up messages of transports, between engines and over real sockets.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use common::World;
use te_engine::{Engine, EngineConfig, block_on};
use te_rpc::message::ConnectionBody;
use te_segment::{Endpoint, Identity, Incarnation, SegmentDescriptor, SegmentName, TransportKind};
use te_testkit::CopyTransport;
use te_transport::{
    BootstrapError, BootstrapHandler, BoxFuture, Context, Install, InstallError, RDMA_PROTOCOL, Transport,
};

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

    async fn exchange(&self, peer: &Self, protocol: &str, message: &[u8]) -> Result<Vec<u8>, BootstrapError> {
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

/// The tail of every answer of [`Nics`].
const ANSWER: &[u8] = b"\n , not JSON even \x00\xff";

/// Answers with what it was asked, and refuses what mentions `nobody`.
struct Nics;

impl BootstrapHandler for Nics {
    fn answer<'a>(
        &'a self,
        from: &'a Endpoint,
        device_path: &'a str,
        message: &'a [u8],
    ) -> BoxFuture<'a, Option<Vec<u8>>> {
        assert!(from.host().is_loopback());
        let text = std::str::from_utf8(message).unwrap();
        let answer = [device_path.as_bytes(), b"|", message, ANSWER].concat();
        Box::pin(std::future::ready((!text.contains("nobody")).then_some(answer)))
    }
}

/// What [`Nics`] answers.
fn answer_of_nics(device_path: &str, message: &[u8]) -> Vec<u8> {
    [device_path.as_bytes(), b"|", message, ANSWER].concat()
}

/// Sends a whole frame and reads until the peer closes.
fn raw(to: &Endpoint, frame: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(to.to_string()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(frame).unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    reply
}

/// A frame of a connection request, or its reply; `kind` is empty in the old form.
fn frame(kind: &[u8], body: &[u8]) -> Vec<u8> {
    let length = u64::try_from(kind.len() + body.len()).unwrap();
    [&length.to_le_bytes(), kind, body].concat()
}

fn ask(to: &Endpoint, body: &str) -> Vec<u8> {
    raw(to, &frame(&[0], body.as_bytes()))
}

/// What an engine answers whose transports need no set-up.
fn nothing() -> Vec<u8> {
    frame(&[0], &ConnectionBody::default().encode())
}

/// The recorded connection requests of the reference engine's form, old and new, and its replies without RDMA.
fn recorded() -> Vec<(Vec<u8>, Vec<u8>)> {
    let text = include_str!("../../../tests/fixtures/rpc/raw_exchanges.json");
    let file: serde_json::Value = serde_json::from_str(text).unwrap();
    let bytes = |exchange: &serde_json::Value, member: &str| -> Vec<u8> {
        let hex = exchange[member].as_str().unwrap().as_bytes();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        hex.chunks(2).map(byte).collect()
    };
    let exchanges = file["exchanges"].as_array().unwrap().iter();
    let exchanges = exchanges.map(|exchange| (bytes(exchange, "sent"), bytes(exchange, "reply")));
    let handshakes: Vec<_> =
        exchanges.filter(|(sent, _)| sent.windows(7).any(|part| part == b"@mlx5_0")).collect();
    assert!(handshakes.len() >= 2, "the recording has both forms");
    handshakes
}

#[test]
fn rdma_messages_go_over_the_wire_as_they_are_in_both_directions() {
    let world = World::new();
    let (one, other) = (Node::named(&world, "one"), Node::named(&world, "other"));
    one.handle(RDMA_PROTOCOL, Nics);
    other.handle(RDMA_PROTOCOL, Nics);
    // Spaces, an unknown member and a number that no reader of text would write the same way again.
    let message = br#" { "local_nic_path" : "one@a", "peer_nic_path":"other@b", "te":{"psn":[1.0]} }  "#;
    for (from, to) in [(&one, &other), (&other, &one)] {
        let answer = run(from.exchange(to, RDMA_PROTOCOL, message)).unwrap();
        assert_eq!(answer, answer_of_nics("other@b", message));
    }
}

#[test]
fn exchanges_need_no_runtime_of_the_caller() {
    let world = World::new();
    let (one, other) = (Node::named(&world, "one"), Node::named(&world, "other"));
    other.handle("echo", Echo);
    block_on(one.exchange(&other, "echo", b"hello")).unwrap();
    let gone = one.context.clone();
    assert!(block_on(one.engine.shutdown(common::soon())).is_clean());
    drop(one);
    let (peer, deadline) = (other.control(), Instant::now() + PATIENCE);
    let exchange = gone.bootstrap.exchange(&peer, "echo", "", vec![1], deadline);
    assert!(block_on(exchange).unwrap_err().cause.contains("the engine has ended"));
}

#[test]
fn recorded_handshakes_reach_the_handler_whole_and_get_its_bytes() {
    let world = World::new();
    let target = Node::named(&world, "target");
    target.handle(RDMA_PROTOCOL, Nics);
    for (sent, _) in recorded() {
        // The old form has no kind byte, in the reply neither.
        let (kind, body): (&[u8], _) = if sent[8] == b'{' { (&[], &sent[8..]) } else { (&[0], &sent[9..]) };
        let answer = answer_of_nics("127.0.0.1:15273@mlx5_0", body);
        assert_eq!(raw(&target.control(), &sent), frame(kind, &answer));
    }
}

#[test]
fn recorded_handshakes_get_the_recorded_reply_where_nobody_handles_them() {
    let world = World::new();
    let target = Node::named(&world, "target");
    // Another protocol's handler is not asked.
    target.handle("silent", Silent);
    for (sent, reply) in recorded() {
        assert_eq!(raw(&target.control(), &sent), reply);
    }
}

#[test]
fn only_objects_that_name_the_senders_nic_are_handshakes() {
    let world = World::new();
    let target = Node::named(&world, "target");
    target.handle(RDMA_PROTOCOL, Nics);
    let control = target.control();
    for other in [
        "{}",
        "null",
        r#"{"peer_nic_path":"a@b"}"#,
        r#"{"local_nic_path":"127.0.0.1:12001"}"#,
        r#"{"local_nic_path":"@b"}"#,
        r#"{"local_nic_path":"a@"}"#,
        r#"{"local_nic_path":7}"#,
        r#"{"local_nic_path":"a@b","te_protocol":7}"#,
        // Refused by the handler.
        r#"{"local_nic_path":"nobody@b"}"#,
    ] {
        assert_eq!(ask(&control, other), nothing(), "{other}");
    }
}

#[test]
fn wrapped_messages_and_control_channels_are_no_handshakes() {
    let world = World::new();
    let target = Node::named(&world, "target");
    target.handle(RDMA_PROTOCOL, Nics);
    let control = target.control();
    for (request, reason) in [
        (r#"{"local_nic_path":"a@b","ctrl_channel":true}"#, "no control channel"),
        (r#"{"local_nic_path":"a@b","te_protocol":"else"}"#, "no transport here speaks else"),
        (r#"{"local_nic_path":"a@b","te_protocol":"rdma"}"#, "messages of rdma are not wrapped"),
    ] {
        let reply = ask(&control, request);
        let reply = ConnectionBody::decode(&reply[9..]).unwrap();
        assert!(
            reply.rejection().is_some_and(|rejection| rejection.contains(reason)),
            "{request}: {reply:?}"
        );
    }
}

#[test]
fn members_that_only_a_handler_may_understand_are_left_to_it() {
    let world = World::new();
    let (with, without) = (Node::named(&world, "with"), Node::named(&world, "without"));
    with.handle(RDMA_PROTOCOL, Nics);
    let odd = r#"{"local_nic_path":"a@b","peer_nic_path":"c@d","efa_addr":[]}"#;
    assert_eq!(ask(&with.control(), odd), frame(&[0], &answer_of_nics("c@d", odd.as_bytes())));
    assert_eq!(ask(&without.control(), odd), b"");
    for useless in [
        r#"["a@b"]"#,
        r#"{"local_nic_path":["a@b"]}"#,
        r#"{"local_nic_path":"nobody@b","efa_addr":[]}"#,
        r#"{"local_nic_path":"a@b","efa_addr":[],"ctrl_channel":true}"#,
        r#"{"local_nic_path":"a@b","efa_addr":[],"te_protocol":"else"}"#,
    ] {
        assert_eq!(ask(&with.control(), useless), b"", "{useless}");
    }
}

#[test]
fn control_endpoint_is_what_the_descriptor_states_or_what_is_published_beside_it() {
    let world = World::new();
    let (one, other) = (Node::named(&world, "one"), Node::named(&world, "other"));
    let described = |name: &str, identity| {
        SegmentDescriptor::builder(SegmentName::new(name).unwrap()).identity(identity).build().unwrap()
    };
    let stated: Endpoint = "10.9.8.7:65".parse().unwrap();
    let incarnation = Incarnation::from_bits(7);
    let te = |control| Identity::Te { incarnation, control };
    let found = [
        (described("other", te(Some(stated.clone()))), stated),
        (described("other", te(None)), other.control()),
        (described("other", Identity::Reference), other.control()),
        (described("one", Identity::Reference), one.control()),
    ];
    let locate = |peer| block_on(one.context.bootstrap.locate(peer, Instant::now() + PATIENCE));
    for (peer, at) in &found {
        assert_eq!(&locate(peer).unwrap(), at, "{peer:?}");
    }
    let unknown = locate(&described("nobody", Identity::Reference)).unwrap_err();
    assert!(unknown.to_string().starts_with("no control endpoint of nobody: "), "{unknown}");
}
