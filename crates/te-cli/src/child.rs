//! Another process of this program that answers in JSON lines. It ends when its standard input closes, so that it never
//! outlives this one, however that ends.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::context::Context;
use crate::failure::{Failure, Result};

/// How long a child may take to end by itself.
const END: Duration = Duration::from_secs(3);

/// A running child.
pub(crate) struct JsonChild {
    name: &'static str,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Value>,
}

impl JsonChild {
    /// Starts `te COMMAND ARGS` as a peer on this host, with the settings of this process.
    pub(crate) fn start(context: &Context, name: &'static str, arguments: &[String]) -> Result<Self> {
        let program =
            env::current_exe().map_err(|error| Failure::io("cannot find the own program", &error))?;
        let mut command = Command::new(program);
        command.args(arguments).args(context.child_options()).arg("--json");
        // Addresses are not inherited: two processes cannot share one, and both are here.
        command.args(["--metadata", "P2PHANDSHAKE", "--name", loopback()]);
        for setting in ["metadata=P2PHANDSHAKE", "advertise=auto", "bind=auto", "control.port=0"] {
            command.args(["--set", setting]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child =
            command.spawn().map_err(|error| Failure::io(format!("cannot start the {name}"), &error))?;
        let stdin = child.stdin.take();
        let Some(stdout) = child.stdout.take() else {
            return Err(Failure::Other(format!("the {name} has no standard output")));
        };
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(std::io::Result::ok) {
                let value = serde_json::from_str(&line).unwrap_or(Value::Null);
                if sender.send(value).is_err() {
                    return;
                }
            }
        });
        Ok(Self { name, child, stdin, lines })
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line.
    pub(crate) fn next(&self, within: Duration) -> Result<Value> {
        let value = self.lines.recv_timeout(within).map_err(|error| {
            Failure::Other(match error {
                RecvTimeoutError::Timeout => format!("the {} said nothing for {within:?}", self.name),
                RecvTimeoutError::Disconnected => format!("the {} has ended", self.name),
            })
        })?;
        match value.pointer("/error/cause").and_then(Value::as_str) {
            Some(cause) => Err(Failure::Other(format!("the {} failed: {cause}", self.name))),
            None => Ok(value),
        }
    }

    /// Sends one command.
    pub(crate) fn tell(&mut self, command: &str) -> Result<()> {
        let name = self.name;
        let gone = || Failure::Other(format!("the {name} has ended"));
        let stdin = self.stdin.as_mut().ok_or_else(gone)?;
        writeln!(stdin, "{command}").and_then(|()| stdin.flush()).map_err(|_| gone())
    }

    /// Sends one command and waits for its answer.
    pub(crate) fn ask(&mut self, command: &str, within: Duration) -> Result<Value> {
        self.tell(command)?;
        self.next(within)
    }
}

impl Drop for JsonChild {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let deadline = Instant::now() + END;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        // It had its time. An error means that it has ended meanwhile.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The loopback address of this host: IPv4 if it has it.
pub(crate) fn loopback() -> &'static str {
    if TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).is_ok() { "127.0.0.1" } else { "::1" }
}
