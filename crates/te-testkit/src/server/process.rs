//! A server process that never outlives its test.

use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// A server process, killed when dropped.
///
/// A shell watches over it: when the test process ends without dropping anything, as with a server in a static, the
/// shell sees the end of its input, kills the server and removes its folder.
#[derive(Debug)]
pub(super) struct ServerProcess {
    shell: Child,
    server: Pid,
}

impl ServerProcess {
    const WATCH: &str = "command -v \"$1\" >/dev/null || exit; \"$@\" </dev/null >/dev/null 2>&1 & echo $!; \
        cat >/dev/null; kill -9 $! 2>/dev/null; wait; rm -rf \"$0\"";

    /// A command that becomes a server in `dir`; takes the server's arguments.
    pub(super) fn command(dir: &Path, program: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", Self::WATCH]).arg(dir).arg(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command
    }

    /// Starts it. `need` names the program and its package, for whoever lacks them.
    pub(super) fn start(mut command: Command, need: &str) -> io::Result<Self> {
        let mut shell = command.spawn()?;
        let mut line = String::new();
        if let Some(out) = shell.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        match line.trim().parse().ok().and_then(Pid::from_raw) {
            Some(server) => Ok(Self { shell, server }),
            None => Err(io::Error::other(format!("this test needs the program {need}"))),
        }
    }

    pub(super) fn runs(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.server)).unwrap_or_default();
        // The state follows the name, which is in brackets. The first thread can be over while others still hold the
        // sockets.
        let first_is_over = stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('Z'));
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.server)).map_or(0, Iterator::count);
        !first_is_over || threads > 1
    }

    /// Stops it from answering while its connections stay up.
    pub(super) fn freeze(&self) -> io::Result<()> {
        crate::freeze(self.server)
    }

    pub(super) fn thaw(&self) -> io::Result<()> {
        crate::thaw(self.server)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // The shell first: it would remove the folder.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
        let _ = kill_process(self.server, Signal::KILL);
        while self.runs() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
