//! `te doctor` on made-up hosts, and on this one.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::fs;

use common::tree::Tree;
use common::{fails, json, run, succeeds};
use serde_json::Value;

const ADDRESS: &str = "0000:0000:0000:0000:0000:ffff:0a00:0007";
const NO_ADDRESS: &str = "0000:0000:0000:0000:0000:0000:0000:0000";
const NO_RIGHTS: &str = "Name:\tte\nCapEff:\t0000000000000000";

/// A host with one RDMA device and a GPU, on which nothing is amiss.
fn sound() -> Tree {
    let tree = Tree::new();
    for (path, content) in [
        ("proc/self/limits", "Max locked memory         unlimited            unlimited            bytes"),
        ("proc/self/status", NO_RIGHTS),
        ("proc/self/maps", "one\ntwo"),
        ("proc/sys/vm/max_map_count", "1048576"),
        ("proc/sys/kernel/osrelease", "6.8.0-31-generic"),
        ("proc/sys/kernel/yama/ptrace_scope", "0"),
        ("proc/sys/kernel/io_uring_disabled", "0"),
        ("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999"),
        ("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15"),
        ("proc/meminfo", "HugePages_Total: 8\nHugePages_Free: 3\nHugepagesize: 2048 kB"),
        ("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size [advise] never deny force"),
        ("sys/class/net/eth0/mtu", "9000"),
        ("dev/nvidiactl", ""),
        ("usr/lib64/libcuda.so.1", ""),
        ("usr/lib64/libibverbs.so.1", ""),
        ("usr/lib64/libibverbs/libmlx5-rdmav34.so", ""),
    ] {
        tree.file(path, content);
    }
    tree.folder("dev/shm");
    tree.nic("mlx5_0", "4: ACTIVE", ADDRESS);
    tree.nvidia();
    tree
}

fn doctor(tree: &Tree, more: &[&str]) -> Value {
    let arguments = ["doctor", "--root", tree.path().to_str().unwrap(), "--json"];
    let output = run(&arguments.into_iter().chain(more.iter().copied()).collect::<Vec<_>>());
    // Where something is missing, the failure follows on the next line.
    serde_json::from_str(String::from_utf8(output.stdout).unwrap().lines().next().unwrap()).unwrap()
}

/// Verdict and finding of each check of that path and name.
fn found<'a>(report: &'a Value, path: &str, what: &str) -> Vec<(&'a str, &'a str)> {
    let checks = report["checks"].as_array().unwrap().iter();
    let checks = checks.filter(|check| check["path"] == path && check["what"] == what);
    checks.map(|check| (check["verdict"].as_str().unwrap(), check["found"].as_str().unwrap())).collect()
}

/// The only check of that path and name has this verdict, and finds something with these words.
fn expect(report: &Value, path: &str, what: &str, verdict: &str, words: &str) {
    let checks = found(report, path, what);
    assert!(matches!(checks[..], [(v, f)] if v == verdict && f.contains(words)), "{path} {what}: {checks:?}");
}

#[test]
fn a_sound_host_has_everything() {
    let report = doctor(&sound(), &[]);
    for check in report["checks"].as_array().unwrap() {
        let path = check["path"].as_str().unwrap();
        if !["hip", "cxl", "nvmeof"].contains(&path) {
            assert_eq!(check["verdict"], "ok", "{check}");
        }
    }
    expect(
        &report,
        "rdma",
        "device",
        "ok",
        "mlx5_0: port 1, address ::ffff:10.0.0.7 at 0: RoCE v2, routable",
    );
    expect(&report, "rdma", "provider", "ok", "mlx5: /usr/lib64/libibverbs/libmlx5-rdmav34.so");
    expect(&report, "rdma", "GPU memory", "ok", "as dma-buf");
    expect(&report, "rdma", "huge pages", "ok", "3 of 8 free");
    expect(&report, "nvlink", "GPUs", "ok", "1 of NVIDIA, /usr/lib64/libcuda.so.1");
    assert_eq!(report["ok"], true);
}

