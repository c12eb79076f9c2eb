//! The program moves bytes: serve, cp, check, demo and bench, each in processes of their own.
#![cfg(all(feature = "tcp", feature = "p2p"))]
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Served, fails, json, succeeds};
use serde_json::Value;

/// The transport between processes of one host.
const LOCAL: &str = if cfg!(feature = "shm") { "shm" } else { "tcp" };

#[test]
fn check_writes_and_reads_a_pattern_and_the_target_has_it() {
    let mut served = Served::start(&["--size", "1MiB"]);
    let (segment, address) = (served.segment.clone(), served.address.clone());
    let check = |op: &'static str, seed: &'static str| -> Vec<&str> {
        let arguments = ["check", "--peer", &segment, "--addr", &address, "--size", "1MiB", "--batch", "16"];
        arguments.into_iter().chain(["--seed", seed, "--op", op]).collect()
    };
    assert_eq!(json(&check("both", "9"))["verified"], true);
    assert_eq!(served.ask("check 0 1MiB 9")["ok"], true);
    assert_eq!(served.ask("check 0 1MiB 10")["ok"], false);
    assert_eq!(served.ask("fill 11")["ok"], true);
    assert!(succeeds(&check("read", "11")).contains(&format!("1 MiB in 16 requests over {LOCAL} ")));
    // What the command says itself, without the log: a build may have transports that this host lacks.
    let (code, error) = fails(&[check("read", "12"), vec!["--set", "log=error"]].concat());
    assert_eq!(code, 1);
    assert_eq!(error, "te: byte 0 is 0x0b instead of 0x0c\n");
}

#[test]
fn framing_v1_is_a_setting_away() {
    let mut served = Served::start(&["--size", "64KiB"]);
    let arguments =
        ["check", "--peer", &served.segment, "--addr", &served.address, "--size", "64KiB", "--seed", "3"];
    let answer = json(&[&arguments[..], &["--set", "tcp.framing=v1", "--set", "transports=tcp"]].concat());
    assert!(answer["path"].as_str().unwrap().ends_with("v1"), "{answer}");
    assert_eq!(served.ask("check 0 64KiB 3")["ok"], true);
}

#[test]
fn a_file_goes_up_and_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let (source, copy) = (folder.path().join("source"), folder.path().join("copy"));
    // More than two chunks and no whole number of them.
    let bytes: Vec<u8> =
        (0..(17 << 20) + 13_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(&source, &bytes).unwrap();
    let served = Served::start(&["--size", "32MiB"]);
    let (source, copy) = (source.to_str().unwrap(), copy.to_str().unwrap());
    let up = json(&["cp", source, &served.segment, "--buffer", &served.address, "--offset", "4KiB"]);
    assert_eq!(up["bytes"], bytes.len());
    let length = bytes.len().to_string();
    succeeds(&["cp", &served.segment, copy, "--buffer", "0", "--offset", "4KiB", "--length", &length]);
    assert!(fs::read(copy).unwrap() == bytes);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn a_file_that_does_not_fit_is_refused_and_nothing_is_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (source, copy) = (folder.path().join("source"), folder.path().join("copy"));
    fs::write(&source, vec![1; 8193]).unwrap();
    let mut served = Served::start(&["--size", "8KiB", "--pattern", "5"]);
    let (code, error) = fails(&["cp", source.to_str().unwrap(), &served.segment]);
    assert_eq!(code, 1, "{error}");
    assert_eq!(served.ask("check 0 8KiB 5")["ok"], true);
    fails(&["cp", &served.segment, copy.to_str().unwrap(), "--length", "1MiB"]);
    assert!(!copy.exists());
    let (code, error) = fails(&["cp", source.to_str().unwrap(), folder.path().to_str().unwrap()]);
    assert_eq!((code, error.as_str()), (2, "te: one of the two must be a segment\n"));
}

#[test]
fn a_buffer_that_forbids_writing_is_not_written() {
    let mut served = Served::start(&["--size", "4KiB", "--pattern", "5", "--access", "remote_read"]);
    let arguments = ["check", "--peer", &served.segment, "--addr", &served.address, "--size", "4KiB"];
    let (code, error) = fails(&[&arguments[..], &["--op", "write"]].concat());
    assert_eq!(code, 1);
    assert!(
        error.contains("permission denied") && error.contains("the buffer permits remote_read only"),
        "{error}"
    );
    assert_eq!(served.ask("check 0 4KiB 5")["ok"], true);
}

#[test]
fn the_demo_verifies_every_byte_in_both_directions() {
    let result = json(&["demo", "--total", "2MiB"]);
    assert_eq!(result["ok"], true);
    let rows = result["rows"].as_array().unwrap();
    let kinds: Vec<(&str, u64)> =
        rows.iter().map(|row| (row["op"].as_str().unwrap(), row["block"].as_u64().unwrap())).collect();
    let expected = [4096, 65_536, 1 << 20].into_iter().flat_map(|block| [("write", block), ("read", block)]);
    assert_eq!(kinds, expected.collect::<Vec<_>>());
    for row in rows {
        assert_eq!(row["verified"], true, "{row}");
        assert!(row["path"].as_str().unwrap().starts_with(LOCAL), "{row}");
        assert!(row["p50_us"].as_u64() <= row["p99_us"].as_u64(), "{row}");
    }
}

#[test]
fn the_demo_prints_a_table() {
    let text = succeeds(&["demo", "--total", "4KiB"]);
    let head = text.lines().next().unwrap();
    for column in ["OP", "BLOCK", "PATH", "GB/s", "p50", "p99", "VERIFIED"] {
        assert!(head.contains(column), "{head}");
    }
    assert_eq!(text.matches("every byte").count(), 2, "{text}");
}

