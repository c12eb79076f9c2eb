//! Descriptors asked from their owners, over real sockets.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure fails the test")]

use std::{
    net::SocketAddr,
    num::NonZeroU16,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use te_metadata::{Directory, DirectoryError, Refreshed, SegmentCache, SegmentState, Source};
use te_metadata_p2p::{OwnDescriptor, P2pDirectory, exchange_handler, own_name};
use te_rpc::{
    Bind, Call, FrameKind, Handlers, PortChoice, Reply, RpcClient, RpcHandler, RpcLimits, RpcListener,
    RpcServer, handler_fn,
};
use te_segment::{
    Access, AddressRange, BufferDescriptor, CompatProtocol, DescriptorVersion, Endpoint, Generation, Host,
    Identity, Incarnation, Location, SegmentDescriptor, SegmentName, TcpFraming, TcpService, TransportKind,
    Via,
};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn client() -> RpcClient {
    RpcClient::new(RpcLimits::default())
}

/// A descriptor of life 7 with `buffers` buffers; without a host, peers find the data port at the name.
fn descriptor(of: &SegmentName, version: u64, buffers: u64, data_host: Option<&str>) -> SegmentDescriptor {
    let control: Endpoint = of.as_str().parse().unwrap();
    let mut builder = SegmentDescriptor::builder(of.clone())
        .identity(Identity::Te { incarnation: Incarnation::from_bits(7), control: Some(control) })
        .version(DescriptorVersion::new(version))
        .tcp(TcpService {
            host: data_host.map(|host| host.parse().unwrap()),
            port: NonZeroU16::new(16411).unwrap(),
            framing: TcpFraming::V2,
        });
    for n in 0..buffers {
        let buffer = BufferDescriptor::new(
            AddressRange::new(0x10_0000 + n * 0x1000, 0x1000).unwrap(),
            Location::cpu(0),
            Access::REMOTE,
            Some(Generation::new(n + 1)),
            [(TransportKind::TCP, Via::Tcp)].into(),
        );
        builder = builder.buffer(buffer.unwrap());
    }
    builder.build().unwrap()
}

/// An engine reduced to its listener, its directory and what it hands out.
struct Engine {
    name: SegmentName,
    directory: Arc<P2pDirectory>,
    _server: RpcServer,
}

impl Engine {
    /// Listens at `host` and has published one buffer.
    async fn start(host: &str) -> Self {
        let host: Host = host.parse().unwrap();
        let listener =
            RpcListener::bind(Bind { host: host.clone(), port: PortChoice::Fixed(0) }).await.unwrap();
        let name = own_name(&host, listener.port()).unwrap();
        let own = OwnDescriptor::default();
        let handler: Arc<dyn RpcHandler> = Arc::new(exchange_handler(own.provider()));
        let handlers = Handlers { metadata: Some(handler), ..Handlers::default() };
        let server = listener.serve(handlers, RpcLimits::default());
        let directory = Arc::new(P2pDirectory::serving(client(), own));
        let engine = Self { name, directory, _server: server };
        engine.publish(1, 1).await;
        engine
    }

    fn endpoint(&self) -> Endpoint {
        self.name.as_str().parse().unwrap()
    }

    async fn publish(&self, version: u64, buffers: u64) {
        let descriptor = Arc::new(descriptor(&self.name, version, buffers, None));
        self.directory.publish(descriptor, self.endpoint().into(), soon()).await.unwrap();
    }
}

/// A listener whose metadata requests `handler` answers.
async fn peer(handler: Option<Arc<dyn RpcHandler>>) -> (SegmentName, RpcServer) {
    let host: Host = "127.0.0.1".parse().unwrap();
    let listener = RpcListener::bind(Bind { host: host.clone(), port: PortChoice::Fixed(0) }).await.unwrap();
    let name = own_name(&host, listener.port()).unwrap();
    let handlers = Handlers { metadata: handler, ..Handlers::default() };
    (name, listener.serve(handlers, RpcLimits::default()))
}

async fn resolve_at(name: &SegmentName) -> Result<te_metadata::Resolved, DirectoryError> {
    P2pDirectory::serving(client(), OwnDescriptor::default()).resolve(name, soon()).await
}

#[tokio::test]
async fn a_peer_is_opened_by_its_address() {
    let (a, b) = (Engine::start("127.0.0.1").await, Engine::start("127.0.0.1").await);
    let found = a.directory.resolve(&b.name, soon()).await.unwrap();
    assert!(found.descriptor.same_content(&descriptor(&b.name, 1, 1, None)));
    assert_eq!(found.descriptor.incarnation(), Some(Incarnation::from_bits(7)));
    assert_eq!(found.source, Source::Owner { address: b.endpoint() });
    assert_eq!(a.directory.locate(&b.name, soon()).await.unwrap(), b.endpoint());
}

/// META-20.
#[tokio::test]
async fn a_peer_at_an_ipv6_address_is_opened_by_its_bracketed_name() {
    let (a, b) = (Engine::start("::1").await, Engine::start("::1").await);
    assert!(b.name.as_str().starts_with("[::1]:"));
    let found = a.directory.resolve(&b.name, soon()).await.unwrap();
    assert_eq!(found.descriptor.name(), &b.name);
    assert_eq!(found.tcp, Some("[::1]:16411".parse().unwrap()));
}

#[tokio::test]
async fn a_peer_is_opened_by_a_host_name() {
    let b = Engine::start("127.0.0.1").await;
    let alias = SegmentName::new(&format!("localhost:{}", b.endpoint().port())).unwrap();
    let found = resolve_at(&alias).await.unwrap();
    assert_eq!(found.descriptor.name(), &b.name);
}

#[tokio::test]
async fn an_engine_can_open_itself() {
    let a = Engine::start("127.0.0.1").await;
    assert_eq!(a.directory.resolve(&a.name, soon()).await.unwrap().descriptor.name(), &a.name);
}

#[tokio::test]
async fn the_data_host_of_the_descriptor_wins_over_the_name() {
    let b = Engine::start("127.0.0.1").await;
    let record = Arc::new(descriptor(&b.name, 2, 1, Some("127.0.0.2")));
    b.directory.publish(record, b.endpoint().into(), soon()).await.unwrap();
    assert_eq!(resolve_at(&b.name).await.unwrap().tcp, Some("127.0.0.2:16411".parse().unwrap()));
}

/// SEG-09.
#[tokio::test]
async fn sync_sees_what_the_peer_changed() {
    let (a, b) = (Engine::start("127.0.0.1").await, Engine::start("127.0.0.1").await);
    let cache = SegmentCache::new(a.directory.clone());
    let segment = cache.open(&b.name, soon()).await.unwrap();
    b.publish(2, 3).await;
    assert_eq!(segment.snapshot().descriptor.buffers().len(), 1);
    assert_eq!(segment.sync(soon()).await.unwrap(), Refreshed::Changed);
    assert_eq!(segment.snapshot().descriptor.buffers().len(), 3);
}

/// META-01.
#[tokio::test]
async fn a_peer_that_is_gone_cannot_be_opened_again_and_what_is_held_stays() {
    let (a, b) = (Engine::start("127.0.0.1").await, Engine::start("127.0.0.1").await);
    let cache = SegmentCache::new(a.directory.clone());
    let segment = cache.open(&b.name, soon()).await.unwrap();
    let (name, address) = (b.name.clone(), b.endpoint());
    b._server.shutdown(soon()).await;
    let error = cache.open(&name, soon()).await.unwrap_err();
    assert_eq!(error, DirectoryError::Refused { name, address });
    assert!(matches!(segment.state(), SegmentState::Suspect { .. }));
    assert_eq!(segment.snapshot().descriptor.buffers().len(), 1);
}

/// META-07.
#[tokio::test]
async fn engines_in_a_ring_open_each_other_at_the_same_time() {
    const RING: usize = 16;
    let mut engines = Vec::new();
    for _ in 0..RING {
        engines.push(Engine::start("127.0.0.1").await);
    }
    let opens: Vec<_> = (0..RING)
        .map(|n| {
            let (directory, next) = (engines[n].directory.clone(), engines[(n + 1) % RING].name.clone());
            tokio::spawn(async move { directory.resolve(&next, soon()).await })
        })
        .collect();
    for (n, open) in opens.into_iter().enumerate() {
        let found = open.await.unwrap().unwrap();
        assert_eq!(found.descriptor.name(), &engines[(n + 1) % RING].name);
    }
}

#[tokio::test]
async fn an_engine_that_publishes_in_a_store_is_a_distinct_error() {
    let (name, _server) = peer(None).await;
    let address: Endpoint = name.as_str().parse().unwrap();
    assert_eq!(resolve_at(&name).await.unwrap_err(), DirectoryError::NotAP2pPeer { address });
}

#[tokio::test]
async fn nothing_is_handed_out_after_withdrawal() {
    let b = Engine::start("127.0.0.1").await;
    b.directory.withdraw(&SegmentName::new("127.0.0.1:1").unwrap(), soon()).await.unwrap();
    assert!(resolve_at(&b.name).await.is_ok(), "another name was withdrawn");
    b.directory.withdraw(&b.name, soon()).await.unwrap();
    let error = resolve_at(&b.name).await.unwrap_err();
    assert!(matches!(error, DirectoryError::NotAP2pPeer { .. }), "{error}");
}

/// META-06.
#[tokio::test]
async fn a_refused_connection_names_the_address_tried() {
    // Bound and never listening: nobody else can get the port, and connections to it are refused.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let error = resolve_at(&SegmentName::new(&address.to_string()).unwrap()).await.unwrap_err();
    assert!(matches!(error, DirectoryError::Refused { .. }), "{error}");
    assert!(error.is_retryable() && !error.is_outage());
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

#[tokio::test]
async fn a_silent_peer_costs_the_deadline_and_is_named() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let name = SegmentName::new(&address.to_string()).unwrap();
    let directory = P2pDirectory::serving(client(), OwnDescriptor::default());
    let begun = Instant::now();
    let error = directory.resolve(&name, begun + Duration::from_millis(200)).await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(2));
    assert!(
        matches!(&error, DirectoryError::DeadlineExceeded { from, .. } if *from == address.to_string()),
        "{error}"
    );
}

