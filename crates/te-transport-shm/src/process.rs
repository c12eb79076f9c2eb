//! The memory of another process, by way of the kernel: `process_vm_readv` and `process_vm_writev`.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use te_transport::Op;

use crate::page::Nonce;

/// A process, named by its number and by a descriptor that tells whether it is still the same.
pub(crate) struct Process {
    pid: Pid,
    handle: OwnedFd,
}

impl Process {
    /// The process with this number, as this process sees it. To be called while the process is known to live.
    pub(crate) fn open(pid: i32) -> Result<Self, String> {
        let Some(pid) = Pid::from_raw(pid).filter(|_| pid > 0) else {
            return Err("the peer is in another pid namespace that is not visible from here; \
                        a shared pid namespace would permit it"
                .to_owned());
        };
        let handle = pidfd_open(pid, PidfdFlags::empty())
            .map_err(|error| format!("process {} cannot be watched: {error}", pid.as_raw_nonzero()))?;
        Ok(Self { pid, handle })
    }

    /// Whether it has not ended. Its number may belong to another one as soon as this is false.
    pub(crate) fn lives(&self) -> bool {
        let mut ended = [PollFd::from_borrowed_fd(self.handle.as_fd(), PollFlags::IN)];
        matches!(poll(&mut ended, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
    }

    /// Moves `len` bytes between memory here and memory there, looking before and after whether it is still the process
    /// that was meant.
    ///
    /// # Safety
    ///
    /// `local` must be good for `len` bytes, to be written if `op` reads, in the way that the kernel may touch it.
    pub(crate) unsafe fn copy(&self, op: Op, local: *mut u8, remote: u64, len: usize) -> Result<(), Fault> {
        let mut moved = 0;
        while moved < len {
            let mut parts = Parts::new();
            let outside = || Fault::Refused(io::Error::from(io::ErrorKind::InvalidInput));
            let from = remote.checked_add(moved as u64).ok_or_else(outside)?;
            parts.push(local.wrapping_add(moved), from, (len - moved) as u64);
            // SAFETY: `moved` is below `len`, for which the caller vouches.
            moved += unsafe { self.copy_parts(op, &mut parts) }?;
        }
        Ok(())
    }

    /// Moves the bytes of all parts with one call, which may stop early; how many bytes, one at least. Looks before and after
    /// like [`copy`](Self::copy).
    ///
    /// # Safety
    ///
    /// The local memory of each part must be good for its length, to be written if `op` reads, in the way that the kernel may
    /// touch it.
    pub(crate) unsafe fn copy_parts(&self, op: Op, parts: &mut Parts) -> Result<usize, Fault> {
        loop {
            if !self.lives() {
                return Err(Fault::Ended);
            }
            let (here, there) = (&parts.here[..parts.len], &parts.there[..parts.len]);
            // SAFETY: the caller vouches for the local parts.
            let count = unsafe { call(self.pid.as_raw_nonzero().get(), op, here, there) };
            match count {
                _ if !self.lives() => return Err(Fault::Ended),
                Ok(0) => return Err(Fault::Refused(io::Error::from(io::ErrorKind::WriteZero))),
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Fault::Refused(error)),
            }
        }
    }

    /// Reads a nonce from there: whether this process may, and whether the number means the same process to both.
    pub(crate) fn witness(&self, address: u64, expected: &Nonce) -> Result<(), String> {
        let mut seen = Nonce::default();
        // SAFETY: the buffer is ours alone, and as long as it is said to be.
        match unsafe { self.copy(Op::Read, seen.as_mut_ptr(), address, seen.len()) } {
            Ok(()) if seen == *expected => Ok(()),
            Ok(()) => Err(format!(
                "process {} is not the peer: the pid namespaces differ; a shared one would permit it",
                self.pid.as_raw_nonzero()
            )),
            Err(Fault::Ended) => Err("the process has ended".to_owned()),
            Err(Fault::Refused(error)) => Err(refusal(self.pid.as_raw_nonzero().get(), &error)),
        }
    }
}

/// Why bytes of another process could not be moved.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The process has ended, perhaps in the middle of it.
    Ended,
    /// The kernel refused.
    Refused(io::Error),
}

/// Memory here and as much memory there, part by part, for one call.
pub(crate) struct Parts {
    here: [libc::iovec; Self::MAX],
    there: [libc::iovec; Self::MAX],
    len: usize,
}

impl Parts {
    /// Most parts of one call.
    pub(crate) const MAX: usize = 64;

    pub(crate) fn new() -> Self {
        const NONE: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self { here: [NONE; Self::MAX], there: [NONE; Self::MAX], len: 0 }
    }

