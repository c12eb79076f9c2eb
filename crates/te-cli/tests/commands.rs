//! The program answers: show, probe, notify, explain, features and config, and what it says when it cannot.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

#[cfg(all(feature = "tcp", feature = "p2p"))]
use common::Served;
use common::{fails, json, succeeds, te};

#[cfg(all(feature = "tcp", feature = "p2p"))]
#[test]
fn show_prints_what_is_offered() {
    let served = Served::start(&["--size", "64MiB", "--access", "remote_read"]);
    let text = succeeds(&["show", &served.segment]);
    assert!(text.contains(&format!("segment      {}", served.segment)), "{text}");
    let row = text.lines().last().unwrap();
    for cell in [served.address.as_str(), "64 MiB", "remote_read", "tcp"] {
        assert!(row.contains(cell), "{row}");
    }
    let shown = json(&["show", &served.segment]);
    assert_eq!(shown["engine"], "te");
    assert_eq!(shown["buffers"][0]["length"], 64 << 20);
    let transports = shown["buffers"][0]["transports"].as_array().unwrap();
    assert!(transports.contains(&"tcp".into()), "{shown}");
    assert_eq!(transports.contains(&"shm".into()), cfg!(feature = "shm"), "{shown}");
    assert_eq!(shown["tcp"]["framing"], 2);
    // How it stands: its life, and the paths to it.
    assert!(text.contains("\npeer         alive for "), "{text}");
    assert!(text.contains(", circuit closed\n"), "{text}");
    assert_eq!(
        (&shown["peer"]["life"], &shown["peer"]["cause"]),
        (&"alive".into(), &"its control port answered".into())
    );
    assert!(shown["peer"]["for_ms"].is_u64());
    let paths = shown["paths"].as_array().unwrap();
    let tcp = paths.iter().find(|path| path["transport"] == "tcp").unwrap();
    assert_eq!(tcp["circuit"], "closed");
}

#[cfg(all(feature = "tcp", feature = "p2p"))]
#[test]
fn probe_says_where_the_engine_answers() {
    let served = Served::start(&[]);
    assert!(succeeds(&["probe", &served.segment]).starts_with(&format!("{} answers at ", served.segment)));
    assert_eq!(json(&["probe", &served.segment])["endpoint"], served.segment.as_str());
}

#[cfg(all(feature = "tcp", feature = "p2p"))]
#[test]
fn a_notification_is_printed_by_its_receiver() {
    let served = Served::start(&[]);
    assert_eq!(json(&["notify", &served.segment, "layer", "17 is complete"])["ok"], true);
    let line = served.next();
    assert_eq!(
        (&line["notify"]["name"], &line["notify"]["message"]),
        (&"layer".into(), &"17 is complete".into())
    );
}

#[cfg(all(feature = "tcp", feature = "p2p"))]
#[test]
fn explain_names_the_transport_and_the_reason() {
    let served = Served::start(&[]);
    let text = succeeds(&["explain", &served.segment, &served.address, "4KiB"]);
    assert!(text.starts_with("peer alive for "), "{text}");
    let (chosen, next) = if cfg!(feature = "shm") { ("shm", Some("tcp")) } else { ("tcp", None) };
    let says = |text: &str, start: &str| text.lines().any(|line| line.trim_start().starts_with(start));
    assert!(says(&text, &format!("CHOSEN  {chosen}")), "{text}");
    assert!(next.is_none_or(|next| text.contains(next)), "{text}");
    assert!(text.lines().any(|line| line.contains("tcp        closed   ")), "{text}");
    let write = ["explain", &served.segment, &served.address, "4KiB", "--op", "write"];
    let explained = json(&write);
    assert_eq!(explained["chosen"], chosen);
    assert_eq!(explained["peer"]["life"], "alive");
    assert_eq!(explained["candidates"][0]["path"]["circuit"], "closed");
    let over_tcp = succeeds(&[&write[..], &["--set", "transports=tcp"]].concat());
    assert!(says(&over_tcp, "CHOSEN  tcp"), "{over_tcp}");
    let (code, error) = fails(&["explain", &served.segment, "0x10", "4KiB"]);
    assert_eq!(code, 1);
    assert!(error.contains("range outside the segment"), "{error}");
}

#[cfg(feature = "p2p")]
#[test]
fn a_peer_that_is_not_there_is_one_line_and_its_details() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    // What the command says itself, without the log: a build may have transports that this host lacks.
    let (code, error) = fails(&["probe", &free, "--set", "log=error"]);
    assert_eq!(code, 1);
    assert!(error.starts_with(&format!("te: probe {free} failed: peer unreachable\n  cause")), "{error}");
    let output = te().args(["probe", &free, "--json"]).output().unwrap();
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&line["ok"], &line["error"]["kind"]), (&false.into(), &"peer unreachable".into()));
}

