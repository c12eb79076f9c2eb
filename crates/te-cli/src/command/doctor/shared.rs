//! What shared memory between processes of one host needs.

use super::check::Check;
use super::subject::{Capability, Subject};

pub(super) fn checks(subject: &Subject<'_>) -> Vec<Check> {
    let mut checks = Vec::new();
    if subject.is_here {
        checks.extend(files());
    }
    checks.extend(folder(subject));
    checks.push(other_processes(subject));
    checks.extend(huge_pages(subject));
    checks
}

/// Asks by making one.
fn files() -> Option<Check> {
    let shm = te::features::all().find(|feature| feature.name() == "shm" && feature.is_compiled())?;
    let availability = shm.availability();
    Some(if availability.usable {
        Check::ok("shm", "memfd", availability.reason)
    } else {
        let means = "memory cannot be shared: peers of this host copy it by process_vm or go through sockets";
        let remedy = "permit memfd_create: look at the system call filter and at vm.memfd_noexec";
        Check::missing("shm", "memfd", availability.reason, means, remedy)
    })
}

fn folder(subject: &Subject<'_>) -> Option<Check> {
    if !subject.root.has("dev/shm") {
        let means = "te does not need it, other programs that share memory do";
        return Some(Check::warn("shm", "/dev/shm", "not there", means, "mount a tmpfs there"));
    }
    let space = rustix::fs::statvfs(subject.root.path().join("dev/shm")).ok()?;
    let (free, total) = (space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize);
    let mib = |bytes: u64| bytes >> 20;
    let found = format!("{} of {} MiB free", mib(free), mib(total));
    Some(Check::ok("shm", "/dev/shm", found).meaning("te does not need it: its shared memory has no name"))
}

fn other_processes(subject: &Subject<'_>) -> Check {
    let scope = subject.number("proc/sys/kernel/yama/ptrace_scope");
    match scope {
        None => Check::ok("shm", "process_vm", "not restricted by yama"),
        Some(0) => Check::ok("shm", "process_vm", "kernel.yama.ptrace_scope is 0"),
        Some(scope @ 1..=2) if subject.may(Capability::SysPtrace) => Check::ok(
            "shm",
            "process_vm",
            format!("kernel.yama.ptrace_scope is {scope}, with CAP_SYS_PTRACE"),
        ),
        Some(scope) => {
            let means = "memory that Engine::allocate did not give is not reached by peers of this host without sockets";
            let remedy = "sysctl kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE, or allocate with the engine";
            Check::warn("shm", "process_vm", format!("kernel.yama.ptrace_scope is {scope}"), means, remedy)
        }
    }
}

/// What the kernel backs shared memory with: the word in brackets.
fn huge_pages(subject: &Subject<'_>) -> Option<Check> {
    let text = subject.text("sys/kernel/mm/transparent_hugepage/shmem_enabled")?;
    let word = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))?;
    let found = format!("shmem_enabled is {word}");
    Some(if matches!(word, "never" | "deny") {
        let means = "shared memory has small pages: large copies take more time";
        let remedy = "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled";
        Check::warn("shm", "huge pages", found, means, remedy)
    } else {
        Check::ok("shm", "huge pages", found)
    })
}
