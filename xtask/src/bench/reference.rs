//! The benchmark program that the reference engine ships, as a yardstick.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Result;
use crate::interop::environment::Environment;
use crate::shell::Cmd;

const START: Duration = Duration::from_secs(60);
const COMMON: [&str; 4] =
    ["--metadata_server=P2PHANDSHAKE", "--protocol=tcp", "--local_server_name=127.0.0.1", "-logtostderr"];

/// A running target of the reference's benchmark.
pub(super) struct ReferenceBench {
    program: PathBuf,
    preload: PathBuf,
    target: Child,
    port: u16,
}

impl ReferenceBench {
    pub(super) fn start(environment: &Environment, buffer: u64) -> Result<Self> {
        let program = program(environment)?;
        let log = environment.logs.join("reference-bench.log");
        let mut command = Command::new(&program);
        command
            .args(["--mode=target", &format!("--buffer_size={buffer}")])
            .args(COMMON)
            .env("LD_PRELOAD", &environment.preload)
            .env("MC_TCP_BIND_ADDRESS", "127.0.0.1")
            .stdout(Stdio::null())
            .stderr(File::create(&log)?);
        let mut target = command.spawn()?;
        let began = Instant::now();
        let port = loop {
            if let Some(port) = port_in(&fs::read_to_string(&log).unwrap_or_default()) {
                break port;
            }
            if began.elapsed() > START || target.try_wait()?.is_some() {
                let _ = target.kill();
                return Err(format!("the reference's benchmark did not start; see {}", log.display()).into());
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        // It says so before its memory is registered.
        std::thread::sleep(Duration::from_secs(2));
        Ok(Self { program, preload: environment.preload.clone(), target, port })
    }

    /// Gigabytes per second of one run.
    pub(super) fn run(&mut self, op: &str, block: u64, batch: u64, duration: Duration) -> Result<f64> {
        let finished = Cmd::new(&self.program)
            .args(["--mode=initiator", &format!("--segment_id=127.0.0.1:{}", self.port)])
            .args([
                &format!("--operation={op}"),
                &format!("--block_size={block}"),
                &format!("--batch_size={batch}"),
            ])
            .args(["--threads=1", &format!("--duration={}", duration.as_secs()), "--report_precision=4"])
            .arg(format!("--buffer_size={}", (block * batch).max(1 << 20)))
            .args(COMMON)
            .env("LD_PRELOAD", &self.preload)
            .env("MC_TCP_BIND_ADDRESS", "127.0.0.1")
            .deadline(Duration::from_secs(120))
            .quiet()?;
        let rate = rate_in(&finished.output, block * batch);
        rate.ok_or_else(|| {
            format!("the reference's benchmark printed no result: {}", finished.output.trim()).into()
        })
    }
}

impl Drop for ReferenceBench {
    fn drop(&mut self) {
        let _ = self.target.kill();
        let _ = self.target.wait();
    }
}

fn program(environment: &Environment) -> Result<PathBuf> {
    let code = "import mooncake, os; print(os.path.dirname(mooncake.__file__))";
    let folder = Cmd::new(&environment.python).args(["-c", code]).read()?;
    let program = PathBuf::from(folder.trim()).join("transfer_engine_bench");
    // Installed without its execute bit.
    if !Cmd::new("chmod").arg("755").arg(&program).run()? {
        return Err(format!("{} cannot be made executable", program.display()).into());
    }
    Ok(program)
}

/// The port in `… listening on 127.0.0.1:PORT …`.
fn port_in(log: &str) -> Option<u16> {
    let rest = log.split_once("listening on 127.0.0.1:")?.1;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Bytes moved over time, from `duration D, batch count N, …`.
fn rate_in(output: &str, batch_bytes: u64) -> Option<f64> {
    let number = |after: &str| {
        let rest = output.split_once(after)?.1.trim_start();
        let text: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        text.trim_end_matches('.').parse::<f64>().ok()
    };
    let (duration, count) = (number("duration ")?, number("batch count ")?);
    (duration > 0.0).then(|| batch_bytes as f64 * count / duration / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_and_rate_are_found_in_what_the_program_prints() {
        assert_eq!(
            port_in("I1 x] Transfer Engine RPC using P2P, listening on 127.0.0.1:15873\nmore"),
            Some(15_873)
        );
        assert_eq!(port_in("nothing yet"), None);
        let line = "I1 x] Test completed: duration 1.01, batch count 5050, throughput 5.2 GB/s";
        assert!((rate_in(line, 1_000_000).unwrap() - 5.0).abs() < 1e-9);
        assert_eq!(rate_in("aborted", 1), None);
    }
}
