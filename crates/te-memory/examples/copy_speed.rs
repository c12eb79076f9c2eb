//! Measures the copy routine beside the standard library's copy and the routines that were not chosen.
//!
//! `cargo run --release -p te-memory --example copy_speed`; the decision record on the memory model has results.

use std::{
    hint::black_box,
    sync::atomic::{AtomicU8, AtomicU64, Ordering},
    time::Instant,
};

type Routine = fn(&mut [u64], &[u64]);

const SIZES: [(&str, usize); 5] = [
    ("4 KiB", 4 << 10),
    ("64 KiB", 64 << 10),
    ("1 MiB", 1 << 20),
    ("16 MiB", 16 << 20),
    ("64 MiB", 64 << 20),
];

/// Bytes that each timed round moves, at least.
const ROUND: usize = 64 << 20;
const ROUNDS: usize = 15;

fn standard(dst: &mut [u64], src: &[u64]) {
    dst.copy_from_slice(src);
}

fn ours(dst: &mut [u64], src: &[u64]) {
    // SAFETY: both are ours alone and of the same length.
    unsafe { te_memory::copy::copy(dst.as_mut_ptr().cast(), src.as_ptr().cast(), size_of_val(src)) };
}

fn atomic_words(dst: &mut [u64], src: &[u64]) {
    for (to, from) in dst.iter_mut().zip(src) {
        // SAFETY: an aligned word that nobody writes.
        let from = unsafe { AtomicU64::from_ptr(std::ptr::from_ref(from).cast_mut()) };
        // SAFETY: an aligned word that is ours.
        let to = unsafe { AtomicU64::from_ptr(to) };
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

fn atomic_bytes(dst: &mut [u64], src: &[u64]) {
    let to = dst.as_mut_ptr().cast::<u8>();
    let from = src.as_ptr().cast::<u8>();
    for i in 0..size_of_val(src) {
        // SAFETY: a byte of the source, which nobody writes.
        let from = unsafe { AtomicU8::from_ptr(from.wrapping_add(i).cast_mut()) };
        // SAFETY: a byte of the destination, which is ours.
        let to = unsafe { AtomicU8::from_ptr(to.wrapping_add(i)) };
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[cfg(target_arch = "x86_64")]
fn string_instruction(dst: &mut [u64], src: &[u64]) {
    // SAFETY: both are ours alone and of the same length; the direction flag is clear.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") size_of_val(src) => _,
            inout("rdi") dst.as_mut_ptr() => _,
            inout("rsi") src.as_ptr() => _,
            options(nostack, preserves_flags)
        );
    }
}

/// GiB/s of the best round.
fn measure(routine: Routine, bytes: usize) -> f64 {
    let src = vec![0x5a5a_u64; bytes / 8];
    let mut dst = vec![1_u64; bytes / 8];
    let copies = (ROUND / bytes).max(1);
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..copies {
            routine(black_box(&mut dst), black_box(&src));
        }
        best = best.min(start.elapsed().as_secs_f64());
    }
    assert_eq!(dst, src);
    #[expect(clippy::cast_precision_loss, reason = "a measurement for reading")]
    let moved = (copies * bytes) as f64;
    moved / best / f64::from(1 << 30)
}

fn main() {
    let mut routines: Vec<(&str, Routine)> = vec![
        ("standard", standard),
        ("ours", ours),
        ("atomic words", atomic_words),
        ("atomic bytes", atomic_bytes),
    ];
    #[cfg(target_arch = "x86_64")]
    routines.push(("rep movsb", string_instruction));
    print!("{:8}", "GiB/s");
    for (name, _) in &routines {
        print!("{name:>14}");
    }
    println!();
    for (label, bytes) in SIZES {
        print!("{label:8}");
        for (_, routine) in &routines {
            print!("{:>14.1}", measure(*routine, bytes));
        }
        println!();
    }
}