#[test]
fn the_bench_compares_with_plain_sockets() {
    let line =
        "bench local --raw --block 16KiB --batch 4 --threads 2 --duration 200ms --rounds 3 --area 1MiB";
    let rows = json(&line.split(' ').collect::<Vec<_>>());
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.iter().map(|row| row["op"].as_str().unwrap()).collect::<Vec<_>>(), ["write", "read"]);
    for row in rows {
        for side in ["engine", "raw"] {
            assert_eq!(row[side]["rounds"].as_array().map(Vec::len), Some(3), "{row}");
            assert!(row[side]["gigabytes_per_second"].as_f64() > Some(0.0), "{row}");
            // Nothing leaves this host, and some thread did the work.
            assert_eq!(row[side]["line"]["gigabytes_per_second"], Value::Null, "{row}");
            assert!(row[side]["line"]["busiest_thread"]["share"].as_f64() > Some(0.0), "{row}");
            assert!(row[side]["line"]["limit"].is_string(), "{row}");
        }
        assert!(row["ratio"].as_f64() > Some(0.0), "{row}");
    }
}

#[test]
fn the_bench_verifies_what_it_moved() {
    for way in ["", " --private", " --set transports=tcp"] {
        let line = format!(
            "bench local --verify --block 4KiB,96KiB --batch 2 --threads 2 --duration 50ms --rounds 1 --area 1MiB{way}"
        );
        let rows = json(&line.split(' ').collect::<Vec<_>>());
        for row in rows.as_array().unwrap() {
            assert_eq!(row["verified"], row["area"], "{row}");
            assert!(row["verified"].as_u64() > Some(0), "{row}");
            assert!(row["engine"]["allocations_per_request"].as_f64() > Some(0.0), "{row}");
        }
    }
    // What must not be written cannot be filled.
    let served = Served::start(&["--size", "1MiB", "--access", "remote_read"]);
    let line = "bench initiator --verify --op read --block 4KiB --batch 1 --duration 50ms --rounds 1 --peer";
    let arguments: Vec<&str> = line.split(' ').chain([served.segment.as_str()]).collect();
    assert_eq!(fails(&arguments).0, 1);
}

#[test]
fn the_bench_works_on_a_target_elsewhere() {
    let served = Served::start(&["--size", "1MiB"]);
    let line = "bench initiator --op read --block 4KiB --batch 1 --duration 50ms --rounds 1 --peer";
    let arguments: Vec<&str> = line.split(' ').chain([served.segment.as_str()]).collect();
    assert_eq!(json(&arguments)[0]["raw"], Value::Null);
    let (code, _) = fails(&[&arguments[..], &["--block", "1MiB", "--batch", "2"]].concat());
    assert_eq!(code, 2);
}

#[test]
fn the_bench_plays_ping_pong() {
    for way in ["", " --set transports=tcp"] {
        let line = format!("bench ping-pong --block 8,4KiB --duration 50ms{way}");
        let rows = json(&line.split(' ').collect::<Vec<_>>());
        for (row, block) in rows.as_array().unwrap().iter().zip([8, 4096]) {
            assert_eq!(row["block"], block, "{row}");
            assert!(row["round_trips"].as_u64() > Some(0), "{row}");
            assert!(row["half_p50_us"].as_f64() > Some(0.0), "{row}");
        }
    }
    let served = Served::start(&["--size", "64", "--ping-pong"]);
    let arguments = ["bench", "ping-pong", "--duration", "50ms", "--peer", served.segment.as_str()];
    assert_eq!(json(&arguments)[0]["op"], "ping-pong");
    let (code, error) = fails(&[&arguments[..], &["--block", "7"]].concat());
    assert_eq!(code, 2, "{error}");
    // More than the target has.
    assert_eq!(fails(&[&arguments[..], &["--block", "128"]].concat()).0, 1);
}

#[test]
fn serve_ends_when_it_is_told_to() {
    for signal in ["-TERM", "-INT"] {
        let mut served = Served::start(&[]);
        served.signal(signal);
        assert_eq!(served.ends_within(Duration::from_secs(2)), Some(0), "{signal}");
    }
}

#[test]
fn a_child_ends_with_its_standard_input_and_others_do_not() {
    let mut child = Served::start(&["--until-stdin-closes"]);
    child.close_stdin();
    assert_eq!(child.ends_within(Duration::from_secs(2)), Some(0));
    let mut served = Served::start(&[]);
    served.close_stdin();
    assert_eq!(served.ends_within(Duration::from_millis(300)), None);
}

/// Processes whose parent is this one.
fn children_of(parent: u32) -> Vec<u32> {
    let processes =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_child = |process: &u32| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // Behind the name in parentheses come the state and the parent.
        let parent_of =
            stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        parent_of == Some(parent)
    };
    processes.filter(is_child).collect()
}

#[test]
fn a_demo_that_is_killed_leaves_no_process_behind() {
    let mut demo =
        common::te().args(["demo", "--json"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut children = Vec::new();
    while children.len() < 2 && Instant::now() < deadline {
        children = children_of(demo.id());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(children.len(), 2, "the demo starts a target and an initiator");
    demo.kill().unwrap();
    demo.wait().unwrap();
    // A process id that is used again would be a zombie's or a stranger's; both have another program.
    let runs = |process: &u32| {
        fs::read_to_string(format!("/proc/{process}/cmdline"))
            .is_ok_and(|line| line.contains("demo-initiator") || line.contains("until-stdin-closes"))
    };
    while children.iter().any(runs) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(children.into_iter().filter(|process| runs(process)).count(), 0);
}