#[tokio::test]
async fn an_answer_that_is_no_descriptor_is_an_error_that_names_the_peer() {
    for answer in ["{}", "5", "[]", r#"{"protocol":"tcp","tcp_data_port":-1}"#] {
        let handler = handler_fn(move |_: Call| async move { Reply::Body(answer.as_bytes().to_vec()) });
        let (name, _server) = peer(Some(Arc::new(handler))).await;
        let error = resolve_at(&name).await.unwrap_err();
        assert!(
            matches!(&error, DirectoryError::InvalidDescriptor { from, .. } if from == name.as_str()),
            "{answer}: {error}"
        );
    }
}

#[tokio::test]
async fn a_peer_that_closes_is_unavailable() {
    let (name, _server) = peer(Some(Arc::new(handler_fn(|_: Call| async { Reply::Close })))).await;
    let error = resolve_at(&name).await.unwrap_err();
    assert!(matches!(&error, DirectoryError::Unavailable { from, .. } if from == name.as_str()), "{error}");
}

/// META-22.
#[tokio::test]
async fn names_that_are_no_address_are_refused_without_asking_anybody() {
    for name in ["node-a", "10.0.0.1", "10.0.0.1:0", "10.0.0.1:65536", "::1", "a/b:1", "[::1]", ":1"] {
        let name = SegmentName::new(name).unwrap();
        let error = resolve_at(&name).await.unwrap_err();
        assert!(matches!(error, DirectoryError::NameInvalid { .. }), "{name}: {error}");
    }
}

