//! What a reference engine answered when it was recorded, an engine of ours answers too.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;
use te::Access;
use te_engine::block_on;

/// Bytes before the JSON text: the length, and the type unless the form is old.
fn body_of(frame: &[u8], old_form: bool) -> Value {
    let start = if old_form { 8 } else { 9 };
    let length = u64::from_le_bytes(frame[..8].try_into().unwrap());
    assert_eq!(length, frame.len() as u64 - 8, "the length counts everything after itself");
    assert_eq!(frame.last(), Some(&b'\n'), "bodies end in a newline");
    serde_json::from_slice(&frame[start..]).unwrap()
}

/// Replaces what differs from engine to engine: addresses, ports, hosts, names, times.
fn masked(mut body: Value, varies: &[&str]) -> Value {
    for pointer in varies {
        if let Some(member) = body.pointer_mut(pointer) {
            *member = Value::from("masked");
        }
    }
    body
}

#[test]
fn recorded_control_exchanges_are_answered_as_recorded() {
    let engine = block_on(te::builder("127.0.0.1").build()).unwrap();
    let _buffer = block_on(engine.register(vec![0_u8; 65_536], Access::REMOTE)).unwrap();
    let fixture: Value = serde_json::from_str(include_str!("../fixtures/rpc/raw_exchanges.json")).unwrap();
    let exchanges = fixture["exchanges"].as_array().unwrap();
    assert!(exchanges.len() >= 11);
    for exchange in exchanges {
        let label = exchange["label"].as_str().unwrap();
        let bytes = |member: &str| {
            let text = exchange[member].as_str().unwrap();
            (0..text.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
                .collect::<Vec<u8>>()
        };
        let (sent, recorded) = (bytes("sent"), bytes("reply"));
        let mut stream = TcpStream::connect(("127.0.0.1", engine.control_port())).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(&sent).unwrap();
        let mut answer = Vec::new();
        let end = stream.read_to_end(&mut answer);
        if recorded.is_empty() {
            assert!(answer.is_empty(), "{label}: answered {answer:?}");
            continue;
        }
        end.unwrap();
        let old_form = sent[8] == b'{';
        if !old_form {
            assert_eq!(answer[8], recorded[8], "{label}: type byte");
        }
        let varies: Vec<&str> = exchange["varies"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|pointer| pointer.as_str().unwrap())
            .collect();
        assert_eq!(
            masked(body_of(&answer, old_form), &varies),
            masked(body_of(&recorded, old_form), &varies),
            "{label}"
        );
    }
}
