//! Our side: the `te` program as a target and as an initiator.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::json_peer::JsonPeer;
use super::meeting::Meeting;
use super::reference::{Framing, Place};
use crate::Result;
use crate::shell::Cmd;

const START: Duration = Duration::from_secs(10);
const ONE_SHOT: Duration = Duration::from_secs(60);
/// How fast a served process ends when it is asked to.
const STOP: Duration = Duration::from_secs(2);
const NOTICE: Duration = Duration::from_secs(5);

/// The program, ready to be run as an initiator.
pub(super) struct Te {
    pub(super) program: PathBuf,
    pub(super) logs: PathBuf,
    pub(super) meeting: Meeting,
}

/// What `te check` does to the peer's buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transfer<'a> {
    pub(super) op: &'a str,
    pub(super) size: u64,
    pub(super) blocks: u64,
    pub(super) seed: u8,
    pub(super) framing: Framing,
}

impl Te {
    /// `te check`: writes a pattern to the peer, or reads and verifies it, in so many requests.
    pub(super) fn check(&self, place: &Place, transfer: Transfer<'_>) -> Result<()> {
        self.one_shot("check", &check_arguments(place, transfer))
    }

    pub(super) fn probe(&self, segment: &str) -> Result<()> {
        self.one_shot("probe", &[segment.to_owned()])
    }

    pub(super) fn notify(&self, segment: &str, name: &str, message: &str) -> Result<()> {
        self.one_shot("notify", &[segment, name, message].map(str::to_owned))
    }

    fn one_shot(&self, subcommand: &str, arguments: &[String]) -> Result<()> {
        let finished = Cmd::new(&self.program)
            .arg(subcommand)
            .args(arguments)
            .args(self.meeting.arguments())
            .arg("--json")
            .deadline(ONE_SHOT)
            .quiet()?;
        if finished.success {
            return Ok(());
        }
        let lines: Vec<_> = finished.output.trim().lines().collect();
        let tail = lines[lines.len().saturating_sub(4)..].join(" | ");
        Err(format!("te {subcommand} {} failed: {tail}", arguments.join(" ")).into())
    }
}

fn check_arguments(place: &Place, transfer: Transfer<'_>) -> Vec<String> {
    let Transfer { op, size, blocks, seed, framing } = transfer;
    let pairs = [
        ("--peer", place.segment.clone()),
        ("--addr", format!("{:#x}", place.address)),
        ("--size", size_text(size)),
        ("--batch", blocks.to_string()),
        ("--seed", seed.to_string()),
        ("--op", op.to_owned()),
    ];
    let mut arguments: Vec<_> =
        pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect();
    if framing == Framing::V1 {
        arguments.extend(["--set", "tcp.framing=v1"].map(str::to_owned));
    }
    arguments
}

/// A size as the command line takes it: `64MiB`, `4KiB`, plain bytes for what is not whole.
pub(super) fn size_text(size: u64) -> String {
    match size {
        n if n > 0 && n % (1 << 20) == 0 => format!("{}MiB", n >> 20),
        n if n > 0 && n % (1 << 10) == 0 => format!("{}KiB", n >> 10),
        n => n.to_string(),
    }
}

/// `te serve`: a target with one buffer and a pattern in it.
pub(super) struct Served {
    peer: JsonPeer,
    pub(super) place: Place,
}

impl Served {
    pub(super) fn start(te: &Te, size: u64, seed: u8) -> Result<Self> {
        Self::start_as(te, "127.0.0.1", size, seed)
    }

    /// Under a name of the caller's.
    pub(super) fn start_as(te: &Te, name: &str, size: u64, seed: u8) -> Result<Self> {
        let mut command = Command::new(&te.program);
        command.args(["serve", "--name", name, "--json"]).args(te.meeting.arguments());
        command.args(["--size", &size_text(size), "--pattern", &seed.to_string()]);
        let mut peer = JsonPeer::spawn(command, "te-serve", &te.logs)?;
        let place = Place::parse(&peer.find(START, |line| line["segment"].is_string())?)?;
        if place.length != size {
            return Err(format!("te serve offers {} bytes instead of {size}", place.length).into());
        }
        Ok(Self { peer, place })
    }

    /// It printed that this notification came in.
    pub(super) fn was_notified(&mut self, name: &str, message: &str) -> Result<()> {
        self.peer.find(NOTICE, |line| says(line, name) && says(line, message)).map(drop)
    }

    pub(super) fn is_well(&mut self) -> Result<()> {
        if self.peer.is_alive() { Ok(()) } else { Err("te serve is gone".into()) }
    }

    /// Ends at once, without a chance to clean up.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.peer.kill()
    }

    /// Asked to stop, it ends in time and with success.
    pub(super) fn stop(&mut self) -> Result<()> {
        let status = self.peer.terminate(STOP)?;
        if status.success() { Ok(()) } else { Err(format!("te serve ended with {status}").into()) }
    }
}

/// Whether the text is a string anywhere in the value.
fn says(value: &Value, text: &str) -> bool {
    match value {
        Value::String(string) => string == text,
        Value::Array(values) => values.iter().any(|v| says(v, text)),
        Value::Object(members) => members.values().any(|v| says(v, text)),
        _ => false,
    }
}

/// The program at this path, with its peers at this meeting.
pub(super) fn te(program: &Path, logs: &Path, meeting: Meeting) -> Te {
    Te { program: program.to_owned(), logs: logs.to_owned(), meeting }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sizes_are_written_with_the_largest_whole_unit() {
        assert_eq!(size_text(64 << 20), "64MiB");
        assert_eq!(size_text(4096), "4KiB");
        assert_eq!(size_text(100), "100");
        assert_eq!(size_text(0), "0");
    }

    #[test]
    fn framing_v1_is_asked_for_and_v2_is_the_default() {
        let place = Place { segment: "127.0.0.1:15000".into(), address: 0x7f00, length: 4096 };
        let transfer = |framing| Transfer { op: "read", size: 4096, blocks: 16, seed: 9, framing };
        let v2 = check_arguments(&place, transfer(Framing::V2)).join(" ");
        assert_eq!(v2, "--peer 127.0.0.1:15000 --addr 0x7f00 --size 4KiB --batch 16 --seed 9 --op read");
        let v1 = check_arguments(&place, transfer(Framing::V1)).join(" ");
        assert_eq!(v1, format!("{v2} --set tcp.framing=v1"));
    }

    #[test]
    fn a_notification_is_found_wherever_it_is_printed() {
        let line = json!({"notify": {"peer": "p", "name": "layer", "message": "17"}});
        assert!(says(&line, "layer") && says(&line, "17"));
        assert!(!says(&line, "1"));
    }
}