#[tokio::test]
async fn a_descriptor_whose_name_is_no_address_cannot_be_published() {
    let own = OwnDescriptor::default();
    let directory = P2pDirectory::serving(client(), own.clone());
    let record = SegmentDescriptor::builder(SegmentName::new("node-a").unwrap()).build().unwrap();
    let here: Endpoint = "127.0.0.1:15000".parse().unwrap();
    let error = directory.publish(Arc::new(record), here.into(), soon()).await.unwrap_err();
    assert!(matches!(error, DirectoryError::NameInvalid { .. }), "{error}");
    assert!(own.current().is_none());
}

/// The requester shows itself without its buffers, so its own memory does not weigh on the request.
#[tokio::test]
async fn the_request_carries_the_own_descriptor_without_buffers() {
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let spy = handler_fn(move |call: Call| {
        sender.send(call.body).unwrap();
        async { Reply::Close }
    });
    let (name, _server) = peer(Some(Arc::new(spy))).await;
    let a = Engine::start("127.0.0.1").await;
    a.publish(2, 500).await;
    a.directory.resolve(&name, soon()).await.unwrap_err();
    let body = receiver.recv().await.unwrap();
    assert!(body.ends_with(b"}\n") && body.len() < 2048, "{} bytes", body.len());
    let sent = SegmentDescriptor::decode(&body).unwrap().descriptor;
    assert_eq!((sent.name(), sent.buffers().len()), (&a.name, 0));
    assert_eq!(sent.incarnation(), Some(Incarnation::from_bits(7)));
    let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert!(json["te"].is_object());
}

