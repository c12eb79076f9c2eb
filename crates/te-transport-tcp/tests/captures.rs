//! Streams recorded between two reference engines, replayed: the initiator's bytes to our target, and our initiator's
//! bytes compared with the recorded ones.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use common::{FakePeer, Node, bytes};
use parking_lot::Mutex;
use serde_json::Value;
use te_memory::Region;
use te_segment::{Access, TcpFraming};
use te_transport::{Op, SubmitMode};
use te_transport_tcp::frame::{HEADER_LEN, Request, STATUS_LEN};

/// One direction's bytes between two turns.
struct Frame {
    from_initiator: bool,
    bytes: Vec<u8>,
}

struct Stream {
    step: String,
    base: u64,
    size: u64,
    frames: Vec<Frame>,
    end: String,
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
}

fn frame(value: &Value) -> Frame {
    let mut bytes = unhex(value["hex"].as_str().unwrap());
    let len = value["len"].as_u64().unwrap() as usize;
    let from_initiator = value["dir"] == "C->S";
    if value["cut"] == true {
        let head = if from_initiator { HEADER_LEN } else { STATUS_LEN };
        bytes.extend((bytes.len() - head..len - head).map(|at| at as u8));
    }
    assert_eq!(bytes.len(), len);
    Frame { from_initiator, bytes }
}

fn streams() -> Vec<Stream> {
    let text = include_str!("fixtures/tcp/streams.json");
    let all: Value = serde_json::from_str(text).unwrap();
    let mut streams = Vec::new();
    for step in all["steps"].as_array().unwrap() {
        for connection in step["connections"].as_array().unwrap() {
            streams.push(Stream {
                step: step["step"].as_str().unwrap().to_owned(),
                base: step["target_addr"].as_u64().unwrap(),
                size: step["target_size"].as_u64().unwrap(),
                frames: connection["frames"].as_array().unwrap().iter().map(frame).collect(),
                end: connection["end"].as_str().unwrap().to_owned(),
            });
        }
    }
    assert!(streams.len() >= 16, "{}", streams.len());
    streams
}

/// The request a frame begins with, and its payload.
fn request(bytes: &[u8]) -> (Request, &[u8]) {
    let (header, payload) = bytes.split_first_chunk::<HEADER_LEN>().unwrap();
    (Request::decode(header).unwrap(), payload)
}

/// The recorded bytes with the recorded address replaced by one of ours.
fn moved(frame: &Frame, stream: &Stream, region: &Region) -> Vec<u8> {
    let mut bytes = frame.bytes.clone();
    let (request, _) = request(&frame.bytes);
    let addr = region.range().start() + (request.addr - stream.base);
    bytes[8..16].copy_from_slice(&addr.to_le_bytes());
    bytes
}

/// Every recorded initiator gets from our target the bytes it got from the reference.
#[test]
fn recorded_initiators_are_answered_as_by_the_reference() {
    for stream in streams() {
        let node = Node::new();
        let region = node.region(stream.size as usize, Access::REMOTE);
        // What the target's memory held: what its READs answered.
        let mut reads = Vec::new();
        for frame in &stream.frames {
            if frame.from_initiator && frame.bytes.len() >= HEADER_LEN {
                let (request, _) = request(&frame.bytes);
                reads.push((request.op == Op::Read).then_some((request.addr - stream.base, request.framing)));
            } else if !frame.from_initiator
                && let Some(Some((at, framing))) = reads.last()
            {
                let status = if *framing == TcpFraming::V2 { STATUS_LEN } else { 0 };
                if frame.bytes.len() > status {
                    region.write_at(*at, &frame.bytes[status..]).unwrap();
                }
            }
        }
        let mut socket = TcpStream::connect(node.transport.listening_on()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        for frame in &stream.frames {
            if !frame.from_initiator {
                let mut answer = vec![0; frame.bytes.len()];
                socket.read_exact(&mut answer).unwrap();
                assert!(answer == frame.bytes, "{}: {answer:02x?}", stream.step);
                continue;
            }
            if frame.bytes.len() < HEADER_LEN {
                // The body of a refused v1 WRITE, recorded after the target's close.
                let _ = socket.write_all(&frame.bytes);
                continue;
            }
            socket.write_all(&moved(frame, &stream, &region)).unwrap();
            let (request, payload) = request(&frame.bytes);
            if request.op == Op::Write && request.addr + request.len <= stream.base + stream.size {
                let at = request.addr - stream.base;
                common::eventually("applied", || bytes(&region, at, payload.len()) == payload);
            }
        }
        if matches!(stream.end.as_str(), "closed" | "reset") {
            // Ours ends with a close where the reference reset: the note in the file says why.
            assert!(!matches!(socket.read(&mut [0; 1]), Ok(1..)), "{} stays open", stream.step);
        } else {
            socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            let error = socket.read(&mut [0; 1]).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{} was closed", stream.step);
        }
    }
}

/// Our initiator sends what the reference's sends, except that a v1 WRITE is followed by its read-back.
#[test]
fn our_initiator_sends_the_recorded_bytes() {
    for stream in streams() {
        let mut frames = stream.frames.iter();
        let (Some(sent), answer) = (frames.next(), frames.next()) else { continue };
        let (request, payload) = request(&sent.bytes);
        let refused = stream.end == "closed" || stream.end == "reset";
        if refused || answer.is_some_and(|answer| answer.from_initiator) {
            continue;
        }
        let v1_write = request.framing == TcpFraming::V1 && request.op == Op::Write;
        let mut expected = sent.bytes.clone();
        // We send no uninitialised padding.
        expected[17..24].fill(0);
        let mut reply = answer.map(|answer| answer.bytes.clone()).unwrap_or_default();
        if v1_write {
            let last = request.addr + request.len - 1;
            expected.extend(Request { op: Op::Read, addr: last, len: 1, ..request }.encode());
            reply = vec![payload[payload.len() - 1]];
        }
        let len = expected.len();
        let (seen, sees) = std::sync::mpsc::channel();
        let script = Mutex::new(Some((seen, reply)));
        let peer = FakePeer::new(move |_, mut socket| {
            let (seen, reply) = script.lock().take().unwrap();
            let mut all = vec![0; len];
            socket.read_exact(&mut all).unwrap();
            seen.send(all).unwrap();
            socket.write_all(&reply).unwrap();
            let _ = socket.read(&mut [0]);
        });
        let node = Node::new();
        let local = node.region(request.len as usize, Access::LOCAL);
        local.write_at(0, if payload.is_empty() { &[0] } else { payload }).unwrap();
        let path = peer.path(&node, request.framing);
        let hold = local.hold(0, request.len).unwrap();
        let outcome = common::transfer(&path, request.op, hold, request.addr, SubmitMode::CallerRuns);
        assert!(outcome.is_done(), "{}: {outcome:?}", stream.step);
        assert!(sees.recv().unwrap() == expected, "{}", stream.step);
    }
}
