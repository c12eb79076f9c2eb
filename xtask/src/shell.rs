//! Running other programs: shown before they start, bounded in time, output streamed or kept.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;

/// No command of the test run takes longer than this; one that does hangs.
const DEADLINE: Duration = Duration::from_secs(30 * 60);

/// A command about to be run.
pub(crate) struct Cmd {
    command: Command,
    shown: String,
    deadline: Duration,
}

/// What a finished command left behind.
pub(crate) struct Finished {
    pub(crate) success: bool,
    /// Standard output and standard error in the order they came.
    pub(crate) output: String,
}

impl Cmd {
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        let program = program.as_ref();
        let shown = Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned();
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        Self { command, shown, deadline: DEADLINE }
    }

    /// The cargo that runs this program.
    pub(crate) fn cargo(subcommand: &str) -> Self {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        Self::new(cargo).arg(subcommand)
    }

    pub(crate) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.shown.push(' ');
        self.shown.push_str(&argument.as_ref().to_string_lossy());
        self.command.arg(argument);
        self
    }

    pub(crate) fn args<S: AsRef<OsStr>>(self, arguments: impl IntoIterator<Item = S>) -> Self {
        arguments.into_iter().fold(self, Self::arg)
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.shown = format!("{name}={} {}", value.as_ref().to_string_lossy(), self.shown);
        self.command.env(name, value);
        self
    }

    pub(crate) fn dir(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    pub(crate) fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Runs with the output on ours; whether it succeeded.
    pub(crate) fn run(mut self) -> Result<bool> {
        println!("$ {}", self.shown);
        let mut child = self.spawn()?;
        Ok(self.wait(&mut child)?.success())
    }

    /// Runs with the output on ours, and keeps it.
    pub(crate) fn tee(self) -> Result<Finished> {
        println!("$ {}", self.shown);
        self.collect(true)
    }

    /// Runs silently; the output of both streams.
    pub(crate) fn quiet(self) -> Result<Finished> {
        self.collect(false)
    }

    /// Runs silently; standard output alone, or an error with standard error in it.
    pub(crate) fn read(mut self) -> Result<String> {
        let output = self.command.output().map_err(|e| format!("cannot run {}: {e}", self.shown))?;
        if !output.status.success() {
            let complaint = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{} failed: {}", self.shown, complaint.trim()).into());
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    fn collect(mut self, show: bool) -> Result<Finished> {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.spawn()?;
        let kept = Arc::new(Mutex::new(Vec::new()));
        let readers: Vec<_> = [
            child.stdout.take().map(|s| copy(s, show.then(std::io::stdout), Arc::clone(&kept))),
            child.stderr.take().map(|s| copy(s, show.then(std::io::stderr), Arc::clone(&kept))),
        ]
        .into_iter()
        .flatten()
        .collect();
        let status = self.wait(&mut child)?;
        for reader in readers {
            let _ = reader.join();
        }
        let bytes = kept.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Finished { success: status.success(), output: String::from_utf8_lossy(&bytes).into_owned() })
    }

    fn spawn(&mut self) -> Result<Child> {
        self.command.spawn().map_err(|e| format!("cannot run {}: {e}", self.shown).into())
    }

    fn wait(&self, child: &mut Child) -> Result<ExitStatus> {
        match wait_until(child, Instant::now() + self.deadline)? {
            Some(status) => Ok(status),
            None => {
                child.kill()?;
                child.wait()?;
                Err(format!("{} was still running after {} s", self.shown, self.deadline.as_secs()).into())
            }
        }
    }
}

/// Waits for a child until the deadline; `None` if it still runs then.
pub(crate) fn wait_until(child: &mut Child, deadline: Instant) -> std::io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a program of this name is on the search path.
pub(crate) fn is_installed(program: &str) -> bool {
    let Some(path) = std::env::var_os("PATH") else { return false };
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Copies a stream to the buffer, and to ours where one is given, until its end.
fn copy<R, W>(mut from: R, mut to: Option<W>, kept: Arc<Mutex<Vec<u8>>>) -> thread::JoinHandle<()>
where
    R: Read + Send + 'static,
    W: Write + Send + 'static,
{
    thread::spawn(move || {
        let mut chunk = [0; 8192];
        while let Ok(n @ 1..) = from.read(&mut chunk) {
            if let Some(to) = &mut to {
                let _ = to.write_all(&chunk[..n]).and_then(|()| to.flush());
            }
            kept.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&chunk[..n]);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_both_streams_is_kept() {
        let finished = Cmd::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]).quiet().unwrap();
        assert!(!finished.success);
        assert!(finished.output.contains("out") && finished.output.contains("err"));
    }

    #[test]
    fn a_command_past_its_deadline_is_an_error() {
        let begun = Instant::now();
        let error = Cmd::new("sleep").arg("20").deadline(Duration::from_millis(50)).quiet().err().unwrap();
        assert!(error.to_string().contains("still running"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_program_that_does_not_exist_is_an_error() {
        assert!(Cmd::new("no-such-program-here").run().is_err());
        assert!(!is_installed("no-such-program-here"));
        assert!(is_installed("sh"));
    }

    #[test]
    fn a_failing_read_carries_the_complaint() {
        let error = Cmd::new("sh").args(["-c", "echo why >&2; exit 1"]).read().err().unwrap();
        assert!(error.to_string().contains("why"), "{error}");
    }
}
