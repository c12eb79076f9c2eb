//! etcd servers.

use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::process::ServerProcess;
use super::{connections, stopped, wait};
use crate::ports::free_ports;

const PROGRAM: &str = "etcd";

/// One etcd member.
#[derive(Debug)]
pub struct EtcdServer {
    /// Its client port. A stopped server can be moved to another.
    pub port: u16,
    peer: u16,
    dir: TempDir,
    extra: Vec<String>,
    process: Option<ServerProcess>,
}

impl EtcdServer {
    /// Starts a cluster of one, with its data below `folder` and these options besides.
    ///
    /// # Errors
    /// The program is not there, or it does not start.
    pub fn start(folder: &Path, extra: &[&str]) -> io::Result<Self> {
        let ports = free_ports(2)?;
        let mut server = Self::prepare(folder, &ports, extra)?;
        server.run()?;
        Ok(server)
    }

    fn prepare(folder: &Path, ports: &[u16], extra: &[&str]) -> io::Result<Self> {
        let &[port, peer] = ports else { return Err(io::Error::other("a member needs two ports")) };
        let extra = extra.iter().map(|text| (*text).to_owned()).collect();
        Ok(Self { port, peer, dir: tempfile::tempdir_in(folder)?, extra, process: None })
    }

    /// Starts three members of one cluster.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn cluster(folder: &Path) -> io::Result<Vec<Self>> {
        let ports = free_ports(6)?;
        let mut members =
            ports.chunks(2).map(|pair| Self::prepare(folder, pair, &[])).collect::<io::Result<Vec<_>>>()?;
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
            member.spawn()?;
        }
        members.iter().try_for_each(Self::wait)?;
        Ok(members)
    }

    /// Starts it, again with the data it had.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn run(&mut self) -> io::Result<()> {
        self.spawn()?;
        self.wait()
    }

    fn spawn(&mut self) -> io::Result<()> {
        let tls = self.extra.iter().any(|option| option.starts_with("--cert-file"));
        let clients = format!("{}://127.0.0.1:{}", if tls { "https" } else { "http" }, self.port);
        let peers = format!("http://127.0.0.1:{}", self.peer);
        let mut command = ServerProcess::command(self.dir.path(), PROGRAM);
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
        self.process = Some(ServerProcess::start(command, "`etcd`: apt-get install etcd-server")?);
        Ok(())
    }

    /// It listens for clients only when it can serve them.
    fn wait(&self) -> io::Result<()> {
        wait(self.process()?, PROGRAM, self.port)
    }

    fn process(&self) -> io::Result<&ServerProcess> {
        self.process.as_ref().ok_or_else(|| stopped(PROGRAM))
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Kills it.
    pub fn stop(&mut self) {
        self.process = None;
    }

    /// Removes the data of a stopped server.
    ///
    /// # Errors
    /// What the system says.
    pub fn wipe(&self) -> io::Result<()> {
        std::fs::remove_dir_all(self.data())
    }

    /// Stops it from answering while its connections stay up.
    ///
    /// # Errors
    /// It does not run.
    pub fn freeze(&self) -> io::Result<()> {
        self.process()?.freeze()
    }

    /// Lets it answer again.
    ///
    /// # Errors
    /// It does not run.
    pub fn thaw(&self) -> io::Result<()> {
        self.process()?.thaw()
    }

    /// `127.0.0.1:PORT`, for clients.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Connections of this host to its client port.
    ///
    /// # Errors
    /// The kernel's table cannot be read.
    pub fn connections(&self) -> io::Result<usize> {
        connections(self.port)
    }
}
