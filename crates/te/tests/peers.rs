//! Two engines in one process that find each other without a store.
#![cfg(all(feature = "tcp", feature = "p2p"))]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::error::Error as _;
use std::net::{IpAddr, Ipv6Addr, TcpListener};
use std::time::Duration;

use te::metadata::MetadataError;
use te::{Access, Deadline, ErrorKind, Location, Memory, Result, blocking};

fn build(name: &str) -> blocking::Engine {
    blocking::build(te::builder(name)).unwrap()
}

fn stop(engine: &blocking::Engine) {
    let report = engine.shutdown(Deadline::after_secs(5));
    assert!(report.is_clean(), "{report:?}");
}

/// Writes into a peer's buffer, reads back into another one and compares.
fn there_and_back(host: &str) -> Result<()> {
    let (owner, other) = (build(host), build(host));
    let offered = owner.allocate(1 << 20, Location::Any, Access::REMOTE)?;
    let source = other.register(Memory::from_vec(vec![0xa5; 1 << 20]), Access::LOCAL).unwrap();
    let sink = other.allocate(1 << 20, Location::Any, Access::LOCAL)?;
    let peer = other.open(owner.name().as_str())?;
    let remote = peer.range(offered.address(), offered.len())?;
    other.batch().write(source.slice(..), &remote).run()?;
    let report = other.batch().read(&remote, sink.slice(..)).run()?;
    assert_eq!(report.bytes(), 1 << 20);
    let transport = if cfg!(feature = "shm") { "shm " } else { "tcp " };
    assert!(report.path().starts_with(transport), "{report}");
    let bytes = other.unregister(sink, Deadline::after_secs(5)).unwrap();
    assert_eq!(bytes.len(), 1 << 20);
    let mut bytes = bytes;
    assert!(bytes.bytes_mut().unwrap().iter().all(|byte| *byte == 0xa5));
    drop(source);
    drop(offered);
    stop(&other);
    stop(&owner);
    Ok(())
}

#[test]
fn bytes_go_there_and_back_over_ipv4() -> Result<()> {
    there_and_back("127.0.0.1")
}

/// META-20.
#[test]
fn bytes_go_there_and_back_over_ipv6() -> Result<()> {
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        // A host without IPv6 has no such engines; that ours is refused there is checked instead.
        let error = blocking::build(te::builder("::1")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        return Ok(());
    }
    assert!(build("[::1]:0").name().as_str().starts_with("[::1]:"));
    there_and_back("::1")
}

/// SEC-04: nothing listens on addresses that nobody asked for.
#[test]
fn only_the_advertised_address_is_bound() {
    let engine = build("127.0.0.1");
    let port = engine.control_port();
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    assert!(std::net::TcpStream::connect(("127.0.0.2", port)).is_err());
    stop(&engine);
}

/// META-06: control requests go to the one address and data to the other.
#[test]
fn control_and_data_can_have_different_addresses() -> Result<()> {
    let owner =
        blocking::build(te::builder("127.0.0.1").set("transports", "tcp").set("tcp.address", "127.0.0.2"))?;
    let other = blocking::build(te::builder("127.0.0.1").set("transports", "tcp"))?;
    let buffer = owner.allocate(4096, Location::Any, Access::REMOTE)?;
    buffer.write_at(0, b"over the other network")?;

    let descriptor = owner.descriptor()?;
    let control = descriptor.control().unwrap().to_string();
    assert_eq!(control, format!("127.0.0.1:{}", owner.control_port()));
    let data = descriptor.tcp().unwrap();
    assert_eq!(data.host.as_ref().unwrap().bare(), "127.0.0.2");
    // Neither listens where the other does.
    assert!(std::net::TcpStream::connect(("127.0.0.2", owner.control_port())).is_err());
    assert!(std::net::TcpStream::connect(("127.0.0.1", data.port.get())).is_err());

    let local = other.allocate(4096, Location::Any, Access::LOCAL)?;
    let remote = other.open(owner.name().as_str())?.buffer(0)?;
    let report = other.batch().read(&remote, local.slice(..)).run()?;
    assert!(report.path().contains(&format!("127.0.0.2:{}", data.port)), "{}", report.path());
    let mut found = [0; 22];
    local.read_at(0, &mut found)?;
    assert_eq!(&found, b"over the other network");
    assert_eq!(other.probe(owner.name().as_str())?.endpoint.to_string(), control);
    stop(&owner);
    let gone = other.probe(owner.name().as_str()).unwrap_err();
    assert!(gone.to_string().contains(&control), "{gone}");
    stop(&other);

    let wildcard = te::builder("127.0.0.1").set("tcp.address", "0.0.0.0");
    assert_eq!(blocking::build(wildcard).unwrap_err().kind(), ErrorKind::Transport);
    Ok(())
}

