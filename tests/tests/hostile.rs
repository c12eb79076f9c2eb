//! Peers that send what aborts other engines, and peers that send nothing at all.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use te::{Access, Deadline, Engine};
use te_engine::block_on;
use te_testkit::{pattern, verify};

const LEN: usize = 1 << 20;

fn engine() -> Engine {
    block_on(te::builder("127.0.0.1").build()).unwrap()
}

struct Target {
    engine: Engine,
    buffer: te::Buffer,
}

impl Target {
    fn new() -> Self {
        let engine = engine();
        let buffer = block_on(engine.register(pattern(7, LEN), Access::REMOTE)).unwrap();
        Self { engine, buffer }
    }

    fn ports(&self) -> [u16; 2] {
        let data = self.engine.descriptor().unwrap().tcp().unwrap().port.get();
        [self.engine.control_port(), data]
    }

    /// A newcomer opens the segment, reads it and probes.
    fn serves_a_newcomer(&self, what: &str) {
        let began = Instant::now();
        let newcomer = engine();
        block_on(async {
            let local = newcomer.register(vec![0_u8; LEN], Access::LOCAL).await.unwrap();
            let peer = newcomer.open(self.engine.name().as_str()).await.unwrap();
            let remote = peer.range(self.buffer.address(), LEN as u64).unwrap();
            newcomer.batch().read(&remote, local.slice(..)).run().unwrap();
            let mut found = vec![0; LEN];
            local.read_at(0, &mut found).unwrap();
            verify(7, 0, &found).unwrap();
            newcomer.probe(self.engine.name().as_str()).await.unwrap();
            newcomer.shutdown(Deadline::after_secs(5)).await;
        });
        // Generous: the point is that nobody waits for a silent peer's time-out, which is ten seconds.
        assert!(began.elapsed() < Duration::from_secs(8), "{what}: a newcomer took {:?}", began.elapsed());
    }
}

/// Sends bytes and reads whatever comes until the peer closes.
fn exchange(port: u16, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    // A reset is as good an end as any.
    let _ = stream.read_to_end(&mut answer);
    answer
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn frames_that_abort_the_reference_engine_leave_us_serving() {
    let target = Target::new();
    let fixture = include_str!("../fixtures/rpc/crash_frames.json");
    let fixture: serde_json::Value = serde_json::from_str(fixture).unwrap();
    let frames = fixture["frames"].as_array().unwrap();
    assert_eq!(frames.len(), 10);
    for frame in frames {
        let label = frame["label"].as_str().unwrap();
        let [control, data] = target.ports();
        let bytes = hex(frame["hex"].as_str().unwrap());
        exchange(control, &bytes);
        // Most are shorter than a data header, whose rest the listener would wait for.
        TcpStream::connect(("127.0.0.1", data)).unwrap().write_all(&bytes).unwrap();
        target.serves_a_newcomer(label);
    }
}

/// SEC-02: extremes of length and address, noise and other protocols, on both ports.
#[test]
fn garbage_on_both_ports_leaves_us_serving() {
    let target = Target::new();
    let mut noise = vec![0_u8; 64 << 10];
    let mut state = 1_u64;
    for byte in &mut noise {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (state >> 33) as u8;
    }
    let header = |size: u64, addr: u64, opcode: u8| {
        let mut header = [0_u8; 24];
        header[..8].copy_from_slice(&size.to_le_bytes());
        header[8..16].copy_from_slice(&addr.to_le_bytes());
        header[16] = opcode;
        header.to_vec()
    };
    let mut inputs = vec![noise, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), vec![0; 64], vec![0xff; 64]];
    for opcode in [0x00, 0x01, 0x02, 0x7f, 0x80, 0x81, 0xff] {
        for size in [0, 1, u64::MAX, u64::MAX - target.buffer.address()] {
            inputs.push(header(size, target.buffer.address() + LEN as u64, opcode));
            inputs.push(header(size, u64::MAX, opcode));
        }
    }
    for input in &inputs {
        for port in target.ports() {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let _ = stream.write_all(input);
        }
    }
    target.serves_a_newcomer("garbage");
}

/// A thousand connections that send nothing or half a header, on both ports, while handshakes go on.
#[test]
fn silent_and_half_open_connections_delay_nobody() {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();

    let target = Target::new();
    let mut held = Vec::new();
    for port in target.ports() {
        for at in 0..1_000 {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            if at % 2 == 0 {
                stream.write_all(&[16, 0, 0, 0, 0]).unwrap();
            }
            held.push(stream);
        }
    }
    std::thread::scope(|threads| {
        for at in 0..8 {
            let target = &target;
            threads.spawn(move || target.serves_a_newcomer(&format!("newcomer {at}")));
        }
    });
    drop(held);
    target.serves_a_newcomer("after the silent ones left");
}

/// SEC-04: without being told otherwise, nothing listens on other addresses than the advertised one.
#[test]
fn listeners_are_bound_to_the_advertised_address() {
    let target = Target::new();
    for port in target.ports() {
        assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
        assert!(TcpStream::connect(("127.0.0.2", port)).is_err());
        // The port is free elsewhere: a wildcard bind would have taken it.
        drop(TcpListener::bind(("127.0.0.3", port)).unwrap());
    }
}
