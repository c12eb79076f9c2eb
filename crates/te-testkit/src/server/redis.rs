//! redis servers.

use std::io;
use std::path::Path;

use tempfile::TempDir;

use super::process::ServerProcess;
use super::{connections, stopped, wait};
use crate::ports::free_port;

const PROGRAM: &str = "redis-server";

/// A redis server that keeps what it is told, across restarts too.
#[derive(Debug)]
pub struct RedisServer {
    port: u16,
    dir: TempDir,
    extra: Vec<String>,
    process: Option<ServerProcess>,
}

impl RedisServer {
    /// Starts one, with its data below `folder` and these options besides.
    ///
    /// # Errors
    /// The program is not there, or it does not start.
    pub fn start(folder: &Path, extra: &[&str]) -> io::Result<Self> {
        let extra = extra.iter().map(|text| (*text).to_owned()).collect();
        let dir = tempfile::tempdir_in(folder)?;
        let mut server = Self { port: free_port()?, dir, extra, process: None };
        server.run()?;
        Ok(server)
    }

    /// Starts it, again with the data it had.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn run(&mut self) -> io::Result<()> {
        let port = self.port.to_string();
        let tls = self.extra.iter().any(|option| option == "--tls-cert-file");
        let ports =
            if tls { ["--port", "0", "--tls-port", &port] } else { ["--port", &port, "--tls-port", "0"] };
        let mut command = ServerProcess::command(self.dir.path(), PROGRAM);
        command.args(ports).arg("--dir").arg(self.dir.path()).args(["--bind", "127.0.0.1", "--save", ""]);
        command.args(["--appendonly", "yes", "--appendfsync", "always"]).args(&self.extra);
        let process = ServerProcess::start(command, "`redis-server`: apt-get install redis-server")?;
        wait(self.process.insert(process), PROGRAM, self.port)
    }

    fn process(&self) -> io::Result<&ServerProcess> {
        self.process.as_ref().ok_or_else(|| stopped(PROGRAM))
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
        for entry in std::fs::read_dir(self.dir.path())? {
            let path = entry?.path();
            if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }?;
        }
        Ok(())
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

    /// `127.0.0.1:PORT`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Connections of this host to its port.
    ///
    /// # Errors
    /// The kernel's table cannot be read.
    pub fn connections(&self) -> io::Result<usize> {
        connections(self.port)
    }
}
