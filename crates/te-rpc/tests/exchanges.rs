//! Exchanges recorded with the reference engine, replayed against the listener.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::*;
use te_rpc::RpcLimits;

/// Bytes of a reply that are the same for every engine: for a reply whose body varies, the kind alone.
fn comparable(exchange: &serde_json::Value, reply: &[u8]) -> Vec<u8> {
    match exchange.get("varies") {
        Some(_) => reply.get(8..9).unwrap_or_default().to_vec(),
        None => reply.to_vec(),
    }
}

#[tokio::test]
async fn recorded_requests_get_the_recorded_replies() {
    let server = serve(RpcLimits::default()).await;
    let exchanges = fixture("raw_exchanges.json", "exchanges");
    assert_eq!(exchanges.len(), 11);
    for recorded in &exchanges {
        let field = |name: &str| recorded[name].as_str().unwrap();
        let (reply, end) = exchange(server.endpoint(), &unhex(field("sent"))).await;
        let expected = unhex(field("reply"));
        assert_eq!(comparable(recorded, &reply), comparable(recorded, &expected), "{}", field("label"));
        // A reset depends on what was left unread; after a reply it would put the reply at risk.
        assert!(end == End::Closed || field("end") == "reset", "{}", field("label"));
    }
}

#[tokio::test]
async fn frames_that_abort_the_reference_engine_are_answered_or_closed() {
    let server = serve(RpcLimits::default()).await;
    let frames = fixture("crash_frames.json", "frames");
    assert_eq!(frames.len(), 10);
    for frame in &frames {
        let label = frame["label"].as_str().unwrap();
        let (reply, _) = exchange(server.endpoint(), &unhex(frame["hex"].as_str().unwrap())).await;
        assert_eq!(reply, b"", "{label}");
        assert_serves(server.endpoint()).await;
    }
}

#[tokio::test]
async fn bodies_of_metadata_and_probe_may_be_any_json() {
    let server = serve(RpcLimits::default()).await;
    for kind in [1, 3] {
        for body in ["{}", "[]", "5", "null", "\"a\""] {
            let frame =
                te_rpc::frame::encode(te_rpc::FrameKind::from_byte(kind).unwrap(), false, body.as_bytes());
            let (reply, _) = exchange(server.endpoint(), &frame).await;
            assert_eq!(reply.get(8), Some(&kind), "{body}");
        }
    }
}