#[tokio::test]
async fn the_request_body_can_be_supplied() {
    let seen = Arc::new(AtomicUsize::new(0));
    let supplied = Arc::clone(&seen);
    let directory = P2pDirectory::new(client(), move || {
        supplied.fetch_add(1, Ordering::SeqCst);
        r#"{"protocol":"tcp","te":{"v":1}}"#.to_owned()
    });
    let b = Engine::start("127.0.0.1").await;
    let found = directory.resolve(&b.name, soon()).await.unwrap();
    assert_eq!(found.descriptor.incarnation(), Some(Incarnation::from_bits(7)));
    assert_eq!(seen.load(Ordering::SeqCst), 1);
}

/// What the handler answers to a body; `None` if it closes.
async fn answer(own: &OwnDescriptor, body: &[u8]) -> Option<String> {
    let peer: SocketAddr = "127.0.0.1:40000".parse().unwrap();
    let call = Call { peer, kind: FrameKind::Metadata, legacy: false, body: body.to_vec() };
    match exchange_handler(own.provider()).handle(call).await {
        Reply::Body(body) => Some(String::from_utf8(body).unwrap()),
        Reply::Close => None,
    }
}

fn published() -> OwnDescriptor {
    let own = OwnDescriptor::default();
    own.publish(Arc::new(descriptor(&SegmentName::new("127.0.0.1:15273").unwrap(), 1, 1, None)));
    own
}

async fn record(own: &OwnDescriptor, body: &str) -> serde_json::Value {
    serde_json::from_str(&answer(own, body.as_bytes()).await.unwrap()).unwrap()
}

