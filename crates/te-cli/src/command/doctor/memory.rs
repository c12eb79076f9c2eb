//! What pinning memory needs: limits, mappings, and what fork does to pinned pages.

use super::check::Check;
use super::subject::{Capability, Limit, Subject};

pub(super) fn checks(subject: &Subject<'_>) -> Vec<Check> {
    let mut checks = Vec::new();
    checks.extend(locked(subject));
    checks.extend(mappings(subject));
    checks.extend(fork(subject));
    checks.extend(pool(subject));
    checks
}

/// Below this limit nothing worth a transfer engine can be registered.
const TOO_LITTLE: u64 = 1 << 30;

fn locked(subject: &Subject<'_>) -> Option<Check> {
    let limit = subject.limit("Max locked memory")?;
    let remedy =
        "ulimit -l unlimited (LimitMEMLOCK=infinity of a service, --ulimit memlock=-1 of a container)";
    Some(match limit {
        Limit::Unlimited => Check::ok("rdma", "locked memory", "unlimited"),
        Limit::Of(limit) if subject.may(Capability::IpcLock) => {
            Check::ok("rdma", "locked memory", format!("{} MiB, which CAP_IPC_LOCK lifts", limit >> 20))
        }
        Limit::Of(limit) => {
            let found = format!("{} MiB at most", limit >> 20);
            let means = "registering more than that with a device fails";
            if limit < TOO_LITTLE {
                Check::missing("rdma", "locked memory", found, means, remedy)
            } else {
                Check::warn("rdma", "locked memory", found, means, remedy)
            }
        }
    })
}

/// What the kernel permits by default; fewer is a decision, more is one too.
const USUAL_MAPPINGS: u64 = 65_530;

/// Since this kernel pinned pages are copied when a process forks, so that the parent keeps its own.
const COPY_ON_FORK: (u32, u32) = (5, 13);

fn copies_on_fork(subject: &Subject<'_>) -> Option<bool> {
    subject.kernel().map(|kernel| kernel >= COPY_ON_FORK)
}

fn mappings(subject: &Subject<'_>) -> Option<Check> {
    let limit = subject.number("proc/sys/vm/max_map_count")?;
    let used = subject.text("proc/self/maps").map(|maps| maps.lines().count());
    let found = match used {
        Some(used) => format!("vm.max_map_count is {limit}, this process has {used}"),
        None => format!("vm.max_map_count is {limit}"),
    };
    let splits = copies_on_fork(subject) == Some(false);
    let remedy = "sysctl vm.max_map_count=1048576";
    Some(if limit < USUAL_MAPPINGS {
        let means = "a process with many buffers runs out of mappings, and allocations fail with memory left";
        Check::warn("rdma", "mappings", found, means, remedy)
    } else if splits && limit == USUAL_MAPPINGS {
        let means =
            "each registration may split a mapping on this kernel, so many small ones run into the limit";
        Check::warn("rdma", "mappings", found, means, remedy)
    } else {
        Check::ok("rdma", "mappings", found)
    })
}

fn fork(subject: &Subject<'_>) -> Option<Check> {
    let found = format!("kernel {}", subject.release());
    Some(if copies_on_fork(subject)? {
        Check::ok("rdma", "fork", format!("{found} copies pinned pages"))
    } else {
        let means = "after a fork the parent may write to pages that its devices do not see";
        let remedy = "a kernel from 5.13 on; else fork before the engine starts, or set RDMAV_FORK_SAFE=1";
        Check::warn("rdma", "fork", found, means, remedy)
    })
}

/// The administrator's pool, which makes registration of large buffers cheaper.
fn pool(subject: &Subject<'_>) -> Option<Check> {
    let text = subject.text("proc/meminfo")?;
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
    };
    let (total, free, size) =
        (value("HugePages_Total:")?, value("HugePages_Free:")?, value("Hugepagesize:")?);
    let found = match total {
        0 => "no pool".to_owned(),
        _ => format!("{free} of {total} free, {size} KiB each"),
    };
    Some(
        Check::ok("rdma", "huge pages", found)
            .meaning("not needed; registering large buffers takes less time with them"),
    )
}
