//! What the memory of this host does without an engine: how fast one thread copies blocks, between memory of the kinds that
//! two engines would use. `cargo xtask bench` sets shared memory beside it.
//!
//! ```console
//! $ cargo run --release -p te-transport-shm --example yardstick -- copy write 65536 16 268435456 1.0
//! 8.731
//! ```
//!
//! `copy` is one `memcpy` per block between private memory and memory that other processes can map; `process-vm` is one
//! `process_vm_writev` or `process_vm_readv` per block, between private memory and that of a child. Then come the
//! direction, the bytes of a block, the blocks between two looks at the clock, the working set of each side in bytes,
//! and the seconds. The answer is in gigabytes (1e9 bytes) per second.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a program for whoever builds this"
)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use te_memory::{Memory, Sharing};

struct Work {
    write: bool,
    block: usize,
    batch: usize,
    area: usize,
    duration: Duration,
}

impl Work {
    /// Runs `copy` from offset to offset for the time; gigabytes per second.
    fn measure(&self, mut copy: impl FnMut(usize)) -> f64 {
        let step = self.block * self.batch;
        let (mut bytes, mut at) = (0, 0);
        let began = Instant::now();
        while began.elapsed() < self.duration {
            for i in 0..self.batch {
                copy(at + i * self.block);
            }
            bytes += step;
            at = if at + 2 * step <= self.area { at + step } else { 0 };
        }
        bytes as f64 / began.elapsed().as_secs_f64() / 1e9
    }
}

fn touched(mut memory: Memory) -> Memory {
    memory.bytes_mut().unwrap().fill(1);
    memory
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments[at].parse::<usize>().expect("a whole number");
    if arguments[0] == "lend" {
        return lend(number(1));
    }
    let work = Work {
        write: arguments[1] == "write",
        block: number(2),
        batch: number(3),
        area: number(4),
        duration: Duration::from_secs_f64(arguments[5].parse().expect("seconds")),
    };
    let rate = match arguments[0].as_str() {
        "copy" => copy(&work),
        "process-vm" => process_vm(&work),
        other => panic!("{other} is neither copy nor process-vm"),
    };
    println!("{rate:.3}");
}

fn copy(work: &Work) -> f64 {
    let mut local = touched(Memory::allocate(work.area).unwrap());
    let mut shared = touched(Memory::allocate_shareable(work.area, Sharing::ReadWrite).unwrap());
    let (local, shared) = (local.bytes_mut().unwrap(), shared.bytes_mut().unwrap());
    let (to, from) = if work.write { (shared, local) } else { (local, shared) };
    // Once before the clock starts, as the engine's is.
    to.copy_from_slice(from);
    work.measure(|at| to[at..at + work.block].copy_from_slice(&from[at..at + work.block]))
}

fn process_vm(work: &Work) -> f64 {
    let mut local = touched(Memory::allocate(work.area).unwrap());
    let start = local.bytes_mut().unwrap().as_mut_ptr();
    let (mut child, remote) = lender(work.area);
    let pid = i32::try_from(child.id()).unwrap();
    let rate = work.measure(|at| {
        let here = libc::iovec { iov_base: start.wrapping_add(at).cast(), iov_len: work.block };
        let base = std::ptr::without_provenance_mut(remote + at);
        let there = libc::iovec { iov_base: base, iov_len: work.block };
        let moved = if work.write {
            // SAFETY: the local bytes are inside `local`, which nobody else uses; the kernel checks the remote ones.
            unsafe { libc::process_vm_writev(pid, &raw const here, 1, &raw const there, 1, 0) }
        } else {
            // SAFETY: as above.
            unsafe { libc::process_vm_readv(pid, &raw const here, 1, &raw const there, 1, 0) }
        };
        assert_eq!(usize::try_from(moved).ok(), Some(work.block), "{}", std::io::Error::last_os_error());
    });
    child.kill().unwrap();
    child.wait().unwrap();
    rate
}

/// Another process with memory, and the address of it there.
fn lender(len: usize) -> (Child, usize) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["lend", &len.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().parse().expect("the address of the child's memory");
    (child, address)
}

/// Keeps memory until standard input closes.
fn lend(len: usize) {
    let mut memory = touched(Memory::allocate(len).unwrap());
    println!("{}", memory.bytes_mut().unwrap().as_mut_ptr().addr());
    std::io::stdin().lines().for_each(drop);
}