#[tokio::test]
async fn a_peer_is_answered_with_its_own_protocol() {
    let own = published();
    assert_eq!(record(&own, r#"{"protocol":"tcp"}"#).await["protocol"], "tcp");
    assert_eq!(record(&own, r#"{"protocol":"rdma"}"#).await["protocol"], "rdma");
    assert_eq!(record(&own, r#"{"protocol":"nvlink"}"#).await["protocol"], "tcp");
    let own = own.with_default_compat(CompatProtocol::Rdma);
    assert_eq!(record(&own, r#"{"protocol":"nvlink"}"#).await["protocol"], "rdma");
    assert_eq!(record(&own, r#"{"protocol":"tcp"}"#).await["protocol"], "tcp");
}

#[tokio::test]
async fn the_extension_goes_to_those_who_have_one() {
    let own = published();
    assert!(record(&own, r#"{"protocol":"tcp","te":{"v":1}}"#).await["te"].is_object());
    assert!(record(&own, r#"{"protocol":"tcp"}"#).await.get("te").is_none());
}

#[tokio::test]
async fn a_body_of_any_json_is_answered() {
    let own = published();
    for body in ["{}", "[]", "5", "null", "\"x\"", "{}\n"] {
        assert_eq!(record(&own, body).await["name"], "127.0.0.1:15273", "{body}");
    }
}

#[tokio::test]
async fn a_body_that_is_no_json_is_closed_on() {
    assert_eq!(answer(&published(), b"GET / HTTP/1.1").await, None);
}

#[tokio::test]
async fn an_answer_ends_in_one_newline() {
    let text = answer(&published(), b"{}").await.unwrap();
    assert!(text.ends_with("}\n") && text.matches('\n').count() == 1);
}

#[tokio::test]
async fn an_engine_with_nothing_to_offer_answers_null() {
    assert_eq!(answer(&OwnDescriptor::default(), b"{}").await.as_deref(), Some("null\n"));
}

/// Request and reply of two reference engines, as recorded, with other addresses.
mod recorded {
    use super::*;

    const REQUEST: &[u8] = br#"{"buffers":[{"addr":94817022021632,"length":65536,"name":"10.0.0.8:15710"}],"name":"10.0.0.8:15710","protocol":"tcp","rdma_server_name":"","tcp_data_host":"10.0.0.8","tcp_data_port":16763,"tcp_proto_version":2,"timestamp":"2026-11-29 16:23:01.820850"}
"#;
    const REPLY: &[u8] = br#"{"buffers":[{"addr":94065883533312,"length":65536,"name":"10.0.0.7:15273"}],"name":"10.0.0.7:15273","protocol":"tcp","rdma_server_name":"","tcp_data_host":"10.0.0.7","tcp_data_port":16082,"tcp_proto_version":2,"timestamp":"2026-11-29 16:23:01.821200"}
"#;

    /// The text without the value of its time stamp, which is the last member.
    fn masked(text: &str) -> &str {
        text.split_once(r#""timestamp":""#).unwrap().0
    }

    /// The target of the recording, as a te engine would describe it.
    fn target() -> OwnDescriptor {
        let range = AddressRange::new(94_065_883_533_312, 65_536).unwrap();
        let buffer = BufferDescriptor::new(
            range,
            // The reference engine names a tcp buffer by its segment.
            Location::Other("10.0.0.7:15273".to_owned()),
            Access::REMOTE,
            Some(Generation::new(1)),
            [(TransportKind::TCP, Via::Tcp)].into(),
        );
        let service = TcpService {
            host: Some("10.0.0.7".parse().unwrap()),
            port: NonZeroU16::new(16082).unwrap(),
            framing: TcpFraming::V2,
        };
        let record = SegmentDescriptor::builder(SegmentName::new("10.0.0.7:15273").unwrap())
            .identity(Identity::Te { incarnation: Incarnation::from_bits(7), control: None })
            .tcp(service)
            .buffer(buffer.unwrap())
            .build()
            .unwrap();
        let own = OwnDescriptor::default();
        own.publish(Arc::new(record));
        own
    }

    #[tokio::test]
    async fn the_request_is_answered_byte_for_byte_as_by_the_reference_engine() {
        let ours = answer(&target(), REQUEST).await.unwrap();
        let theirs = std::str::from_utf8(REPLY).unwrap();
        assert_eq!(masked(&ours), masked(theirs));
        assert_eq!(ours.len(), theirs.len(), "the time stamp has the same form");
    }

    #[tokio::test]
    async fn the_reply_of_a_reference_engine_is_understood() {
        let handler = handler_fn(|_: Call| async { Reply::Body(REPLY.to_vec()) });
        let (name, _server) = peer(Some(Arc::new(handler))).await;
        let found = resolve_at(&name).await.unwrap();
        assert_eq!(found.descriptor.name().as_str(), "10.0.0.7:15273");
        assert_eq!(found.descriptor.identity(), &Identity::Reference);
        assert_eq!(found.tcp, Some("10.0.0.7:16082".parse().unwrap()));
        let range = found.descriptor.buffers()[0].range();
        assert_eq!((range.start(), range.len()), (94_065_883_533_312, 65_536));
    }
}