/// META-18.
#[cfg(not(feature = "etcd"))]
#[test]
fn a_store_that_is_not_compiled_in_names_its_feature() {
    for command in [["probe", "decode-7"].as_slice(), &["ls"]] {
        let (code, error) = fails(&[command, &["--metadata", "etcd://127.0.0.1:2379"]].concat());
        assert_eq!(code, 1);
        assert!(error.contains("needs the Cargo feature `etcd`"), "{error}");
    }
}

#[cfg(not(feature = "http"))]
#[test]
fn a_server_that_is_not_compiled_in_names_its_feature() {
    let (code, error) = fails(&["metad"]);
    assert_eq!((code, error.contains("the Cargo feature `http`")), (2, true), "{error}");
}

/// META-18.
#[test]
fn a_scheme_nobody_knows_is_a_mistake_on_the_command_line() {
    let (code, error) = fails(&["probe", "decode-7", "--metadata", "gopher://127.0.0.1"]);
    assert_eq!(code, 2);
    assert!(error.starts_with("te: metadata scheme \"gopher\" is unknown; compiled in: "), "{error}");
}

#[test]
fn without_a_store_there_is_nothing_to_list() {
    let (code, error) = fails(&["ls"]);
    assert_eq!(code, 2);
    assert!(error.starts_with("te: P2PHANDSHAKE holds no list: engines ask each other"), "{error}");
}

/// SEC-03.
#[test]
fn a_token_is_in_no_output() {
    let set = ["--set", "metadata.token=hunter2"];
    for arguments in [["config", "--origin"].as_slice(), &["config", "--json"]] {
        let text = succeeds(&[arguments, &set].concat());
        assert!(text.contains("***") && !text.contains("hunter2"), "{text}");
    }
    let (_, error) = fails(&["ls", "--metadata", "redis//u:hunter2@127.0.0.1"]);
    assert!(!error.contains("hunter2"), "{error}");
}

/// B-08.
#[test]
fn features_says_what_is_compiled_in() {
    let compiled = [
        ("local", true),
        ("tcp", cfg!(feature = "tcp")),
        ("shm", cfg!(feature = "shm")),
        ("rdma", cfg!(feature = "rdma")),
        ("p2p", cfg!(feature = "p2p")),
        ("etcd", cfg!(feature = "etcd")),
        ("redis", cfg!(feature = "redis")),
        ("http", cfg!(feature = "http")),
        ("tls", cfg!(feature = "tls")),
    ];
    let all = json(&["features"]);
    for feature in all["features"].as_array().unwrap() {
        let name = feature["name"].as_str().unwrap();
        let expected = compiled.iter().any(|(known, here)| *known == name && *here);
        assert_eq!(feature["compiled"], expected, "{feature}");
    }
    assert!(succeeds(&["features"]).contains("not in this release"));
}

/// CFG-03.
#[test]
fn config_prints_the_origin_of_each_value() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("te.conf");
    std::fs::write(&file, "port.min = 15001\nport.max = 16001\n").unwrap();
    let output = te()
        .args(["config", "--origin", "--set", "notify.queue=7", "--config", file.to_str().unwrap()])
        .env("TE_PORT_MAX", "16002")
        .env("MC_TRANSFER_TIMEOUT", "7")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let origin = |key: &str| {
        let row: Vec<_> = text
            .lines()
            .find(|line| line.starts_with(&format!("{key} ")))
            .unwrap()
            .split_whitespace()
            .collect();
        (row[1].to_owned(), row[2..].join(" "))
    };
    assert_eq!(origin("port.min"), ("15001".to_owned(), format!("{}:1", file.display())));
    assert_eq!(origin("port.max"), ("16002".to_owned(), "TE_PORT_MAX".to_owned()));
    assert_eq!(origin("request.deadline"), ("7s".to_owned(), "MC_TRANSFER_TIMEOUT".to_owned()));
    assert_eq!(origin("notify.queue"), ("7".to_owned(), "command line".to_owned()));
    assert_eq!(origin("control.port"), ("0".to_owned(), "default".to_owned()));
}

/// CFG-01.
#[test]
fn a_bad_setting_is_a_mistake_on_the_command_line() {
    let (code, error) = fails(&["config", "--set", "control.port=-1"]);
    assert_eq!(code, 2);
    assert_eq!(error, "te: control.port = \"-1\" from command line is not a port from 0 to 65535\n");
    assert_eq!(fails(&["config", "--set", "control.port"]).0, 2);
    assert_eq!(fails(&["serve", "--size", "64MB"]).0, 2);
    let output = te().arg("config").env("TE_CONTROL_PORT", "abc").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8(output.stderr).unwrap().contains("control.port = \"abc\" from TE_CONTROL_PORT")
    );
}

/// CFG-01.
#[test]
fn an_unknown_variable_is_a_warning() {
    let output = te().arg("config").env("TE_CONTROL_PROT", "1").output().unwrap();
    assert!(output.status.success());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("TE_CONTROL_PROT is not a setting and is ignored; did you mean TE_CONTROL_PORT?"));
}

/// What a reader in a pipe has seen enough of is no failure.
#[test]
fn a_closed_output_is_no_failure() {
    use std::process::Stdio;
    let mut child = te().arg("features").stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}
