//! Engines over real etcd and redis servers, which the tests start and stop themselves.
#![cfg(all(feature = "tcp", any(feature = "etcd", feature = "redis")))]
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod support;

use std::path::Path;
use std::time::Duration;

use support::{named, names, read_across, soon, stop, until, write_across};
use te::metadata::Owner;
use te::{Access, ErrorKind, Result, blocking};

/// Whole seconds, for stores that count so.
const LEASE: Duration = Duration::from_secs(3);
const FOLDER: &str = env!("CARGO_TARGET_TMPDIR");

/// A server that can be stopped and come back empty.
trait Server {
    fn start() -> Self;

    fn url(&self) -> String;

    fn restart_empty(&mut self, meanwhile: impl FnOnce());
}

#[cfg(feature = "etcd")]
impl Server for te_testkit::EtcdServer {
    fn start() -> Self {
        Self::start(Path::new(FOLDER), &[]).unwrap()
    }

    fn url(&self) -> String {
        format!("etcd://{}", self.address())
    }

    fn restart_empty(&mut self, meanwhile: impl FnOnce()) {
        self.stop();
        self.wipe().unwrap();
        meanwhile();
        self.run().unwrap();
    }
}

#[cfg(feature = "redis")]
impl Server for te_testkit::RedisServer {
    fn start() -> Self {
        Self::start(Path::new(FOLDER), &[]).unwrap()
    }

    fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    fn restart_empty(&mut self, meanwhile: impl FnOnce()) {
        self.stop();
        self.wipe().unwrap();
        meanwhile();
        self.run().unwrap();
    }
}

fn build(url: &str, name: &str) -> Result<blocking::Engine> {
    blocking::build(named(name).metadata(url).set("metadata.lease", "3s"))
}

fn alive(name: &str) -> (String, Owner) {
    (name.to_owned(), Owner::Alive)
}

/// Two engines open each other by name, write and read, tell each other things, and leave nothing behind.
fn meet<S: Server>() -> Result<()> {
    let server = S::start();
    let url = server.url();
    let (owner, other) = (build(&url, "prefill-3")?, build(&url, "pool/decode-7")?);
    write_across(&owner, &other)?;
    read_across(&owner, &other)?;
    write_across(&other, &owner)?;
    other.notify("prefill-3", "layer", "17")?;
    assert_eq!(owner.wait_notification(soon()).unwrap().message, "17");
    assert_eq!(names(&url), [alive("pool/decode-7"), alive("prefill-3")]);
    let leases: Vec<_> = support::listed(&url).iter().map(|one| one.lease).collect();
    assert!(leases.iter().all(|lease| lease.is_some_and(|left| left <= LEASE)), "{leases:?}");
    stop(&owner);
    assert_eq!(other.open("prefill-3").unwrap_err().kind(), ErrorKind::NotFound);
    stop(&other);
    assert_eq!(names(&url), []);
    Ok(())
}

/// META-03.
fn refuse_a_taken_name<S: Server>() {
    let server = S::start();
    let first = build(&server.url(), "prefill-3").unwrap();
    let refused = build(&server.url(), "prefill-3").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Name);
    assert!(refused.cause().contains(&format!("127.0.0.1:{}", first.control_port())), "{refused}");
    stop(&first);
    stop(&build(&server.url(), "prefill-3").unwrap());
}

/// META-04: within one lease everything is back in a store that came back empty, under the same lives.
fn fill_an_empty_store<S: Server>() -> Result<()> {
    let mut server = S::start();
    let url = server.url();
    let (owner, other) = (build(&url, "prefill-3")?, build(&url, "decode-7")?);
    let buffer = owner.register(vec![7; 64], Access::REMOTE_READ).unwrap();
    owner.published(soon())?;
    let peer = other.open("prefill-3")?;
    let (life, range) = (peer.incarnation(), peer.range(buffer.address(), 64)?);
    let local = other.allocate(64, te::Location::Any, Access::LOCAL)?;
    // Transfers go on without the store.
    server.restart_empty(|| other.batch().read(&range, local.slice(..)).run().map(drop).unwrap());
    let took = until("publishing again", || names(&url).len() == 2);
    assert!(took <= LEASE, "{took:?}");
    let newcomer = build(&url, "newcomer")?;
    let again = newcomer.open("prefill-3")?;
    assert_eq!((again.incarnation(), again.descriptor().buffers().len()), (life, 1));
    for engine in [newcomer, other, owner] {
        stop(&engine);
    }
    Ok(())
}

macro_rules! over {
    ($store:ident, $server:ty) => {
        mod $store {
            use te::Result;

            #[test]
            fn engines_meet_move_bytes_and_leave_nothing_behind() -> Result<()> {
                super::meet::<$server>()
            }

            #[test]
            fn a_name_is_refused_while_its_holder_answers() {
                super::refuse_a_taken_name::<$server>();
            }

            #[test]
            fn a_store_that_comes_back_empty_is_full_again_within_a_lease() -> Result<()> {
                super::fill_an_empty_store::<$server>()
            }
        }
    };
}

#[cfg(feature = "etcd")]
over!(etcd, te_testkit::EtcdServer);
#[cfg(feature = "redis")]
over!(redis, te_testkit::RedisServer);
