//! redis servers for tests: on free loopback ports, with their data below the target folder, gone with the test.

use std::{
    io::{BufRead, BufReader},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use redis::aio::MultiplexedConnection;
use rustix::process::{Pid, Signal, kill_process};
use te_metadata_redis::{RedisConfig, RedisStore};
use te_testkit::free_port;
use tempfile::TempDir;

/// A redis server.
pub(crate) struct Server {
    pub(crate) port: u16,
    dir: TempDir,
    extra: Vec<String>,
    process: Option<Process>,
}

pub(crate) fn scratch() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(extra: &[&str]) -> Self {
        let extra = extra.iter().map(|text| (*text).to_owned()).collect();
        let mut server = Self { port: free_port().unwrap(), dir: scratch(), extra, process: None };
        server.run();
        server
    }

    /// Starts it, again with the data it had.
    pub(crate) fn run(&mut self) {
        let port = self.port.to_string();
        let tls = self.extra.iter().any(|option| option == "--tls-cert-file");
        let ports =
            if tls { ["--port", "0", "--tls-port", &port] } else { ["--port", &port, "--tls-port", "0"] };
        let mut command = Process::command(self.dir.path(), "redis-server");
        command.args(ports).arg("--dir").arg(self.dir.path()).args(["--bind", "127.0.0.1", "--save", ""]);
        command.args(["--appendonly", "yes", "--appendfsync", "always"]).args(&self.extra);
        self.process = Some(Process::start(command, "`redis-server`: apt-get install redis-server"));
        let until = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))).is_err() {
            assert!(self.process.as_ref().unwrap().runs(), "redis-server ended");
            assert!(Instant::now() < until, "redis-server did not start");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn stop(&mut self) {
        self.process = None;
    }

    /// Removes the data of a stopped server.
    pub(crate) fn wipe(&self) {
        for entry in std::fs::read_dir(self.dir.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }.unwrap();
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.process.as_ref().unwrap().server, signal).unwrap();
    }

    /// Stops it from answering while its connections stay up.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn config(&self) -> RedisConfig {
        RedisConfig::parse(&format!("redis://{}", self.address())).unwrap()
    }

    pub(crate) fn store(&self) -> RedisStore {
        RedisStore::new(self.config()).unwrap()
    }

    /// A client that knows nothing of this crate: the reference engine, or an operator.
    pub(crate) async fn foreign(&self) -> MultiplexedConnection {
        let client = redis::Client::open(format!("redis://{}", self.address())).unwrap();
        client.get_multiplexed_async_connection().await.unwrap()
    }

    /// Runs commands of somebody else.
    pub(crate) async fn command(&self, words: &[&str]) -> redis::Value {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).query_async(&mut self.foreign().await).await.unwrap()
    }

    /// Connections to its port, by the kernel's table.
    pub(crate) fn connections(&self) -> usize {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let remote = format!("0100007F:{:04X}", self.port);
        let established = |line: &&str| {
            let mut words = line.split_whitespace().skip(2);
            words.next() == Some(&remote) && words.next() == Some("01")
        };
        table.lines().filter(established).count()
    }
}

/// A server process, killed when dropped.
///
/// A shell watches over it: when the test process ends without dropping anything, as with a server in a static, the
/// shell sees the end of its input, kills the server and removes its folder.
struct Process {
    shell: Child,
    server: Pid,
}

impl Process {
    const WATCH: &str = "command -v \"$1\" >/dev/null || exit; \"$@\" </dev/null >/dev/null 2>&1 & echo $!; \
        cat >/dev/null; kill -9 $! 2>/dev/null; wait; rm -rf \"$0\"";

    fn command(dir: &Path, program: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", Self::WATCH]).arg(dir).arg(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command
    }

    fn start(mut command: Command, need: &str) -> Self {
        let mut shell = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Ok(id) = line.trim().parse() else { panic!("these tests need the program {need}") };
        Self { shell, server: Pid::from_raw(id).unwrap() }
    }

    fn runs(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.server)).unwrap_or_default();
        // The state follows the name, which is in brackets.
        stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
    }
}

impl Drop for Process {
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
