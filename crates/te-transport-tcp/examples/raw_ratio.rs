//! Compares this transport with a raw pair of blocking sockets that speaks the same framing: 24-byte header, payload,
//! 8-byte status, same block, same number in flight, one connection. The two take turns, each in its own process pair;
//! reported are medians and the median of the ratios of neighbours, by the wall clock and by the processor time of both
//! ends, which a busy machine disturbs less.
//!
//! `raw_ratio [SECONDS_PER_TURN] [TURNS] [FILTER] [CPU_OF_TARGETS]`; build in release mode. Start it under `taskset -c N`
//! and name another processor for the targets to keep the two ends apart, or the same to keep them together: where the
//! scheduler puts them decides more than anything else.

#![allow(clippy::unwrap_used, reason = "a benchmark may stop at any failure")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Batch, Node, descriptor};
use te_memory::Region;
use te_segment::{Access, TcpFraming};
use te_transport::{Op, Path, SubmitMode, Transport};

const AREA: usize = 64 << 20;

fn main() {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("raw-target") => raw_target(args.next().unwrap().parse().unwrap()),
        Some("te-target") => te_target(),
        first => {
            let seconds: f64 = first.map_or(0.3, |text| text.parse().unwrap());
            let turns = args.next().map_or(7, |text| text.parse().unwrap());
            let filter = args.next().unwrap_or_default();
            compare(Duration::from_secs_f64(seconds), turns, &filter, args.next().as_deref());
        }
    }
}

/// Serves WRITEs and READs of `block` bytes on one connection.
fn raw_target(block: usize) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("{}", listener.local_addr().unwrap().port());
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_nodelay(true).unwrap();
    let mut buffer = vec![1; block];
    let mut header = [0; 24];
    let ack = [0; 8];
    while stream.read_exact(&mut header).is_ok() {
        if header[16] & 1 == 1 {
            stream.read_exact(&mut buffer).unwrap();
            stream.write_all(&ack).unwrap();
        } else {
            send_two(&mut stream, &ack, &buffer);
        }
    }
}

fn send_two(stream: &mut TcpStream, head: &[u8], body: &[u8]) {
    let sent = stream.write_vectored(&[IoSlice::new(head), IoSlice::new(body)]).unwrap();
    if sent < head.len() {
        stream.write_all(&head[sent..]).unwrap();
        stream.write_all(body).unwrap();
    } else {
        stream.write_all(&body[sent - head.len()..]).unwrap();
    }
}

fn te_target() {
    let node = Node::new();
    let region = node.region(AREA, Access::REMOTE);
    println!("{} {}", node.transport.listening_on().port(), region.range().start());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

fn start(cpu: Option<&str>, args: &[&str]) -> (Child, Vec<u64>) {
    let own = std::env::current_exe().unwrap();
    let mut command = match cpu {
        Some(cpu) => {
            let mut taskset = Command::new("taskset");
            taskset.args(["-c", cpu]).arg(own);
            taskset
        }
        None => Command::new(own),
    };
    let mut child = command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.split_whitespace().map(|word| word.parse().unwrap()).collect())
}

/// GB moved by the raw pair, and in which time.
fn raw(stream: &mut TcpStream, op: Op, block: usize, depth: u64, time: Duration) -> (f64, f64) {
    let mut buffer = vec![1_u8; block];
    let mut header = [0; 24];
    header[16] = u8::from(op == Op::Write);
    let mut ack = [0; 8];
    let (mut sent, mut done) = (0, 0);
    let start = Instant::now();
    let mut running = true;
    while running || done < sent {
        running = running && start.elapsed() < time;
        if !running && done == sent {
            break;
        }
        while running && sent - done < depth {
            match op {
                Op::Write => send_two(stream, &header, &buffer),
                Op::Read => stream.write_all(&header).unwrap(),
            }
            sent += 1;
        }
        stream.read_exact(&mut ack).unwrap();
        if op == Op::Read {
            stream.read_exact(&mut buffer).unwrap();
        }
        done += 1;
    }
    (done as f64 * block as f64 / 1e9, start.elapsed().as_secs_f64())
}

