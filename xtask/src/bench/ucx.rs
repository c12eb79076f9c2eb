//! `ucx_perftest`, the benchmark program of UCX, over its shared memory.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Result;
use crate::interop::environment::Environment;
use crate::provision::{self, Need, What};
use crate::shell::Cmd;

/// How long its server may take to listen.
const START: Duration = Duration::from_secs(20);
/// Bytes moved in one run, about.
const BYTES: u64 = 8 << 30;

pub(super) struct Ucx {
    preload: PathBuf,
}

impl Ucx {
    pub(super) fn prepare(environment: &Environment) -> Result<Self> {
        provision::debian(&[Need { what: What::Program("ucx_perftest"), package: "ucx-utils" }])?;
        Ok(Self { preload: environment.preload.clone() })
    }

    /// Gigabytes per second of puts or gets of one block, over and over.
    pub(super) fn run(&self, op: &str, block: u64) -> Result<f64> {
        let test = if op == "write" { "ucp_put_bw" } else { "ucp_get" };
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
        let count = (BYTES / block).clamp(16, 200_000).to_string();
        let work = ["-t", test, "-s", &block.to_string(), "-n", &count, "-w", "5", "-f"];
        let mut server = Server(self.command().args(["-p", &port]).args(work).spawn()?);
        await_listener(&port, &mut server)?;
        let finished = Cmd::new("ucx_perftest")
            .args(["127.0.0.1", "-p", &port])
            .args(work)
            .env("UCX_TLS", TRANSPORTS)
            .env("UCX_NET_DEVICES", "lo")
            .deadline(Duration::from_secs(120))
            .quiet()?;
        // Of the last line: iterations, three latencies, then MiB per second.
        let figure = finished.output.lines().last().and_then(rate_in);
        figure.ok_or_else(|| format!("ucx_perftest printed no rate: {}", finished.output.trim()).into())
    }

    fn command(&self) -> Command {
        let mut command = Command::new("ucx_perftest");
        command
            .env("UCX_TLS", TRANSPORTS)
            .env("UCX_NET_DEVICES", "lo")
            .env("LD_PRELOAD", &self.preload)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }
}

const TRANSPORTS: &str = "posix,self";

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until somebody listens at the port, without connecting, which would be taken for the client.
fn await_listener(port: &str, server: &mut Server) -> Result<()> {
    let wanted = format!(":{:04X}", port.parse::<u16>()?);
    let began = Instant::now();
    loop {
        let sockets = std::fs::read_to_string("/proc/net/tcp")?;
        let listens = |line: &str| {
            let mut fields = line.split_whitespace().skip(1);
            let (local, state) = (fields.next(), fields.nth(1));
            local.is_some_and(|local| local.ends_with(&wanted)) && state == Some("0A")
        };
        if sockets.lines().any(listens) {
            return Ok(());
        }
        if began.elapsed() > START || server.0.try_wait()?.is_some() {
            return Err("the server of ucx_perftest did not start".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The average rate in a line of figures, in gigabytes (1e9 bytes) per second.
fn rate_in(line: &str) -> Option<f64> {
    let mebibytes: f64 = line.split_whitespace().nth(4)?.parse().ok()?;
    Some(mebibytes * 1_048_576.0 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_the_fifth_figure() {
        let line = "60000 1.416 2.640 2.640 23670.67 23670.67 378731 378731";
        assert!((rate_in(line).unwrap() - 24.82).abs() < 0.01);
        assert_eq!(rate_in("no figures here at all"), None);
    }
}
