//! redis servers for tests: on free loopback ports, with their data below the target folder, gone with the test.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use redis::aio::MultiplexedConnection;
use rustix::process::{Pid, Signal, kill_process};
use te_metadata_redis::{RedisConfig, RedisStore};
use te_testkit::free_port;
use tempfile::TempDir;

/// A redis server, killed when dropped.
pub(crate) struct Server {
    pub(crate) port: u16,
    dir: TempDir,
    extra: Vec<String>,
    child: Option<Child>,
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
        let mut server = Self { port: free_port().unwrap(), dir: scratch(), extra, child: None };
        server.run();
        server
    }

    /// Starts it, again with the data it had.
    pub(crate) fn run(&mut self) {
        let port = self.port.to_string();
        let tls = self.extra.iter().any(|option| option == "--tls-cert-file");
        let ports =
            if tls { ["--port", "0", "--tls-port", &port] } else { ["--port", &port, "--tls-port", "0"] };
        let mut command = Command::new("redis-server");
        command.args(ports).arg("--dir").arg(self.dir.path()).args(["--bind", "127.0.0.1", "--save", ""]);
        command.args(["--appendonly", "yes", "--appendfsync", "always"]).args(&self.extra);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            Ok(child) => self.child = Some(child),
            Err(error) => {
                panic!("these tests need the program `redis-server` ({error}): apt-get install redis-server")
            }
        }
        let until = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))).is_err() {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "redis-server ended: {ended:?}");
            assert!(Instant::now() < until, "redis-server did not start");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Removes the data of a stopped server.
    pub(crate) fn wipe(&self) {
        for entry in std::fs::read_dir(self.dir.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }.unwrap();
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = self.child.as_ref().unwrap().id();
        kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal).unwrap();
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

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
