//! Engines over our own HTTP store.
#![cfg(all(feature = "tcp", feature = "http"))]
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod support;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use support::{named, names, read_across, soon, stop, until};
use te::metadata::{Owner, list};
use te::settings::Settings;
use te::{Access, EngineBuilder, ErrorKind, Result, blocking};
use te_metadata_http::server::MetadataServer;
use tokio::runtime::Runtime;

/// A server with a runtime of its own, as in another process.
struct Store {
    runtime: Runtime,
    server: Option<MetadataServer>,
    at: SocketAddr,
}

impl Store {
    fn start() -> Self {
        Self::at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), None)
    }

    fn at(at: SocketAddr, token: Option<&str>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut builder = MetadataServer::builder().bind(at);
        if let Some(token) = token {
            builder = builder.token(token);
        }
        let server = runtime.block_on(builder.start()).unwrap();
        Self { runtime, at: server.local_addr(), server: Some(server) }
    }

    fn url(&self) -> String {
        format!("http://{}/metadata", self.at)
    }

    fn names(&self) -> Vec<(String, Owner)> {
        names(&self.url())
    }

    fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            // Engines hold a watch; that it ends is what is wanted.
            let _ = self.runtime.block_on(server.shutdown(Instant::now() + Duration::from_millis(500)));
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.stop();
    }
}

fn engine(store: &Store, name: &str) -> EngineBuilder {
    named(name).metadata(&store.url()).set("metadata.lease", "1s")
}

fn start(store: &Store, name: &str) -> blocking::Engine {
    blocking::build(engine(store, name)).unwrap()
}

#[test]
fn engines_find_each_other_move_bytes_and_leave_nothing_behind() -> Result<()> {
    let store = Store::start();
    let (owner, other) = (start(&store, "prefill-3"), start(&store, "pool/decode-7"));
    read_across(&owner, &other)?;
    read_across(&other, &owner)?;
    other.notify("prefill-3", "layer", "17")?;
    let notification = owner.wait_notification(soon()).unwrap();
    assert_eq!((notification.name.as_str(), notification.message.as_str()), ("layer", "17"));
    let alive = |name: &str| (name.to_owned(), Owner::Alive);
    assert_eq!(store.names(), [alive("pool/decode-7"), alive("prefill-3")]);
    stop(&owner);
    stop(&other);
    assert_eq!(store.names(), []);
    Ok(())
}

/// META-03, contract 14.
#[test]
fn a_name_is_refused_while_its_holder_answers() {
    let store = Store::start();
    let first = start(&store, "prefill-3");
    let refused = blocking::build(engine(&store, "prefill-3")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Name);
    assert!(refused.cause().contains(&format!("127.0.0.1:{}", first.control_port())), "{refused}");
    stop(&first);
    stop(&start(&store, "prefill-3"));
}

/// META-04: everything is back within a lease, from the same life; meanwhile transfers on open segments go on.
#[test]
fn a_store_that_restarts_empty_is_filled_again() -> Result<()> {
    const LEASE: Duration = Duration::from_secs(2);
    let mut store = Store::start();
    let start = |name| blocking::build(engine(&store, name).set("metadata.lease", "2s")).unwrap();
    let (owner, other) = (start("prefill-3"), start("decode-7"));
    let buffer = owner.register(vec![7; 64], Access::REMOTE_READ).unwrap();
    owner.published(soon())?;
    let peer = other.open("prefill-3")?;
    let range = peer.range(buffer.address(), 64)?;
    let local = other.allocate(64, te::Location::Any, Access::LOCAL)?;
    let life = peer.incarnation();

    store.stop();
    for _ in 0..3 {
        other.batch().read(&range, local.slice(..)).run()?;
        std::thread::sleep(Duration::from_millis(200));
    }
    let store = Store::at(store.at, None);
    let took = until("publishing again", || store.names().len() == 2);
    assert!(took <= LEASE, "{took:?}");
    let again = other.open("prefill-3")?;
    assert_eq!((again.incarnation(), again.descriptor().buffers().len()), (life, 1));
    other.batch().read(&range, local.slice(..)).run()?;
    stop(&other);
    stop(&owner);
    Ok(())
}

/// META-04: what is registered during an outage is published when it ends, without anybody's help.
#[test]
fn publishing_resumes_after_an_outage() -> Result<()> {
    let mut store = Store::start();
    let (owner, other) = (start(&store, "prefill-3"), start(&store, "decode-7"));
    store.stop();
    let _buffer = owner.register(vec![7; 64], Access::REMOTE_READ).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let store = Store::at(store.at, None);
    until("publishing what came meanwhile", || {
        store.names().len() == 2
            && other
                .open("prefill-3")
                .is_ok_and(|peer| other.sync(&peer).is_ok() && peer.descriptor().buffers().len() == 1)
    });
    stop(&other);
    stop(&owner);
    Ok(())
}

#[test]
fn a_token_opens_a_store_that_wants_one() {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let store = Store::at(any, Some("hunter2"));
    let refused = blocking::build(engine(&store, "node")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::MetadataUnavailable);
    let wrong = blocking::build(engine(&store, "node").set("metadata.token", "hunter3")).unwrap_err();
    assert!(!format!("{wrong:#} {wrong:?}").contains("hunter"), "{wrong:#}");
    stop(&blocking::build(engine(&store, "node").set("metadata.token", "hunter2")).unwrap());
}

/// META-05: a store that is not there is an error in time, and nothing is left running.
#[test]
fn a_store_that_is_not_there_is_an_error_in_time() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let began = Instant::now();
    let builder = named("node").metadata(&format!("http://{free}/metadata")).set("control.request", "1s");
    let error = blocking::build(builder).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MetadataUnavailable);
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

/// A store that only knows the reference's requests has no list; that is said, and is no mistake of the caller's.
#[test]
fn a_list_without_a_store_is_an_error() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(list(&Settings::default(), soon())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.cause().contains("P2PHANDSHAKE is no store"), "{error}");
}
