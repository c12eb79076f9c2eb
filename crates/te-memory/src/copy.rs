//! The one routine through which the CPU touches registered memory.
//!
//! Registered memory may change at any moment: a peer's request, a device or the kernel writes it while we read.
//! So an ordinary `ptr::copy` is not allowed to touch it, because the compiler may assume that nobody else does. The
//! routine here promises the meaning of *one or more relaxed atomic byte accesses for each byte, in any order*: the
//! bytes read while somebody writes are unspecified (old, new, or a mix), and nothing worse happens.
//!
//! How: the compiled code calls the C library's `memmove` and `memset` through a pointer that the compiler cannot
//! see through, so to it the call is foreign code of unknown content, as a system call is. The machine code has no
//! branch that depends on the bytes moved, so their change during the call cannot mislead it. Where the compiler has no
//! stable assembly (and under Miri), the routine is a loop over `AtomicU8`. The decision record on the memory model
//! has the whole argument and the measurements.

/// Copies `len` bytes from `src` to `dst`. The two may overlap, and other parties may read and write both meanwhile.
///
/// # Safety
///
/// During the call, `src` must be readable and `dst` writable for `len` bytes. Every other access to these bytes that
/// is not ordered against the call must be this routine, an atomic byte access, or come from outside the program (the
/// kernel, a device, another process). Bytes that are accessed in no other way at the time, such as a private buffer,
/// satisfy this by themselves.
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    if len != 0 {
        // SAFETY: exactly the contract of this function, which the caller upholds.
        unsafe { routine::copy(dst, src, len) }
    }
}

/// As [`copy`], but around the caches where the processor can: the bytes written go to memory without being read or kept
/// there. Faster for blocks that the caches would not hold anyway, and it leaves in them what others use; slower for what is
/// read again soon. Like those of [`copy`] the bytes are there, for everybody, before anything this thread writes later.
///
/// # Safety
///
/// As for [`copy`], and the two do not overlap.
pub unsafe fn copy_around_caches(dst: *mut u8, src: *const u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= streaming::WORTHWHILE && std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: the caller upholds the contract, and the processor has AVX.
        return unsafe { streaming::copy(dst, src, len) };
    }
    // SAFETY: the caller upholds more than this asks for.
    unsafe { copy(dst, src, len) }
}

/// Sets `len` bytes at `dst` to `byte`, while other parties may read and write them.
///
/// # Safety
///
/// As for the destination of [`copy`].
pub unsafe fn fill(dst: *mut u8, byte: u8, len: usize) {
    if len != 0 {
        // SAFETY: exactly the contract of this function, which the caller upholds.
        unsafe { routine::fill(dst, byte, len) }
    }
}

/// Bytes that are compared at a time: small enough for a stack and the nearest cache.
const CHUNK: usize = 4 << 10;

/// Whether `len` bytes at `left` and at `right` are the same, while other parties may read and write both: what is compared
/// is what a [`copy`] of each would have found.
///
/// # Safety
///
/// As for the source of [`copy`], for both.
pub unsafe fn same(left: *const u8, right: *const u8, len: usize) -> bool {
    let (mut ours, mut theirs) = ([0; CHUNK], [0; CHUNK]);
    let mut at = 0;
    while at < len {
        let part = CHUNK.min(len - at);
        // SAFETY: `at + part` is at most `len`, for which the caller vouches; the buffers are private and large enough.
        unsafe { copy(ours.as_mut_ptr(), left.wrapping_add(at), part) };
        // SAFETY: as above.
        unsafe { copy(theirs.as_mut_ptr(), right.wrapping_add(at), part) };
        if ours[..part] != theirs[..part] {
            return false;
        }
        at += part;
    }
    true
}

#[cfg(all(
    not(miri),
    any(
        target_arch = "x86",
        target_arch = "x86_64",
        target_arch = "arm",
        target_arch = "aarch64",
        target_arch = "riscv64",
        target_arch = "loongarch64"
    )
))]
mod routine {
    use std::{
        arch::asm,
        ffi::{c_int, c_void},
    };

    type Move = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;
    type Set = unsafe extern "C" fn(*mut c_void, c_int, usize) -> *mut c_void;

    /// The same pointer, but the compiler no longer knows which function it names.
    #[inline(always)]
    fn opaque_move(function: Move) -> Move {
        let mut hidden = function;
        // SAFETY: the assembly is empty: the value it claims to have chosen is the one it was given.
        unsafe { asm!("/* {0} */", inout(reg) hidden, options(nostack, preserves_flags)) };
        hidden
    }

    #[inline(always)]
    fn opaque_set(function: Set) -> Set {
        let mut hidden = function;
        // SAFETY: as in `opaque_move`.
        unsafe { asm!("/* {0} */", inout(reg) hidden, options(nostack, preserves_flags)) };
        hidden
    }

    pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        let function = opaque_move(libc::memmove);
        // SAFETY: the caller says that both are accessible for `len` bytes; memmove allows overlap.
        unsafe { function(dst.cast(), src.cast(), len) };
    }

    pub(super) unsafe fn fill(dst: *mut u8, byte: u8, len: usize) {
        let function = opaque_set(libc::memset);
        // SAFETY: the caller says that `dst` is writable for `len` bytes.
        unsafe { function(dst.cast(), c_int::from(byte), len) };
    }
}

/// Stores that go around the caches. Assembly, so that to the compiler this, too, is foreign code of unknown content.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod streaming {
    use std::arch::asm;

    /// Shorter copies go through the caches.
    pub(super) const WORTHWHILE: usize = 4 << 10;
    /// Bytes of one store; where it goes must be a multiple of it.
    const STORE: usize = 32;
    /// Bytes moved in one turn of the loop.
    const TURN: usize = 4 * STORE;

    /// # Safety
    ///
    /// As for `copy_around_caches`, on a processor with AVX.
    pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        let head = dst.align_offset(STORE).min(len);
        let body = (len - head) / TURN * TURN;
        let tail = len - head - body;
        // SAFETY: a first part of what the caller vouches for.
        unsafe { super::copy(dst, src, head) };
        let (to, from) = (dst.wrapping_add(head), src.wrapping_add(head));
        if body > 0 {
            // SAFETY: `to` is aligned, `body` a multiple of a turn and inside what the caller vouches for, who says that the
            // processor has AVX.
            unsafe { turns(to, from, body) };
        }
        // SAFETY: the rest of what the caller vouches for.
        unsafe { super::copy(to.wrapping_add(body), from.wrapping_add(body), tail) };
    }

    /// # Safety
    ///
    /// As for [`copy`]; `to` is a multiple of [`STORE`] and `len` one of [`TURN`] and not zero.
    #[target_feature(enable = "avx")]
    unsafe fn turns(to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: every turn moves as many bytes as it takes from what is left. A prefetch of what is not there does nothing.
        // The fence makes the stores ordinary ones to whatever follows.
        unsafe {
            asm!(
                "2:",
                "prefetcht0 [rsi + 1024]",
                "prefetcht0 [rsi + 1088]",
                "vmovdqu ymm0, ymmword ptr [rsi]",
                "vmovdqu ymm1, ymmword ptr [rsi + 32]",
                "vmovdqu ymm2, ymmword ptr [rsi + 64]",
                "vmovdqu ymm3, ymmword ptr [rsi + 96]",
                "vmovntdq ymmword ptr [rdi], ymm0",
                "vmovntdq ymmword ptr [rdi + 32], ymm1",
                "vmovntdq ymmword ptr [rdi + 64], ymm2",
                "vmovntdq ymmword ptr [rdi + 96], ymm3",
                "add rsi, 128",
                "add rdi, 128",
                "sub rcx, 128",
                "jnz 2b",
                "sfence",
                "vzeroupper",
                inout("rsi") from => _,
                inout("rdi") to => _,
                inout("rcx") len => _,
                out("ymm0") _,
                out("ymm1") _,
                out("ymm2") _,
                out("ymm3") _,
                out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _, out("ymm8") _, out("ymm9") _,
                out("ymm10") _, out("ymm11") _, out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
                options(nostack),
            );
        }
    }
}

#[cfg(not(all(
    not(miri),
    any(
        target_arch = "x86",
        target_arch = "x86_64",
        target_arch = "arm",
        target_arch = "aarch64",
        target_arch = "riscv64",
        target_arch = "loongarch64"
    )
)))]
use bytewise as routine;

/// The portable routine: what the fast one means. Also the reference that tests compare it with.
#[cfg_attr(not(test), allow(dead_code, reason = "used where the fast routine is not"))]
mod bytewise {
    use std::sync::atomic::{AtomicU8, Ordering};

    unsafe fn load(src: *const u8) -> u8 {
        // SAFETY: readable, and every racing access is atomic or foreign, says the caller. Alignment is 1.
        unsafe { AtomicU8::from_ptr(src.cast_mut()) }.load(Ordering::Relaxed)
    }

    unsafe fn store(dst: *mut u8, byte: u8) {
        // SAFETY: writable, and every racing access is atomic or foreign, says the caller. Alignment is 1.
        unsafe { AtomicU8::from_ptr(dst) }.store(byte, Ordering::Relaxed);
    }

    pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        let step = |i: usize| {
            // SAFETY: `i < len`, and the caller says that the source is readable for `len` bytes.
            let byte = unsafe { load(src.wrapping_add(i)) };
            // SAFETY: `i < len`, and the caller says that the destination is writable for `len` bytes.
            unsafe { store(dst.wrapping_add(i), byte) };
        };
        if dst.addr() <= src.addr() {
            (0..len).for_each(step);
        } else {
            (0..len).rev().for_each(step);
        }
    }

    pub(super) unsafe fn fill(dst: *mut u8, byte: u8, len: usize) {
        for i in 0..len {
            // SAFETY: `i < len`, and the caller says that the destination is writable for `len` bytes.
            unsafe { store(dst.wrapping_add(i), byte) };
        }
    }
}

#[cfg(test)]
mod tests;
