//! Engines with RDMA compiled in, on a host that has none: none that may be used, wherever the tests run.
#![cfg(all(feature = "rdma", feature = "tcp", feature = "p2p"))]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use te::{Deadline, EngineBuilder, ErrorKind, TransportKind, block_on};

/// No host has a device of this name, so that RDMA is unavailable even where there are devices.
fn builder() -> EngineBuilder {
    te::builder("127.0.0.1").set("rdma.nics", "none_of_this_name")
}

#[test]
fn an_engine_starts_without_rdma_where_nobody_asked_for_it() {
    let engine = block_on(builder().build()).unwrap();
    let transports = engine.transports();
    assert!(transports.contains(&TransportKind::TCP), "{transports:?}");
    assert!(!transports.contains(&TransportKind::RDMA), "{transports:?}");
    assert!(block_on(engine.shutdown(Deadline::after_secs(5))).is_clean());
}

#[test]
fn rdma_by_name_where_there_is_none_is_an_error_that_says_what_is_missing() {
    for transports in ["rdma", "tcp,rdma"] {
        let error = block_on(builder().set("transports", transports).build()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Transport, "{error}");
        let said = error.to_string();
        let missing = ["no library", "no function", "no provider", "none_of_this_name", "no RDMA device"];
        assert!(said.contains("rdma is unavailable: "), "{said}");
        assert!(missing.iter().any(|words| said.contains(words)), "{said}");
    }
}
