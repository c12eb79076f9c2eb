//! The reference engine's side: a target or an initiator, driven through its script.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::environment::Environment;
use super::json_peer::JsonPeer;
use super::meeting::Meeting;
use crate::Result;

const START: Duration = Duration::from_secs(60);
/// Longer than the reference's own limit of 30 s for a transfer, so that its error is seen.
const ANSWER: Duration = Duration::from_secs(45);

/// The two framings of the TCP data path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    V1,
    V2,
}

impl Framing {
    pub(super) const ALL: [Self; 2] = [Self::V2, Self::V1];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
        }
    }
}

/// A buffer of a segment, and how to reach it.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) segment: String,
    pub(super) address: u64,
    pub(super) length: u64,
}

impl Place {
    /// Reads the line that both engines print when they are ready: the first buffer counts.
    pub(super) fn parse(hello: &Value) -> Result<Self> {
        let segment = hello["segment"].as_str().ok_or_else(|| format!("no segment in {hello}"))?;
        let buffer = &hello["buffers"][0];
        let address = number(&buffer["addr"]).ok_or_else(|| format!("no buffer address in {hello}"))?;
        let length = number(&buffer["length"]).ok_or_else(|| format!("no buffer length in {hello}"))?;
        Ok(Self { segment: segment.to_owned(), address, length })
    }
}

/// A number, or the text of one in hexadecimal.
fn number(value: &Value) -> Option<u64> {
    let hexadecimal = || u64::from_str_radix(value.as_str()?.strip_prefix("0x")?, 16).ok();
    value.as_u64().or_else(hexadecimal)
}

/// A running engine of the reference.
pub(super) struct Reference {
    peer: JsonPeer,
    pub(super) place: Place,
}

impl Reference {
    /// A target whose buffer is to be read and written by others.
    pub(super) fn target(environment: &Environment, size: u64) -> Result<Self> {
        let log = "reference-target";
        Self::start(
            environment,
            "reference_target.py",
            (&Meeting::peers(), "127.0.0.1"),
            size,
            Framing::V2,
            log,
        )
    }

    /// A target with a name in a store.
    pub(super) fn target_at(
        environment: &Environment,
        meeting: &Meeting,
        name: &str,
        size: u64,
    ) -> Result<Self> {
        let log = "reference-target-store";
        Self::start(environment, "reference_target.py", (meeting, name), size, Framing::V2, log)
    }

    /// An initiator with a name in a store.
    pub(super) fn initiator_at(
        environment: &Environment,
        meeting: &Meeting,
        name: &str,
        size: u64,
    ) -> Result<Self> {
        let log = "reference-initiator-store";
        Self::start(environment, "reference_initiator.py", (meeting, name), size, Framing::V2, log)
    }

    /// An initiator that speaks this framing.
    pub(super) fn initiator(environment: &Environment, size: u64, framing: Framing) -> Result<Self> {
        let log = format!("reference-initiator-{}", framing.name());
        let at = (&Meeting::peers(), "127.0.0.1");
        Self::start(environment, "reference_initiator.py", at, size, framing, &log)
    }

    fn start(
        environment: &Environment,
        script: &str,
        (meeting, name): (&Meeting, &str),
        size: u64,
        framing: Framing,
        log: &str,
    ) -> Result<Self> {
        let mut command = Command::new(&environment.python);
        command
            .arg("-B")
            .arg(environment.scripts.join(script))
            .args(["--name", name, "--size", &size.to_string()])
            .env("LD_PRELOAD", &environment.preload)
            .env("MC_TCP_BIND_ADDRESS", "127.0.0.1")
            // On a host with RDMA devices it would choose them instead.
            .env("MC_FORCE_TCP", "1")
            .env_remove("LD_LIBRARY_PATH");
        meeting.tell(&mut command);
        match framing {
            Framing::V1 => command.env("MC_TCP_PROTO", "1"),
            Framing::V2 => command.env_remove("MC_TCP_PROTO"),
        };
        let mut peer = JsonPeer::spawn(command, log, &environment.logs)?;
        let place = Place::parse(&peer.next(START)?)?;
        Ok(Self { peer, place })
    }

    /// Sends a command; what it says went wrong is an error.
    pub(super) fn ask(&mut self, command: Value) -> Result<Value> {
        let answer = self.peer.ask(&command, ANSWER)?;
        if answer["ok"] == true { Ok(answer) } else { Err(format!("{command} was answered {answer}").into()) }
    }

    /// Runs a command that has to fail, while the process goes on.
    pub(super) fn refuse(&mut self, command: Value) -> Result<()> {
        let answer = self.peer.ask(&command, ANSWER)?;
        if answer["ok"] == false { Ok(()) } else { Err(format!("{command} was answered {answer}").into()) }
    }

    /// The process runs and answers.
    pub(super) fn is_well(&mut self) -> Result<()> {
        if !self.peer.is_alive() {
            return Err("the reference process is gone".into());
        }
        self.ask(json!({"do": "ping"})).map(drop)
    }

    /// Ends at once, without a chance to clean up.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.peer.kill()
    }

    /// Ends it in order.
    pub(super) fn quit(&mut self) -> Result<()> {
        self.ask(json!({"do": "quit"}))?;
        let status = self.peer.wait(Duration::from_secs(10))?;
        if status.success() { Ok(()) } else { Err(format!("the reference ended with {status}").into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_numbers_and_as_text() {
        let hello = json!({"segment": "127.0.0.1:15000", "buffers": [{"addr": 4096, "length": 64}], "rpc_port": 15000});
        let place = Place::parse(&hello).unwrap();
        assert_eq!((place.segment.as_str(), place.address, place.length), ("127.0.0.1:15000", 4096, 64));
        let hello = json!({"segment": "s", "buffers": [{"addr": "0x7f00", "length": 64}]});
        assert_eq!(Place::parse(&hello).unwrap().address, 0x7f00);
    }

    #[test]
    fn a_hello_without_a_buffer_is_an_error() {
        assert!(Place::parse(&json!({"segment": "s", "buffers": []})).is_err());
        assert!(Place::parse(&json!({"buffers": [{"addr": 1, "length": 1}]})).is_err());
    }
}
