//! Running the program and reading what it prints.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    dead_code,
    reason = "a failure fails the test, and not every test needs every helper"
)]

pub(crate) mod tree;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// The program without the settings of whoever runs the tests.
pub(crate) fn te() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_te"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TE_") || name.starts_with("MC_")) {
        command.env_remove(name);
    }
    command
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    te().args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// Standard output of a command that must succeed.
pub(crate) fn succeeds(arguments: &[&str]) -> String {
    let output = run(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "te {}: {} {error}", arguments.join(" "), output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// The one JSON line of a command that must succeed.
pub(crate) fn json(arguments: &[&str]) -> Value {
    let arguments: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
    serde_json::from_str(&succeeds(&arguments)).unwrap()
}

/// Exit code and standard error of a command that must fail.
pub(crate) fn fails(arguments: &[&str]) -> (i32, String) {
    let output = run(arguments);
    assert!(!output.status.success(), "te {} succeeded", arguments.join(" "));
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// A running `te serve --json`.
pub(crate) struct Served {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Value>,
    pub(crate) segment: String,
    pub(crate) address: String,
}

impl Served {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_as("127.0.0.1", arguments)
    }

    /// With a name of its own, for a metadata store.
    pub(crate) fn start_as(name: &str, arguments: &[&str]) -> Self {
        Self::spawn(te().args(["serve", "--name", name, "--json"]).args(arguments))
    }

    /// With its memory at the same addresses in every life that is started so.
    pub(crate) fn start_at_fixed_addresses(name: &str, arguments: &[&str]) -> Self {
        let te = te();
        let mut command = Command::new("setarch");
        command
            .arg("--addr-no-randomize")
            .arg(te.get_program())
            .envs(te.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))));
        for (name, _) in te.get_envs().filter(|(_, value)| value.is_none()) {
            command.env_remove(name);
        }
        Self::spawn(command.args(["serve", "--name", name, "--json"]).args(arguments))
    }

    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(serde_json::from_str(&line).unwrap()).is_err() {
                    return;
                }
            }
        });
        let stdin = child.stdin.take();
        let (segment, address) = (String::new(), String::new());
        let mut served = Self { child, stdin, lines, segment, address };
        let hello = served.next();
        assert!(hello["segment"].is_string(), "{hello}");
        served.segment = hello["segment"].as_str().unwrap().to_owned();
        served.address = format!("{:#x}", hello["buffers"][0]["addr"].as_u64().unwrap());
        served
    }

    pub(crate) fn next(&self) -> Value {
        self.lines.recv_timeout(Duration::from_secs(20)).unwrap()
    }

    pub(crate) fn ask(&mut self, command: &str) -> Value {
        writeln!(self.stdin.as_mut().unwrap(), "{command}").unwrap();
        self.next()
    }

    pub(crate) fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Kills it without a chance to clean up.
    pub(crate) fn kill(mut self) {
        self.kill_now();
    }

    pub(crate) fn kill_now(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Stops it from answering while its connections stay up.
    pub(crate) fn freeze(&self) {
        te_testkit::freeze(self.pid()).unwrap();
    }

    pub(crate) fn thaw(&self) {
        te_testkit::thaw(self.pid()).unwrap();
    }

    fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    /// The exit code, if it ends in time.
    pub(crate) fn ends_within(&mut self, time: Duration) -> Option<i32> {
        let deadline = Instant::now() + time;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            thread::sleep(Duration::from_millis(5));
        }
        None
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