#[test]
fn what_is_amiss_is_found_with_what_to_do() {
    // Each: a file, what it says instead, the check, its verdict, words of its finding.
    let cases = [
        (
            "proc/self/limits",
            "Max locked memory 8388608 8388608 bytes",
            "rdma",
            "locked memory",
            "missing",
            "8 MiB at most",
        ),
        (
            "proc/self/limits",
            "Max locked memory 8589934592 1 bytes",
            "rdma",
            "locked memory",
            "warn",
            "8192 MiB at most",
        ),
        (
            "proc/sys/vm/max_map_count",
            "4096",
            "rdma",
            "mappings",
            "warn",
            "vm.max_map_count is 4096, this process has 2",
        ),
        ("proc/sys/kernel/osrelease", "5.4.0-100", "rdma", "fork", "warn", "kernel 5.4.0-100"),
        ("proc/sys/kernel/osrelease", "5.4.0-100", "rdma", "GPU memory", "warn", "too old for dma-buf"),
        (
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module",
            "rdma",
            "GPU memory",
            "warn",
            "no open driver",
        ),
        ("proc/sys/kernel/yama/ptrace_scope", "1", "shm", "process_vm", "warn", "ptrace_scope is 1"),
        (
            "sys/kernel/mm/transparent_hugepage/shmem_enabled",
            "always [never] deny",
            "shm",
            "huge pages",
            "warn",
            "is never",
        ),
        (
            "proc/sys/net/ipv4/ip_local_port_range",
            "16000 60999",
            "control",
            "ports",
            "warn",
            "15000 to 17000",
        ),
        (
            "proc/self/limits",
            "Max open files 1024 4096 files",
            "control",
            "open files",
            "warn",
            "1024 at most",
        ),
        ("sys/class/net/eth0/mtu", "1500", "rdma", "MTU", "warn", "mlx5_0: 1024 bytes"),
        (
            "sys/class/infiniband/mlx5_0/ports/1/gids/0",
            NO_ADDRESS,
            "rdma",
            "device",
            "missing",
            "network namespace",
        ),
        (
            "sys/class/infiniband/mlx5_0/ports/1/state",
            "1: DOWN",
            "rdma",
            "device",
            "missing",
            "no port is active",
        ),
        (
            "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0",
            "ens9",
            "rdma",
            "device",
            "warn",
            "not in this network namespace",
        ),
    ];
    for (file, content, path, what, verdict, words) in cases {
        let tree = sound();
        tree.file(file, content);
        let report = doctor(&tree, &[]);
        expect(&report, path, what, verdict, words);
        let checks = report["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["path"] == path && check["what"] == what).unwrap();
        assert!(check["means"].is_string() && check["do"].is_string(), "{check}");
    }
}

#[test]
fn what_is_gone_is_found() {
    let cases = [
        ("usr/lib64/libibverbs.so.1", "rdma", "libibverbs", "libibverbs.so.1 is not there"),
        ("usr/lib64/libibverbs/libmlx5-rdmav34.so", "rdma", "provider", "no libmlx5-rdmav*.so"),
        ("usr/lib64/libcuda.so.1", "nvlink", "GPUs", "without libcuda.so.1"),
        ("dev/nvidiactl", "nvlink", "GPUs", "without /dev/nvidiactl"),
        ("dev/infiniband/uverbs0", "rdma", "device", "give this container the device"),
        ("sys/class/infiniband/mlx5_0", "rdma", "devices", "none"),
    ];
    for (file, path, what, words) in cases {
        let tree = sound();
        fs::remove_file(tree.path().join(file)).unwrap();
        expect(&doctor(&tree, &[]), path, what, "missing", words);
    }
}

#[test]
fn rights_and_modules_lift_limits() {
    let tree = sound();
    tree.file("proc/self/limits", "Max locked memory 65536 65536 bytes");
    tree.file("proc/sys/kernel/yama/ptrace_scope", "1");
    tree.file("proc/self/status", "CapEff:\t000001ffffffffff");
    tree.file("proc/sys/kernel/osrelease", "5.4.0");
    tree.folder("sys/module/nvidia_peermem");
    let report = doctor(&tree, &["--set", "port.min=1000"]);
    expect(&report, "rdma", "locked memory", "ok", "CAP_IPC_LOCK");
    expect(&report, "shm", "process_vm", "ok", "CAP_SYS_PTRACE");
    expect(&report, "rdma", "GPU memory", "ok", "nvidia_peermem");
    expect(&report, "control", "ports", "ok", "1000 to 17000");
}

#[test]
fn one_device_that_works_is_enough() {
    let tree = sound();
    tree.nic("mlx5_1", "1: DOWN", ADDRESS);
    let devices = doctor(&tree, &[]);
    let verdicts: Vec<&str> =
        found(&devices, "rdma", "device").into_iter().map(|(verdict, _)| verdict).collect();
    assert_eq!(verdicts, ["ok", "warn"]);
}

#[test]
fn devices_may_be_in_another_namespace() {
    let tree = sound();
    fs::remove_file(tree.path().join("sys/class/infiniband/mlx5_0")).unwrap();
    tree.file("sys/module/ib_core/parameters/netns_mode", "N");
    expect(&doctor(&tree, &[]), "rdma", "devices", "missing", "none in this network namespace");
}

#[test]
fn memory_windows_are_looked_at() {
    let tree = sound();
    let base = "sys/devices/platform/ACPI0017:00/region0/dax0.0";
    tree.file(&format!("{base}/size"), "1073741824");
    tree.folder("sys/bus/dax/drivers/kmem");
    tree.folder("sys/bus/dax/drivers/device_dax");
    tree.link("sys/bus/dax/devices/dax0.0", base);
    tree.link(&format!("{base}/driver"), "sys/bus/dax/drivers/kmem");
    expect(&doctor(&tree, &[]), "cxl", "window", "missing", "dax0.0: taken by kmem");
    fs::remove_file(tree.path().join(base).join("driver")).unwrap();
    tree.link(&format!("{base}/driver"), "sys/bus/dax/drivers/device_dax");
    expect(&doctor(&tree, &[]), "cxl", "window", "missing", "/dev/dax0.0 is not there");
    tree.file("dev/dax0.0", "");
    expect(&doctor(&tree, &[]), "cxl", "window", "ok", "dax0.0: 1024 MiB");
}

#[test]
fn only_what_is_needed_fails() {
    let tree = sound();
    let root = tree.path().to_str().unwrap();
    // There is much that this host does not have.
    let text = succeeds(&["doctor", "--root", root]);
    assert!(text.contains("missing  cxl"), "{text}");
    // A transport that no build of this release has.
    let (code, error) = fails(&["doctor", "--root", root, "--set", "transports=nvlink"]);
    assert_eq!(code, 1);
    assert!(error.starts_with("te: what the configured transports need is missing: nvlink build"), "{error}");
    // What every engine needs.
    let (code, error) = fails(&["doctor", "--root", root, "--set", "port.min=80"]);
    assert_eq!(code, 1);
    assert!(error.contains("missing: control ports"), "{error}");
    assert_eq!(fails(&["doctor", "--root", "/no/such/tree"]).0, 2);
}

#[test]
fn listeners_open_to_everybody_are_pointed_out() {
    let tree = sound();
    let listeners = |settings: &[&str]| {
        let report = doctor(&tree, settings);
        let (verdict, found) = found(&report, "control", "listeners")[0];
        (verdict.to_owned(), found.to_owned())
    };
    assert_eq!(listeners(&["--set", "bind=0.0.0.0"]), ("warn".into(), "at 0.0.0.0: every interface".into()));
    assert_eq!(listeners(&["--set", "bind=127.0.0.1"]), ("ok".into(), "at 127.0.0.1: this host only".into()));
    assert_eq!(
        listeners(&["--set", "advertise=10.0.0.7"]),
        ("ok".into(), "at 10.0.0.7, without authentication".into())
    );
    let reserved = sound();
    reserved.file("proc/sys/net/ipv4/ip_local_port_range", "1024 60999");
    reserved.file("proc/sys/net/ipv4/ip_local_reserved_ports", "8080,15000-17000");
    expect(&doctor(&reserved, &[]), "control", "ports", "ok", "apart from");
}

#[test]
fn this_host_is_asked() {
    let report = json(&["doctor", "--set", "transports=tcp"]);
    assert_eq!(report["ok"], cfg!(feature = "tcp"));
    if cfg!(feature = "tcp") {
        expect(&report, "control", "sockets", "ok", "sockets");
    }
}
