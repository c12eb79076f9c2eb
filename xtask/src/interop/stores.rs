//! Both engines in one metadata store: they see each other, and survive each other's sudden end.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use super::board::{Board, Case};
use super::checks::{Seeds, check_command, must_fail, read_command, row, transfer_command};
use super::environment::Environment;
use super::meeting::Meeting;
use super::ours::{self, Served, Te, Transfer};
use super::reference::{Framing, Reference};
use crate::Result;
use crate::provision::{self, Need, What};

const SIZE: u64 = 1 << 20;
const START: Duration = Duration::from_secs(20);
const SEED: u8 = 7;

/// A running metadata store.
struct Store {
    label: &'static str,
    url: String,
    server: Child,
    /// Whether a reference engine can start again under a name whose record it left behind.
    reference_can_restart: bool,
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Every store that both engines speak: etcd, the HTTP server of the reference's wheel, and ours.
pub(super) fn checks(environment: &Environment, program: &Path, board: &mut Board) -> Result<()> {
    provision::debian(&[Need { what: What::Program("etcd"), package: "etcd-server" }])?;
    for start in [etcd, wheel_http, our_http] {
        let store = start(environment, program)?;
        // Names with a slash have other keys, and so do clusters.
        for (cluster, prefix) in [(None, ""), (Some("blue"), "rack-1/")] {
            let meeting = Meeting::store(&store.url, cluster);
            let te = ours::te(program, &environment.logs, meeting.clone());
            let pair = format!("{}{}", store.label, cluster.map(|c| format!(" {c}")).unwrap_or_default());
            inbound(environment, &te, (&pair, prefix), board)?;
            outbound(environment, &te, (&pair, prefix), &store, board)?;
        }
    }
    Ok(())
}

fn case<'a>(pair: &'a str, what: &'a str) -> Case<'a> {
    row(pair, "", what, "")
}

/// The reference acts on `te serve`, which is killed and started again under its name.
fn inbound(
    environment: &Environment,
    te: &Te,
    (pair, prefix): (&str, &str),
    board: &mut Board,
) -> Result<()> {
    let name = format!("{prefix}te-target");
    let mut served = Served::start_as(te, &name, SIZE, SEED)?;
    let mut seeds = Seeds(SEED);
    for life in ["first life", "after SIGKILL"] {
        // A new engine each time: the reference never looks again at what it has opened.
        let own = format!("{prefix}ref-initiator-{}", life.replace(' ', "-"));
        let mut initiator = Reference::initiator_at(environment, &te.meeting, &own, SIZE)?;
        let place = served.place.clone();
        board.check(case(pair, &format!("reference reads te, {life}")), || {
            initiator.ask(read_command(&place, SIZE, 1, SEED, Framing::V2)).map(drop)
        });
        let seed = seeds.next();
        board.check(case(pair, &format!("reference writes te, {life}")), || {
            initiator.ask(transfer_command("write", &place, SIZE, 16, seed))?;
            initiator.ask(read_command(&place, SIZE, 16, seed, Framing::V2)).map(drop)
        });
        board.check(case(pair, &format!("reference notifies te, {life}")), || {
            initiator.ask(json!({"do": "notify", "segment": place.segment, "addr": place.address,
                "name": own, "message": "in a store"}))?;
            served.was_notified(&own, "in a store")
        });
        board.check(case(pair, &format!("reference probes te, {life}")), || {
            initiator.ask(json!({"do": "probe", "segment": place.segment})).map(drop)
        });
        board.check(case(pair, &format!("initiator is alive, {life}")), || initiator.is_well());
        initiator.quit()?;
        if life == "first life" {
            board.check(case(pair, "te starts again under its name"), || {
                served.kill()?;
                served = Served::start_as(te, &name, SIZE, SEED)?;
                Ok(())
            });
        }
    }
    board.check(case(pair, "a name in use is refused"), || {
        must_fail(Served::start_as(te, &name, SIZE, SEED).map(drop), "two engines have one name")
    });
    board.check(case(pair, "te serve stops when asked"), || served.stop());
    Ok(())
}

/// `te` acts on the reference, which is killed and, where it can, started again under its name.
fn outbound(
    environment: &Environment,
    te: &Te,
    (pair, prefix): (&str, &str),
    store: &Store,
    board: &mut Board,
) -> Result<()> {
    let name = format!("{prefix}ref-target");
    let mut target = Reference::target_at(environment, &te.meeting, &name, SIZE)?;
    let mut seeds = Seeds(90);
    for life in ["first life", "after SIGKILL"] {
        let place = target.place.clone();
        let seed = seeds.next();
        let transfer = |op, seed| Transfer { op, size: SIZE, blocks: 16, seed, framing: Framing::V2 };
        board.check(case(pair, &format!("te writes the reference, {life}")), || {
            te.check(&place, transfer("write", seed))?;
            target.ask(check_command(SIZE, 1, seed)).map(drop)
        });
        board.check(case(pair, &format!("te reads the reference, {life}")), || {
            te.check(&place, transfer("read", seed))
        });
        board.check(case(pair, &format!("te notifies the reference, {life}")), || {
            te.notify(&place.segment, "note-te", life)?;
            let answer = target.ask(json!({"do": "notifies"}))?;
            let expected = json!([["note-te", life]]);
            if answer["notifies"] == expected { Ok(()) } else { Err(format!("arrived: {answer}").into()) }
        });
        board.check(case(pair, &format!("te probes the reference, {life}")), || te.probe(&place.segment));
        board.check(case(pair, &format!("reference is alive, {life}")), || target.is_well());
        if life != "first life" {
            break;
        }
        target.kill()?;
        board.check(case(pair, "te cannot probe a dead reference"), || {
            must_fail(te.probe(&place.segment), "a dead engine answered")
        });
        if !store.reference_can_restart {
            // Its own server refuses a second write of a location, and the reference does not overrule it.
            return Ok(());
        }
        target = Reference::target_at(environment, &te.meeting, &name, SIZE)?;
    }
    target.quit()
}

fn etcd(environment: &Environment, _program: &Path) -> Result<Store> {
    let (client, peer) = (free_port()?, free_port()?);
    let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
    let data = environment.logs.join(format!("etcd-{}", std::process::id()));
    let mut command = Command::new("etcd");
    command
        .arg("--data-dir")
        .arg(&data)
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")]);
    let url = client.replace("http", "etcd");
    started("etcd", url, command, true)
}

/// The server that comes with the reference.
fn wheel_http(environment: &Environment, _program: &Path) -> Result<Store> {
    let port = free_port()?.to_string();
    let mut command = Command::new(&environment.python);
    command.args(["-m", "mooncake.http_metadata_server", "--host", "127.0.0.1", "--port", &port]);
    started("http of the reference", format!("http://127.0.0.1:{port}/metadata"), command, false)
}

/// `te metad`.
fn our_http(_environment: &Environment, program: &Path) -> Result<Store> {
    let port = free_port()?;
    let mut command = Command::new(program);
    command.args(["metad", "--listen", &format!("127.0.0.1:{port}"), "--json"]);
    started("http of te", format!("http://127.0.0.1:{port}/metadata"), command, true)
}

/// Starts a server and waits until it accepts.
fn started(
    label: &'static str,
    url: String,
    mut command: Command,
    reference_can_restart: bool,
) -> Result<Store> {
    let address =
        url.split("://").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or_default().to_owned();
    let server = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot start {label}: {error}"))?;
    let mut store = Store { label, url, server, reference_can_restart };
    let began = Instant::now();
    while std::net::TcpStream::connect(&address).is_err() {
        if began.elapsed() > START || store.server.try_wait()?.is_some() {
            return Err(format!("{label} did not start at {address}").into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(store)
}

/// Below the ports that outgoing connections get: a store that is stopped and started again must find its port free.
fn free_port() -> Result<u16> {
    let random = || RandomState::new().hash_one(()) % 8_000;
    std::iter::repeat_with(random)
        .take(100)
        .filter_map(|number| u16::try_from(22_000 + number).ok())
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .ok_or_else(|| "no free port for a store".into())
}