#[test]
fn a_registered_buffer_is_seen_at_once_and_an_unregistered_one_no_more() -> Result<()> {
    let (owner, other) = (build("127.0.0.1"), build("127.0.0.1"));
    let peer = other.open(owner.name().as_str())?;
    assert!(peer.descriptor().buffers().is_empty());
    let buffer = owner.allocate(4096, Location::Any, Access::REMOTE_READ)?;
    other.sync(&peer)?;
    assert_eq!(peer.descriptor().buffers().len(), 1);
    owner.unregister(buffer, Deadline::after_secs(5)).unwrap();
    other.sync(&peer)?;
    assert!(peer.descriptor().buffers().is_empty());
    stop(&other);
    stop(&owner);
    Ok(())
}

#[test]
fn a_port_that_is_asked_for_is_in_the_name() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let engine = blocking::build(te::builder("").metadata(&format!("p2p://127.0.0.1:{free}"))).unwrap();
    assert_eq!(engine.name().as_str(), format!("127.0.0.1:{free}"));
    stop(&engine);
}

#[test]
fn notifications_arrive_with_the_name_of_their_sender() -> Result<()> {
    let (owner, other) = (build("127.0.0.1"), build("127.0.0.1"));
    other.notify(owner.name().as_str(), "layer", "17")?;
    let notification = owner.wait_notification(Deadline::after_secs(5)).unwrap();
    assert_eq!((notification.name.as_str(), notification.message.as_str()), ("layer", "17"));
    assert!(other.probe(owner.name().as_str())?.round_trip < Duration::from_secs(5));
    stop(&other);
    stop(&owner);
    Ok(())
}

#[test]
fn an_engine_works_from_async_code_without_a_runtime() -> Result<()> {
    te::block_on(async {
        let engine = te::builder("127.0.0.1").build().await?;
        let local = engine.allocate(4096, Location::Any, Access::LOCAL).await?;
        let offered = engine.register(vec![7; 4096], Access::REMOTE_READ).await?;
        let own = engine.open(engine.name().as_str()).await?;
        engine.batch().read(&own.range(offered.address(), 4096)?, local.slice(..)).submit()?.await?;
        let mut byte = [0];
        local.read_at(4095, &mut byte)?;
        assert_eq!(byte, [7]);
        assert!(engine.shutdown(Deadline::after_secs(5)).await.is_clean());
        Ok(())
    })
}

/// META-18: a mistake is an error that a program can look at, never an abort.
#[test]
fn a_store_that_cannot_be_had_is_a_typed_error() {
    let cause = |url: &str| {
        let error = blocking::build(te::builder("decode-7").metadata(url)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        error.source().and_then(|source| source.downcast_ref::<MetadataError>()).cloned()
    };
    #[cfg(not(all(feature = "etcd", feature = "tls")))]
    {
        let expected = if cfg!(feature = "etcd") { "tls" } else { "etcd" };
        let missing = cause("etcds://127.0.0.1:2379");
        assert!(
            matches!(&missing, Some(MetadataError::NeedsFeature { feature, .. }) if *feature == expected),
            "{missing:?}"
        );
    }
    let unknown = cause("gopher://127.0.0.1");
    assert!(matches!(unknown, Some(MetadataError::UnsupportedScheme { .. })), "{unknown:?}");
}

/// CFG-01.
#[test]
fn a_setting_out_of_range_is_an_error_before_anything_starts() {
    let error = blocking::build(te::builder("127.0.0.1").set("tcp.pipeline", "0")).unwrap_err();
    assert_eq!(error.cause(), r#"tcp.pipeline = "0" from builder is not a whole number from 1 to 1024"#);
}

#[test]
fn an_address_that_is_not_ours_is_an_error_that_names_it() {
    // 192.0.2.0/24 is reserved for documentation.
    let error = blocking::build(te::builder("192.0.2.7")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("192.0.2.7"), "{error}");
}

#[test]
fn the_own_address_towards_a_peer_can_be_advertised() {
    let peer: te::Endpoint = "127.0.0.1:15000".parse().unwrap();
    let host: IpAddr = te::address::towards(&peer).unwrap();
    let engine = build(&host.to_string());
    assert!(engine.name().as_str().starts_with("127.0.0.1:"));
    stop(&engine);
}
