//! A listener to test against, and raw connections to it.

#![allow(dead_code, reason = "every test binary uses a part of this")]

use std::{
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use te_rpc::{
    AnswerProbes, Bind, Call, Handlers, PortChoice, Reply, RpcClient, RpcLimits, RpcListener, RpcServer,
    handler_fn,
    message::{ConnectionBody, NotifyBody, ProbeReply, notify_success},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

pub(crate) mod engine;

/// Longer than anything here takes, shorter than the patience of a test runner.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Closed,
    Reset,
}

pub(crate) fn loopback(port: PortChoice) -> Bind {
    Bind { host: "127.0.0.1".parse().unwrap(), port }
}

pub(crate) async fn listen() -> RpcListener {
    RpcListener::bind(loopback(PortChoice::Fixed(0))).await.unwrap()
}

/// Notifications that were delivered.
pub(crate) type Inbox = Arc<Mutex<Vec<NotifyBody>>>;

/// Handlers of all four kinds that behave like an engine without a transport that needs a set-up.
pub(crate) fn handlers(inbox: &Inbox) -> Handlers {
    let inbox = Arc::clone(inbox);
    Handlers {
        connection: Some(Arc::new(handler_fn(|call: Call| async move {
            match ConnectionBody::decode(&call.body) {
                Ok(_) => Reply::Body(ConnectionBody::default().encode()),
                Err(_) => Reply::Close,
            }
        }))),
        metadata: Some(Arc::new(handler_fn(|_| async { Reply::Body(b"{\"name\":\"test\"}\n".to_vec()) }))),
        notify: Some(Arc::new(handler_fn(move |call: Call| {
            let inbox = Arc::clone(&inbox);
            async move {
                match NotifyBody::decode(&call.body) {
                    Ok(body) => {
                        inbox.lock().unwrap().push(body);
                        Reply::Body(notify_success())
                    }
                    Err(_) => Reply::Close,
                }
            }
        }))),
        probe: Some(Arc::new(AnswerProbes)),
        native: None,
    }
}

pub(crate) async fn serve(limits: RpcLimits) -> RpcServer {
    listen().await.serve(handlers(&Inbox::default()), limits)
}

pub(crate) async fn connect(to: SocketAddr) -> TcpStream {
    let stream = timeout(PATIENCE, TcpStream::connect(to)).await.expect("connect in time").unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Reads until the peer closes.
pub(crate) async fn read_all(stream: &mut TcpStream) -> (Vec<u8>, End) {
    let mut bytes = Vec::new();
    let end = match timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("close in time") {
        Ok(_) => End::Closed,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => End::Reset,
        Err(error) => panic!("unexpected end: {error}"),
    };
    (bytes, end)
}

/// Sends bytes on a connection of their own and gives everything that comes back.
pub(crate) async fn exchange(to: SocketAddr, bytes: &[u8]) -> (Vec<u8>, End) {
    let mut stream = connect(to).await;
    // A listener that has seen enough may close while more is being sent.
    stream.write_all(bytes).await.ok();
    read_all(&mut stream).await
}

pub(crate) async fn assert_serves(to: SocketAddr) {
    let deadline = Instant::now() + PATIENCE;
    let reply = RpcClient::default().probe(&to.try_into().unwrap(), deadline).await;
    assert_eq!(reply.expect("a probe is answered"), ProbeReply::success());
}

/// Waits until `condition` holds.
pub(crate) async fn eventually(condition: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "the condition never held");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2));
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// A list in a fixture file of the workspace.
pub(crate) fn fixture(file: &str, list: &str) -> Vec<serde_json::Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/rpc").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    value[list].as_array().unwrap().clone()
}

/// Lets this process hold as many sockets as it is allowed to ask for.
pub(crate) fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}
