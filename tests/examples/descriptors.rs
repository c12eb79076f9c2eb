//! How large descriptors travel: 100,000 buffers through every directory, and what publishing one by one costs.
//!
//! ```console
//! $ cargo run --release -p te-tests --example descriptors
//! ```
//!
//! Starts etcd and Redis from Debian's packages and our HTTP server, each on a free port of the loopback address.
#![allow(clippy::unwrap_used, reason = "a measurement that cannot be set up has nothing to say")]

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use te::{Access, Deadline, Engine, EngineBuilder, Location, Memory};
use te_engine::block_on;
use te_metadata_etcd::{EtcdConfig, EtcdStore};
use te_metadata_http::server::{MetadataServer, ServerLimits};
use te_metadata_http::{HttpConfig, HttpStore};
use te_metadata_redis::{RedisConfig, RedisStore};

const BUFFERS: usize = 100_000;
const SINGLE: usize = 1_000;
const ROUNDS: usize = 5;
const LIMIT: usize = 64 << 20;

fn main() {
    println!("| directory | record | register | published | open by a peer |");
    println!("| --- | --- | --- | --- | --- |");
    report("p2p", &|name| named(name).metadata("P2PHANDSHAKE"));

    let port = free_port();
    let _redis =
        Server::start(Command::new("redis-server").args(["--port", &port.to_string(), "--save", ""]), port);
    let url = format!("redis://127.0.0.1:{port}");
    report("redis", &|name| named(name).store(RedisStore::new(RedisConfig::parse(&url).unwrap()).unwrap()));

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut limits = ServerLimits::default();
    limits.max_value = LIMIT;
    limits.max_bytes = limits.max_bytes.max(4 * LIMIT);
    let server = MetadataServer::builder().bind("127.0.0.1:0".parse().unwrap()).limits(limits);
    let server = runtime.block_on(server.start()).unwrap();
    let url = server.url();
    report("http (te metad)", &|name| {
        let config = HttpConfig::parse(&url).unwrap();
        let connecting = HttpStore::connect(config, Instant::now() + Duration::from_secs(5));
        named(name).store(runtime.block_on(connecting).unwrap())
    });
    one_by_one(&url, &runtime);

    let (client, peer) = (free_port(), free_port());
    let (client_url, peer_url) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
    let data = std::env::temp_dir().join(format!("te-descriptors-{}", std::process::id()));
    let _etcd = Server::start(
        Command::new("etcd")
            .arg("--data-dir")
            .arg(&data)
            .args(["--max-request-bytes", &LIMIT.to_string()])
            .args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url])
            .args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url])
            .args(["--initial-cluster", &format!("default={peer_url}")]),
        client,
    );
    let url = format!("etcd://127.0.0.1:{client}");
    report("etcd (64 MiB requests)", &|name| {
        named(name).store(EtcdStore::new(EtcdConfig::parse(&url).unwrap().max_request(LIMIT)).unwrap())
    });
    std::fs::remove_dir_all(&data).unwrap();
}

fn named(name: &str) -> EngineBuilder {
    te::builder(name).set("advertise", "127.0.0.1")
}

/// One engine registers, another opens.
fn report(directory: &str, build: &dyn Fn(&str) -> EngineBuilder) {
    let owner = block_on(build("127.0.0.1").build()).unwrap();
    let peer = block_on(build(if directory == "p2p" { "127.0.0.1" } else { "peer" }).build()).unwrap();
    let began = Instant::now();
    let buffers = block_on(owner.register_batch(pieces(BUFFERS))).unwrap();
    let registered = began.elapsed();
    block_on(owner.published(Deadline::after_secs(60))).unwrap();
    let published = began.elapsed() - registered;
    let size = owner.local().encode(te_segment::CompatProtocol::Tcp, true).unwrap().len();
    let began = Instant::now();
    let opened = block_on(peer.open(owner.name().as_str())).unwrap();
    let took = began.elapsed();
    assert_eq!(opened.descriptor().buffers().len(), BUFFERS);
    println!(
        "| {directory} | {:.1} MB | {registered:.0?} | {published:.0?} | {took:.0?} |",
        size as f64 / 1e6
    );
    for engine in [&owner, &peer] {
        block_on(engine.shutdown(Deadline::after_secs(10)));
    }
    drop(buffers);
}

/// 1,000 × register and one `published()` beside one batch of 1,000, over our HTTP server.
fn one_by_one(url: &str, runtime: &tokio::runtime::Runtime) {
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let mut times = [Duration::ZERO; 2];
        for (batch, time) in times.iter_mut().enumerate() {
            let config = HttpConfig::parse(url).unwrap();
            let connecting = HttpStore::connect(config, Instant::now() + Duration::from_secs(5));
            let store = runtime.block_on(connecting).unwrap();
            let engine: Engine = block_on(named("single").store(store).build()).unwrap();
            let memory = pieces(SINGLE);
            let began = Instant::now();
            let held = if batch == 1 {
                block_on(engine.register_batch(memory)).unwrap()
            } else {
                let register = |(memory, location, access)| {
                    block_on(engine.register_at(memory, location, access)).unwrap()
                };
                memory.into_iter().map(register).collect()
            };
            block_on(engine.published(Deadline::after_secs(60))).unwrap();
            *time = began.elapsed();
            block_on(engine.shutdown(Deadline::after_secs(10)));
            drop(held);
        }
        ratios.push((times[0].as_secs_f64() / times[1].as_secs_f64(), times));
    }
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (ratio, [single, batch]) = ratios[ROUNDS / 2];
    println!(
        "| {SINGLE} x register + published | {single:.1?} | one batch | {batch:.1?} | ratio {ratio:.2} |"
    );
}

fn pieces(count: usize) -> Vec<(Memory, Location, Access)> {
    (0..count).map(|_| (Memory::from_vec(vec![0; 64]), Location::cpu(0), Access::REMOTE)).collect()
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// A server process, killed at the end.
struct Server(Child);

impl Server {
    fn start(command: &mut Command, port: u16) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let server = Self(child);
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(began.elapsed() < Duration::from_secs(20), "the server on port {port} did not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
