//! etcd servers for tests: on free loopback ports, with their data below the target folder, gone with the test.

use std::{
    io::{BufRead, BufReader},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use te_metadata_etcd::{EtcdConfig, EtcdStore};
use te_testkit::free_ports;
use tempfile::TempDir;

/// One etcd member.
pub(crate) struct Server {
    pub(crate) port: u16,
    peer: u16,
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
        let mut server = Self::prepare(free_ports(2).unwrap(), extra);
        server.run();
        server
    }

    fn prepare(ports: Vec<u16>, extra: &[&str]) -> Self {
        let [port, peer] = ports[..] else { panic!("two ports were asked for") };
        let extra = extra.iter().map(|text| (*text).to_owned()).collect();
        Self { port, peer, dir: scratch(), extra, process: None }
    }

    /// Three members of one cluster.
    pub(crate) fn cluster() -> Vec<Self> {
        let ports = free_ports(6).unwrap();
        let mut members: Vec<_> = ports.chunks(2).map(|pair| Self::prepare(pair.to_vec(), &[])).collect();
        let all: Vec<_> =
            members.iter().map(|m| format!("m{}=http://127.0.0.1:{}", m.peer, m.peer)).collect();
        for member in &mut members {
            member.extra = vec![
                format!("--name=m{}", member.peer),
                format!("--initial-cluster={}", all.join(",")),
                "--heartbeat-interval=50".to_owned(),
                "--election-timeout=500".to_owned(),
            ];
        }
        for member in &mut members {
            member.spawn();
        }
        members.iter_mut().for_each(Self::wait);
        members
    }

    /// Starts it, again with the data it had.
    pub(crate) fn run(&mut self) {
        self.spawn();
        self.wait();
    }

    fn spawn(&mut self) {
        let tls = self.extra.iter().any(|option| option.starts_with("--cert-file"));
        let clients = format!("{}://127.0.0.1:{}", if tls { "https" } else { "http" }, self.port);
        let peers = format!("http://127.0.0.1:{}", self.peer);
        let mut command = Process::command(self.dir.path(), "etcd");
        command
            .arg("--data-dir")
            .arg(self.data())
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--log-level", "error", "--logger", "zap"]);
        if !self.extra.iter().any(|option| option.starts_with("--initial-cluster=")) {
            command.arg(format!("--initial-cluster=default={peers}"));
        }
        command.args(&self.extra);
        self.process = Some(Process::start(command, "`etcd`: apt-get install etcd-server"));
    }

    /// Until it takes connections: it listens for clients only when it can serve them.
    fn wait(&mut self) {
        let until = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))).is_err() {
            assert!(self.process.as_ref().unwrap().runs(), "etcd ended");
            assert!(Instant::now() < until, "etcd did not start");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub(crate) fn stop(&mut self) {
        self.process = None;
    }

    /// Removes the data of a stopped server.
    pub(crate) fn wipe(&self) {
        std::fs::remove_dir_all(self.data()).unwrap();
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

    pub(crate) fn config(&self) -> EtcdConfig {
        EtcdConfig::parse(&format!("etcd://{}", self.address())).unwrap()
    }

    pub(crate) fn store(&self) -> EtcdStore {
        EtcdStore::new(self.config()).unwrap()
    }

    /// Connections to its client port, by the kernel's table.
    pub(crate) fn connections(&self) -> usize {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let remote = format!("0100007F:{:04X}", self.port);
        let established = |line: &&str| {
            let mut words = line.split_whitespace().skip(2);
            words.next() == Some(&remote) && words.next() == Some("01")
        };
        table.lines().filter(established).count()
    }

    /// Runs etcd's own client, which sets up users.
    pub(crate) fn ctl(&self, args: &[&str]) {
        let done = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .arg("--endpoints")
            .arg(self.address())
            .args(args)
            .output();
        let done = done.expect("these tests need the program `etcdctl`: apt-get install etcd-client");
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
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
