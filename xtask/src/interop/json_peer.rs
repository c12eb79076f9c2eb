//! A child process that speaks JSON lines on its standard streams.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Result;
use crate::shell::{Cmd, wait_until};

/// The process. Dropping it kills it.
pub(super) struct JsonPeer {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Value>,
    /// Lines that were passed over while looking for another one.
    passed: VecDeque<Value>,
    log: PathBuf,
}

impl JsonPeer {
    /// Starts the command. Standard error goes to a log file; lines of standard output that are no JSON object
    /// are skipped.
    pub(super) fn spawn(mut command: Command, name: &str, logs: &Path) -> Result<Self> {
        let log = logs.join(format!("{name}.log"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&log)?);
        let mut child = command.spawn().map_err(|e| format!("cannot start {name}: {e}"))?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().ok_or("a child without standard output")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(std::io::Result::ok) {
                let object = serde_json::from_str::<Value>(&line).ok().filter(Value::is_object);
                if object.is_some_and(|object| sender.send(object).is_err()) {
                    return;
                }
            }
        });
        Ok(Self { name: name.to_owned(), child, stdin, lines, passed: VecDeque::new(), log })
    }

    /// The next object it prints.
    pub(super) fn next(&mut self, within: Duration) -> Result<Value> {
        match self.passed.pop_front() {
            Some(passed) => Ok(passed),
            None => self.receive(within),
        }
    }

    /// The next object that is the wanted one; others stay for [`Self::next`].
    pub(super) fn find(&mut self, within: Duration, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        if let Some(at) = self.passed.iter().position(&wanted) {
            return self.passed.remove(at).ok_or_else(|| "a line vanished".into());
        }
        let deadline = Instant::now() + within;
        loop {
            let line = self.receive(deadline.saturating_duration_since(Instant::now()))?;
            if wanted(&line) {
                return Ok(line);
            }
            self.passed.push_back(line);
        }
    }

    fn receive(&self, within: Duration) -> Result<Value> {
        self.lines.recv_timeout(within).map_err(|error| {
            let what = match error {
                RecvTimeoutError::Timeout => format!("said nothing for {} ms", within.as_millis()),
                RecvTimeoutError::Disconnected => "closed its output".to_owned(),
            };
            format!("{} {what}; {}", self.name, self.last_words()).into()
        })
    }

    /// Sends one command and waits for its answer.
    pub(super) fn ask(&mut self, command: &Value, within: Duration) -> Result<Value> {
        let stdin = self.stdin.as_mut().ok_or("the peer was told to stop")?;
        writeln!(stdin, "{command}").map_err(|e| format!("{} does not listen: {e}", self.name))?;
        self.receive(within)
    }

    /// Whether the process still runs.
    pub(super) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Asks the process to stop, as a supervisor would, and waits for it to end.
    pub(super) fn terminate(&mut self, within: Duration) -> Result<ExitStatus> {
        Cmd::new("sh").args(["-c", "kill -TERM \"$0\"", &self.child.id().to_string()]).quiet()?;
        self.wait(within)
    }

    /// Kills it and waits for its end.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits for the process to end by itself.
    pub(super) fn wait(&mut self, within: Duration) -> Result<ExitStatus> {
        wait_until(&mut self.child, Instant::now() + within)?
            .ok_or_else(|| format!("{} was still running after {} ms", self.name, within.as_millis()).into())
    }

    /// The end of its log, for an error.
    fn last_words(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(3)..].join(" | ");
        format!("its log {} ends: {tail}", self.log.display())
    }
}

impl Drop for JsonPeer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    fn peer(name: &str, script: &str) -> JsonPeer {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let logs = std::env::temp_dir();
        JsonPeer::spawn(command, &format!("te-xtask-{name}-{}", std::process::id()), &logs).unwrap()
    }

    #[test]
    fn lines_that_are_no_objects_are_skipped() {
        let mut peer = peer("skip", "echo noise; echo 3; echo '{\"a\":1}'");
        assert_eq!(peer.next(SOON).unwrap(), json!({"a": 1}));
        assert!(peer.next(SOON).is_err());
    }

    #[test]
    fn a_line_is_found_behind_others_and_they_are_kept() {
        let mut peer = peer("find", "echo '{\"a\":1}'; echo '{\"b\":2}'");
        assert_eq!(peer.find(SOON, |line| line["b"] == 2).unwrap(), json!({"b": 2}));
        assert_eq!(peer.next(SOON).unwrap(), json!({"a": 1}));
    }

    #[test]
    fn silence_and_death_are_errors() {
        let mut peer = peer("silence", "echo last words >&2; exec sleep 20");
        assert!(peer.is_alive());
        let error = peer.next(Duration::from_millis(300)).unwrap_err().to_string();
        assert!(error.contains("said nothing") && error.contains("last words"), "{error}");
        assert!(!peer.terminate(SOON).unwrap().success());
        assert!(!peer.is_alive());
        assert!(peer.next(SOON).unwrap_err().to_string().contains("closed its output"));
    }

    #[test]
    fn commands_are_answered() {
        let mut peer = peer("answer", "while read line; do echo \"$line\"; done");
        assert_eq!(peer.ask(&json!({"do": "ping"}), SOON).unwrap(), json!({"do": "ping"}));
    }
}
