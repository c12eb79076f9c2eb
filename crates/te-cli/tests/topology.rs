//! `te topology` on a made-up host.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::fs;
use std::path::Path;

use common::tree::Tree;
use common::{fails, json, succeeds};

/// One node, two RDMA devices, the second without a link.
fn host() -> Tree {
    let tree = Tree::new();
    tree.file("sys/devices/system/node/node0/cpulist", "0-7");
    tree.file("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 1048576 kB");
    tree.file("sys/class/net/eth0/mtu", "4200");
    tree.nic("mlx5_0", "4: ACTIVE", "0000:0000:0000:0000:0000:ffff:0a00:0007");
    tree.nic("mlx5_1", "1: DOWN", "0000:0000:0000:0000:0000:ffff:0a00:0007");
    tree
}

fn arguments<'a>(root: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    ["topology", "--root", root.to_str().unwrap()].into_iter().chain(more.iter().copied()).collect()
}

#[test]
fn a_host_is_shown_as_tables_and_a_tree() {
    let host = host();
    let text = succeeds(&arguments(host.path(), &[]));
    for part in [
        "NUMA  CPUS",
        "mlx5_0  0     0000:00:00.0",
        "├─",
        "mlx5_1: not usable: no port is active",
        "cpu:0   mlx5_0",
    ] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    let shown = json(&arguments(host.path(), &[]));
    assert_eq!(shown["nodes"][0]["memory"], 1_u64 << 30);
    assert_eq!(
        shown["nodes"][0]["unknown"]["distances"],
        "sys/devices/system/node/node0/distance: not there"
    );
    assert_eq!(shown["nics"][0]["usable"]["address"], "::ffff:10.0.0.7");
    assert_eq!(shown["nics"][0]["ports"][0]["mtu"], 4096);
    assert_eq!(
        (&shown["nics"][1]["usable"], &shown["nics"][1]["ports"][0]["state"]),
        (&false.into(), &"down".into())
    );
    assert_eq!(shown["matrix"]["cpu:0"][0][0], "mlx5_0");
}

#[test]
fn the_matrix_is_made_filtered_and_read() {
    let host = host();
    let matrix = succeeds(&arguments(host.path(), &["--matrix"]));
    assert_eq!(matrix, "{\"cpu:0\":[[\"mlx5_0\"],[]]}\n");
    assert_eq!(succeeds(&arguments(host.path(), &["--matrix", "--without", "mlx5_0"])), "null\n");
    let file = host.path().join("matrix.json");
    let path = file.to_str().unwrap();
    fs::write(&file, r#"{"cpu:3":[[],["mlx5_0"]]}"#).unwrap();
    let read = succeeds(&arguments(host.path(), &["--matrix", "--matrix-file", path]));
    assert_eq!(read, "{\"cpu:3\":[[],[\"mlx5_0\"]]}\n");
    fs::write(&file, r#"{"cpu:0":[["mlx5_1"],[]]}"#).unwrap();
    let (code, error) = fails(&arguments(host.path(), &["--matrix-file", path]));
    assert_eq!(code, 1);
    assert!(error.contains("names mlx5_1 for cpu:0, which is no usable RDMA device"), "{error}");
}

#[test]
fn unknown_devices_and_folders_are_errors() {
    let host = host();
    let (code, error) = fails(&arguments(host.path(), &["--only", "mlx5_7"]));
    assert_eq!(code, 1);
    assert!(error.contains("no RDMA device mlx5_7 on this host; it has mlx5_0, mlx5_1"), "{error}");
    assert_eq!(fails(&arguments(host.path(), &["--only", "a@b"])).0, 2);
    let (code, error) = fails(&arguments(&host.path().join("no"), &[]));
    assert_eq!(code, 2);
    assert!(error.contains("not a folder"), "{error}");
}

#[test]
fn this_host_can_be_looked_at() {
    assert!(json(&["topology"])["nics"].is_array());
    assert!(succeeds(&["topology"]).contains("host\n"));
}