/// GB moved by the transport, and in which time.
#[allow(clippy::too_many_arguments, reason = "a benchmark case")]
fn te(
    path: &Arc<dyn Path>,
    local: &Region,
    remote: u64,
    op: Op,
    block: usize,
    depth: u64,
    mode: SubmitMode,
    time: Duration,
) -> (f64, f64) {
    let start = Instant::now();
    let mut done = 0;
    while start.elapsed() < time {
        let mut batch = Batch::new(Duration::from_secs(30));
        for at in 0..depth {
            // As in the raw pair, one block of memory at each side, unless it is striped anyway.
            let offset = (at * block as u64) % (AREA as u64).min(block as u64);
            batch.add(op, local.hold(offset, block as u64).unwrap(), remote + offset);
        }
        let pending = batch.submit(path, mode);
        for outcome in pending.wait() {
            assert!(outcome.is_done(), "{outcome:?}");
        }
        done += depth;
    }
    (done as f64 * block as f64 / 1e9, start.elapsed().as_secs_f64())
}

/// Processor time of all threads of a process, in seconds.
fn processor(pid: u32) -> f64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let spent = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok());
    let nanoseconds = spent.filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    nanoseconds.sum::<u64>() as f64 / 1e9
}

/// GB moved by `work` per second, and per second of processor time of this process and `other`.
fn measured(other: u32, work: impl FnOnce() -> (f64, f64)) -> (f64, f64) {
    let before = processor(std::process::id()) + processor(other);
    let (gigabytes, seconds) = work();
    let spent = processor(std::process::id()) + processor(other) - before;
    (gigabytes / seconds, gigabytes / spent)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn compare(time: Duration, turns: usize, filter: &str, cpu: Option<&str>) {
    let node = Node::new();
    let local = node.region(AREA, Access::LOCAL);
    let (mut target, words) = start(cpu, &["te-target"]);
    let (port, remote) = (u16::try_from(words[0]).unwrap(), words[1]);
    let path = node.transport.path(&descriptor("127.0.0.1", port, TcpFraming::V2, None)).unwrap();
    println!("case                                raw GB/s   te GB/s   ratio   of GB per processor second");
    for op in [Op::Write, Op::Read] {
        for mode in [SubmitMode::CallerRuns, SubmitMode::Background] {
            for (block, depth) in [
                (4 << 10, 1),
                (4 << 10, 16),
                (64 << 10, 1),
                (64 << 10, 16),
                (1 << 20, 1),
                (1 << 20, 16),
                (4 << 20, 1),
                (8 << 20, 1),
                (16 << 20, 1),
                (64 << 20, 1),
            ] {
                let name = format!("{op} {mode:?} {} KiB x {depth}", block >> 10);
                if !name.contains(filter) {
                    continue;
                }
                let (mut raw_child, words) = start(cpu, &["raw-target", &block.to_string()]);
                let mut stream = TcpStream::connect(("127.0.0.1", u16::try_from(words[0]).unwrap())).unwrap();
                stream.set_nodelay(true).unwrap();
                let (mut raws, mut tes, mut ratios, mut costs) = (vec![], vec![], vec![], vec![]);
                for _ in 0..turns {
                    let one = measured(raw_child.id(), || raw(&mut stream, op, block, depth, time));
                    let two =
                        measured(target.id(), || te(&path, &local, remote, op, block, depth, mode, time));
                    raws.push(one.0);
                    tes.push(two.0);
                    ratios.push(two.0 / one.0);
                    costs.push(two.1 / one.1);
                }
                drop(stream);
                raw_child.wait().unwrap();
                println!(
                    "{name:<36} {:>7.3}   {:>7.3}   {:>5.2}   {:>5.2}",
                    median(&mut raws),
                    median(&mut tes),
                    median(&mut ratios),
                    median(&mut costs)
                );
            }
        }
    }
    drop(target.stdin.take());
    target.wait().unwrap();
}