    /// Adds a part. What does not fit in the list, or is no address of this machine, is left out, and what comes after it.
    pub(crate) fn push(&mut self, local: *mut u8, remote: u64, len: u64) {
        let (Ok(from), Ok(len)) = (usize::try_from(remote), usize::try_from(len)) else {
            return;
        };
        if let (Some(here), Some(there)) = (self.here.get_mut(self.len), self.there.get_mut(self.len)) {
            *here = libc::iovec { iov_base: local.cast(), iov_len: len };
            *there = libc::iovec { iov_base: std::ptr::without_provenance_mut(from), iov_len: len };
            self.len += 1;
        }
    }
}

/// One call.
///
/// # Safety
///
/// The local parts must be good for their length.
unsafe fn call(pid: i32, op: Op, here: &[libc::iovec], there: &[libc::iovec]) -> io::Result<usize> {
    let (local, remote) = (here.as_ptr(), there.as_ptr());
    let (locals, remotes) = (here.len() as libc::c_ulong, there.len() as libc::c_ulong);
    let count = match op {
        // SAFETY: as many valid vectors on either side as are said; the local ones are good to write, says the caller, and
        // the kernel checks the remote ones.
        Op::Read => unsafe { libc::process_vm_readv(pid, local, locals, remote, remotes, 0) },
        // SAFETY: as above, and the local ones are only read.
        Op::Write => unsafe { libc::process_vm_writev(pid, local, locals, remote, remotes, 0) },
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Why the kernel refuses, and what would permit it.
fn refusal(pid: i32, error: &io::Error) -> String {
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM) => match fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope") {
            Ok(scope) if scope.trim() != "0" => {
                format!("kernel.yama.ptrace_scope is {}; 0, or CAP_SYS_PTRACE, would permit it", scope.trim())
            }
            _ => "the same user in the same user namespace, or CAP_SYS_PTRACE, would permit it".to_owned(),
        },
        Some(libc::ENOSYS) => "a system call filter or the kernel lacks it".to_owned(),
        Some(libc::ESRCH) => "a shared pid namespace would permit it".to_owned(),
        _ => "memory from Engine::allocate needs no permission".to_owned(),
    };
    format!("the memory of process {pid} may not be accessed: {error}; {remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Process {
        Process::open(i32::try_from(std::process::id()).unwrap()).unwrap()
    }

    #[test]
    fn bytes_are_moved_both_ways() {
        let mut there = [1_u8, 2, 3, 4];
        let mut here = [0_u8; 4];
        let address = there.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: as long as it is said to be, and nobody else uses it.
        unsafe { own().copy(Op::Read, here.as_mut_ptr(), address, 4) }.unwrap();
        assert_eq!(here, [1, 2, 3, 4]);
        here = [9; 4];
        // SAFETY: as above.
        unsafe { own().copy(Op::Write, here.as_mut_ptr(), address + 1, 2) }.unwrap();
        assert_eq!(std::hint::black_box(there), [1, 9, 9, 4]);
    }

    #[test]
    fn addresses_that_are_not_there_are_refused() {
        let mut here = [0_u8; 16];
        for address in [0, 4096, u64::MAX - 3] {
            // SAFETY: as long as it is said to be, and nobody else uses it.
            let outcome = unsafe { own().copy(Op::Read, here.as_mut_ptr(), address, 16) };
            assert!(matches!(outcome, Err(Fault::Refused(_))), "{address:#x}");
        }
    }

    #[test]
    fn ended_processes_are_never_touched() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::open(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(process.lives());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.lives());
        let mut here = [0_u8; 4];
        // SAFETY: as long as it is said to be, and nobody else uses it.
        let outcome = unsafe { process.copy(Op::Write, here.as_mut_ptr(), 4096, 4) };
        assert!(matches!(outcome, Err(Fault::Ended)));
    }

    #[test]
    fn the_witness_tells_the_right_process_from_others() {
        let nonce = Box::new([5_u8; 16]);
        let address = nonce.as_ptr().expose_provenance() as u64;
        own().witness(address, &nonce).unwrap();
        let error = own().witness(address, &[6; 16]).unwrap_err();
        assert!(error.contains("pid namespace"), "{error}");
        assert!(Process::open(0).is_err());
    }

    #[test]
    fn refusals_say_what_would_permit() {
        let text = refusal(7, &io::Error::from_raw_os_error(libc::EPERM));
        assert!(text.contains("would permit it") && text.contains("process 7"), "{text}");
    }
}
