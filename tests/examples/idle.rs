//! What an engine that nobody uses costs: CPU time with eight open peers that are processes of their own.
//!
//! ```console
//! $ cargo run --release -p te-tests --example idle
//! ```
#![allow(clippy::unwrap_used, reason = "a measurement that cannot be set up has nothing to say")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use te::{Access, Location};
use te_engine::block_on;

const PEERS: usize = 8;
const LEN: usize = 1 << 20;
/// Long enough for a keep-alive, a probe and a renewal of everything there is.
const WATCHED: Duration = Duration::from_secs(30);

fn main() {
    if std::env::args().nth(1).as_deref() == Some("peer") {
        return peer();
    }
    let peers: Vec<Peer> = (0..PEERS).map(|_| Peer::start()).collect();
    let engine = block_on(te::builder("127.0.0.1").build()).unwrap();
    let local = block_on(engine.allocate(LEN, Location::Any, Access::LOCAL)).unwrap();
    let segments: Vec<_> = peers.iter().map(|peer| block_on(engine.open(&peer.name)).unwrap()).collect();
    for segment in &segments {
        let remote = segment.buffer(0).unwrap();
        engine.batch().write(local.slice(..), &remote).read(&remote, local.slice(..)).run().unwrap();
    }
    // What was begun for the transfers ends.
    std::thread::sleep(Duration::from_secs(8));
    let processes: Vec<u32> =
        std::iter::once(std::process::id()).chain(peers.iter().map(|peer| peer.child.id())).collect();
    let before: Vec<u64> = processes.iter().map(|process| nanoseconds(*process)).collect();
    std::thread::sleep(WATCHED);
    let share = |(process, before): (&u32, &u64)| {
        (nanoseconds(*process) - before) as f64 / WATCHED.as_nanos() as f64 * 100.0
    };
    let shares: Vec<f64> = processes.iter().zip(&before).map(share).collect();
    let peers_share = shares[1..].iter().sum::<f64>() / PEERS as f64;
    println!(
        "engine with {PEERS} open peers: {:.3} % of a core; each of the peers: {peers_share:.3} %",
        shares[0]
    );
}

/// CPU time of all threads.
fn nanoseconds(process: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let of_thread = |thread: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(thread.unwrap().path().join("schedstat")).unwrap();
        text.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    threads.map(of_thread).sum()
}

/// An engine that offers a buffer until its standard input ends.
fn peer() {
    let engine = block_on(te::builder("127.0.0.1").build()).unwrap();
    let _offered = block_on(engine.allocate(LEN, Location::Any, Access::REMOTE)).unwrap();
    println!("{}", engine.name().as_str());
    let _ = std::io::stdin().read(&mut [0]);
}

struct Peer {
    child: Child,
    name: String,
}

impl Peer {
    fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut child = command.arg("peer").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut name = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut name).unwrap();
        Self { child, name: name.trim().to_owned() }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
